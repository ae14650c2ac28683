"""Whether what a run needs is there."""

from __future__ import annotations

from importlib.util import find_spec


def needs_hugging_face() -> None:
    """Say how to install what is missing.

    Raises:
        ImportError: transformers is not installed.
    """
    if find_spec("transformers") is None:
        raise ImportError("needs transformers: `uv run --extra hf ...`, or `pip install 'verl-examples[hf]'`")


def needs_vllm() -> None:
    """Say what to do where it is missing.

    Raises:
        ImportError: vLLM is not installed.
    """
    if find_spec("vllm") is None:
        raise ImportError(
            "--rollout vllm needs vLLM: `pip install vllm`, on every node; --rollout separate does without"
        )
