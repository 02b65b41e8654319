"""Programs of small drawn models: shards by drawn labels, micro-batches, recomputation, and plans
of methods that make such programs. Each step is judged again in plain Python.
"""

from __future__ import annotations

import contextlib
from itertools import permutations
from random import Random

import numpy as np
from dimensioned import by_hand
from labels import drawn
from rejudge_program import ProgramStep
from trained import linears
from work_done import check_work

import loadmaster as lm
from loadmaster.costs.program import program_costs
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import run
from loadmaster.model.program import Program
from loadmaster.model.recipe import DeviceMesh, MeshAxis
from loadmaster.transforms import micro_batches, recompute
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.shards import shard

from .frame import refused, target

#: Methods that make programs of replicas, shards, micro-batches or recomputation.
METHODS = ("sharded", "pipeline", "gpipe", "fsdp", "data-parallel", "piper", "auto")


@target("programs", in_ci=50)
def one(random: Random) -> None:
    """A program that was drawn, or one that a method made."""
    graph, cluster = drawn_model(random), drawn_cluster(random)
    if random.random() < 0.7:
        with refused():
            placed_at_random(random, drawn_program(random, graph), cluster)
        return
    with contextlib.suppress(lm.InfeasibleError), refused():
        plan = lm.place(graph, cluster, random.choice(METHODS))
        judge_again(plan.program, cluster, plan.schedule)


def drawn_model(random: Random) -> lm.OpGraph:
    """Linear layers, the first two in module ``a``, the others in ``b``."""
    widths = [random.choice((2, 4, 6, 8)) for _ in range(random.randint(2, 4))]
    graph = linears(widths, random.choice((4, 8, 12)), train=random.random() < 0.8)
    modules = ["a" if name[-1] in "01" else "b" for name in graph.names]
    return graph.with_columns({"module": modules})


def drawn_program(random: Random, graph: lm.OpGraph) -> Program:
    """The model as drawn labels, micro-batches or recomputation, or several of these, have it."""
    mesh = random.choice(
        (
            DeviceMesh.of({"x": 2}),
            DeviceMesh.of({"x": 3}),
            DeviceMesh.of({"x": 2, "y": 2}),
            DeviceMesh((MeshAxis("x", 2, (3.0, 1.0)),)),
        )
    )
    is_trained = "b" in graph.phases
    again = ["a"] if is_trained and random.random() < 0.3 else []
    if random.random() < 0.8:
        dimensions = by_hand(graph)
        labels = drawn(dimensions, mesh, random.randrange(2**32))
        program = shard(graph, Layout(dimensions, mesh, labels), again)
    else:
        program = recompute(graph, again) if again else Program.of(graph)
    if random.random() < 0.4:
        return micro_batches(program, random.choice((2, 3, 4)))
    return program


def drawn_cluster(random: Random) -> lm.Cluster:
    """Four devices of one type or two, with links of their own or through ports, now and then with
    measured collectives that keep devices busy, or with launches that take time.
    """
    dispatch = lm.Dispatch(5e-4, random.random() < 0.5) if random.random() < 0.2 else None
    launch = 0.0 if dispatch else 1e-3
    types = [
        lm.DeviceType(f"t{i}", {"f32": random.choice((1e4, 2e4))}, 1e5, launch=launch)
        for i in range(random.randint(1, 2))
    ]
    devices = [lm.Device(f"d{i}", f"t{i % len(types)}", "1MiB") for i in range(4)]
    ported = random.random() < 0.5
    links = [
        lm.Link(f"d{a}", f"d{b}", random.choice((1e4, 5e4)), random.choice((0.0, 1e-3)),
                (f"out{a}", f"in{b}") if ported else ())
        for a, b in permutations(range(4), 2)
    ]  # fmt: skip
    tables = [
        lm.CollectiveTimes(kind, n, 1, (8, 4096), (4e-3, 9e-3), busy=(2e-3, 5e-3))
        for kind in ("all_reduce", "all_gather")
        if random.random() < 0.2
        for n in (2, 3, 4)
    ]
    return lm.Cluster(devices, links, types, collectives=tables, dispatch=dispatch)


def placed_at_random(random: Random, program: Program, cluster: lm.Cluster) -> None:
    """Simulates the program with each rank of its mesh on a device that was drawn; without a mesh,
    with each of its ops on one.
    """
    of_rank = random.sample(range(4), max(int(program.rank.max()), 0) + 1)
    costs = lm.costs.estimate(program.source, cluster)
    problem = Problem.make(program.source, cluster, costs).transformed(program)
    reduced = problem.reduced
    devices = np.array(of_rank, dtype=np.int32)[np.maximum(program.rank[reduced.op_of], 0)]
    if len(of_rank) == 1:
        devices = np.array([random.randrange(4) for _ in devices], dtype=np.int32)
    priority = np.array([random.randrange(5) for _ in reduced.op_of], dtype=np.int64)
    policy = random.choice(("priority", "fifo"))
    seen = run(problem, Assignment(devices, priority, policy))
    judge_again(program, cluster, seen)


def judge_again(program: Program, cluster: lm.Cluster, seen: lm.Simulation) -> None:
    """Holds a step against the program, and the program against the user's graph."""
    costs = program_costs(program, lm.costs.estimate(program.source, cluster), cluster)
    ProgramStep(program, cluster, costs.time.tolist(), seen).check()
    check_work(program)
