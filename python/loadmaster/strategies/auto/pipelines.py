"""Pipelines among the plans of ``auto``: micro-batches through stages.

Most graphs with several samples could be pipelined, and for most the replicas or shards that are
there already are as short as stages of equal work could be at best. For these nothing is tried.
What remains is ranked by stages (:mod:`loadmaster.strategies.pipelines.shapes`), and judged where
these tell of a shorter step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from loadmaster.judge.bounds import SPLIT_OPS
from loadmaster.judge.problem import Problem
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.candidate import Best, Candidate
from loadmaster.strategies.pipelines.pipeline import pipelines_below
from loadmaster.strategies.pipelines.schedules import NAMED
from loadmaster.strategies.pipelines.shapes import CHUNKS, Shape, ranked
from loadmaster.strategies.pipelines.space import Space, lacks


def pipelines(run: Run, known: Sequence[Candidate]) -> Iterator[tuple[Candidate, Best]]:
    """The best pipeline, with what it offers, where stages tell of a shorter step than the best of
    the replicas and shards that are known.
    """
    problem = run.problem
    if problem.objective.goal != "step" or lacks(problem):
        return
    space = Space.of(problem)
    least = min((problem.objective.limit(one.verdict) for one in known), default=float("inf"))
    if not (counts := promising(space, least)):
        return
    found: tuple[Candidate, Shape] | None = None
    for one in pipelines_below(space, counts, least, run.budget):
        if not one[0].fits:
            run.lack(one[1].words, problem.cluster.shortfall(one[0].verdict.peak))
        elif found is None or problem.objective.better(found[0], one[0]) is one[0]:
            found = one
    if found is not None:
        candidate, shape = found
        candidate = shape.with_recipe(candidate).noted(*_against(problem, known))
        yield candidate, Best(SPLIT_OPS, shape.words, candidate.verdict.step_time)


def promising(space: Space, least: float) -> list[int]:
    """The numbers of micro-batches whose stages could tell of less than ``least`` seconds.

    What the number with the lowest floor loses to that, others lose by at least half: stages are as
    uneven, and have as much to send.
    """
    floors = {m: floor(space.problem, m) for m in space.counts}
    first, *others = sorted((m for m in floors if floors[m] < least), key=floors.__getitem__) or [0]
    if not others:
        return [first] * (first > 0)
    shapes = ranked(space, [first], [space.problem.cluster.n_devices], NAMED[1:])
    lost = shapes[0].seconds / floors[first] - 1 if shapes else 0.0
    rest = [m for m in others if floors[m] * (1 + lost / 2) < least]
    return sorted([first, *rest])


def floor(problem: Problem, m: int) -> float:
    """Seconds that a step of m micro-batches takes at best through stages of equal work on all
    devices.

    Each device does its part of the work, and a launch more for each op and micro-batch. The last
    stage begins when a micro-batch has been through all stages before it; several stages per
    device divide that.
    """
    phases = [problem.model.phases[op] for op in problem.reduced.op_of.tolist()]
    once = np.array([phase == "o" for phase in phases])
    forward = np.array([phase in ("", "f") for phase in phases])
    speed = fill = 0.0
    for kind in problem.cluster.device_types:
        time, launch = problem.compute_time[:, kind], problem.cluster.types[kind].launch
        each = np.where(time > 0, np.minimum(time, launch + time / m), 0.0)
        speed += 1 / max(float(time[once].sum() + m * each[~once].sum()), 1e-30)
        fill = max(fill, 1 / max(float(each[forward].sum()), 1e-30))
    p = problem.cluster.n_devices
    return 1 / speed + (p - 1) / p / CHUNKS / fill


def _against(problem: Problem, known: Sequence[Candidate]) -> tuple[str, ...]:
    """What replicas would spend on gradients, where some were judged."""
    replicas = [one for one in known if (one.problem.program.replica >= 0).any()]
    if not replicas or not problem.model.updates.any():
        return ()
    best = problem.objective.best(replicas)
    share = float(best.schedule.channel_busy.max(initial=0.0)) / best.verdict.step_time
    return (f"replicas would spend {share:.0%} of the step on gradients",)
