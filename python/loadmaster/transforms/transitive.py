"""Control edges that other paths imply are left out; the order of ops stays the same."""

from __future__ import annotations

import numpy as np

import loadmaster.fast as fast
from loadmaster.model.graph import OpGraph


def reduce_control(graph: OpGraph) -> OpGraph:
    """The graph without control edges that other paths imply: their transitive reduction.

    Edges that carry data stay. Every op still waits, directly or through others, for exactly what
    it waited for before. O((V + E) D / 512) for D destinations of control edges, 64 bytes per op.

    Examples
    --------
    >>> import loadmaster as lm
    >>> control = {"src": [0, 1, 0], "dst": [1, 2, 2], "tensor": [-1, -1, -1]}
    >>> g = lm.OpGraph({"name": ["a", "b", "c"]}, control)
    >>> lm.transforms.reduce_control(g).n_edges
    2
    """
    if graph.tensor is None or not (graph.tensor < 0).any():
        return graph
    n = np.int64(graph.n_ops)
    ends = graph.src * n + graph.dst
    control = np.flatnonzero(graph.tensor < 0)
    src, dst = fast.needed_control(fast.Graph(graph.n_ops, graph.src, graph.dst, graph.tensor))
    # Of several control edges between the same ops the first stays.
    control = control[np.unique(ends[control], return_index=True)[1]]
    kept = graph.tensor >= 0
    kept[control[np.isin(ends[control], src.astype(np.int64) * n + dst)]] = True
    if kept.all():
        return graph
    columns = {"src": graph.src, "dst": graph.dst, "tensor": graph.tensor, "bytes": graph.bytes}
    return graph.with_columns({}, {name: column[kept] for name, column in columns.items()})
