"""DistributedDataParallel and PyTorch's pipelines on two worker processes, by files that were
written for them, beside what was predicted; ``truth.py targets`` runs it.

A transformer and a network of wide layers are trained on two cores over gloo: on one process; on
two with buckets of two sizes, the optimizer replicated or sharded; and in two stages, by two
schedules with 2 to 8 micro-batches. Everything runs in turn, round by round, and a row says the
least of the steps, of the slower process. What is predicted comes from

* times of the ops. On one process: as one device runs them alone. On two: as they are in a run of
  such a plan by Loadmaster itself (``lm.run``), on parts of the batch, while both cores are busy;
* what PyTorch adds to ops, its autograd, modules and schedules: these times are multiplied until
  they add up to a step that has nothing of two processes, run on both cores at once, each by
  itself: the bare model with a process's samples, or a process's stage on inputs that stand in for
  what it would be sent;
* times of sums, gathers and messages between two processes of gloo, and of the cores' own time in
  them. A gradient is multiplied into its bucket before it is summed, as the reducer does it.

So what is held against the steps is how parts, sums and messages come together: what overlaps,
what waits, and what keeps a core from computing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from quality import table
from torch import nn
from truth_pipelines import LAYERS, LENGTH, WORDS, Stage, loss_of, sgd
from truth_processes import Ask, Maker, alone, apart, processes, replica, stage
from truth_real import cpus

import loadmaster as lm
from loadmaster.running.measured.learning import learn_times, times_of
from loadmaster.running.run import ready

PAGE = Path(__file__).parent / "results" / "truth-targets.md"

#: Steps of each in a round, the first of which does not count.
STEPS = 3

#: Steps from which the times of ops are learnt at first: only their shares of a step count.
SOME = 6

#: Bytes of the sums, gathers and messages that are measured.
SIZES = (4_096, 65_536, 1_048_576, 4_194_304, 16_777_216)

#: Bytes that are added to others, which says how fast a core adds up gradients; FLOP/s that do not
#: limit it.
ADDED, PEAK = 1_048_576, 1e12

#: The largest error of a prediction that is wanted, and from where on the order counts.
ERROR, APART = 0.15, 1.10


@dataclass(frozen=True, eq=False)
class Way:
    """How a model is trained: a target, its options, and how many processes take part."""

    name: str
    target: str
    options: dict[str, Any]
    processes: int = 2

    @property
    def part(self) -> tuple[Any, ...]:
        """The same for ways whose ops work on equal parts of the batch."""
        return self.target, self.processes, self.options.get("micro_batches")

    @property
    def makes(self) -> Maker:
        """What makes a step of the written file."""
        return replica if self.target == "ddp" else stage

    @property
    def makes_bare(self) -> Maker:
        """What makes a step that has nothing of two processes."""
        return alone if self.target == "ddp" else apart

    def written(self, plan: lm.Plan) -> str:
        """The file for a plan."""
        return lm.writers.ddp(plan) if self.target == "ddp" else lm.writers.pipelining(plan)


def _pipeline(schedule: str, m: int) -> Way:
    options = {"stages": 2, "schedule": schedule, "micro_batches": m}
    return Way(f"two stages, {schedule}, {m} micro-batches", "pipelining", options)


#: What is tried of each model.
WAYS = (
    Way("one process", "ddp", {"replicas": 1}, 1),
    Way(
        "two, buckets of 25 MB", "ddp", {"replicas": 2, "bucket_mb": 25, "optimizer": "replicated"}
    ),
    Way("two, buckets of 1 MB", "ddp", {"replicas": 2, "bucket_mb": 1, "optimizer": "replicated"}),
    Way("two, sharded optimizer", "ddp", {"replicas": 2, "bucket_mb": 25, "optimizer": "sharded"}),
    _pipeline("gpipe", 2),
    _pipeline("gpipe", 4),
    _pipeline("1f1b", 4),
    _pipeline("1f1b", 8),
)


class Wide(nn.Module):
    """Few wide layers over words: many parameters for the work."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 512)
        self.layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
        self.head = nn.Linear(512, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.layers(self.words(x)))
        return found


