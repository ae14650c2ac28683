"""Batches in files: what comes back, what is refused, and what a failed write leaves behind."""

from __future__ import annotations

import copy
import json
import os
import pickle
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from verl_protocol.batch.proto import DataProto
from verl_protocol.columns.jagged import build_jagged
from verl_protocol.errors import FileFormatError, InvalidValueError, PickleRefusedError, UnknownDtypeError


def round_trip(data: DataProto, path: Path, **options: Any) -> DataProto:
    data.save_to_disk(path / "batch", **options)
    return DataProto.load_from_disk(path / "batch", **options)


def jagged(dim: int) -> torch.Tensor:
    values = torch.arange(24.0).view(8, 3) if dim == 1 else torch.arange(24.0).view(3, 8)
    return torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 3, 8]), jagged_dim=dim)


PLAIN_META = {
    "step": 3,
    "ratio": 0.1,
    "name": "naïve",
    "on": True,
    "off": None,
    "raw": b"\x00\xff",
    "z": 1 + 2j,
    "nested": {"list": [1, "a", None], "tuple": (1, (2,)), 5: {"k": [b"x"]}},
    "inf": float("inf"),
    "big": 2**70,
    "scalar": np.float32(0.5),
    "array": np.arange(3),
    "tensor": torch.arange(4),
    "metrics": {"loss": [0.1, 0.2]},
}


def test_everything_plain_comes_back(tmp_path: Path) -> None:
    objects: dict[str, Any] = {"s": ["a", "b"], "chat": [[{"role": "user"}], []], "mixed": [None, b"x"]}
    arrays: dict[str, Any] = {
        "n": np.arange(2),
        "f": np.zeros((2, 3), np.float16),
        "u": np.array(["x", "yz"]),
    }
    tensors = {"a": torch.arange(6).view(2, 3), "pos": jagged(2), "ids": jagged(1)}
    data = DataProto.from_dict(tensors, {**objects, **arrays}, PLAIN_META, auto_padding=True)
    got = round_trip(data, tmp_path)
    assert got.equals(data)
    assert got.is_padding_enabled()
    assert got.batch["pos"]._ragged_idx == 2
    assert {key: column.dtype for key, column in got.non_tensor_batch.items()} == {
        key: column.dtype for key, column in data.non_tensor_batch.items()
    }
    assert type(got.meta_info["nested"]["tuple"]) is tuple
    assert [type(got.meta_info[key]) for key in ("scalar", "on", "step")] == [np.float32, bool, int]


def all_dtypes() -> list[torch.dtype]:
    found = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return sorted((dtype for dtype in found if _views_bytes(dtype)), key=str)


def _views_bytes(dtype: torch.dtype) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.zeros(16, dtype=torch.uint8).view(dtype)
        except RuntimeError:
            return False
    return not str(dtype).startswith("torch.q")


def test_every_dtype_is_byte_exact(tmp_path: Path) -> None:
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (3, 32), np.uint8))
    tensors = {str(dtype): noise.view(dtype) for dtype in all_dtypes()}
    assert {"torch.float8_e4m3fn", "torch.bfloat16", "torch.uint16", "torch.complex64"} <= set(tensors)
    odd = {"odd": torch.ones(3, 1, dtype=torch.uint8), "wide": torch.ones(3, 1, dtype=torch.complex128)}
    got = round_trip(DataProto.from_dict({**tensors, **odd}), tmp_path)
    for key, tensor in tensors.items():
        found = got.tensor(key)
        assert found.dtype == tensor.dtype
        assert torch.equal(found.view(torch.uint8), noise)


@pytest.mark.parametrize(
    "data",
    [
        DataProto(),
        DataProto(meta_info={"k": 1}),
        DataProto.from_dict(non_tensors={"s": ["a"]}),
        DataProto.from_dict(tensors={"a": torch.zeros(0, 3), "b": torch.zeros(0)}),
        DataProto.from_dict(tensors={"a": torch.zeros(3, 0)}, non_tensors={"n": np.zeros((3, 0))}),
        DataProto.from_dict(tensors={"a": torch.arange(12).view(3, 4).t()}),
        DataProto.from_dict(tensors={"a": torch.complex(torch.ones(2), torch.ones(2)).conj()}),
    ],
    ids=["nothing", "meta", "no tensors", "no rows", "no width", "transposed", "conj"],
)
def test_corner_cases_come_back(data: DataProto, tmp_path: Path) -> None:
    got = round_trip(data, tmp_path)
    assert got.equals(data)
    assert got._has_batch() == data._has_batch()


