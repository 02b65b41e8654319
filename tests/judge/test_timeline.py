"""Timelines: what was measured is checked, and simulations are made of it."""

from __future__ import annotations

import numpy as np
import pytest
from pictured import gathered
from strategies import graph_of, ms_mesh

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.judge.simulation import Memory
from loadmaster.judge.timeline import Collectives, Timeline, Transfers

GRAPH = graph_of(
    {"w": 0, "a": 1, "v": 0, "b": 2, "c": 3},
    [("w", "a", 8), ("a", "v", 4), ("v", "b", 4), ("a", "c", 4)],
    kind=["parameter", "", "", "", ""],
    view=[0, 0, 1, 0, 0],
    param_bytes=[8, 0, 0, 0, 0],
)


def sent(*rows: tuple[int, int, int, int, int, float, float, float]) -> Transfers:
    kinds = (np.int32, np.int32, np.int32, np.int32, np.uint64, float, float, float)
    columns = zip(*rows, strict=True)
    return Transfers(*(np.array(c, dtype=kind) for c, kind in zip(columns, kinds, strict=True)))


def test_a_simulated_timeline_is_what_the_simulation_says():
    plan = lm.place(GRAPH, ms_mesh(2), "round-robin")
    seen, line = plan.schedule, plan.schedule.timeline
    assert line.makespan == seen.makespan == plan.makespan
    assert line.start is seen.start
    assert line.device.tolist() == plan.devices.tolist()
    assert len(line.transfers) == len(seen.transfers)
    assert not seen.is_measured


def test_figures_of_a_measured_step_by_hand():
    plan = lm.place(GRAPH, ms_mesh(2), "single")
    line = Timeline.measured(
        GRAPH,
        [0, 0, 0, 0, 1],
        [0.0, 0.0, 1.5, 1.5, 2.0],
        [0.0, 1.5, 1.5, 4.0, 5.0],
        sent((1, 1, 0, 1, 4, 1.5, 1.5, 2.0)),
    )
    seen = lm.Simulation(plan.problem, line)
    assert seen.makespan == 5.0
    assert seen.device_busy.tolist() == [4.0, 3.0]
    assert seen.utilisation.tolist() == [0.8, 0.6]
    assert seen.channel_busy.sum() == 0.5 * len(plan.cluster.route(0, 1).channels)
    assert seen.bytes_moved == 4
    chain = [(b.op, b.transfer, b.start, b.finish, b.waited) for b in seen.blame]
    # c began as its copy of a's output was there, half a second after a had ended.
    assert chain == [
        (4, None, 2.0, 5.0, "transfer"),
        (None, 0, 1.5, 2.0, "op"),
        (1, None, 0.0, 1.5, "nothing"),
    ]
    assert [seen.waited(op) for op in range(3)] == [("nothing", -1), ("op", 0), ("transfer", 0)]
    assert seen.is_measured
    assert seen.fits
    assert seen.priority.tolist() == [0, 1, 2, 3, 4]


def test_measured_memory_is_kept():
    plan = lm.place(GRAPH, ms_mesh(2), "single")
    memory = plan.memory
    line = plan.schedule.timeline
    assert lm.Simulation(plan.problem, line, memory).memory is memory
    absent = lm.Simulation(plan.problem, line).memory
    assert isinstance(absent, Memory)
    assert absent.peak.tolist() == [0, 0]


def test_a_program_is_measured_by_the_ops_that_ran():
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    plan = lm.place(graph, cluster, "data-parallel")
    line = plan.schedule.timeline
    twice = Timeline.measured(plan.program, line.device, 2 * line.start, 2 * line.finish)
    seen = plan.measured(lm.Simulation(plan.problem, twice, plan.memory))
    assert seen.makespan == 2 * plan.makespan
    assert seen.memory is plan.memory
    assert plan.diff(seen).speedup == pytest.approx(0.5)
    with pytest.raises(InputError, match="wants 104 numbers"):
        Timeline.measured(graph, line.device, line.start, line.finish)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([0] * 4, [0] * 5, [1] * 5), r"device has shape \(4,\)"),
        (([0.5] * 5, [0] * 5, [1] * 5), r"device has shape \(5,\) \(float64\)"),
        (([0] * 5, ["a"] * 5, [1] * 5), "start has shape"),
        (([0] * 5, [0] * 5, [[1]] * 5), "finish has shape"),
        (([0, 0, 0, -1, 0], [0] * 5, [1] * 5), "op 'b' ran on device -1"),
        (([0] * 5, [0, 0, 0, 0, 2], [1] * 5), "op 'c' ran on device 0 from 2 to 1 s"),
        (([0] * 5, [0, -1, 0, 0, 0], [1] * 5), "op 'a' ran"),
        (([0] * 5, [0] * 5, [1, 1, np.nan, 1, 1]), "op 'v' ran"),
        (([0] * 5, [0] * 5, [1, 1, 1, np.inf, 1]), "op 'b' ran"),
    ],
)
def test_bad_measurements_are_refused(columns, message):
    with pytest.raises(InputError, match=message):
        Timeline.measured(GRAPH, *columns)


def test_a_device_that_the_cluster_does_not_have_is_refused():
    plan = lm.place(GRAPH, ms_mesh(2), "single")
    line = Timeline.measured(GRAPH, [0, 0, 0, 0, 2], [0] * 5, [1] * 5)
    with pytest.raises(InputError, match="on device 2, but the cluster has 2 devices"):
        lm.Simulation(plan.problem, line)


