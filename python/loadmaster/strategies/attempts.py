"""Attempts within memory: how strategies that count bytes one way or another are held to what the
simulator counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.deciders import deciders
from loadmaster.strategies.refusal import nowhere_error, overflow_error

MemoryModel = Literal["dynamic", "static"]

#: Shares of each device's memory that dynamic attempts may fill, one after another.
SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)

#: Places ops within a capacity per device.
Within = Callable[[NDArray[np.uint64]], Assignment]

#: The same, given bytes that each reduced op takes.
Attempt = Callable[[NDArray[np.uint64], NDArray[np.uint64]], Assignment]

#: The same, given first which op decides for each.
AttemptLed = Callable[[NDArray[np.int32], NDArray[np.uint64], NDArray[np.uint64]], Assignment]


@dataclass(frozen=True)
class Outcome:
    """What a row of attempts came to.

    Attributes
    ----------
    candidate : Candidate or None
        The first that fits; else the one least over; None: none could even be placed, or none can
        be faster than what is there already.
    share : float
        Share of the memory that the last attempt was allowed to fill.
    refused : InfeasibleError or None
        Why the last attempt could not be placed.
    """

    candidate: Candidate | None
    share: float
    refused: InfeasibleError | None = None

    @property
    def fits(self) -> bool:
        """Whether the candidate fits."""
        return self.candidate is not None and self.candidate.fits

    @property
    def at_ease(self) -> bool:
        """Whether the first attempt, with the whole memory, would do."""
        return self.share == 1.0 and self.refused is None and (self.candidate is None or self.fits)


def attempts(
    problem: Problem, attempt: Within, shares: Sequence[float], to_beat: Candidate | None = None
) -> Outcome:
    """Tries shrinking shares of the memory until the simulated peak fits.

    A placement whose busiest device computes as long as ``to_beat`` takes, which fits, is not
    simulated: it cannot win.
    """
    limit = float("inf") if to_beat is None else problem.objective.limit(to_beat.verdict)
    closest: Candidate | None = None
    share = 0.0
    for share in shares:
        try:
            assignment = attempt((problem.capacity * share).astype(np.uint64))
        except InfeasibleError as error:
            return Outcome(closest, share, error)
        if limit < float("inf") and problem.busiest(assignment.devices) >= limit:
            return Outcome(None, share)
        candidate = judged(problem, assignment)
        if candidate.fits:
            return Outcome(candidate, share)
        if closest is None or candidate.verdict.excess < closest.verdict.excess:
            closest = candidate
    return Outcome(closest, share)


def try_memory(
    problem: Problem, attempt: Attempt, memory: MemoryModel, to_beat: Candidate | None = None
) -> Outcome:
    """Attempts under a memory model.

    ``"static"`` is the papers' constraint: resident bytes and outputs of all ops on a device, for
    the whole step, within its memory. ``"dynamic"`` charges what each op holds at the peak of a
    sequential run (:func:`loadmaster.fast.peak_bytes`) against shrinking shares of the memory,
    until the simulated peak, copies from other devices included, fits.
    """
    if memory == "static":
        return attempts(problem, partial(attempt, problem.graph.static_bytes), (1.0,), to_beat)
    if memory == "dynamic":
        return attempts(problem, partial(attempt, problem.reduced.held_at_peak), SHARES, to_beat)
    raise InputError(f"memory is {memory!r}: wants 'dynamic' or 'static'")


def better_outcome(problem: Problem, a: Outcome, b: Outcome) -> Outcome:
    """The one with the better candidate, of equals the first; if neither has one, the one that says
    why.
    """
    if a.candidate is None and b.candidate is None:
        return b if a.refused is None else a
    if a.candidate is None or b.candidate is None:
        return b if a.candidate is None else a
    return a if problem.objective.better(a.candidate, b.candidate) is a.candidate else b


def best_way(problem: Problem, attempt: AttemptLed, memory: MemoryModel) -> Outcome:
    """The best outcome over the ways to decide for colocated ops; see :func:`try_memory`."""
    ways = deciders(problem.graph)
    outcomes = [try_memory(problem, partial(attempt, lead), memory) for lead in ways]
    return reduce(partial(better_outcome, problem), outcomes)


def accepted(problem: Problem, outcome: Outcome) -> Candidate:
    """The candidate, if it fits or best effort will do.

    Raises
    ------
    InfeasibleError
        It does not fit, or there is none.
    """
    if outcome.candidate is None:
        assert outcome.refused is not None
        raise nowhere_error(problem, outcome.refused)
    if outcome.fits or problem.best_effort:
        return outcome.candidate
    raise overflow_error(problem, outcome.candidate)


def within_memory(problem: Problem, attempt: Attempt, memory: MemoryModel) -> Candidate:
    """A placement that the simulator finds to fit; see :func:`try_memory`."""
    return accepted(problem, try_memory(problem, attempt, memory))
