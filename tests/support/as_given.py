"""Graphs of transforms beside those that a user gives."""

from __future__ import annotations

import loadmaster as lm


def check_as_if_given(graph: lm.OpGraph) -> None:
    """A graph that a transform made is the one that a user gives by the same columns."""
    given = lm.OpGraph.from_document(graph.to_document())
    assert given.digest == graph.digest
    assert (given.n_ops, given.n_edges) == (graph.n_ops, graph.n_edges)
    for column in ("placeholder", "is_member", "stands_for", "updates", "resident"):
        assert (getattr(given, column) == getattr(graph, column)).all(), column
    assert given.is_restricted == graph.is_restricted
    for column in ("map", "op_of", "shows"):
        assert (getattr(given.reduced, column) == getattr(graph.reduced, column)).all(), column
    for column in ("tensor_bytes", "static_bytes", "resident", "workspace", "lead", "colocation"):
        one, other = (getattr(g.reduced.graph, column) for g in (given, graph))
        assert (one == other).all(), column
