"""Costs of a runtime: copies that senders make, launches by hosts; what is said of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import MS, clusters, graph_of, in_ms, ms_mesh, op_graphs, placements

import loadmaster as lm
from loadmaster.costs.launches import dispatch_seconds
from loadmaster.judge.bounds import bound, split_bound
from loadmaster.judge.coarse import CoarseProblem
from loadmaster.judge.problem import Problem
from loadmaster.model.program import Program
from loadmaster.plans import summary
from loadmaster.plans.explain import explain
from loadmaster.writers.pictures.trace import trace_document


def paying(cluster: lm.Cluster, latency: int = 0, speed: float = 1000.0) -> lm.Cluster:
    """The cluster whose devices pay for sending: ms per message, and B/s."""
    cost = lm.SendCost(latency * MS, speed)
    types = [replace(t, send_cost=cost) for t in cluster.types]
    return lm.Cluster(cluster.devices, cluster.wiring, types, dispatch=cluster.dispatch)


def launched(cluster: lm.Cluster, launch: int, one_host: bool = True) -> lm.Cluster:
    return cluster.with_dispatch(lm.Dispatch(launch * MS, one_host))


@given(data=st.data())
@settings(max_examples=75)
def test_chains_are_whole_and_bounds_hold(data):
    graph = data.draw(op_graphs())
    cluster = data.draw(clusters(runtime=True))
    devices = data.draw(placements(graph, cluster))
    order = data.draw(st.permutations(range(graph.n_ops)))
    policy = data.draw(st.sampled_from(["priority", "fifo", "random"]))
    seen = lm.simulate(graph, cluster, devices, order, policy, seed=data.draw(st.integers(0, 9)))
    chain = seen.blame
    assert (chain[0].finish, chain[-1].start) == (seen.makespan, 0.0)
    assert all(later.start == earlier.finish for later, earlier in pairwise(chain))
    problem = Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))
    for found in (bound(problem), split_bound(problem)):
        assert found.seconds <= seen.makespan * (1 + 1e-9)


@given(data=st.data())
def test_without_costs_nothing_changes(data):
    graph, cluster = data.draw(op_graphs()), data.draw(clusters(runtime=True))
    devices = data.draw(placements(graph, cluster))
    plain = lm.Cluster(cluster.devices, cluster.wiring)
    off = lm.Cluster(plain.devices, plain.wiring, [lm.DeviceType(t.name) for t in plain.types])
    assert off.digest == plain.digest
    before, after = (lm.simulate(graph, c, devices) for c in (plain, off))
    assert before.start.tolist() == after.start.tolist()
    assert after.timeline.launched is None
    assert after.transfers.copied.tolist() == after.transfers.queued.tolist()
    assert not after.copying.any()
    assert after.launching == 0
    costly = lm.simulate(graph, cluster, devices)
    if cluster.dispatch is None and all(t.send_cost is None for t in cluster.types):
        assert costly.start.tolist() == before.start.tolist()


#: ``a`` (2 ms) feeds ``c`` and ``d`` on other devices with 4 bytes; then ``b`` (5 ms) runs.
FORK = graph_of({"a": 2, "b": 5, "c": 1, "d": 1}, [("a", "c", 4), ("a", "d", 4)])


def test_a_sender_copies_before_its_next_op():
    # Copies of 1 + 4 ms: 2..7 and 7..12; transfers of 4 ms follow each.
    step = lm.simulate(FORK, paying(ms_mesh(3), latency=1), [0, 0, 1, 2])
    assert in_ms(step.start) == [0, 12, 11, 16]
    assert in_ms(step.transfers.copied) == [2, 7]
    assert in_ms(step.transfers.queued) == [7, 12]
    assert in_ms(step.copying) == [10, 0, 0]
    assert in_ms(step.device_busy) == [7, 1, 1]
    assert [(b.doing, b.waited) for b in step.blame] == [
        ("run", "copy"),
        ("copy", "copy"),
        ("copy", "op"),
        ("run", "nothing"),
    ]
    assert step.waited(1) == ("copy", 1)


def test_one_host_launches_for_all_and_several_do_at_once():
    cluster = ms_mesh(2)
    pairs = graph_of({"a": 1, "b": 1, "a2": 1, "b2": 1}, [("a", "a2", 1), ("b", "b2", 1)])
    step = lm.simulate(pairs, launched(cluster, 4), [0, 1, 0, 1])
    assert in_ms(step.start) == [4, 8, 12, 16]
    assert in_ms(step.timeline.launched) == [4, 8, 12, 16]
    assert in_ms(step.launching) == 16
    assert [(b.doing, b.op, b.waited) for b in step.blame] == [
        ("run", 3, "launch"),
        ("launch", 3, "nothing"),
    ]
    each = lm.simulate(pairs, launched(cluster, 4, one_host=False), [0, 1, 0, 1])
    assert in_ms(each.start) == [4, 4, 8, 8]
    assert in_ms(each.launching) == 8


def test_bounds_know_what_hosts_must_launch():
    pairs = graph_of({"a": 1, "b": 1, "a2": 1, "b2": 1}, [("a", "a2", 1), ("b", "b2", 1)])
    for one_host, least in ((True, 16), (False, 8)):
        cluster = launched(ms_mesh(2), 4, one_host)
        problem = Problem.make(pairs, cluster, lm.costs.estimate(pairs, cluster))
        for found in (bound(problem), split_bound(problem)):
            assert found.source == "launches over hosts"
            assert found.seconds == pytest.approx(least * MS)
        groups = CoarseProblem(problem, np.array([0, 0, 1, 1], np.int32))
        assert groups.core.weights is not None
    unlaunched = Problem.make(pairs, ms_mesh(2), lm.costs.estimate(pairs, ms_mesh(2)))
    assert "launches over hosts" not in bound(unlaunched).parts


def test_what_is_launched_takes_time_or_is_a_member():
    graph = graph_of(
        {"w": 0, "v": 0, "x": 2, "free": 0, "r0": 0, "r1": 0},
        [("w", "v", 8), ("v", "x", 8), ("x", "r0", 4), ("free", "r1", 4)],
        kind=["parameter", "aten.t", "aten.mm", "aten.empty", "sum", "sum"],
        view=[0, 1, 0, 0, 0, 0],
        alias_of=[-1, 0, -1, -1, -1, -1],
        collective=["", "", "", "", "all_reduce/g", "all_reduce/g"],
    )
    cluster = launched(ms_mesh(2), 3)
    program, costs = Program.of(graph), lm.costs.estimate(graph, cluster)
    assert in_ms(dispatch_seconds(program, costs, cluster)) == [0, 0, 3, 0, 3, 3]
    assert dispatch_seconds(program, costs, ms_mesh(2)) is None
    counted = replace(program, source=with_meta(graph, {"x": 4, "free": 9, "v": 2, "r0": "many"}))
    assert in_ms(dispatch_seconds(counted, costs, cluster)) == [0, 0, 12, 0, 3, 3]
    wrong = replace(program, source=with_meta(graph, [4]))
    assert in_ms(dispatch_seconds(wrong, costs, cluster)) == [0, 0, 3, 0, 3, 3]
    step = lm.simulate(graph, cluster, [0, 0, 0, 1, 0, 1])
    # x is launched at 3 and runs to 5; the members at 6 and 9.
    assert in_ms(step.start[[2, 4, 5]]) == [3, 9, 9]
    assert in_ms(step.timeline.launched) == [0, 0, 3, 3, 6, 9]


def with_meta(graph: lm.OpGraph, launches: object) -> lm.OpGraph:
    document = graph.to_document()
    return lm.OpGraph.from_document({**document, "meta": {"launches": launches}}, "made")


def test_parts_of_an_op_are_launched_as_the_op_is():
    graph = with_meta(lm.read("example:lenet"), {"convolution": 3})
    eager = lm.Cluster.preset("2xV100-NVLink-eager")
    whole = lm.place(graph, eager, "single").problem
    halves = lm.place(graph, eager, "data-parallel").problem
    ran, source = halves.program, halves.program.source
    of = source.names.index("convolution")
    parts = halves.reduced.map[np.flatnonzero((ran.serves == of) & ~ran.own)]
    assert len(parts) == 2
    assert halves.dispatch[parts].tolist() == pytest.approx([15e-6, 15e-6])
    assert whole.dispatch[whole.reduced.map[of]] == pytest.approx(15e-6)


@pytest.fixture(scope="module")
def plan() -> lm.Plan:
    cluster = launched(paying(ms_mesh(2)), 1)
    pins = {"a": "gpu0", "b": "gpu0", "c": "gpu1", "d": "gpu1"}
    rules = lm.Constraints(pin=pins)
    return lm.place(FORK, cluster, "heft", costs=[2 * MS, 5 * MS, MS, MS], constraints=rules)


def test_a_plan_is_saved_with_its_costs_and_simulated_again(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    again = lm.Plan.load(tmp_path / "plan.json")
    assert again.cluster.dispatch == plan.cluster.dispatch
    assert again.cluster.types[0].send_cost == plan.cluster.types[0].send_cost
    assert again.schedule.start.tolist() == plan.schedule.start.tolist()
    assert again.makespan == plan.makespan


def test_all_that_is_said_of_a_plan_names_hosts_and_copies(plan):
    said = summary.summary(plan)
    assert "launches     keep the host for 4 ms" in said
    assert "copies" in said
    assert summary.document(plan)["launching"] == pytest.approx(4 * MS)
    waits = {explain(plan, op).waited for op in FORK.names}
    assert any("its launch: its host launches" in text for text in waits)
    assert any("copying out what 'a' made for gpu1" in text for text in waits)
    events = trace_document(plan)["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names[-1] == "host"
    drawn = [(e["cat"], e["name"]) for e in events if e["ph"] == "X"]
    assert ("copy", "a") in drawn
    assert [name for cat, name in drawn if cat == "launch"] == ["a", "b", "c", "d"]


def test_launches_are_most_of_bert_on_eight_h100():
    graph = lm.read("example:bert-large")
    plain, eager = (lm.Cluster.preset(f"8xH100-NVLink{end}") for end in ("", "-eager"))
    one, launched = (
        lm.place(graph, cluster, "single", costs="roofline") for cluster in (plain, eager)
    )
    # 4,444 launches of 5 us; on one device they overlap with what it computes.
    assert launched.schedule.launching == pytest.approx(22.2e-3, rel=1e-2)
    assert 0.6 < launched.makespan / one.makespan < 0.75
    spread = lm.place(graph, eager, "heft", costs="roofline")
    assert spread.bound_source == "launches over hosts"
    assert spread.lower_bound == pytest.approx(22.2e-3, rel=1e-2)
    assert 0.7 < spread.lower_bound / spread.makespan <= 1
    # Replicas launch eight times as much, unless each has a host of its own.
    assert step_of_replicas(graph, eager, one_host=True) > 8 * 22e-3
    assert step_of_replicas(graph, eager, one_host=False) < 40e-3


def step_of_replicas(graph: lm.OpGraph, cluster: lm.Cluster, one_host: bool) -> float:
    dispatch = replace(cluster.dispatch, one_host=one_host)
    return lm.place(
        graph, cluster.with_dispatch(dispatch), "data-parallel", costs="roofline"
    ).makespan


@given(graph=op_graphs(max_ops=8), cluster=clusters(runtime=True, max_devices=3))
@settings(max_examples=15)
def test_auto_is_never_slower_than_one_device(graph, cluster):
    plan = lm.place(graph, cluster, "auto", split="none", effort=0.1)
    assert plan.single is None or plan.makespan <= plan.single * (1 + 1e-9)
    assert plan.lower_bound <= plan.makespan
