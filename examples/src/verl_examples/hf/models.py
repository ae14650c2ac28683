"""Models and tokenizers as transformers loads them, from a folder or by their id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from verl_examples.hf.jagged import Sequences


def load_tokenizer(model: str, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)


def load_causal_lm(model: str, dtype: torch.dtype, trust_remote_code: bool = False) -> Any:
    """A causal language model, on the CPU."""
    from transformers import AutoModelForCausalLM

    without_progress_bars()
    return AutoModelForCausalLM.from_pretrained(model, dtype=dtype, trust_remote_code=trust_remote_code)


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Overwrite every weight; those that are tied have one name."""
    for name, weight in model.named_parameters():
        weight.copy_(weights[name])


class ValueModel(nn.Module):
    """A language model without its head; a linear layer foresees the reward still to come at each token."""

    def __init__(self, model: str, dtype: torch.dtype, trust_remote_code: bool = False) -> None:
        super().__init__()
        from transformers import AutoModel

        without_progress_bars()
        self.body = AutoModel.from_pretrained(model, dtype=dtype, trust_remote_code=trust_remote_code)
        self.head = nn.Linear(self.body.config.hidden_size, 1, dtype=dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, sequences: Sequences) -> Tensor:
        """The value before each token of the answers, (rows, answer tokens)."""
        hidden = self.body(**sequences.for_model(), use_cache=False).last_hidden_state
        values: Tensor = self.head(hidden).squeeze(-1)
        return values[:, -sequences.answers.shape[1] - 1 : -1].float()


def answer_log_probs(model: Any, sequences: Sequences, temperature: float) -> Tensor:
    """Log-probability of each token of the answers at a temperature, (rows, answer tokens); 0 on padding."""
    kept = sequences.answers.shape[1] + 1
    logits = model(**sequences.for_model(), use_cache=False, logits_to_keep=kept).logits[:, :-1]
    losses = cross_entropy(logits.float().transpose(1, 2) / temperature, sequences.answers, reduction="none")
    return -losses * sequences.mask


def without_progress_bars() -> None:
    """Have transformers show none: they would go between the lines of a run."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
