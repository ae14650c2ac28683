"""The public names and their parameters, as code written for this design expects them.

A signature is compared by its leading parameters: new ones may follow, keyword-only or with defaults.
"""

import importlib
import inspect

import pytest

PROTOCOL = """
DataProto(batch, non_tensor_batch, meta_info)
DataProto.from_dict(tensors, non_tensors, meta_info, num_batch_dims, auto_padding)
DataProto.from_single_dict(data, meta_info, auto_padding)
DataProto.from_tensordict(tensor_dict, meta_info, num_batch_dims)
DataProto.to_tensordict()
DataProto.select_idxs(idxs)
DataProto.slice(start, end, step)
DataProto.select(batch_keys, non_tensor_batch_keys, meta_info_keys, deepcopy)
DataProto.pop(batch_keys, non_tensor_batch_keys, meta_info_keys)
DataProto.rename(old_keys, new_keys)
DataProto.union(other)
DataProto.to(device)
DataProto.chunk(chunks)
DataProto.split(split_size)
DataProto.concat(data)
DataProto.repeat(repeat_times, interleave)
DataProto.sample_level_repeat(repeat_times)
DataProto.unfold_column_chunks(n_split, split_keys)
DataProto.reorder(indices)
DataProto.padding(padding_size, padding_candidate)
DataProto.is_padding_enabled()
DataProto.make_iterator(mini_batch_size, epochs, seed, dataloader_kwargs)
DataProto.save_to_disk(filepath)
DataProto.load_from_disk(filepath)
DataProto.print_size(prefix)
DataProto.get_data_info()
DataProto.check_consistency()
DataProto.from_rows
DataProto.to_rows
DataProto.group_by
DataProto.equals
DataProto.nbytes
DataProto.tensor(key)
DataProto.column(key)
DataProtoItem(batch, non_tensor_batch, meta_info)
DataProtoFuture(collect_fn, futures, dispatch_fn)
DataProtoFuture.concat(data)
DataProtoFuture.chunk(chunks)
DataProtoFuture.get(timeout)
DataProtoConfig
BatchData
BatchData.is_chunkable
BatchData.is_concatable
BatchData.chunk
BatchData.concat
pad_dataproto_to_divisor(data, size_divisor)
unpad_dataproto(data, pad_size)
fold_batch_dim(data, new_batch_size)
unfold_batch_dim(data, batch_dims)
collate_fn
union_tensor_dict
union_numpy_dict
list_of_dict_to_dict_of_list(list_of_dict)
all_gather_data_proto(data, process_group)
serialize_single_tensor
deserialize_single_tensor
serialize_tensordict
deserialize_tensordict
"""

TENSORDICT_OPS = """
get_tensordict(tensor_dict, non_tensor_dict)
get(tensordict, key, default)
pop(tensordict, key, default)
get_keys(tensordict, keys)
pop_keys(tensordict, keys)
assign_non_tensor(tensor_dict)
assign_non_tensor_data(tensor_dict, key, val)
assign_non_tensor_stack(tensor_dict, key, val)
unwrap_non_tensor_data(data)
get_non_tensor_data(data, key, default)
concat_tensordict(data)
concat_tensordict_with_none_bsz(data)
chunk_tensordict(td, chunks)
index_select_tensor_dict(batch, indices)
union_tensor_dict
make_iterator(tensordict, mini_batch_size, epochs, seed, dataloader_kwargs)
pad_to_divisor(data, size_divisor)
unpad(data, pad_size)
contiguous(data)
nested_tensor_from_tensor_list(tensors, ragged_idx)
concat_nested_tensors(tensors)
maybe_fix_3d_position_ids(data)
list_of_dict_to_tensordict(list_of_dicts)
assert_tensordict_eq
"""

