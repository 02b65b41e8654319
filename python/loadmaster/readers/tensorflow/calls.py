"""Calls of TensorFlow's ops: inputs are positional tensors, attributes are keywords.

TensorFlow takes axes, shapes and permutations as tensors. Where these are constants, their numbers
are keywords too, under the names that ``tf.raw_ops`` has for such inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from loadmaster.model.arguments import Call
from loadmaster.readers.shared.arguments import told
from loadmaster.readers.tensorflow.nodes import GraphNode
from loadmaster.readers.tensorflow.protos import data_type

#: Inputs that say how an op works, by kind: positions (-1: the last) and names.
_HOW: dict[str, dict[int, str]] = {
    kind: {int(at): name for at, name in (one.split(":") for one in how.split())}
    for kinds, how in {
        "All Any Max Mean Min Prod Sum Cumprod Cumsum ExpandDims ReverseV2": "1:axis",
        "ArgMax ArgMin": "1:dimension", "BroadcastTo Reshape": "1:shape", "ConcatV2": "-1:axis",
        "Conv2DBackpropFilter": "1:filter_sizes", "Conv2DBackpropInput": "0:input_sizes",
        "Fill": "0:dims", "GatherV2": "2:axis", "MirrorPad Pad PadV2": "1:paddings",
        "OneHot": "1:depth", "Slice": "1:begin 2:size", "Split": "0:axis",
        "SplitV": "1:size_splits 2:axis", "StridedSlice": "1:begin 2:end 3:strides",
        "Tile": "1:multiples", "TopKV2": "1:k", "Transpose": "1:perm",
    }.items()
    for kind in kinds.split()
}  # fmt: skip

_INTEGERS = {"DT_INT32": "<i4", "DT_INT64": "<i8"}

#: Numbers of a constant that says how an op works; more are data.
_MOST = 64


class _TensorFlowSource(int):
    """The op that made an input."""


def call_of(
    node: GraphNode, nodes: Mapping[str, GraphNode], sources: Sequence[Sequence[int]]
) -> Call:
    """The call of a node; ``sources`` are the ops that made each input, none for what is gone."""
    positional: list[Any] = []
    for ops in sources:
        tensors = [_TensorFlowSource(op) for op in ops]
        positional.append(tensors if len(tensors) > 1 else next(iter(tensors), None))
    return told(positional, {**_attributes(node), **dict(_how(node, nodes))}, _op_of)


def _op_of(value: Any) -> int | None:
    return int(value) if isinstance(value, _TensorFlowSource) else None


def _attributes(node: GraphNode) -> dict[str, Any]:
    """The attributes, but for those that TensorFlow's own passes left."""
    attributes = node.proto.attr
    return {
        name: _value(attributes[name]) for name in sorted(attributes) if not name.startswith("_")
    }


def _value(attribute: Any) -> Any:
    """An attribute's value; None for a tensor or a function."""
    kind = attribute.WhichOneof("value")
    if kind == "list":
        fields = attribute.list.ListFields()
        return [_plain(field.name, item) for field, items in fields for item in items]
    return _plain(kind, getattr(attribute, kind)) if kind else None


def _plain(kind: str, value: Any) -> Any:
    match kind:
        case "s":
            return bytes(value).decode(errors="replace")
        case "type":
            return data_type(value)
        case "shape":
            return None if value.unknown_rank else [dim.size for dim in value.dim]
        case "tensor":
            return None
    return value


def _how(node: GraphNode, nodes: Mapping[str, GraphNode]) -> Iterator[tuple[str, Any]]:
    for position, name in _HOW.get(node.kind, {}).items():
        if node.data and position < len(node.data):
            source = nodes[node.data[position][0]]
            if source.kind == "Const":
                yield name, _integers(source.proto.attr["value"].tensor)


def _integers(tensor: Any) -> Any:
    """The numbers of a small constant of integers, as lists in lists; None for any other."""
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    kind = _INTEGERS.get(data_type(tensor.dtype))
    if kind is None or min(shape, default=0) < 0 or math.prod(shape) > _MOST:
        return None
    n = math.prod(shape)
    if tensor.tensor_content:
        size = n * np.dtype(kind).itemsize
        if len(tensor.tensor_content) != size:
            return None
        return np.frombuffer(tensor.tensor_content, kind).reshape(shape).tolist()
    # The last number stands for all that follow.
    numbers = [*(tensor.int_val or tensor.int64_val)] or [0]
    filled = np.array([*numbers[:n], *[numbers[-1]] * (n - len(numbers))], np.int64)
    return filled.reshape(shape).tolist()