MODELS: dict[str, Callable[[], nn.Module]] = {
    "transformer": lambda: Stage(LAYERS // 2, is_first=True, is_last=True),
    "wide": Wide,
}

#: What is run: a model, and how many samples it is given.
CASES = {
    "transformer, 16 samples": ("transformer", 16),
    "transformer, 32 samples": ("transformer", 32),
    "wide, 16 samples": ("wide", 16),
}


def samples(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets."""
    drawn = torch.Generator().manual_seed(1)
    one, other = (torch.randint(WORDS, (batch, LENGTH), generator=drawn) for _ in range(2))
    return one, other


def made(model: str) -> nn.Module:
    """The model, with the same weights each time."""
    torch.manual_seed(0)
    return MODELS[model]().train()


# -- what predictions come from ------------------------------------------------------------------

#: Answers of the processes by what was asked: of every time, seconds of each process.
Answers = dict[tuple[str, int], list[Sequence[tuple[float, float]]]]


def measured(answers: Answers) -> lm.Cluster:
    """Two cores: what sums, gathers and messages between them take, and of the cores' own time."""

    def least(kind: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Per size, seconds of the slower process, and of the first one's own time."""
        steps = [answers[kind, size] for size in SIZES]
        walls = tuple(min(max(wall for wall, _ in step) for step in of) for of in steps)
        busy = (min(step[0][1] for step in of) for of in steps)
        return walls, tuple(min(pair) for pair in zip(walls, busy, strict=True))

    times = []
    for kind in ("all_reduce", "all_gather"):
        seconds, busy = least(kind)
        times.append(lm.CollectiveTimes(kind, 2, 1, SIZES, seconds, "measured here", busy))
    walls, copies = least("message")
    way = np.maximum(np.subtract(walls, copies), 1e-9)
    found = lm.costs.fit_links({"copy": (SIZES, copies), "way": (SIZES, way)}).fits
    copy, link = (next(fit for fit in found if fit.method == name) for name in ("copy", "way"))
    added = min(max(wall for wall, _ in step) for step in answers["add", ADDED])
    kind = lm.DeviceType(
        "cpu", {"f32": PEAK}, 3 * ADDED / added, send_cost=lm.SendCost(copy.latency, copy.bandwidth)
    )
    figures = {"bandwidth": link.bandwidth, "latency": link.latency, "type": kind}
    return lm.Cluster.mesh(2, memory="8GiB", **figures).with_collectives(times)


def learnt(tape: lm.Tape) -> dict[tuple[Any, ...], lm.costs.CostModel]:
    """What ops take, for each part of the batch that they work on."""
    graph = tape.graph
    guess = lm.place(graph, cpus(1), "single", np.where(graph.reduced.runs, 1e-5, 0.0))
    found: dict[tuple[Any, ...], lm.costs.CostModel] = {}
    for way in WAYS:
        if way.part in found:
            continue
        # The first is that of one process: where stages are cut goes by its times.
        costs, given = times_of(guess), found.get(WAYS[0].part, times_of(guess))
        plan = lm.place(graph, cpus(way.processes), costs=given, target=way.target, **way.options)
        with ready(plan, tape) as session:
            learn_times(costs, session(SOME))
        found[way.part] = costs
    return found


def placed(way: Way, plan: lm.Plan, times: Any, cluster: lm.Cluster) -> lm.Plan:
    """The plan with other times of ops, on another cluster; stages stay where its file has them."""
    is_staged = plan.recipe is not None
    again = {"recipe": plan.recipe} if is_staged else {"target": way.target, **way.options}
    return lm.place(plan.graph, cluster.subset(range(way.processes)), costs=times, **again)


def factors(plan: lm.Plan, bare: Sequence[float]) -> NDArray[np.float64]:
    """By how much times of ops are to be multiplied, so that those of each process add up to its
    bare step, [n_ops].
    """
    program, device = plan.program, plan.running_devices
    times = plan.problem.costs.time[:, 0] * ~program.graph.is_member
    ours, theirs = (
        np.bincount(device[which], times[which], len(bare)) for which in (program.own, ~program.own)
    )
    of_each = (np.array(bare) - ours) / theirs
    is_staged = plan.recipe is not None
    return of_each[plan.recipe.stage_of(plan.graph) if is_staged else [0] * plan.graph.n_ops]


# -- rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A way, beside its prediction.

    Attributes
    ----------
    way : Way
    predicted : float
        Seconds.
    factor : float
        What the times of ops were multiplied by, on average over the plan's time.
    seconds : tuple of float
        Of every step that counts.
    """

    way: Way
    predicted: float
    factor: float
    seconds: tuple[float, ...]

    @property
    def least(self) -> float:
        """Seconds of the fastest step."""
        return min(self.seconds)

    @property
    def error(self) -> float:
        """By how much the prediction is off, relative."""
        return self.predicted / self.least - 1

    @property
    def noise(self) -> float:
        """How far the least steps of the two halves of the rounds are apart, relative."""
        half = len(self.seconds) // 2
        first, last = min(self.seconds[:half]), min(self.seconds[half:])
        return abs(first / last - 1)


class Case:
    """A model and a batch: plans of every way, and steps in the processes that run them."""

    def __init__(self, name: str, model: str, batch: int, one: Ask, two: Ask) -> None:
        self.name, self._one, self._two = name, one, two
        given = made(model), samples(batch), loss_of
        inputs, targets = given[1]
        self._tape = tape = lm.record(
            given[0], inputs, loss=loss_of, targets=targets, optimizer=sgd
        )
        costs = learnt(tape)
        #: What ops take on one process in the fastest round, and how long a step is there.
        self.alone, self._least = costs[WAYS[0].part], np.inf
        self.plans: dict[Way, lm.Plan] = {}
        #: Seconds of the slower process by way, and of each process in bare steps by part.
        self.seconds: dict[Way, list[float]] = {way: [] for way in WAYS}
        self.bare: dict[tuple[Any, ...], list[list[float]]] = {}
        for way in WAYS:
            plan = self.plans[way] = lm.place(
                tape.graph,
                cpus(way.processes),
                costs=costs[way.part],
                target=way.target,
                **way.options,
            )
            file = way.written(plan)
            self._ask(way)("make", f"{name} {way.name}", way.makes, file, *given)
            if way.processes > 1 and way.part not in self.bare:
                self.bare[way.part] = []
                self._two("make", f"{name} {way.part}", way.makes_bare, file, *given)

    def _ask(self, way: Way) -> Ask:
        return self._one if way.processes == 1 else self._two

    def round(self) -> None:
        """Runs every step a few times."""
        with ready(self.plans[WAYS[0]], self._tape) as session:
            seen = session(STEPS)
        if seen.step < self._least:
            self._least, self.alone = seen.step, times_of(self.plans[WAYS[0]])
            learn_times(self.alone, seen)
        for way, seconds in self.seconds.items():
            seconds += _slower(self._ask(way)("run", f"{self.name} {way.name}", STEPS))
        for part, steps in self.bare.items():
            answers = self._two("run", f"{self.name} {part}", STEPS)
            steps += [[wall for wall, _ in step] for step in zip(*answers, strict=True)][1:]

    def rows(self, cluster: lm.Cluster) -> list[Row]:
        """Every way beside its prediction."""
        rows, known = [], {}
        for way, plan in self.plans.items():
            times = plan.costs.time[:, 0]
            if way.processes == 1:
                times = self.alone.costs(plan.graph, cluster).time[:, 0]
            if way.part in self.bare:
                if way.part not in known:
                    steps = np.array(self.bare[way.part])
                    # Replicas wait for the slower one; stages do different things.
                    least = steps.min(axis=0) if plan.recipe else [steps.max(axis=1).min()] * 2
                    known[way.part] = factors(placed(way, plan, times, cluster), least)
                times = known[way.part] * times
            again = placed(way, plan, times, cluster)
            factor = float(times.sum() / plan.costs.time[:, 0].sum()) if way.processes > 1 else 1.0
            rows.append(Row(way, again.makespan, factor, tuple(self.seconds[way])))
        return rows


def _slower(answers: list[list[tuple[float, float]]]) -> list[float]:
    """Seconds of the slower process in all steps but the first."""
    return [max(wall for wall, _ in step) for step in zip(*answers, strict=True)][1:]


def in_order(rows: Sequence[Any], apart_by: float = APART) -> tuple[int, int]:
    """How many pairs that are predicted apart are in the right order, and how many there are."""
    pairs = [sorted(pair, key=lambda row: row.predicted) for pair in combinations(rows, 2)]
    apart = [(a, b) for a, b in pairs if b.predicted > apart_by * a.predicted]
    return sum(a.least < b.least for a, b in apart), len(apart)


def page(rows: dict[str, list[Row]], cluster: lm.Cluster, command: str) -> str:
    """The results in Markdown."""
    every = [row for of_one in rows.values() for row in of_one]
    near = sum(abs(row.error) <= ERROR for row in every)
    orders = [in_order(of_one) for of_one in rows.values()]
    ordered, apart = (sum(column) for column in zip(*orders, strict=True))
    worst = max(every, key=lambda row: abs(row.error))
    cells = [
        [
            model,
            row.way.name,
            f"{1e3 * row.predicted:.1f}",
            f"{1e3 * row.least:.1f}",
            f"{100 * row.error:+.1f} %",
            f"{100 * row.noise:.1f} %",
            f"{row.factor:.2f}",
        ]
        for model, of_one in rows.items()
        for row in of_one
    ]
    heads = ["model", "how", "predicted, ms", "least, ms", "off by", "halves apart", "ops times"]
    [sums] = [times for times in cluster.collectives if times.kind == "all_reduce"]
    messages = [
        f"{size / 2**20:.3g} MiB in {1e3 * seconds:.2f} ms ({own / seconds:.0%} of it CPU time)"
        for size, seconds, own in zip(sums.bytes, sums.seconds, sums.busy, strict=True)
        if size >= 2**20
    ]
    load = os.getloadavg()[0]
    return "\n".join(
        [
            "# DistributedDataParallel and PyTorch's pipelines beside their predictions",
            "",
            f"    {command}",
            "",
            f"{near} of {len(every)} predictions are within {ERROR:.0%} of the least step; the "
            f"worst is off by {100 * worst.error:+.1f} %. {ordered} of {apart} pairs that are "
            f"predicted {APART - 1:.0%} apart or more are in order.",
            "",
            f"A sample is {LENGTH} words. PyTorch {torch.__version__.partition('+')[0]}, "
            "processes of gloo pinned to a core each, one thread an op. "
            f"{machine()} Load average at the end: {load:.1f}.",
            "",
            "Sums between two processes, with the product that fills a bucket: "
            f"{'; '.join(messages)}.",
            "",
            "Halves apart: how far the least steps of the first and of the second half of the "
            "rounds are apart. Ops times: by how much times of ops were multiplied, so that they "
            "add up to a step of one process by itself.",
            "",
            "Not priced: the time of a core that is sent a message, and what threads of gloo cost "
            "the ops that they interrupt.",
            "",
            *table(heads, cells),
            "",
        ]
    )


def machine() -> str:
    """The machine in words."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return f"A machine of {os.cpu_count()} cores ({models[0] if models else 'of an unknown kind'})."


def main(rounds: int, write: bool, command: str) -> bool:
    """Prints the page, and writes it if asked; whether predictions and orders are as wanted."""
    torch.set_num_threads(1)
    asked = [(kind, size) for kind in ("all_reduce", "all_gather", "message") for size in SIZES]
    answers: Answers = {what: [] for what in (*asked, ("add", ADDED))}
    with processes(1) as one, processes(2) as two:
        # What is learnt first must not run beside processes that are still starting.
        for ask in (one, two):
            ask("add", ADDED, 1)
        cases = [Case(name, *of, one, two) for name, of in CASES.items()]
        for i in range(rounds):
            print(f"round {i + 1} of {rounds}", file=sys.stderr, flush=True)
            for what, seconds in answers.items():
                seconds += list(zip(*two(*what, STEPS), strict=True))[1:]
            for case in cases:
                case.round()
    cluster = measured(answers)
    rows = {case.name: case.rows(cluster) for case in cases}
    text = page(rows, cluster, command)
    print(text)
    if write:
        PAGE.write_text(text)
    near = all(abs(row.error) <= ERROR for of_one in rows.values() for row in of_one)
    return near and all(ordered == apart for ordered, apart in map(in_order, rows.values()))
