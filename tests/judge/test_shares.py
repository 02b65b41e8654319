"""Shares of collectives: what members keep their devices busy with before they have arrived."""

from __future__ import annotations

from dataclasses import replace

import pytest
from placed import with_devices
from strategies import MS, graph_of, in_ms, ms_mesh

import loadmaster as lm
from loadmaster.judge.loads import Loads
from loadmaster.plans import summary
from loadmaster.plans.explain import explain
from loadmaster.writers.pictures.trace import trace_document

#: ``a`` and ``b``, of 2 and 5 ms, make 4 bytes each, which are summed; ``c`` and ``d`` read the
#: sum; ``e``, of 9 ms, waits for nothing.
SUMMED = graph_of(
    {"a": 2, "b": 5, "ra": 0, "rb": 0, "c": 1, "d": 1, "e": 9},
    [("a", "ra", 4), ("b", "rb", 4), ("ra", "c", 4), ("rb", "d", 4)],
    collective=["", "", "all_reduce/g", "all_reduce/g", "", "", ""],
)

#: Of 10 ms that a sum takes, devices are busy for 6.
TIMES = lm.CollectiveTimes("all_reduce", 2, 1, (4,), (10 * MS,), busy=(6 * MS,))
BUSY = ms_mesh(2).with_collectives([TIMES])
WHERE = [0, 1, 0, 1, 0, 1, 0]


def test_a_share_comes_before_the_next_op_and_the_collective_takes_the_rest():
    # Shares from 2 to 8 and from 5 to 11, then 4 ms of the collective; e has its device from 8 on.
    step = lm.simulate(SUMMED, BUSY, WHERE)
    assert in_ms(step.start) == [0, 0, 11, 11, 17, 15, 8]
    shares = step.timeline.shares
    assert shares.op.tolist() == [2, 3]
    assert (in_ms(shares.start), in_ms(shares.finish)) == ([2, 5], [8, 11])
    assert in_ms(step.collectives.busy) == [6]
    assert in_ms(step.copying) == [6, 6]
    assert in_ms(step.device_busy) == [12, 6]
    assert step.waited(6) == ("share", 2)
    assert [(link.doing, link.op, link.waited) for link in step.blame] == [
        ("run", 4, "device"),
        ("run", 6, "share"),
        ("share", 2, "op"),
        ("run", 0, "nothing"),
    ]


def test_without_busy_times_devices_go_on():
    free = BUSY.with_collectives([replace(TIMES, busy=())])
    step = lm.simulate(SUMMED, free, WHERE)
    assert in_ms(step.start) == [0, 0, 5, 5, 15, 15, 2]
    assert not len(step.timeline.shares)
    assert not step.copying.any()
    assert step.waited(6) == ("device", 0)


@pytest.fixture(scope="module")
def plan() -> lm.Plan:
    return with_devices(SUMMED, WHERE, BUSY)


def test_a_stream_of_steps_has_the_shares_among_its_loads(plan):
    problem, devices = plan.problem, plan.assignment.devices
    loads = Loads.of(problem, devices, problem.simulate(devices, plan.assignment.priority))
    assert in_ms(loads.device) == [18, 12]
    assert in_ms(loads.channel) == [4, 4]


def test_all_that_is_said_of_a_plan_names_shares(plan):
    assert "copies" in summary.summary(plan)
    says = "the device, busy with its share of all_reduce of 4 B on 2 devices"
    assert says in explain(plan, "e").waited
    drawn = [e for e in trace_document(plan)["traceEvents"] if e.get("cat") == "share"]
    assert [(e["args"]["member"], e["ts"], e["dur"]) for e in drawn] == [
        ("ra", 2000, 6000),
        ("rb", 5000, 6000),
    ]
    assert all(e["name"].startswith("all_reduce of 4 B") for e in drawn)


def test_a_plan_is_saved_with_its_busy_times_and_simulated_again(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    again = lm.Plan.load(tmp_path / "plan.json")
    assert again.cluster.collectives == plan.cluster.collectives
    assert again.schedule.start.tolist() == plan.schedule.start.tolist()


def test_emulated_devices_know_of_no_shares(plan):
    with pytest.raises(lm.InputError, match=r"what an all_reduce costs devices: .*busy"):
        lm.emulate(plan, 1, seconds=0.01)
