"""The precision of a model: of its parameters, and of what is computed of them."""

from __future__ import annotations

import numpy as np

from loadmaster.model.graph import PARAMETER, OpGraph
from loadmaster.model.shapes import parse_output

#: Bytes of an element by dtype.
_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8}


def dtype_of(graph: OpGraph) -> str:
    """The dtype of most of the parameters' bytes."""
    size = dict[str, int]()
    for op in np.flatnonzero(graph.stands_for == PARAMETER).tolist():
        dtype = parse_output(graph.outputs[op])[0][0] if graph.outputs[op] else "f32"
        size[dtype] = size.get(dtype, 0) + int(graph.param_bytes[op])
    return max(size, key=lambda name: size[name], default="f32")


def computed_in(graph: OpGraph) -> str:
    """The dtype in which the forward pass has most of its FLOPs; without any, the parameters'."""
    flops = dict[str, float]()
    for op in np.flatnonzero((graph.flops > 0) & (np.array(graph.phases) == "f")).tolist():
        dtype = parse_output(graph.outputs[op])[0][0] if graph.outputs[op] else ""
        if dtype in _BYTES:
            flops[dtype] = flops.get(dtype, 0.0) + float(graph.flops[op])
    return max(flops, key=lambda name: flops[name], default=dtype_of(graph))


def mixed_with(graph: OpGraph) -> str:
    """The dtype of most FLOPs of the forward pass, where parameters have a longer one: what the
    model's autocast has. Empty: products are of the parameters' dtype.
    """
    most = computed_in(graph)
    return most if _BYTES.get(most, 8) < _BYTES.get(dtype_of(graph), 4) else ""


def elements_in(graph: OpGraph, size: int) -> int:
    """The number of elements of the parameters' dtype in so many bytes."""
    return size // _BYTES.get(dtype_of(graph), 4)
