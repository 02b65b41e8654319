"""The ledger of quality: every strategy on every graph, written to ``results/``.

    python benches/quality.py [--quick] [--graphs NAME ...] [--methods NAME ...]
                              [--limit SECONDS] [--jobs N] [--fresh] [--only SECTION]

``quality.md`` has the plans, ``coarseners.md`` what a placer makes of each coarsener's groups.
``--only coarsening`` writes the second alone.

``quality.md``, ``quality.csv`` (every figure of every plan) and ``quality.svg`` hold what is the
same on every run: makespans, bounds, memory. Seconds of planning are not, and stand in
``quality-seconds.md``; nor is the one word ``late``, for a method that took longer than the limit.

Every graph on every cluster is a process of its own, which plans by one method after another; one
that is late is killed, and a fresh process goes on with the next. What is done is kept in
``.quality.jsonl`` under a digest of the installed package, so that a run that was broken off goes
on where it was, and a changed package starts anew. Needs the ``bench`` extra.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import multiprocessing
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
from data import DATA, of_these_at_hand, traced, traced_graphs

import loadmaster as lm
from loadmaster import fast
from loadmaster.base.errors import InfeasibleError, LoadmasterError
from loadmaster.judge.coarsening import Coarse, Coarsener, coarsen_problem
from loadmaster.judge.problem import Problem
from loadmaster.readers.instances import Instance
from loadmaster.strategies import METHODS
from loadmaster.strategies.auto.v_cycle import polished
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.deciders import deciders
from loadmaster.strategies.groups.celeritas import adjusting_placement
from loadmaster.strategies.groups.segments import OrderSegments

HERE = Path(__file__).parent
RESULTS = HERE / "results"

#: What fits within a second, and time to spare for it: so it is the same on every run.
OPTIONS: dict[str, dict[str, Any]] = {"auto": {"effort": "fast", "time_limit": 60.0, "threads": 1}}

#: Known-optimum instances: ops, devices, CCRs, seeds.
PLANTED = [
    (1000, k, ccr, seed) for k in (2, 4, 8) for ccr in (0.1, 1.0, 10.0) for seed in (0, 1, 2)
]

#: The table of the design (section 8): best found per road, as fractions of one device.
DESIGN = {
    "mixtral_8x7b_infer_b4_s2048": (0.22, 0.51, 1.00, 0.54, 0.42),
    "nasneta_large_train_b32": (0.32, 0.61, 0.71, 0.61, 0.45),
    "rnnlm_2x2048_train_b128": (0.37, 0.87, 0.56, 0.44, 0.44),
    "bert_large_train_b16_s64": (0.51, 0.68, 0.69, 0.71, 0.61),
    "transformer_12x2048_h16_train_b256": (0.54, 0.61, 0.79, 0.86, 0.60),
    "inception_v3_train_b512": (0.67, 1.02, 0.90, 0.82, 0.74),
    "evoformer_48_infer": (0.74, 1.08, 1.00, 1.00, 0.94),
    "whisper_large_v3_infer_b8": (0.76, 0.83, 1.00, 1.00, 0.83),
}
#: Methods that call a solver are measured by ``exact.py``, the papers' searches by ``rivals.py``.
ELSEWHERE = ("ilp", "cpsat", "pesto", "moirai", "mcmc", "cross-entropy", "policy-gradient")
LEDGER = [m for m in METHODS if m not in ELSEWHERE]

#: Methods that split ops: what they place is another graph.
SHARDING = ("sharded", "megatron", "fsdp")
PIPELINES = ("pipeline", "gpipe", "pipedream", "max-load", "piper")
SPLITTING = ("data-parallel", "os-dpos", *SHARDING, *PIPELINES)

#: Graphs that do not say what their ops were called with, so that they cannot be sharded.
BARE = ("planted", "heterogeneous")

#: A plan that takes longer than another method's by more than this share of it is behind.
BEHIND = 0.005

DESIGN_COLUMNS = ("critical path", "HEFT on all ops", "300 groups", "heaviest edge", "search 15 s")

#: Coarseners whose groups one placer places, and how many groups.
COARSENERS: tuple[Coarsener, ...] = ("sequential", "batch", "parallel", "multilevel")
COARSE_GROUPS = 200

#: Models on 4 PCIe devices that together have so many times the memory of a sequential run.
TIGHT_GRAPHS = (
    "alexnet_train_b256",
    "bert_large_train_b16_s64",
    "gpt3_330m_train_b8",
    "inception_v3_train_b512",
    "resnet200_train_b32",
    "rnnlm_2x2048_train_b128",
    "tensorholo_train_b32",
    "transformer_6x2048_h16_train_b32",
    "vgg19_train_b64",
)
TIGHT = (1.05, 1.2, 1.5)

QUICK_GRAPHS = ("alexnet_train_b256", "inception_v3_train_b512", "rnnlm_2x2048_train_b128")


@dataclass(frozen=True)
class Task:
    """A graph on a cluster, by several methods. ``kind`` is a key of :data:`KINDS`."""

    kind: str
    graph: str
    cluster: str
    methods: tuple[str, ...]

    @property
    def place(self) -> tuple[str, str, str]:
        """What a row is filed under, but for the method."""
        return self.kind, self.graph, self.cluster


@dataclass(frozen=True)
class Row:
    """One plan, or why there is none.

    ``one`` is the time of all ops on the fastest device, as if it had the memory; ``peak`` the
    largest share of a device's memory in use; ``estimate`` the strategy's own figure.
    """

    kind: str
    graph: str
    cluster: str
    method: str
    outcome: str  # "fits", "short" (of memory), "late", "missing" (an extra), "error"
    one: float = math.nan
    bound: float = math.nan
    makespan: float = math.nan
    peak: float = math.nan
    estimate: float = math.nan
    seconds: float = math.nan
    notes: list[str] = field(default_factory=list)

    @property
    def fraction(self) -> float:
        """Step time as a fraction of one device's."""
        return self.makespan / self.one

    @property
    def gap(self) -> float:
        """To the bound; for planted instances, whose bound is the optimum, over the optimum."""
        if self.kind == "planted":
            return self.makespan / self.bound - 1
        return (self.makespan - self.bound) / self.makespan


