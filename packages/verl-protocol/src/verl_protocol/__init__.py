"""DataProto: the batch that travels between a driver and its workers.

Nothing here needs Ray. What is imported is imported when first asked for: torch with the first class that
needs it, tensordict, which takes seconds more, when a `.batch` is first read.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

from verl_protocol._lazy import names_on_demand

if TYPE_CHECKING:
    from verl_protocol.batch.convert import list_of_dict_to_dict_of_list
    from verl_protocol.batch.item import DataProtoItem
    from verl_protocol.batch.joining import union_numpy_dict
    from verl_protocol.batch.metadata import MergeRule, WeightedMean, merge_meta, reduce_metrics
    from verl_protocol.batch.padding import (
        DataProtoConfig,
        PadPolicy,
        pad_dataproto_to_divisor,
        unpad_dataproto,
    )
    from verl_protocol.batch.proto import DataProto, all_gather_data_proto, collate_fn
    from verl_protocol.batch.row_ops import fold_batch_dim, unfold_batch_dim
    from verl_protocol.columns.equality import equal
    from verl_protocol.columns.partition import Partition, balanced_partition, boundaries, even_sizes
    from verl_protocol.futures.any_batch import BatchData
    from verl_protocol.futures.future import DataProtoFuture
    from verl_protocol.serialize import (
        deserialize_single_tensor,
        deserialize_tensordict,
        serialize_single_tensor,
        serialize_tensordict,
    )
    from verl_protocol.tensordict_ops import union_tensor_dict

__all__ = [
    "BatchData",
    "DataProto",
    "DataProtoConfig",
    "DataProtoFuture",
    "DataProtoItem",
    "MergeRule",
    "PadPolicy",
    "Partition",
    "WeightedMean",
    "__version__",
    "all_gather_data_proto",
    "balanced_partition",
    "boundaries",
    "collate_fn",
    "deserialize_single_tensor",
    "deserialize_tensordict",
    "equal",
    "even_sizes",
    "fold_batch_dim",
    "list_of_dict_to_dict_of_list",
    "merge_meta",
    "pad_dataproto_to_divisor",
    "reduce_metrics",
    "serialize_single_tensor",
    "serialize_tensordict",
    "unfold_batch_dim",
    "union_numpy_dict",
    "union_tensor_dict",
    "unpad_dataproto",
]

__version__ = version("verl-protocol")

_HOMES = {
    "BatchData": "futures.any_batch",
    "DataProto": "batch.proto",
    "DataProtoConfig": "batch.padding",
    "DataProtoFuture": "futures.future",
    "DataProtoItem": "batch.item",
    "MergeRule": "batch.metadata",
    "PadPolicy": "batch.padding",
    "Partition": "columns.partition",
    "WeightedMean": "batch.metadata",
    "all_gather_data_proto": "batch.proto",
    "balanced_partition": "columns.partition",
    "boundaries": "columns.partition",
    "collate_fn": "batch.proto",
    "deserialize_single_tensor": "serialize",
    "deserialize_tensordict": "serialize",
    "equal": "columns.equality",
    "even_sizes": "columns.partition",
    "fold_batch_dim": "batch.row_ops",
    "list_of_dict_to_dict_of_list": "batch.convert",
    "merge_meta": "batch.metadata",
    "pad_dataproto_to_divisor": "batch.padding",
    "reduce_metrics": "batch.metadata",
    "serialize_single_tensor": "serialize",
    "serialize_tensordict": "serialize",
    "unfold_batch_dim": "batch.row_ops",
    "union_numpy_dict": "batch.joining",
    "union_tensor_dict": "tensordict_ops",
    "unpad_dataproto": "batch.padding",
}


if not TYPE_CHECKING:
    # A type checker that saw this would take any name for one that there is.
    # At run time a worker that gets no batch needs no torch.
    __getattr__ = names_on_demand(globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
