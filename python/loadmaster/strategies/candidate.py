"""A placement that was judged: what every strategy returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import loadmaster.fast as fast
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.bounds import SPLIT_OPS, WHOLE_OPS, Bound
from loadmaster.judge.problem import Problem
from loadmaster.judge.verdict import Verdict
from loadmaster.model.parallelism import Parallelism
from loadmaster.strategies.kinds import REQUESTS, Kind, Request, kind_of

#: The note of a plan whose search was ended by Ctrl-C.
INTERRUPTED = "interrupted: the best so far"

#: The note of a plan whose search was ended by its time limit.
OUT_OF_TIME = "out of time: the best so far"


@dataclass(frozen=True)
class Best:
    """The best plan that was found in a space, or of a kind of plans in it.

    Attributes
    ----------
    space : str
        One of :data:`loadmaster.judge.bounds.SPACES`.
    what : str
        The plan in a few words.
    seconds : float
        Its step time, or its period where the objective is throughput.
    kind : Kind or None
        None in plans of older versions, which had none.
    peak, memory : int or None
        Bytes at the peak, and the capacity, of the device that is fullest. None: not known.
    request : Request or None
        The arguments of :func:`loadmaster.place` that make such a plan, if not one that was
        searched from. None: no arguments do.
    """

    space: str
    what: str
    seconds: float
    kind: Kind | None = None
    peak: int | None = None
    memory: int | None = None
    request: Request | None = None

    @classmethod
    def of(
        cls, kind: Kind, words: str, candidate: Candidate, request: Request | None = None
    ) -> Best:
        """A candidate as the best of its kind; with the kind's request, if there is no other."""
        space = WHOLE_OPS if candidate.problem.program.is_plain else SPLIT_OPS
        seconds = candidate.problem.objective.seconds(candidate.verdict)
        peaks = zip(candidate.verdict.peak.tolist(), candidate.problem.cluster.memory, strict=True)
        asked = request or REQUESTS.get(kind)
        return cls(space, words, seconds, kind, *fullest(peaks), asked)


def fullest(peaks: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Of peaks and capacities in bytes, those of the device that is fullest."""
    return max(peaks, key=lambda pair: pair[0] / max(pair[1], 1))


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
    left_out : tuple of (str, str)
        Kinds of plans of which none is among the offers, each with why.
    parallelism : Parallelism or None
        How many devices share what of a step; None: no degrees say that.
    for_writer : mapping of str to value
        Facts that the planner of a system leaves to its writer, as values of JSON.
    is_interrupted : bool
        True if Ctrl-C ended the search for it.
    """

    problem: Problem
    assignment: Assignment
    verdict: Verdict
    notes: tuple[str, ...] = ()
    bound: Bound | None = None
    space: str = WHOLE_OPS
    offers: tuple[Best, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    parallelism: Parallelism | None = None
    for_writer: Mapping[str, Any] = field(default_factory=dict)
    is_interrupted: bool = False

    @property
    def fits(self) -> bool:
        """True if no device ever holds more than it can."""
        return self.verdict.fits

    @property
    def kind(self) -> Kind:
        """The kind of plans that it is of."""
        return kind_of(self.problem.program, len(set(self.assignment.devices.tolist())))

    @property
    def overfull(self) -> float:
        """The peak of the fullest device, as a multiple of its memory."""
        return self.problem.fullest(self.verdict.peak)

    @property
    def schedule(self) -> fast.Schedule:
        """Every detail of the simulation that judged it."""
        assert self.verdict.schedule is not None, "candidates are simulated"
        return self.verdict.schedule

    def interrupted(self, note: str = INTERRUPTED) -> Candidate:
        """The same as the best that was there when Ctrl-C came."""
        return replace(self.noted(note), is_interrupted=True)

    def noted(self, *notes: str) -> Candidate:
        """The same with more notes."""
        return replace(self, notes=(*self.notes, *notes))


def judged(problem: Problem, assignment: Assignment, notes: tuple[str, ...] = ()) -> Candidate:
    """Simulates an assignment; one of the policy "fixed" by both policies, of which the better
    counts. With collectives only by priority: orders are made without regard to them, and two could
    wait for each other for ever.
    """
    dispatched = replace(assignment, policy="priority")
    candidate = Candidate(problem, dispatched, problem.verdict(dispatched), notes)
    if assignment.policy == "priority" or problem.has_collectives:
        return candidate
    verdict = problem.verdict_below(problem.objective.limit(candidate.verdict), assignment)
    if verdict is None:
        return candidate
    return problem.objective.better(candidate, Candidate(problem, assignment, verdict, notes))
