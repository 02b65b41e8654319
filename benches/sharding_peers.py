"""Sharding beside its peers: AutoParallel, Megatron, FSDP and FlexFlow's walk, all judged alike.

    python sharding_peers.py [--graph NAME ...] [--cluster NAME ...] [--seconds N]

Steps are the judge's, over one device's. AutoParallel decides on placements of parameters (files of
``results/autoparallel``, made by ``autoparallel_placements.py``); what it leaves open, activations
and the optimizer, has the cheapest labels that go with them, so its row is at least as good as it
is. "By hand" are the recipes of ``recipes``, applied as they are, in the same orders as the others.
FlexFlow's walk (Jia et al., MLSys 2019) goes over the labels of one axis by their summed cost,
from every op whole. The second table has Alpa's integer program (Zheng et al., OSDI 2022) on
the same tables of costs, tied alike: objective, bound and seconds beside those of TRW-S.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import numpy as np
from exact_labels import exact_labels
from numpy.typing import NDArray
from quality import CLUSTERS, traced

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError
from loadmaster.dimensions.form import FLAT, REPLICATE
from loadmaster.judge.problem import Problem
from loadmaster.model.recipe import DeviceMesh
from loadmaster.strategies.auto.inside import in_time_for_collectives
from loadmaster.strategies.sharding import fsdp, megatron, sharded
from loadmaster.strategies.sharding.judging import expanded
from loadmaster.strategies.sharding.meshes import meshes
from loadmaster.strategies.sharding.ranking import Ranked
from loadmaster.strategies.sharding.solving import WEIGHTS, Labels, Solver
from loadmaster.strategies.sharding.space import Space
from loadmaster.strategies.sharding.structure import Structure
from loadmaster.strategies.sharding.tables import Tables
from loadmaster.strategies.simple import recipe as as_it_is

RECIPES = Path(__file__).parent / "recipes"
PLACEMENTS = Path(__file__).parent / "results" / "autoparallel"

#: Graphs, the file of AutoParallel's placements of each, and how its names become the graph's.
MODELS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "gpt3_330m_train_b8": ("gpt", ()),
    "llama3_8b_train_b1_s8192": (
        "llama3-8b",
        (
            (r"attention\.w([qkvo])\.", r"self_attn.\1_proj."),
            (r"feed_forward\.w1\.", "mlp.gate_proj."),
            (r"feed_forward\.w2\.", "mlp.down_proj."),
            (r"feed_forward\.w3\.", "mlp.up_proj."),
            (r"attention_norm\.", "input_layernorm."),
            (r"ffn_norm\.", "post_attention_layernorm."),
            (r"tok_embeddings\.", "embed_tokens."),
            (r"^output\.", "m.lm_head."),
            (r"^(layers|norm|embed_tokens)\.", r"m.model.\1."),
        ),
    ),
}

#: Steps of FlexFlow's walk per node.
WALK = 200

CLUSTER: dict[str, Callable[[], lm.Cluster]] = {
    "8 PCIe": CLUSTERS["8 PCIe"],
    "8 NVLink": CLUSTERS["8 NVLink"],
    "8 H100": partial(lm.Cluster.preset, "8xH100-NVLink"),
}


def placed_parameters(structure: Structure, model: str, k: int) -> NDArray[np.bool_]:
    """Which labels go with AutoParallel's placements: bool [n_nodes, most labels]."""
    file, renames = MODELS[model]
    said = json.loads((PLACEMENTS / f"{file}.json").read_text("utf-8"))["parameters"]
    graph, ways = structure.graph, structure.ways
    free = np.arange(ways.label.shape[1])[None, :] < ways.n_labels[structure.way][:, None]
    for name, (placement,) in said.items():
        for pattern, new in renames:
            name = re.sub(pattern, new, name)
        if name not in graph.names:
            continue
        node = int(structure.node[graph.index(name)])
        way = int(structure.way[node])
        specs = ways.outputs[ways.first_output[way], : ways.n_labels[way]]
        form = structure.dimensions.forms[structure.dimensions.form_of[structure.op[node]]]
        free[node] = False
        free[node, : len(specs)] = specs == _spec(
            placement, form.outputs[0], k, set(specs.tolist())
        )
    return free


def _spec(placement: str, factors: tuple[tuple[int, int], ...], k: int, known: set[int]) -> int:
    """The spec that a placement is. An axis that views take apart, and whose first factor is
    smaller than the mesh, lies in flat parts: these are as large, and are gathered alike.
    """
    if not placement.startswith("S("):
        return REPLICATE
    axis = int(placement[2:-1])
    first = next((i for i, (a, size) in enumerate(factors) if a == axis and size >= k), None)
    return first if first is not None and first in known else FLAT