DISPATCH = """
MAGIC_ATTR
register(dispatch_mode, execute_mode, blocking, materialize_futures)
DynamicEnum
DynamicEnum.register(name)
DynamicEnum.remove(name)
DynamicEnum.from_name(name)
DynamicEnum.names()
DynamicEnum.values()
Dispatch
Execute
DISPATCH_MODE_FN_REGISTRY
get_predefined_dispatch_fn
get_predefined_execute_fn
register_dispatch_mode
update_dispatch_mode
register_execute_mode(name, select_ranks)
dispatch_one_to_all
dispatch_all_to_all
dispatch_dp_compute
dispatch_dp_compute_data_proto
dispatch_dp_compute_data_proto_with_func
collect_all_to_all
collect_dp_compute
collect_dp_compute_data_proto
dispatch_nd_compute(dp_rank_mapping, dp_size)
collect_nd_compute(collect_mask)
dispatch_nd_compute_dataproto(dp_rank_mapping, dp_size)
collect_nd_compute_dataproto(collect_mask)
make_nd_compute_dataproto_dispatch_fn(mesh_name)
init_predefined_dispatch_mode
init_predefined_execute_mode
Worker(cuda_visible_devices)
Worker._register_dispatch_collect_info(mesh_name, dp_rank, is_collect)
Worker._query_dispatch_info
Worker._query_collect_info
Worker.query_collect_info
Worker.get_dispatch_collect()
Worker.set_dispatch_collect(mesh_name, dispatch_dp_rank, collect_dp_rank)
Worker.get_master_addr_port()
Worker.get_available_master_addr_port()
Worker.get_cuda_visible_devices()
Worker.env_keys
Worker.get_fused_worker_by_name
Worker.execute_with_func_generator(func)
Worker.execute_func_rank_zero(func)
Worker.process_group
WorkerGroup
WorkerGroup.world_size
WorkerGroup._bind_worker_method(user_defined_cls, func_generator)
WorkerGroup.start_worker_aliveness_check(every_n_seconds)
ResourcePool(process_on_nodes, max_colocate_count, n_gpus_per_node)
ResourcePool.add_node
ResourcePool.world_size
ResourcePool.local_world_size_list()
ResourcePool.local_rank_list()
ClassWithInitArgs(cls)
CallPlan
Broadcast
Mesh
LocalWorkerGroup(cls, world_size)
WorkerGroupError
CallTimeout
"""

RAY = """
RayResourcePool(process_on_nodes, use_gpu, name_prefix, max_colocate_count, detached, accelerator_type)
RayResourcePool.get_placement_groups(strategy, name, device_name)
RayResourcePool.pgs
SubRayResourcePool
ResourcePoolManager(resource_pool_spec, mapping, max_colocate_count)
ResourcePoolManager.create_resource_pool()
ResourcePoolManager.get_resource_pool(role)
ResourcePoolManager.get_n_gpus()
split_resource_pool(resource_pool, split_size)
merge_resource_pool(rp1, rp2)
extract_pg_from_exist(resource_pools, src_role_names, resource_pool)
sort_placement_group_by_node_ip(pgs)
RayClassWithInitArgs(cls)
RayClassWithInitArgs.update_options(options)
RayClassWithInitArgs.set_additional_resource
RayWorkerGroup(resource_pool, ray_cls_with_init, bin_pack, name_prefix, detached)
RayWorkerGroup.execute_all(method_name)
RayWorkerGroup.execute_all_sync(method_name)
RayWorkerGroup.execute_all_async(method_name)
RayWorkerGroup.execute_rank_zero(method_name)
RayWorkerGroup.execute_rank_zero_sync(method_name)
RayWorkerGroup.execute_rank_zero_async(method_name)
RayWorkerGroup.from_detached(name_prefix, worker_names, worker_handles, ray_cls_with_init)
RayWorkerGroup.spawn(prefix_set)
RayWorkerGroup.fuse(prefix_set)
RayWorkerGroup.shutdown
RayWorkerGroup.restart
RayWorkerGroup.watch
RayWorkerGroup.startup_report
RayWorkerGroup.role(name, cls)
create_colocated_worker_cls(class_dict)
create_colocated_worker_cls_fused(class_dict)
create_colocated_worker_raw_cls(class_dict)
parallel_put(data_list, max_workers)
ResourceUnavailable
"""

NAMES = [
    pytest.param(module, line, id=f"{module}.{line.partition('(')[0]}")
    for module, text in (
        ("verl_protocol", PROTOCOL),
        ("verl_protocol.tensordict_ops", TENSORDICT_OPS),
        ("verl_dispatch", DISPATCH),
        ("verl_ray", RAY),
    )
    for line in text.split("\n")
    if line
]


@pytest.mark.parametrize(("module_name", "line"), NAMES)
def test_name_and_leading_parameters(module_name: str, line: str) -> None:
    module = importlib.import_module(module_name)
    name, has_parameters, rest = line.partition("(")
    top, *attributes = name.split(".")
    if module_name != "verl_protocol.tensordict_ops":
        assert top in module.__all__
    value = inspect.getattr_static(module, top) if not hasattr(module, top) else getattr(module, top)
    for attribute in attributes:
        value = getattr(value, attribute)
    if has_parameters:
        expected = [text for text in rest.rstrip(")").split(", ") if text]
        parameters = [
            p for p in inspect.signature(value).parameters if p not in ("self", "cls") or p in expected
        ]
        assert parameters[: len(expected)] == expected
