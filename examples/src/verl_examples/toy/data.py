"""Questions as the batches that the workers get."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from verl_protocol import DataProto

from verl_examples.question_file import Question
from verl_examples.toy.tokenizer import CharTokenizer


def prompt_batch(questions: Sequence[Question], tokenizer: CharTokenizer, prompt_width: int) -> DataProto:
    """A batch of questions: `prompts` (rows, prompt_width), padded on the left, and the column `answer`.

    Any number of questions may go to any number of workers: rows added for that are taken off again.
    """
    prompts = tokenizer.encode_prompts([question.prompt for question in questions], prompt_width)
    answers = np.array([question.answer for question in questions], dtype=object)
    return DataProto.from_dict({"prompts": prompts}, {"answer": answers}, auto_padding=True)


def endless_batches(questions: Sequence[Question], size: int, seed: int) -> Iterator[list[Question]]:
    """Draw `size` questions at a time, every question once before any comes again."""
    generator = torch.Generator().manual_seed(seed)
    waiting: list[int] = []
    while True:
        while len(waiting) < size:
            waiting += torch.randperm(len(questions), generator=generator).tolist()
        drawn, waiting = waiting[:size], waiting[size:]
        yield [questions[index] for index in drawn]
