"""Mistakes that a type checker must find: each line's ignore has to be needed.

Nothing here runs; `test_protocol_types.py` has mypy read it.
"""

from __future__ import annotations

import torch
import verl_protocol
from verl_protocol import DataProto, DataProtoConfig, pad_dataproto_to_divisor, reduce_metrics


def mistakes(data: DataProto) -> None:
    DataProto({"a": [1, 2]})  # type: ignore[dict-item]
    DataProto.from_dict(tensors={"a": [1, 2]})  # type: ignore[dict-item]
    DataProto.from_dict(non_tensors={"a": torch.zeros(2)})  # type: ignore[dict-item]
    DataProto.from_dict(unknown=1)  # type: ignore[call-arg]
    data.batch = [torch.zeros(2)]  # type: ignore[assignment]
    data[1.5]  # type: ignore[call-overload]
    data.chunk("2")  # type: ignore[arg-type]
    data.chunk(2).pop("a")  # type: ignore[arg-type]
    data.select(3)  # type: ignore[arg-type]
    data.reorder([0]).pop()  # type: ignore[func-returns-value, attr-defined]
    verl_protocol.nope()  # type: ignore[attr-defined]
    data.nope()  # type: ignore[attr-defined]
    data.to(torch.zeros(1))  # type: ignore[arg-type]
    data.union({})  # type: ignore[arg-type]
    DataProto.concat([data, 3])  # type: ignore[type-var]
    DataProto.concat([data], merge={"k": "median"})  # type: ignore[dict-item]
    DataProto.concat([data], pad_side="top")  # type: ignore[arg-type]
    pad_dataproto_to_divisor(data, 8, policy="mirror")  # type: ignore[arg-type]
    reduce_metrics({}, {"loss": "median"})  # type: ignore[dict-item]
    DataProtoConfig.auto_padding = "yes"  # type: ignore[assignment]
