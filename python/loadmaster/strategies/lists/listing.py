"""Parts that list schedulers share: memory and colocation tried in turn, and one device as the
yardstick.

A list scheduler yields what :func:`loadmaster.fast.schedule` or
:func:`loadmaster.fast.schedule_earliest` returns for a :class:`loadmaster.fast.Problem`, which says
what to heed, once or round by round; the rest is here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial, reduce

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, by_start, ranks
from loadmaster.strategies.attempts import (
    SHARES,
    MemoryModel,
    Narrowing,
    Outcome,
    accepted,
    better_outcome,
)
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.deciders import deciders
from loadmaster.strategies.simple import single

#: Devices, starts and finishes per reduced op.
Scheduled = tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]


#: A list scheduler: one round or several, of which the best counts.
ListScheduler = Callable[[fast.Problem], Iterator[Scheduled]]

#: One way to decide for colocated ops, at work: it pauses after each round and returns its outcome.
Way = Generator[None, None, Outcome]

#: Rounds of one way before the next way has its turn. The first few rounds differ most.
TURN = 3


def list_scheduled(
    problem: Problem, scheduler: ListScheduler, *, memory: MemoryModel, contention: bool
) -> Candidate:
    """The best of what a list scheduler finds under each way to decide for colocated ops.

    Memory is counted by lifetimes first, against shrinking shares of the devices' memory until the
    simulated peak fits, then by what each op holds at the peak of a sequential run;
    ``memory="static"`` charges resident and output bytes for the whole step, as the papers do. With
    ``contention`` the answer is never slower than one device that holds everything.

    Raises
    ------
    InfeasibleError
        Nothing that fits was found.
    """
    check_memory(memory)
    at_work = [
        _first_that_fits(problem, scheduler, core, memory)
        for core in ways(problem, contention=contention)
    ]
    outcome = reduce(partial(better_outcome, problem), reversed(_in_turns(at_work)))
    if not contention:
        return accepted(problem, outcome)
    return no_slower_than_one(problem, outcome)


def ways(problem: Problem, *, contention: bool = True) -> list[fast.Problem]:
    """The problem under each way to decide for colocated ops, in the order in which they are tried.

    The way in which readers decide comes first. It is the better one most often in large graphs,
    where the verdicts that are granted may be spent before the other way has had its turn.
    """
    core = problem.core if contention else problem.core.without_contention()
    return [core.led_by(lead) for lead in reversed(deciders(problem.graph))]


def at_first(problem: Problem, core: fast.Problem, memory: MemoryModel) -> fast.Problem:
    """A way as :func:`list_scheduled` tries it first: how it counts memory, and how much of it."""
    op_bytes, shares = next(_ways_to_count(problem, memory))
    return _within(problem, core, op_bytes, shares[0])


def _within(
    problem: Problem, core: fast.Problem, op_bytes: NDArray[np.uint64] | None, share: float
) -> fast.Problem:
    capacity = (problem.capacity * share).astype(np.uint64)
    return core.within(capacity=capacity, op_bytes=op_bytes)


def _in_turns(ways: list[Way]) -> list[Outcome]:
    """The outcomes of the ways. They take turns, so that each has had some rounds if verdicts run
    out.
    """
    outcomes: dict[int, Outcome] = {}
    while len(outcomes) < len(ways):
        for i, way in enumerate(ways):
            try:
                for _ in range(TURN):
                    next(way)
            except StopIteration as stop:
                outcomes.setdefault(i, stop.value)
    return [outcomes[i] for i in range(len(ways))]


def in_order_of_start(problem: Problem, scheduled: Scheduled) -> Assignment:
    """The placement of a schedule, ops by start; ties by finish, then topologically."""
    devices, start, finish = scheduled
    order = by_start(problem.graph, start, finish)
    return Assignment(devices, ranks(order), "fixed", float(finish.max()))


def _first_that_fits(
    problem: Problem, scheduler: ListScheduler, core: fast.Problem, memory: MemoryModel
) -> Way:
    closest = Outcome(None, 1.0)
    for op_bytes, shares in _ways_to_count(problem, memory):
        narrowing = Narrowing(shares)
        for share in narrowing:
            within = _within(problem, core, op_bytes, share)
            outcome = yield from _best_round(problem, scheduler(within), share)
            closest = better_outcome(problem, closest, outcome)
            narrowing.note(outcome)
        if closest.fits:
            return closest
    return closest


def _best_round(problem: Problem, rounds: Iterator[Scheduled], share: float) -> Way:
    """The best of a list scheduler's rounds; one that finds no room is the last, and so is the
    first where it does not fit: those after it seldom do.
    """
    best = Outcome(None, share)
    try:
        for scheduled in rounds:
            candidate = judged(problem, in_order_of_start(problem, scheduled))
            best = better_outcome(problem, best, Outcome(candidate, share))
            yield
            if not best.fits:
                break
    except InfeasibleError as error:
        return replace(best, refused=error)
    return best


def _ways_to_count(
    problem: Problem, memory: MemoryModel
) -> Iterator[tuple[NDArray[np.uint64] | None, tuple[float, ...]]]:
    if memory == "static":
        yield problem.graph.static_bytes, (1.0,)
        return
    yield None, SHARES
    yield problem.reduced.held_at_peak, SHARES


def check_memory(memory: str) -> None:
    """Raises :class:`~loadmaster.InputError` for an unknown memory model."""
    if memory not in ("dynamic", "static"):
        raise InputError(f"memory is {memory!r}: wants 'dynamic' or 'static'")


def no_slower_than_one(problem: Problem, outcome: Outcome) -> Candidate:
    """The outcome's candidate, or one device for everything if that is faster or all that fits."""
    alone = _one_device(problem)
    candidate = outcome.candidate
    if alone is None or (
        candidate is not None and problem.objective.better(candidate, alone) is candidate
    ):
        return accepted(problem, outcome)
    device = problem.cluster.devices[int(alone.assignment.devices[0])].name
    if candidate is None or not candidate.fits:
        why = "no split that fits was found"
    else:
        seconds = problem.objective.seconds
        ratio = seconds(candidate.verdict) / seconds(alone.verdict)
        why = f"the best split found takes {ratio:.4g} times as long"
    return alone.noted(f"everything is on {device}: {why}")


def _one_device(problem: Problem) -> Candidate | None:
    try:
        return single.place(problem)
    except InfeasibleError:
        return None


def ordered(problem: Problem, devices: NDArray[np.int32]) -> Candidate:
    """The better of two orders for a given placement.

    By start in the engine's list schedule, and by b-level where only what changes devices takes
    time.
    """
    b_level, _ = fast.placed_paths(problem.core, devices)
    order = fast.priority_order(problem.graph, b_level)
    scheduled = fast.schedule(
        problem.core.led_by(deciders(problem.graph)[0]).within(
            capacity=np.full(problem.cluster.n_devices, np.iinfo(np.uint64).max)
        ),
        order,
        pinned=devices,
    )
    _, finish = fast.schedule_placed(problem.core, order, devices)
    assignments = (
        in_order_of_start(problem, scheduled),
        Assignment(devices, ranks(order), "fixed", float(finish.max())),
    )
    return problem.objective.quickest(judged(problem, assignment) for assignment in assignments)
