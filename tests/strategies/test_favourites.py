"""Favourite children: by hand, against the paper's own program, exclusive, and without a solver."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import graph_of, ms_mesh, op_graphs

import loadmaster as lm
from loadmaster.base.errors import SolverError
from loadmaster.judge.problem import Problem
from loadmaster.milp import solve, worker
from loadmaster.strategies.lists import favourites
from loadmaster.strategies.lists.favourites import favourite_children, without_program


def problem_of(graph: lm.OpGraph, cluster: lm.Cluster | None = None) -> Problem:
    cluster = cluster or ms_mesh(3)
    return Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))


def by_name(graph: lm.OpGraph, child: np.ndarray) -> dict[str, str]:
    names = [graph.names[i] for i in graph.reduced.op_of]
    return {names[i]: names[c] for i, c in enumerate(child) if c >= 0}


def check_exclusive(problem: Problem, child: np.ndarray) -> None:
    src, dst, _, _ = problem.graph.flows()
    edges = set(zip(src.tolist(), dst.tolist(), strict=True))
    chosen = [(i, int(c)) for i, c in enumerate(child) if c >= 0]
    assert set(chosen) <= edges
    assert len({c for _, c in chosen}) == len(chosen), "one favourite parent each"


def test_the_critical_path_stays_together():
    # a -> {b, c} -> d; c takes longer, so a's favourite is c and d's favourite parent is c.
    graph = graph_of(
        {"a": 1, "b": 1, "c": 20, "d": 1},
        [("a", "b", 3, 0), ("a", "c", 3, 0), ("b", "d", 3, 1), ("c", "d", 3, 2)],
    )
    found = favourite_children(problem_of(graph))
    assert by_name(graph, found.child) == {"a": "c", "c": "d"}
    assert found.notes == ()


def test_what_is_off_the_critical_path_saves_the_longest_transfer():
    # x feeds y (9 bytes) and z (2 bytes), all far from the critical op "long".
    graph = graph_of({"x": 1, "y": 1, "z": 1, "long": 99}, [("x", "y", 9, 0), ("x", "z", 2, 1)])
    assert by_name(graph, favourite_children(problem_of(graph)).child) == {"x": "y"}


def test_a_chain_needs_no_solver(monkeypatch):
    monkeypatch.setattr(worker, "solve", lambda *_, **__: pytest.fail("asked a solver"))
    graph = graph_of({"a": 1, "b": 1, "c": 1}, [("a", "b", 3), ("b", "c", 3)])
    assert by_name(graph, favourite_children(problem_of(graph)).child) == {"a": "b", "b": "c"}


def test_ops_that_cannot_share_a_device_are_no_favourites():
    graph = lm.OpGraph(
        {
            "name": ["a", "b", "c"],
            "time": {"*": [1e-3] * 3},
            "device_types": ["cpu", "gpu", "cpu"],
        },
        {"src": [0, 0], "dst": [1, 2], "bytes": [9, 1], "tensor": [0, 1]},
    )
    cluster = lm.Cluster(
        [lm.Device("c", "cpu", 10**6), lm.Device("g", "gpu", 10**6)],
        [lm.Link("c", "g", 1e3), lm.Link("g", "c", 1e3)],
    )
    assert by_name(graph, favourite_children(problem_of(graph, cluster)).child) == {"a": "c"}


@pytest.mark.parametrize("failure", ["time", "crash"])
def test_without_the_solver_the_longest_transfers_choose(monkeypatch, failure):
    graph = graph_of(
        {"a": 1, "b": 1, "c": 1, "d": 1},
        [("a", "c", 3, 0), ("a", "d", 4, 1), ("b", "d", 9, 2), ("b", "c", 1, 3)],
    )

    def fail(model, **_):
        if failure == "crash":
            raise SolverError("the solver cbc failed: signal 11\nmore")
        return solve(model, time_limit=0)

    monkeypatch.setattr(worker, "solve", fail)
    found = favourite_children(problem_of(graph))
    assert by_name(graph, found.child) == {"b": "d", "a": "c"}
    assert ("signal 11" if failure == "crash" else "within") in found.notes[0]
    assert "longest transfers" in found.notes[0]
    assert by_name(graph, without_program(problem_of(graph)).child) == by_name(graph, found.child)


def makespan_of_the_paper(problem: Problem) -> float:
    """The optimum of the program as printed: a variable per edge and op, no chains."""
    optimize = pytest.importorskip("scipy.optimize")
    src, dst, tensors, sizes = problem.graph.flows()
    latency, per_byte = problem.links.mean_link
    seconds = np.maximum(tensors, 1) * latency + sizes * per_byte
    n, m, time = problem.graph.n_ops, len(src), problem.op_time
    rows, limits = [], []

    def at_most(entries: dict[int, float], limit: float) -> None:
        row = np.zeros(m + n + 1)
        for column, value in entries.items():
            row[column] += value
        rows.append(row)
        limits.append(limit)

    for e in range(m):
        i, j = int(src[e]), int(dst[e])
        at_most({m + i: 1, m + j: -1, e: seconds[e]}, -time[i])
    for op in range(n):
        at_most({m + op: 1, m + n: -1}, -time[op])
        for end in (src, dst):
            mine = np.flatnonzero(end == op)
            if len(mine):
                at_most(dict.fromkeys(mine.tolist(), -1.0), 1 - len(mine))
    cost = np.append(np.zeros(m + n), 1.0)
    bounds = [(0, 1)] * m + [(0, None)] * (n + 1)
    return optimize.linprog(cost, np.array(rows), limits, bounds=bounds).fun


@given(op_graphs(rules=False))
@settings(max_examples=12)
def test_the_program_over_chains_has_the_papers_optimum(graph):
    problem = problem_of(graph)
    sets = problem.graph.colocation
    if len(np.unique(sets)) < len(sets):
        return  # in-place ops: the paper knows of none
    flows = favourites._flows(problem)
    found = solve(favourites._program(problem, flows), time_limit=20)
    makespan = found.values[-1] / favourites._WORK * problem.op_time.sum()
    wanted = makespan_of_the_paper(problem)
    saved = favourites._SAVING * flows.seconds.sum()
    assert wanted * (1 - 1e-6) <= makespan <= wanted * (1 + 1e-6) + saved


@given(op_graphs())
@settings(max_examples=12)
def test_favourites_of_drawn_graphs_are_exclusive_edges(graph):
    problem = problem_of(graph)
    check_exclusive(problem, favourite_children(problem).child)


@pytest.mark.parametrize("name", ["lenet", "alexnet", "inception-v3", "rnnlm"])
def test_favourites_of_models_are_exclusive_and_the_same_every_time(name):
    cluster = lm.Cluster.preset("4xV100-PCIe")
    problem = problem_of(lm.read(f"example:{name}"), cluster)
    found = favourite_children(problem)
    assert found.notes == ()
    check_exclusive(problem, found.child)
    assert (found.child >= 0).sum() > 0.2 * problem.graph.n_ops
    assert found.child.tolist() == favourite_children(problem).child.tolist()
