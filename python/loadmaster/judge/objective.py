"""The order of plans, from better to worse. Nothing else compares verdicts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from loadmaster.judge.verdict import Verdict


class Judged(Protocol):
    """Anything that has a verdict: a candidate, a plan."""

    @property
    def verdict(self) -> Verdict:
        """The judge's verdict on it."""


T = TypeVar("T", bound=Judged)

#: Words for what is to be short.
Goal = Literal["step", "throughput"]

#: A plan longer than a bound by no more than this share of it is optimal: times are rounded to
#: ticks.
ROUNDING = 3e-6

#: Share of a step that a plan of more parts gains at least: nobody would notice less.
WORTH = 5e-4


@dataclass(frozen=True)
class Objective:
    """Less over the memory first, then fewer seconds; of equals the first.

    Attributes
    ----------
    goal : "step" (default) or "throughput"
        Which seconds count: those of one step, or those between steps that follow each other
        without a pause.

    Examples
    --------
    >>> import numpy as np
    >>> peak = np.array([4], dtype=np.uint64)
    >>> quick = Verdict.measured(0.2, peak, [4], period=0.2)
    >>> steady = Verdict.measured(0.3, peak, [4], period=0.1)
    >>> Objective("step").gain(quick, steady) < 0 < Objective("throughput").gain(quick, steady)
    True
    """

    goal: Goal = "step"

    def seconds(self, verdict: Verdict) -> float:
        """The seconds that are to be few."""
        return verdict.step_time if self.goal == "step" else verdict.period

    def rank(self, verdict: Verdict) -> tuple[int, float]:
        """A key to sort by, the best first."""
        return verdict.excess, self.seconds(verdict)

    def better(self, a: T, b: T) -> T:
        """The better of two, of equals the first."""
        return b if self.rank(b.verdict) < self.rank(a.verdict) else a

    def plainer(self, plain: T, other: T) -> T:
        """The first, a plan of fewer parts, unless the other is better by more than ``WORTH``."""
        excess, seconds = self.rank(plain.verdict)
        is_as_good = (excess, seconds * (1 - WORTH)) <= self.rank(other.verdict)
        return plain if is_as_good else other

    def best(self, some: Iterable[T]) -> T:
        """The best of one or more, of equals the first."""
        return min(some, key=lambda one: self.rank(one.verdict))

    def quickest(self, some: Iterable[T]) -> T:
        """The one with the fewest seconds, of those that fit if any does; of equals the first.

        For placements that will be made again with less memory where none fits: by how much they
        are over says nothing then of what comes of them.
        """
        return min(some, key=lambda one: (not one.verdict.fits, self.seconds(one.verdict)))

    def limit(self, verdict: Verdict) -> float:
        """Seconds of a step from which on no rival can be better: a simulation may stop there.
        Infinite where the verdict is over the memory, or where it is not the step that counts.
        """
        return verdict.step_time if verdict.fits and self.goal == "step" else float("inf")

    def reaches(self, verdict: Verdict, seconds: float) -> bool:
        """True if it takes no longer than some seconds."""
        return self.seconds(verdict) <= seconds

    def gap(self, verdict: Verdict, bound: float) -> float:
        """Share of the seconds that a rival can save at most, where none takes less than ``bound``
        seconds; not below 0.
        """
        seconds = self.seconds(verdict)
        return max(1 - bound / seconds, 0.0) if seconds else 0.0

    def is_proved(self, verdict: Verdict, bound: float) -> bool:
        """True if no rival is better, where none takes less than ``bound`` seconds."""
        return self.reaches(verdict, bound * (1 + ROUNDING))

    def gain(self, before: Verdict, after: Verdict) -> float:
        """Share of the seconds that are saved; below 0 where it takes longer."""
        seconds = self.seconds(before)
        return 1 - self.seconds(after) / seconds if seconds else 0.0


#: The objective of plans, unless the other is asked for.
STEP = Objective("step")

#: The objective of plans of an inference service.
THROUGHPUT = Objective("throughput")

#: Each by its word.
OBJECTIVES: dict[Goal, Objective] = {"step": STEP, "throughput": THROUGHPUT}
