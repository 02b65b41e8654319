"""Attempts within memory: how strategies that count bytes one way or another are held to what the
simulator counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, summed
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.deciders import deciders
from loadmaster.strategies.refusal import nowhere_error, overflow_error

MemoryModel = Literal["dynamic", "static"]

#: Shares of each device's memory that dynamic attempts may fill. The largest that does is looked
#: for (:class:`Narrowing`).
SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)

#: Places ops within a capacity per device.
Within = Callable[[NDArray[np.uint64]], Assignment]

#: The same, given bytes that each reduced op takes.
Attempt = Callable[[NDArray[np.uint64], NDArray[np.uint64]], Assignment]

#: The same, given first which op decides for each.
AttemptLed = Callable[[NDArray[np.int32], NDArray[np.uint64], NDArray[np.uint64]], Assignment]


@dataclass(frozen=True)
class Outcome:
    """The result of a row of attempts.

    Attributes
    ----------
    candidate : Candidate or None
        The best that fits; else the one least over; None: none could even be placed, or none can
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
        """True if the candidate fits."""
        return self.candidate is not None and self.candidate.fits

    @property
    def at_ease(self) -> bool:
        """True if the first attempt, with the whole memory, would do."""
        return self.share == 1.0 and self.refused is None and (self.candidate is None or self.fits)


@dataclass
class Narrowing:
    """Bisection on the share of the memory: towards the largest share within which the placement
    fits.

    Where an attempt holds r times the memory, the next may fill 1 / r of what that one might. Each
    step is at least twice as long as the one before, and passes over shares that change nothing.
    Once an attempt fits, or finds no room, what lies between is bisected, until an attempt holds so
    much that no share there would do. So there are few attempts, even where none fits.

    Attributes
    ----------
    shares : sequence of float
        Descending.
    at : int
        Index of the share under trial.
    too_large : int
        Index of the last share within which too much is held; -1: none is known.
    enough : int
        Index of the first share within which an attempt fitted or found no room.
    step : int
        The least step to the next share.
    """

    shares: Sequence[float]
    at: int = 0
    too_large: int = -1
    enough: int = field(init=False)
    step: int = 1

    def __post_init__(self) -> None:
        self.enough = len(self.shares)

    def __iter__(self) -> Iterator[float]:
        while self.too_large < self.at < self.enough:
            yield self.shares[self.at]

    def note(self, outcome: Outcome, charged: float = 1.0) -> None:
        """Takes what came of the share under trial, and which share of its memory the fullest
        device was charged with: the same would come of any share from there on.
        """
        if outcome.fits or outcome.refused is not None:
            self.enough = self.at
        else:
            assert outcome.candidate is not None
            same = sum(share >= charged for share in self.shares) - 1
            self.too_large = max(self.at, same)
            wanted = (1 + 1e-9) * self.shares[self.at] / outcome.candidate.overfull
            smaller = sum(share > wanted for share in self.shares)
            if self.enough == len(self.shares):
                next_one = max(smaller, self.at + self.step, self.too_large + 1)
                self.at = min(next_one, max(self.enough - 1, self.too_large + 1))
                self.step *= 2
                return
            if smaller >= self.enough:
                self.too_large = self.enough
        self.at = (self.too_large + self.enough) // 2


def attempts(
    problem: Problem,
    attempt: Within,
    bytes_: NDArray[np.uint64],
    shares: Sequence[float],
    to_beat: Candidate | None = None,
) -> Outcome:
    """Tries shares of the memory, until the largest is found within which the simulated peak fits.

    ``bytes_`` is what each op is charged. A placement whose busiest device computes as long as
    ``to_beat`` takes, which fits, is not simulated: it cannot win.
    """
    limit = float("inf") if to_beat is None else problem.objective.limit(to_beat.verdict)
    best, narrowing = Outcome(None, 1.0), Narrowing(shares)
    for share in narrowing:
        try:
            assignment = attempt((problem.capacity * share).astype(np.uint64))
        except InfeasibleError as error:
            best = replace(best, share=share, refused=error)
            narrowing.note(best)
            continue
        if limit < float("inf") and problem.busiest(assignment.devices) >= limit:
            return replace(best, share=share)
        outcome = Outcome(judged(problem, assignment), share)
        used = summed(bytes_, assignment.devices, problem.cluster.n_devices)
        narrowing.note(outcome, problem.fullest(used))
        best = replace(better_outcome(problem, best, outcome), share=share)
    return best


def try_memory(
    problem: Problem, attempt: Attempt, memory: MemoryModel, to_beat: Candidate | None = None
) -> Outcome:
    """Attempts under a memory model.

    ``"static"`` is the papers' constraint: resident bytes and outputs of all ops on a device, for
    the whole step, within its memory. ``"dynamic"`` charges what each op holds at the peak of a
    sequential run (:func:`loadmaster.fast.peak_bytes`) against shares of the memory, until the
    largest is found with which the simulated peak, copies from other devices included, fits.
    """
    bytes_, shares = charged(problem, memory), (1.0,) if memory == "static" else SHARES
    return attempts(problem, partial(attempt, bytes_), bytes_, shares, to_beat)


def charged(problem: Problem, memory: MemoryModel) -> NDArray[np.uint64]:
    """Bytes that each op is charged for the whole step, by a memory model."""
    if memory == "static":
        return problem.graph.static_bytes
    if memory == "dynamic":
        return problem.reduced.held_at_peak
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
