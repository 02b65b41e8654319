"""The loop of FastT (section 4): run, learn what ops and transfers take, place again.

A plan that costs predict to be faster may be slower when it runs, and the costs learnt from it may
lead to worse ones still. So every plan that ran is kept. In the end all of them run once more,
in the same rounds, the plan to start from among them; the one that is measured fastest wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmaster.base import checks
from loadmaster.base.errors import InfeasibleError
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.base.text import Printed, aligned, in_lines
from loadmaster.base.units import counted, format_seconds
from loadmaster.costs import CostModel
from loadmaster.model.cluster import Cluster
from loadmaster.plans.plan import Plan
from loadmaster.running.measured.learning import learn_times, learnt_links, times_of
from loadmaster.running.measured.measured import ENOUGH_STEPS, Measured
from loadmaster.running.measured.rounds import Runner, interleaved
from loadmaster.running.measured.summary import headline, summary_document
from loadmaster.tasks.place import place


@dataclass(frozen=True)
class Adapted(Printed):
    """The loop's result.

    Attributes
    ----------
    candidates : tuple of Measured
        Every plan that ran, the one to start from first, with its steps of the last run, in which
        all ran in the same rounds.
    first : tuple of float
        Seconds per step of each when it ran alone, before the last run.
    ended : str
        Why there are no more candidates.
    """

    candidates: tuple[Measured, ...]
    first: tuple[float, ...]
    ended: str

    @property
    def which(self) -> int:
        """Index of the candidate that was measured fastest in the last run."""
        return int(np.argmin([run.step for run in self.candidates]))

    @property
    def best(self) -> Measured:
        """That candidate."""
        return self.candidates[self.which]

    @property
    def plan(self) -> Plan:
        """Its plan."""
        return self.best.plan

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON: seconds."""
        return {
            "which": self.which,
            "ended": self.ended,
            "candidates": [
                {"predicted": run.plan.makespan, "first": first, "step": run.step}
                for run, first in zip(self.candidates, self.first, strict=True)
            ],
            "best": summary_document(self.best),
        }

    def __str__(self) -> str:
        rows = [["round", "predicted", "measured alone", "in the last run", ""]]
        for i, (run, first) in enumerate(zip(self.candidates, self.first, strict=True)):
            seconds = (run.plan.makespan, first, run.step)
            kept = "best" if i == self.which else ""
            rows.append([str(i) if i else "start", *map(format_seconds, seconds), kept])
        return in_lines([*headline(self.best), *aligned(rows), self.ended])


def adapt(
    plan: Plan,
    runner: Runner,
    rounds: int = 4,
    *,
    steps: int = 30,
    progress: Progress | None = None,
) -> Adapted:
    """Runs a plan, learns from the run, and places again, so many times; the fastest plan wins.

    After each run, op times become what was measured (the mean over the runs so far), and links
    what the transfers between their ends took, where these had several sizes. The plan's own
    method then places the ops again, under the same constraints.

    Parameters
    ----------
    plan : Plan
        To start from.
    runner : callable
        Makes a plan ready to run: :func:`loadmaster.running.runners.emulating`, or
        :func:`loadmaster.running.runners.running` for a tape.
    rounds : int
        Placements to try at most, besides the plan to start from.
    steps : int
        Steps of each run, and rounds of the last one, in which all candidates run in turn; at
        least 24 for the latter, so that 10th percentiles stand for them.
    progress : callable, optional
        Told what is done, and the fastest step so far.

    Returns
    -------
    Adapted
        Its ``plan`` is the one of the least 10th percentile in the last run.

    Raises
    ------
    InputError
        Rounds or steps below 1, or what the runner refuses.

    Examples
    --------
    >>> import loadmaster as lm
    >>> from loadmaster.running.runners import emulating
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "heft")
    >>> found = lm.adapt(plan, emulating(seconds=0.005), rounds=1, steps=1)
    >>> found.best.step == min(run.step for run in found.candidates)
    True
    """
    rounds, steps = checks.count("rounds", rounds), checks.count("steps", steps)
    report = progress or (lambda stage, best: None)
    costs, cluster = times_of(plan), plan.cluster
    plans, now = [plan], plan
    alone: list[float] = []
    ended = f"{counted(rounds, 'placement')} tried"
    for turn in range(rounds + 1):
        report(f"run {turn + 1}", Incumbent(min(alone)) if alone else None)
        with runner(now) as session:
            seen = session(steps)
        alone.append(seen.step)
        if turn == rounds:
            break
        learn_times(costs, seen)
        cluster = learnt_links(cluster, seen)
        report(f"placement {turn + 1} of {rounds}", Incumbent(min(alone)))
        try:
            now = _again(plan, costs, cluster)
        except InfeasibleError as error:
            ended = f"placement {turn + 1} found nothing that fits: {error}"
            break
        if any(_is_same(now, known) for known in plans):
            ended = f"placement {turn + 1} is one that ran already"
            break
        plans.append(now)
    last = interleaved(plans, runner, max(steps, ENOUGH_STEPS), progress=progress)
    return Adapted(last, tuple(alone), ended)


def _again(plan: Plan, costs: CostModel, cluster: Cluster) -> Plan:
    """The plan's method on what is known now."""
    return place(
        plan.graph,
        cluster,
        plan.method,
        costs,
        plan.seed,
        constraints=plan.constraints,
        **plan.options,
    )


def _is_same(one: Plan, other: Plan) -> bool:
    """True if two plans run the same ops in the same places, in the same order."""
    if one.program.graph.digest != other.program.graph.digest or one.policy != other.policy:
        return False
    pairs = (
        (one.running_devices, other.running_devices),
        (one.running_priority, other.running_priority),
    )
    return all(np.array_equal(a, b) for a, b in pairs)
