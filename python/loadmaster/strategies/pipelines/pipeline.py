"""Loadmaster's own pipelines: stages, micro-batches and a schedule, under the real judge.

Pipelines are ranked by what their stages cost (:mod:`.shapes`): over numbers of micro-batches and
of stages, several linear orders of the model, schedules, kinds of devices in any order, and
activations kept or recomputed. The cuts of the best few are moved, their schedules searched for,
and each is judged on all its ops. From the best, cuts are moved on by the judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from loadmaster.base import checks
from loadmaster.base.effort import Budget
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.pipelines.baselines import advised, equal_layers
from loadmaster.strategies.pipelines.floors import floors
from loadmaster.strategies.pipelines.insides import Inside
from loadmaster.strategies.pipelines.schedules import IN_V, NAMED, Named
from loadmaster.strategies.pipelines.searching import searched
from loadmaster.strategies.pipelines.shapes import PipelineShape, holds, moved, near, ranked
from loadmaster.strategies.pipelines.space import PipelineSpace
from loadmaster.strategies.registry import strategy

#: Number of ranked pipelines that are judged on all ops.
JUDGED = 3

#: Pipelines whose stages tell of a step longer than the best one's by more than this share are not
#: judged.
WITHIN = 0.1

#: Ops that are simulated to move cuts by the judge, for each number of devices in a stage.
MOVED_OPS = 500_000

#: Cuts are moved where the step is within this share of what there is already.
NEAR = 0.05

#: A pipeline longer by less than this share than the best may become shorter yet, by moves
#: and by a schedule that is searched for.
HOPE = 0.25

#: The share of collectives inside of a stage that other work does not hide, at least.
SEEN = 0.5

#: Number of times that stages are sought for less of the memory, and the share left free then.
_ATTEMPTS, _SPARE = 4, 0.97

Schedule = Literal["auto"] | Named


@strategy("pipeline", "stages, micro-batches and a schedule, under the real judge", is_final=True)
def place(
    problem: Problem,
    *,
    micro_batches: int | None = None,
    stages: int | None = None,
    devices_per_stage: int | None = None,
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
        Sets of devices that have stages. Absent: any number of devices with one each; or all
        devices with several each.
    devices_per_stage : int, optional
        Devices that share the work of a stage. Absent: one, or any number of which the devices are
        two sets or more.
    schedule : "auto" (default), "gpipe", "1f1b", "interleaved-1f1b", "zero-bubble" or "zb-v"
        "auto": the best of these and of one that is searched for.
    time_limit : float, optional
        Seconds on the clock; what is under way is finished first. Absent: no limit.
    progress : callable, optional
        Called with the pipeline in words and the best step time whenever there is a better one.

    Raises
    ------
    InputError
        One device, a batch of one sample or of nobody knows how many.
    InfeasibleError
        No pipeline that was tried fits.
    """
    checks.one_of("schedule", schedule, ("auto", *NAMED))
    space = PipelineSpace.of(problem)
    counts, numbers = space.checked(micro_batches, stages)
    widths = space.widths(devices_per_stage, stages)
    if schedule == "interleaved-1f1b" and all(m % p for m in counts for p in numbers):
        raise InputError(
            f"schedule {schedule!r} takes as many micro-batches at a time as devices have stages, "
            f"and none of {', '.join(map(str, counts))} is a multiple of any of "
            f"{', '.join(map(str, numbers))}: give other micro_batches or stages"
        )
    asked = PipelineChoices(
        counts,
        numbers,
        NAMED,
        is_free=True,
        stages=stages,
        widths=widths,
        others=space.others(stages),
    )
    if schedule != "auto":
        asked = replace(asked, schedules=(schedule,), is_free=False)
    best = fastest(space, asked, time_limit=time_limit, progress=progress)
    m = advised(space, micro_batches, problem.cluster.n_devices)
    if best is None or not best[0].fits:
        by_layers = space.refusals.tried("equal layers", lambda: equal_layers(space, m))
        if by_layers is not None and (best is None or by_layers.fits):
            return by_layers
    if best is None:
        raise InfeasibleError(f"no pipeline was found that could be run: {space.refusals.in_words}")
    candidate, shape = best
    return accepted(candidate.problem, Outcome(shape.with_recipe(candidate), 1.0))


