"""Questions with known answers, read from a JSONL file with one `{"prompt", "answer"}` a line.

Imports nothing heavy: what is wrong with a file is said before torch is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEFAULT_FILE = Path(__file__).parent / "questions" / "sorting.jsonl"
PARTS = ("train", "held_out")
HELD_OUT_EVERY = 8


@dataclass(frozen=True)
class Question:
    """One line of a question file."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Questions:
    """The questions to train on, and those that only measure."""

    train: tuple[Question, ...]
    held_out: tuple[Question, ...]

    def __iter__(self) -> Iterator[Question]:
        yield from self.train
        yield from self.held_out

    @property
    def prompt_width(self) -> int:
        """Characters of the longest prompt."""
        return max(len(question.prompt) for question in self)

    @property
    def answer_width(self) -> int:
        """Tokens of the longest answer, the end token included."""
        return 1 + max(len(question.answer) for question in self)


class QuestionFileError(ValueError):
    """A question file cannot be used; the message names the file and the line."""

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        self.path, self.line = path, line
        place = str(path) if line is None else f"{path}, line {line}"
        example = '{"prompt": "sort 312=", "answer": "123"}'
        super().__init__(f'{place}: {problem}; a line looks like {example}, and may say "part": "held_out"')


def read_questions(path: Path) -> Questions:
    """Read a question file and part it into training and held-out questions.

    A line may say `"part": "held_out"`; the others are for training. Where no line has a part, every eighth
    is held out. Every prompt stands in one part only, so that what is measured was never trained on.

    Raises:
        QuestionFileError: the file is missing, a line is malformed, a prompt comes twice, or a part is empty.
    """
    records = list(_records(path))
    held_out = [record.get("part") == "held_out" for record in records]
    if not any("part" in record for record in records):
        held_out = [number % HELD_OUT_EVERY == 0 for number in range(1, len(records) + 1)]
    questions = [Question(record["prompt"], record["answer"]) for record in records]
    parts = Questions(
        train=tuple(question for question, held in zip(questions, held_out, strict=True) if not held),
        held_out=tuple(question for question, held in zip(questions, held_out, strict=True) if held),
    )
    for name in PARTS:
        if not getattr(parts, name):
            raise QuestionFileError(path, None, f"has no {name} question")
    return parts


def _records(path: Path) -> Iterator[dict[str, str]]:
    seen: dict[str, int] = {}
    for number, line in _lines(path):
        record = _parse(path, number, line)
        prompt = record["prompt"]
        if prompt in seen:
            raise QuestionFileError(path, number, f"the prompt {prompt!r} was already on line {seen[prompt]}")
        seen[prompt] = number
        yield record


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise QuestionFileError(path, None, f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        number = error.object[: error.start].count(b"\n") + 1
        raise QuestionFileError(path, number, "is not UTF-8 text") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


def _parse(path: Path, number: int, line: str) -> dict[str, str]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise QuestionFileError(path, number, f"is not JSON ({error.msg}, column {error.colno})") from error
    if not isinstance(record, dict):
        raise QuestionFileError(path, number, f"holds a {type(record).__name__}, expected an object")
    for key in ("prompt", "answer"):
        if key not in record:
            raise QuestionFileError(path, number, f"has no {key!r}")
        if not isinstance(record[key], str) or not record[key]:
            raise QuestionFileError(path, number, f"{key!r} is {record[key]!r}, expected a text")
    if record.get("part", "train") not in PARTS:
        raise QuestionFileError(path, number, f"'part' is {record['part']!r}, expected {' or '.join(PARTS)}")
    return record
