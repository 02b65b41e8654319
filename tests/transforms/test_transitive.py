"""Control edges that others imply: what goes, what stays, what is still reached."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster import fast

networkx = pytest.importorskip("networkx")


def graph_of(n, rows):
    """Rows of source, destination and whether the edge carries data, each a tensor of its own."""
    tensor = [i if data else -1 for i, (_, _, data) in enumerate(rows)]
    columns = {"src": [r[0] for r in rows], "dst": [r[1] for r in rows], "tensor": tensor}
    return lm.OpGraph(
        {"name": [f"op{i}" for i in range(n)]}, columns | {"bytes": [8 * (t >= 0) for t in tensor]}
    )


rows = st.lists(
    st.tuples(st.integers(0, 14), st.integers(0, 14), st.booleans()).filter(lambda r: r[0] < r[1]),
    max_size=60,
)


@given(rows)
def test_control_edges_become_their_transitive_reduction(rows):
    graph = graph_of(15, rows)
    reduced = lm.transforms.reduce_control(graph)
    data = sum(is_data for _, _, is_data in rows)
    assert (reduced.tensor >= 0).sum() == data if rows else reduced is graph
    left = set(zip(reduced.src.tolist(), reduced.dst.tolist(), strict=True))
    every = networkx.DiGraph([(s, d) for s, d, _ in rows])
    least = set(networkx.transitive_reduction(every).edges) if rows else set()
    # All that the reduction has stays; besides it, only data.
    assert least <= left
    assert left - least <= {(s, d) for s, d, is_data in rows if is_data}
    # The order between any two ops is what it was.
    after = networkx.DiGraph(list(left))
    assert networkx.transitive_closure(after).edges == networkx.transitive_closure(every).edges


def test_edges_keep_their_order_and_their_columns():
    graph = graph_of(4, [(0, 1, False), (0, 1, False), (2, 3, True), (1, 2, False), (0, 2, False)])
    reduced = lm.transforms.reduce_control(graph)
    assert reduced.src.tolist() == [0, 2, 1]
    assert reduced.tensor.tolist() == [-1, 2, -1]
    assert reduced.bytes.tolist() == [0, 8, 0]
    assert lm.transforms.reduce_control(reduced) is reduced


def test_many_blocks_of_many_ops():
    """A ladder of 3,000 rungs, each op after all of the two rungs before it."""
    n = 3000
    pairs = [(i - k, i) for i in range(n) for k in (1, 2, 3, 4) if i >= k]
    src, dst = (np.array(column) for column in zip(*pairs, strict=True))
    graph = fast.Graph(n, src, dst, np.full(len(src), -1))
    left, right = fast.needed_control(graph)
    assert left.tolist() == list(range(n - 1))
    assert right.tolist() == list(range(1, n))


def test_a_graph_without_control_edges_is_itself(lenet):
    bare = lm.OpGraph({"name": ["a", "b"]}, {"src": [0], "dst": [1]})
    assert lm.transforms.reduce_control(bare) is bare
    if (lenet.tensor >= 0).all():
        assert lm.transforms.reduce_control(lenet) is lenet