@dataclass(frozen=True)
class PipelineChoices:
    """The space to try: numbers of micro-batches and of stages, schedules, and how much is judged.

    With ``is_free``, a schedule is also searched for. Where the stages of a pipeline tell of a step
    much longer than ``least`` seconds, it is not judged. ``stages`` is the number that a user
    wants, and ``widths`` are numbers of devices in each. Of the numbers of stages ``others`` only
    those are tried that go with the micro-batches and the schedule of the best of ``numbers``.
    """

    counts: Sequence[int]
    numbers: Sequence[int]
    schedules: Sequence[Named]
    is_free: bool = False
    judged: int = JUDGED
    moved_ops: int = MOVED_OPS
    least: float = float("inf")
    stages: int | None = None
    widths: Sequence[int] = (1,)
    others: Sequence[int] = ()


def fastest(
    space: PipelineSpace,
    asked: PipelineChoices,
    *,
    time_limit: float | None,
    progress: Progress | None,
) -> tuple[Candidate, PipelineShape] | None:
    """The best of the pipelines that were judged, with its shape; None: no stages fit by what they
    cost. The other arguments are those of :func:`place`.
    """
    budget = Budget.make(None, time_limit) if time_limit is not None else Budget(1.0, None)
    best: tuple[Candidate, PipelineShape] | None = None
    for one in _pipelines(space, asked, budget):
        if best is None or space.problem.objective.better(best[0], one[0]) is one[0]:
            best = one
            if progress is not None:
                progress(one[1].words, Incumbent(one[0].verdict.step_time))
    return best


def pipelines_below(
    space: PipelineSpace, least: float, budget: Budget
) -> Iterator[tuple[Candidate, PipelineShape]]:
    """The same among other plans, the best of which takes ``least`` seconds."""
    counts, numbers = space.checked(None, None)
    widths = space.widths(None, None)
    asked = PipelineChoices(
        counts, numbers, NAMED, is_free=True, least=least, widths=widths, others=space.others(None)
    )
    yield from _pipelines(space, asked, budget)


def _pipelines(
    space: PipelineSpace, asked: PipelineChoices, budget: Budget
) -> Iterator[tuple[Candidate, PipelineShape]]:
    """Pipelines that were judged, each with its shape: those of one device per stage first, then
    those of several that could be shorter. Stages in a V come after those in turn: what their
    estimate promises keeps none of the others from the judge.
    """
    objective, least = space.problem.objective, asked.least
    bests: list[tuple[Candidate, PipelineShape]] = []
    ways = (tuple(name for name in asked.schedules if (name == IN_V) == v) for v in (False, True))
    for width, schedules in product(asked.widths, [names for names in ways if names]):
        if least < asked.least and budget.lacks(0.0):
            break
        some = replace(asked, schedules=schedules, least=least)
        best: tuple[Candidate, PipelineShape] | None = None
        for pair in _searched(space, some, _tried(space, some, width), budget):
            yield pair
            least = min(least, objective.limit(pair[0].verdict))
            if best is None or objective.better(best[0], pair[0]) is pair[0]:
                best = pair
        if best is not None and best[0].fits:
            bests.append(best)
    bests.sort(key=lambda one: objective.rank(one[0].verdict))
    for one in bests:
        if one[0].verdict.step_time < least * (1 + NEAR):
            for pair in _moved_by_judge(*one, asked.moved_ops, budget):
                yield pair
                least = min(least, objective.limit(pair[0].verdict))


@dataclass(frozen=True)
class Tried:
    """A number of micro-batches, numbers of stages, how ops are shared inside of these, and seconds
    that such a step is hardly below.
    """

    m: int
    numbers: Sequence[int]
    inside: Inside | None
    floor: float


def _tried(space: PipelineSpace, asked: PipelineChoices, width: int) -> list[Tried]:
    """Pipelines to try with stages of so many devices, the least floor first."""
    every = zip(asked.counts, floors(space.problem, asked.counts, width), strict=True)
    counts = [(m, floor) for m, floor in every if floor < asked.least]
    if width == 1:
        rows = [Tried(m, asked.numbers, None, floor) for m, floor in counts]
    else:
        rows = [
            Tried(m, numbers, inside, floor + SEEN * inside.traffic / len(inside.sets))
            for inside in (space.insides(width) if counts else ())
            if (numbers := _numbers(asked, len(inside.sets)))
            for m, floor in counts
            if inside.takes(space.batch, m)
        ]
    some = [one for one in rows if one.floor < asked.least]
    return sorted(some, key=lambda one: one.floor)


def _numbers(asked: PipelineChoices, n: int) -> list[int]:
    """Numbers of stages that n sets of devices have."""
    return [n] if asked.stages is None else [p for p in asked.numbers if p <= n]


