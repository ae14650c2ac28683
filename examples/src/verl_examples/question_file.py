"""Questions with known answers, read from a JSONL file with one `{"prompt", "answer"}` a line.

Imports nothing heavy: what is wrong with a file is said before torch is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_FILE = Path(__file__).parent / "questions" / "sorting.jsonl"
PARTS = ("train", "held_out")
HELD_OUT_EVERY = 8

Record = dict[str, Any]
"""One line: `prompt`, `answer` and perhaps `part`."""


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
    """Read a question file whose prompts are texts, and part it into training and held-out questions.

    Raises:
        QuestionFileError: the file is missing, a line is malformed, a prompt comes twice, or a part is empty.
    """
    train, held_out = in_parts(path, read_records(path))
    return Questions(_questions(train), _questions(held_out))


def _questions(records: Sequence[Record]) -> tuple[Question, ...]:
    return tuple(Question(record["prompt"], record["answer"]) for record in records)


def read_records(path: Path, *, messages: bool = False) -> list[Record]:
    """The lines of a question file, checked; with `messages` a prompt may be a chat.

    Raises:
        QuestionFileError: the file is missing, a line is malformed, or a prompt comes twice.
    """
    numbered = ((number, _parse(path, number, line)) for number, line in _lines(path))
    return checked_records(path, numbered, messages=messages)


def checked_records(
    path: Path, numbered: Iterable[tuple[int, object]], *, messages: bool = False
) -> list[Record]:
    """The records, after a look at each; numbers are those of their lines."""
    seen: dict[str, int] = {}
    records = []
    for number, value in numbered:
        record = _checked(path, number, value, messages)
        prompt = json.dumps(record["prompt"])
        if prompt in seen:
            given = record["prompt"]
            raise QuestionFileError(path, number, f"the prompt {given!r} was already on line {seen[prompt]}")
        seen[prompt] = number
        records.append(record)
    return records


def in_parts(path: Path, records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Records to train on, and those held out.

    A line may say `"part": "held_out"`; the others are for training. Where no line has a part, every eighth
    is held out. Every prompt stands in one part only, so that what is measured was never trained on.

    Raises:
        QuestionFileError: a part is empty.
    """
    said = any("part" in record for record in records)
    train: list[Record] = []
    held_out: list[Record] = []
    for number, record in enumerate(records, start=1):
        is_held_out = record.get("part") == "held_out" if said else number % HELD_OUT_EVERY == 0
        (held_out if is_held_out else train).append(record)
    for name, part in zip(PARTS, (train, held_out), strict=True):
        if not part:
            raise QuestionFileError(path, None, f"has no {name} question")
    return train, held_out


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


def _parse(path: Path, number: int, line: str) -> object:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise QuestionFileError(path, number, f"is not JSON ({error.msg}, column {error.colno})") from error


def _checked(path: Path, number: int, record: object, messages: bool) -> Record:
    if not isinstance(record, dict):
        raise QuestionFileError(path, number, f"holds a {type(record).__name__}, expected an object")
    for key in ("prompt", "answer"):
        if key not in record:
            raise QuestionFileError(path, number, f"has no {key!r}")
        may_be_chat = messages and key == "prompt"
        if not _is_text(record[key]) and not (may_be_chat and _is_chat(record[key])):
            expected = "a text, or a list of messages" if may_be_chat else "a text"
            raise QuestionFileError(path, number, f"{key!r} is {record[key]!r}, expected {expected}")
    if record.get("part", "train") not in PARTS:
        raise QuestionFileError(path, number, f"'part' is {record['part']!r}, expected {' or '.join(PARTS)}")
    return record


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_chat(prompt: object) -> bool:
    """Whether it is a list of messages, each with a role and a content."""
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(isinstance(each, dict) and {"role", "content"} <= set(each) for each in prompt)
    )
