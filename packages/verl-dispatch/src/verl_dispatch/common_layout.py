"""The row layout that all batches of a padded, uneven or balanced call share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from verl_dispatch import batches
from verl_dispatch.errors import CallOptionError, UnequalRowsError
from verl_dispatch.layout import RowLayout, balanced_layout, padded_layout, uneven_layout
from verl_dispatch.options import CallOptions

__all__ = ["Label", "common_layout", "wants_padding"]

Label: TypeAlias = Callable[[], str]
_Found: TypeAlias = Sequence[tuple[Label, Any]]


def wants_padding(found: _Found, options: CallOptions) -> bool:
    """Whether the batches of a call are padded: as the options say, else if one of them asks for it."""
    if options.auto_padding is not None or options.uneven is not None:
        return bool(options.auto_padding)
    return any(batches.wants_padding(batch) for _, batch in found)


def common_layout(found: _Found, num_parts: int, method: str, options: CallOptions) -> RowLayout | None:
    """The layout for all batches; None where each has its own, or where only a worker will know the rows.

    Raises:
        UnequalRowsError: batches of different rows.
        UnevenRowsError: rows that cannot be laid out as asked.
        CallOptionError: balancing by a column that no batch has, or of rows that are not here yet.
    """
    padded = wants_padding(found, options)
    if not (padded or options.uneven or options.balance):
        return None
    known = [
        (label, batch) for label, batch in found if not batches.is_future(batch) and batches.has_rows(batch)
    ]
    if options.balance:
        _refuse_futures(found, options.balance)
    if not known:
        return None
    label, num_rows = known[0][0](), _equal_rows(known, method)
    if options.balance:
        weights = _weights(known, options.balance)
        return balanced_layout(
            label, weights, num_rows, num_parts, equal_size=options.equal_size, padded=padded
        )
    return padded_layout(num_rows, num_parts) if padded else uneven_layout(label, num_rows, num_parts)


def _equal_rows(known: _Found, method: str) -> int:
    rows = {label(): batches.num_rows(batch) for label, batch in known}
    if len(set(rows.values())) > 1:
        raise UnequalRowsError(method, rows)
    return next(iter(rows.values()))


def _weights(known: _Found, key: str) -> Any:
    for _, batch in known:
        try:
            weights = batches.row_weights(batch, key)
        except (TypeError, ValueError) as error:
            raise CallOptionError(f"balance={key!r}", f"the column holds no numbers ({error})") from None
        if weights is not None:
            return weights
    raise CallOptionError(f"balance={key!r}", "none of the call's batches has this column")


def _refuse_futures(found: _Found, key: str) -> None:
    for label, batch in found:
        if batches.is_future(batch):
            raise CallOptionError(
                f"balance={key!r}", f"{label()} is a future whose rows are not here yet; pass its .get()"
            )