def _ranked(
    space: PipelineSpace, asked: PipelineChoices, tried: list[Tried], share: float
) -> list[PipelineShape]:
    """The best few pipelines of what is tried, by what their stages tell, that may be shorter than
    what there is: lean ones where nothing else fits.
    """
    rows: list[PipelineShape] = []
    for is_lean in (False, True):
        for one in tried:
            if (one.inside is not None and one.inside.is_lean) != is_lean:
                continue
            if len(rows) == asked.judged and one.floor >= rows[-1].seconds:
                break
            rows += ranked(space, [one.m], one.numbers, asked.schedules, share, one.inside)
            rows = sorted(rows, key=lambda shape: shape.seconds)[: asked.judged]
        if rows:
            break
    if rows and rows[0].inside is None:
        rows = [*rows, *_of_other_numbers(space, asked, rows[0], share)]
    # No schedule is searched for where stages are in a V, so nothing but cuts makes it shorter.
    hope = asked.least * (1 + (HOPE if asked.schedules != (IN_V,) else NEAR))
    return [shape for shape in rows if shape.least < asked.least and shape.seconds < hope]


def _of_other_numbers(
    space: PipelineSpace, asked: PipelineChoices, best: PipelineShape, share: float
) -> list[PipelineShape]:
    """The best with another number of stages, its micro-batches and its schedule, if stages tell of
    a shorter step then. Numbers are left out on which no stages have one.
    """
    schedules = [name for name in asked.schedules if name == best.schedule]
    least = {p: floors(space.problem, [best.m], sets=p)[0] for p in asked.others}
    numbers = [p for p in asked.others if least[p] < best.seconds]
    shapes = ranked(space, [best.m], numbers, schedules, share)
    return [shape for shape in shapes[:1] if shape.seconds < best.seconds]


def _searched(
    space: PipelineSpace, asked: PipelineChoices, tried: list[Tried], budget: Budget
) -> Iterator[tuple[Candidate, PipelineShape]]:
    """The best of what is tried, judged.

    Where the judge finds the best over the memory that its stages are within, there are others for
    less of it.
    """
    objective, share = space.problem.objective, 1.0
    for _ in range(_ATTEMPTS):
        rows = _ranked(space, asked, tried, share)
        best: tuple[Candidate, PipelineShape] | None = None
        for shape in rows:
            is_far = shape.seconds > (1 + WITHIN) * rows[0].seconds
            if best is not None and (is_far or budget.lacks(0.0)):
                break
            for one in _judged(shape, share, asked):
                yield one
                if best is None or objective.better(best[0], one[0]) is one[0]:
                    best = one
        if best is None or best[0].fits:
            return
        share *= _SPARE / best[0].overfull


def _judged(
    shape: PipelineShape, share: float, asked: PipelineChoices
) -> Iterator[tuple[Candidate, PipelineShape]]:
    """A shape with its cuts moved, with look-ups where tied weights are if that is better, by its
    schedule and by the one that is searched for, where stages do not tell of a much longer step
    than there is already.
    """
    limit, objective = asked.least * (1 + NEAR), shape.space.problem.objective
    shape = moved(shape, share)
    some = [shape]
    if (other := shape.gathered) is not None and holds(other, share):
        some.append(moved(other, share))
    rows = [*_taken(one for one in some if one.seconds < limit)]
    yield from rows
    if rows:
        _, shape = min(rows, key=lambda one: objective.rank(one[0].verdict))
    if asked.is_free and shape.schedule != IN_V:
        alive = shape.most_alive(share)
        schedule = searched(shape.times, shape.m, shape.virtual, most_alive=alive)
        if (free := replace(shape, schedule=schedule)).seconds < shape.seconds:
            free = moved(free, share)
            if free.seconds < limit:
                yield from _taken([free])


def _taken(shapes: Iterable[PipelineShape]) -> Iterator[tuple[Candidate, PipelineShape]]:
    """Shapes that are not refused, each judged."""
    for shape in shapes:
        if (candidate := shape.judged()) is not None:
            yield candidate, shape


def _moved_by_judge(
    best: Candidate, shape: PipelineShape, left: int, budget: Budget
) -> Iterator[tuple[Candidate, PipelineShape]]:
    """Better ones with one cut moved after another, by the judge, as long as ops to simulate are
    left. Those of several devices per stage count twice, for their program changes with a cut.
    """
    objective = best.problem.objective
    for step in (2, 1):
        better = True
        while better:
            better = False
            for other in near(shape, step):
                left -= best.problem.graph.n_ops * (1 if shape.inside is None else 2)
                if left < 0 or budget.lacks(0.0):
                    return
                for candidate, _ in _taken([other]):
                    better = objective.better(best, candidate) is candidate
                if better:
                    best, shape = candidate, other
                    yield best, shape
                    break
