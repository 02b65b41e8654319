"""Shares of replicas: the part of the batch that one works on, and what it has whole."""

from __future__ import annotations

from collections import Counter
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.batch import batch_of
from loadmaster.model.graph import INPUT, OpGraph
from loadmaster.model.roles import Roles
from loadmaster.model.shapes import parse_output
from loadmaster.transforms.ways import WHOLE


def batch_size(graph: OpGraph) -> int | None:
    """Samples of the batch: as the graph's meta says, else the commonest first size of its inputs.

    None: the graph has no inputs with sizes.
    """
    said = batch_of(graph)
    if said is not None:
        return said
    firsts: Counter[int] = Counter()
    for op in np.flatnonzero(graph.stands_for == INPUT).tolist():
        sizes = parse_output(graph.outputs[op])[0][1]
        if sizes:
            firsts[sizes[0]] += 1
    return firsts.most_common(1)[0][0] if firsts else None


def own_weights(graph: OpGraph) -> NDArray[np.uint64]:
    """Bytes of weights that each op holds itself, not a parameter of its own."""
    return np.where(graph.stands_for == INPUT, np.uint64(0), graph.param_bytes)


def whole_bytes(
    graph: OpGraph, roles: Roles, own: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Per op, bytes that every replica accesses whole, and those that it outputs whole."""
    many, gradient = roles.many, roles.gradient
    data = roles.tensor >= 0
    sizes = np.where(data, graph.bytes, np.uint64(0)).astype(np.float64)

    def total(ends: NDArray[np.int64], which: NDArray[np.bool_]) -> NDArray[np.uint64]:
        return np.bincount(ends[which], sizes[which], graph.n_ops).astype(np.uint64)

    weights = total(graph.dst, data & ~many[graph.src]) + own
    summands = total(graph.dst, data & gradient & many[graph.src])
    # A tensor counts once, however many read it.
    _, once = np.unique(roles.tensor, return_index=True)
    first = np.zeros(graph.n_edges, dtype=bool)
    first[once] = True
    written = total(graph.src, data & gradient & first & ~graph.view[graph.src])
    output = np.minimum(written, graph.output_bytes)
    read = weights + summands + written
    # An op that accesses less than its inputs (a look-up) does not read its weights whole.
    accessed = np.where(
        read <= graph.bytes_accessed, read, np.minimum(written, graph.bytes_accessed)
    )
    return accessed, output


class Amounts(TypedDict):
    """The amounts that ops do, keep, access and output, as
    :func:`loadmaster.fast.expand` takes it.
    """

    work: NDArray[np.int64]
    resident: NDArray[np.int64]
    accessed_first: NDArray[np.int64]
    accessed_way: NDArray[np.int64]
    accessed_bytes: NDArray[np.uint64]
    output_first: NDArray[np.int64]
    output_way: NDArray[np.int64]
    output_bytes: NDArray[np.uint64]


def amounts(graph: OpGraph, roles: Roles, way: NDArray[np.int64]) -> Amounts:
    """The amounts that copies of ops do and have, if each op is shared in some way.

    What is replicated is shared but for what each replica has whole.
    """
    own = own_weights(graph)
    accessed, output = (
        np.where(roles.many, bytes_, np.uint64(0)) for bytes_ in whole_bytes(graph, roles, own)
    )
    first, ways, accessed_bytes = _part_and_rest(way, accessed, graph.bytes_accessed)
    _, _, output_bytes = _part_and_rest(way, output, graph.output_bytes)
    return {
        "work": way,
        "resident": np.where(roles.many & (own > 0), WHOLE, way),
        "accessed_first": first,
        "accessed_way": ways,
        "accessed_bytes": accessed_bytes,
        "output_first": first,
        "output_way": ways,
        "output_bytes": output_bytes,
    }


def _part_and_rest(
    way: NDArray[np.int64], whole: NDArray[np.uint64], total: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
    """Two terms per op: the bytes that each copy has whole, and the rest. Where they begin, the way
    and the bytes of each.
    """
    n = len(total)
    ways = np.stack([np.full(n, WHOLE), way], axis=1).ravel()
    rest = total - np.minimum(whole, total)
    return np.arange(0, 2 * n + 1, 2), ways, np.stack([whole, rest], axis=1).ravel()


def only_gradients(graph: OpGraph, roles: Roles) -> NDArray[np.bool_]:
    """Ops that work on weight gradients alone: a replica does as much work as the original."""
    many, n = roles.many, graph.n_ops
    data = roles.tensor >= 0
    other = data & ~roles.gradient
    reads_batch = np.bincount(graph.dst[other & many[graph.src]], minlength=n) > 0
    makes_batch = np.bincount(graph.src[other], minlength=n) > 0
    reads = np.bincount(graph.dst[data & many[graph.src]], minlength=n) > 0
    return reads & ~reads_batch & ~makes_batch
