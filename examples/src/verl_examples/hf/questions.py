"""Questions as token ids, in an order that a position in it tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verl_protocol import DataProto

from verl_examples.hf.jagged import jagged
from verl_examples.question_file import QuestionFileError, Record, checked_records, in_parts, read_records


@dataclass(frozen=True)
class Question:
    """A prompt as the model gets it and the answer that is known, both as text and as token ids.

    The end token closes the ids of the answer.
    """

    prompt: str
    prompt_tokens: tuple[int, ...]
    answer: str
    answer_tokens: tuple[int, ...]


@dataclass(frozen=True)
class Questions:
    """The questions to train on, and those that only measure."""

    train: tuple[Question, ...]
    held_out: tuple[Question, ...]

    @classmethod
    def read(cls, path: Path, tokenizer: Any) -> Questions:
        """Read a JSONL file, or a folder that `datasets` has saved.

        A prompt that is a text is taken as it is; one of chat messages goes through the tokenizer's template.

        Raises:
            QuestionFileError: see `read_records`; also a folder where `datasets` is not installed, or chat
                messages for a tokenizer without a template.
        """
        records = _saved_dataset(path) if path.is_dir() else read_records(path, messages=True)
        chats = any(not isinstance(record["prompt"], str) for record in records)
        if chats and not tokenizer.chat_template:
            raise QuestionFileError(path, None, "has chat messages, and the tokenizer has no chat template")
        train, held_out = in_parts(path, records)
        return cls(*(tuple(_encoded(record, tokenizer) for record in part) for part in (train, held_out)))

    def drawn(self, position: int, count: int, seed: int) -> list[Question]:
        """`count` training questions from `position` on: each once, in a new order each time around."""
        size = len(self.train)
        order: dict[int, list[int]] = {}
        drawn = []
        for place in range(position, position + count):
            around, index = divmod(place, size)
            if around not in order:
                generator = torch.Generator().manual_seed(seed + around)
                order[around] = torch.randperm(size, generator=generator).tolist()
            drawn.append(self.train[order[around][index]])
        return drawn


def prompt_batch(questions: Sequence[Question]) -> DataProto:
    """A batch of questions: `prompts`, jagged token ids, and the object column `answer`."""
    prompts = jagged([torch.tensor(question.prompt_tokens) for question in questions])
    answers = np.array([question.answer for question in questions], dtype=object)
    return DataProto.from_dict({"prompts": prompts}, {"answer": answers}, auto_padding=True)


def _encoded(record: Record, tokenizer: Any) -> Question:
    prompt, chat = record["prompt"], not isinstance(record["prompt"], str)
    if chat:
        prompt = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    # A template writes the special tokens itself.
    tokens = tokenizer(prompt, add_special_tokens=not chat)["input_ids"]
    answer_tokens = tokenizer(record["answer"], add_special_tokens=False)["input_ids"]
    return Question(prompt, tuple(tokens), record["answer"], (*answer_tokens, tokenizer.eos_token_id))


def _saved_dataset(path: Path) -> list[Record]:
    try:
        from datasets import DatasetDict, load_from_disk
    except ImportError:
        raise QuestionFileError(
            path, None, "is a folder, and `datasets` is not installed to read it"
        ) from None
    saved = load_from_disk(path)
    splits = saved if isinstance(saved, DatasetDict) else {"": saved}
    rows = [dict(row) | _part_of(name) for name, split in splits.items() for row in split]
    return checked_records(path, enumerate(rows, start=1), messages=True)


def _part_of(split: str) -> dict[str, str]:
    return {"part": "train" if split == "train" else "held_out"} if split else {}
