"""The parts of the program on Hugging Face models, one by one."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from verl_examples.command import parser_of
from verl_examples.errors import SettingsError
from verl_examples.hf.folders import written_in_one_step
from verl_examples.hf.generation import Generator
from verl_examples.hf.jagged import Sequences, jagged, padded, row_mask, unpadded
from verl_examples.hf.models import ValueModel, answer_log_probs, load_causal_lm, load_tokenizer
from verl_examples.hf.questions import Questions, prompt_batch
from verl_examples.hf.rewards import reward_named
from verl_examples.hf.settings import Settings
from verl_examples.question_file import QuestionFileError
from verl_protocol import DataProto

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra hf")


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Any:
    return load_tokenizer(str(tiny))


@pytest.fixture(scope="module")
def model(tiny: Path) -> Any:
    model = load_causal_lm(str(tiny), torch.float32).eval()
    with torch.no_grad():  # sharper than at birth, so that differences show
        model.get_input_embeddings().weight.mul_(20)
    return model


def _prompts(tokenizer: Any, *texts: str) -> torch.Tensor:
    return jagged([torch.tensor(tokenizer(text)["input_ids"]) for text in texts])


def _sequences(*rows: tuple[list[int], list[int]]) -> Sequences:
    prompts, responses = (jagged([torch.tensor(row[part]) for row in rows]) for part in (0, 1))
    batch = DataProto.from_dict({"prompts": prompts, "responses": responses})
    return Sequences.of(batch, torch.device("cpu"))


# --- text and tokens ---------------------------------------------------------------------------------------


def test_any_text_survives_the_tiny_tokenizer_and_digits_stay_apart(tokenizer: Any) -> None:
    for text in ("sort 604735=", "Ærøskøbing 🙂\n\t x"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer("604735")["input_ids"]) == 6
    assert len(tokenizer("sort")["input_ids"]) == 1


def test_prompts_are_texts_as_they_are_or_chats_by_the_template(tmp_path: Path, tokenizer: Any) -> None:
    file = tmp_path / "q.jsonl"
    chat = [{"role": "user", "content": "2+2?"}]
    lines = [{"prompt": "2+3=", "answer": "5"}, {"prompt": chat, "answer": "4", "part": "held_out"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    questions = Questions.read(file, tokenizer)
    assert questions.train[0].prompt == "2+3="
    assert questions.held_out[0].prompt == "<|user|>2+2?<|assistant|>"
    assert tokenizer.decode(questions.held_out[0].prompt_tokens) == questions.held_out[0].prompt
    assert questions.train[0].answer_tokens == (*tokenizer("5")["input_ids"], tokenizer.eos_token_id)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"prompt": [], "answer": "4"}, "'prompt' is [], expected a text, or a list of messages"),
        ({"prompt": [{"role": "user"}], "answer": "4"}, "expected a text, or a list of messages"),
        ({"prompt": "2+2=", "answer": 4}, "'answer' is 4, expected a text"),
    ],
)
def test_what_is_no_question_is_named_with_its_line(
    tmp_path: Path, tokenizer: Any, line: dict[str, Any], problem: str
) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"prompt": "p", "answer": "a"}\n' + json.dumps(line) + "\n")
    with pytest.raises(QuestionFileError) as raised:
        Questions.read(file, tokenizer)
    assert "line 2" in str(raised.value)
    assert problem in str(raised.value)


def test_a_folder_of_datasets_is_read_where_that_is_installed(tmp_path: Path, tokenizer: Any) -> None:
    if find_spec("datasets") is None:
        with pytest.raises(QuestionFileError, match="`datasets` is not installed"):
            Questions.read(tmp_path, tokenizer)
        return
    datasets = pytest.importorskip("datasets")
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(4)]
    split = {"train": datasets.Dataset.from_list(rows[:3]), "test": datasets.Dataset.from_list(rows[3:])}
    datasets.DatasetDict(split).save_to_disk(tmp_path / "set")
    questions = Questions.read(tmp_path / "set", tokenizer)
    assert [question.answer for question in questions.train] == ["1", "2", "3"]
    assert [question.answer for question in questions.held_out] == ["4"]


def test_questions_drawn_are_told_by_the_position_alone(few_questions: Path, tokenizer: Any) -> None:
    questions = Questions.read(few_questions, tokenizer)
    size = len(questions.train)
    once_through = questions.drawn(0, size, seed=1)
    assert sorted(once_through, key=str) == sorted(questions.train, key=str)
    assert questions.drawn(0, 2 * size, 1)[size - 3 : size + 3] == questions.drawn(size - 3, 6, 1)
    assert questions.drawn(size, size, 1) != once_through
    assert questions.drawn(0, size, 2) != once_through


# --- jagged rows and what a model sees of them -------------------------------------------------------------


def test_padding_and_back_gives_the_same_rows() -> None:
    column = jagged([torch.arange(1, 4), torch.arange(1, 2), torch.arange(1, 3)])
    assert padded(column).tolist() == [[1, 2, 3], [1, 0, 0], [1, 2, 0]]
    assert padded(column, "left").tolist() == [[1, 2, 3], [0, 0, 1], [0, 1, 2]]
    assert row_mask(column, "left").tolist() == [[1, 1, 1], [0, 0, 1], [0, 1, 1]]
    back = unpadded(padded(column), row_mask(column))
    assert [row.tolist() for row in back.unbind()] == [[1, 2, 3], [1], [1, 2]]


def test_log_probs_are_those_of_each_row_alone(model: Any) -> None:
    rows = [([5, 6, 7, 8, 9], [30, 31]), ([5, 6], [40, 41, 42, 43])]
    together = answer_log_probs(model, _sequences(*rows), 0.7)
    for place, (prompt, answer) in enumerate(rows):
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1] / 0.7
        alone = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
        assert together[place, : len(answer)].detach() == pytest.approx(alone.detach(), abs=1e-5)
    assert together[0, 2:].tolist() == [0, 0]


def test_values_do_not_see_other_rows(tiny: Path) -> None:
    critic = ValueModel(str(tiny), torch.float32)
    torch.nn.init.normal_(critic.head.weight)
    together = critic(_sequences(([5, 6, 7, 8, 9], [30, 31]), ([5, 6], [40, 41, 42])))
    alone = critic(_sequences(([5, 6, 7, 8, 9], [30, 31])))
    assert together[0, :2].detach() == pytest.approx(alone[0].detach(), abs=1e-5)


# --- generation --------------------------------------------------------------------------------------------


def test_answers_stop_at_the_end_token_at_a_stop_text_or_at_the_limit(model: Any, tokenizer: Any) -> None:
    prompts = _prompts(tokenizer, "sort 12=", "sort 987654=", "12")
    free = Generator(model, tokenizer).answer(prompts, temperature=1.0, max_tokens=12, seed=3)
    assert {len(answer) for answer in free} == {12}, "nothing ends these"
    end = int(free[0][4])
    model.generation_config.eos_token_id = end
    cut = Generator(model, tokenizer).answer(prompts, temperature=1.0, max_tokens=12, seed=3)
    for whole, part in zip(free, cut, strict=True):
        until = (whole == end).nonzero()
        expected = whole[: int(until[0]) + 1] if len(until) else whole
        assert part.tolist() == expected.tolist()
    stop = tokenizer.decode(free[1][3])
    stopped = Generator(model, tokenizer, [stop]).answer(prompts, temperature=1.0, max_tokens=12, seed=3)
    assert len(stopped[1]) <= 4
    assert stop in tokenizer.decode(stopped[1])


def test_a_row_is_answered_as_it_would_be_alone(model: Any, tokenizer: Any) -> None:
    generator = Generator(model, tokenizer)
    texts = ("sort 12=", "sort 987654=", "1")
    together = generator.answer(_prompts(tokenizer, *texts), temperature=0.0, max_tokens=6, seed=0)
    for text, answer in zip(texts, together, strict=True):
        alone = generator.answer(_prompts(tokenizer, text), temperature=0.0, max_tokens=6, seed=1)
        assert answer.tolist() == alone[0].tolist()


def test_what_a_model_says_about_sampling_does_not_count(model: Any, tokenizer: Any) -> None:
    prompts = _prompts(tokenizer, *["sort 12="] * 32)
    model.generation_config.top_k = 1
    model.generation_config.repetition_penalty = 3.0
    generator = Generator(model, tokenizer)
    first, again, other = (
        [row.tolist() for row in generator.answer(prompts, temperature=50.0, max_tokens=2, seed=seed)]
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert len({row[0] for row in first}) > 1


# --- rewards and settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "answer", "expected", "reward"),
    [
        ("exact", " 42\n", "42", 1.0),
        ("exact", "042", "42", 0.0),
        ("last-number", "First 3, then 1,042.50!", "1042.5", 1.0),
        ("last-number", "none", "7", 0.0),
        (r"regex:answer: (\w+)", "answer: no answer: yes", "yes", 1.0),
        (r"regex:answer: (\w+)", "yes", "yes", 0.0),
        ("operator:eq", "a", "a", True),
    ],
)
def test_rewards(name: str, answer: str, expected: str, reward: float) -> None:
    assert reward_named(name)(answer, expected) == reward


@pytest.mark.parametrize("name", ["best", "regex:(", "regex:no group", "nowhere:f", "operator:nothing"])
def test_an_unusable_reward_is_named(name: str) -> None:
    with pytest.raises(SettingsError, match="reward is "):
        reward_named(name)


def test_judging_needs_no_torch() -> None:
    code = "import sys, verl_examples.hf.workers.reward; print({'torch', 'transformers'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ("", {}),
        ("--workers 2 --temperature 0.5 --out o", {"workers": 2, "temperature": 0.5, "out": Path("o")}),
        ("--stop a --stop b --trace t.json", {"stop": ("a", "b"), "trace": Path("t.json")}),
        ("--rollout separate --one-step-off", {"rollout": "separate", "one_step_off": True}),
        ("--clip-low 0.3", {"clip_low": 0.3, "clip_high": 0.3}),
        ("--clip-low 0.3 --clip-high 0.4", {"clip_low": 0.3, "clip_high": 0.4}),
        ("--algorithm ppo", {"algorithm": "ppo", "answers_per_question": 1}),
        ("--algorithm ppo --answers-per-question 4", {"algorithm": "ppo", "answers_per_question": 4}),
    ],
)
def test_options_become_settings_and_draw_others_with_them(options: str, changes: dict[str, Any]) -> None:
    given = vars(parser_of("verl-grpo", None, Settings).parse_args(options.split()))
    assert Settings.of({"model": "m", **given}) == Settings(model="m", **changes)


def test_every_option_is_shown_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    shown = " ".join(parser_of("verl-grpo", None, Settings).format_help().split())
    for field in fields(Settings):
        name = f"--{field.name.replace('_', '-')} "
        assert (name in shown) == bool(field.metadata), name
    for text in ("--steps N steps of reinforcement (default: 40)", "(default: as --clip-low)", "--stop TEXT"):
        assert text in shown


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"workers": 2, "gpus": 1}, "gpus is 1, expected 0, or one for each of the 2 processes"),
        ({"rollout": "separate", "gpus": 1}, "one for each of the 2 processes"),
        ({"one_step_off": True}, "one_step_off is True"),
        ({"workers": 2, "backend": "local"}, "workers is 2, expected 1 with backend 'local'"),
        ({"answers_per_question": 1}, "answers_per_question is 1, expected at least 2 with grpo"),
        ({"answers_per_step": 100}, "answers_per_step is 100, expected a multiple of 128"),
        ({"temperature": 0.0}, "temperature is 0.0, expected more than 0"),
    ],
)
def test_settings_that_do_not_go_together_are_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        Settings(model="model", **changes)


def test_a_folder_takes_its_name_only_when_all_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with written_in_one_step(folder) as unfinished:
        (unfinished / "a").write_text("first")
        assert not folder.exists()
    with pytest.raises(IsADirectoryError), written_in_one_step(folder) as unfinished:
        unfinished.write_text("no file")
    assert (folder / "a").read_text() == "first"


def test_a_batch_of_questions_has_no_padding(few_questions: Path, tokenizer: Any) -> None:
    questions = Questions.read(few_questions, tokenizer)
    batch = prompt_batch(questions.held_out)
    lengths = batch.tensor("prompts").offsets().diff().tolist()  # type: ignore[attr-defined]
    assert lengths == [len(question.prompt_tokens) for question in questions.held_out]
