"""A placement that was judged: what every strategy returns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import loadmaster.fast as fast
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.bounds import WHOLE_OPS, Bound
from loadmaster.judge.problem import Problem
from loadmaster.judge.verdict import Verdict

#: What a plan says whose search was ended by Ctrl-C.
INTERRUPTED = "interrupted: the best so far"

#: What a plan says whose search was ended by its time limit.
OUT_OF_TIME = "out of time: the best so far"


@dataclass(frozen=True)
class Best:
    """The best plan that was found in a space.

    Attributes
    ----------
    space : str
        One of :data:`loadmaster.judge.bounds.SPACES`.
    what : str
        The plan in a few words.
    seconds : float
        Its step time.
    """

    space: str
    what: str
    seconds: float


@dataclass(frozen=True)
class Candidate:
    """A placement of the reduced ops, judged.

    Attributes
    ----------
    problem : Problem
        What was placed: the problem given, or that of a program of it.
    assignment : Assignment
    verdict : Verdict
        What the simulator saw of it.
    notes : tuple of str
        What the user should know about how it came about.
    bound : Bound or None
        A lower bound on every plan of a space that came with it.
    space : str
        The space of plans that it is the best known of.
    offers : tuple of Best
        What each space had to offer, the best of each first, where several were searched.
    """

    problem: Problem
    assignment: Assignment
    verdict: Verdict
    notes: tuple[str, ...] = ()
    bound: Bound | None = None
    space: str = WHOLE_OPS
    offers: tuple[Best, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether no device ever holds more than it can."""
        return self.verdict.fits

    @property
    def overfull(self) -> float:
        """How many times what it can hold the fullest device holds at its peak."""
        return self.problem.fullest(self.verdict.peak)

    @property
    def schedule(self) -> fast.Schedule:
        """Every detail of the simulation that judged it."""
        assert self.verdict.schedule is not None, "candidates are simulated"
        return self.verdict.schedule

    def noted(self, *notes: str) -> Candidate:
        """The same with more notes."""
        return replace(self, notes=(*self.notes, *notes))


def judged(problem: Problem, assignment: Assignment, notes: tuple[str, ...] = ()) -> Candidate:
    """Simulates an assignment; one of the policy "fixed" by both policies, of which the better
    counts. With collectives only by priority: orders are made without regard to them, and two could
    wait for each other for ever.
    """
    dispatched = replace(assignment, policy="priority")
    found = Candidate(problem, dispatched, problem.verdict(dispatched), notes)
    if assignment.policy == "priority" or problem.has_collectives:
        return found
    verdict = problem.verdict_below(problem.objective.limit(found.verdict), assignment)
    if verdict is None:
        return found
    return problem.objective.better(found, Candidate(problem, assignment, verdict, notes))
