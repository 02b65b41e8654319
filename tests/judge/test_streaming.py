"""Streams of a placed program: period, latency, samples in flight, and what limits them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import clusters, op_graphs, placements

import loadmaster as lm
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.loads import Loads
from loadmaster.judge.objective import THROUGHPUT
from loadmaster.judge.problem import Problem
from loadmaster.judge.streaming import streamed
from loadmaster.judge.verdict import Resource


def problem_of(graph, cluster):
    made = Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))
    return replace(made, objective=THROUGHPUT)


def cluster_of(n, memory=2**30, bandwidth=1e15):
    return lm.Cluster.mesh(n, memory=memory, bandwidth=bandwidth)


def chain(seconds, size=16):
    n = len(seconds)
    ops = {
        "name": [f"op{i}" for i in range(n)],
        "output_bytes": [size] * n,
        "time": {"*": list(seconds)},
    }
    return lm.OpGraph(ops, {"src": range(n - 1), "dst": range(1, n), "bytes": [size] * (n - 1)})


def stages(n):
    return Assignment(np.arange(n, dtype=np.int32), np.arange(n, dtype=np.int32))


def test_uniform_stages_finish_a_sample_per_stage_time_with_one_in_flight_each():
    for p in (1, 2, 4):
        verdict = streamed(problem_of(chain([1.0] * p), cluster_of(p)), stages(p))
        steady = verdict.steady
        assert steady.in_flight == p
        assert steady.period == verdict.period == pytest.approx(1.0)
        assert steady.latency == pytest.approx(p)
        assert steady.limit.resource is Resource.DEVICE


def test_the_slowest_stage_sets_the_period_and_is_named():
    verdict = streamed(problem_of(chain([1.0, 3.0, 2.0]), cluster_of(3)), stages(3))
    assert verdict.steady.period == pytest.approx(3.0)
    assert str(verdict.steady.limit) == "device gpu1"
    # 6 s of work in 3 s each: two at a time are enough.
    assert verdict.steady.in_flight == 2


def test_a_slow_channel_is_named():
    cluster = cluster_of(2, bandwidth=4.0)
    verdict = streamed(problem_of(chain([1.0, 1.0]), cluster), stages(2))
    assert verdict.steady.period == pytest.approx(4.0)
    assert str(verdict.steady.limit) == "channel gpu0->gpu1"


def test_memory_holds_fewer_samples_and_is_named():
    # Of its output, a stage holds what it makes and what the next one has not yet read.
    graph, seconds = chain([1.0, 1.0, 1.0, 1.0], size=100), 4.0
    ample = streamed(problem_of(graph, cluster_of(4)), stages(4))
    assert (ample.steady.period, ample.steady.in_flight) == (pytest.approx(1.0), 4)
    tight = streamed(problem_of(graph, cluster_of(4, int(ample.peak.max()) - 1)), stages(4))
    assert tight.fits
    assert tight.steady.in_flight < 4
    assert tight.steady.period == pytest.approx(seconds / tight.steady.in_flight)
    assert tight.steady.limit.resource is Resource.MEMORY


def test_a_weight_that_is_read_elsewhere_is_sent_once_and_kept_there():
    ops = {
        "name": ["w", "first", "second"],
        "kind": ["parameter", "a", "b"],
        "output_bytes": [1000, 4, 4],
        "param_bytes": [1000, 0, 0],
        "time": {"*": [0.0, 1.0, 1.0]},
    }
    edges = {"src": [0, 0, 1], "dst": [1, 2, 2], "bytes": [1000, 1000, 4]}
    cluster = cluster_of(2, bandwidth=100.0)
    problem = problem_of(lm.OpGraph(ops, edges), cluster)
    verdict = streamed(problem, stages(2))
    assert problem.verdict(stages(2)).period == pytest.approx(1.0)
    assert verdict.steady.period == pytest.approx(1.0)
    assert verdict.peak[1] >= 1000


def test_training_waits_for_the_update():
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    plan = lm.place(graph, cluster, "layers")
    problem = replace(plan.problem, objective=THROUGHPUT)
    verdict = streamed(problem, plan.assignment)
    assert verdict.steady.limit.resource is Resource.UPDATE
    assert verdict.steady.period >= 0.9 * plan.makespan
    # Without a stream the step is what is known of the period.
    assert problem.verdict(plan.assignment).period == plan.makespan


@given(st.data())
def test_no_stream_is_faster_than_its_busiest_device_or_channel(data):
    graph = data.draw(op_graphs())
    cluster = data.draw(clusters())
    problem = problem_of(graph, cluster)
    devices = data.draw(placements(graph, cluster))[problem.reduced.op_of]
    assignment = Assignment(devices, np.arange(len(devices), dtype=np.int32))
    step = problem.verdict(assignment)
    busiest = Loads.of(problem, devices, step.schedule).busiest
    verdict = streamed(problem, assignment)
    steady = verdict.steady
    assert steady.period >= busiest * (1 - 1e-6)
    assert steady.latency >= 0
    assert steady.in_flight >= 1
    again = streamed(problem, assignment, window=steady.in_flight)
    assert again.steady.period == steady.period


def test_results_do_not_pile_up():
    # The last op's output is the step's result: kept until the next one is there.
    graph = chain([1.0, 1.0], size=100)
    few = streamed(problem_of(graph, cluster_of(2)), stages(2), window=2)
    many = streamed(problem_of(graph, cluster_of(2)), stages(2), window=3)
    assert few.peak[1] <= 400
    assert many.peak[1] <= 400
