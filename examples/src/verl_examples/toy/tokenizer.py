"""Text to token ids and back, one token a character."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PAD, END = 0, 1
_FIRST_CHARACTER = 2


class UnknownCharacterError(ValueError):
    """A text holds a character that the tokenizer never saw."""

    def __init__(self, character: str, text: str, alphabet: str) -> None:
        super().__init__(
            f"{text!r} holds {character!r}; this tokenizer knows only the characters {alphabet!r}"
        )


@dataclass(frozen=True)
class CharTokenizer:
    """One id a character, after the ids of padding (0) and of the end of an answer (1).

    >>> tokenizer = CharTokenizer.for_texts(["2+3="])
    >>> tokenizer.decode(tokenizer.encode("3+2="))
    '3+2='
    """

    alphabet: str

    @classmethod
    def for_texts(cls, texts: Iterable[str]) -> CharTokenizer:
        return cls("".join(sorted(set().union(*texts))))

    @property
    def vocabulary_size(self) -> int:
        return _FIRST_CHARACTER + len(self.alphabet)

    def encode(self, text: str) -> list[int]:
        ids = [self.alphabet.find(character) for character in text]
        if -1 in ids:
            raise UnknownCharacterError(text[ids.index(-1)], text, self.alphabet)
        return [_FIRST_CHARACTER + index for index in ids]

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to the end token; padding is skipped."""
        characters: list[str] = []
        for token in ids:
            if token == END:
                break
            if token != PAD:
                characters.append(self.alphabet[token - _FIRST_CHARACTER])
        return "".join(characters)

    def encode_prompts(self, texts: Sequence[str], width: int) -> Tensor:
        """Ids of shape (texts, width), padded on the left, so that all answers start in the same column."""
        rows = [self.encode(text) for text in texts]
        return torch.tensor([[PAD] * (width - len(row)) + row for row in rows], dtype=torch.int64)

    def encode_answers(self, texts: Sequence[str], width: int) -> Tensor:
        """Ids of shape (texts, width), closed by the end token and padded on the right."""
        rows = [[*self.encode(text), END] for text in texts]
        return torch.tensor([row + [PAD] * (width - len(row)) for row in rows], dtype=torch.int64)
