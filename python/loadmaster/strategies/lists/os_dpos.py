"""OS-DPOS: FastT's operation splitting (Yi et al., Middleware 2020, section 5.2, Algorithm 2).

Ops on the critical path, longest first, are split along every dimension that the rules allow
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
* Sub-ops are not split again: the first split may already have as many parts as there are devices.
* A split is kept if it shortens DPOS' estimate, as in the paper. The plan is then the one that the
  simulator finds fastest, of all states that were kept and of one device. FastT's rollback (section
  4) does the same by measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.base.units import counted, format_seconds
from loadmaster.costs.program import costs_of
from loadmaster.judge.bounds import split_bound
from loadmaster.judge.problem import Problem
from loadmaster.model.program import JOIN, SLICE, Program
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.lists import dpos
from loadmaster.strategies.registry import strategy
from loadmaster.strategies.simple import single
from loadmaster.transforms import dimensions, replicate
from loadmaster.transforms.split import Splitting, planned_split

#: Places a problem: the candidate, its critical path (reduced ops, in order) and its estimate of
#: the makespan in seconds.
Scheduler = Callable[[Problem], tuple[Candidate, NDArray[np.int32], float]]

#: Which graph the search starts from.
Start = Literal["any", "model", "data-parallel"]

#: Least gain that counts, as a share of the makespan: below lies rounding.
_LEAST_GAIN = 1e-9

#: Least time that a split must be able to save, as a share of the makespan.
_LEAST_SAVING = 1e-2

#: Splits that a note names.
_NAMED = 8


@dataclass(frozen=True)
class _State:
    """The problem of a program and how the scheduler placed it."""

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


@strategy("os-dpos", "DPOS, splitting ops of the critical path where it helps (FastT)")
def place(
    problem: Problem,
    *,
    start: Start = "any",
    continue_search: bool = True,
    memory: MemoryModel = "dynamic",
    contention: bool = True,
    progress: Progress | None = None,
) -> Candidate:
    """:func:`split_search` with DPOS; ``progress`` is told which op is tried, and the best so far.

    ``contention=False, memory="static"`` is the paper's model.
    """

    def schedule(of: Problem) -> tuple[Candidate, NDArray[np.int32], float]:
        candidate = dpos.place(of, memory=memory, contention=contention)
        path = fast.critical_path(dpos.slowest_times(of))
        expected = candidate.assignment.estimate
        if expected is None:
            expected = of.objective.seconds(candidate.verdict)
        return candidate, path, expected

    return split_search(
        problem, schedule, start=start, continue_search=continue_search, progress=progress
    )


def split_search(
    problem: Problem,
    schedule: Scheduler,
    *,
    start: Start = "any",
    continue_search: bool = True,
    progress: Progress | None = None,
) -> Candidate:
    """Splits ops of the critical path for as long as a scheduler finishes earlier for it.

    Parameters
    ----------
    problem : Problem
    schedule : callable
        DPOS, or another function that places a problem.
    start : "any" (default), "model" or "data-parallel"
        The graph to start from; "any": each of the two.
    continue_search : bool
        Whether to go on along the path after the first op that no split helps (default). The paper
        stops there.
    progress : callable, optional
        Told which graph is placed, which op and which split of it is tried, and the seconds that
        the scheduler expects so far.

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

    Notes
    -----
    One call of the scheduler per op, dimension and number of parts that may help: for s splits kept
    on K devices about 2 s K calls. A split that cannot help is never put into the graph.
    """
    told = progress or (lambda stage, best: None)
    least = split_bound(problem).seconds

    def tell(what: str, expected: float) -> None:
        told(f"splitting {what}", Incumbent(expected, least))

    found: list[Candidate] = []
    refused: InfeasibleError | None = None
    for done in _starts(problem, start):
        told("placing the graph" if done.is_plain else "placing its replicas", None)
        try:
            of = problem if done.is_plain else problem.transformed(done)
            first = _State(of, *schedule(of))
        except InfeasibleError as error:
            refused = refused or error
            continue
        states = [first, *_kept(problem, schedule, tell, first, continue_search)]
        found += [_candidate(state) for state in states]
    if not found:
        assert refused is not None
        raise refused
    best = problem.objective.quickest(found)
    alone = _alone(problem)
    if alone is None or problem.objective.better(alone, best) is best:
        return best
    took = format_seconds(best.verdict.step_time)
    return alone.noted(f"one device is no slower than the best that DPOS found on several ({took})")


def _alone(problem: Problem) -> Candidate | None:
    """The model on the fastest single device that holds it."""
    try:
        return replace(single.place(replace(problem, best_effort=False)), problem=problem)
    except InfeasibleError:
        return None


def _starts(problem: Problem, start: Start) -> Iterator[Program]:
    checks.one_of("start", start, get_args(Start))
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


def _kept(
    problem: Problem,
    schedule: Scheduler,
    tell: Callable[[str, float], None],
    state: _State,
    continue_search: bool,
) -> Iterator[_State]:
    """One state after the other, each with one more op split."""
    hopeless: set[str] = set()
    found: _State | None = state
    while found is not None:
        state, found = found, None
        for op in state.on_path():
            name = state.problem.model.names[op]
            if state.problem.program.parts[op] > 1 or name in hopeless:
                continue
            tell(name, state.estimate)
            trials = _trials(problem, state, op)
            found = _best(schedule, tell, state, trials)
            if found is not None or (trials and not continue_search):
                break
            hopeless.add(name)
        if found is not None:
            yield found


def _trials(problem: Problem, state: _State, op: int) -> list[Splitting]:
    """Splits of an op that may help; none of them is put into the graph yet."""
    graph = state.problem.model
    longest = state.problem.costs.time[op].min() - _LEAST_SAVING * state.estimate
    trials: list[Splitting] = []
    if longest <= 0:
        return trials
    for dimension, size in dimensions(graph, op).items():
        for n in range(2, problem.cluster.n_devices + 1):
            if size % n:
                continue
            trial = planned_split(graph, op, dimension, n)
            if _chain(state.problem, trial) < longest:
                trials.append(trial)
    return trials


def _best(
    schedule: Scheduler, tell: Callable[[str, float], None], state: _State, trials: list[Splitting]
) -> _State | None:
    """The trial that finishes first, if that is earlier than without."""
    best: _State | None = None
    limit = state.estimate * (1 - _LEAST_GAIN)
    for trial in trials:
        tell(str(trial.split), limit)
        of = state.problem.transformed(trial.program())
        try:
            candidate, path, estimate = schedule(of)
        except InfeasibleError:
            continue
        if estimate < limit and (candidate.fits or not state.candidate.fits):
            limit = estimate
            best = _State(of, candidate, path, estimate)
    return best


def _chain(problem: Problem, trial: Splitting) -> float:
    """Seconds of the shortest way through a split op: its slowest split op, its longest sub-op and
    the joining op that takes least (others may be off the path), each on its fastest device type.
    """
    work = trial.work
    seconds = costs_of(work, problem.costs, problem.cluster).time.min(axis=1)
    before, after = work.role == SLICE, work.role == JOIN
    longest = float(seconds[before].max(initial=0.0)) + float(seconds[~before & ~after].max())
    return longest + float(seconds[after].min())


def _candidate(state: _State) -> Candidate:
    program = state.problem.program
    return state.candidate.noted(*program.notes, *_notes(program))


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
