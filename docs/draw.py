"""Draws docs/pictures, from the plans and answers of a group: `uv run python docs/draw.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch
from verl_dispatch import (
    Dispatch,
    LocalWorkerGroup,
    Mesh,
    Worker,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl_protocol import DataProto

FOLDER = Path(__file__).with_name("pictures")
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2", "#edc948", "#9c755f")
CELL, GAP, TOP = 24, 4, 34
IN_X, RANK_X, OUT_X, WIDTH = 20, 190, 430, 600


class Echo(Worker):
    """Answers with what it gets, in every mode."""

    @register(Dispatch.RANK_ZERO)
    def rank_zero(self, value: str) -> str:
        return value

    @register(Dispatch.ONE_TO_ALL)
    def one_to_all(self, value: str) -> str:
        return value

    @register(Dispatch.ALL_TO_ALL)
    def all_to_all(self, value: str) -> str:
        return value

    @register(Dispatch.ONE_TO_ONE)
    def one_to_one(self, value: str) -> str:
        return value

    @register(Dispatch.DP_COMPUTE_PROTO)
    def dp_compute_proto(self, batch: DataProto) -> DataProto:
        return batch

    @register(Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def with_func(self, function: Callable[[DataProto], DataProto], batch: DataProto) -> DataProto:
        return function(batch)

    @register(Dispatch.DP_COMPUTE_METRIC)
    def dp_compute_metric(self, batch: DataProto) -> str:
        return "+".join(cells_of(batch))

    @register(make_nd_compute_dataproto_dispatch_fn("mesh"))
    def on_mesh(self, batch: DataProto) -> DataProto:
        return batch


def cells_of(value: Any) -> list[str]:
    """What a value is drawn as: a batch by its rows, a list or dict by its entries."""
    if isinstance(value, DataProto):
        return [str(row) for row in value.tensor("row").tolist()]
    if isinstance(value, dict):
        return [f"{key}: {entry}" for key, entry in value.items()]
    if callable(value):
        return [value.__name__]
    return [str(entry) for entry in value] if isinstance(value, list) else [str(value)]


def cells_of_all(values: Iterable[Any]) -> list[str]:
    """What several arguments are drawn as."""
    return [words for value in values for words in cells_of(value)]


def colour(text: str) -> str:
    """The colour of a row or value, the same wherever it goes."""
    if len(text) > 1 and not text.isdigit():
        return "#86868b"
    return COLOURS[(int(text) if text.isdigit() else ord(text) - ord("a")) % len(COLOURS)]


def text(x: float, y: float, words: str, style: str = "") -> str:
    """A line of text that starts at x and stands on y."""
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, style: str) -> str:
    """A rectangle with round corners."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" {style}/>'


def arrow(x: float, y: float, to_x: float, to_y: float, style: str = "") -> str:
    """A line with a head."""
    ends = f'x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}"'
    return f'<line {ends} stroke="#86868b" marker-end="url(#head)" {style}/>'


def cell(x: float, y: float, words: str, faded: bool = False) -> str:
    """One row or value."""
    width = max(CELL, 9 * len(words) + 8)
    style = f'fill="{colour(words)}"' + (' opacity="0.35"' if faded else "")
    middle = f'text-anchor="middle" fill="{"#1d1d1f" if faded else "white"}"'
    return box(x, y, width, CELL, style) + text(x + width / 2, y + 17, words, middle)


def picture(width: float, height: float, parts: Iterable[str]) -> str:
    """The whole drawing, on a ground of its own so that it can be read on any page."""
    head = '<marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    head += '<path d="M0,0 L8,4 L0,8 z" fill="#86868b"/></marker>'
    ground = box(0, 0, width, height, 'fill="#f8f9fb"')
    style = 'font-family="sans-serif" font-size="13" fill="#1d1d1f"'
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', f"<defs>{head}</defs>", ground]
    return "\n".join([*lines, *parts, "</svg>", ""])


def call_picture(group: Any, method: str, *arguments: Any, **options: Any) -> str:
    """One call: its arguments, what each rank gets of them, and the result."""
    bound = getattr(group, method).options(**options)
    plan, result = bound.plan(*arguments), bound(*arguments)
    given, answers = cells_of_all(arguments), cells_of(result)
    rank_height = max(44, (max(len(given), len(answers)) * (CELL + GAP) + 12) / group.world_size)
    middle = TOP + group.world_size * rank_height / 2
    kinds = ", ".join(map(kind_of, arguments))
    parts = [text(IN_X, 20, kinds), text(RANK_X, 20, "workers"), text(OUT_X, 20, kind_of(result))]
    parts += stack(IN_X, middle, given) + stack(OUT_X, middle, answers)
    calls = {call.rank: call for call in plan.calls}
    for rank in range(group.world_size):
        y = TOP + rank * rank_height + (rank_height - 36) / 2
        parts.append(box(RANK_X, y, 190, 36, 'fill="white" stroke="#c7c7cc"'))
        parts.append(text(RANK_X + 8, y + 23, f"rank {rank}"))
        if rank not in calls:
            continue
        parts.append(arrow(IN_X + 60, middle, RANK_X - 4, y + 18))
        got = cells_of_all(calls[rank].args)
        for place, words in enumerate(got):
            x = RANK_X + 66 + place * (CELL + GAP)
            parts.append(cell(x, y + 6, words, faded=place >= len(got) - calls[rank].pad))
        if rank in plan.fetched_ranks:
            parts.append(arrow(RANK_X + 194, y + 18, OUT_X - 10, middle))
    return picture(OUT_X + 70, TOP + group.world_size * rank_height + 6, parts)


