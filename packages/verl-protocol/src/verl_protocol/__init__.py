"""DataProto: the batch that travels between a driver and its workers.

Nothing here needs Ray, and importing it does not import tensordict, which takes seconds: that happens when a
`.batch` is first read.
"""

from importlib import import_module
from importlib.metadata import version
from typing import Any

from verl_protocol.batch import DataProto
from verl_protocol.combining import union_numpy_dict
from verl_protocol.conversion import list_of_dict_to_dict_of_list
from verl_protocol.equality import equal
from verl_protocol.items import DataProtoItem, collate_fn
from verl_protocol.metadata import MergeRule, WeightedMean, merge_meta, reduce_metrics
from verl_protocol.padding import DataProtoConfig, PadPolicy, pad_dataproto_to_divisor, unpad_dataproto
from verl_protocol.partition import Partition, balanced_partition, boundaries, even_sizes
from verl_protocol.reshaping import fold_batch_dim, unfold_batch_dim

__all__ = [
    "DataProto",
    "DataProtoConfig",
    "DataProtoItem",
    "MergeRule",
    "PadPolicy",
    "Partition",
    "WeightedMean",
    "__version__",
    "balanced_partition",
    "boundaries",
    "collate_fn",
    "equal",
    "even_sizes",
    "fold_batch_dim",
    "list_of_dict_to_dict_of_list",
    "merge_meta",
    "pad_dataproto_to_divisor",
    "reduce_metrics",
    "unfold_batch_dim",
    "union_numpy_dict",
    "unpad_dataproto",
]

__version__ = version("verl-protocol")

_LAZY = {
    "DataProtoFuture": "futures",
    "BatchData": "futures",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"verl_protocol.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
