"""What ``auto`` gains in 15 seconds over the best list schedule: over ours, and over the same
algorithms as published. Written to ``results/against-lists.md``.

    python benches/against_lists.py [--graphs NAME ...] [--clusters NAME ...] [--fresh]

Every traced model at hand whose parallelism (work over critical path, transfers free) is
above 1.3, on every cluster that the ledger has it on: with room, memory-tight, and as in the
design's table. ``auto`` counts its effort (``"normal"``, on one thread),
so that its plans are the same on every run; seconds are of CPU. What is done is kept in
``.against_lists.jsonl`` under a digest of the installed package: a run that was broken off goes on.
An hour of one core.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from data import traced_graphs
from quality import HERE, KINDS, Task, package_digest, records, table, tasks

from loadmaster import fast
from loadmaster.base.errors import InfeasibleError
from loadmaster.judge.bounds import bound
from loadmaster.judge.problem import Problem
from loadmaster.strategies import METHODS

#: All of the list schedulers; ``getf`` is ``etf`` where devices are alike.
LISTS = ("heft", "cpop", "peft", "etf", "m-etf", "m-sct", "dpos")

#: Their options for what the papers describe: one pass, any number of transfers at once. Ours keep
#: to the capacity of channels, and ``heft`` makes several rounds and weighs delays.
PUBLISHED: dict[str, dict[str, object]] = {
    method: {"contention": False, **({"rounds": 1} if method == "heft" else {})} for method in LISTS
}

PARALLELISM = 1.3

#: Kinds of the ledger whose graphs are models, as the report calls them.
MODELS = {"models": "with room", "tight": "memory-tight", "design": "the design's table"}

#: What ``auto`` is to gain, in the geometric mean.
TARGET = 0.15


@dataclass(frozen=True)
class Case:
    """A model on a cluster: fractions of one device (as if it had the memory), NaN where nothing
    fits.
    """

    kind: str
    graph: str
    cluster: str
    parallelism: float
    bound: float
    lists: dict[str, float]
    published: dict[str, float]
    auto: float
    seconds: float

    @property
    def best(self) -> tuple[str, float]:
        """The best list scheduler and its figure; none: NaN."""
        return least(self.lists)

    @property
    def ratio(self) -> float:
        """Of auto's step time to the best list schedule's."""
        return self.auto / self.best[1]

    @property
    def best_published(self) -> tuple[str, float]:
        """The same as published."""
        return least(self.published)

    @property
    def ratio_published(self) -> float:
        """Of auto's step time to that one's."""
        return self.auto / self.best_published[1]

    @property
    def gap(self) -> float:
        """How much shorter the step could be at most."""
        return 1 - self.bound / self.auto

    @property
    def is_possible(self) -> bool:
        """Whether the bound leaves room to gain the target."""
        return self.bound <= (1 - TARGET) * self.best[1]


def least(fractions: dict[str, float]) -> tuple[str, float]:
    """The name of the least figure, and that; none: NaN."""
    fitting = {name: f for name, f in fractions.items() if not math.isnan(f)}
    return min(fitting.items(), key=lambda item: item[1], default=("", math.nan))


def parallelism(problem: Problem) -> float:
    """Work over critical path, transfers free."""
    graph = problem.graph
    top, bottom = fast.levels(fast.Weights(graph, problem.op_time))
    return float(problem.op_time.sum() / (top + bottom).max())


def fraction(problem: Problem, method: str, **options: object) -> float:
    """Step time of a method's plan as a fraction of one device."""
    types = problem.cluster.device_types
    one = float(problem.time.sum(axis=0)[types].min())
    try:
        found = METHODS[method][0](problem, **options)
    except InfeasibleError:
        return math.nan
    return found.schedule.makespan / one if found.fits else math.nan