# -- what is planned ---------------------------------------------------------------------------


def pcie(n: int) -> lm.Cluster:
    """V100s of 32 GB on PCIe: the preset's, with as many devices as asked for."""
    preset = lm.Cluster.preset("4xV100-PCIe")
    first, link = preset.devices[0], preset.links[0]
    devices = [lm.Device(f"gpu{i}", first.type, first.memory) for i in range(n)]
    links = [
        lm.Link(a.name, b.name, link.bandwidth, link.latency, (f"{a.name}.tx", f"{b.name}.rx"))
        for a in devices
        for b in devices
        if a != b
    ]
    return lm.Cluster(devices, links, preset.types, name=f"{n}xV100-PCIe")


def nvlink(n: int) -> lm.Cluster:
    """The first A100s of 80 GB of the NVLink preset."""
    return lm.Cluster.preset("8xA100-NVLink").subset(range(n))


CLUSTERS: dict[str, Callable[[], lm.Cluster]] = {
    f"{n} {name}": (lambda make=make, n=n: make(n))
    for name, make in (("PCIe", pcie), ("NVLink", nvlink))
    for n in (2, 4, 8)
}


def model_problem(graph: str, cluster: str) -> Problem:
    """A traced model on a preset."""
    model, devices = traced(graph), CLUSTERS[cluster]()
    return Problem.make(model, devices, lm.costs.estimate(model, devices))


def heterogeneous_problem(graph: str, cluster: str) -> Problem:
    """A measured model on its own cluster."""
    model = lm.read(DATA / "heterogeneous" / f"{graph}.json.gz")
    devices = lm.Cluster.read(DATA / "heterogeneous" / f"{graph}.cluster.toml")
    return Problem.make(model, devices, lm.costs.estimate(model, devices))


def design_problem(graph: str, cluster: str) -> Problem:
    """A model of the design's table at its costs: max(FLOPs / 7e12 (bf16: 62.5e12), bytes / 630e9)
    + 5 us in whole us per op of the reduced graph, on 4 equal devices with memory to spare, one
    channel per directed pair, 10 us + 12 GB/s.
    """
    model = traced(graph)
    devices = lm.Cluster.mesh(4, memory="1PiB", bandwidth=12e9, latency=10e-6)
    half = np.array([output.startswith("bf16") for output in model.outputs])
    flops = model.flops / np.where(half, 62.5e12, 7e12)
    busy = np.maximum(flops, model.bytes_accessed / 630e9)
    runs = np.zeros(model.n_ops, dtype=bool)
    runs[model.reduced.op_of] = True
    seconds = np.where(runs, np.rint((busy + 5e-6) * 1e6) * 1e-6, 0.0)
    return Problem.make(model, devices, lm.Costs.given(seconds, model, devices))


