"""What a batch says about itself: bounded, one fact a line, and its size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from verl_protocol import DataProto, errors
from verl_protocol.columns.checks import jagged_of


def test_repr_shows_rows_columns_shapes_dtypes_and_devices() -> None:
    tensors = {"a": torch.zeros(2, 3), "j": jagged_of([torch.ones(4, 1), torch.ones(4, 2)], 2)}
    data = DataProto.from_dict(tensors, {"s": ["x", "y"], "n": np.zeros((2, 5))}, {"k": 1})
    assert repr(data).splitlines() == [
        "DataProto(2 rows",
        "  a: float32[2, 3] on cpu",
        "  j: float32[2, 4, *] jagged on cpu",
        "  s: object[2]",
        "  n: float64[2, 5]",
        "  meta_info: {'k': 1})",
    ]
    assert repr(data[:1]).startswith("DataProto(1 row\n")
    assert "TensorDict with ['x']" in repr(
        DataProto(TensorDict({"n": TensorDict({"x": torch.ones(1)}, [1])}, [1]))
    )


def test_repr_is_bounded() -> None:
    many = DataProto.from_dict(
        {f"c{at}": torch.zeros(1) for at in range(500)}, meta_info={"blob": "x" * 10**6}
    )
    assert "and 460 more columns" in repr(many)
    assert len(repr(many)) < 3000
    assert len(repr(DataProto())) < 100


def test_data_info_lists_types() -> None:
    data = DataProto.from_dict({"a": torch.zeros(2)}, {"s": ["x", {"y": 1}]}, {"k": [1]})
    assert data.get_data_info().splitlines() == [
        "batch:",
        "  a: float32[2] on cpu",
        "non_tensor_batch:",
        "  s: object[2] of dict, str",
        "meta_info:",
        "  k: list [1]",
    ]
    assert DataProto().get_data_info() == "batch: none\nnon_tensor_batch: none\nmeta_info: none"


def test_print_size_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    data = DataProto.from_dict({"a": torch.zeros(2**18)})
    data.print_size("rollout")
    printed = capsys.readouterr().out
    assert printed == "rollout, Size of tensordict: 0.0009765625 GB, size of non_tensor_batch: 0.0 GB\n"
    DataProto().print_size()
    assert capsys.readouterr().out.startswith("Size of tensordict: 0.0 GB")


@pytest.mark.parametrize(
    ("tensors", "arrays", "expected"),
    [
        ({"a": torch.zeros(4, 2)}, {}, 32),
        ({"a": torch.zeros(4, 2).bfloat16()}, {"n": np.arange(4)}, 16 + 32),
        ({}, {"image": [np.zeros(10_000_000)]}, 80_000_000),
        ({}, {"image": [np.zeros(1000)] * 3}, 8000),
        ({}, {"image": [{"pixels": torch.zeros(10)}, {"pixels": torch.zeros(10)}]}, 80),
        ({"a": torch.zeros(1, 2).expand(4, 2)}, {}, 32),
        ({"a": torch.zeros(8, 8)[:4]}, {}, 128),
    ],
)
def test_nbytes_counts_every_tensor_and_array_once(tensors: Any, arrays: Any, expected: int) -> None:
    assert DataProto.from_dict(tensors, arrays).nbytes() == expected


def test_unique_nbytes_counts_memory() -> None:
    base = torch.zeros(8, 8)
    data = DataProto.from_dict(
        {"a": base[:4], "b": base[4:], "c": base[:1].expand(4, 8)}, {"n": np.arange(4)}
    )
    assert data.nbytes() == 3 * 128 + 32
    assert data.unique_nbytes() == 256 + 32
    shared = DataProto.from_dict(non_tensors={"image": [np.zeros(1000)]}).repeat(4, interleave=False)
    assert shared.unique_nbytes() == shared.nbytes() == 8000


def test_the_repr_of_an_item_is_bounded() -> None:
    columns = {f"c{at}": torch.ones(1, 1000) for at in range(100)}
    item = DataProto.from_dict({"a": torch.ones(1, 1000)}, {"s": ["x" * 10**6]}, {"step": 1})[0]
    text = repr(item)
    assert text.startswith("DataProtoItem(\n  a: float32[1000] on cpu\n  s: 'xxx")
    assert text.endswith("\n  meta_info: {'step': 1})")
    assert len(text) < 300
    assert "... and 60 more columns" in repr(DataProto.from_dict(columns)[0])


def test_errors_about_many_columns_are_bounded() -> None:
    columns = {f"c{at}": torch.ones(2) for at in range(3000)}
    with pytest.raises(errors.UnknownKeyError, match=r"'c1032'\] and 2960 more$") as unknown:
        DataProto.from_dict(columns).tensor("zz")
    with pytest.raises(errors.RowCountError, match="'odd' has 3, and so on for 2995 more") as rows:
        DataProto.from_dict({**columns, "odd": torch.ones(3)})
    assert max(len(str(error.value)) for error in (unknown, rows)) < 600


def test_a_notebook_shows_a_batch_as_an_escaped_table() -> None:
    data = DataProto.from_dict({"<x>": torch.zeros(3, 2)}, meta_info={"step": "<i>"})
    shown = data._repr_html_()
    assert shown.startswith("<table><caption>DataProto(3 rows)</caption>")
    assert "<td>&lt;x&gt;</td><td>float32[3, 2] on cpu</td>" in shown
    assert "<i>" not in shown
    assert len(DataProto.from_dict({f"c{i}": torch.zeros(1) for i in range(500)})._repr_html_()) < 10_000