def test_columns_are_writable_and_private(tmp_path: Path) -> None:
    DataProto.from_dict({"a": torch.zeros(1000)}, {"n": np.zeros(1000)}).save_to_disk(tmp_path / "b")
    got = DataProto.load_from_disk(tmp_path / "b")
    got.batch["a"][0], got.non_tensor_batch["n"][0] = 1, 1
    again = DataProto.load_from_disk(tmp_path / "b")
    assert again.batch["a"].sum() == again.non_tensor_batch["n"].sum() == 0


def test_a_loaded_batch_outlives_its_file(tmp_path: Path) -> None:
    data = DataProto.from_dict({"a": torch.arange(1000)})
    data.save_to_disk(tmp_path / "b")
    got = DataProto.load_from_disk(tmp_path / "b")
    DataProto.from_dict({"a": torch.zeros(1000)}).save_to_disk(tmp_path / "b")
    (tmp_path / "b").unlink()
    assert got.equals(data)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_is_not_used_is_not_read(tmp_path: Path) -> None:
    tensors = {key: torch.ones(1024, 4096) for key in "abcd"}
    DataProto.from_dict({**tensors, "fp8": tensors["a"].to(torch.float8_e4m3fn)}).save_to_disk(tmp_path / "b")
    before = resident_bytes()
    got = DataProto.load_from_disk(tmp_path / "b")
    assert got.tensor("a")[5].sum() == 4096
    assert resident_bytes() - before < got.nbytes() // 4


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_other_tools_can_read_the_tensors(tmp_path: Path) -> None:
    DataProto.from_dict({"a": torch.arange(6).view(2, 3)}).save_to_disk(tmp_path / "b.safetensors")
    with safe_open(tmp_path / "b.safetensors", framework="pt") as file:
        (name,) = file.keys()
        assert "a" in name
        assert file.get_tensor(name).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_long_description_finds_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_protocol.files.disk._MAX_HEADER_BYTES", 10)
    data = DataProto.from_dict(non_tensors={"s": ["x" * 1000]})
    assert round_trip(data, tmp_path).equals(data)


@dataclass
class Thing:
    """Something that only pickle can write."""

    value: int


class Mine(DataProto):
    """A user's batch."""


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (DataProto(meta_info={"cfg": {"x": Thing(1)}}), r"meta_info\['cfg'\]\['x'\]"),
        (DataProto.from_dict(non_tensors={"s": [1, Thing(1)]}), r"non_tensor_batch\['s'\]\[1\]"),
        (DataProto(meta_info={"f": len}), r"meta_info\['f'\] holds a builtins.builtin_function_or_method"),
        (Mine(meta_info={"k": 1}), "the class"),
    ],
    ids=["meta", "column", "function", "subclass"],
)
def test_what_needs_a_pickle_is_asked_for_twice(data: DataProto, place: str, tmp_path: Path) -> None:
    path = tmp_path / "b"
    with pytest.raises(PickleRefusedError, match=f"^{place}.*allow_pickle=True"):
        data.save_to_disk(path)
    assert list(tmp_path.iterdir()) == []
    data.save_to_disk(path, allow_pickle=True)
    with pytest.raises(PickleRefusedError, match="allow_pickle=True"):
        DataProto.load_from_disk(path)
    got = DataProto.load_from_disk(path, allow_pickle=True)
    assert type(got) is type(data)
    assert got.equals(data)


class Bomb:
    """Says so when its code runs."""

    def __reduce__(self) -> Any:
        return (os.mkdir, ("exploded",))