def tight_problem(graph: str, cluster: str) -> Problem:
    """A traced model on 4 PCIe devices whose memory, all together, is the peak of a sequential run
    of it, times the factor that the cluster is named for.
    """
    model, preset = traced(graph), pcie(4)
    peak, _ = fast.peak_bytes(model.reduced_for(tuple(t.name for t in preset.types)).graph)
    each = math.ceil(peak * float(cluster.removeprefix("4 PCIe x")) / 4)
    devices = [lm.Device(d.name, d.type, each) for d in preset.devices]
    tight = lm.Cluster(devices, preset.links, preset.types, name=cluster)
    return Problem.make(model, tight, lm.costs.estimate(model, tight))


def planted_instance(graph: str) -> Instance:
    """The instance of a name: ops, devices, CCR and seed."""
    n_ops, devices, ccr, seed = graph.split("-")[1:]
    return lm.instances.load(f"planted/{n_ops}x{devices}-ccr{ccr}-{seed}")


def planted_problem(graph: str, cluster: str) -> Problem:
    """An instance whose optimum is known."""
    found = planted_instance(graph)
    costs = lm.costs.estimate(found.graph, found.cluster)
    return Problem.make(found.graph, found.cluster, costs)


KINDS = {
    "models": model_problem,
    "heterogeneous": heterogeneous_problem,
    "design": design_problem,
    "planted": planted_problem,
    "tight": tight_problem,
}


def tasks(methods: tuple[str, ...], graphs: Sequence[str] | None, quick: bool) -> list[Task]:
    """All of them: the small tables first, then the largest graphs, so that no core is left with
    one at the end.
    """
    files = sorted(traced_graphs(), key=lambda f: (-f.stat().st_size, f.name))
    names = [f.name.removesuffix(".json.gz") for f in files]
    measured = sorted(
        f.name.removesuffix(".json.gz") for f in (DATA / "heterogeneous").glob("*.json.gz")
    )
    planted = [f"planted-{n}-{k}-{ccr:g}-{seed}" for n, k, ccr, seed in PLANTED]
    clusters = list(CLUSTERS)
    if quick:
        names, clusters = [n for n in names if n in QUICK_GRAPHS], clusters[1:2]
        planted = [p for p in planted if p.endswith("-1-0")]
    found = [
        Task("design", n, "4 equal", methods)
        for n in of_these_at_hand(DESIGN)
        if not quick or n in names
    ]
    found += [Task("planted", n, "equal", methods) for n in planted]
    found += [
        Task("tight", n, f"4 PCIe x{factor}", methods)
        for n in of_these_at_hand(TIGHT_GRAPHS)
        for factor in TIGHT
        if not quick
    ]
    found += [Task("heterogeneous", n, "its own", methods) for n in measured]
    found += [Task("models", n, c, methods) for n in names for c in clusters]
    if graphs:
        found = [t for t in found if any(word in t.graph for word in graphs)]
    cut = tuple(method for method in methods if method not in SHARDING)
    return [replace(t, methods=cut) if t.kind in BARE else t for t in found]


# -- one placer on the groups of each coarsener ---------------------------------------------------


def coarsening_rows() -> list[list[str]]:
    """Step times by Adjusting Placement, before and after refinement: a line per graph."""
    pairs: dict[str, list[tuple[float, float]]] = {method: [] for method in COARSENERS}
    body = []
    for graph in of_these_at_hand(DESIGN):
        problem = design_problem(graph, "4 equal")
        one = float(problem.op_time.sum())
        cells = [graph]
        for method in COARSENERS:
            placed = adjusting_groups(problem, coarsen_problem(problem, method, COARSE_GROUPS))
            after = polished(problem, placed)
            pair = placed.verdict.step_time / one, after.verdict.step_time / one
            pairs[method].append(pair)
            cells.append(f"{pair[0]:.3f} -> {pair[1]:.3f}")
        print(*cells, flush=True)
        body.append(cells)
    means = [
        tuple(statistics.geometric_mean(pair[i] for pair in found) for i in (0, 1))
        for found in pairs.values()
    ]
    body.append(["geometric mean", *(f"{before:.3f} -> {after:.3f}" for before, after in means)])
    gains = [statistics.geometric_mean(b / a for a, b in found) - 1 for found in pairs.values()]
    worst = [max(b / a for a, b in found) - 1 for found in pairs.values()]
    body.append(["refinement, mean", *(f"{gain:+.1%}" for gain in gains)])
    body.append(["refinement, at worst", *(f"{most:+.1%}" for most in worst)])
    return body