def kind_of(value: Any) -> str:
    """What a value is, in a word."""
    return "batch" if isinstance(value, DataProto) else {str: "value"}.get(type(value), type(value).__name__)


def stack(x: float, middle: float, cells: Sequence[str]) -> list[str]:
    """Rows or values one below the other."""
    top = middle - len(cells) * (CELL + GAP) / 2
    frame = box(x - 4, top - 4, 60, len(cells) * (CELL + GAP) + 4, 'fill="none" stroke="#c7c7cc"')
    return [frame, *(cell(x, top + place * (CELL + GAP), words) for place, words in enumerate(cells))]


def rows(count: int) -> DataProto:
    """A batch whose rows are numbered."""
    return DataProto.from_dict(tensors={"row": torch.arange(count)})


def f(batch: DataProto) -> DataProto:
    """Any function of a batch."""
    return batch


def mode_pictures() -> dict[str, str]:
    """A picture of each mode, and of rows that do not divide."""
    with LocalWorkerGroup(Echo, 4) as group:
        group.add_mesh(Mesh.from_sizes("mesh", {"dp": 2, "tp": 2}))
        return {
            "rank_zero": call_picture(group, "rank_zero", "a"),
            "one_to_all": call_picture(group, "one_to_all", "a"),
            "all_to_all": call_picture(group, "all_to_all", list("abcd")),
            "one_to_one": call_picture(group, "one_to_one", {1: "a", 3: "b"}),
            "dp_compute_proto": call_picture(group, "dp_compute_proto", rows(8)),
            "with_func": call_picture(group, "with_func", f, rows(4)),
            "dp_compute_metric": call_picture(group, "dp_compute_metric", rows(8)),
            "mesh": call_picture(group, "on_mesh", rows(4)),
            "padding": call_picture(group, "dp_compute_proto", rows(6), auto_padding=True),
        }


def block(x: float, y: float, width: float, title: str, lines: Sequence[str]) -> str:
    """A box with a title and lines of words."""
    parts = [box(x, y, width, 34 + 18 * len(lines), 'fill="white" stroke="#c7c7cc"')]
    parts.append(text(x + 10, y + 20, title, 'font-weight="bold"'))
    parts += [text(x + 10, y + 42 + 18 * place, line) for place, line in enumerate(lines)]
    return "".join(parts)


def way_of_a_call() -> str:
    """One call from end to end."""
    parts = [
        text(20, 22, "driver", 'fill="#86868b"'),
        block(20, 32, 150, "bind", ["arguments against", "the signature"]),
        arrow(170, 67, 196, 67),
        block(200, 32, 150, "plan", ["a call for each", "rank, as a value"]),
        arrow(350, 67, 376, 67),
        block(380, 32, 190, "send", ["each object once,", "one message a rank"]),
        arrow(475, 102, 475, 146),
        text(20, 142, "worker, one of many", 'fill="#86868b"'),
        block(380, 150, 190, "open", ["futures become rows,", "padding is marked"]),
        arrow(380, 185, 354, 185),
        block(200, 150, 150, "run", ["your method, as", "for one process"]),
        arrow(200, 185, 174, 185),
        block(20, 150, 150, "answer", ["whole, or set apart", "in the store"]),
        arrow(95, 220, 95, 264),
        text(20, 260, "driver", 'fill="#86868b"'),
        block(20, 268, 150, "wait", ["the first failure", "ends it"]),
        arrow(170, 303, 196, 303),
        block(200, 268, 370, "collect", ["padding off, input order back,", "one batch or one list"]),
    ]
    return picture(WIDTH, 350, parts)


def future() -> str:
    """A future between two groups."""
    dashed = 'stroke-dasharray="4"'
    parts = [
        block(20, 20, 560, "driver", ["future = actor.write(batch)", "critic.judge(future)"]),
        arrow(95, 90, 95, 136, dashed),
        arrow(505, 90, 505, 136, dashed),
        text(225, 116, "names of rows, no rows", 'fill="#86868b"'),
        block(20, 140, 150, "actor, 2 workers", ["make 3 rows each"]),
        arrow(170, 166, 211, 166),
        block(215, 140, 170, "object store", ["rows 0-2, rows 3-5"]),
        arrow(385, 166, 426, 166),
        block(430, 140, 150, "critic, 3 workers", ["fetch 2 rows each"]),
    ]
    return picture(WIDTH, 210, parts)


def pool() -> str:
    """Nodes, slots and who is on them."""
    parts = [text(20, 22, "RayResourcePool([2, 2])", 'font-weight="bold"')]
    for node in range(2):
        x = 20 + node * 285
        parts.append(box(x, 34, 275, 130, 'fill="#eef1f6" stroke="#c7c7cc"'))
        parts.append(text(x + 10, 54, f"node {node}"))
        for slot in range(2):
            left = x + 10 + slot * 130
            parts.append(box(left, 64, 122, 90, 'fill="white" stroke="#c7c7cc"'))
            parts.append(text(left + 8, 82, f"slot {2 * node + slot}, one device", 'font-size="11"'))
            rank = f"rank {2 * node + slot}"
            parts.append(box(left + 6, 90, 110, 26, f'fill="{COLOURS[0]}"'))
            parts.append(text(left + 12, 108, f"actor, {rank}", 'fill="white"'))
            parts.append(box(left + 6, 122, 110, 26, f'fill="{COLOURS[2]}"'))
            parts.append(text(left + 12, 140, f"critic, {rank}", 'fill="white"'))
    return picture(WIDTH, 178, parts)


def pictures() -> dict[str, str]:
    """Every picture by its name."""
    return mode_pictures() | {"call": way_of_a_call(), "future": future(), "pool": pool()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, drawing in pictures().items():
        (FOLDER / f"{name}.svg").write_text(drawing)
