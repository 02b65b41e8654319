"""Parts that searches share which learn from simulated steps: groups to place, a budget, the best
seen.

The papers' searches choose a device per group of ops and run a step of the whole model to see what
that is worth. So does this: a *step* is one simulation of the whole reduced graph, whatever the
groups, and searches with equal numbers of steps have paid the same. The simulator's ops go by
upward rank (HEFT); the best placement is then given the better of that and the list orders of
:func:`loadmaster.strategies.lists.listing.ordered`, four simulations more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.judge.allowed import allowed_devices
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.coarse import CoarseProblem
from loadmaster.judge.coarsening import Coarsener, coarsen_problem
from loadmaster.judge.problem import Problem, ranks
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.deciders import deciders
from loadmaster.strategies.lists.listing import ordered

#: Simulated steps, and groups that are placed, unless the user says otherwise.
STEPS = 1000
GROUPS = 100
COARSENER: Coarsener = "parallel"


class TrialOptions(TypedDict, total=False):
    """Options that all these searches take.

    Attributes
    ----------
    steps : int
        Most simulations of a step of the whole graph, 1000 if absent. The same number gives the
        same plan.
    groups : int
        Ops are placed in so many groups, 100 if absent.
    coarsener : str
        The method of :func:`loadmaster.coarsen` that makes them, "parallel" if absent.
    time_limit : float or None
        Seconds after which no further step is simulated; no limit if absent.
    progress : callable or None
        Called with the method's name and the best makespan whenever there is a better one.
    """

    steps: int
    groups: int
    coarsener: Coarsener
    time_limit: float | None
    progress: Progress | None


@dataclass(frozen=True)
class Choices(CoarseProblem):
    """Groups of ops to place, numbered about as they run, with colocated sets whole.

    Attributes
    ----------
    allowed : bool [n_groups, n_devices]
        Whether all ops of a group may be on a device.
    """

    allowed: NDArray[np.bool_]

    @classmethod
    def make(cls, problem: Problem, groups: int, coarsener: Coarsener) -> Choices:
        """Groups by a coarsening method; an op is with the op that decides for it.

        Raises
        ------
        InputError
            An unknown coarsener or no number of groups.
        InfeasibleError
            An op may be on no device.
        """
        allowed = allowed_devices(problem)[problem.graph.colocation]
        group = coarsen_problem(problem, coarsener, groups).group
        of = np.unique(group[deciders(problem.graph)[0]], return_inverse=True)[1].astype(np.int32)
        common = np.ones((int(of.max()) + 1, problem.cluster.n_devices), dtype=bool)
        np.logical_and.at(common, of, allowed)
        return cls(problem, of, common)

    @property
    def free(self) -> NDArray[np.intp]:
        """Groups that have a choice."""
        return np.flatnonzero(self.allowed.sum(axis=1) > 1)


class Trials:
    """Placements of groups, simulated one after another within a budget.

    Attributes
    ----------
    problem : Problem
    groups : Choices
    steps, taken : int
        Simulations allowed, and made.
    best : Candidate or None
        The fastest that fits; while none does, the one least over.
    serial : float
        Seconds of all ops on the fastest device type, one after another: what costs are measured
        against.
    """

    def __init__(
        self, groups: Choices, steps: int, tell: Callable[[float], None] = lambda makespan: None
    ) -> None:
        self.problem = problem = groups.problem
        self.groups = groups
        self.steps = steps
        self.taken = 0
        self.best: Candidate | None = None
        self.serial = float(problem.time.sum(axis=0).min())
        self.deadline = float("inf")
        self._tell = tell
        graph = problem.graph
        _, rank = fast.levels(problem.weights)
        self._priority = ranks(fast.priority_order(graph, rank))

    @property
    def left(self) -> int:
        """Steps that may still be simulated; none once the time is up and a step was taken."""
        if self.taken and time.perf_counter() >= self.deadline:
            return 0
        return self.steps - self.taken

    def cost(self, devices: NDArray[np.int32]) -> float:
        """Seconds per step with a device per group; one step of the budget.

        A placement that does not fit costs :attr:`serial` more, and more the further it is over:
        a search is led back to where placements fit, and never prefers one that does not.
        """
        self.taken += 1
        problem = self.problem
        candidate = judged(problem, Assignment(devices[self.groups.group], self._priority))
        if self.best is None or problem.objective.better(self.best, candidate) is candidate:
            self.best = candidate
            self._tell(candidate.verdict.step_time)
        seconds = problem.objective.seconds(candidate.verdict)
        if candidate.fits:
            return seconds
        over = candidate.verdict.excess / sum(problem.cluster.memory)
        return seconds + self.serial * (1 + over)


def by_trials(
    problem: Problem,
    name: str,
    search: Callable[[Trials], None],
    *,
    steps: int = STEPS,
    groups: int = GROUPS,
    coarsener: Coarsener = COARSENER,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The best placement that a search simulates, well ordered.

    Ctrl-C ends the search, not the program: the best so far is returned.

    Parameters
    ----------
    name : what the progress callback is told.
    search : simulates placements by :meth:`Trials.cost` for as long as :attr:`Trials.left`.
    steps, groups, coarsener, time_limit, progress : see :class:`TrialOptions`.

    Raises
    ------
    InputError
        A bad number of steps or groups, an unknown coarsener.
    InfeasibleError
        No placement that was simulated fits.
    """
    checks.integer("steps", steps)
    began = time.perf_counter()
    tell = progress or (lambda stage, makespan: None)
    choices = Choices.make(problem, groups, coarsener)
    trials = Trials(choices, steps, lambda makespan: tell(name, Incumbent(makespan)))
    if time_limit is not None:
        trials.deadline = began + time_limit
    notes: tuple[str, ...] = ()
    try:
        if len(choices.free):
            search(trials)
        else:
            trials.cost(first_largest(choices.allowed))
        if trials.taken < steps and time.perf_counter() >= trials.deadline:
            notes = (f"out of time after {trials.taken} of {steps} steps",)
    except KeyboardInterrupt:
        if trials.best is None:
            raise
        notes = (f"interrupted after {trials.taken} of {steps} steps: the best so far",)
    assert trials.best is not None
    best = problem.objective.better(trials.best, ordered(problem, trials.best.assignment.devices))
    return accepted(problem, Outcome(best, 1.0)).noted(*notes)


def first_largest(rows: NDArray[np.generic]) -> NDArray[np.int32]:
    """The first column that is largest, per row."""
    columns: NDArray[np.int32] = np.argmax(rows, axis=1).astype(np.int32)
    return columns