def adjusting_groups(problem: Problem, coarse: Coarse) -> Candidate:
    """Celeritas' Adjusting Placement on groups: the same placer, whoever made them."""
    segments = OrderSegments(problem, coarse.group, fast.cpd_topo(problem.weights))
    best: Candidate | None = None
    for lead in deciders(problem.graph):
        placed = adjusting_placement(segments, lead, problem.reduced.held_at_peak, problem.capacity)
        found = judged(problem, placed)
        best = found if best is None else problem.objective.better(best, found)
    assert best is not None
    return best


def coarseners_page() -> str:
    """The page ``coarseners.md``."""
    lines = [
        "# Coarseners, with and without refinement",
        "",
        "    python benches/quality.py --only coarsening",
        "",
        f"Step time as a share of one device, by Adjusting Placement on {COARSE_GROUPS} groups of "
        "each coarsener, before -> after refinement (`refine=True`); the design's graphs, costs "
        "and 4 devices.",
        "",
        *table(["graph", *COARSENERS], coarsening_rows()),
    ]
    return "\n".join(lines)


# -- planning, one process per task ------------------------------------------------------------


def work(task: Task, answers: Connection) -> None:
    """Sends a row per method, in order; runs in a process of its own."""
    problem = KINDS[task.kind](task.graph, task.cluster)
    types = problem.cluster.device_types
    one = float(problem.time.sum(axis=0)[types].min())
    if task.kind == "planted":
        bound = planted_instance(task.graph).optimum
    else:
        bound = float(fast.bounds(problem.core)["best"])
    for method in task.methods:
        answers.send(None)
        answers.send(planned(task, problem, method, one, bound))


def planned(task: Task, problem: Problem, method: str, one: float, bound: float) -> Row:
    """The row of one method, as a user of ``lm.place`` would get it."""
    began = time.perf_counter()

    def row(outcome: str, **figures: Any) -> Row:
        took = time.perf_counter() - began
        return Row(*task.place, method, outcome, one=one, bound=bound, seconds=took, **figures)

    try:
        options = OPTIONS.get(method, {})
        plan = lm.place(problem.model, problem.cluster, method, problem.costs, **options)
    except InfeasibleError as error:
        return row("short", notes=[str(error)])
    except lm.MissingExtraError as error:
        return row("missing", notes=[str(error)])
    except LoadmasterError as error:
        return row("error", notes=[f"{type(error).__name__}: {error}"])
    except Exception:
        return row("error", notes=[traceback.format_exc(limit=-2)])
    done = row("fits", makespan=plan.makespan)
    share = float((plan.memory.peak / plan.memory.capacity).max())
    return Row(
        **{
            **asdict(done),
            "peak": share,
            "estimate": math.nan if plan.estimate is None else plan.estimate,
            "notes": list(plan.notes),
        }
    )


