"""The one coarse problem: what groups sum, are charged, and expand to."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import clusters, op_graphs

import loadmaster as lm
from loadmaster.judge.coarse import CoarseProblem
from loadmaster.judge.coarsening import coarsen_problem
from loadmaster.judge.problem import Problem


def coarse_problem(data) -> CoarseProblem:
    graph, cluster = data.draw(op_graphs()), data.draw(clusters())
    problem = Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))
    return coarsen_problem(problem, "parallel", data.draw(st.integers(1, 6)))


@given(st.data())
def test_what_ops_take_is_what_their_groups_take(data):
    coarse = coarse_problem(data)
    problem = coarse.problem
    for g in range(coarse.n_groups):
        members = np.flatnonzero(coarse.group == g)
        assert np.isclose(coarse.sum(problem.op_time)[g], problem.op_time[members].sum())
        assert np.allclose(coarse.time[g], problem.time[members].sum(axis=0))
        held = problem.reduced.held_at_peak
        assert coarse.charge(held)[g] == held[members].sum()
        assert coarse.first(np.arange(len(coarse.group), dtype=np.int32))[g] == members[0]
    assert coarse.contracted.n_ops == coarse.n_groups


@given(st.data())
def test_an_op_is_charged_to_the_group_that_decides_for_it(data):
    coarse = coarse_problem(data)
    bytes_ = np.full(len(coarse.group), 3, dtype=np.uint64)
    decides = np.zeros(len(coarse.group), dtype=np.int32)
    assert coarse.charge(bytes_, decides).tolist() == [3 * len(bytes_)] + [0] * (
        coarse.n_groups - 1
    )


@given(st.data())
def test_ops_are_where_their_group_is_and_groups_follow_each_other(data):
    coarse = coarse_problem(data)
    n = coarse.n_groups
    devices = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), np.int32)
    order = np.array(data.draw(st.permutations(range(n))), dtype=np.int32)
    made = coarse.expanded(devices, order)
    assert (made.devices == devices[coarse.group]).all()
    by_priority = coarse.group[np.argsort(made.priority)]
    first = np.unique(by_priority, return_index=True)[1]
    assert by_priority[np.sort(first)].tolist() == order.tolist()
    assert (np.diff(np.argsort(order)[by_priority]) >= 0).all()
    src, dst, _, _ = coarse.problem.graph.flows()
    inside = coarse.group[src] == coarse.group[dst]
    assert (made.priority[src[inside]] < made.priority[dst[inside]]).all()
