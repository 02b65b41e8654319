"""What replicas take: step time over one device's, by how gradients are added up.

    python benches/replicas.py models [--clusters '8 PCIe' '4 PCIe' ...] [--graphs NAME ...]
    python benches/replicas.py unequal
    python benches/replicas.py events

``models``: every graph and cluster of ``../shared/data/headroom.csv`` whose batch the devices
divide. Step time as a fraction of what one device would take (as if it had the memory), by ring
or what is faster, with the optimizer sharded in both ways, and by parameter servers; geometric
means at last. "-": does not fit. ``unequal``: VGG-19 on two V100s and two of half their speed.
``events``: nanoseconds of a simulation per event (the end of an op, a transfer or a collective),
the least of 40 runs each.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from typing import Any

from quality import CLUSTERS, DATA, pcie

import loadmaster as lm

#: Options of ``data-parallel`` by the head of their column.
WAYS: dict[str, dict[str, Any]] = {
    "all-reduce": {},
    "sharded flat": {"aggregation": "reduce-scatter", "shards": "flat"},
    "by parameter": {"aggregation": "reduce-scatter", "shards": "parameters"},
    "servers": {"aggregation": "parameter-server"},
}


def fraction(graph: lm.OpGraph, cluster: lm.Cluster, options: dict[str, Any]) -> float | None:
    """Step time over one device's; None: the replicas do not fit."""
    try:
        plan = lm.place(graph, cluster, "data-parallel", **options)
    except lm.InfeasibleError:
        return None
    return plan.makespan / float(plan.whole_problem.time.sum(axis=0).min())


def models(clusters: list[str], graphs: list[str]) -> None:
    """Prints a row per model and cluster, and the geometric means of training graphs."""
    with (DATA / "headroom.csv").open(newline="") as file:
        known = [row for row in csv.DictReader(file) if row["data_parallel"]]
    for name in clusters:
        print(f"{name:<38}" + "".join(f"{way:>14}" for way in WAYS))
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for row in known:
            if row["cluster"] != name or (graphs and row["graph"] not in graphs):
                continue
            graph = lm.read(DATA / "graphs" / f"{row['graph']}.json.gz")
            cells = [fraction(graph, CLUSTERS[name](), options) for options in WAYS.values()]
            texts = "".join(f"{'-' if cell is None else f'{cell:.4f}':>14}" for cell in cells)
            print(f"  {row['graph']:<36}{texts}", flush=True)
            for way, cell in zip(WAYS, cells, strict=True):
                if cell is not None and row["ring_data_parallel"] and "_train_" in row["graph"]:
                    found[way].append(cell)
        means = "".join(
            f"{f'{statistics.geometric_mean(cells):.4f}' if cells else '-':>14}"
            for cells in found.values()
        )
        print(f"  {'training, geometric mean':<36}{means}")


def unequal() -> None:
    """Prints what shares by speed give."""
    cluster = pcie(4).with_speed(0.5, "gpu2").with_speed(0.5, "gpu3")
    plan = lm.place(lm.read("example:vgg19"), cluster, "data-parallel")
    assert plan.single is not None
    print(
        f"{plan.makespan / plan.single:.3f} of one fast device; {plan.notes[0].partition(':')[0]}"
    )


def events() -> None:
    """Prints nanoseconds per event of plans with and without collectives."""
    for name in ("bert-large", "inception-v3"):
        graph, cluster = lm.read(f"example:{name}"), pcie(8).with_memory("128GiB")
        plans = {w: lm.place(graph, cluster, "data-parallel", **o) for w, o in WAYS.items()}
        plans["whole ops, by heft"] = lm.place(graph, cluster, "heft")
        least = dict.fromkeys(plans, float("inf"))
        for _ in range(40):
            for way, plan in plans.items():
                began = time.process_time()
                schedule = plan.problem.verdict(plan.assignment).schedule
                took = time.process_time() - began
                assert schedule is not None
                sent = schedule.n_transfers + schedule.n_collectives
                least[way] = min(least[way], took / (plan.problem.graph.n_ops + sent))
        print(name, {way: f"{seconds * 1e9:.0f} ns" for way, seconds in least.items()})


def main() -> None:
    """Parses arguments and prints one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("models", "unequal", "events"))
    parser.add_argument("--clusters", nargs="+", default=["8 PCIe", "4 PCIe"], choices=CLUSTERS)
    parser.add_argument("--graphs", nargs="*", default=[])
    arguments = parser.parse_args()
    if arguments.what == "models":
        models(arguments.clusters, arguments.graphs)
    else:
        (unequal if arguments.what == "unequal" else events)()


if __name__ == "__main__":
    main()