class Runner:
    """A process that works on a task, and the method it is at."""

    def __init__(self, task: Task) -> None:
        context = multiprocessing.get_context("spawn")
        self.task = task
        self.answers, far = context.Pipe(duplex=False)
        self.process = context.Process(target=work, args=(task, far))
        self.process.start()
        far.close()
        self.done = 0
        self.since = time.monotonic()

    def stop(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.join()
        self.answers.close()

    def rest(self) -> Task | None:
        """The task from the method after the one it is at."""
        left = self.task.methods[self.done + 1 :]
        return Task(*self.task.place, left) if left else None

    def gone(self, outcome: str, note: str) -> Row:
        """The row of the method it is at, which has not come."""
        method = self.task.methods[self.done]
        return Row(*self.task.place, method, outcome, notes=[note])


def run(todo: list[Task], jobs: int, limit: float, keep: Callable[[Row], None]) -> None:
    """Works through tasks in as many processes as asked for."""
    waiting, running = todo[::-1], []
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(Runner(waiting.pop()))
        wait([r.answers for r in running], timeout=1.0)
        for runner in list(running):
            after = advanced(runner, limit, keep)
            if after is runner:
                continue
            runner.stop()
            running.remove(runner)
            if after is not None:
                waiting.append(after)


def advanced(runner: Runner, limit: float, keep: Callable[[Row], None]) -> Runner | Task | None:
    """Takes what has come: the runner while it goes on, else what is left of its task."""
    try:
        while runner.answers.poll():
            row = runner.answers.recv()
            runner.since = time.monotonic()
            if row is not None:
                keep(row)
                runner.done += 1
    except EOFError:
        if runner.done == len(runner.task.methods):
            return None
        keep(runner.gone("error", f"its process ended with {runner.process.exitcode}"))
        return runner.rest()
    if time.monotonic() - runner.since > limit and runner.done < len(runner.task.methods):
        keep(runner.gone("late", f"not planned within {limit:g} s"))
        return runner.rest()
    return runner


def package_digest() -> str:
    """Of the installed package, compiled parts included, and of what this file measures with."""
    digest = hashlib.sha256()
    root = Path(lm.__file__).parent
    files = [*root.rglob("*.py"), *root.rglob("*.so"), *root.rglob("*.pyd"), *root.rglob("*.toml")]
    for file in [*sorted(files), HERE / "quality.py"]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def records(path: Path, digest: str) -> Iterator[dict[str, Any]]:
    """What a file of JSON objects holds under a digest; a line cut off by a kill is not there."""
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if record.pop("digest") == digest:
            yield record


class Kept:
    """Rows on disk, one JSON object a line, under the package's digest."""

    def __init__(self, path: Path, fresh: bool) -> None:
        self.path = path
        self.digest = package_digest()
        self.rows: dict[tuple[str, ...], Row] = {}
        if path.exists() and not fresh:
            for record in records(path, self.digest):
                self._take(Row(**record))
        if not self.rows:
            path.write_text("")

    def _take(self, row: Row) -> None:
        self.rows[row.kind, row.graph, row.cluster, row.method] = row

    def add(self, row: Row) -> None:
        """Keeps a row, and says so."""
        self._take(row)
        with self.path.open("a") as file:
            file.write(json.dumps({"digest": self.digest, **asdict(row)}) + "\n")
        where = f"{row.kind} {row.graph} on {row.cluster}"
        print(f"{row.method:14} {row.outcome:7} {row.fraction:6.3f} {row.seconds:7.2f} s  {where}")

    def left(self, task: Task) -> Task | None:
        """A task without the methods that are done."""
        left = tuple(m for m in task.methods if (*task.place, m) not in self.rows)
        return Task(*task.place, left) if left else None


# -- the report --------------------------------------------------------------------------------


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown: the first column to the left, the others to the right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *body)] + [""]


def cell(row: Row | None, figure: str = "fraction", form: str = ".2f") -> str:
    """A figure of a row, or the word for why there is none."""
    if row is None:
        return ""
    return format(getattr(row, figure), form) if row.outcome == "fits" else row.outcome


def bold_least(cells: list[str]) -> list[str]:
    """The smallest figures of a row in bold."""
    numbers = [float(c) for c in cells if c[:1].isdigit()]
    least = min(numbers, default=math.nan)
    return [f"**{c}**" if c[:1].isdigit() and float(c) == least else c for c in cells]


def grid(rows: list[Row], methods: Sequence[str], label: Callable[[Row], str]) -> list[str]:
    """Fractions of one device: a line per graph, a column per method, the bound first."""
    lines: dict[str, dict[str, Row]] = {}
    for row in rows:
        lines.setdefault(label(row), {})[row.method] = row
    body = []
    for name, by_method in lines.items():
        bounds = [r.bound / r.one for r in by_method.values() if not math.isnan(r.bound)]
        cells = bold_least([cell(by_method.get(m)) for m in methods])
        body.append([name, f"{bounds[0]:.2f}" if bounds else "", *cells])
    return table(["graph", "bound", *methods], body)


def summary(rows: list[Row], methods: Sequence[str]) -> list[str]:
    """A line per method over all plans of models."""
    best: dict[tuple[str, str], float] = {}
    for row in rows:
        if row.outcome == "fits":
            place = row.graph, row.cluster
            best[place] = min(best.get(place, math.inf), row.makespan)
    body = []
    for method in methods:
        mine = [r for r in rows if r.method == method]
        fits = [r for r in mine if r.outcome == "fits"]
        if not fits:
            body.append([method, *[""] * 5, *outcomes(mine), ""])
            continue
        ratios = [r.makespan / best[r.graph, r.cluster] for r in fits]
        errors = [abs(r.estimate / r.makespan - 1) for r in fits if not math.isnan(r.estimate)]
        body.append(
            [
                method,
                f"{statistics.geometric_mean(r.fraction for r in fits):.3f}",
                f"{statistics.geometric_mean(ratios):.3f}",
                str(sum(ratio <= 1 + 1e-9 for ratio in ratios)),
                f"{statistics.median(r.gap for r in fits):.1%}",
                f"{max(r.peak for r in fits):.1%}",
                *outcomes(mine),
                f"{statistics.mean(errors):.1%}" if errors else "",
            ]
        )
    head = ["method", "of one device", "of the best", "best", "gap, median", "peak memory, most"]
    return table([*head, "fits", "short", "late", "other", "estimate off by"], body)