def test_collectives_of_a_step_by_hand():
    seen = gathered().schedule
    together = seen.collectives
    assert (len(together), together.kind, together.members) == (1, ("all_reduce",), ((4, 5),))
    assert (together.op.tolist(), together.devices) == ([5], ((0, 1),))
    assert together.channels == ((0, 1),)
    times = together.queued, together.start, together.finish
    assert [t.tolist() for t in times] == [[0.002], [0.002], [0.005]]
    assert together.bytes.tolist() == [4000]
    assert together.label(0) == "all_reduce of 3.91 KiB on 2 devices (ring)"
    assert together.of_op(8).tolist() == [-1, -1, -1, -1, 0, 0, -1, -1]
    assert together.seconds == pytest.approx(0.003)
    # 2 (k - 1) n for the sum of gradients, and x.
    assert seen.bytes_moved == 2 * 4000 + 4000
    # Members do not compute; the transfer's link waits for the collective.
    assert seen.device_busy.tolist() == pytest.approx([0.004, 0.005])
    assert [(b.op, b.waited) for b in seen.blame] == [
        (1, "transfer"),
        (None, "collective"),
        (5, "op"),
        (3, "nothing"),
    ]


@pytest.mark.parametrize("method", ["round-robin", "etf", "random", "data-parallel"])
@pytest.mark.parametrize("name", ["lenet", "alexnet", "rnnlm"])
def test_causes_found_in_times_alone_are_those_of_the_simulator(name, method):
    """From the times of a simulation, without what the simulator notes."""
    plan = lm.place(lm.read(f"example:{name}"), lm.Cluster.preset("4xV100-PCIe"), method)
    seen = lm.Simulation(plan.problem, plan.schedule.timeline)
    chain = seen.blame
    assert seen.is_measured
    assert chain[0].finish == plan.makespan
    assert chain[-1].start == 0.0
    assert [link.start for link in chain[:-1]] == [link.finish for link in chain[1:]]
    ends = {"op": seen.finish[plan.problem.reduced.op_of], "transfer": seen.transfers.finish}
    ends |= {"device": ends["op"], "collective": ends["op"], "channel": ends["transfer"]}
    for op, start in enumerate(seen.start[plan.problem.reduced.op_of].tolist()):
        word, cause = seen.waited(op)
        assert start == (0.0 if word == "nothing" else ends[word][cause]), op


def test_collectives_of_a_measured_step_may_be_given():
    plan = gathered()
    line = plan.schedule.timeline
    columns = line.device, line.start, line.finish, line.transfers
    without = lm.Simulation(plan.problem, Timeline.measured(plan.graph, *columns))
    assert len(without.collectives) == len(Collectives.none()) == 0
    assert without.device_busy.tolist() == pytest.approx(plan.schedule.device_busy)
    given = lm.Simulation(plan.problem, Timeline.measured(plan.graph, *columns, line.collectives))
    assert given.collectives is line.collectives
    assert given.bytes_moved == plan.schedule.bytes_moved == without.bytes_moved + 8000
    assert given.channel_busy.tolist() == pytest.approx(plan.schedule.channel_busy)


def _collectives(kind, size, devices, start=(0.0,), finish=(1.0,), runs=1):
    n = len(start)
    members = (tuple(range(devices)),) * n
    index, seconds = np.zeros(n, np.int32), np.array(start)
    sizes = np.full(n, size, np.uint64)
    words = (kind,) * n, ("ring",) * n
    return Collectives(
        index,
        *words,
        sizes,
        np.full(n, runs, np.uint64),
        seconds,
        seconds,
        np.array(finish),
        0.0 * seconds,
        ((0,),) * n,
        members,
        members,
    )


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("all_reduce", 2 * 3 * 80),
        ("reduce_scatter", 3 * 80),
        ("all_gather", 3 * 80),
        ("broadcast", 3 * 80),
        ("all_to_all", 60),
    ],
)
def test_bytes_that_devices_send_in_a_collective(kind, sent):
    assert _collectives(kind, 80, 4).bytes_sent == sent
    assert _collectives(kind, 80, 4, runs=7).bytes_sent == 7 * sent
    assert _collectives(kind, 80, 1).bytes_sent == 0


def test_seconds_under_way_count_once():
    start, finish = (4.0, 0.0, 1.0, 2.5), (5.0, 3.0, 2.0, 3.5)
    assert _collectives("all_reduce", 1, 2, start, finish).seconds == 4.5


def test_what_is_said_of_an_empty_group_is_nothing():
    assert Collectives.none().seconds == Collectives.none().bytes_sent == 0


@pytest.mark.parametrize("late", [0.0, 0.5])
def test_a_device_that_sends_by_copying_is_busy_with_that(late):
    """a is copied out from 1.5 to 2 s; then b runs. With a transfer that b overlaps, it is clear
    that sending keeps nobody from running.
    """
    plan = lm.place(GRAPH, ms_mesh(2), "single")
    columns = [0, 0, 0, 0, 1], [0.0, 0.0, 1.5, 2.0 - late, 2.0], [0.0, 1.5, 1.5, 4.0, 5.0]
    line = Timeline.measured(GRAPH, *columns, sent((1, 1, 0, 1, 4, 1.5, 1.5, 2.0)))
    seen = lm.Simulation(plan.problem, line)
    assert seen.waited(1) == (("op", 0) if late else ("copy", 0))
