"""Files of PyTorch targets for public models, on two worker processes, beside what was predicted;
``truth.py public`` runs it.

Each of the twelve public models of the tests (``tests/support/public_models.py``) is trained on two
cores over gloo by every file that a target writes for it. Everything runs in turn, round by round;
a row says the least of the steps, of the slower process. What is predicted comes from

* times of the ops in a run of such a plan by Loadmaster itself (``lm.run``);
* a step of the bare model on both cores at once: it says by how much PyTorch's autograd and modules
  make ops longer, one factor a model;
* times of sums, gathers and messages of gloo.

What is tried is the order of plans: whoever plans wants to know which of two ways is faster.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from quality import table
from truth_processes import Ask, processes
from truth_real import cpus
from truth_targets import ADDED, SIZES, Answers, Row, Way, in_order, machine, measured

import loadmaster as lm
from loadmaster.running.measured.learning import learn_times, times_of
from loadmaster.running.run import ready

PAGE = Path(__file__).parent / "results" / "truth-public.md"
MODELS = Path(__file__).parents[1] / "tests" / "support" / "public_models.py"

#: Steps of each in a round, the first of which does not count; steps that ops are learnt from.
STEPS, SOME = 3, 6

#: From where on the order of two predictions counts, and how many of them are to be in order.
APART, ORDERED = 1.15, 0.9

#: The reason why predictions are short, for the page.
_NOT_PRICED = (
    "Steps are longer than predicted where PyTorch's own work weighs most: these models are tiny, "
    "and what FSDP2, DTensor and schedules compute on the host beside the ops is not priced."
)

#: The share of what was computed that other programs may have taken.
BUSY = 0.02


WAYS = (
    Way("ddp", "ddp", {}),
    Way("fsdp", "fsdp", {"reshard": False}),
    Way("fsdp, gathers again", "fsdp", {"reshard": True}),
    Way("dtensor, tp 2", "dtensor", {"tp": 2}),
    Way("gpipe, 2 micro-batches", "pipelining", {"schedule": "gpipe", "micro_batches": 2}),
    Way("1f1b, 4 micro-batches", "pipelining", {"schedule": "1f1b", "micro_batches": 4}),
)


def by_file(rank: int, k: int, file: dict[str, Any], spec: str) -> Callable[[], None]:
    """A step as the file's own ``main`` has it."""
    device = torch.device("cpu")
    model, batch, loss_of, optimizer, options = file["example_of"](spec)
    loss_of = loss_of or file["own_loss"]
    if "STAGES" in file:
        model = file["parallelize"](model.train(), device, batch, loss_of)
        rest = ()
    else:
        batch = file["share_of"](batch, device)
        model = file["parallelize"](model.train(), device)
        rest = (loss_of,)
    optimizer = file["optimizer_of"](model, optimizer, **options)

    def run() -> None:
        file["backward"](model, batch, *rest)
        optimizer.step()
        optimizer.zero_grad()

    return run


