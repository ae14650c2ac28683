"""The rollout by vLLM, with a stand-in that has the entry points which it calls; vLLM itself needs a GPU."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from verl_dispatch import ClassWithInitArgs, LocalWorkerGroup
from verl_examples.errors import EXIT_BAD_INPUT
from verl_examples.hf import installed
from verl_examples.hf.cli import main
from verl_examples.hf.generation import Generator
from verl_examples.hf.jagged import Sequences, jagged
from verl_examples.hf.models import answer_log_probs, load_causal_lm, load_tokenizer, load_weights
from verl_examples.hf.questions import Questions
from verl_examples.hf.run import run
from verl_examples.hf.settings import Settings
from verl_examples.hf.workers.rollout import TransformersRollout
from verl_examples.hf.workers.vllm_rollout import VllmRollout
from verl_examples.question_file import PARTS
from verl_protocol import DataProto

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra hf")


# --- the stand-in: what vLLM documents of these, and nothing else ------------------------------------------


@dataclass
class SamplingParams:
    """One request's sampling."""

    temperature: float = 1.0
    max_tokens: int = 16
    stop: list[str] = field(default_factory=list)
    seed: int | None = None
    logprobs: int | None = None


class LLM:
    """Answers token by token, each prompt alone; a prompt that it has seen is not read again."""

    def __init__(
        self, *, model: str, dtype: str, seed: int, trust_remote_code: bool, logprobs_mode: str
    ) -> None:
        assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        assert (dtype, logprobs_mode) == ("bfloat16", "processed_logprobs")
        self.model = load_causal_lm(model, torch.float32, trust_remote_code).eval()
        self.tokenizer = load_tokenizer(model)
        self.num_updates = 0
        self._remembered: dict[tuple[int, ...], Tensor] = {}

    def collective_rpc(self, method: str, *, kwargs: Mapping[str, Any]) -> list[Any]:
        assert method == "reload_weights"
        assert set(kwargs) == {"weights_iterator"}
        load_weights(self.model, dict(kwargs["weights_iterator"]))
        self.num_updates += 1
        return [None]

    def reset_prefix_cache(self) -> bool:
        self._remembered.clear()
        return True

    def generate(
        self, prompts: Sequence[Mapping[str, list[int]]], params: Sequence[SamplingParams], *, use_tqdm: bool
    ) -> list[Any]:
        pairs = zip(prompts, params, strict=True)
        return [SimpleNamespace(outputs=[self._answer(p["prompt_token_ids"], each)]) for p, each in pairs]

    def _answer(self, prompt: list[int], params: SamplingParams) -> Any:
        assert params.logprobs == 0
        generator = torch.Generator().manual_seed(params.seed or 0)
        tokens: list[int] = []
        log_probs: list[dict[int, Any]] = []
        while len(tokens) < params.max_tokens and not self._has_ended(tokens, params.stop):
            found = (self._logits(prompt, tokens) / (params.temperature or 1.0)).log_softmax(-1)
            drawn = torch.multinomial(found.exp(), 1, generator=generator)
            token = int(drawn if params.temperature else found.argmax())
            tokens.append(token)
            log_probs.append({token: SimpleNamespace(logprob=float(found[token]))})
        return SimpleNamespace(token_ids=tokens, logprobs=log_probs)

    def _has_ended(self, tokens: list[int], stop: list[str]) -> bool:
        text = self.tokenizer.decode(tokens)
        return tokens[-1:] == [self.tokenizer.eos_token_id] or any(each in text for each in stop)

    def _logits(self, prompt: list[int], answer: list[int]) -> Tensor:
        if answer or tuple(prompt) not in self._remembered:
            logits: Tensor = self.model(torch.tensor([prompt + answer])).logits[0, -1]
            if answer:
                return logits
            self._remembered[tuple(prompt)] = logits
        return self._remembered[tuple(prompt)]


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm")
    vars(module).update(LLM=LLM, SamplingParams=SamplingParams)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")


# --- a worker of each kind, with the same weights ----------------------------------------------------------


@pytest.fixture(scope="module")
def sharp(tiny: Path) -> Any:
    """A model whose answers differ from prompt to prompt, which those of a newborn one do not."""
    model = load_causal_lm(str(tiny), torch.float32).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(20)
    return model


@pytest.fixture
def groups(tiny: Path, sharp: Any) -> Iterator[tuple[Any, Any]]:
    """One that answers by the stand-in and one by transformers."""
    stop = (_stop_text(tiny, sharp),)
    settings = [
        Settings(model=str(tiny), rollout="vllm", gpus=2, max_answer_tokens=12, stop=stop),
        Settings(model=str(tiny), rollout="separate", max_answer_tokens=12, stop=stop, answers_per_pass=2),
    ]
    classes = (VllmRollout, TransformersRollout)
    made = [
        LocalWorkerGroup(ClassWithInitArgs(cls, each), 1) for cls, each in zip(classes, settings, strict=True)
    ]
    weights = dict(sharp.named_parameters())
    for group in made:
        group.load_weights({name: weight.detach() for name, weight in weights.items()})
    yield made[0], made[1]
    for group in made:
        group.shutdown()


