"""Control edges that are added: what they leave as it is, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import loadmaster as lm
from loadmaster import fast
from loadmaster.transforms.control_edges import with_control

NONE = np.empty(0, dtype=np.int64)


def test_ops_wait_and_all_else_stays():
    graph = lm.read("example:lenet")
    ends = np.array([graph.n_ops - 2]), np.array([graph.n_ops - 1])
    made = with_control(graph, *ends)
    assert made.source is graph
    assert made.serves.tolist() == list(range(graph.n_ops))
    assert made.graph.n_edges == graph.n_edges + 1
    last = [column[-1].item() for column in (made.graph.src, made.graph.dst, made.graph.tensor)]
    assert last == [graph.n_ops - 2, graph.n_ops - 1, -1]
    assert made.graph.texts == graph.texts
    assert made.graph.args == graph.args
    for name in ("flops", "output_bytes", "alias_of", "view", "stands_for", "resident"):
        assert np.array_equal(getattr(made.graph, name), getattr(graph, name))
    assert with_control(graph, NONE, NONE).graph.is_same(graph)


def test_a_program_stays_the_program_that_it_is():
    twice = lm.transforms.replicate(lm.read("example:lenet"), 2)
    made = with_control(twice, np.array([0]), np.array([twice.graph.n_ops - 1]))
    assert made.source is twice.source
    for column in ("serves", "replica", "share", "role"):
        assert np.array_equal(getattr(made, column), getattr(twice, column))
    assert made.graph.names == twice.graph.names


def test_ops_that_would_wait_for_each_other_are_named():
    graph = lm.OpGraph({"name": ["first", "second"]}, {"src": [0], "dst": [1]})
    with pytest.raises(lm.InputError, match='cycle: "first" -> "second" -> "first"'):
        with_control(graph, np.array([1]), np.array([0]))
    twice = lm.transforms.replicate(lm.read("example:lenet"), 2)
    last, first = int(twice.graph.dst[0]), int(twice.graph.src[0])
    with pytest.raises(lm.InputError, match=f"cycle: .*{twice.graph.names[last]}"):
        with_control(twice, np.array([last]), np.array([first]))


@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [
        (np.array([2]), np.array([0]), "src: got 2, wants values of at least 0 and below 2"),
        (np.array([0]), np.array([-1]), "dst: got -1"),
        (np.array([0]), NONE, "dst"),
        (np.array([0.0]), np.array([0]), "src"),
    ],
)
def test_ends_that_are_no_ops_are_refused(src, dst, message):
    graph = lm.OpGraph({"name": ["a", "b"]}, {"src": [0], "dst": [1]})
    with pytest.raises(ValueError, match=message):
        fast.with_control(graph._core, src, dst)