def autoparallel(problem: Problem, model: str) -> Iterator[Ranked]:
    """AutoParallel's placements, and the cheapest labels that go with them."""
    space = Space.of(problem)
    mesh = next(meshes(problem))
    solver = Solver(space.setting(mesh), [placed_parameters(space.structure, model, mesh.size)])
    for labels in solver.all_weights(space.memory(mesh), WEIGHTS):
        yield Ranked(mesh, labels, solver, labels.fits(space.memory(mesh)))


def flexflow(problem: Problem) -> Iterator[Ranked]:
    """The labels that FlexFlow's walk ends with, for every weight of what may overlap."""
    space = Space.of(problem)
    mesh: DeviceMesh = next(meshes(problem))
    solver = Solver(space.setting(mesh))
    tables = Tables.of(solver.setting, 0, solver.whole())
    n = space.structure.n
    for weight in WEIGHTS:
        start = np.zeros(len(tables.at), dtype=np.int32)
        weights = np.array([1.0, weight, 0.0, 0.0])
        labels = tables.costs.problem.walk(start, weights, WALK * len(start), 0)
        columns = labels[tables.at[:n]][None, :].astype(np.int64)
        estimate = solver.estimator.estimate(columns)
        found = Labels(columns, estimate, math.nan, weight, is_tied=False)
        yield Ranked(mesh, found, solver, found.fits(space.memory(mesh)))


def by_hand(problem: Problem, model: str, name: str) -> float:
    """The judged step of a recipe that was written by hand."""
    recipe = lm.Recipe.load(RECIPES / f"{model}.{name}.toml")
    return in_time_for_collectives(as_it_is.place(problem, recipe=recipe)).verdict.step_time


def best_step(problem: Problem, rows: Iterator[Ranked]) -> float:
    """The judged step of the best of some labels; infinite: none fits."""
    space = Space.of(problem)
    steps = [expanded(space, row) for row in rows]
    return min((s.verdict.step_time for s in steps if s.fits), default=math.inf)


def steps(problem: Problem, model: str) -> Iterator[tuple[str, float, float]]:
    """Name, step and CPU seconds of each peer."""
    peers: dict[str, Callable[[], float]] = {
        "sharded": lambda: sharded.place(problem).verdict.step_time,
        "autoparallel": lambda: best_step(problem, autoparallel(problem, model)),
        "megatron": lambda: megatron.place(problem).verdict.step_time,
        "fsdp": lambda: fsdp.place(problem).verdict.step_time,
        "Megatron, by hand": lambda: by_hand(problem, model, "megatron"),
        "FSDP, by hand": lambda: by_hand(problem, model, "fsdp"),
        "flexflow": lambda: best_step(problem, flexflow(problem)),
    }
    for name, run in peers.items():
        began, step = time.process_time(), math.inf
        with suppress(InfeasibleError):
            step = run()
        yield name, step, time.process_time() - began


def against_the_program(problem: Problem, seconds: float) -> str:
    """TRW-S and the integer program on the tables of one axis over all devices, tied alike."""
    space = Space.of(problem)
    solver = Solver(space.setting(next(meshes(problem))))
    tables = Tables.of(solver.setting, 0, solver.whole())
    weights = np.array([1.0, 1.0, 0.0, 0.0])
    began = time.process_time()
    ours = tables.costs.problem.solve(weights, tied=tables.tied)
    took = time.process_time() - began
    began = time.monotonic()
    exact = exact_labels(
        tables.costs, weights, tied=tables.tied, start=ours.labels, time_limit=seconds
    )
    above = ours.energy / exact.energy - 1
    return (
        f"{ours.energy * 1e3:.3f} ms | {ours.gap:.2%} | {took:.2f} | {exact.energy * 1e3:.3f} ms | "
        f"{exact.bound * 1e3:.3f} ms | {time.monotonic() - began:.1f} | {above:.3%}"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--graph", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--cluster", nargs="*", choices=CLUSTER, default=list(CLUSTER))
    parser.add_argument("--seconds", type=float, default=60.0, help="of the integer program")
    args = parser.parse_args()
    problems = {
        (name, cluster): _problem(name, cluster) for name in args.graph for cluster in args.cluster
    }
    print("| graph | cluster | peer | step, of one device | CPU s |\n|---|---|---|---|---|")
    for (name, cluster), problem in problems.items():
        Space.of(problem)
        one = float(problem.time.sum(axis=0).min())
        for peer, step, seconds in steps(problem, name):
            print(f"| {name} | {cluster} | {peer} | {step / one:.4f} | {seconds:.2f} |", flush=True)
    head = ("TRW-S", "gap", "CPU s", "program", "its bound", "seconds", "TRW-S above it")
    print(f"\n| graph | cluster | {' | '.join(head)} |\n|{'---|' * (len(head) + 2)}")
    for (name, cluster), problem in problems.items():
        print(f"| {name} | {cluster} | {against_the_program(problem, args.seconds)} |", flush=True)


def _problem(name: str, cluster: str) -> Problem:
    graph, devices = traced(name), CLUSTER[cluster]()
    return Problem.make(graph, devices, lm.costs.estimate(graph, devices))


if __name__ == "__main__":
    main()
