"""Pipelines among the plans of ``auto``: micro-batches through stages.

Most graphs with several samples could be pipelined, and for most the replicas or shards that are
there already are as short as stages of equal work could be at best
(:mod:`loadmaster.strategies.pipelines.floors`). For these nothing is tried. What remains is ranked
by stages (:mod:`loadmaster.strategies.pipelines.shapes`), and judged where these tell of a step
that is not much longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from loadmaster.judge.objective import STEP
from loadmaster.judge.problem import Problem
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.candidate import Best, Candidate
from loadmaster.strategies.kinds import Kind, Request
from loadmaster.strategies.pipelines import gpipe, max_load, pipedream, piper
from loadmaster.strategies.pipelines.pipeline import pipelines_below
from loadmaster.strategies.pipelines.shapes import PipelineShape
from loadmaster.strategies.pipelines.space import PipelineSpace, lacks

#: Pipelines that are tried only where nothing else fits.
LAST_RESORTS = {
    "gpipe": gpipe.place,
    "pipedream": pipedream.place,
    "max-load": max_load.place,
    "piper": piper.place,
}


def pipelines(run: Run, known: Sequence[Candidate]) -> Iterator[tuple[Candidate, Best]]:
    """The best pipeline, with what it offers, where stages tell of a shorter step than the best of
    the replicas and shards that are known.
    """
    problem = run.problem
    if lacks(problem):
        return
    space = replace(PipelineSpace.of(problem), refusals=run.refusals[Kind.PIPELINES])
    # Steps of a pipeline overlap where those of others do not: by throughput none is left out.
    rivals = known if run.asked == STEP else ()
    least = min((problem.objective.limit(one.verdict) for one in rivals), default=float("inf"))
    best: tuple[Candidate, PipelineShape] | None = None
    for one in pipelines_below(space, least, run.budget):
        if not one[0].fits:
            run.lack(Kind.PIPELINES, one[1].words, problem.cluster.shortfall(one[0].verdict.peak))
        elif best is None or problem.objective.better(best[0], one[0]) is one[0]:
            best = one
    if best is not None:
        candidate, shape = best
        candidate = shape.with_recipe(candidate).noted(*_against(problem, known))
        yield candidate, Best.of(Kind.PIPELINES, shape.words, candidate)
    elif not any(one.fits for one in known):
        yield from _last_resorts(run)


def _last_resorts(run: Run) -> Iterator[tuple[Candidate, Best]]:
    """Pipelines of papers that fit, of which some have one stage, each with what it offers."""
    for name, place in LAST_RESORTS.items():
        candidate = run.tried(Kind.PIPELINES, name, partial(place, run.problem))
        if candidate is not None and candidate.fits:
            request = Request(name)
            yield (
                candidate,
                Best.of(candidate.kind, str(candidate.parallelism or name), candidate, request),
            )


def _against(problem: Problem, known: Sequence[Candidate]) -> tuple[str, ...]:
    """Seconds that replicas would spend on gradients, where some were judged."""
    replicas = [one for one in known if (one.problem.program.replica >= 0).any()]
    if not replicas or not problem.model.updates.any():
        return ()
    best = problem.objective.best(replicas)
    share = float(best.schedule.channel_busy.max(initial=0.0)) / best.verdict.step_time
    return (f"replicas would spend {share:.0%} of the step on gradients",)
