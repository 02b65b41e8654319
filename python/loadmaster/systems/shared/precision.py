"""The precision of a model's parameters."""

from __future__ import annotations

import numpy as np

from loadmaster.model.graph import PARAMETER
from loadmaster.model.shapes import parse_output
from loadmaster.plans.plan import Plan

#: Bytes of an element by dtype.
_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8}


def dtype_of(plan: Plan) -> str:
    """The dtype of most of the parameters' bytes."""
    graph, size = plan.graph, dict[str, int]()
    for op in np.flatnonzero(graph.stands_for == PARAMETER).tolist():
        dtype = parse_output(graph.outputs[op])[0][0]
        size[dtype] = size.get(dtype, 0) + int(graph.param_bytes[op])
    return max(size, key=lambda name: size[name], default="f32")


def mixed_with(plan: Plan) -> str:
    """The dtype of most FLOPs of the forward pass, where parameters have a longer one: what the
    model's autocast has. Empty: products are of the parameters' dtype.
    """
    graph, flops = plan.graph, dict[str, float]()
    for op in np.flatnonzero((graph.flops > 0) & (np.array(graph.phases) == "f")).tolist():
        dtype = parse_output(graph.outputs[op])[0][0] if graph.outputs[op] else ""
        flops[dtype] = flops.get(dtype, 0.0) + float(graph.flops[op])
    most = max(flops, key=lambda name: flops[name], default="")
    return most if _BYTES.get(most, 8) < _BYTES.get(dtype_of(plan), 4) else ""


def elements_in(plan: Plan, size: int) -> int:
    """The number of elements of the parameters' dtype in so many bytes."""
    return size // _BYTES.get(dtype_of(plan), 4)
