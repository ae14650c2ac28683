"""How long batches take to pickle, join, repeat and iterate, as ratios to memcpy in the same run.

    python packages/verl-protocol/benchmarks/bench_protocol.py [--json FILE] [--megabytes 54.5]

Times drift between machines and runs; the ratios are what counts. `memcpy` copies the same bytes into memory
that is already mapped.
"""

from __future__ import annotations

import argparse
import gc
import json
import pickle
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "tools"))

import numpy as np
import torch
from benchmark_harness import Aim, Row, Work, comparison, medians_ms
from verl_protocol import DataProto, pad_dataproto_to_divisor, wire
from verl_protocol.columns.checks import jagged_of


def medians(*works: Work, repeats: int) -> list[float]:
    """Median milliseconds of each work; they take turns."""
    return list(medians_ms({str(at): work for at, work in enumerate(works)}, repeats).values())


def batch(num_rows: int, width: int) -> DataProto:
    """What rollouts look like: two int64 columns, three float32 columns, a string uid."""
    long = {key: torch.randint(0, 2, (num_rows, width)) for key in ("input_ids", "attention_mask")}
    real = {key: torch.rand(num_rows, width) for key in ("old_log_probs", "advantages", "returns")}
    return DataProto.from_dict({**long, **real}, {"uid": [f"prompt-{row:08d}" for row in range(num_rows)]})


def memcpy_of(num_bytes: int) -> Work:
    """A copy of so many bytes into memory that is already mapped."""
    source, target = torch.ones(num_bytes, dtype=torch.uint8), torch.ones(num_bytes, dtype=torch.uint8)
    return lambda: target.copy_(source)


def out_of_band(data: object) -> tuple[bytes, list[Any]]:
    """A pickle and its buffers."""
    buffers: list[Any] = []
    return pickle.dumps(data, protocol=5, buffer_callback=buffers.append), buffers


def plain(data: DataProto) -> dict[str, Any]:
    """The same columns as numpy arrays and lists, which pickle knows best."""
    arrays = {key: tensor.numpy() for key, tensor in data._columns().items()}
    return {**arrays, **{key: column.tolist() for key, column in data.non_tensor_batch.items()}}


def pickling(data: DataProto, repeats: int) -> Iterator[Row]:
    """Dump and load of a large batch: again and again, and with caches emptied by other work."""
    columns = plain(data)
    payload, buffers = out_of_band(data)
    packed, packed_buffers = wire.dumps(data)
    known, known_buffers = out_of_band(columns)
    copy = memcpy_of(data.nbytes())
    works: dict[str, Work] = {
        "dump": lambda: out_of_band(data),
        "load, read-only views": lambda: wire.loads(packed, packed_buffers, readers="read_only"),
        "load, writable views": lambda: wire.loads(packed, packed_buffers, readers="one"),
    }
    plain_works: dict[str, Work] = {
        "dump": lambda: out_of_band(columns),
        "load": lambda: pickle.loads(known, buffers=known_buffers),
    }
    memcpy, load = medians(copy, lambda: wire.loads(payload, buffers), repeats=repeats)
    size = f"{data.nbytes() / 1e6:.1f} MB"
    yield Row(f"load {size}, writable", load, "memcpy", memcpy, Aim(2))
    for name, work in works.items():
        like = plain_works[name.partition(",")[0]]
        warm = medians_ms({"ours": work, "plain": like}, repeats, calls_per_round=50)
        aim = Aim(0.1 if name == "dump" else 0.2, "ms")
        yield Row(f"{name}, {size}", warm["ours"], "numpy and lists", warm["plain"], aim)
        _, cold, _, cold_plain = medians(copy, work, copy, like, repeats=2 * repeats)
        yield Row(f"{name}, {size}, cold caches", cold, "numpy and lists", cold_plain)


def small_pickling(repeats: int) -> Iterator[Row]:
    """Dump and load of 8 rows x 16."""
    data = batch(8, 16)
    columns, payload = plain(data), pickle.dumps(data, protocol=5)
    known = pickle.dumps(columns, protocol=5)
    times = medians_ms(
        {
            "dump": lambda: pickle.dumps(data, protocol=5),
            "load": lambda: pickle.loads(payload),
            "plain dump": lambda: pickle.dumps(columns, protocol=5),
            "plain load": lambda: pickle.loads(known),
        },
        repeats,
        calls_per_round=50,
    )
    both, both_plain = times["dump"] + times["load"], times["plain dump"] + times["plain load"]
    yield Row("dump + load, 8 rows x 16", both, "numpy and lists", both_plain, Aim(0.1, "ms"))


