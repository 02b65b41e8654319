"""State of one call of ``auto``, shared by its stages: how far to go, and the best plan so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from loadmaster.base.effort import Budget
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.judge.bounds import Bound, bound, split_bound
from loadmaster.judge.objective import STEP, Objective
from loadmaster.judge.problem import Problem
from loadmaster.strategies.auto.pace import Pace
from loadmaster.strategies.auto.tuning import TUNING, Tuning
from loadmaster.strategies.candidate import INTERRUPTED, Candidate
from loadmaster.strategies.dropped import Refusals
from loadmaster.strategies.kinds import Kind

T = TypeVar("T")


def _silent(stage: str, best: Incumbent | None) -> None:
    """Tells nobody."""


def _as_it_is(candidate: Candidate) -> Candidate:
    return candidate


@dataclass
class Run:
    """One call of ``auto``.

    Attributes
    ----------
    problem : Problem
    budget : Budget
    gap : float
        A plan is good enough if (step time - least) / step time is no more.
    chains : int
        Chains of moves in the search.
    threads : int
        Threads that seeds are refined on, and chains run on.
    progress : callable
        Told of every better plan.
    tuning : Tuning
    asked : Objective
        The user's, where steps stand in for it.
    may_split : bool
        Whether replicas are among the plans.
    best : Candidate or None
        The best plan so far.
    fitting : list of Candidate
        The plans that fit of those that were offered.
    writes : callable
        Writes down the recipe of a sharded plan of this run; any other plan stays as it is.
    is_sole : bool
        Whether one device is the answer, so that there is nothing to search for.
    ended : str
        What the user should know about how the search ended; empty: nothing.
    refusals : dict of Kind to Refusals
        Candidates of each kind that were dropped, since nothing could run them, or no room was.
    replicas : dict of int to float
        Seconds of a step of shards that are whole replicas, by how many, by estimates.
    is_interrupted : bool
        True if Ctrl-C ended it.
    lacking : dict of Kind to (str, int)
        Of the plans of a kind that did not fit, the one that lacks least on any device, in words,
        and the bytes that it lacks there.
    """

    problem: Problem
    budget: Budget
    gap: float = 0.0
    chains: int = 1
    threads: int = 1
    progress: Progress = _silent
    tuning: Tuning = TUNING
    asked: Objective = STEP
    may_split: bool = False
    best: Candidate | None = None
    fitting: list[Candidate] = field(default_factory=list)
    writes: Callable[[Candidate], Candidate] = _as_it_is
    is_sole: bool = False
    ended: str = ""
    is_interrupted: bool = False
    lacking: dict[Kind, tuple[str, int]] = field(default_factory=dict)
    refusals: defaultdict[Kind, Refusals] = field(default_factory=lambda: defaultdict(Refusals))
    replicas: dict[int, float] = field(default_factory=dict)

    def seen_of_replicas(self, n: int) -> float:
        """Seconds that no step of so many replicas with collectives is taken to be below."""
        return self.replicas.get(n, 0.0) / (1 + self.tuning.replicas_near)

    def interrupt(self) -> None:
        """Notes that Ctrl-C ended the search."""
        self.ended, self.is_interrupted = INTERRUPTED, True

    def tried(self, kind: Kind, words: str, make: Callable[[], T]) -> T | None:
        """The candidate of a kind that a function makes; None: it was refused, and the run has the
        reason.
        """
        candidate = self.refusals[kind].tried(words, make)
        if candidate is None:
            error = self.refusals[kind].reasons.get(words)
            self.lack(kind, words, getattr(error, "shortfall", {}))
        return candidate

    def is_short(self, known: Sequence[Candidate]) -> bool:
        """True if memory may keep plans from being shorter: some did not fit, or the best that is
        known nearly fills a device and is not near the bound.
        """
        if self.lacking or not known:
            return True
        best = self.problem.objective.best(known)
        bound = self.split_bound.seconds * (1 + self.tuning.near_bound)
        is_near = self.problem.objective.reaches(best.verdict, bound)
        return not is_near and best.overfull > 1 - self.tuning.free_memory

    def lack(self, kind: Kind, words: str, shortfall: Mapping[str, int]) -> None:
        """Notes that a plan of a kind does not fit."""
        most = max(shortfall.values(), default=0)
        if most and (kind not in self.lacking or most < self.lacking[kind][1]):
            self.lacking[kind] = words, most

    @cached_property
    def pace(self) -> Pace:
        """The speed at which work is done."""
        return Pace.of(self.problem, self.tuning)

    @cached_property
    def bound(self) -> float:
        """Seconds below which no step of whole ops can go."""
        return bound(self.problem).seconds

    @cached_property
    def split_bound(self) -> Bound:
        """The bound of plans with replicas."""
        return split_bound(self.problem)

    @property
    def least(self) -> float:
        """Seconds below which no step of any plan considered can go."""
        return self.split_bound.seconds if self.may_split else self.bound

    @cached_property
    def target(self) -> float:
        """Seconds of a step of whole ops that is good enough, or that none can be better than."""
        return max(self.least / (1 - self.gap), self.bound) * (1 + self.tuning.optimal)

    @property
    def has_plan(self) -> bool:
        """True if there is a plan that fits."""
        return self.best is not None and self.best.fits

    @property
    def is_good(self) -> bool:
        """True if the best plan fits and is good enough."""
        return self.reaches(self.target)

    @property
    def is_near(self) -> bool:
        """True if another seed can gain next to nothing."""
        return self.reaches(self.bound * (1 + self.tuning.near_bound))

    def reaches(self, seconds: float) -> bool:
        """True if the best plan fits and takes no longer than some seconds."""
        best = self.best
        return (
            best is not None and best.fits and self.problem.objective.reaches(best.verdict, seconds)
        )

    @property
    def is_done(self) -> bool:
        """True if no plan can be better, or nothing is left to find one with."""
        return self.is_sole or not self.has_plan or self.is_good or self.budget.is_spent

    @property
    def is_small(self) -> bool:
        """True if the graph is small enough to search from several seeds."""
        return self.problem.graph.n_ops <= self.tuning.small_graph

    @property
    def is_refinable(self) -> bool:
        """True if what is left is worth building groups for."""
        return self.pace.near <= self.tuning.groups_share * self.budget.left

    def offer(self, candidate: Candidate, stage: str) -> bool:
        """Keeps a candidate if it is better than the best so far; whether it is."""
        best = self.best
        if best is not None and self.problem.objective.better(best, candidate) is best:
            return False
        self.best = candidate
        self.progress(stage, Incumbent(candidate.verdict.step_time, self.least))
        return True