def bare(rank: int, k: int, file: dict[str, Any], spec: str) -> Callable[[], None]:
    """A step of the model by itself, on the whole batch."""
    model, (args, kwargs, targets), loss_of, optimizer, options = file["example_of"](spec)
    loss_of, model = loss_of or file["own_loss"], model.train()
    optimizer = optimizer(model.parameters(), **options)

    def run() -> None:
        loss_of(model(*args, **kwargs), *targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


class Case:
    """A model: its plans by ways that take it, and their steps in the processes."""

    def __init__(self, model: str, build: Callable[[], dict[str, Any]], two: Ask) -> None:
        self.model, self._two, self._spec = model, two, f"{MODELS}:{model}"
        tape = lm.record(**build())
        self._graph = tape.graph
        once = np.where(tape.graph.reduced.runs, 1e-5, 0.0)
        guess = lm.place(tape.graph, cpus(1), "single", once)
        self.alone = times_of(guess)
        with ready(guess, tape) as session:
            learn_times(self.alone, session(SOME))
        self.plans: dict[Way, lm.Plan] = {}
        self.refused: dict[Way, str] = {}
        #: Seconds of the slower process by way; of none: of the bare model.
        self.seconds: dict[Way | None, list[float]] = {}
        for way in WAYS:
            try:
                plan = self._planned(way, tape)
            except lm.LoadmasterError as error:
                self.refused[way] = str(error)
                continue
            self.plans[way], self.seconds[way] = plan, []
            self._make(way, by_file, plan)
        if self.plans:
            self.seconds[None] = []
            self._make(None, bare, next(iter(self.plans.values())))

    def _planned(self, way: Way, tape: lm.Tape) -> lm.Plan:
        """A plan whose ops take what they do in a run of such a plan."""
        placed = {"target": way.target, **way.options}
        plan = lm.place(tape.graph, cpus(2), costs=self.alone, **placed)
        learnt = times_of(plan)
        with ready(plan, tape) as session:
            learn_times(learnt, session(SOME))
        return lm.place(tape.graph, cpus(2), costs=learnt, **placed)

    def _make(self, way: Way | None, maker: Any, plan: lm.Plan) -> None:
        target = plan.target if way is None else way.target
        self._two("make", self._name(way), maker, plan.export(target), self._spec)

    def _name(self, way: Way | None) -> str:
        """The name of a step in the processes."""
        return f"{self.model} {way.name if way else 'by itself'}"

    def round(self) -> None:
        """Runs every step a few times."""
        for way, seconds in self.seconds.items():
            answers = self._two("run", self._name(way), STEPS)
            seconds += [max(wall for wall, _ in step) for step in zip(*answers, strict=True)][1:]

    def rows(self, cluster: lm.Cluster) -> list[Row]:
        """Every way beside its prediction."""
        if not self.plans:
            return []
        ops = self.alone.costs(self._graph, cpus(1)).time.sum()
        factor = min(self.seconds[None]) / float(ops)
        return [
            Row(way, self._predicted(way, factor, cluster), factor, tuple(self.seconds[way]))
            for way in self.plans
        ]

    def _predicted(self, way: Way, factor: float, cluster: lm.Cluster) -> float:
        """Seconds of the plan where PyTorch makes ops longer, and with what gloo takes."""
        plan = self.plans[way]
        times = factor * plan.costs.time[:, 0]
        again = {"recipe": plan.recipe} if plan.recipe is not None else dict(way.options)
        if plan.recipe is None:
            again["target"] = way.target
        return lm.place(plan.graph, cluster, costs=times, **again).makespan


def foreign(began: tuple[float, float]) -> float:
    """The share of the cores' time since then that other programs took."""
    busy, own = spent()
    others = busy - began[0] - (own - began[1])
    return max(0.0, others) / max(busy - began[0], 1e-9)


def spent() -> tuple[float, float]:
    """Seconds of CPU that all programs took since the start, and that this bench's took."""
    tick = os.sysconf("SC_CLK_TCK")
    every = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    own = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        own += int(fields[11]) + int(fields[12])
    return (sum(every[:3]) + sum(every[5:8])) / tick, own / tick


def page(cases: list[Case], rows: dict[str, list[Row]], taken: float, command: str) -> str:
    """The results in Markdown."""
    orders = [in_order(of_one, APART) for of_one in rows.values()]
    ordered, apart = (sum(column) for column in zip(*orders, strict=True))
    cells = [
        [
            model,
            row.way.name,
            f"{1e3 * row.predicted:.2f}",
            f"{1e3 * row.least:.2f}",
            f"{100 * row.error:+.0f} %",
        ]
        for model, of_one in rows.items()
        for row in of_one
    ]
    refused = [
        f"* {case.model}, {way.name}: {said}"
        for case in cases
        for way, said in case.refused.items()
    ]
    return "\n".join(
        [
            "# Files of PyTorch targets for public models beside their predictions",
            "",
            f"    {command}",
            "",
            f"**{ordered} of {apart}** pairs of ways to train one model that are predicted "
            f"{APART - 1:.0%} apart or more are in order ({ORDERED:.0%} are wanted).",
            "",
            f"PyTorch {torch.__version__.partition('+')[0]}, two processes of gloo pinned to a "
            f"core each, one thread an op. {machine()} Other programs took {taken:.1%} of the time "
            "that was computed.",
            "",
            _NOT_PRICED,
            "",
            *table(["model", "how", "predicted, ms", "least, ms", "off by"], cells),
            "",
            *(
                [
                    "Not planned, or not run by `lm.run`, which their ops' times come from:",
                    "",
                    *refused,
                    "",
                ]
                if refused
                else []
            ),
        ]
    )


def main(names: list[str], rounds: int, write: bool, command: str) -> bool:
    """Prints the page, and writes it if asked; whether pairs are in order as wanted."""
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("public_models", MODELS)
    models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)
    asked = [(kind, size) for kind in ("all_reduce", "all_gather", "message") for size in SIZES]
    answers: Answers = {what: [] for what in (*asked, ("add", ADDED))}
    with processes(2) as two:
        two("add", ADDED, 1)
        cases = []
        for name, build in models.PUBLIC.items():
            if not names or name in names:
                print(name, file=sys.stderr, flush=True)
                cases.append(Case(name, build, two))
        began = spent()
        for i in range(rounds):
            print(f"round {i + 1} of {rounds}", file=sys.stderr, flush=True)
            for what, seconds in answers.items():
                seconds += list(zip(*two(*what, STEPS), strict=True))[1:]
            for case in cases:
                case.round()
        taken = foreign(began)
    cluster = measured(answers)
    rows = {case.model: case.rows(cluster) for case in cases}
    text = page(cases, rows, taken, command)
    print(text)
    if taken > BUSY:
        print(
            f"the machine was busy: other programs took {taken:.1%} of what was computed, more "
            f"than {BUSY:.0%}; nothing is written. Run it again when nothing else runs"
        )
        return False
    if write:
        PAGE.write_text(text)
    ordered, apart = np.sum([in_order(of_one, APART) for of_one in rows.values()], axis=0)
    return bool(ordered >= ORDERED * apart)
