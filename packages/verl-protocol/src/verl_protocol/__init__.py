"""DataProto: the batch that travels between a driver and its workers.

Nothing here needs Ray. What is imported is imported when first asked for: torch with the first class that
needs it, tensordict, which takes seconds more, when a `.batch` is first read.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

from verl_protocol.names_on_demand import names_on_demand

if TYPE_CHECKING:
    from verl_protocol.batch import DataProto
    from verl_protocol.batch_data import BatchData
    from verl_protocol.combining import union_numpy_dict
    from verl_protocol.conversion import list_of_dict_to_dict_of_list
    from verl_protocol.equality import equal
    from verl_protocol.futures import DataProtoFuture
    from verl_protocol.gather import all_gather_data_proto
    from verl_protocol.items import DataProtoItem, collate_fn
    from verl_protocol.metadata import MergeRule, WeightedMean, merge_meta, reduce_metrics
    from verl_protocol.padding import DataProtoConfig, PadPolicy, pad_dataproto_to_divisor, unpad_dataproto
    from verl_protocol.partition import Partition, balanced_partition, boundaries, even_sizes
    from verl_protocol.reshaping import fold_batch_dim, unfold_batch_dim
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
    "BatchData": "batch_data",
    "DataProto": "batch",
    "DataProtoConfig": "padding",
    "DataProtoFuture": "futures",
    "DataProtoItem": "items",
    "MergeRule": "metadata",
    "PadPolicy": "padding",
    "Partition": "partition",
    "WeightedMean": "metadata",
    "all_gather_data_proto": "gather",
    "balanced_partition": "partition",
    "boundaries": "partition",
    "collate_fn": "items",
    "deserialize_single_tensor": "serialize",
    "deserialize_tensordict": "serialize",
    "equal": "equality",
    "even_sizes": "partition",
    "fold_batch_dim": "reshaping",
    "list_of_dict_to_dict_of_list": "conversion",
    "merge_meta": "metadata",
    "pad_dataproto_to_divisor": "padding",
    "reduce_metrics": "metadata",
    "serialize_single_tensor": "serialize",
    "serialize_tensordict": "serialize",
    "unfold_batch_dim": "reshaping",
    "union_numpy_dict": "combining",
    "union_tensor_dict": "tensordict_ops",
    "unpad_dataproto": "padding",
}


if not TYPE_CHECKING:
    # A type checker that saw this would take any name for one that there is.
    # At run time a worker that gets no batch needs no torch.
    __getattr__ = names_on_demand(globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
