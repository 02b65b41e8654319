"""What plans say of collectives: the summary, explanations, differences, footprints."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from pictured import gathered, with_devices

import loadmaster as lm
from loadmaster.judge.bounds import bound
from loadmaster.judge.problem import Problem
from loadmaster.milp.instance import instance_of
from loadmaster.plans.comparison import comparison_table
from loadmaster.plans.footprint import footprints
from loadmaster.plans.summary import document, moved


@pytest.fixture(scope="module")
def plans():
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    place = partial(lm.place, graph, cluster, costs="roofline")
    return {
        "whole": place("single"),
        "replicas": place("data-parallel"),
        "sharded": place("data-parallel", aggregation="reduce-scatter"),
    }


def test_the_summary_counts_collectives(plans):
    assert moved(gathered().schedule) == (
        "11.7 KiB in 1 transfer and 1 collective (3.91 KiB of tensors, under way for 3 ms, "
        "38% of the step)"
    )
    assert moved(plans["whole"].schedule) == "0 B in 0 transfers"
    for plan in plans.values():
        assert f"moved        {moved(plan.schedule)}" in plan.summary().splitlines()
    together = plans["sharded"].schedule.collectives
    assert f"{len(together)} collectives" in plans["sharded"].summary()


def test_plain_data_count_collectives(plans):
    found = json.loads(json.dumps(document(gathered())))
    seconds = pytest.approx(0.003)
    assert found["collectives"] == {"count": 1, "bytes": 4000, "seconds": seconds}
    assert (found["bytes_moved"], found["transfers"]) == (12_000, 1)
    assert document(plans["whole"])["collectives"] == {"count": 0, "bytes": 0, "seconds": 0.0}


def test_what_methods_move_is_compared_alike(plans):
    plan = plans["replicas"]
    comparison = lm.compare(plan.graph, plan.cluster, ["single", "data-parallel"])
    [row] = [r for r in comparison_table(comparison).splitlines() if r.startswith("data-parallel")]
    # One all-reduce of all gradients, on two devices.
    assert plan.schedule.bytes_moved == 2 * int(plan.schedule.collectives.bytes.sum())
    assert "3.29 MiB" in row


def test_what_waits_for_a_collective_says_so():
    plan = gathered()
    when = "all_reduce of 3.91 KiB on 2 devices (ring), from 2 ms to 5 ms"
    assert plan.explain("b0").waited == when
    assert plan.explain("a0").feeds == (when,)
    assert plan.explain("a1").feeds == (f"{when}, which waited for it last",)
    assert f"it feeds {when}" in str(plan.explain("a0"))
    assert plan.explain("a0").to_document()["feeds"] == (when,)
    assert "feeds" not in plan.explain("b0").to_document()
    needed = "the last member of all_reduce of 3.91 KiB on 2 devices (ring), which needed"
    assert plan.explain("m0").waited == f"{needed} its input from 'a1' on gpu1"
    assert plan.explain("m1").waited == f"{needed} its input from 'a1' on the same device"
    # Alone on a device, the members send nothing; a0's tensor goes there and back.
    [other] = plan.explain("m0").alternatives
    assert other.bytes_moved == plan.schedule.bytes_moved


def test_a_collective_that_waits_for_a_channel_says_for_what():
    names = ["x", "y", "a0", "a1", "m0", "m1", "n0", "n1"]
    members = [*[""] * 4, *["all_reduce/g"] * 2, *["all_reduce/h"] * 2]
    ops = {
        "name": names,
        "output_bytes": [4000, 0, 4000, 4000, 4000, 4000, 4000, 4000],
        "collective": members,
        "time": {"*": [1e-3, 1e-3, 1e-3, 2e-3, 0, 0, 0, 0]},
    }
    edges = {"src": [0, 2, 3, 2, 3], "dst": [1, 4, 5, 6, 7], "bytes": [4000] * 5}
    graph = lm.OpGraph(ops, edges)
    cluster = lm.Cluster.mesh(2, memory=100_000, bandwidth=4e6, latency=1e-3)
    devices = np.array([0, 1] * 4, dtype=np.int32)
    plan = with_devices(lm.place(graph, cluster, "single"), devices)
    said = {name: plan.explain(name).waited for name in ("m0", "n0")}
    first = "a channel, busy with what 'x' made, on its way"
    assert sum(first in waited for waited in said.values()) == 1
    assert sum("a channel, busy with all_reduce of" in waited for waited in said.values()) == 1


def test_parts_say_which_collective_they_feed_and_wait_for(plans):
    plan = plans["replicas"]
    label = plan.schedule.collectives.label(0)
    maker = plan.explain("convolution_backward_1")
    assert len(maker.parts) == 2
    assert all(part.feeds[0].startswith(label) for part in maker.parts)
    assert sum("waited for it last" in part.feeds[0] for part in maker.parts) == 1
    assert all(part.waited.startswith(label) for part in plan.explain("add_").parts)


@pytest.mark.parametrize("name", ["replicas", "sharded"])
def test_replicas_beside_whole_ops(plans, name):
    there, back = plans["whole"].diff(plans[name]), plans[name].diff(plans["whole"])
    sent = plans[name].schedule.bytes_moved
    assert sent > 0
    assert there.bytes_moved == (0, sent) == back.bytes_moved[::-1]
    assert "moved        0 B -> " in str(there)
    assert there.moved_ops == back.moved_ops == there.ops


@pytest.mark.parametrize("name", ["replicas", "sharded"])
def test_gradients_in_a_collective_are_no_activations(plans, name):
    plan = plans[name]
    [whole, _], [first, second] = footprints(plans["whole"]), footprints(plan)
    assert [first.used, second.used] == plan.memory.peak.tolist()
    # Activations go by the half of the batch that a replica has; the gradients are there whole.
    graph = plan.graph
    inputs = int(graph.output_bytes[np.array(graph.kinds) == "input"].sum())
    assert first.activations <= whole.activations / 2 + inputs
    assert first.optimizer > 0


@pytest.mark.parametrize("name", ["replicas", "sharded"])
def test_no_bound_of_replicas_is_above_their_step(plans, name):
    plan = plans[name]
    assert bound(plan.problem).seconds <= plan.makespan
    devices, priority = plan.assignment.devices, plan.assignment.priority
    # On one device the step is the work of all replicas, to the tick.
    alone = Problem.make(plan.program, plan.cluster.without_device("gpu1"), plan.problem.costs)
    step = alone.simulate(np.zeros_like(devices), priority).makespan
    assert bound(alone).seconds <= step
    busiest = plan.problem.busiest(devices)
    assert busiest == pytest.approx(plan.schedule.device_busy.max())
    instance = instance_of(plan.problem, np.zeros(len(devices), dtype=np.uint64), 0.0)
    work = instance.time[np.arange(len(devices)), devices] * instance.tick
    assert np.bincount(devices, work).max() <= busiest * (1 + 1e-9)


def test_checks_count_what_runs(plans):
    checked = lm.check(plans["replicas"], max_step="1s", forbid="gpu1")
    assert [finding.ok for finding in checked.verdicts] == [True, True, False]
