# The one list of the public names of this package and where each is defined. Type checkers read it, and
# `names_of_stub`, which imports a name when it is first asked for.

from verl_protocol.batch.convert import list_of_dict_to_dict_of_list as list_of_dict_to_dict_of_list
from verl_protocol.batch.item import DataProtoItem as DataProtoItem
from verl_protocol.batch.joining import union_numpy_dict as union_numpy_dict
from verl_protocol.batch.metadata import MergeRule as MergeRule
from verl_protocol.batch.metadata import WeightedMean as WeightedMean
from verl_protocol.batch.metadata import merge_meta as merge_meta
from verl_protocol.batch.metadata import reduce_metrics as reduce_metrics
from verl_protocol.batch.padding import DataProtoConfig as DataProtoConfig
from verl_protocol.batch.padding import PadPolicy as PadPolicy
from verl_protocol.batch.padding import pad_dataproto_to_divisor as pad_dataproto_to_divisor
from verl_protocol.batch.padding import unpad_dataproto as unpad_dataproto
from verl_protocol.batch.proto import DataProto as DataProto
from verl_protocol.batch.proto import all_gather_data_proto as all_gather_data_proto
from verl_protocol.batch.proto import collate_fn as collate_fn
from verl_protocol.batch.row_ops import fold_batch_dim as fold_batch_dim
from verl_protocol.batch.row_ops import unfold_batch_dim as unfold_batch_dim
from verl_protocol.columns.equality import equal as equal
from verl_protocol.columns.partition import Partition as Partition
from verl_protocol.columns.partition import balanced_partition as balanced_partition
from verl_protocol.columns.partition import boundaries as boundaries
from verl_protocol.columns.partition import even_sizes as even_sizes
from verl_protocol.futures.any_batch import BatchData as BatchData
from verl_protocol.futures.future import DataProtoFuture as DataProtoFuture
from verl_protocol.serialize import deserialize_single_tensor as deserialize_single_tensor
from verl_protocol.serialize import deserialize_tensordict as deserialize_tensordict
from verl_protocol.serialize import serialize_single_tensor as serialize_single_tensor
from verl_protocol.serialize import serialize_tensordict as serialize_tensordict
from verl_protocol.tensordict_ops import union_tensor_dict as union_tensor_dict

__version__: str
