"""Groups of ops that run as one kernel: it reads and writes what crosses the group's edge."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.graph import LAUNCHES, OpGraph

Ints = NDArray[np.int64]

#: The group of an op that is a kernel by itself.
ALONE = -1


def makers(graph: OpGraph) -> Ints:
    """The op whose storage each op shows, int64 [n_ops]: itself, but for views."""
    return graph.reduced.shows.astype(np.int64)


def as_kernels(graph: OpGraph, group: Ints) -> OpGraph:
    """The graph with groups of its ops run as a kernel each.

    What a group reads counts once, and what only the group reads is neither written nor read. A
    group is one launch, counted at its op that accesses the most. Memory stays as it is.

    Parameters
    ----------
    graph : OpGraph
    group : int64 [n_ops]
        The group of each op; :data:`ALONE`: it is a kernel by itself.

    Notes
    -----
    O(V + E log E).

    Examples
    --------
    >>> import loadmaster as lm
    >>> ops = {"name": ["x", "a", "b"], "bytes_accessed": [0, 8, 8], "output_bytes": [4, 4, 4]}
    >>> ops["kind"] = ["input", "relu", "relu"]
    >>> graph = lm.OpGraph(ops, {"src": [0, 1], "dst": [1, 2], "bytes": [4, 4]})
    >>> one = as_kernels(graph, np.array([-1, 0, 0]))
    >>> one.bytes_accessed.tolist(), one.launches.tolist()
    ([0, 4, 4], [1, 1, 0])
    """
    maker = makers(graph)[graph.src]
    reader = graph.dst
    data = np.full(graph.n_edges, True) if graph.tensor is None else graph.tensor >= 0
    some = np.flatnonzero(data & ~graph.view[reader])
    maker, reader = maker[some], reader[some].astype(np.int64)
    size = graph.bytes[some].astype(np.int64)
    of_reader, of_maker = group[reader], group[maker]
    inside = (of_reader == of_maker) & (of_reader != ALONE)
    known = np.zeros(len(some), dtype=bool)
    grouped = np.flatnonzero(of_reader != ALONE)
    pair = of_reader[grouped] * graph.n_ops + maker[grouped]
    known[grouped] = True
    known[grouped[np.unique(pair, return_index=True)[1]]] = False
    read = np.bincount(reader, size, graph.n_ops).astype(np.int64)
    spared = np.bincount(reader, np.where(inside | known, size, 0), graph.n_ops).astype(np.int64)
    accessed = graph.bytes_accessed.astype(np.int64)
    is_read = np.bincount(maker, minlength=graph.n_ops) > 0
    leaves = np.bincount(maker, ~inside, graph.n_ops) > 0
    dropped = (group != ALONE) & is_read & ~leaves
    spared += np.where(dropped, np.maximum(accessed - read, 0), 0)
    left = np.maximum(accessed - spared, 0)
    return graph.with_columns(
        {"bytes_accessed": left.astype(np.uint64)}, meta={LAUNCHES: _launches(graph, group, left)}
    )


def _launches(graph: OpGraph, group: Ints, accessed: Ints) -> dict[str, int]:
    """Kernels by name of the ops that do not launch one a run."""
    known = graph.meta.get(LAUNCHES)
    counted = dict(known) if isinstance(known, dict) else {}
    inside = np.flatnonzero(group != ALONE)
    order = inside[np.lexsort((inside, -accessed[inside], group[inside]))]
    first = np.ones(len(order), dtype=bool)
    first[1:] = group[order][1:] != group[order][:-1]
    names = graph.names
    return counted | {names[op]: 0 for op in order[~first].tolist()}
