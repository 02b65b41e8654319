"""Plans by every other method and system, where memory is short.

There the plans that fit are few, and each planner finds some that others miss. So ``auto`` takes
the best of them all, at the prices of its own problem. A search that goes on for as long as it is
given is not among them, nor is a system whose launches are paid for by others than in the problem.
The fuzz target ``auto-rivals`` holds ``auto`` against the same planners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.costs.runtimes.priced import runtime_of
from loadmaster.judge.bounds import split_bound
from loadmaster.judge.problem import Problem
from loadmaster.plans.planner import Planner
from loadmaster.strategies import least_overflow
from loadmaster.strategies.auto.left_out import whole_offer
from loadmaster.strategies.candidate import Best, Candidate
from loadmaster.strategies.kinds import Kind, Request
from loadmaster.strategies.options import takes
from loadmaster.strategies.registry import DEFAULT, METHODS
from loadmaster.strategies.simple import single
from loadmaster.systems.registry import SYSTEMS, planned_for

#: Memory is short where no device holds all ops, and all devices together have less than so many
#: times what one would need.
SHORT = 4.0

#: A plan is let be that fills no device's memory beyond this share: memory does not shape it.
ROOMY = 0.5

#: A plan is let be that is over the bound of all plans by no more than this share of its step.
NEAR = 0.05

#: Methods that search for as long as they are given.
SEARCHES = frozenset(
    {"ilp", "cpsat", "pesto", "moirai", "mcmc", "cross-entropy", "policy-gradient"}
)


def may_gain(problem: Problem, plan: Candidate | None) -> bool:
    """True if memory is short, and a plan of ``auto`` neither is near the bound nor leaves all
    devices half empty; None: it has no plan.
    """
    if plan is not None:
        least = split_bound(problem).seconds
        is_near = problem.objective.seconds(plan.verdict) * (1 - NEAR) <= least
        room = np.array(problem.cluster.memory, dtype=np.float64)
        is_roomy = bool((plan.verdict.peak <= ROOMY * room).all())
        if plan.is_interrupted or is_near or is_roomy:
            return False
    return is_short(problem)


def is_short(problem: Problem) -> bool:
    """True if no device holds all ops, and the memory of all is not much more than that of one that
    would, yet holds what stays in memory for the whole step. Two simulations.
    """
    in_all = sum(problem.cluster.memory)
    if int(problem.graph.resident.sum(dtype=np.uint64)) > in_all:
        return False
    with suppress(InfeasibleError):
        if single.place(problem).fits:
            return False
    with suppress(InfeasibleError):
        alone = single.place(replace(problem, best_effort=True))
        return in_all < SHORT * float(alone.verdict.peak.max())
    return True


def planners(problem: Problem) -> Iterator[Planner]:
    """Every method that ends by itself, and every system at the prices of the problem."""
    yield from (Planner(name) for name in METHODS if name not in {DEFAULT, *SEARCHES})
    for name in planned_for():
        with suppress(InputError):
            if SYSTEMS[name].priced(problem) is problem:
                yield Planner(name, is_target=True)


def others(
    problem: Problem, tell: Callable[[str], None], has_time: Callable[[], bool]
) -> Iterator[tuple[Planner, Candidate]]:
    """The plans of other planners that fit, each with the planner, while there is time."""
    for planner in planners(problem):
        if not has_time():
            return
        tell(planner.name)
        with suppress(InputError, InfeasibleError):
            candidate = _planned(problem, planner)
            if candidate.fits:
                yield planner, candidate


def _planned(problem: Problem, planner: Planner) -> Candidate:
    """The plan of a planner, or what a search makes of the one where memory is no bound.

    Raises
    ------
    InputError, InfeasibleError
        It has none.
    """
    if planner.is_target:
        system = SYSTEMS[planner.name]
        system.check_framework(problem.model)
        system.check_runtime(runtime_of(problem.model))
        return system.plan(problem)
    function = METHODS[planner.name][0]
    try:
        return function(problem)
    except InfeasibleError:
        if not takes(function, "memory"):
            raise
        return least_overflow.rescued(problem, function, {})


def best_of(
    first: Candidate | None,
    rivals: Iterable[tuple[Planner, Candidate]],
    confirmed: Callable[[Candidate], Candidate],
) -> Candidate | None:
    """The best of a candidate and of others; one of these names its planner in a note.

    ``confirmed`` judges a stream of steps where that is what counts. Ctrl-C leaves the best so far.
    """
    best = first
    try:
        for planner, candidate in rivals:
            with suppress(InfeasibleError):
                candidate = confirmed(candidate)
                objective = candidate.problem.objective
                if best is None or objective.better(best, candidate) is not best:
                    best = _instead(candidate, planner, first)
    except KeyboardInterrupt:
        if best is None:
            raise
        return best.interrupted()
    return best


def _instead(best: Candidate, planner: Planner, first: Candidate | None) -> Candidate:
    """A candidate of another planner in the place of the first."""
    who = f"{'target' if planner.is_target else 'method'} {planner.name}"
    offer = _offer(best, planner)
    best = best.noted(f"by {who}: memory is short, so other methods and systems were tried, too")
    if first is None:
        return replace(best, offers=(offer,))
    rest = [one for one in first.offers if (one.kind, one.what) != (offer.kind, offer.what)]
    left_out = tuple((kind, why) for kind, why in first.left_out if kind != offer.kind)
    return replace(
        best, bound=first.bound, space=first.space, offers=(offer, *rest), left_out=left_out
    )


def _offer(best: Candidate, planner: Planner) -> Best:
    request = None if planner.is_target else Request(planner.name)
    if best.kind in (Kind.ONE_DEVICE, Kind.WHOLE_OPS):
        return replace(whole_offer(best), request=request)
    words = str(best.parallelism) if best.parallelism else f"by {planner.name}"
    return Best.of(best.kind, words, best, request)
