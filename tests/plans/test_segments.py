"""Segments: where a plan is cut, and what the step takes as it is exported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placed import with_devices
from strategies import clusters, op_graphs, placements

import loadmaster as lm
from loadmaster.judge.segmented import segments
from loadmaster.model.runtime import SessionCost
from loadmaster.plans.segments import Exported, Segments


@st.composite
def plans(draw, zero_times: bool = True):
    """Plans of random graphs with random devices and priorities."""
    graph, cluster = draw(op_graphs(12, zero_times=zero_times)), draw(clusters())
    plan = with_devices(graph, draw(placements(graph, cluster)), cluster)
    n = len(plan.assignment.priority)
    priority = np.array(draw(st.permutations(range(n))), dtype=np.int32)
    assignment = replace(plan.assignment, priority=priority)
    return replace(plan, assignment=assignment, verdict=plan.problem.verdict(assignment))


def nodes_of(cut):
    """Ops of each segment."""
    return [np.flatnonzero(cut.of == k).tolist() for k in range(len(cut.devices))]


@given(plans())
def test_segments_run_one_after_another_and_hold_every_op_once(plan):
    cut, graph = Segments.cut(plan), plan.graph
    assert ((cut.of == -1) == graph.placeholder).all()
    assert all(nodes_of(cut))
    computed = cut.of >= 0
    assert (cut.devices[cut.of[computed]] == plan.devices[computed]).all()
    between = computed[graph.src] & computed[graph.dst]
    assert (cut.of[graph.src] <= cut.of[graph.dst])[between].all()
    assert np.isfinite(cut.step)


@given(plans(zero_times=False))
def test_the_step_is_as_long_as_the_plans(plan):
    assert Segments.cut(plan).step == pytest.approx(plan.makespan, rel=1e-9)


@given(plans(zero_times=False))
def test_what_a_segment_reads_is_there_when_it_starts_and_what_it_sends_is_made_last(plan):
    cut, seen, reduced = Segments.cut(plan), plan.schedule, plan.problem.reduced
    sent = seen.transfers
    for nodes in nodes_of(cut):
        ran = [op for op in nodes if reduced.runs[op]]
        if not ran:
            continue
        begins = min(seen.start[op] for op in ran)
        ends = max(seen.finish[op] for op in ran)
        assert ends - begins == pytest.approx(sum(seen.finish[op] - seen.start[op] for op in ran))
        for op, queued in zip(sent.op.tolist(), sent.queued.tolist(), strict=True):
            # Parameters are there at 0, wherever they are sent from.
            assert op not in ran or queued in (0, ends)


costs_of_runs = st.builds(
    SessionCost, st.sampled_from([0.0, 1e-7, 1e-3, 1.0, 10.0]), st.sampled_from([0.0, 1e-6, 1e-2])
)


@given(plans(), costs_of_runs)
def test_merged_segments_run_one_after_another_and_pay(plan, session):
    cut, graph = Segments.cut(plan, session), plan.graph
    assert ((cut.of == -1) == graph.placeholder).all()
    assert all(nodes_of(cut))
    computed = cut.of >= 0
    assert (cut.devices[cut.of[computed]] == plan.devices[computed]).all()
    between = computed[graph.src] & computed[graph.dst]
    assert (cut.of[graph.src] <= cut.of[graph.dst])[between].all()
    finest = Segments(plan, Segments.cut(plan).of, session)
    assert cut.step <= finest.step
    assert cut.step < finest.step or len(cut.devices) <= len(finest.devices)


@given(plans(), costs_of_runs)
def test_a_device_is_busy_for_its_ops_and_its_runs(plan, session):
    cut = Segments.cut(plan, session)
    for device in set(plan.devices[cut.of >= 0].tolist()):
        busy = plan.problem.compute_time[
            plan.assignment.devices == device, plan.cluster.device_types[device]
        ].sum()
        reduced = cut.of[plan.problem.reduced.op_of][plan.assignment.devices == device]
        assert cut.step >= (busy + len(set(reduced.tolist())) * session.run) * (1 - 1e-9)


@given(plans())
def test_one_device_runs_once_whatever_a_run_costs(plan):
    alone = with_devices(plan.graph, [0] * plan.graph.n_ops, plan.cluster)
    cut = Segments.cut(alone, SessionCost(0.5))
    assert cut.step == pytest.approx(Segments.cut(alone).step + 0.5 * len(cut.devices), rel=1e-9)
    assert len(cut.devices) <= 1


def test_what_a_device_type_says_of_its_runs_comes_first():
    # Three ops, each of which another device reads.
    graph = lm.OpGraph(
        {"name": list("abcxyz"), "time": {"*": [1.0] * 6}},
        {"src": [0, 1, 2], "dst": [3, 4, 5], "bytes": [0] * 3},
    )
    dear = lm.DeviceType("gpu", session_cost=SessionCost(2.0, 0.25))
    cluster = lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e9, latency=0.0, type=dear)
    plan = with_devices(graph, [0, 0, 0, 1, 1, 1], cluster)
    assert nodes_of(Segments.cut(plan)) == [[0], [1], [3], [2], [4], [5]]
    cut = Segments.cut(plan, SessionCost(100.0))
    assert nodes_of(cut) == [[0, 1, 2], [3, 4, 5]]
    # Three outputs are bound by the first; three inputs and three outputs by the second.
    assert cut.step == (2 + 3 * 0.25 + 3) + (2 + 6 * 0.25 + 3)
    assert lm.Cluster.from_toml(cluster.to_toml()).types == cluster.types


@settings(max_examples=15)
@given(op_graphs(10), clusters(), st.sampled_from([1e-6, 1e-2, 1.0]))
def test_plans_for_sub_models_are_never_longer_than_one_device(graph, cluster, run):
    types = [replace(kind, session_cost=SessionCost(run, run / 50)) for kind in cluster.types]
    try:
        plan = lm.place(graph, cluster.with_types(types), target="onnx")
    except lm.InfeasibleError:
        return
    step = Segments.cut(plan, SessionCost()).exported
    assert plan.as_run == step.exported >= plan.makespan
    assert plan.single == step.single
    assert step.single is None or step.exported <= step.single * (1 + 1e-9)


def test_a_plan_for_sub_models_says_its_step_as_it_is_run(tmp_path):
    graph = lm.OpGraph(
        {"name": list("abcd"), "time": {"*": [1e-3, 3e-3, 4e-3, 1e-3]}},
        {"src": [0, 0, 1, 2], "dst": [1, 2, 3, 3], "bytes": [0] * 4},
    )
    cheap = lm.DeviceType("gpu", session_cost=SessionCost(1e-4))
    two = lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e9, latency=0.0, type=cheap)
    plan = lm.place(graph, two, target="onnx")
    # Three runs follow each other.
    assert (plan.makespan, plan.as_run) == pytest.approx((6e-3, 6.3e-3))
    assert "6.3 ms per step (6 ms op by op)" in str(plan)
    assert plan.single == pytest.approx(9.1e-3)
    plan.save(tmp_path / "plan.json")
    assert lm.Plan.load(tmp_path / "plan.json").as_run == plan.as_run
    broken = replace(plan, for_writer={"session": 3})
    with pytest.raises(lm.InputError, match="session is no table"):
        broken.as_run  # noqa: B018
    # Of a method, a plan is as its ops are.
    whole = lm.place(graph, two, "heft")
    assert whole.as_run == whole.makespan


@pytest.mark.parametrize("method", ["heft", "random", "round-robin", "layers"])
@pytest.mark.parametrize("name", ["lenet", "inception-v3"])
def test_the_steps_of_traced_models_stay(name, method):
    graph, cluster = lm.read(f"example:{name}"), lm.Cluster.preset("4xV100-PCIe")
    plan = lm.place(graph, cluster, method, on_oom="best_effort")
    assert Segments.cut(plan).step == pytest.approx(plan.makespan, rel=1e-9)


def test_fewer_segments_lose_the_parallelism():
    # a sends to b, which runs beside c; d joins them.
    graph = lm.OpGraph(
        {"name": list("abcd"), "time": {"*": [1.0, 3.0, 4.0, 1.0]}},
        {"src": [0, 0, 1, 2], "dst": [1, 2, 3, 3], "bytes": [0] * 4},
    )
    cluster = lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e9, latency=0.0)
    plan = with_devices(graph, [0, 1, 0, 0], cluster)
    cut = Segments.cut(plan)
    assert nodes_of(cut) == [[0], [1], [2], [3]]
    assert cut.step == plan.makespan == 6.0
    # With a and c in one segment, b waits for c as well.
    fewest = Segments(plan, np.array([0, 1, 0, 2], dtype=np.int32))
    assert fewest.step == 9.0


def test_what_is_said_of_a_step_that_grows():
    step = Exported(plan=0.95e-3, exported=1.72e-3, single=1.2e-3)
    assert str(step) == "plan 950 us, as exported 1.72 ms, one device 1.2 ms"
    assert step.growth == pytest.approx(0.81, abs=0.01)
    assert "slower than one device" in step.advice
    assert step.to_document() == {"plan": 0.95e-3, "exported": 1.72e-3, "single": 1.2e-3}
    # A model that no device holds has nothing to be compared with.
    alone = Exported(plan=1.0, exported=1.0, single=None)
    assert (str(alone), alone.growth, alone.advice) == ("plan 1 s, as exported 1 s", 0.0, "")


def test_a_view_of_what_is_sent_is_sent_with_it():
    reads = [[], [0], [1], [0], [0]]
    # 0 is sent to 2 as it is seen by 1; 3 and 4 come after.
    found = segments([0, 0, 1, 0, 0], reads, [0, 1, 1, 1, 2], [1, 1, 2, 2, 3], [0, 0, 1, 0, 0])
    assert found == [[0, 1], [2], [3, 4]]
