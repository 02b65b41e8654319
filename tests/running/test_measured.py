"""What is measured of a plan: steps are checked, and their figures are those worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from pictured import gathered, with_devices
from ran import disturbed, measured, steps_of
from strategies import graph_of, ms_mesh

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.costs.program import program_costs
from loadmaster.judge.problem import Problem
from loadmaster.running.measured.document import measured_of_document
from loadmaster.running.measured.measured import Measured, Steps
from loadmaster.running.measured.summary import summary_document

GRAPH = graph_of({"a": 1, "b": 2, "c": 3}, [("a", "b", 4), ("a", "c", 4)])


@pytest.fixture(scope="module")
def plan() -> lm.Plan:
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    return lm.place(graph, cluster, "round-robin")


def test_the_least_of_few_steps_and_the_tenth_percentile_of_many(plan):
    few = measured(plan, [0.3, 0.2, 0.25])
    assert (few.step, few.step_is) == (pytest.approx(0.2), "least")
    many = measured(plan, [0.1 + 0.01 * i for i in range(31)])
    assert (many.step, many.step_is) == (pytest.approx(0.13), "10th percentile")


def test_the_error_is_predicted_over_measured(plan):
    assert measured(plan, [2 * plan.makespan]).error == pytest.approx(-0.5)


def test_a_stretched_run_is_told_in_the_plans_seconds(plan):
    seen = measured(plan, [plan.makespan], stretch=50.0)
    assert seen.steps.seconds[0] == pytest.approx(50 * plan.makespan)
    assert seen.error == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("seconds", np.array([1.0, 1.0, 1.0]), "start has shape"),
        ("delay", np.array([0.0, np.nan]), "delay of step 1"),
        ("start", np.zeros((2, 3), dtype=np.int64), "wants seconds of 2 steps, as float64"),
        ("finish", np.zeros((2, 1)), "shape"),
    ],
)
def test_steps_that_cannot_be_are_refused(plan, column, values, says):
    with pytest.raises(InputError, match=says):
        replace(steps_of(plan, [1.0, 1.0]), **{column: values})


def test_an_end_before_its_begin_is_refused(plan):
    steps = steps_of(plan, [1.0])
    start = np.full_like(steps.start, 0.5)
    finish = np.ones_like(start)
    finish[0, 5] = 0.25
    with pytest.raises(InputError, match=r"finish\[5\] of step 0 is 0.25 s, before start: 0.5 s"):
        replace(steps, start=start, finish=finish)


def test_steps_of_another_plan_are_refused(plan):
    other = lm.place(plan.graph, plan.cluster, "single")
    with pytest.raises(InputError, match="transfers, the plan has 0"):
        Measured(other, steps_of(plan, [1.0]), ("cpu:0", "cpu:1"))
    with pytest.raises(InputError, match="1 device measured"):
        Measured(plan, steps_of(plan, [1.0]), ("cpu:0",))


# -- the step that stands for all ----------------------------------------------------------------


def test_the_timeline_is_that_of_the_step_that_stands_for_all(plan):
    seen = measured(plan, [0.3, 0.2, 0.25], stretch=10)
    assert seen.timeline.makespan == pytest.approx(0.2)
    assert seen.timeline.finish == pytest.approx(plan.schedule.finish * 0.2 / plan.makespan)
    assert seen.timeline.transfers.bytes.tolist() == plan.schedule.transfers.bytes.tolist()
    assert seen.seen.makespan == pytest.approx(0.2)
    assert seen.seen.memory.peak.tolist() == plan.memory.peak.tolist()


def test_a_collective_begins_when_its_last_member_has_arrived():
    plan = gathered()
    steps = steps_of(plan, [plan.makespan])
    m0, m1 = (plan.graph.index(name) for name in ("m0", "m1"))
    start = steps.start.copy()
    start[0, [m0, m1]] = 1.5e-3, 1e-3
    line = Measured(plan, replace(steps, start=start), ("cpu:0", "cpu:1")).timeline
    assert line.collectives.op.tolist() == [m0]
    assert line.collectives.queued.tolist() == pytest.approx([1.5e-3])
    assert line.start[[m0, m1]].tolist() == pytest.approx([2e-3, 2e-3])


def test_a_busy_machine_is_said(plan):
    seen = measured(plan, [0.2] * 4)
    assert not seen.is_busy
    assert seen.busy == ""
    late = replace(seen, steps=replace(seen.steps, delay=np.array([0.0, 0.0, 0.02, 0.0])))
    assert late.is_busy
    assert late.delay == pytest.approx(0.025)
    assert "waited for a core for 2.5% of the time, more than 2%" in late.busy
    assert late.busy in late.summary()


# -- profiles, ratios ----------------------------------------------------------------------------


def test_a_profile_gives_costs_that_predict_the_run(plan):
    seen = disturbed(plan, 1, seed=1)
    model = lm.costs.CostModel()
    model.update(seen.profile())
    costs = model.costs(plan.graph, plan.cluster)
    again = Problem.make(plan.graph, plan.cluster, costs).verdict(plan.assignment)
    assert again.step_time == pytest.approx(seen.step, rel=1e-9)


def test_a_profile_of_parts_gives_back_the_parts():
    plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "data-parallel")
    seen = measured(plan, [plan.makespan])
    model = lm.costs.CostModel()
    model.update(seen.profile())
    costs = model.costs(plan.graph, plan.cluster)
    problem = Problem.make(plan.graph, plan.cluster, costs)
    again = program_costs(plan.program, problem.costs, plan.cluster)
    ran = plan.program.origin >= 0
    ran &= ~plan.program.graph.placeholder & ~plan.program.graph.is_member
    assert again.time[ran] == pytest.approx(plan.problem.costs.time[ran], rel=1e-6)


def test_profiles_are_of_one_device_type():
    cluster = lm.Cluster.preset("4xV100-PCIe")
    slow = lm.DeviceType("slow", launch=0.0)
    types = [*cluster.types, slow]
    devices = [*cluster.devices[:1], replace(cluster.devices[1], type="slow")]
    links = [k for k in cluster.links if {k.src, k.dst} <= {d.name for d in devices}]
    plan = lm.place(GRAPH, lm.Cluster(devices, links, types), "round-robin")
    seen = measured(plan, [plan.makespan])
    with pytest.raises(InputError, match="ops ran on V100-PCIe-32GB and slow: say of which"):
        seen.profile()
    names = {kind: seen.profile(kind).names for kind in ("V100-PCIe-32GB", "slow")}
    assert sorted(sum(names.values(), ())) == sorted(GRAPH.names)
    with pytest.raises(InputError, match="no op ran on a device of type 'H100'"):
        seen.profile("H100")


@pytest.mark.parametrize("method", ["etf", "data-parallel"])
def test_ratios_add_up_to_what_was_predicted_and_measured(method):
    plan = lm.place(lm.read("example:alexnet"), lm.Cluster.preset("4xV100-PCIe"), method)
    seen = disturbed(plan, 3, seed=2)
    rows = seen.ratios().rows
    assert [row.of for row in rows[:1]] == ["step"]
    assert rows[0].ratio == pytest.approx(1 + seen.error)
    ops = [row for row in rows if row.of == "op"]
    links = [row for row in rows if row.of == "link"]
    sent, together = plan.schedule.transfers, plan.schedule.collectives
    assert sum(row.predicted for row in ops) == pytest.approx(plan.schedule.device_busy.sum())
    assert sum(row.count for row in links) == len(sent)
    assert sum(row.predicted for row in links) == pytest.approx((sent.finish - sent.start).sum())
    assert sum(row.count for row in rows if row.of == "collective") == len(together)
    assert all(0.5 < row.predicted / row.measured < 2.0 for row in ops)


def test_a_ratio_of_what_took_no_time_is_none(plan):
    steps = steps_of(plan, [1.0])
    none = {name: np.zeros_like(steps.start) for name in ("start", "finish")}
    none |= {name: np.zeros_like(steps.sent_start) for name in ("sent_start", "sent_finish")}
    still = replace(steps, **none)
    seen = Measured(plan, still, ("cpu:0", "cpu:1"))
    assert {row.ratio for row in seen.ratios().rows[1:]} == {None}
    json.dumps(summary_document(seen), allow_nan=False)


# -- what the difference is made of --------------------------------------------------------------


@pytest.mark.parametrize("method", ["round-robin", "etf", "random", "data-parallel"])
@pytest.mark.parametrize("name", ["lenet", "alexnet", "rnnlm"])
def test_what_is_listed_adds_up_to_the_difference(name, method):
    plan = lm.place(lm.read(f"example:{name}"), lm.Cluster.preset("4xV100-PCIe"), method)
    seen = disturbed(plan, 2, seed=3)
    found = seen.causes()
    assert sum(found.parts.values()) == pytest.approx(found.difference, abs=1e-12)
    assert found.difference == pytest.approx(seen.step - plan.makespan)
    assert found.unexplained == pytest.approx(0.0, abs=1e-12)
    assert not [row for row in found.rows if row.what == "wait"]
    document = json.loads(json.dumps(found.to_document(), allow_nan=False))
    assert sum(document["parts"].values()) == pytest.approx(document["difference"], abs=1e-12)


def test_an_op_that_took_longer_a_wait_and_an_end_by_hand():
    """a (1 ms, gpu0) -> 1 ms on the link -> b (2 ms, gpu1); measured: a takes 3 ms, b begins 0.5 ms
    after its input is there, and the step ends 0.25 ms after b.
    """
    graph = graph_of({"a": 1, "b": 2}, [("a", "b", 1)])
    plan = with_devices(lm.place(graph, ms_mesh(2), "single"), np.array([0, 1]))
    assert plan.makespan == pytest.approx(4e-3)
    ms = 1e-3 * np.ones((1, 1))
    empty = np.zeros((1, 0))
    steps = Steps(
        ms * [[0, 4.5]], ms * [[3, 6.5]], 3 * ms, 4 * ms, empty, empty, 6.75 * ms[0], 0 * ms[0]
    )
    found = Measured(plan, steps, ("cpu:0", "cpu:1")).causes()
    assert {what: round(1e3 * s, 9) for what, s in found.parts.items()} == {
        "op": 2.0,
        "transfer": 0.0,
        "collective": 0.0,
        "wait": 0.5,
        "other chain": 0.0,
        "unexplained": 0.25,
    }
    assert [(row.what, row.name, row.place) for row in found.rows[:2]] == [
        ("op", "a", "gpu0"),
        ("wait", "b", "gpu1"),
    ]
    assert "measured 6.75 ms, predicted 4 ms: 2.75 ms longer" in str(found)


def test_another_chain_is_said():
    """a (1 ms) and b (3 ms) on two devices; measured, a takes 4 ms."""
    plan = with_devices(
        lm.place(graph_of({"a": 1, "b": 3}), ms_mesh(2), "single"), np.array([0, 1])
    )
    empty, ms = np.zeros((1, 0)), 1e-3
    steps = Steps(
        np.zeros((1, 2)), ms * np.array([[4.0, 3.0]]), empty, empty, empty, empty,
        ms * np.array([4.0]), np.zeros(1),
    )  # fmt: skip
    found = Measured(plan, steps, ("cpu:0", "cpu:1")).causes()
    assert (found.joined, found.left) == (1, 1)
    assert found.other_chain == pytest.approx(-2e-3)
    assert found.parts["op"] == pytest.approx(3e-3)
    assert "another chain: 1 joined, 1 left" in str(found)


def test_an_op_is_explained_as_predicted_and_as_measured(plan):
    seen = measured(plan, [2 * plan.makespan])
    said = seen.explain("convolution")
    assert said.predicted == plan.explain("convolution")
    (when,) = said.measured
    assert when.start == pytest.approx(2 * said.predicted.start)
    assert when.finish == pytest.approx(2 * said.predicted.finish)
    assert str(said).startswith(str(said.predicted))
    assert "predicted / measured 0.500" in str(said)
    assert seen.seen.explain("convolution").alternatives == said.predicted.alternatives


def test_two_runs_stand_side_by_side(plan):
    other = lm.place(plan.graph, plan.cluster, "single")
    before, after = measured(plan, [0.2]), measured(other, [0.1])
    found = before.seen.diff(after.seen)
    assert found.makespans == pytest.approx((0.2, 0.1))
    simulated = plan.diff(other)
    assert [move.worth for move in found.moves] == [move.worth for move in simulated.moves]


# -- on disk -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["round-robin", "data-parallel"])
def test_a_run_survives_being_saved(tmp_path, method):
    plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), method)
    seen = replace(measured(plan, [0.3, 0.2], stretch=4.0), on=("cpu:0", "cpu:3"))
    seen.save(tmp_path / "measured.json.gz")
    again = Measured.load(tmp_path / "measured.json.gz")
    assert again.to_document() == seen.to_document()
    assert summary_document(again) == summary_document(seen)
    assert again.plan.to_document() == plan.to_document()


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["format"], "loadmaster-plan", 'is not a measured run: it has no "format"'),
        (["version"], 2, "has loadmaster-measured version 2"),
        (["plan", "format"], "x", "is not a plan"),
        (["steps", "start", 0, 3], -1.0, r"start of step 0 has -1.0: wants seconds >= 0"),
        (["steps", "start", 0, 3], None, "damaged"),
        (["steps", "start"], [], "start has shape"),
        (["steps", "sent_start"], [[0.0], [0.0]], "sent_start has shape"),
        (["steps", "seconds"], [], "no step was measured"),
        (["steps", "peaks"], [1, -1], "peaks are no list of bytes"),
        (["steps", "peaks"], [1], "peaks has shape"),
        (["steps"], 3, "damaged measured run: TypeError"),
        (["on"], ["cpu:0"], "1 device measured: the plan's cluster has 2"),
        (["on"], "cpu", "on is no list of texts"),
        (["stretch"], 0, "stretch is 0.0: wants a number above 0"),
        (["stretch"], "x", "stretch is 'x'"),
    ],
)
def test_a_damaged_run_is_refused(plan, path, value, says):
    document = json.loads(json.dumps(measured(plan, [0.3, 0.2]).to_document()))
    at = document
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(InputError, match=says):
        measured_of_document(document, "measured.json")


# -- when an op is taken up ----------------------------------------------------------------------


def test_what_a_device_does_between_two_ops_belongs_to_the_second():
    """a, b, c and d on gpu0, e on gpu1. Between a and b the device looks around for 0.2 ms. What a
    made is sent from 1.2 to 1.5 ms. c waits for what e sends, until 3.25 ms; d comes right after c,
    0.25 ms late.
    """
    graph = graph_of(
        {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1},
        [("a", "e", 1), ("e", "c", 1), ("c", "d", 1)],
    )
    plan = lm.place(graph, ms_mesh(2), "single")
    plan = with_devices(plan, np.array([0, 0, 0, 0, 1]))
    sent = plan.schedule.transfers
    assert [graph.names[op] for op in sent.op.tolist()] == ["a", "e"]
    ms, empty = 1e-3, np.zeros((1, 0))
    steps = Steps(
        ms * np.array([[0.1, 1.7, 3.5, 4.75, 2.0]]),
        ms * np.array([[1.2, 2.5, 4.5, 5.0, 3.0]]),
        ms * np.array([[1.2, 3.0]]),
        ms * np.array([[1.5, 3.25]]),
        empty,
        empty,
        ms * np.array([5.0]),
        np.zeros(1),
    )
    seen = Measured(plan, steps, ("cpu:0", "cpu:1"))
    assert seen.timeline.start / ms == pytest.approx([0.1, 1.5, 3.5, 4.5, 2.0])
    assert seen.op_seconds[0] / ms == pytest.approx([1.1, 1.0, 1.0, 0.5, 1.0])
    assert seen.profile().seconds[:, 0] / ms == pytest.approx([1.1, 1.0, 1.0, 0.5, 1.0])
    waits = {
        (row.name, round(row.seconds / ms, 6)) for row in seen.causes().rows if row.what == "wait"
    }
    assert waits == {("a", 0.1), ("c", 0.25), ("e", 0.5)}


@pytest.mark.parametrize("method", ["round-robin", "etf", "data-parallel"])
@pytest.mark.parametrize("name", ["lenet", "alexnet", "rnnlm"])
def test_in_a_simulation_every_op_is_taken_up_as_it_starts(name, method):
    plan = lm.place(lm.read(f"example:{name}"), lm.Cluster.preset("4xV100-PCIe"), method)
    seen = disturbed(plan, 2, seed=7)
    took = seen.steps.finish - seen.steps.start
    assert seen.op_seconds == pytest.approx(took, abs=1e-15)


COPYING = lm.DeviceType("x", {"f32": 1e13}, memory_bandwidth=1e12, send_cost=lm.SendCost(5e-6, 1e9))


@pytest.mark.parametrize(
    "cluster",
    [
        lm.Cluster.mesh(2, memory="8GiB", bandwidth=5e9, latency=1e-5, type=COPYING),
        lm.Cluster.preset("2xV100-NVLink").with_dispatch(lm.Dispatch(5e-6)),
    ],
)
def test_copies_and_launches_of_the_prediction_are_accounted_for(cluster):
    """What the judge counts for the runtime is a part of what is predicted."""
    plan = lm.place(lm.read("example:lenet"), cluster, "round-robin")
    assert {link.doing for link in plan.schedule.blame} - {"run", "transfer"}
    for seen in (measured(plan, [1.5 * plan.makespan]), disturbed(plan, 2, seed=4)):
        found = seen.causes()
        assert sum(found.parts.values()) == pytest.approx(found.difference, abs=1e-12)
        assert "another chain" in str(found)
    links = [row for row in seen.ratios().rows if row.of == "link"]
    sent = plan.schedule.transfers
    assert sum(row.predicted for row in links) == pytest.approx(
        (sent.finish - sent.copied).sum() - (sent.start - sent.queued).sum()
    )