def test_loading_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    DataProto(meta_info={"bomb": Bomb()}).save_to_disk("b", allow_pickle=True)
    (tmp_path / "pickle").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(PickleRefusedError):
        DataProto.load_from_disk("b")
    with pytest.raises(FileFormatError, match="no safetensors file"):
        DataProto.load_from_disk("pickle")
    assert not (tmp_path / "exploded").exists()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = DataProto.from_dict({"a": torch.arange(3)})
    old.save_to_disk(tmp_path / "b")

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        DataProto.from_dict({"a": torch.arange(9)}).save_to_disk(tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert DataProto.load_from_disk(tmp_path / "b").equals(old)


def test_what_cannot_be_written_is_the_file_that_was_named(tmp_path: Path) -> None:
    data, missing, folder = DataProto(), tmp_path / "missing" / "batch", tmp_path / "folder"
    folder.mkdir()
    for path, error in ((missing, FileNotFoundError), (folder, IsADirectoryError)):
        with pytest.raises(error) as caught:
            data.save_to_disk(path)
        assert (caught.value.filename, caught.value.filename2) == (str(path), None)
        assert ".tmp" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [folder]


def test_foreign_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DataProto.load_from_disk(tmp_path / "none")
    save_file({"a": torch.ones(2)}, tmp_path / "foreign")
    with pytest.raises(FileFormatError, match="not one that save_to_disk wrote"):
        DataProto.load_from_disk(tmp_path / "foreign")
    DataProto.from_dict({"a": torch.arange(1000)}).save_to_disk(tmp_path / "b")
    (tmp_path / "short").write_bytes((tmp_path / "b").read_bytes()[:-100])
    with pytest.raises(FileFormatError, match="short"):
        DataProto.load_from_disk(tmp_path / "short")


def test_whatever_byte_is_damaged_the_error_is_one_of_ours(tmp_path: Path) -> None:
    data = DataProto.from_dict({"a": torch.arange(4)}, {"s": list("wxyz")}, {"step": 1})
    data.save_to_disk(path := tmp_path / "batch")
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    for at in range(0, end, 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            loaded = DataProto.load_from_disk(path)
        except (FileFormatError, UnknownDtypeError):
            continue
        # A name or a blank can change unnoticed: the file is then a sound one that says something else.
        assert isinstance(loaded, DataProto)


HOSTILE: list[Any] = [
    None,
    -1,
    0,
    3,
    1.5,
    2**40,
    2**70,
    "",
    "x",
    "<U1000000",
    [],
    {},
    True,
    [2**31, 2**31],
    [0, 10**15],
]


def described(path: Path) -> tuple[dict[str, Any], Any, bytes]:
    """Header, description and tensors of a file."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    return header, json.loads(header["__metadata__"]["document"]), raw[start:]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value within a description."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*at, key)
        yield from places(item, (*at, key))


@pytest.mark.parametrize("value", HOSTILE, ids=repr)
def test_what_a_hostile_description_makes_is_refused_or_a_batch_that_holds_together(
    tmp_path: Path, value: Any
) -> None:
    meta = {"list": [1, (2,)], "empty": np.empty((0, 3))}
    data = DataProto.from_dict({"a": torch.arange(6).view(2, 3), "ids": jagged(1)}, {"s": ["a", "b"]}, meta)
    data.save_to_disk(tmp_path / "good")
    header, document, tensors = described(tmp_path / "good")
    for place in places(document):
        changed = copy.deepcopy(document)
        within = changed
        for key in place[:-1]:
            within = within[key]
        within[place[-1]] = value
        header["__metadata__"]["document"] = json.dumps(changed)
        text = json.dumps(header).encode()
        text += b" " * (-(len(text) + 8) % 64)
        (tmp_path / "bad").write_bytes(len(text).to_bytes(8, "little") + text + tensors)
        with suppress(FileFormatError, PickleRefusedError, UnknownDtypeError):
            read = DataProto.load_from_disk(tmp_path / "bad")
            again = DataProto.concat(read.chunk(2, uneven=True))
            assert len(again) == len(read)
            assert again.equals(read)


@pytest.mark.parametrize("offsets", [[0, 3, 10**9], [0, -3, 8], [5, 3, 8], [0, 3, 9], [0, 9, 8]], ids=str)
def test_rows_outside_of_their_values_are_refused(tmp_path: Path, offsets: list[int]) -> None:
    data = DataProto.from_dict({"ids": build_jagged(torch.arange(24.0).view(8, 3), torch.tensor(offsets), 1)})
    data.save_to_disk(tmp_path / "bad")
    with pytest.raises(FileFormatError, match="lie outside its 8 values"):
        DataProto.load_from_disk(tmp_path / "bad")


def test_what_holds_itself_cannot_be_saved(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidValueError, match="holds itself"):
        DataProto(meta_info={"endless": endless}).save_to_disk(tmp_path / "batch")
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_release_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("verl_protocol.files.disk.FILE_VERSION", "99")
        DataProto(meta_info={"k": 1}).save_to_disk(tmp_path / "b")
    with pytest.raises(FileFormatError, match=r"file format 99, but verl-protocol .* reads format 1"):
        DataProto.load_from_disk(tmp_path / "b")


def test_the_environment_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataProto.from_dict({"a": torch.arange(3)})
    monkeypatch.setenv("VERL_DATAPROTO_SERIALIZATION_METHOD", "numpy")
    data.save_to_disk(tmp_path / "b")
    payload = pickle.dumps(data)
    monkeypatch.delenv("VERL_DATAPROTO_SERIALIZATION_METHOD")
    assert DataProto.load_from_disk(tmp_path / "b").equals(data)
    assert pickle.loads(payload).equals(data)


def test_nested_batches_in_columns_come_back(tmp_path: Path) -> None:
    from tensordict import TensorDict

    inner = TensorDict({"x": torch.arange(2), "s": ["a", "b"]}, [2])
    got = round_trip(DataProto(batch=TensorDict({"n": inner}, [2])), tmp_path)
    assert got.batch["n"]["x"].tolist() == [0, 1]
    assert list(got.batch["n"]["s"]) == ["a", "b"]
