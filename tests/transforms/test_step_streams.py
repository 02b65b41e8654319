"""Streams: steps of a graph one after another, as a graph."""

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.judge.problem import Problem
from loadmaster.transforms.streams import stream, waits_for_updates


def chain(seconds, **columns):
    """Ops one after another, with an input before the first and a weight for each."""
    n = len(seconds)
    names = ["x", *(f"w{i}" for i in range(n)), *(f"op{i}" for i in range(n))]
    kinds = ["input"] + ["parameter"] * n + ["matmul"] * n
    sizes = [8] + [100] * n + [16] * n
    src = [0, *range(1, n + 1), *range(n + 1, 2 * n)]
    dst = [n + 1, *range(n + 1, 2 * n + 1), *range(n + 2, 2 * n + 1)]
    ops = {"name": names, "kind": kinds, "output_bytes": sizes, **columns}
    ops["param_bytes"] = [0] + [100] * n + [0] * n
    ops["time"] = {"*": [0.0] * (n + 1) + list(seconds)}
    return lm.OpGraph(ops, {"src": src, "dst": dst, "bytes": [sizes[s] for s in src]})


def trained():
    """A weight that two ops read and a third one changes in place."""
    ops = {
        "name": ["w", "forward", "backward", "update"],
        "kind": ["parameter", "f", "b", "add_"],
        "phase": ["f", "f", "b", "o"],
        "output_bytes": [100, 4, 100, 100],
        "param_bytes": [100, 0, 0, 0],
        "alias_of": [-1, -1, -1, 0],
        "time": {"*": [0.0, 1.0, 2.0, 0.5]},
    }
    edges = {
        "src": [0, 0, 1, 2, 0],
        "dst": [1, 2, 2, 3, 3],
        "bytes": [100, 100, 4, 100, 100],
    }
    return lm.OpGraph(ops, edges)


def test_weights_are_there_once_and_inputs_arrive_with_each_step():
    graph = chain([1.0, 2.0])
    made = stream(graph, 3, 3, graph.n_ops - 1)
    run = made.program.graph
    assert run.n_ops == 2 + 3 * 3
    assert int(run.resident.sum()) == 200
    assert [name for name in run.names if name.startswith("w")] == ["w0@s0", "w1@s0"]
    inputs = [run.names.index(f"x@s{step}") for step in range(3)]
    assert not run.placeholder[inputs].any()
    assert made.step[inputs].tolist() == [0, 1, 2]
    assert np.bincount(made.program.serves).tolist() == [3, 1, 1, 3, 3]


def test_a_step_begins_when_the_one_a_window_before_it_has_ended():
    graph, cluster = chain([1.0, 1.0]), lm.Cluster.preset("2xV100-NVLink")
    last = graph.n_ops - 1
    for window in (1, 2, 3):
        made = stream(graph, 5, window, last)
        problem = Problem.make(
            made.program, cluster, lm.costs.estimate(made.program.graph, cluster)
        )
        serves = made.program.serves[problem.reduced.op_of]
        step = made.step[problem.reduced.op_of]
        devices = (serves == last).astype(np.int32)
        seen = problem.simulate(devices, (step * 10 + serves).astype(np.int32))
        begun = np.array([seen.start[(step == s)].min() for s in range(5)])
        ended = np.array([seen.finish[(step == s)].max() for s in range(5)])
        assert (begun[window:] >= ended[:-window] - 1e-12).all()


def test_a_step_reads_what_the_one_before_it_has_written():
    graph, cluster = trained(), lm.Cluster.preset("2xV100-NVLink")
    assert waits_for_updates(graph)
    made = stream(graph, 3, 3, 3)
    run = made.program.graph
    problem = Problem.make(made.program, cluster, lm.costs.estimate(run, cluster))
    serves, step = made.program.serves[problem.reduced.op_of], made.step[problem.reduced.op_of]
    # The backward pass is on the other device: it pulls the weight anew in each step.
    devices = (serves == 2).astype(np.int32)
    seen = problem.simulate(devices, step.astype(np.int32))
    for s in (1, 2):
        written = seen.finish[(step == s - 1) & (serves == 3)].max()
        assert (seen.start[step == s] >= written - 1e-12).all()
    sent = seen.transfers()
    assert np.count_nonzero((sent["bytes"] == 100) & (sent["dst"] == 1)) == 3
    assert seen.peak[0] < 3 * 100 + 3 * 104


def test_an_optimizer_that_writes_nothing_in_place_is_waited_for():
    graph = trained()
    elsewhere = graph.with_columns({"alias_of": [-1] * 4})
    assert waits_for_updates(elsewhere)
    run = stream(elsewhere, 2, 2, 3).program.graph
    waits = {
        (run.names[a], run.names[b])
        for a, b, tensor in zip(run.src, run.dst, run.tensor, strict=True)
        if tensor < 0
    }
    assert {("update@s0", "forward@s1"), ("update@s0", "backward@s1")} <= waits


def test_inference_waits_for_nothing():
    assert not waits_for_updates(chain([1.0]))


def test_collectives_are_copied_with_their_step():
    graph = lm.transforms.data_parallel(lm.read("example:lenet"), 2)
    run = stream(graph, 3, 2, graph.n_ops - 1).program.graph
    groups = {label for label in run.collectives if label}
    assert len(groups) == 3 * len({label for label in graph.collectives if label})
    assert run.is_member.sum() == 3 * graph.is_member.sum()


@pytest.mark.parametrize(("steps", "window"), [(0, 1), (1, 0)])
def test_no_steps_and_no_window_are_refused(steps, window):
    with pytest.raises(InputError, match=r"steps|window"):
        stream(chain([1.0]), steps, window, 0)
