"""OS-DPOS: FastT's operation splitting (Yi et al., Middleware 2020, section 5.2, Algorithm 2).

Ops on the critical path, longest first, are split along every dimension that they have
(:mod:`loadmaster.transforms.split`) and into every number of parts up to the number of devices that
divides it; each graph is placed by DPOS, and the split with the earliest finish is kept if it beats
the plan so far.

What is not in the paper, or differs:

* The critical path is computed anew after each split that is kept; the paper's lines 7 to 14 go on
  along the first one.
* The search starts twice: from the model and from its data-parallel graph. The paper starts from
  the data-parallel graph if one device holds the model, else from the model. There is no
  data-parallel start if the devices do not divide the batch.
* A split is not tried if its own chain (split op, sub-op, joining op, each on its fastest device)
  saves less than a hundredth of the step: the critical path cannot get shorter by more than that.
  An op that has only such splits is passed over.
* The search goes on after an op that no split helps; the paper's rule is to end there
  (``continue_search=False``). Replicas have equal paths, and to split one of several equal paths
  shortens nothing. By the paper's rule VGG-19 on four V100s stays data-parallel, at 344 ms; by ours
  it takes 252 ms.
* Of dimensions whose splits move the same bytes, such as the axes of an elementwise op, the first
  that divides is tried.
* Sub-ops are not split again: the first split may already have as many parts as there are devices.
* Of a split that cannot shorten DPOS' estimate no more is worked out than shows this: a schedule is
  broken off once an op ends so late that what must run after it ends no earlier than the best so
  far (:func:`loadmaster.fast.schedule_below`). The simulator sees only what is kept.
* On congested channels a schedule of many replicas takes seconds. So the search ends once it has
  done a given work (:data:`MOST_WORK`), and the plan says so: the splits of the longest ops come
  first.
* A split is kept if it shortens DPOS' estimate, as in the paper. The plan is then the one that the
  simulator finds fastest, of all states that were kept and of one device. FastT's rollback (section
  4) does the same by measuring.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.base.units import counted, format_seconds
from loadmaster.costs.program import costs_of
from loadmaster.judge.bounds import split_bound
from loadmaster.judge.problem import Problem
from loadmaster.model.program import JOIN, SLICE, Program
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import INTERRUPTED, OUT_OF_TIME, Candidate
from loadmaster.strategies.lists import dpos
from loadmaster.strategies.registry import strategy
from loadmaster.strategies.simple import single
from loadmaster.transforms import dimensions, replicate
from loadmaster.transforms.split import Splitting, planned_split

#: Graphs that the search may start from.
Start = Literal["any", "model", "data-parallel"]

#: Least gain that counts, as a share of the makespan: below lies rounding.
_LEAST_GAIN = 1e-9

#: Least time that a split must be able to save, as a share of the makespan.
_LEAST_SAVING = 1e-2

#: Work after which no further split is tried, as DPOS counts it: some 15 s of CPU where channels
#: are congested.
MOST_WORK = 200_000_000

#: Splits that a note names.
_NAMED = 8


@dataclass(frozen=True)
class Placed:
    """A scheduler's placement of a problem.

    Attributes
    ----------
    problem : Problem
    candidate : Candidate
    path : int32
        The critical path: reduced ops, in order.
    estimate : float
        Seconds that the scheduler expects of a step.
    """

    problem: Problem
    candidate: Candidate
    path: NDArray[np.int32]
    estimate: float

    def on_path(self) -> list[int]:
        """Ops of the critical path that take time, longest first."""
        reduced = np.unique(self.path)
        seconds = self.problem.op_time[reduced]
        order = np.lexsort((reduced, -seconds))
        taking = order[seconds[order] > 0]
        return [int(op) for op in self.problem.reduced.op_of[reduced[taking]]]


class Scheduler(Protocol):
    """Places a problem."""

    def __call__(self, of: Problem, /, heed: dpos.Heed, limit: float = np.inf) -> Placed | None:
        """None if the step is certain, or nearly so, to be no shorter than ``limit`` seconds.

        ``heed`` is called now and then with the share of the ops scheduled so far, and the work
        since it was last called.
        """


@strategy("os-dpos", "DPOS, splitting ops of the critical path where it helps (FastT)")
def place(
    problem: Problem,
    *,
    start: Start = "any",
    continue_search: bool = True,
    memory: MemoryModel = "dynamic",
    contention: bool = True,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """:func:`split_search` with DPOS; ``progress`` is told which op is tried, and the best so far.

    ``contention=False, memory="static"`` is the paper's model.
    """

    def schedule(of: Problem, heed: dpos.Heed, limit: float = np.inf) -> Placed | None:
        listed = dpos.Listed(of, memory, contention, heed)
        if limit < np.inf and not listed.may_finish_before(limit):
            return None
        candidate = listed.place()
        expected = candidate.assignment.estimate
        if expected is None:
            expected = of.objective.seconds(candidate.verdict)
        return Placed(of, candidate, listed.critical, expected)

    return split_search(
        problem,
        schedule,
        start=start,
        continue_search=continue_search,
        time_limit=time_limit,
        progress=progress,
    )


def split_search(
    problem: Problem,
    schedule: Scheduler,
    *,
    start: Start = "any",
    continue_search: bool = True,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """Splits ops of the critical path for as long as a scheduler finishes earlier for it.

    Ctrl-C ends the search, not the program: the best so far is returned.

    Parameters
    ----------
    problem : Problem
    schedule : Scheduler
        DPOS, or another function that places a problem.
    start : "any" (default), "model" or "data-parallel"
        The graph to start from; "any": each of the two.
    continue_search : bool
        Whether to go on along the path after the first op that no split helps (default). The paper
        stops there.
    time_limit : float, optional
        Seconds after which the best so far is returned, as soon as there is one.
    progress : callable, optional
        Told which graph is placed, which op and which split of it is tried, which share of the ops
        is scheduled, and the seconds that the scheduler expects so far.

    Returns
    -------
    Candidate
        Of a program, whose ``splits`` list what was split, in this order.

    Raises
    ------
    InfeasibleError
        The scheduler could place no start.
    InputError
        An unknown start, or a batch that the devices do not divide where only "data-parallel" will
        do.
    KeyboardInterrupt
        Ctrl-C before there is a plan.

    Notes
    -----
    One call of the scheduler per op, dimension and number of parts that may help: for s splits kept
    on K devices about 2 s K calls. A split that cannot help is never put into the graph.
    """
    checks.one_of("start", start, get_args(Start))
    alone = _alone(problem)
    watch = _SplitWatch(progress, split_bound(problem).seconds, time_limit, alone is not None)
    search = _SplitSearch(problem, schedule, continue_search, watch)
    notes: tuple[str, ...] = ()
    try:
        for program in _starts(problem, start):
            search.run(program)
    except (KeyboardInterrupt, _TimeIsUpError) as cut:
        if search.best is None and alone is None:
            raise
        notes = (INTERRUPTED if isinstance(cut, KeyboardInterrupt) else OUT_OF_TIME,)
    if search.is_spent and not notes:
        tried = counted(search.tried, "split")
        notes = (f"the search ended at its allowance of work, after {tried}",)
    best = search.best
    if best is None and (alone is None or not notes):
        assert search.refused is not None
        raise search.refused
    if alone is not None and (best is None or problem.objective.better(alone, best) is alone):
        best = alone if best is None else alone.noted(_slower(best))
    assert best is not None
    return best.noted(*notes)


def _slower(best: Candidate) -> str:
    took = format_seconds(best.verdict.step_time)
    return f"one device is no slower than the best that DPOS found on several ({took})"


def _alone(problem: Problem) -> Candidate | None:
    """The model on the fastest single device that holds it."""
    try:
        return replace(single.place(replace(problem, best_effort=False)), problem=problem)
    except InfeasibleError:
        return None


def _starts(problem: Problem, start: Start) -> Iterator[Program]:
    k = problem.cluster.n_devices
    if start != "data-parallel":
        yield Program.of(problem.model)
    if start == "data-parallel" or (start == "any" and k > 1):
        try:
            replicated = replicate(problem.model, k, aggregation="parameter-server")
        except InputError as error:
            if start == "data-parallel":
                raise InputError(f"no data-parallel start: {error}") from error
        else:
            yield replicated


class _TimeIsUpError(Exception):
    """The time limit has passed, and there is a plan."""


class _SplitWatch:
    """Tells what is being done, and ends it when the time is up."""

    def __init__(
        self, progress: Progress | None, least: float, time_limit: float | None, has_plan: bool
    ) -> None:
        self._told = progress or (lambda stage, best: None)
        self._least = least
        self._deadline = np.inf if time_limit is None else time.perf_counter() + time_limit
        self._stage: tuple[str, Incumbent | None] = ("", None)
        #: True if there is a plan to return: until then no time is up.
        self.has_plan = has_plan

    def tell(self, stage: str, expected: float | None = None) -> None:
        """Tells a stage, and the seconds that the scheduler expects so far."""
        best = None if expected is None else Incumbent(expected, self._least)
        self._stage = stage, best
        self._told(stage, best)
        self._look()

    def scheduled(self, share: float) -> None:
        """Tells which share of the ops of the stage is scheduled."""
        stage, best = self._stage
        self._told(f"{stage}: {share:.0%} of ops", best)
        self._look()

    def _look(self) -> None:
        if self.has_plan and time.perf_counter() >= self._deadline:
            raise _TimeIsUpError


class _SplitSearch:
    """The search, start by start.

    Attributes
    ----------
    best : Candidate or None
        The one that the simulator finds fastest, of all that were kept.
    refused : InfeasibleError or None
        Why the first start that could not be placed could not.
    """

    def __init__(
        self, problem: Problem, schedule: Scheduler, continue_search: bool, watch: _SplitWatch
    ) -> None:
        self.problem, self.schedule = problem, schedule
        self.continue_search, self.watch = continue_search, watch
        self.best: Candidate | None = None
        self.refused: InfeasibleError | None = None
        self.work = self.tried = 0

    @property
    def is_spent(self) -> bool:
        """True if so much work was done that no further split is tried."""
        return self.work >= MOST_WORK

    def run(self, program: Program) -> None:
        """From one start: one split after the other."""
        self.watch.tell("placing the graph" if program.is_plain else "placing its replicas")
        try:
            of = self.problem if program.is_plain else self.problem.transformed(program)
            state = self._placed(of)
        except InfeasibleError as error:
            self.refused = self.refused or error
            return
        assert state is not None, "there is no limit"
        hopeless: set[str] = set()
        while state is not None:
            self._keep(state)
            state = self._next(state, hopeless)

    def _placed(self, of: Problem, limit: float = np.inf) -> Placed | None:
        def heed(share: float, work: int) -> None:
            self.work += work
            self.watch.scheduled(share)

        return self.schedule(of, heed, limit)

    def _keep(self, state: Placed) -> None:
        candidate = state.candidate.noted(
            *state.problem.program.notes, *_notes(state.problem.program)
        )
        some = [candidate] if self.best is None else [self.best, candidate]
        self.best = self.problem.objective.quickest(some)
        self.watch.has_plan |= self.best.fits or self.problem.best_effort

    def _next(self, state: Placed, hopeless: set[str]) -> Placed | None:
        """A state with one more op split; none if no split helps. Ops that no split of helps are
        noted as hopeless.
        """
        for op in state.on_path():
            name = state.problem.model.names[op]
            if self.is_spent:
                break
            if state.problem.program.parts[op] > 1 or name in hopeless:
                continue
            self.watch.tell(f"splitting {name}", state.estimate)
            trials = _trials(self.problem, state, op)
            state_after = self._best_of(state, trials)
            if state_after is not None or (trials and not self.continue_search):
                return state_after
            hopeless.add(name)
        return None

    def _best_of(self, state: Placed, trials: list[Splitting]) -> Placed | None:
        """The trial that finishes first, if that is earlier than without."""
        best: Placed | None = None
        limit = state.estimate * (1 - _LEAST_GAIN)
        for trial in trials:
            if self.is_spent:
                break
            self.tried += 1
            self.watch.tell(f"splitting {trial.split}", limit)
            of = state.problem.transformed(trial.program())
            try:
                placed = self._placed(of, limit)
            except InfeasibleError:
                continue
            if placed is None or placed.estimate >= limit:
                continue
            if placed.candidate.fits or not state.candidate.fits:
                limit, best = placed.estimate, placed
        return best


def _trials(problem: Problem, state: Placed, op: int) -> list[Splitting]:
    """Splits of an op that may help; none of them is put into the graph yet."""
    graph = state.problem.model
    longest = state.problem.costs.time[op].min() - _LEAST_SAVING * state.estimate
    trials: dict[Any, Splitting] = {}
    if longest <= 0:
        return []
    for dimension, size in dimensions(graph, op).items():
        for n in range(2, problem.cluster.n_devices + 1):
            if size % n:
                continue
            trial = planned_split(graph, op, dimension, n)
            if _chain(state.problem, trial) < longest:
                trials.setdefault((n, trial.cut.sort), trial)
    return list(trials.values())


def _chain(problem: Problem, trial: Splitting) -> float:
    """Seconds of the shortest way through a split op: its slowest split op, its longest sub-op and
    the joining op that takes least (others may be off the path), each on its fastest device type.
    """
    work = trial.work
    seconds = costs_of(work, problem.costs, problem.cluster).time.min(axis=1)
    before, after = work.role == SLICE, work.role == JOIN
    longest = float(seconds[before].max(initial=0.0)) + float(seconds[~before & ~after].max())
    return longest + float(seconds[after].min())


def _notes(program: Program) -> tuple[str, ...]:
    notes = []
    if (program.replica >= 0).any():
        notes.append("started from the data-parallel graph")
    if program.splits:
        named = "; ".join(map(str, program.splits[:_NAMED]))
        rest = len(program.splits) - _NAMED
        more = f"; and {rest} more" if rest > 0 else ""
        notes.append(f"split {counted(len(program.splits), 'op')}: {named}{more}")
    return tuple(notes)
