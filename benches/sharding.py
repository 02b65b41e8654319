"""What sharding takes: `sharded` over one device, judged, on the table that others are held to.

    python benches/sharding.py [--graph NAME ...] [--cluster '8 PCIe' ...] [--jobs N] [--csv FILE]
    python benches/sharding.py --unequal
    python benches/sharding.py --large

The rows are those of ``../shared/data/headroom.csv`` that have ``joint`` and one of ``auto``,
``data_parallel`` and ``os_dpos``. Per row: the judge's step over one device's (as if that had the
memory), with memory held ("-": nothing that fits was found); ``joint`` and ``judged`` of the file;
the mirror's step over the judge's; the labelling gap; the mesh; CPU seconds of the strategy, the
graph's dimensions included, its reading not. Geometric means at last.
``--unequal``: two V100s and two of half their speed, over a third of what one fast device takes.
``--large``: CPU seconds of reading and of the strategy, for LLaMA-8B and for Evoformer.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from quality import CLUSTERS, DATA, traced

import loadmaster as lm
from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.sharding import sharded

#: The columns of which one must have a figure beside ``joint``.
OTHERS = ("auto", "data_parallel", "os_dpos")

#: What geometric means are of, by what a cluster's name contains.
MEANS = {"all": "", "8 PCIe": "8 PCIe", "8 NVLink": "8 NVLink"}


@dataclass
class Row:
    """A row of the file, and what was found."""

    graph: str
    cluster: str
    joint: float
    judged: float | None
    best_known: float
    step: float | None = None
    mirror: float | None = None
    gap: float | None = None
    where: str = ""
    cpu: float = 0.0

    @property
    def line(self) -> str:
        """The row as it is printed."""
        figures = (self.step, self.joint, self.judged, self.best_known)
        texts = "".join(f"{f:>9.4f}" if f is not None else f"{'-':>9}" for f in figures)
        mirror = "-" if self.mirror is None else f"{self.mirror - 1:+.1%}"
        gap = "-" if self.gap is None else f"{self.gap:.2%}"
        return (
            f"  {self.graph:<36}{self.cluster:<10}{texts}{mirror:>9}{gap:>8}"
            f"{self.cpu:>7.2f}  {self.where}"
        )


HEAD = (
    f"  {'':<36}{'':<10}{'sharded':>9}{'joint':>9}{'judged':>9}{'others':>9}{'mirror':>9}{'gap':>8}"
    f"{'CPU s':>7}  mesh"
)


def rows() -> list[Row]:
    """The rows of the table."""
    with (DATA / "headroom.csv").open(newline="") as file:
        known = list(csv.DictReader(file))
    return [
        Row(
            row["graph"],
            row["cluster"],
            float(row["joint"]),
            float(row["judged"]) if row["judged"] else None,
            min(float(row[name]) for name in OTHERS if row[name]),
        )
        for row in known
        if row["joint"] and any(row[name] for name in OTHERS)
    ]


@lru_cache(maxsize=1)
def read(name: str) -> lm.OpGraph:
    """A graph, kept until the next is asked for."""
    return traced(name)


def fill(row: Row) -> Row:
    """The row with what was found."""
    graph, cluster = read(row.graph), CLUSTERS[row.cluster]()
    problem = Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))
    began = time.process_time()
    try:
        found: Candidate | None = sharded.place(problem)
    except lm.InfeasibleError:
        found = None
    row.cpu = time.process_time() - began
    if found is None:
        return row
    row.step = found.verdict.step_time / float(problem.time.sum(axis=0).min())
    if found.assignment.estimate is not None:
        row.mirror = found.assignment.estimate / found.verdict.step_time
    for note in found.notes:
        if match := re.search(r"labelling gap ([0-9.]+)%", note):
            row.gap = float(match[1]) / 100
        if match := re.match(r"on (.+ devices?);", note):
            row.where = match[1]
    return row


def mean(values: list[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def share(values: list[float], most: float) -> float:
    """The share of values that are no more than some."""
    return sum(value <= most for value in values) / len(values) if values else math.nan


def summary(found: list[Row]) -> str:
    """Geometric means, and how far estimates are off."""
    lines = []
    for name, part in MEANS.items():
        some = [row for row in found if part in row.cluster and row.step is not None]
        ours, joint = mean([row.step for row in some if row.step]), mean([r.joint for r in some])
        others = mean([row.best_known for row in some])
        lines.append(
            f"  {name:<10}{len(some):>4} rows: sharded {ours:.4f}, joint {joint:.4f}, the best of "
            f"auto, data-parallel and os-dpos {others:.4f}"
        )
    off = sorted(abs(row.mirror - 1) for row in found if row.mirror is not None)
    gaps = [row.gap for row in found if row.gap is not None]
    if off:
        lines.append(
            f"  mirror against judge: median {off[len(off) // 2]:.1%} off, over 20 % in "
            f"{sum(one > 0.2 for one in off)} of {len(off)}; labelling gap at most 1 % in "
            f"{share(gaps, 0.01):.0%}, 2 % in {share(gaps, 0.02):.0%}, the largest {max(gaps):.1%}"
        )
    lines.append(f"  nothing fits: {sum(row.step is None for row in found)}")
    lines.append("  worse than joint by more than 5 %:")
    worse = [row for row in found if row.step is None or row.step > 1.05 * row.joint]
    return "\n".join([*lines, *(row.line for row in worse)])


#: Graphs that unequal devices are given, and large ones with their clusters.
UNEQUAL = (
    "vgg19_train_b64",
    "inception_v3_train_b512",
    "gpt3_330m_train_b8",
    "alexnet_train_b256",
    "bert_large_train_b16_s64",
)
LARGE = (
    ("llama3_8b_train_b1_s8192", "8 PCIe"),
    ("llama3_8b_train_b1_s8192", "8 NVLink"),
    ("evoformer_48_train", "8 PCIe"),
)


def unequal() -> None:
    """Prints a line per graph and kind of links, and the geometric mean."""
    found = []
    for links, cluster in (
        ("PCIe", CLUSTERS["4 PCIe"]()),
        ("NVLink", lm.Cluster.preset("8xV100-NVLink").subset(range(4))),
    ):
        slow = cluster.with_speed(0.5, 2).with_speed(0.5, 3)
        for name in UNEQUAL:
            graph = read(name)
            problem = Problem.make(graph, slow, lm.costs.estimate(graph, slow))
            third = float(problem.time.sum(axis=0).min()) / 3
            found.append(sharded.place(problem).verdict.step_time / third)
            print(f"  {links:<8}{name:<36}{found[-1]:>8.3f}", flush=True)
    print(f"  geometric mean {mean(found):.3f}")


def large() -> None:
    """Prints CPU seconds of reading and planning."""
    for name, cluster in LARGE:
        began = time.process_time()
        graph = traced(name)
        read_in = time.process_time() - began
        devices = CLUSTERS[cluster]()
        problem = Problem.make(graph, devices, lm.costs.estimate(graph, devices))
        began = time.process_time()
        step = sharded.place(problem).verdict.step_time / float(problem.time.sum(axis=0).min())
        cpu = time.process_time() - began
        print(f"  {name:<28}{cluster:<10}{step:>8.4f}  read {read_in:.2f}, planned {cpu:.2f} CPU s")


def main() -> None:
    """Prints a line per row, and the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--graph", nargs="*", default=[], help="only graphs with this in their name"
    )
    parser.add_argument("--cluster", nargs="*", default=[], help="only these clusters")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--csv", type=Path, help="a file for the figures")
    parser.add_argument("--unequal", action="store_true", help="two devices of half the speed")
    parser.add_argument("--large", action="store_true", help="CPU seconds of large graphs")
    args = parser.parse_args()
    if args.unequal or args.large:
        (unequal if args.unequal else large)()
        return
    some = [
        row
        for row in rows()
        if (not args.graph or any(part in row.graph for part in args.graph))
        and (not args.cluster or row.cluster in args.cluster)
    ]
    print(HEAD, flush=True)
    found = []
    if args.jobs > 1:
        with ProcessPoolExecutor(args.jobs) as pool:
            for row in pool.map(fill, some, chunksize=1):
                print(row.line, flush=True)
                found.append(row)
    else:
        for row in map(fill, some):
            print(row.line, flush=True)
            found.append(row)
    print(summary(found))
    if args.csv is not None:
        with args.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(vars(found[0])), lineterminator="\n")
            writer.writeheader()
            writer.writerows(vars(row) for row in found)


if __name__ == "__main__":
    main()