def _stop_text(tiny: Path, model: Any) -> str:
    """What the likeliest answer to one of the prompts says in its middle."""
    tokenizer = load_tokenizer(str(tiny))
    [answer] = Generator(model, tokenizer).answer(
        jagged([torch.tensor(tokenizer("sort 987654=")["input_ids"])]), temperature=0.0, max_tokens=5, seed=0
    )
    text: str = tokenizer.decode(answer[-1])
    return text


def _prompts(tiny: Path, *texts: str, temperature: float, draw: int = 0) -> DataProto:
    tokenizer = load_tokenizer(str(tiny))
    prompts = jagged([torch.tensor(tokenizer(text)["input_ids"]) for text in texts])
    return DataProto.from_dict({"prompts": prompts}, meta_info={"temperature": temperature, "draw": draw})


def _rows(batch: DataProto, name: str) -> list[list[float]]:
    return [row.tolist() for row in batch.tensor(name).unbind()]


def test_vllm_answers_what_transformers_would(tiny: Path, groups: tuple[Any, Any], sharp: Any) -> None:
    texts = ["sort 12=", "sort 987654=", "1", "sort 40=", "="]
    prompts = _prompts(tiny, *texts, temperature=0.0)
    ours, theirs = (group.generate(prompts) for group in groups)
    assert _rows(ours, "responses") == _rows(theirs, "responses")
    assert len({len(row) for row in _rows(ours, "responses")}) > 1, "some end early"
    stop = _stop_text(tiny, sharp)
    assert any(text.endswith(stop) for text in ours.column("text")), "at the stop text, which counts"
    assert list(ours.column("text")) == list(theirs.column("text"))
    assert ours.tensor("num_tokens").tolist() == theirs.tensor("num_tokens").tolist()
    for mine, other in zip(_rows(ours, "rollout_log_probs"), _rows(theirs, "rollout_log_probs"), strict=True):
        assert mine == pytest.approx(other, abs=1e-4)


def test_each_answer_has_a_seed_of_its_own_that_follows_from_what_is_drawn(
    tiny: Path, groups: tuple[Any, Any], sharp: Any
) -> None:
    group = groups[0]
    first, again, other = (
        group.generate(_prompts(tiny, *["sort 31="] * 8, temperature=50.0, draw=draw)) for draw in (0, 0, 8)
    )
    assert _rows(first, "responses") == _rows(again, "responses") != _rows(other, "responses")
    assert len({tuple(row) for row in _rows(first, "responses")}) > 4
    prompts = _prompts(tiny, *["sort 31="] * 8, temperature=50.0)
    sequences = Sequences.of(prompts.union(first.select(["responses"])), torch.device("cpu"))
    for told, computed in zip(
        _rows(first, "rollout_log_probs"), answer_log_probs(sharp, sequences, 50.0), strict=True
    ):
        assert told == pytest.approx(computed[: len(told)].tolist(), abs=1e-4)


def test_a_run_hands_over_its_weights_before_every_draw(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "sorting.jsonl"
    lines = [
        {"prompt": f"sort {n}21=", "answer": f"12{n}", "part": part} for n, part in enumerate(PARTS * 4, 3)
    ]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made: list[LLM] = []
    monkeypatch.setattr(LLM, "__init__", _noted(made))
    settings = Settings(
        model=str(tiny), data=data, out=tmp_path, reward="operator:gt", rollout="vllm", gpus=2,
        steps=3, warm_up_steps=2, answers_per_step=16, answers_per_update=8, answers_per_question=4,
        max_answer_tokens=4,
    )  # fmt: skip
    # As if this machine had the GPUs, and each process were on one.
    for name, value in {"gpus": 0, "backend": "local"}.items():
        object.__setattr__(settings, name, value)
    run(settings, Questions.read(data, load_tokenizer(str(tiny))))
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["kl"] > 1e-4, "it learns"
    # Every step has the same questions. Only with the newest weights, and nothing remembered of older ones,
    # are answers drawn as likely as the actor finds them.
    assert [record["off_policy/ratio"] for record in records] == pytest.approx([1.0] * 3, abs=1e-4)
    [engine] = made
    assert engine.num_updates == 5, "after the warm-up, before each step, before the last measurement"
    trained = load_causal_lm(str(tmp_path / "model"), torch.float32).state_dict()
    for name, weight in engine.model.named_parameters():
        assert torch.equal(weight, trained[name])


def _noted(made: list[LLM]) -> Any:
    build = LLM.__init__

    def build_noted(self: LLM, **options: Any) -> None:
        build(self, **options | {"dtype": "bfloat16"})
        made.append(self)

    return build_noted


# --- where it cannot run -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "gpus is 0, expected 2 with rollout 'vllm', one a process; 'separate' goes without"),
        (
            ["--gpus", "2", "--backend", "local"],
            "backend is 'local', expected 'ray' with rollout 'vllm', which needs processes; 'separate' goes",
        ),
        (["--gpus", "1"], "gpus is 1, expected 0, or one for each of the 2 processes"),
        (["--gpus", "2"], "--rollout vllm needs vLLM: `pip install vllm`, on every node; --rollout separate"),
    ],
)
def test_it_is_refused_before_anything_starts(
    tiny: Path,
    tmp_path: Path,
    options: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(installed, "find_spec", lambda name: None if name == "vllm" else find_spec(name))
    where = ["--model", str(tiny), "--out", str(tmp_path / "out")]
    assert main([*where, "--rollout", "vllm", *options]) == EXIT_BAD_INPUT
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
