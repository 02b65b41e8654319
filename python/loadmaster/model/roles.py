"""Which ops a data-parallel graph replicates, and which of their tensors are weight gradients."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.graph import OpGraph

#: Placeholders that stay one, whatever is replicated.
_STATE = frozenset({"parameter", "buffer", "constant"})


@dataclass(frozen=True)
class Roles:
    """Which ops are replicated, and which of their tensors are weight gradients.

    Attributes
    ----------
    many : bool [n_ops]
        Whether an op is replicated.
    tensor : int64 [n_edges]
        Tensor id per edge, -1 for control.
    gradient : bool [n_edges]
        Whether the edge carries a weight gradient (or a part of one) of a replicated op.
    """

    many: NDArray[np.bool_]
    tensor: NDArray[np.int64]
    gradient: NDArray[np.bool_]

    @classmethod
    def of(cls, graph: OpGraph) -> Roles:
        """Roles of a graph's ops; see :func:`~loadmaster.transforms.data_parallel`. O(V + E)."""
        tensor = graph.src if graph.tensor is None else graph.tensor
        many = _replicated(graph, tensor)
        return cls(many, tensor, _weight_gradients(graph, tensor, many))


def _replicated(graph: OpGraph, tensor: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Ops that depend on the batch."""
    n = graph.n_ops
    kinds, owner, view = graph.kinds, graph.alias_of.tolist(), graph.view.tolist()
    state = np.fromiter((kind in _STATE for kind in kinds), bool, n)
    data = tensor >= 0
    readers: list[list[int]] = [[] for _ in range(n)]
    for s, d in zip(graph.src[data].tolist(), graph.dst[data].tolist(), strict=True):
        readers[s].append(d)
    optimizer = graph.updates & ~graph.view
    written = ~graph.view & (graph.alias_of >= 0)
    once = state | optimizer | (written & state[graph.alias_of])

    # An op that writes a tensor in place is where the tensor is: either both are replicated or
    # neither, and the same goes for views.
    bound: list[list[int]] = [[] for _ in range(n)]
    for i, of in enumerate(owner):
        if of >= 0 and not once[i]:
            bound[of].append(i)
    sources = np.bincount(graph.dst[data], minlength=n) == 0
    if any(kind == "input" for kind in kinds):
        frontier = np.flatnonzero(sources & ~once)
    else:
        frontier = np.flatnonzero(~once)
    many = np.zeros(n, dtype=bool)
    stack = frontier.tolist()
    while stack:
        i = stack.pop()
        if many[i] or once[i]:
            continue
        of = owner[i]
        if view[i] and of >= 0 and once[of]:
            continue
        many[i] = True
        stack += readers[i]
        stack += bound[i]
        if of >= 0:
            stack.append(of)
    return many


def _weight_gradients(
    graph: OpGraph, tensor: NDArray[np.int64], many: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Edges of replicated ops that carry weight gradients, per edge.

    Works on storage: what a view shows belongs to the tensor it shows.
    """
    view, flops = graph.view.tolist(), graph.flops.tolist()
    src, dst, ids, sizes = (c.tolist() for c in (graph.src, graph.dst, tensor, graph.bytes))
    into: dict[int, list[int]] = defaultdict(list)
    for e, d in enumerate(dst):
        if ids[e] >= 0:
            into[d].append(e)

    # The storage behind each edge: up through views, the first data edge whose source is none.
    storage: list[int] = [-1] * len(src)

    def find(e: int) -> int:
        chain = []
        while storage[e] < 0 and view[src[e]] and into[src[e]]:
            chain.append(e)
            e = into[src[e]][0]
        found = storage[e] if storage[e] >= 0 else ids[e]
        for passed in (*chain, e):
            storage[passed] = found
        return found

    producer: dict[int, int] = {}
    size: dict[int, int] = {}
    readers: dict[int, set[int]] = defaultdict(set)
    made: dict[int, set[int]] = defaultdict(set)
    for e, t in enumerate(ids):
        if t < 0 or not many[src[e]]:
            continue
        root = find(e)
        if not view[src[e]]:
            producer[root], size[root] = src[e], sizes[e]
            made[src[e]].add(root)
        if not view[dst[e]]:
            readers[root].add(dst[e])

    gradients: set[int] = set()
    stack = [root for root, ops in readers.items() if any(not many[op] for op in ops)]
    while stack:
        root = stack.pop()
        if root in gradients:
            continue
        gradients.add(root)
        op = producer.get(root)
        if op is None or flops[op] or not made[op] <= gradients:
            continue
        for e in into[op]:
            before = storage[e]
            if (
                many[src[e]]
                and size.get(before) == size[root]
                and all(not many[r] or (made[r] and made[r] <= gradients) for r in readers[before])
            ):
                stack.append(before)
    return np.fromiter((root in gradients for root in storage), bool, len(src))