def joining(data: DataProto, repeats: int) -> Iterator[Row]:
    """concat of a few large parts, repeat, and padding."""
    parts = data[:].chunk(4)
    pieces = [[part.tensor(key) for part in parts] for key in data._columns()]
    memcpy, concat, cat = medians(
        memcpy_of(data.nbytes()),
        lambda: DataProto.concat(parts),
        partial(joined, pieces),
        repeats=repeats,
    )
    size = f"{data.nbytes() / 1e6:.1f} MB"
    yield Row(f"concat of 4 parts, {size}", concat, "memcpy", memcpy, Aim(1.5))
    yield Row(f"concat of 4 parts, {size}", concat, "torch.cat", cat)
    index = torch.arange(len(data) + 3)[: len(data) + 3] % len(data)
    columns = data._columns()
    memcpy, padded, gather = medians(
        memcpy_of(data.nbytes()),
        lambda: pad_dataproto_to_divisor(data, len(data) + 3),
        lambda: {key: column.index_select(0, index) for key, column in columns.items()},
        repeats=repeats,
    )
    yield Row(f"pad by 3 rows, {size}", padded, "index_select", gather)


def repeating(data: DataProto, repeats: int) -> Iterator[Row]:
    """repeat x4, against memcpy of the result."""
    for name, interleave in (("repeat x4", True), ("repeat x4, tiled", False)):
        works = (memcpy_of(4 * data.nbytes()), partial(data.repeat, 4, interleave))
        memcpy, repeat = medians(*works, repeats=repeats)
        size = f"{data.nbytes() / 1e6:.1f} MB"
        yield Row(f"{name}, {size}", repeat, "memcpy of the result", memcpy, Aim(1.5))


def many_parts(repeats: int) -> Iterator[Row]:
    """concat of one-row parts: linear in their number."""
    for count in (512, 4096):
        parts = batch(count, 16).chunk(count)
        pieces = [[part.tensor(key) for part in parts] for key in parts[0]._columns()]
        works = (partial(DataProto.concat, parts), partial(joined, pieces))
        concat, cat = medians(*works, repeats=repeats)
        yield Row(f"concat of {count} one-row parts", concat, "torch.cat", cat)


def joined(columns: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    """The least that concat has to do."""
    return [torch.cat(pieces) for pieces in columns]


def iterating(repeats: int) -> Iterator[Row]:
    """Mini-batches of 4096 rows."""
    data = batch(4096, 16)
    columns: list[Any] = [*data._columns().values(), *data.non_tensor_batch.values()]

    def slices() -> None:
        for start in range(0, 4096, 128):
            for column in columns:
                column[start : start + 128]

    order = torch.randperm(4096).view(-1, 128)

    def gathers() -> None:
        for index in order:
            for column in columns:
                column[index] if isinstance(column, torch.Tensor) else column[index.numpy()]

    shuffle = {"shuffle": True}
    ordered, plain, shuffled, gathered = medians(
        lambda: list(data.make_iterator(128, 1)),
        slices,
        lambda: list(data.make_iterator(128, 1, seed=1, dataloader_kwargs=shuffle)),
        gathers,
        repeats=repeats,
    )
    yield Row("mini-batches of 128, 4096 rows", ordered, "slices", plain, Aim(2))
    yield Row("the same, shuffled", shuffled, "gathers", gathered, Aim(2))


def jagged(repeats: int) -> Iterator[Row]:
    """Jagged columns: gather, repeat and concat on values and offsets."""
    lengths = np.random.default_rng(0).integers(100, 1000, 1024).tolist()
    data = DataProto.from_dict(
        {"ids": jagged_of([torch.ones(length, dtype=torch.int64) for length in lengths], 1)}
    )
    order, parts = torch.randperm(1024), data.chunk(4)
    works: list[Work] = [
        memcpy_of(data.nbytes()),
        lambda: DataProto.concat(parts),
        lambda: data[order],
        lambda: data.repeat(2),
    ]
    memcpy, concat, gather, repeat = medians(*works, repeats=repeats)
    for name, found in (("concat of 4", concat), ("reorder", gather), ("repeat x2", repeat)):
        yield Row(f"jagged {name}, {data.nbytes() / 1e6:.1f} MB", found, "memcpy", memcpy)


def main() -> None:
    """Measure, print the table, write the JSON file."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--json", type=Path, help="also write the numbers to this file")
    options.add_argument("--megabytes", type=float, default=54.5, help="size of the large batch")
    options.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    options.add_argument("--repeats", type=int, default=15, help="measurements per line")
    given = options.parse_args()
    data = batch(1024, max(1, round(given.megabytes * 1e6 / 1024 / 28)))
    gc.disable()
    torch.set_num_threads(given.threads)
    repeats = given.repeats
    rows = [
        *pickling(data, repeats),
        *small_pickling(2 * repeats),
        *joining(data, repeats),
        *repeating(data, repeats),
        *many_parts(repeats),
        *iterating(4 * repeats),
        *jagged(repeats),
    ]
    sys.stdout.write(comparison(rows) + "\n")
    if given.json:
        given.json.write_text(json.dumps([row.as_dict() for row in rows], indent=2))


if __name__ == "__main__":
    main()
