"""Refinement on coarse graphs: a placement stays one, never gets worse, and gets further than
without.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import clusters, op_graphs

import loadmaster as lm
from loadmaster import fast
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import as_costs
from loadmaster.strategies import METHODS
from loadmaster.strategies.auto import v_cycle as module
from loadmaster.strategies.auto.tuning import TUNING, RefinementWay
from loadmaster.strategies.auto.v_cycle import Hierarchy, Level, polished, v_cycle
from loadmaster.strategies.candidate import Candidate, judged

WAYS = st.sampled_from(
    [
        RefinementWay(0, 0.0),
        RefinementWay(0, 2.0),
        RefinementWay(2, 8.0),
        RefinementWay(2, 8.0, is_given=True),
    ]
)


def placed(graph: lm.OpGraph, cluster: lm.Cluster, seed: int) -> tuple[Problem, Candidate] | None:
    """A problem and a placement at random; none where that finds no room."""
    try:
        plan = lm.place(graph, cluster, "random", seed=seed)
    except lm.InfeasibleError:
        return None
    problem = plan.problem
    return problem, judged(problem, Assignment(plan.assignment.devices, plan.assignment.priority))


#: Coarse graphs of any size, for any number of visits.
EAGER = replace(TUNING, fewest_groups=1, least_coarse=0)


@given(
    graph=op_graphs(max_ops=12),
    cluster=clusters(),
    way=WAYS,
    budget=st.sampled_from([0, 100, 10**5]),
    seed=st.integers(0, 3),
)
def test_what_comes_of_it_keeps_the_rules_and_is_no_worse(graph, cluster, way, budget, seed):
    case = placed(graph, cluster, seed)
    if case is None:
        return
    problem, before = case
    groups = Hierarchy.of(problem, way)
    after, visits = v_cycle(problem, before, groups, way, budget, EAGER)
    # Anything new is strictly better, and visits are spent on it.
    if after is not before:
        assert problem.objective.better(before, after) is after
        assert visits > 0
    # The simulator refuses what breaks a rule.
    again = problem.verdict(after.assignment)
    assert again.step_time == after.schedule.makespan
    if before.fits:
        assert after.fits
        assert after.schedule.makespan <= before.schedule.makespan


@given(graph=op_graphs(max_ops=12), cluster=clusters(), seed=st.integers(0, 3))
def test_coarse_graphs_hold_the_placement_as_it_is(graph, cluster, seed):
    case = placed(graph, cluster, seed)
    if case is None:
        return
    problem, before = case
    levels, _ = module._coarsened(problem, before, 8.0, EAGER)
    finer = problem
    for level in levels:
        assert level.coarse.problem is finer
        assert level.problem.graph.n_ops < finer.graph.n_ops
        rougher = level.problem
        for fine, rough in ((finer.time, rougher.time), (held(finer), held(rougher))):
            assert np.allclose(fine.sum(axis=0), rough.sum(axis=0))
        finer = rougher
    current = module._on_coarsest(before, levels)
    for level in reversed(levels):
        current = level.expanded(current)
    assert current.assignment.devices.tolist() == before.assignment.devices.tolist()


def held(problem: Problem) -> np.ndarray:
    return problem.reduced.held_at_peak.astype(float)


def test_groups_that_hold_one_set_of_ops_move_together():
    ops = {
        "name": list("abcd"),
        "time": {"*": [1.0, 1.0, 1.0, 1.0]},
        "colocation": ["s", "", "", "s"],
    }
    graph = lm.OpGraph(ops, {"src": [0, 1, 2], "dst": [1, 2, 3], "bytes": [4, 4, 4]})
    cluster = lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e9, latency=0.0)
    problem = Problem.make(graph, cluster, as_costs(None, graph, cluster))
    level = Level.of(problem, np.array([0, 0, 1, 1], dtype=np.int32))
    assert level.problem.graph.colocation.tolist() == [0, 0]
    assert level.coarse.contracted.colocation.tolist() == [0, 1]
    with pytest.raises(lm.InputError, match="share a device"):
        level.problem.simulate(np.array([0, 1], dtype=np.int32), np.array([0, 1], dtype=np.int32))


def test_ops_kept_to_devices_never_share_a_group():
    problem = lm.place(lm.read("example:lenet"), lm.Cluster.preset("4xV100-PCIe"), "m-topo").problem
    graph = problem.graph
    devices = np.arange(graph.n_ops, dtype=np.int32) % 3
    devices = devices[graph.colocation]
    group, _ = fast.batch_merge(problem.weights.kept_to(devices), 4)
    assert len(np.unique(group)) < graph.n_ops
    for g in np.unique(group):
        assert len(np.unique(devices[group == g])) == 1
    with pytest.raises(ValueError, match=r"devices\[0\] is 64"):
        problem.weights.kept_to(np.full(graph.n_ops, 64, dtype=np.int32))


@pytest.mark.parametrize("name", ["bert-large", "inception-v3"])
def test_it_gets_further_than_without_coarse_graphs(name):
    cluster = lm.Cluster.preset("4xV100-PCIe")
    plan = lm.place(lm.read(f"example:{name}"), cluster, "celeritas", costs="roofline")
    problem = plan.problem
    before = judged(problem, Assignment(plan.assignment.devices, plan.assignment.priority))
    without, coarse = (
        v_cycle(problem, before, Hierarchy.of(problem, way), way, 20_000_000)[0].schedule.makespan
        for way in (RefinementWay(6, 0.0), RefinementWay(6, 30.0))
    )
    assert coarse < without < before.schedule.makespan


def test_few_visits_build_no_coarse_graphs(monkeypatch):
    plan = lm.place(lm.read("example:inception-v3"), lm.Cluster.preset("4xV100-PCIe"), "celeritas")
    problem = plan.problem
    before = judged(problem, Assignment(plan.assignment.devices, plan.assignment.priority))
    monkeypatch.setattr(Level, "of", None)
    way = RefinementWay(0, 8.0)
    few = TUNING.least_coarse * problem.graph.n_ops - 1
    after, visits = v_cycle(problem, before, Hierarchy.of(problem, way), way, few)
    assert after.schedule.makespan < before.schedule.makespan
    assert visits > 0


def test_devices_are_no_types_of_what_ops_allow():
    """The second device is of the first type: ops that allow this type alone may be there."""
    graph = fast.Graph(
        2,
        np.array([0]),
        np.array([1]),
        allowed=np.array([1, 1], dtype=np.uint64),
        colocation=np.array([0, 0]),
    )
    weights = fast.Weights(graph, np.ones(2))
    group, _ = fast.batch_merge(weights.kept_to(np.array([1, 1], dtype=np.int32)), 1)
    assert group.tolist() == [0, 0]
    with pytest.raises(lm.InputError, match="must share a device"):
        weights.kept_to(np.array([0, 1], dtype=np.int32))


def test_a_refined_plan_still_says_how_it_came_about():
    """Notes and the graph that was placed stay with it through the coarse graphs."""
    cluster = lm.Cluster.preset("4xV100-PCIe")
    graph = lm.read("example:inception-v3")
    whole = Problem.make(graph, cluster, as_costs(None, graph, cluster))
    before = METHODS["data-parallel"][0](whole, aggregation="parameter-server")
    assert before.problem is not None
    told = replace(before, notes=("a note",))
    after = polished(before.problem, told)
    assert after.schedule.makespan < before.schedule.makespan
    assert after.problem is before.problem
    assert after.notes == ("a note",)
