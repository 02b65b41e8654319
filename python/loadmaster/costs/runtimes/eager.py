"""Kernels of eager PyTorch on a GPU that are several ops in a captured step."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.disjoint_sets import DisjointSets
from loadmaster.costs.runtimes.one_kernel import ALONE, makers
from loadmaster.model.graph import LAUNCHES, OpGraph
from loadmaster.model.shapes import parse_output

#: Tensors that one kernel of a ``foreach`` optimizer updates (multi_tensor_apply).
FOREACH = 64

#: Ops of a dropout as it is captured: the draw, its scaling, and the product with the input. On a
#: GPU these are one kernel.
_DRAW, _SCALE, _PRODUCT = "aten.bernoulli_.", "aten.div_.", "aten.mul."


def kernels_of(graph: OpGraph) -> NDArray[np.int64]:
    """The kernel of each op, int64 [n_ops]: dropouts are one each, all else is alone.

    >>> import loadmaster as lm
    >>> kinds = ["input", "aten.bernoulli_.float", "aten.div_.Scalar", "aten.mul.Tensor"]
    >>> ops = {"name": ["x", "draw", "scale", "y"], "kind": kinds, "phase": ["f"] * 4}
    >>> graph = lm.OpGraph(ops, {"src": [0, 1, 2], "dst": [3, 2, 3], "bytes": [4, 4, 4]})
    >>> kernels_of(graph).tolist()
    [-1, 1, 1, 1]
    """
    maker = makers(graph)
    kernel = np.full(graph.n_ops, ALONE, dtype=np.int64)
    draws = np.array([kind.startswith(_DRAW) for kind in graph.kinds], dtype=bool)
    kernel[draws] = np.flatnonzero(draws)
    for kind in (_SCALE, _PRODUCT):
        wanted = np.array([k.startswith(kind) for k in graph.kinds], dtype=bool)
        edges = np.flatnonzero(wanted[graph.dst] & (kernel[maker[graph.src]] != ALONE))
        edges = edges[np.array(graph.phases)[graph.dst[edges]] == "f"]
        reader = graph.dst[edges]
        first = np.unique(kernel[maker[graph.src[edges]]], return_index=True)[1]
        kernel[reader[first]] = kernel[maker[graph.src[edges[first]]]]
    return kernel


def updates_of(graph: OpGraph) -> NDArray[np.int64]:
    """The kernel of each op of a fused optimizer, int64 [n_ops]: all ops of a parameter's update
    that have as many elements are one.

    >>> import loadmaster as lm
    >>> ops = {"name": ["p", "sqrt", "add", "q"], "kind": ["input", "sqrt", "add", "add"]}
    >>> ops |= {"phase": ["", "o", "o", "o"], "output": ["f32[4]", "f32[4]", "f32[4]", "f32[4]"]}
    >>> graph = lm.OpGraph(ops, {"src": [0, 1, 0], "dst": [1, 2, 3], "bytes": [16, 16, 16]})
    >>> updates_of(graph).tolist()
    [-1, 2, 2, 3]
    """
    maker = makers(graph)
    elements = [sum(math.prod(shape or ()) for _, shape in parse_output(o)) for o in graph.outputs]
    updates = graph.updates & ~graph.view & ~graph.placeholder
    sets: DisjointSets[int] = DisjointSets()
    for source, op in zip(maker[graph.src].tolist(), graph.dst.tolist(), strict=True):
        if updates[source] and updates[op] and elements[source] == elements[op]:
            sets[sets.find(source)] = sets.find(op)
    return np.array([sets.find(op) if updates[op] else ALONE for op in range(graph.n_ops)])


def foreach(graph: OpGraph) -> OpGraph:
    """The graph whose optimizer updates many tensors by a kernel: launches are fewer, bytes alike.

    >>> import loadmaster as lm
    >>> ops = {"name": list("abc"), "kind": ["add"] * 3, "phase": ["o"] * 3}
    >>> foreach(lm.OpGraph(ops, {"src": [], "dst": []})).launches.tolist()
    [1, 0, 0]
    """
    seen: dict[tuple[str, str], int] = {}
    launches: dict[str, int] = {}
    for op in np.flatnonzero(graph.updates & ~graph.view & ~graph.placeholder).tolist():
        key = graph.kinds[op], graph.outputs[op].partition("[")[0]
        seen[key] = seen.get(key, -1) + 1
        if seen[key] % FOREACH:
            launches[graph.names[op]] = 0
    known = graph.meta.get(LAUNCHES)
    return graph.with_columns({}, meta={LAUNCHES: {**(known or {}), **launches}})
