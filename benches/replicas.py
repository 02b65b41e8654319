"""What replicas take: step time over one device's, by how gradients are added up.

    python benches/replicas.py models [--clusters '8 PCIe' '4 PCIe' ...] [--graphs NAME ...]
    python benches/replicas.py fastt [--graphs NAME ...]
    python benches/replicas.py unequal
    python benches/replicas.py events

``models``: every graph and cluster of ``tests/data/headroom.csv`` whose batch the devices
divide. Step time as a fraction of what one device would take (as if it had the memory), by ring
or what is faster, with the optimizer sharded in both ways, and by parameter servers; geometric
means at last. "-": does not fit. ``fastt``: how much
faster ``os-dpos`` is than data parallelism, from either start and by either aggregation, as FastT's
Table 1 tells it (steps a second over data parallelism's, minus 1), on its testbed's V100s.
``unequal``: VGG-19 on two V100s and two of half their speed.
``events``: nanoseconds of a simulation per event (the end of an op, a transfer or a collective),
the least of 40 runs each.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from typing import Any

from data import DATA, traced, traced_names
from quality import CLUSTERS, pcie

import loadmaster as lm
from loadmaster.plans.rejudged import whole_problem

#: Options of ``data-parallel`` by the head of their column.
WAYS: dict[str, dict[str, Any]] = {
    "all-reduce": {},
    "sharded flat": {"aggregation": "reduce-scatter", "shards": "flat"},
    "by parameter": {"aggregation": "reduce-scatter", "shards": "parameters"},
    "servers": {"aggregation": "parameter-server"},
}


def fraction(
    graph: lm.OpGraph, cluster: lm.Cluster, options: dict[str, Any], method: str = "data-parallel"
) -> float | None:
    """Step time over one device's; None: the plan does not fit."""
    try:
        plan = lm.place(graph, cluster, method, **options)
    except lm.InfeasibleError:
        return None
    return plan.makespan / float(whole_problem(plan).time.sum(axis=0).min())


def models(clusters: list[str], graphs: list[str]) -> None:
    """Prints a row per model and cluster, and the geometric means of training graphs."""
    with (DATA / "headroom.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["graph"] in traced_names()]
    known = [row for row in rows if row["data_parallel"]]
    for name in clusters:
        print(f"{name:<38}" + "".join(f"{way:>14}" for way in WAYS))
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for row in known:
            if row["cluster"] != name or (graphs and row["graph"] not in graphs):
                continue
            graph = traced(row["graph"])
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


#: The models of FastT's Table 1, and its samples a second by data parallelism and by FastT on 2, 4
#: and 8 GPUs. Ours have other batches where the name says so, and NMT is theirs but for its sizes.
FASTT = {
    "inception_v3_train_b512": (326.5, 323.2, 467.1, 474.1, 432.4, 438.3),
    "vgg19_train_b64": (149.5, 199.4, 184.9, 294.9, 126.9, 132.5),
    "resnet200_train_b32": (114.2, 142.2, 122.1, 132.2, 88.4, 91.1),
    "lenet_train_b256": (14222.2, 23272.7, 17006.6, 19692.3, 17066.6, 19692.3),
    "alexnet_train_b256": (1868.6, 2752.6, 2000.0, 2534.6, 1695.3, 1729.7),
    "nmt_2x1024_train_b128": (435.3, 479.4, 573.9, 636.8, 584.4, 606.6),
    "rnnlm_2x2048_train_b128": (349.7, 395.0, 335.0, 345.9, 254.9, 273.5),
}
BY = ("all-reduce", "servers")
STARTS = ("model", "data-parallel")


def fastt(graphs: list[str]) -> None:
    """Prints how much faster ``os-dpos`` is than data parallelism, and what the paper has."""
    heads = [f"{start} / {way}" for start in STARTS for way in BY]
    for column, n in enumerate((2, 4, 8)):
        cluster = lm.Cluster.preset("8xV100-NVLink").subset(range(n))
        print(f"{n} V100 NVLink".ljust(28) + "".join(f"{head:>27}" for head in [*heads, "paper"]))
        for name in graphs or FASTT:
            graph = traced(name)
            cells = []
            for start in STARTS:
                split = fraction(graph, cluster, {"start": start}, "os-dpos")
                cells += [faster(split, fraction(graph, cluster, WAYS[way])) for way in BY]
            before, after = FASTT[name][2 * column : 2 * column + 2]
            cells.append(faster(1 / after, 1 / before))
            print(f"  {name:<26}" + "".join(f"{cell:>27}" for cell in cells), flush=True)


def faster(step: float | None, than: float | None) -> str:
    """By how much more steps a second there are; "-": one of the plans does not fit."""
    return "-" if step is None or than is None else f"{than / step - 1:+.1%}"


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
    parser.add_argument("what", choices=("models", "fastt", "unequal", "events"))
    parser.add_argument("--clusters", nargs="+", default=["8 PCIe", "4 PCIe"], choices=CLUSTERS)
    parser.add_argument("--graphs", nargs="*", default=[])
    arguments = parser.parse_args()
    if arguments.what == "models":
        models(arguments.clusters, arguments.graphs)
    elif arguments.what == "fastt":
        fastt(arguments.graphs)
    else:
        (unequal if arguments.what == "unequal" else events)()


if __name__ == "__main__":
    main()
