"""Mini-batches: slices of the batch in order, or one gather each when shuffled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

import numpy as np
import torch

from verl_protocol.arguments import flag, whole_number
from verl_protocol.errors import IteratorOptionError, NotADictError, ShuffleSourceError, UnevenMiniBatchError

if TYPE_CHECKING:
    from verl_protocol.batch_rows import BatchRows

B = TypeVar("B", bound="BatchRows")

_OPTIONS = {"shuffle": False, "drop_last": None, "generator": None, "num_workers": 0, "pin_memory": False}
"""What `dataloader_kwargs` may hold; the last two only with the value that changes nothing."""


def make_iterator(
    data: B,
    mini_batch_size: SupportsIndex,
    epochs: SupportsIndex,
    seed: int | None,
    dataloader_kwargs: Mapping[str, Any] | None,
    drop_last: bool | None,
) -> Iterator[B]:
    """Mini-batches of `data`, every row once per epoch."""
    options = _checked_options(dataloader_kwargs)
    drop_last = options["drop_last"] if drop_last is None else drop_last
    drop_last = None if drop_last is None else flag("drop_last", drop_last)
    shuffle = flag("shuffle", options["shuffle"])
    size, epochs = (
        whole_number("mini_batch_size", mini_batch_size, 1),
        whole_number("epochs", epochs, 0),
    )
    count = data._checked_rows()
    if drop_last is None and count % size:
        raise UnevenMiniBatchError(count, size)
    used = count - count % size if drop_last else count
    if not shuffle:
        return _in_order(data, used, size, epochs)
    return _shuffled(data, used, size, epochs, _generator(seed, options["generator"]))


def _checked_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise NotADictError("dataloader_kwargs", given)
    options = {**_OPTIONS, **(given or {})}
    if unknown := sorted(set(options) - set(_OPTIONS)):
        raise IteratorOptionError(unknown, list(_OPTIONS))
    if changed := [key for key in ("num_workers", "pin_memory") if options[key]]:
        raise IteratorOptionError(changed, list(_OPTIONS))
    return options


def _generator(seed: Any, given: Any) -> torch.Generator:
    odd = seed is not None and not isinstance(seed, (int, np.integer))
    if odd or not isinstance(given, (torch.Generator, type(None))) or None not in (seed, given):
        raise ShuffleSourceError(seed, given)
    if given is not None and seed is None:
        return given
    # Without a seed the order follows torch.manual_seed, at the price of one draw from the global generator.
    drawn = int(torch.randint(2**62, ())) if seed is None else int(seed)
    try:
        return torch.Generator().manual_seed(drawn)
    except (ValueError, RuntimeError, OverflowError):
        raise ShuffleSourceError(seed, given) from None


def _in_order(data: B, used: int, size: int, epochs: int) -> Iterator[B]:
    sizes = [min(size, used - start) for start in range(0, used, size)]
    kept = data if used == len(data) else data.slice(0, used)
    for _ in range(epochs):
        yield from kept._split_rows(sizes) if sizes else ()


def _shuffled(data: B, used: int, size: int, epochs: int, generator: torch.Generator) -> Iterator[B]:
    for _ in range(epochs):
        order = torch.randperm(len(data), generator=generator)[:used]
        for start in range(0, used, size):
            yield data[order[start : start + size]]