def measured(kind: str, graph: str, cluster: str, problem: Problem) -> Case:
    """One case, planned by all."""
    types = problem.cluster.device_types
    one = float(problem.time.sum(axis=0)[types].min())
    lists = {method: fraction(problem, method) for method in LISTS}
    published = {method: fraction(problem, method, **PUBLISHED[method]) for method in LISTS}
    published["single"] = fraction(problem, "single")
    began = time.process_time()
    found = fraction(problem, "auto", effort="normal", time_limit=600.0, threads=1)
    seconds = time.process_time() - began
    low = bound(problem).seconds / one
    return Case(kind, graph, cluster, parallelism(problem), low, lists, published, found, seconds)


def cases(path: Path, words: list[str], clusters: list[str], fresh: bool) -> list[Case]:
    """All of them, from the file or planned now."""
    digest = package_digest()
    kept: dict[tuple[str, str, str], Case] = {}
    if path.exists() and not fresh:
        for record in records(path, digest):
            case = Case(**record)
            kept[case.kind, case.graph, case.cluster] = case
    if not kept:
        path.write_text("")
    found = []
    for task in ledger(words, clusters):
        if task.place not in kept:
            problem = KINDS[task.kind](task.graph, task.cluster)
            if parallelism(problem) <= PARALLELISM:
                continue
            case = measured(*task.place, problem)
            kept[task.place] = case
            with path.open("a") as file:
                file.write(json.dumps({"digest": digest, **asdict(case)}) + "\n")
            print(
                f"{case.graph} on {case.cluster}: auto {case.auto:.3f} ({case.seconds:.1f} s), "
                f"lists {case.best[1]:.3f}, as published {case.best_published[1]:.3f}, "
                f"bound {case.bound:.3f}",
                flush=True,
            )
        found.append(kept[task.place])
    return found


def ledger(words: list[str], clusters: list[str]) -> list[Task]:
    """Models of the ledger on its clusters, small ones first; none named: all."""
    found = [task for task in tasks((), None, quick=False) if task.kind in MODELS]
    if words:
        found = [task for task in found if any(word in task.graph for word in words)]
    if clusters:
        found = [task for task in found if task.cluster in clusters]

    sizes = {path.name.removesuffix(".json.gz"): path.stat().st_size for path in traced_graphs()}
    return sorted(
        found, key=lambda task: (list(MODELS).index(task.kind), sizes[task.graph], task.graph)
    )


def compared(ratios: list[float]) -> list[str]:
    """How many, how much shorter a step is and how many more there are in a second in the geometric
    mean, and how many are longer; NaN where nothing fits counts for nothing.
    """
    some = [ratio for ratio in ratios if not math.isnan(ratio)]
    if not some:
        return ["0", "", "", "0"]
    mean = statistics.geometric_mean(some)
    longer = sum(ratio > 1 + 1e-9 for ratio in some)
    return [str(len(some)), f"{1 - mean:.1%}", f"{1 / mean - 1:.1%}", str(longer)]


