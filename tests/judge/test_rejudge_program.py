"""The second judge of programs notices what is wrong with a step, and with a program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from dimensioned import by_hand
from labels import cut_along
from rejudge import WrongError
from rejudge_program import ProgramStep
from trained import linears
from work_done import check_work

import loadmaster as lm
from loadmaster.costs.program import program_costs
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import run
from loadmaster.model.recipe import DeviceMesh
from loadmaster.transforms import micro_batches
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.shards import shard

MESH = DeviceMesh.of({"x": 2})
GRAPH = linears((4, 8, 4), 8)
CLUSTER = lm.Cluster.mesh(
    2, memory="1MiB", bandwidth=1e5, type=lm.DeviceType("t", {"f32": 1e5}, 1e6, launch=1e-3)
)
PROGRAM = shard(GRAPH, Layout(by_hand(GRAPH), MESH, cut_along(by_hand(GRAPH), "batch")))
COSTS = lm.costs.estimate(GRAPH, CLUSTER)
PROBLEM = Problem.make(GRAPH, CLUSTER, COSTS).transformed(PROGRAM)
RANKS = PROGRAM.rank[PROBLEM.reduced.op_of]
SEEN = run(PROBLEM, Assignment(RANKS, np.zeros(len(RANKS), dtype=np.int64)))


def check(seen: lm.Simulation = SEEN) -> None:
    time = program_costs(PROGRAM, COSTS, CLUSTER).time.tolist()
    ProgramStep(PROGRAM, CLUSTER, time, seen).check()


def test_a_step_that_the_simulator_saw_is_right():
    check()
    check_work(PROGRAM)
    assert len(SEEN.collectives) > 0


@pytest.mark.parametrize("words", ["runs apart", "takes"])
def test_a_collective_that_is_wrong_is_named(words):
    at = SEEN.collectives
    wrong = {"runs apart": {"start": at.start - 1e-3}, "takes": {"bytes": at.bytes * 4}}[words]
    line = replace(SEEN.timeline, collectives=replace(at, **wrong))
    with pytest.raises(WrongError, match=words):
        check(lm.Simulation(PROBLEM, line, SEEN.memory))


def test_a_wrong_peak_is_named():
    memory = replace(SEEN.memory, peak=SEEN.memory.peak + np.uint64(1))
    with pytest.raises(WrongError, match="the peak of"):
        check(lm.Simulation(PROBLEM, SEEN.timeline, memory))


def test_work_that_is_missing_is_named():
    share = PROGRAM.share.copy()
    share[PROGRAM.parts_of(GRAPH.index("dw0"))[0]] = 0.25
    with pytest.raises(WrongError, match=r"dw0 is done 0\.75 times"):
        check_work(replace(PROGRAM, share=share))


def test_an_input_that_a_mesh_gathers_shares_no_bucket_with_weights():
    dimensions = by_hand(GRAPH)
    labels = np.zeros((1, GRAPH.n_ops), dtype=np.int32)
    # The input by its rows, its product whole: it is gathered beside the first weight.
    labels[0, [GRAPH.index("x"), GRAPH.index("w0")]] = 1
    program = micro_batches(shard(GRAPH, Layout(dimensions, MESH, labels)), 2)
    gathers = {label for label in program.graph.collectives if label}
    assert any(label.startswith("all_gather/tensors") for label in gathers)
    assert not [n for n in program.graph.names if "parameters" in n and "aggregate" in n]


@pytest.mark.parametrize("source", ["x", "w", None])
def test_members_of_a_collective_depend_on_the_batch_together(source):
    columns = {
        "name": ["x", "w", "g0", "g1", "y"],
        "kind": ["input", "parameter", "all_gather", "all_gather", "aten.mm"],
        "collective": ["", "", "all_gather/a", "all_gather/a", ""],
    }
    # The second member reads nothing: all that it hands on comes from the first. Where no member
    # reads anything, as of sums that ops exchange while they run, nobody says that it is once.
    edges = [(columns["name"].index(source), 2)] if source else []
    edges += [(3, 4), (0, 4)]
    graph = lm.OpGraph(columns, dict(zip(("src", "dst"), zip(*edges, strict=True), strict=True)))
    assert graph.roles.many.tolist() == [True, False, *[source != "w"] * 2, True]