def outcomes(rows: list[Row]) -> list[str]:
    """How many plans fit, do not fit, came late, failed otherwise."""
    words = [row.outcome for row in rows]
    counts = [words.count(word) for word in ("fits", "short", "late")]
    return [str(count) for count in (*counts, len(words) - sum(counts))]


def design_table(rows: list[Row], methods: Sequence[str]) -> list[str]:
    """The design's columns beside the methods'."""
    lines: dict[str, dict[str, Row]] = {}
    for row in rows:
        lines.setdefault(row.graph, {})[row.method] = row
    body = []
    for graph, figures in DESIGN.items():
        if graph not in lines:
            continue
        cells = bold_least([cell(lines[graph].get(m), form=".3f") for m in methods])
        body.append([graph, *[f"{f:.2f}" for f in figures], *cells])
    return table(["graph", *DESIGN_COLUMNS, *methods], body)


def planted_table(rows: list[Row], methods: Sequence[str]) -> list[str]:
    """Mean gap to the optimum over the seeds, per devices and CCR."""
    lines: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        _, _, devices, ccr, _ = row.graph.split("-")
        name = f"{devices} devices, CCR {ccr}"
        lines.setdefault(name, {}).setdefault(row.method, []).append(row)

    def mean_gap(found: list[Row]) -> str:
        missing = [r.outcome for r in found if r.outcome != "fits"]
        if not found or missing:
            return missing[0] if missing else ""
        return f"{statistics.mean(r.gap for r in found) * 100:.2f}"

    body = [
        [name, *bold_least([mean_gap(by_method.get(m, [])) for m in methods])]
        for name, by_method in lines.items()
    ]
    return table(["over the optimum, %", *methods], body)


def behind(rows: list[Row]) -> list[str]:
    """Where another method that places the same ops does better than auto, the worst first."""
    placed: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in rows:
        if row.method not in SPLITTING:
            placed.setdefault((row.kind, row.graph, row.cluster), {})[row.method] = row
    found, cases, ahead = [], 0, 0
    for (_, graph, cluster), by_method in placed.items():
        auto = by_method.pop("auto", None)
        fits = [row for row in by_method.values() if row.outcome == "fits"]
        if auto is None or not (fits or auto.outcome == "fits"):
            continue
        cases += 1
        best = min(fits, key=lambda row: row.makespan, default=auto)
        ratio = auto.makespan / best.makespan if auto.outcome == "fits" else math.inf
        if ratio > 1 + 1e-6:
            figures = [cell(auto, form=".4f"), f"{cell(best, form='.4f')} ({best.method})"]
            more = "" if math.isinf(ratio) else f"{ratio - 1:.2%}"
            bound = f"{best.bound / best.one:.4f}"
            found.append((-ratio, [f"{graph}, {cluster}", bound, *figures, more]))
        ahead += ratio < 1 - 1e-6
    lines = [
        "## `auto` against all that place the same ops",
        "",
        f"Of {cases} cases in which a plan fits, `auto` is ahead of every other method in "
        f"{ahead}, level with the best in {cases - ahead - len(found)}, and behind in "
        f"{len(found)}. Not counted: {', '.join(SPLITTING)}, which split ops.",
        "",
    ]
    if found:
        body = [cells for _, cells in sorted(found)]
        lines += table(["case", "bound", "auto", "best other", "longer by"], body)
    return lines


