"""The number of verdicts that a strategy may ask for, and the assignments that it keeps when it
asks for more.

Every problem has a :class:`Meter`. Who runs a strategy may grant it an allowance of verdicts:

>>> import loadmaster as lm
>>> from loadmaster.strategies.lists import heft
>>> graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
>>> problem = lm.place(graph, cluster, "single").problem
>>> with problem.meter.allowing(3) as allowance:
...     try:
...         candidate = heft.place(problem)
...     except AllowanceError:
...         candidate = None
>>> allowance.used, candidate is None, allowance.best.verdict.fits
(3, True, True)

The contract has three parts:

* Each verdict on the problem counts, before its simulation begins.
* The verdict that is one too many is an :class:`AllowanceError` instead. A strategy does not catch
  it, so the strategy ends there. Who granted the allowance catches it.
* The best verdict on what fits is kept with its assignment. It is the result of a strategy that
  ended so.

Verdicts are counted, not seconds, so a strategy ends at the same point on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from loadmaster.judge.assignment import Assignment
from loadmaster.judge.objective import Objective
from loadmaster.judge.verdict import Verdict


class AllowanceError(Exception):
    """A strategy asked for one verdict more than it was granted."""


class JudgedAssignment(NamedTuple):
    """An assignment and the verdict on it."""

    assignment: Assignment
    verdict: Verdict


@dataclass
class Allowance:
    """Verdicts that may be asked for.

    Attributes
    ----------
    verdicts : int
        How many were granted.
    used : int
        How many were asked for so far.
    best : Seen or None
        The best of them, of those that fit.
    """

    verdicts: int
    used: int = 0
    best: JudgedAssignment | None = None


class Meter:
    """Counts the verdicts on one problem against the allowance that is in force, if there is one.

    Outside of :meth:`allowing` nothing is counted, and threads may share the problem. Inside, one
    thread at a time may ask for verdicts.
    """

    def __init__(self) -> None:
        self._allowance: Allowance | None = None

    @contextmanager
    def allowing(self, verdicts: int) -> Iterator[Allowance]:
        """An allowance that is in force until the block ends."""
        outer, self._allowance = self._allowance, Allowance(verdicts)
        try:
            yield self._allowance
        finally:
            self._allowance = outer

    def draw(self) -> None:
        """Counts a verdict that is asked for.

        Raises
        ------
        AllowanceError
            It is one too many.
        """
        allowance = self._allowance
        if allowance is None:
            return
        if allowance.used == allowance.verdicts:
            raise AllowanceError
        allowance.used += 1

    def keep(self, objective: Objective, assignment: Assignment, verdict: Verdict) -> None:
        """Keeps a verdict if it is the best of the allowance so far, and fits."""
        allowance = self._allowance
        if allowance is None or not verdict.fits:
            return
        seen = JudgedAssignment(assignment, verdict)
        best = allowance.best
        allowance.best = seen if best is None else objective.better(best, seen)
