"""An `UnbatchedTensor` in a TensorDict is one value for all rows: every operation carries it whole."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict, UnbatchedTensor
from verl_protocol import DataProto, wire
from verl_protocol import tensordict_ops as ops
from verl_protocol.columns.objects import payload_of
from verl_protocol.errors import ColumnError, MetaConflictError, SchemaError
from verl_protocol.serialize import deserialize_tensordict, serialize_tensordict

unbatched: Any = UnbatchedTensor
ROWS = 4
TABLE = torch.arange(3.0)


def with_table(table: torch.Tensor = TABLE, rows: int = ROWS) -> TensorDict:
    """Rows, and a table for all of them."""
    return TensorDict({"a": torch.arange(rows), "table": unbatched(table)}, batch_size=[rows])


def nested(table: torch.Tensor = TABLE) -> TensorDict:
    """A column that is a TensorDict with a table of its own."""
    return TensorDict({"inner": with_table(table), "b": torch.zeros(ROWS)}, batch_size=[ROWS])


def assert_has_table(data: Any, table: torch.Tensor = TABLE) -> None:
    assert_is_table(data.get("table"), table)


def assert_is_table(entry: Any, table: torch.Tensor = TABLE) -> None:
    assert isinstance(entry, UnbatchedTensor)
    assert payload_of(entry).tolist() == table.tolist()


OPERATIONS: dict[str, Callable[[TensorDict], Any]] = {
    "concat": lambda td: ops.concat_tensordict([td, td]),
    "chunk": lambda td: ops.chunk_tensordict(td, 2),
    "chunk unevenly": lambda td: ops.chunk_tensordict(td, 3, uneven=True),
    "index": lambda td: ops.index_select_tensor_dict(td, [3, 0]),
    "slice": lambda td: ops.index_select_tensor_dict(td, slice(1, 3)),
    "union": lambda td: ops.union_tensor_dict(td, td.exclude("a")),
    "union that adds it": lambda td: ops.union_tensor_dict(td.exclude("table"), td),
    "iterator": lambda td: list(ops.make_iterator(td, 2, epochs=1, seed=1)),
    "pad": lambda td: ops.pad_to_divisor(td, 3)[0],
    "unpad": lambda td: ops.unpad(td, 1),
    "contiguous": ops.contiguous,
    "get_keys": lambda td: ops.get_keys(td, ["table"]),
    "pop_keys": lambda td: ops.pop_keys(td, ["table"]),
    "wire": lambda td: wire.loads(*wire.dumps(td)),
    "serialize": lambda td: deserialize_tensordict(serialize_tensordict(td)),
    "pickle within a batch": lambda td: pickle.loads(
        pickle.dumps(DataProto.from_tensordict(td))
    ).to_tensordict(),
    "batch and back": lambda td: DataProto.from_tensordict(td)[1:3].to_tensordict(),
    "deepcopy of a batch": lambda td: copy.deepcopy(DataProto.from_tensordict(td)).to_tensordict(),
}


# tensordict up to 0.11 says so about a deep copy.
@pytest.mark.filterwarnings("ignore:The method <bound method:UserWarning")
@pytest.mark.parametrize("operation", OPERATIONS)
# As many values as rows, as many as the pieces have, and another number.
@pytest.mark.parametrize("size", [ROWS, 2, 3])
def test_every_operation_carries_it_whole(operation: str, size: int) -> None:
    table = torch.arange(float(size))
    made = OPERATIONS[operation](with_table(table))
    for piece in made if isinstance(made, list) else [made]:
        assert_has_table(piece, table)


def test_without_rows_it_is_carried_too() -> None:
    data = with_table().exclude("a")
    data.batch_size = torch.Size([])
    assert_has_table(ops.concat_tensordict([data, data]))


@pytest.mark.parametrize("size", [ROWS, 3])
def test_within_a_nested_column_it_is_carried_whole(size: int) -> None:
    data = nested(torch.arange(float(size)))
    for made in (
        ops.concat_tensordict([data, data]),
        ops.index_select_tensor_dict(data, [2, 0]),
        *ops.chunk_tensordict(data, 2),
        ops.pad_to_divisor(data, 3)[0],
    ):
        assert_has_table(made["inner"], torch.arange(float(size)))


def test_nested_columns_that_differ_in_it_are_not_put_together() -> None:
    with pytest.raises(SchemaError, match=r"'table' is an UnbatchedTensor, .* differs between parts"):
        ops.concat_tensordict([nested(), nested(torch.zeros(3))])


def test_it_is_read_taken_out_and_set_as_other_data_for_all_rows_is() -> None:
    data = with_table()
    assert_is_table(ops.get(data, "table"))
    assert_is_table(ops.pop(data, "table"))
    assert "table" not in list(data.keys())
    ops.assign_non_tensor_data(data, "table", unbatched(TABLE))
    assert_has_table(data)
    assert_has_table(ops.get_tensordict({"a": torch.zeros(2)}, {"table": unbatched(TABLE)}))
    assert_is_table(DataProto.from_tensordict(data).meta_info["table"])


def test_equality_looks_at_it() -> None:
    ops.assert_tensordict_eq(with_table(), with_table(TABLE.clone()))
    with pytest.raises(AssertionError, match="'table' differs"):
        ops.assert_tensordict_eq(with_table(), with_table(torch.zeros(3)))
    with pytest.raises(MetaConflictError, match="table"):
        ops.union_tensor_dict(with_table(), with_table(torch.zeros(3)))


def test_it_is_no_column_and_the_error_says_where_it_goes() -> None:
    table = unbatched(TABLE)
    data = DataProto.from_dict(tensors={"a": torch.zeros(ROWS)})
    data.batch["table"] = table
    for refused in (
        lambda: DataProto.from_dict(tensors={"a": torch.zeros(3), "table": table}),
        lambda: DataProto(batch={"a": torch.zeros(3), "table": table}),
        lambda: DataProto(batch=with_table()),
        lambda: data[[0, 1]],
        lambda: data.chunk(2),
        lambda: DataProto.concat([data, data]),
    ):
        with pytest.raises(ColumnError, match=r"'table'.*meta_info\['table'\].*got UnbatchedTensor"):
            refused()
    with pytest.raises(ColumnError, match=r"'table'.*non_tensor_dict.*got UnbatchedTensor"):
        ops.get_tensordict({"a": torch.zeros(3), "table": table})
