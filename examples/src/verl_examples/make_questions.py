"""Write the question file that ships with the package: `python -m verl_examples.make_questions`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from verl_examples.question_file import DEFAULT_FILE

NUM_TRAIN, NUM_HELD_OUT = 3000, 400
SHORTEST, LONGEST = 5, 7
DIGITS = "0123456789"


def sorting_questions(seed: int) -> Iterator[dict[str, str]]:
    """Endlessly many different questions such as `sort 4172=`, with the digits in order as the answer."""
    source, seen = random.Random(seed), set[str]()
    while True:
        digits = "".join(source.sample(DIGITS, source.randint(SHORTEST, LONGEST)))
        if digits not in seen:
            seen.add(digits)
            yield {"prompt": f"sort {digits}=", "answer": "".join(sorted(digits))}


def write(path: Path, seed: int = 0) -> None:
    """Write training and held-out questions, one a line."""
    questions = sorting_questions(seed)
    parts = ["train"] * NUM_TRAIN + ["held_out"] * NUM_HELD_OUT
    lines = [json.dumps({**question, "part": part}) for question, part in zip(questions, parts, strict=False)]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(DEFAULT_FILE)