def page(found: list[Case], options: list[str]) -> str:
    """The page ``against-lists.md``, and the options that made it."""
    both = [c for c in found if not math.isnan(c.ratio)]
    alone = [c for c in found if math.isnan(c.best[1]) and not math.isnan(c.auto)]
    groups = {
        "all": both,
        "with room": [c for c in both if c.kind == "models"],
        "with room on PCIe": [c for c in both if c.kind == "models" and "PCIe" in c.cluster],
        "with room on NVLink": [c for c in both if c.kind == "models" and "NVLink" in c.cluster],
        "memory-tight": [c for c in both if c.kind == "tight"],
        "the design's table": [c for c in both if c.kind == "design"],
        "where the bound leaves 15 %": [c for c in both if c.is_possible],
        "where it does not": [c for c in both if not c.is_possible],
    }
    summary = [
        [
            name,
            *compared([c.ratio for c in some]),
            *compared([c.ratio_published for c in some]),
        ]
        for name, some in groups.items()
    ]
    lines = [
        "# `auto` against list schedulers",
        "",
        f"    {shlex.join(['python', 'benches/against_lists.py', *options])}",
        "",
        f"How much shorter a step is by `auto` with effort `normal` (what fits within 15 seconds) "
        f"than by the best of {', '.join(LISTS)}: models with parallelism above {PARALLELISM}, "
        f"geometric means. Target: {TARGET:.0%}.",
        "",
        "*Best list*: as Loadmaster does them. They reckon with a channel that carries one "
        "transfer at a time, and leave everything on one device where that is faster (1.000); "
        "`heft` ranks and places in six rounds, each by the placement of the one before, and "
        "weighs what transfers delay others by: an iterated improvement itself. *As published*: "
        "`contention=False`, and `heft` with `rounds=1`: one pass each, to which any number of "
        "transfers at once is free, as in the papers. One device for everything counts among "
        "these, too. All plans are timed by the same simulator, where transfers wait for each "
        "other.",
        "",
        *table(
            [
                "cases",
                "how many",
                "shorter than the best list by",
                "more steps per second",
                "where auto is longer",
                "how many",
                "shorter than as published by",
                "more steps per second",
                "where auto is longer",
            ],
            summary,
        ),
        "Fractions of one device. *No room for 15 %*: the lower bound is above 0.85 of the best "
        "list schedule, so that no placement can be 15 % shorter. CPU seconds of `auto`: "
        f"{statistics.median(c.seconds for c in found):.1f} in the median, "
        f"{max(c.seconds for c in found):.1f} at most.",
        "",
    ]
    each = [[name, *compared([c.auto / c.lists[name] for c in found])] for name in LISTS]
    lines += [
        "By one list scheduler at a time, as Loadmaster does it, where it fits:",
        "",
        *table(
            [
                "list scheduler",
                "how many",
                "auto is shorter by",
                "more steps per second",
                "where auto is longer",
            ],
            sorted(each, key=lambda row: float(row[2].rstrip("%") or 0)),
        ),
    ]
    if alone:
        where = ", ".join(f"{c.graph} on {c.cluster}" for c in alone)
        lines += [f"Where no list schedule fits, but `auto` does: {where}.", ""]
    body = []
    for c in both:
        (name, best), (one_pass, published) = c.best, c.best_published
        body.append(
            [
                f"{c.graph}, {c.cluster}",
                f"{c.parallelism:.2f}",
                f"{c.bound:.3f}",
                f"{best:.3f} ({name})",
                f"{published:.3f} ({one_pass})",
                f"{c.auto:.3f}",
                f"{1 - c.ratio:.1%}",
                f"{1 - c.ratio_published:.1%}",
                f"{c.gap:.1%}",
                "" if c.is_possible else "no room for 15 %",
            ]
        )
    head = [
        "graph",
        "parallelism",
        "bound",
        "best list",
        "as published",
        "auto",
        "shorter by",
        "than as published by",
        "gap to bound",
        "",
    ]
    return "\n".join([*lines, *table(head, body)])


def main() -> None:
    """Plans what is not planned yet, then writes the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--graphs", nargs="+", default=[], help="only graphs whose names contain one of these"
    )
    parser.add_argument(
        "--clusters", nargs="+", default=[], help="only these, as the ledger calls them"
    )
    parser.add_argument("--fresh", action="store_true", help="forget what has been planned")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder of the page")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    kept = arguments.out / ".against_lists.jsonl"
    found = cases(kept, arguments.graphs, arguments.clusters, arguments.fresh)
    if not found:
        parser.error(f"no such graph has parallelism above {PARALLELISM} on such a cluster")
    options = ["--graphs", *arguments.graphs] if arguments.graphs else []
    if arguments.clusters:
        options += ["--clusters", *arguments.clusters]
    text = page(found, options)
    (arguments.out / "against-lists.md").write_text(text.strip() + "\n")


if __name__ == "__main__":
    main()
