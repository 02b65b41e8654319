"""What sharding takes: a method over one device, judged, on the table that others are held to.

    python benches/sharding.py [--graph NAME ...] [--cluster '8 PCIe' ...] [--jobs N] [--csv FILE]
    python benches/sharding.py --method auto [--effort normal]
    python benches/sharding.py --unequal
    python benches/sharding.py --large
    python benches/sharding.py --experts

The rows are those of ``tests/data/headroom.csv`` that have ``joint`` and one of ``auto``,
``data_parallel`` and ``os_dpos``. Methods other than `sharded` get the rows of :data:`BESIDES`,
too. Per row: the judge's step over one device's (as if that had the memory), with memory held ("-":
nothing that fits was found); ``joint`` of the file; the best of the other methods, each by itself,
as ``results/quality.csv`` has them; the estimate's step over the judge's; the labelling gap; the
mesh, or the best plan in a few words; ops that run; CPU seconds of the strategy, the graph's
dimensions included, its reading not. Geometric means at last.
``--unequal``: two V100s and two of half their speed, over a third of what one fast device takes.
``--large``: CPU seconds of reading and of the strategy, for LLaMA-8B and for Evoformer.
``--experts``: Mixtral by how much more than its fair share the busiest device of experts does.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from data import DATA, traced, traced_names
from quality import CLUSTERS, RESULTS

import loadmaster as lm
from loadmaster.judge.problem import Problem
from loadmaster.strategies import METHODS
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.sharding import sharded

#: The columns of which one must have a figure beside ``joint``.
OTHERS = ("auto", "data_parallel", "os_dpos")

#: Rows that the file has no ``joint`` for, and that methods other than `sharded` get as well.
BESIDES = (
    ("evoformer_48_train", "8 PCIe"),
    ("evoformer_48_train", "4 NVLink"),
    ("evoformer_48_train", "8 NVLink"),
    ("llama3_8b_train_b1_s8192", "4 PCIe"),
)

#: What geometric means are of, by what a cluster's name contains.
MEANS = {"all": "", "8 PCIe": "8 PCIe", "8 NVLink": "8 NVLink"}

#: CPU seconds that planning may take at the effort "fast", by the most ops that run.
CPU = {10_000: 2.0, 50_000: 10.0}

#: A plan that is longer than another method's by more than this share of it is behind.
BEHIND = 0.005


@dataclass
class Row:
    """A row of the file, and what was found."""

    graph: str
    cluster: str
    joint: float | None = None
    judged: float | None = None
    best_known: float | None = None
    peer: float | None = None
    step: float | None = None
    estimate: float | None = None
    gap: float | None = None
    where: str = ""
    ops: int = 0
    cpu: float = 0.0

    @property
    def line(self) -> str:
        """The row as it is printed."""
        figures = (self.step, self.joint, self.judged, self.best_known, self.peer)
        texts = "".join(f"{f:>9.4f}" if f is not None else f"{'-':>9}" for f in figures)
        estimate = "-" if self.estimate is None else f"{self.estimate - 1:+.1%}"
        gap = "-" if self.gap is None else f"{self.gap:.2%}"
        return (
            f"  {self.graph:<36}{self.cluster:<10}{texts}{estimate:>9}{gap:>8}{self.ops:>8}"
            f"{self.cpu:>7.2f}  {self.where}"
        )

    @property
    def behind(self) -> float:
        """By how much the step is longer than that of the best other method, as a share of it."""
        if self.peer is None:
            return 0.0
        return math.inf if self.step is None else self.step / self.peer - 1


def head(method: str) -> str:
    """The line above the rows."""
    names = (method, "joint", "judged", "before", "others")
    columns = "".join(f"{name:>9}" for name in names)
    return f"  {'':<46}{columns}{'estimate':>9}{'gap':>8}{'ops':>8}{'CPU s':>7}  plan"


def rows(method: str) -> list[Row]:
    """The rows of the table for a method."""
    peers: dict[tuple[str, str], float] = {}
    with (RESULTS / "quality.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["kind"] == "models" and row["outcome"] == "fits" and row["method"] != method:
                place = row["graph"], row["cluster"]
                peers[place] = min(float(row["fraction"]), peers.get(place, math.inf))
    with (DATA / "headroom.csv").open(newline="") as file:
        known = [row for row in csv.DictReader(file) if row["graph"] in traced_names()]
    found = [
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
    if method != "sharded":
        found += [Row(*place) for place in BESIDES]
    return [replace(row, peer=peers.get((row.graph, row.cluster))) for row in found]


@lru_cache(maxsize=1)
def read(name: str) -> lm.OpGraph:
    """A graph, kept until the next is asked for."""
    return traced(name)


def fill(row: Row, method: str, options: dict[str, str]) -> Row:
    """The row with what a method found."""
    graph, cluster = read(row.graph), CLUSTERS[row.cluster]()
    problem = Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))
    row.ops = problem.graph.n_ops
    began = time.process_time()
    try:
        found: Candidate | None = METHODS[method][0](problem, **options)
    except lm.InfeasibleError:
        found = None
    row.cpu = time.process_time() - began
    if found is None:
        return row
    row.step = found.verdict.step_time / float(problem.time.sum(axis=0).min())
    if found.assignment.estimate is not None:
        row.estimate = found.assignment.estimate / found.verdict.step_time
    row.where = min(found.offers, key=lambda one: one.seconds).what if found.offers else ""
    for note in found.notes:
        if match := re.search(r"labelling gap ([0-9.]+)%", note):
            row.gap = float(match[1]) / 100
        if (match := re.match(r"on (.+ devices?);", note)) and not row.where:
            row.where = match[1]
    return row


def mean(values: list[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def share(values: list[float], most: float) -> float:
    """The share of values that are no more than some."""
    return sum(value <= most for value in values) / len(values) if values else math.nan


def summary(found: list[Row], method: str) -> str:
    """Geometric means, how far estimates are off, CPU seconds, and which rows are behind."""
    lines = []
    in_file = [row for row in found if row.joint is not None]
    for name, part in MEANS.items():
        some = [row for row in in_file if part in row.cluster and row.step is not None]
        ours, joint = (
            mean([r.step for r in some if r.step]),
            mean([r.joint for r in some if r.joint]),
        )
        before = mean([row.best_known for row in some if row.best_known])
        peers = mean([row.peer for row in some if row.peer])
        lines.append(
            f"  {name:<10}{len(some):>4} rows: {method} {ours:.4f}, joint {joint:.4f}, the best of "
            f"auto, data-parallel and os-dpos before {before:.4f}, of all others {peers:.4f}"
        )
    off = sorted(abs(row.estimate - 1) for row in found if row.estimate is not None)
    gaps = [row.gap for row in found if row.gap is not None]
    if off and gaps:
        lines.append(
            f"  estimate against judge: median {off[len(off) // 2]:.1%} off, over 20 % in "
            f"{sum(one > 0.2 for one in off)} of {len(off)}; labelling gap at most 1 % in "
            f"{share(gaps, 0.01):.0%}, 2 % in {share(gaps, 0.02):.0%}, the largest {max(gaps):.1%}"
        )
    fewest = 0
    for ops, most in CPU.items():
        some = sorted((r for r in found if fewest < r.ops <= ops), key=lambda row: row.cpu)
        if some:
            late = sum(row.cpu > most for row in some)
            lines.append(
                f"  CPU s, up to {ops} ops: median {some[len(some) // 2].cpu:.2f}, most "
                f"{some[-1].cpu:.2f} ({some[-1].graph}, {some[-1].cluster}), over {most:g} in "
                f"{late} of {len(some)}"
            )
        fewest = ops
    lines.append(f"  nothing fits: {sum(row.step is None for row in found)}")
    lines.append("  worse than joint by more than 5 %:")
    lines += [r.line for r in in_file if r.step is None or (r.joint and r.step > 1.05 * r.joint)]
    lines.append(f"  behind the best other method by more than {BEHIND:.1%}:")
    lines += [f"{row.line} {row.behind:+.2%}" for row in found if row.behind > BEHIND]
    return "\n".join(lines)


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


def experts() -> None:
    """Prints a line per cluster and imbalance."""
    graph = read("mixtral_8x7b_infer_b4_s2048")
    for cluster in ("8 PCIe", "8 NVLink"):
        for imbalance in (1.0, 1.2, 2.0):
            devices = CLUSTERS[cluster]()
            costs = lm.costs.estimate(graph, devices)
            problem = Problem.make(graph, devices, costs, expert_imbalance=imbalance)
            step = sharded.place(problem).verdict.step_time
            share = step / float(problem.time.sum(axis=0).min())
            print(f"  {cluster:<10}{imbalance:>5.1f}{step:>9.4f} s{share:>9.4f}", flush=True)


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
    parser.add_argument("--method", default="sharded", choices=list(METHODS), metavar="NAME")
    parser.add_argument("--effort", help="of auto: fast, normal, max")
    parser.add_argument("--experts", action="store_true", help="uneven experts of Mixtral")
    args = parser.parse_args()
    for chosen, run in ((args.unequal, unequal), (args.large, large), (args.experts, experts)):
        if chosen:
            run()
            return
    some = [
        row
        for row in rows(args.method)
        if (not args.graph or any(part in row.graph for part in args.graph))
        and (not args.cluster or row.cluster in args.cluster)
    ]
    print(head(args.method), flush=True)
    filled = partial(
        fill, method=args.method, options={"effort": args.effort} if args.effort else {}
    )
    found = []
    with ProcessPoolExecutor(args.jobs) as pool:
        for row in pool.map(filled, some, chunksize=1):
            print(row.line, flush=True)
            found.append(row)
    print(summary(found, args.method))
    if args.csv is not None:
        with args.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(vars(found[0])), lineterminator="\n")
            writer.writeheader()
            writer.writerows(vars(row) for row in found)


if __name__ == "__main__":
    main()
