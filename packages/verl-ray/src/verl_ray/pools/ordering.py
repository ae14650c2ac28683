"""The order of nodes and bundles: pure, total, and the same at every call."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

NaturalKey = tuple[tuple[int, int, str], ...]
BundleRow = tuple[str, str, int, Sequence[str]]
"""Node id, node address, bundle index, accelerator ids."""


def natural_key(text: str) -> NaturalKey:
    """A sort key in which runs of digits count as numbers.

    >>> sorted(["pod-10", "pod-9"], key=natural_key)
    ['pod-9', 'pod-10']
    """
    pieces = re.findall(r"[0-9]+|[^0-9]+", text)
    return tuple((0, int(piece), "") if piece[0] in "0123456789" else (1, 0, piece) for piece in pieces)


def node_order_key(address: str, node_id: str = "") -> tuple[int, int, NaturalKey, str]:
    """Where a node stands among others: IPv4 by number, then IPv6, then host names, then node ids.

    >>> sorted(["10.0.0.100", "10.0.0.9"], key=node_order_key)
    ['10.0.0.9', '10.0.0.100']
    """
    try:
        parsed = ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        return 2, 0, natural_key(address), node_id
    scope = getattr(parsed, "scope_id", None) or ""
    return 0 if parsed.version == 4 else 1, int(parsed), natural_key(scope), node_id


def order_bundles(rows: Iterable[BundleRow]) -> list[BundleRow]:
    """Sort `(node_id, node_address, bundle_index, accelerator_ids)` by node, then accelerator, then bundle.

    >>> rows = [("b", "10.0.0.3", 1, ["0"]), ("a", "10.0.0.2", 3, ["1"]), ("a", "10.0.0.2", 0, ["0"])]
    >>> [bundle for _, _, bundle, _ in order_bundles(rows)]
    [0, 3, 1]
    """
    return sorted(rows, key=_bundle_key)


def _bundle_key(row: BundleRow) -> tuple[Any, ...]:
    node_id, address, bundle_index, accelerator_ids = row
    return node_order_key(address, node_id), tuple(natural_key(str(i)) for i in accelerator_ids), bundle_index


def arrange_on_nodes(sizes: Sequence[int], nodes: Sequence[tuple[str, str]]) -> list[int]:
    """The order in which placed groups give ranks, as indices into `sizes`.

    Args:
        sizes: processes of each group, as the user asked for them.
        nodes: `(node_id, address)` where the group of the same index landed.

    Groups of equal size follow the order of nodes; different sizes keep the order of the spec; groups on one
    node stay together, so ranks are contiguous per node.

    >>> arrange_on_nodes([2, 2], [("b", "10.0.0.10"), ("a", "10.0.0.9")])
    [1, 0]
    >>> arrange_on_nodes([4, 2], [("b", "10.0.0.10"), ("a", "10.0.0.9")])
    [0, 1]
    """
    by_place = sorted(range(len(sizes)), key=lambda i: (node_order_key(nodes[i][1], nodes[i][0]), i))
    by_size = {size: [index for index in by_place if sizes[index] == size] for size in set(sizes)}
    in_spec_order = [by_size[size].pop(0) for size in sizes]
    return [in_spec_order[place] for place in together([nodes[index][0] for index in in_spec_order])]


def together(keys: Sequence[Hashable]) -> list[int]:
    """The order, as indices, in which equal keys stand together, each where it first came.

    >>> together(["b", "a", "b"])
    [0, 2, 1]
    """
    turn = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return sorted(range(len(keys)), key=lambda place: turn[keys[place]])
