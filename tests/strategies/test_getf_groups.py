"""GETF's groups: by hand, and never a type that an op may not use."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import MS, graph_of, ms_mesh, op_graphs

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError, SolverError
from loadmaster.judge.problem import Problem
from loadmaster.milp import solve, worker
from loadmaster.strategies.lists import getf_groups
from loadmaster.strategies.lists.getf_groups import type_masks


def cluster_of(*types: str) -> lm.Cluster:
    devices = [lm.Device(f"d{i}", t, 10**6) for i, t in enumerate(types)]
    links = [lm.Link(a.name, b.name, 1e3) for a in devices for b in devices if a != b]
    return lm.Cluster(devices, links)


def problem_of(graph: lm.OpGraph, cluster: lm.Cluster, factors: list[float]) -> Problem:
    """Times are the graph's, times a factor per type."""
    time = graph.time["*"][:, None] * np.array(factors)
    return Problem.make(graph, cluster, lm.Costs.given(time, graph, cluster))


FAST, SLOW = 1, 2


def test_a_chain_runs_on_the_fast_device():
    names = [f"o{i}" for i in range(6)]
    chain = graph_of(dict.fromkeys(names, 1), [(a, b, 1) for a, b in pairwise(names)])
    found = type_masks(problem_of(chain, cluster_of("fast", *["slow"] * 4), [1, 3]))
    assert found.masks.tolist() == [FAST] * 6
    assert found.notes == ()


def test_independent_work_goes_where_most_speed_is():
    # The fast device does 3 / 7 of the work, so at most 6 of 14 ops are half on it. The others
    # reach their half with the four slow ones, which are 4 / 3 as fast together.
    graph = graph_of({f"o{i}": 1 for i in range(14)})
    masks = type_masks(problem_of(graph, cluster_of("fast", *["slow"] * 4), [1, 3])).masks
    assert set(masks.tolist()) == {FAST, SLOW}
    assert np.count_nonzero(masks == SLOW) >= 2
    # Two slow ones are slower together: nothing is left to them.
    problem = problem_of(graph, cluster_of("fast", "slow", "slow"), [1, 3])
    assert type_masks(problem).masks.tolist() == [FAST] * 14


def test_types_of_much_the_same_speed_are_one_group():
    graph = graph_of({f"o{i}": 1 for i in range(4)})
    problem = problem_of(graph, cluster_of("a", "b", "c", "d"), [1, 1.2, 1.9, 2.5])
    assert type_masks(problem).masks.tolist() == [0b0111] * 4


def test_a_type_too_slow_is_left_out_where_there_is_another():
    graph = graph_of({"a": 1, "b": 1, "c": 1}, device_types=["", "", "snail"])
    problem = problem_of(graph, cluster_of("fast", "snail", "snail"), [1, 50])
    assert type_masks(problem).masks.tolist() == [0b01, 0b01, 0b10]


def test_equal_types_need_no_solver(monkeypatch):
    monkeypatch.setattr(worker, "solve", lambda *_, **__: pytest.fail("asked a solver"))
    graph = graph_of({"a": 1, "b": 1}, device_types=["", "y"])
    assert type_masks(problem_of(graph, cluster_of("x", "y"), [1, 1])).masks.tolist() == [3, 2]
    assert type_masks(problem_of(graph_of({"a": 1}), ms_mesh(3), [1])).masks.tolist() == [1]


@pytest.mark.parametrize("failure", ["time", "crash"])
def test_without_the_solver_every_type_is_open(monkeypatch, failure):
    def fail(model, **_):
        if failure == "crash":
            raise SolverError("the solver cbc failed: signal 11\nmore")
        return solve(model, time_limit=0)

    monkeypatch.setattr(worker, "solve", fail)
    graph = graph_of({"a": 1, "b": 1}, device_types=["", "y"])
    found = type_masks(problem_of(graph, cluster_of("x", "y"), [1, 3]))
    assert found.masks.tolist() == [3, 2]
    assert ("signal 11" if failure == "crash" else "within") in found.notes[0]


def test_an_op_that_no_type_may_run_is_named():
    graph = graph_of({"a": 1, "b": 1}, device_types=["", "tpu"])
    with pytest.raises(InfeasibleError, match="'b' may run on tpu"):
        type_masks(problem_of(graph, cluster_of("x", "y"), [1, 2]))


def test_the_program_is_the_papers():
    # Two ops of 4 ms, one after the other, on a device of speed 1 and one of speed 1/2: both on
    # the fast one take 8 ms, and load balance is no argument.
    graph = graph_of({"a": 4, "b": 4}, [("a", "b", 1)])
    problem = problem_of(graph, cluster_of("fast", "slow"), [1, 2])
    model = getf_groups._program(problem, np.ones((2, 2), dtype=bool))
    found = solve(model, time_limit=20)
    unit = getf_groups._WORK / problem.op_time.sum()
    assert found.objective / unit == pytest.approx(8 * MS)
    # Ten alone: 40 ms of work on speeds of 1 and 1/2 take 80 / 3 ms.
    alone = problem_of(graph_of({f"o{i}": 4 for i in range(10)}), problem.cluster, [1, 2])
    found = solve(getf_groups._program(alone, np.ones((10, 2), dtype=bool)), time_limit=20)
    unit = getf_groups._WORK / alone.op_time.sum()
    assert found.objective / unit == pytest.approx(80 / 3 * MS)


@given(st.data())
@settings(max_examples=10)
def test_masks_of_drawn_graphs_are_of_allowed_types_and_shared_by_sets(data):
    graph = data.draw(op_graphs())
    kinds = data.draw(st.lists(st.sampled_from("xyz"), min_size=1, max_size=4))
    cluster = cluster_of(*kinds)
    factors = [data.draw(st.sampled_from([1.0, 1.5, 4.0])) for _ in cluster.types]
    problem = problem_of(graph, cluster, factors)
    masks = type_masks(problem).masks
    known = (1 << len(cluster.types)) - 1
    by_set: dict[int, set[int]] = {}
    for s, mask, allowed in zip(
        problem.graph.colocation.tolist(),
        masks.tolist(),
        problem.graph.allowed.tolist(),
        strict=True,
    ):
        assert mask
        assert mask & ~(allowed & known) == 0
        by_set.setdefault(s, set()).add(mask)
    assert all(len(used) == 1 for used in by_set.values())
