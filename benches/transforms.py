"""What replicas, micro-batches, shards and split ops take to expand, in CPU milliseconds by stage.

    python benches/transforms.py replicas [--repeat 5]
    python benches/transforms.py micro-batches [--repeat 5]
    python benches/transforms.py shards [--repeat 5]
    python benches/transforms.py splits [--repeat 5]
    python benches/transforms.py os-dpos

``replicas``: a drawn trained graph of 50,000 ops in 8 replicas, and traced ones, by every
aggregation. "first": a whole ``replicate`` of a graph that was
just read, roles of its ops among it. The other columns are the least of some runs: "again" a whole
``replicate``, "costs" the times of the ops, "reduced" the graph that strategies place, "texts" the
names, kinds and all other texts, which planning does not ask for. ``micro-batches``: the same of
8 micro-batches. ``shards``: the traced graphs on
a mesh of 8, and of 2 x 4, every op cut along the first dimension that it has, on each axis.
"dimensions": what can be cut, found once per graph; "shard": the layout and the graph that runs.
``splits``: the op with the most FLOPs of a graph in two. "planned": what comes in its place, and
the times of that, before it is put into the graph; "split" a whole ``split_op``. ``os-dpos``: the
method that splits ops, on 8 H100 and on 8 A100 joined by NVLink: CPU seconds, the longest silence
in seconds of the clock, and the step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
from quality import CLUSTERS, traced
from unseen_nets import FAMILIES, FORWARD_SHARE, Net

import loadmaster as lm
from loadmaster.costs.program import costs_of, program_costs
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.model.recipe import DeviceMesh, Recipe
from loadmaster.transforms import (
    Layout,
    Program,
    dimensions,
    micro_batches,
    replicate,
    shard,
    split_op,
)
from loadmaster.transforms.split import planned_split

T = TypeVar("T")

#: Ops of the drawn graph, of which some are parameters, and its replicas.
OPS, REPLICAS = 50_000, 8

#: Options of ``replicate`` by aggregation.
WAYS: dict[str, dict[str, Any]] = {
    "all-reduce": {},
    "sharded flat": {"aggregation": "reduce-scatter"},
    "by parameter": {"aggregation": "reduce-scatter", "shards": "parameters"},
    "servers": {"aggregation": "parameter-server"},
}

#: Traced graphs and their replicas. A batch of one sample is taken to be one per replica.
TRACED = {"mamba_130m_train_b4_s64": 4, "evoformer_48_train": 4, "bert_large_train_b16_s64": 8}

#: Graphs on which ``os-dpos`` is timed.
SEARCHED = (
    "nasneta_large_train_b32",
    "nmt_2x1024_train_b128",
    "nmt_4x2048_train_b512",
    "inception_v3_train_b512",
    "mixtral_8x7b_infer_b4_s2048",
    "bert_large_train_b16_s64",
)

#: Graphs with an op that is split.
SPLIT = ("nasneta_large_train_b32", "nmt_2x1024_train_b128", "inception_v3_train_b512")


def drawn() -> lm.OpGraph:
    """Trained cells, as of NASNet, with about :data:`OPS` ops, parameters among them."""
    net = Net(np.random.default_rng(27))
    FAMILIES["cells"](net, int(OPS * FORWARD_SHARE * 0.72))
    net.trained()
    return net.graph("drawn", {"fast": 1.0}, has_modules=True)


def batched(graph: lm.OpGraph, k: int) -> lm.OpGraph:
    """The graph with a batch that ``k`` replicas can share."""
    if (graph.meta.get("batch") or 0) < k:
        graph.meta["batch"] = k
    return graph


def timed(call: Callable[..., T], *arguments: Any, **options: Any) -> tuple[float, T]:
    """CPU milliseconds of a call, and what it gives."""
    began = time.process_time()
    made = call(*arguments, **options)
    return (time.process_time() - began) * 1e3, made


def least(rows: list[tuple[float, ...]]) -> str:
    """The least of each column."""
    return "".join(f"{min(column):>9.1f}" for column in zip(*rows, strict=True))


def cluster_of(graph: lm.OpGraph, k: int) -> lm.Cluster:
    """Devices that a graph has times for; H100s where it has none."""
    if not graph.time:
        return lm.Cluster.preset("8xH100-NVLink")
    return lm.Cluster.mesh(k, memory="80GiB", bandwidth=1e11, type=next(iter(graph.time)))


def stages(graph: lm.OpGraph, k: int, make: Callable[..., Program], repeat: int) -> tuple[int, str]:
    """Ops that are made of a graph that was just read, and milliseconds by stage."""
    cluster = cluster_of(graph, k)
    before = lm.costs.estimate(graph, cluster)
    first, program = timed(make, graph, k)
    rows = []
    for _ in range(repeat):
        again, program = timed(make, graph, k)
        costs = timed(program_costs, program, before, cluster)[0]
        reduced = timed(getattr, program.graph, "reduced")[0]
        rows.append((again, costs, reduced, timed(getattr, program.graph, "texts")[0]))
    return program.graph.n_ops, f"{first:>9.1f}{least(rows)}"


def replicas(repeat: int) -> None:
    """Prints a row per graph and aggregation."""
    ways = {way: partial(replicate, **options) for way, options in WAYS.items()}
    expanded(ways, {"drawn": REPLICAS, **TRACED}, repeat)


def in_micro_batches(repeat: int) -> None:
    """Prints a row per graph."""
    expanded({"micro-batches": micro_batches}, dict.fromkeys(("drawn", *TRACED), REPLICAS), repeat)


def expanded(ways: dict[str, Callable[..., Program]], counts: dict[str, int], repeat: int) -> None:
    """Prints a row per graph and way."""
    for make in ways.values():
        make(lm.read("example:lenet"), 2)  # What is imported then is not counted.
    heads = "".join(f"{head:>9}" for head in ("first", "again", "costs", "reduced", "texts"))
    print(f"{'graph':<26}{'way':<14}{'k':>2}{'ops':>10}{heads}")
    for name, k in counts.items():
        for way, make in ways.items():
            graph = batched(drawn() if name == "drawn" else traced(name), k)
            n_ops, cells = stages(graph, k, make, repeat)
            print(f"{name:<26}{way:<14}{k:>2}{n_ops:>10,}{cells}", flush=True)


def shards(repeat: int) -> None:
    """Prints a row per graph and mesh."""
    shard(lm.read("example:lenet"), Recipe({"x": 2}))  # What is imported then is not counted.
    heads = "".join(f"{head:>12}" for head in ("dimensions", "shard", "reduced"))
    print(f"{'graph':<26}{'mesh':<8}{'ops':>9}{heads}")
    for name in TRACED:
        graph = traced(name)
        took, found = timed(Dimensions.of, graph)
        n_cuts = np.array([len(form.cuts) for form in found.forms] + [0])[found.form_of]
        for axes in ({"x": 8}, {"x": 2, "y": 4}):
            mesh = DeviceMesh.of(axes)
            labels = np.tile(np.minimum(n_cuts, 1).astype(np.int32), (len(axes), 1))
            rows = []
            for _ in range(repeat):
                again, program = timed(shard, graph, Layout(found, mesh, labels))
                rows.append((again, timed(getattr, program.graph, "reduced")[0]))
            cells = "".join(f"{min(column):>12.1f}" for column in zip(*rows, strict=True))
            size = " x ".join(map(str, mesh.shape))
            print(f"{name:<26}{size:<8}{program.graph.n_ops:>9,}{took:>12.1f}{cells}", flush=True)


def splits(repeat: int) -> None:
    """Prints a row per graph, whole and in eight replicas with parameter servers."""
    heads = "".join(f"{head:>9}" for head in ("planned", "split", "costs", "reduced"))
    print(f"{'graph':<26}{'replicas':>9}{'ops':>9}{heads}")
    cluster = lm.Cluster.preset("8xH100-NVLink")
    for name in SPLIT:
        graph = traced(name)
        before = lm.costs.estimate(graph, cluster)
        program = replicate(graph, 8, aggregation="parameter-server")
        in_replicas = program.graph, program_costs(program, before, cluster)
        for k, (runs, costs) in {1: (graph, before), 8: in_replicas}.items():
            order = np.argsort(-runs.flops.astype(np.float64), kind="stable").tolist()
            op, ways = next((op, ways) for op in order if (ways := dimensions(runs, op)))
            asked = runs, op, next(iter(ways)), 2
            rows = []
            for _ in range(repeat):
                planned, step = timed(planned_split, *asked)
                took, split = timed(split_op, *asked)
                of_work = timed(costs_of, step.work, costs, cluster)[0]
                reduced = timed(getattr, split.graph, "reduced")[0]
                rows.append(
                    (
                        planned + of_work,
                        took,
                        timed(program_costs, split, costs, cluster)[0],
                        reduced,
                    )
                )
            print(f"{name:<26}{k:>9}{runs.n_ops:>9,}{least(rows)}", flush=True)


def searches() -> None:
    """Prints a row per graph and cluster."""
    clusters = {"8 H100": lm.Cluster.preset("8xH100-NVLink"), "8 NVLink": CLUSTERS["8 NVLink"]()}
    print(f"{'graph':<30}{'cluster':<10}{'CPU s':>7}{'silence':>9}{'step ms':>9}  notes")
    for name in SEARCHED:
        for cluster, devices in clusters.items():
            graph, told = traced(name), [time.perf_counter()]
            costs = lm.costs.estimate(graph, devices)
            took, plan = timed(
                lm.place,
                graph,
                devices,
                "os-dpos",
                costs,
                progress=lambda stage, best, told=told: told.append(time.perf_counter()),
            )
            silence = float(np.diff(told).max())
            cells = f"{took / 1e3:>7.1f}{silence:>9.2f}{plan.makespan * 1e3:>9.2f}"
            print(f"{name:<30}{cluster:<10}{cells}  {'; '.join(plan.notes)}", flush=True)


def main() -> None:
    """Parses arguments and prints one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "what", choices=("replicas", "micro-batches", "shards", "splits", "os-dpos")
    )
    parser.add_argument("--repeat", type=int, default=5, help="runs of which the least is shown")
    arguments = parser.parse_args()
    if arguments.what == "os-dpos":
        searches()
    else:
        measure = {
            "replicas": replicas,
            "micro-batches": in_micro_batches,
            "shards": shards,
            "splits": splits,
        }[arguments.what]
        measure(arguments.repeat)


if __name__ == "__main__":
    main()
