"""The operations of a batch on a plain `TensorDict`, and what it takes to have non-tensor data in one."""

from verl_protocol.nested_tensors import (
    concat_nested_tensors,
    maybe_fix_3d_position_ids,
    nested_tensor_from_tensor_list,
)
from verl_protocol.tensordict_entries import (
    assign_non_tensor,
    assign_non_tensor_data,
    assign_non_tensor_stack,
    get,
    get_keys,
    get_non_tensor_data,
    get_tensordict,
    pop,
    pop_keys,
    unwrap_non_tensor_data,
)
from verl_protocol.tensordict_rows import (
    assert_tensordict_eq,
    chunk_tensordict,
    concat_tensordict,
    concat_tensordict_with_none_bsz,
    contiguous,
    index_select_tensor_dict,
    list_of_dict_to_tensordict,
    make_iterator,
    pad_to_divisor,
    union_tensor_dict,
    unpad,
)

__all__ = [
    "assert_tensordict_eq",
    "assign_non_tensor",
    "assign_non_tensor_data",
    "assign_non_tensor_stack",
    "chunk_tensordict",
    "concat_nested_tensors",
    "concat_tensordict",
    "concat_tensordict_with_none_bsz",
    "contiguous",
    "get",
    "get_keys",
    "get_non_tensor_data",
    "get_tensordict",
    "index_select_tensor_dict",
    "list_of_dict_to_tensordict",
    "make_iterator",
    "maybe_fix_3d_position_ids",
    "nested_tensor_from_tensor_list",
    "pad_to_divisor",
    "pop",
    "pop_keys",
    "union_tensor_dict",
    "unpad",
    "unwrap_non_tensor_data",
]