def behind_any(rows: list[Row]) -> list[str]:
    """Models on which any other method does better than auto by more than a little."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row.outcome == "fits":
            found.setdefault(f"{row.graph}, {row.cluster}", {})[row.method] = row
    body = []
    for case, by_method in found.items():
        auto = by_method.pop("auto", None)
        best = min(by_method.values(), key=lambda row: row.makespan, default=None)
        if best and (auto is None or auto.makespan > (1 + BEHIND) * best.makespan):
            more = "" if auto is None else f"{auto.makespan / best.makespan - 1:.2%}"
            body.append(
                [case, cell(auto, form=".4f"), f"{best.fraction:.4f} ({best.method})", more]
            )
    lines = [
        f"With those that split ops, `auto` is behind the best other method by more than "
        f"{BEHIND:.1%} in {len(body)} of {len(found)} cases of models on clusters.",
        "",
    ]
    return [*lines, *(table(["case", "auto", "best other", "longer by"], body) if body else [])]


def quality_page(rows: list[Row], methods: Sequence[str], limit: float, anew: str) -> str:
    """The page ``quality.md``; ``anew``: the options that say which methods were planned."""
    of = {kind: [r for r in rows if r.kind == kind] for kind in KINDS}
    lines = [
        "# Quality of plans",
        "",
        f"    python benches/quality.py --limit {limit:g}{anew}",
        "",
        "Step time by the simulator, as a fraction of what one device of the fastest type would "
        "take (as if it had the memory). *short*: no plan that fits was found; *late*: not within "
        "the time allowed; *missing*: an extra is not installed. The bound holds for every "
        f"placement of the graph as it is: {', '.join(SPLITTING)} and auto split its ops, and may "
        "go below. Every figure of every plan is in `quality.csv`, seconds of planning are in "
        "`quality-seconds.md`, which differs from run to run, as *late* may.",
        "",
        "![Step time of every method](quality.svg)",
        "",
    ]
    if of["models"]:
        lines += ["## All models on all clusters", ""]
        lines += [
            "Geometric means of step time over the plans that fit, of one device's and of the "
            "best method's; how often a method is best; the gap to the bound; the largest share "
            "of a device's memory; how far off the method's own estimate is on average.",
            "",
        ]
        lines += summary(of["models"], methods)
    if "auto" in methods and len(methods) > 1:
        lines += [*behind(rows), *behind_any(of["models"])]
    for cluster in CLUSTERS:
        here = [r for r in of["models"] if r.cluster == cluster]
        if here:
            lines += [f"## {cluster}", "", *grid(here, methods, lambda r: r.graph)]
    if of["heterogeneous"]:
        lines += ["## Measured models on unequal devices", ""]
        lines += grid(of["heterogeneous"], methods, lambda r: r.graph)
    if of["design"]:
        lines += ["## The design's table", ""]
        lines += [
            "4 equal devices, one channel per directed pair, 10 us + 12 GB/s, memory to spare; "
            "ops cost max(FLOPs / 7e12 (bf16: 62.5e12), bytes / 630e9) + 5 us in whole us. The "
            "first five columns are the design's (section 8).",
            "",
        ]
        lines += design_table(of["design"], methods)
    if of["tight"]:
        lines += ["## Where memory is tight", ""]
        lines += [
            "Four V100s on PCIe that together have 1.05, 1.2 and 1.5 times the memory that the "
            "model takes at the peak of a sequential run.",
            "",
        ]
        lines += grid(of["tight"], methods, lambda r: f"{r.graph}, {r.cluster.split()[-1]}")
    if of["planted"]:
        lines += ["## Instances whose optimum is known", ""]
        seeds = len({r.graph.rpartition("-")[2] for r in of["planted"]})
        lines += [f"1,000 ops (`known_optimum.py`); means of {seeds} seeds.", ""]
        lines += planted_table(of["planted"], methods)
    failures = [r for r in rows if r.outcome in ("error", "missing")]
    if failures:
        lines += ["## What failed", ""]
        lines += [
            f"* {r.method} on {r.graph}, {r.cluster}: {r.notes[0].strip().splitlines()[-1]}"
            for r in failures
        ]
        lines += [""]
    return "\n".join(lines)


def seconds_report(rows: list[Row], methods: Sequence[str], limit: float) -> str:
    """The page ``quality-seconds.md``."""
    lines = ["# Seconds of planning", "", "As measured by the last run of `quality.py`, bound and "]
    lines[-1] += f"simulation included, several processes at a time; at most {limit:g} s each."
    body = []
    for method in methods:
        took = [r.seconds for r in rows if r.method == method and not math.isnan(r.seconds)]
        if not took:
            continue
        slow = max((r for r in rows if r.method == method), key=lambda r: _or_zero(r.seconds))
        body.append(
            [
                method,
                f"{statistics.median(took):.3f}",
                f"{max(took):.2f}",
                f"{slow.graph}, {slow.cluster}",
                str(sum(r.outcome == "late" for r in rows if r.method == method)),
            ]
        )
    return "\n".join([*lines, "", *table(["method", "median", "most", "on", "late"], body)])


def _or_zero(number: float) -> float:
    return 0.0 if math.isnan(number) else number


def read_csv(path: Path) -> Iterator[Row]:
    """The rows that an earlier run wrote, without seconds and notes."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            figures = {
                name: float(row[name] or "nan")
                for name in ("makespan", "bound", "peak", "estimate")
            }
            one = figures["makespan"] / float(row["fraction"] or "nan")
            names = [row[name] for name in ("kind", "graph", "cluster", "method", "outcome")]
            yield Row(*names, one=one, **figures)


