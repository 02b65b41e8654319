"""Loadmaster's own pipelines: stages, micro-batches and a schedule, under the real judge.

Pipelines are ranked by what their stages cost (:mod:`.shapes`): over numbers of micro-batches and
of stages, several linear orders of the model, schedules, kinds of devices in any order, and
activations kept or made anew. The cuts of the best few are moved, their schedules searched for, and
each is judged on all its ops. From the best, cuts are moved on by the judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from loadmaster.base import checks
from loadmaster.base.effort import Budget
from loadmaster.base.errors import InputError
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.pipelines.baselines import advised, equal_layers
from loadmaster.strategies.pipelines.schedules import NAMED, Named
from loadmaster.strategies.pipelines.searching import searched
from loadmaster.strategies.pipelines.shapes import Shape, moved, near, ranked
from loadmaster.strategies.pipelines.space import Space
from loadmaster.strategies.registry import strategy

#: How many of the ranked pipelines are judged on all ops.
JUDGED = 3

#: Pipelines whose stages tell of a step longer than the best one's by more than this share are not
#: judged.
WITHIN = 0.1

#: Ops that are simulated to move cuts by the judge, in all.
MOVED_OPS = 1_000_000

#: The same where a pipeline is one of many plans.
FEW_MOVED_OPS = 250_000

#: Cuts are moved where the step is within this share of what there is already.
NEAR = 0.05

#: How often stages are found for less of the memory, and the share of it that is left free then.
_ATTEMPTS, _SPARE = 4, 0.97

Schedule = Literal["auto"] | Named


@strategy("pipeline", "stages, micro-batches and a schedule, under the real judge", is_final=True)
def place(
    problem: Problem,
    *,
    micro_batches: int | None = None,
    stages: int | None = None,
    schedule: Schedule = "auto",
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The best pipeline.

    Parameters
    ----------
    problem : Problem
    micro_batches : int, optional
        Parts of the batch. Absent: several numbers are tried.
    stages : int, optional
        Devices that have stages. Absent: all devices, a half of them, a quarter, and so on.
    schedule : "auto" (default), "gpipe", "1f1b", "interleaved-1f1b" or "zero-bubble"
        "auto": the best of these and of one that is searched for.
    time_limit : float, optional
        Seconds on the clock; what is under way is finished first. Absent: no limit.
    progress : callable, optional
        Called with the pipeline in words and the best step time whenever there is a better one.

    Raises
    ------
    InputError
        One device, a batch of one sample or of nobody knows how many.
    """
    checks.one_of("schedule", schedule, ("auto", *NAMED))
    space = Space.of(problem)
    counts, numbers = space.checked(micro_batches, stages)
    if schedule == "interleaved-1f1b" and all(m % p for m in counts for p in numbers):
        raise InputError(
            f"schedule {schedule!r} takes as many micro-batches at a time as devices have stages, "
            f"and none of {', '.join(map(str, counts))} is a multiple of any of "
            f"{', '.join(map(str, numbers))}: give other micro_batches or stages"
        )
    if schedule == "auto":
        asked = Asked(counts, numbers, NAMED, is_free=True)
    else:
        asked = Asked(counts, numbers, (schedule,))
    best = fastest(space, asked, time_limit=time_limit, progress=progress)
    if best is None:
        return equal_layers(space, advised(space, micro_batches, problem.cluster.n_devices))
    found, shape = best
    return accepted(found.problem, Outcome(shape.with_recipe(found), 1.0))


@dataclass(frozen=True)
class Asked:
    """What is tried: numbers of micro-batches and of stages, schedules, and how much is judged.

    With ``is_free``, a schedule is also searched for. Where the stages of a pipeline tell of no
    shorter step than ``least`` seconds, it is not judged.
    """

    counts: Sequence[int]
    numbers: Sequence[int]
    schedules: Sequence[Named]
    is_free: bool = False
    judged: int = JUDGED
    moved_ops: int = MOVED_OPS
    least: float = float("inf")


def fastest(
    space: Space, asked: Asked, *, time_limit: float | None, progress: Progress | None
) -> tuple[Candidate, Shape] | None:
    """The best of the pipelines that were judged, with its shape; None: no stages fit by what they
    cost. The other arguments are those of :func:`place`.
    """
    budget = Budget.make(None, time_limit) if time_limit is not None else Budget(1.0, None)
    best: tuple[Candidate, Shape] | None = None
    for one in _pipelines(space, asked, budget):
        if best is None or space.problem.objective.better(best[0], one[0]) is one[0]:
            best = one
            if progress is not None:
                progress(one[1].words, Incumbent(one[0].verdict.step_time))
    return best


def pipelines_below(
    space: Space, counts: Sequence[int], least: float, budget: Budget
) -> Iterator[tuple[Candidate, Shape]]:
    """Pipelines over all devices that were judged, since their stages tell of a step of less than
    ``least`` seconds: few, and with few moves.
    """
    n = space.problem.cluster.n_devices
    asked = Asked(
        counts, [n], NAMED[1:], is_free=True, judged=1, moved_ops=FEW_MOVED_OPS, least=least
    )
    yield from _pipelines(space, asked, budget)


def _pipelines(space: Space, asked: Asked, budget: Budget) -> Iterator[tuple[Candidate, Shape]]:
    """Pipelines that were judged, each with its shape.

    Where the judge finds the best over the memory that its stages are within, there are others for
    less of it.
    """
    objective, share = space.problem.objective, 1.0
    for _ in range(_ATTEMPTS):
        rows = ranked(space, asked.counts, asked.numbers, asked.schedules, share)
        rows = [shape for shape in rows[: asked.judged] if shape.seconds < asked.least]
        best: tuple[Candidate, Shape] | None = None
        for shape in rows:
            is_far = shape.seconds > (1 + WITHIN) * rows[0].seconds
            if best is not None and (is_far or budget.lacks(0.0)):
                break
            for found in _judged(shape, share, is_free=asked.is_free):
                yield found
                if best is None or objective.better(best[0], found[0]) is found[0]:
                    best = found
        if best is None:
            return
        if best[0].fits:
            if best[0].verdict.step_time < asked.least * (1 + NEAR):
                yield from _moved_by_judge(*best, asked.moved_ops, budget)
            return
        share *= _SPARE / best[0].overfull


def _judged(shape: Shape, share: float, *, is_free: bool) -> Iterator[tuple[Candidate, Shape]]:
    """A shape with its cuts moved, by its schedule and by the one that is searched for."""
    shape = moved(shape, share)
    yield shape.judged(), shape
    if is_free:
        alive = shape.most_alive(share)
        given = searched(shape.times, shape.m, shape.chunks, most_alive=alive)
        if (free := replace(shape, schedule=given)).seconds < shape.seconds:
            free = moved(free, share)
            yield free.judged(), free


def _moved_by_judge(
    found: Candidate, shape: Shape, left: int, budget: Budget
) -> Iterator[tuple[Candidate, Shape]]:
    """Better ones with one cut moved after another, by the judge, as long as ops to simulate are
    left.
    """
    objective = found.problem.objective
    for step in (2, 1):
        better = True
        while better:
            better = False
            for other in near(shape, step):
                left -= found.problem.graph.n_ops
                if left < 0 or budget.lacks(0.0):
                    return
                candidate = other.judged()
                if objective.better(found, candidate) is candidate:
                    found, shape, better = candidate, other, True
                    yield found, shape
                    break
