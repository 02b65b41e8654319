"""Control edges: ops that wait for others without reading them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.model.graph import OpGraph
from loadmaster.model.program import Program


def with_control(
    graph: OpGraph | Program,
    src: NDArray[Any],
    dst: NDArray[Any],
    meta: Mapping[str, Any] | None = None,
) -> Program:
    """The same ops, some of which wait for others.

    Parameters
    ----------
    graph : OpGraph or Program
        The graph, or the program of whose graph the ops are.
    src, dst : int columns
        Each op of ``dst`` starts after the op of ``src`` at the same place has ended.
    meta : mapping, optional
        What the graph has in its ``meta`` beside what it had.

    Raises
    ------
    InputError
        Ops would wait for each other; some of them are named.

    Notes
    -----
    O(V + E).

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph = lm.OpGraph({"name": ["a", "b"]}, {"src": [], "dst": []})
    >>> with_control(graph, np.array([1]), np.array([0])).graph.src.tolist()
    [1]
    """
    if isinstance(graph, Program):
        return graph.with_graph(graph.source, with_control(graph.graph, src, dst, meta).graph)
    core = fast.with_control(graph._core, src.astype(np.int64), dst.astype(np.int64))
    changed = graph.of_same_ops(core, {**graph.meta, **(meta or {})})
    return Program.made(graph, changed, np.arange(graph.n_ops, dtype=np.int32))