def write_csv(rows: list[Row], path: Path) -> None:
    """Every figure but the seconds."""
    names = ["kind", "graph", "cluster", "method", "outcome", "makespan", "fraction", "bound"]
    names += ["gap", "peak", "estimate"]
    with path.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(names)
        for row in rows:
            figures = [getattr(row, name) for name in names[5:]]
            shown = ["" if math.isnan(f) else f"{f:.6g}" for f in figures]
            out.writerow([*(getattr(row, name) for name in names[:5]), *shown])


def draw(rows: list[Row], methods: Sequence[str], path: Path) -> None:
    """Step time over the best of those that split no ops, a line of dots per method, a column per
    interconnect.
    """
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator

    # Without these the same picture is another file every time.
    plt.rcParams |= {"svg.hashsalt": "loadmaster", "svg.fonttype": "none", "font.size": 8}
    here = [r for r in rows if r.kind == "models" and r.outcome == "fits"]
    best: dict[tuple[str, str], float] = {}
    for row in here:
        if row.method not in SPLITTING:
            place = row.graph, row.cluster
            best[place] = min(best.get(place, math.inf), row.makespan)
    here = [row for row in here if (row.graph, row.cluster) in best]
    panels = [name for name in ("PCIe", "NVLink") if any(name in r.cluster for r in here)]
    figure, axes = plt.subplots(
        1, max(len(panels), 1), figsize=(10, 1 + 0.3 * len(methods)), sharey=True, squeeze=False
    )
    colours = {2: "#4477aa", 4: "#228833", 8: "#cc6677"}
    for axis, panel in zip(axes[0], panels, strict=False):
        for n, colour in colours.items():
            some = [r for r in here if r.cluster == f"{n} {panel}"]
            shift = {2: -0.2, 4: 0.0, 8: 0.2}[n]
            axis.plot(
                [r.makespan / best[r.graph, r.cluster] for r in some],
                [methods.index(r.method) + shift for r in some],
                "o",
                color=colour,
                alpha=0.5,
                markersize=3,
                markeredgewidth=0,
                label=f"{n} devices",
            )
        axis.set(xscale="log", title=panel, xlabel="step time / best of those that split no ops")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter("{x:g}")
        axis.grid(axis="x", linewidth=0.3)
        axis.set_yticks(range(len(methods)), methods)
    if panels:
        axes[0][0].invert_yaxis()
        axes[0][-1].legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Plans what is not planned yet, then writes the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="three small models, 4 PCIe devices")
    parser.add_argument("--graphs", nargs="+", help="only graphs whose names contain one of these")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=LEDGER)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds per plan")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--fresh", action="store_true", help="forget what has been planned")
    parser.add_argument(
        "--keep", action="store_true", help="take all that is not asked for from quality.csv"
    )
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), help="only these tables")
    parser.add_argument("--only", choices=["coarsening"], help="write one page anew")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the pages")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.only:
        (arguments.out / "coarseners.md").write_text(coarseners_page() + "\n")
        return
    wanted = tasks(tuple(arguments.methods), arguments.graphs, arguments.quick)
    wanted = [task for task in wanted if task.kind in (arguments.kinds or KINDS)]
    kept = Kept(arguments.out / ".quality.jsonl", arguments.fresh)
    run([t for t in map(kept.left, wanted) if t], arguments.jobs, arguments.limit, kept.add)
    found = {(*t.place, m): kept.rows[*t.place, m] for t in wanted for m in t.methods}
    methods, anew = arguments.methods, ""
    if arguments.keep:
        anew = f" --keep --methods {' '.join(methods)}"
        methods = LEDGER
        for row in read_csv(arguments.out / "quality.csv"):
            found.setdefault((row.kind, row.graph, row.cluster, row.method), row)
    rows = [*found.values()]
    rows.sort(key=lambda r: (list(KINDS).index(r.kind), r.graph.lower()))
    page = quality_page(rows, methods, arguments.limit, anew)
    (arguments.out / "quality.md").write_text(page.strip() + "\n")
    # A run over some graphs or methods leaves other pages as they were.
    if not (arguments.quick or arguments.graphs or arguments.keep):
        (arguments.out / "coarseners.md").write_text(coarseners_page() + "\n")
    if not arguments.keep:
        (arguments.out / "quality-seconds.md").write_text(
            seconds_report(rows, methods, arguments.limit)
        )
    write_csv(rows, arguments.out / "quality.csv")
    draw(rows, methods, arguments.out / "quality.svg")


if __name__ == "__main__":
    main()
