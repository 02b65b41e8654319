"""Emulated devices: what runs where, in which order, and what is sent; never how long it took."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from placed import with_devices
from strategies import graph_of, ms_mesh

import loadmaster as lm
from loadmaster.judge.problem import ranks
from loadmaster.running.devices import emulated
from loadmaster.running.devices.compiled import compile_plan

FOUR = "4xV100-PCIe"


def in_fixed_order(plan):
    """The plan with the order of its simulation, which devices then keep to."""
    schedule = plan.problem.simulate(plan.assignment.devices, plan.assignment.priority)
    order = np.lexsort((plan.assignment.priority, schedule.finish, schedule.start))
    assignment = replace(plan.assignment, priority=ranks(order.astype(np.int32)), policy="fixed")
    return replace(plan, assignment=assignment, verdict=plan.problem.verdict(assignment))


def orders(plan, start, finish):
    """The ops of each device that take time, as they ran."""
    runs = plan.problem.reduced.op_of
    timed = runs[(plan.schedule.finish > plan.schedule.start)[runs]]
    timed = timed[~plan.program.graph.is_member[timed]]
    order = timed[np.lexsort((finish[timed], start[timed]))]
    return [order[plan.running_devices[order] == d].tolist() for d in range(plan.cluster.n_devices)]


def ran_as_planned(plan, seen):
    schedule, line = plan.schedule, seen.timeline
    for start, finish in zip(seen.steps.start, seen.steps.finish, strict=True):
        assert orders(plan, start, finish) == orders(plan, schedule.start, schedule.finish)
    assert line.device.tolist() == schedule.devices.tolist()
    for column in ("tensor", "op", "src", "dst", "bytes"):
        assert getattr(line.transfers, column).tolist() == (
            getattr(schedule.transfers, column).tolist()
        )
    assert line.collectives.members == schedule.collectives.members


@pytest.mark.parametrize("method", ["heft", "random", "m-topo"])
def test_order_and_transfers_are_those_of_the_plan(method):
    plan = in_fixed_order(lm.place(lm.read("example:lenet"), lm.Cluster.preset(FOUR), method))
    ran_as_planned(plan, lm.emulate(plan, 2, seconds=0.02))


@pytest.mark.parametrize("name", ["inception-v3", "rnnlm"])
def test_priorities_alone_give_the_order_on_one_device(name):
    plan = lm.place(
        lm.read(f"example:{name}"), lm.Cluster.preset(FOUR), "single", on_oom="best_effort"
    )
    assert plan.policy == "priority"
    ran_as_planned(plan, lm.emulate(plan, 1, seconds=0.05))


def test_replicas_meet_in_their_collectives():
    plan = lm.place(lm.read("example:alexnet"), lm.Cluster.preset(FOUR), "data-parallel")
    seen = lm.emulate(plan, 2, seconds=0.05)
    together, steps = plan.schedule.collectives, seen.steps
    assert len(together) > 1
    for i, members in enumerate(together.members):
        ops = list(members)
        assert (steps.start[:, ops].max(axis=1) <= steps.gathered_start[:, i]).all()
        assert (steps.finish[:, ops] == steps.gathered_finish[:, [i]]).all()
    ran_as_planned(in_fixed_order(plan), lm.emulate(in_fixed_order(plan), 1, seconds=0.05))


def test_what_waits_starts_after_what_it_waits_for():
    """On a machine of any load: by the clocks that the devices note."""
    plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset(FOUR), "random")
    steps, compiled = lm.emulate(plan, 3, seconds=0.02).steps, compile_plan(plan)
    assert (steps.finish[:, compiled.order[0]] <= steps.start[:, compiled.order[1]]).all()
    arrivals, tasks = compiled.waits
    assert (steps.sent_finish[:, arrivals] <= steps.start[:, tasks]).all()
    made = compiled.after >= 0
    assert (steps.finish[:, compiled.after[made]] <= steps.sent_start[:, made]).all()


def test_a_channel_carries_one_transfer_at_a_time():
    graph = graph_of({"a": 1, "b": 1, "c": 1}, [("a", "b", 8, 0), ("a", "c", 8, 1)])
    plan = with_devices(graph, [0, 1, 1], ms_mesh(2))
    steps = lm.emulate(plan, 2, seconds=0.003).steps
    first, last = steps.sent_start.argmin(axis=1), steps.sent_start.argmax(axis=1)
    rows = np.arange(2)
    assert (steps.sent_finish[rows, first] <= steps.sent_start[rows, last]).all()


def test_the_stretch_is_said_and_taken_out_again():
    plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset(FOUR), "single")
    seen = lm.emulate(plan, 1, seconds=0.05)
    assert seen.stretch == pytest.approx(0.05 / plan.makespan)
    assert seen.step == pytest.approx(seen.steps.seconds[0] / seen.stretch)
    assert seen.on == ("emulated",) * 4
    assert seen.step >= plan.makespan


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"steps": 0}, "steps is 0"), ({"seconds": 0}, "seconds is 0"), ({"seconds": "1"}, "seconds")],
)
def test_what_cannot_be_emulated_is_refused(arguments, message):
    plan = with_devices(graph_of({"a": 1}), [0], ms_mesh(2))
    with pytest.raises(lm.InputError, match=message):
        lm.emulate(plan, **arguments)


def test_costs_that_emulated_devices_do_not_have_are_refused():
    cluster = ms_mesh(2).with_dispatch(lm.Dispatch(1e-3))
    plan = lm.place(graph_of({"a": 1}), cluster, "single")
    with pytest.raises(lm.InputError, match="what launches cost a host"):
        lm.emulate(plan, seconds=0.01)


def test_a_device_that_waits_in_vain_ends_the_run_and_says_what_for(monkeypatch):
    """The sender's list is emptied, so that the transfer never comes."""
    monkeypatch.setattr(emulated, "PATIENCE", 0.2)
    none = np.empty(0, dtype=np.int32)
    monkeypatch.setattr(
        "loadmaster.running.devices.compiled.Compiled.sent_after",
        lambda self, device: (none, (none, none)),
    )
    plan = with_devices(graph_of({"a": 1, "b": 1}, [("a", "b", 8)]), [0, 1], ms_mesh(2))
    with pytest.raises(
        lm.errors.RunError, match=r"op 'b' on gpu1 waits for tensor 0 of 'a' from gpu0"
    ):
        lm.emulate(plan, seconds=0.01)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_ends_it():
    code = (
        "import loadmaster as lm\n"
        "graph = lm.OpGraph({'name': ['a'], 'time': {'*': [1.0]}}, {'src': [], 'dst': []})\n"
        "plan = lm.place(graph, lm.Cluster.mesh(2, memory='1GiB', bandwidth=1e9), 'single')\n"
        "print('placed', flush=True)\n"
        "lm.emulate(plan, seconds=600)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "placed\n"
        threading_starts = 0.5
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(threading_starts)
        child.send_signal(signal.SIGINT)
        _, words = child.communicate(timeout=20)
    finally:
        child.kill()
    assert "KeyboardInterrupt" in words


def test_memory_that_a_run_did_not_measure_is_told_as_predicted():
    plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "heft")
    seen = lm.emulate(plan, steps=1, seconds=0.02).seen
    assert seen.memory.is_predicted
    assert seen.memory.peak.tolist() == plan.memory.peak.tolist()
    found = lm.check(seen, max_peak="1KiB")
    assert not found.ok
    assert "as predicted: the run did not measure it" in str(found)


@pytest.mark.parametrize(
    ("steps", "seconds", "words"),
    [
        (10**12, 0.02, "steps is 1000000000000: wants an integer from 1 to 1000000"),
        (1, 1e9, "seconds is 1e.09: a step would take more than a year"),
        (1, 1e300, "a step would take more than a year"),
    ],
)
def test_more_than_anybody_waits_for_is_refused(steps, seconds, words):
    plan = lm.place(lm.read("example:lenet"), "2xV100-NVLink", "heft")
    with pytest.raises(lm.InputError, match=words):
        lm.emulate(plan, steps, seconds=seconds)
