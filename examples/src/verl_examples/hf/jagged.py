"""Rows of different lengths: jagged between the roles, padded only where a model runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from verl_protocol import DataProto


def jagged(rows: Sequence[Tensor]) -> Tensor:
    """One jagged tensor of rows of any length."""
    return torch.nested.nested_tensor(list(rows), layout=torch.jagged)


def padded(column: Tensor, side: Literal["left", "right"] = "right") -> Tensor:
    """(rows, longest row) of a jagged column, filled with 0; a dense column as it is."""
    if not column.is_nested:
        return column
    return pad_sequence(list(column.unbind()), batch_first=True, padding_side=side)


def unpadded(values: Tensor, mask: Tensor) -> Tensor:
    """The jagged column of what `mask` shows; each row is filled on the right."""
    lengths = mask.sum(dim=1).long().tolist()
    return jagged([row[:length] for row, length in zip(values.cpu(), lengths, strict=True)])


def row_mask(column: Tensor, side: Literal["left", "right"] = "right") -> Tensor:
    """(rows, longest row): 1.0 where `padded` has a value of the jagged column, 0.0 where it has padding."""
    lengths = row_lengths(column)[:, None]
    places = torch.arange(int(lengths.max()))
    return ((places if side == "right" else places.flip(0)) < lengths).float()


def row_lengths(column: Tensor) -> Tensor:
    """(rows,): how many values each row of a jagged column has."""
    return _offsets(column).diff()


def num_values(column: Tensor) -> Tensor:
    """How many values all rows of a jagged column have."""
    return _offsets(column)[-1].clone()


def _offsets(column: Any) -> Tensor:
    offsets: Tensor = column.offsets()
    return offsets


@dataclass(frozen=True)
class Sequences:
    """Prompts and answers as a model takes them: padded left and right, so all answers begin in one column.

    Attributes:
        ids: (rows, tokens), prompts and answers.
        visible: (rows, tokens), 1 on real tokens.
        answers: (rows, answer tokens), the last columns of `ids`.
        mask: (rows, answer tokens), 1 on real tokens of answers, as floats.
    """

    ids: Tensor
    visible: Tensor
    answers: Tensor
    mask: Tensor

    @classmethod
    def of(cls, batch: DataProto, device: torch.device) -> Sequences:
        """The jagged columns `prompts` and `responses` on a device."""
        prompts, responses = batch.tensor("prompts"), batch.tensor("responses")
        answers, mask = padded(responses), row_mask(responses)
        ids = torch.cat([padded(prompts, "left"), answers], dim=1)
        visible = torch.cat([row_mask(prompts, "left"), mask], dim=1).long()
        return cls(*(each.to(device) for each in (ids, visible, answers, mask)))

    def for_model(self) -> dict[str, Tensor]:
        """The arguments of a model's call; positions count real tokens only."""
        positions = (self.visible.cumsum(dim=1) - 1).clamp(min=0)
        return {"input_ids": self.ids, "attention_mask": self.visible, "position_ids": positions}
