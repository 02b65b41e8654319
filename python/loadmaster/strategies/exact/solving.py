"""Parts that the exact methods share: the size they can take, where they start, and what becomes of
a solver's answer.

A solver never costs its user anything: it starts from a plan, what it finds is simulated and only
counts if it is better, and where it crashes, hangs or is interrupted the best plan so far is
returned with a warning that says what happened.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.base.errors import InfeasibleError, InputError, SolverError
from loadmaster.base.files import write_bytes
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.base.units import counted, format_bytes
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.bounds import Bound, bound
from loadmaster.judge.coarse import CoarseProblem
from loadmaster.judge.coarsening import Coarsener, coarsen_problem
from loadmaster.judge.problem import Problem, by_start, ranks
from loadmaster.judge.simulation import as_costs
from loadmaster.milp.instance import MilpInstance, instance_of
from loadmaster.milp.memory import least_relaxation
from loadmaster.milp.timing import Timed, in_order, settled
from loadmaster.milp.worker import Watch
from loadmaster.model.graph import OpGraph
from loadmaster.strategies.attempts import MemoryModel, Outcome, accepted, within_memory
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.deciders import deciders
from loadmaster.strategies.lists import heft
from loadmaster.strategies.lists.listing import check_memory, ordered

#: Seconds, if no time limit is given.
SECONDS = 10.0

#: Seconds that a solver gets where nothing is left.
LEAST = 0.1

#: Groups that an exact method takes, and what it tries if those have too many rows.
GROUPS = (200, 150, 100, 75, 50, 35, 25, 15)

#: Share of the time that a search before the solver gets.
SEARCH_SHARE = 0.2

#: Share of the smallest memory that a group may fill: larger ones may find no place.
MAX_SHARE = 0.25

#: A method that searches, with keywords ``time_limit`` and ``warm_start``.
Search = Callable[..., Candidate]


@dataclass(frozen=True)
class Answer:
    """A solver's answer.

    Attributes
    ----------
    devices : int32 [n_ops] or None
    start : float [n_ops] or None
        Ticks.
    bound : float
        Ticks: no schedule of the model takes fewer.
    by : str
        Who proved the bound, for a person.
    trouble : str or None
        What went wrong.
    log : str
        All that the solver printed.
    """

    devices: NDArray[np.int32] | None
    start: NDArray[np.float64] | None
    bound: float
    by: str
    trouble: str | None = None
    log: str = ""


#: Solves an instance from a schedule within seconds, telling the best and the bound in ticks.
Solve = Callable[[MilpInstance, Timed, float, Watch], Answer]


@dataclass(frozen=True)
class Solvable:
    """A problem for a solver: that of the user's ops, or a coarser one whose ops are groups of a
    finer one's.

    Bytes are charged as the ops of the finest problem hold them.
    """

    problem: Problem
    coarse: CoarseProblem | None = None
    finer: Solvable | None = None

    def coarser(self, method: Coarsener, groups: int) -> Solvable:
        """The problem of so many groups."""
        problem = self.problem
        most = int(MAX_SHARE * min(problem.cluster.memory))
        coarsened = coarsen_problem(problem, method, groups, max_bytes=most)
        graph = _bundled(coarsened.graph)
        costs = as_costs(None, graph, problem.cluster)
        coarser = Problem.make(graph, problem.cluster, costs, seed=problem.seed)
        coarse = CoarseProblem(problem, coarser.reduced.map[coarsened.group])
        return Solvable(coarser, coarse, self)

    def loosened(self) -> Solvable:
        """The same for best effort."""
        finer = None if self.finer is None else self.finer.loosened()
        return Solvable(replace(self.problem, best_effort=True), self.coarse, finer)

    @property
    def finest(self) -> Problem:
        """The problem that is to be solved."""
        return self.problem if self.finer is None else self.finer.finest

    def charge(self, bytes_: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Bytes per op of the finest problem, summed over the ops that became one op here."""
        if self.finer is None or self.coarse is None:
            return bytes_
        return self.coarse.charge(self.finer.charge(bytes_))

    def expanded(self, devices: NDArray[np.int32], order: NDArray[np.int32]) -> Assignment:
        """A placement and an order of these ops as those of the finest: groups in their order."""
        if self.finer is None or self.coarse is None:
            return Assignment(devices, ranks(order), "fixed")
        inner = self.coarse.expanded(devices, order)
        return self.finer.expanded(inner.devices, np.argsort(inner.priority).astype(np.int32))

    def plan(self, devices: NDArray[np.int32], order: NDArray[np.int32]) -> Candidate:
        """A placement and an order of these ops as a plan: in this order or, for groups, in one
        that is made for their ops.
        """
        assignment = self.expanded(devices, order)
        own = judged(self.finest, assignment)
        if self.finer is None:
            return own
        return self.finest.objective.better(own, ordered(self.finest, assignment.devices))


@dataclass(frozen=True)
class Start:
    """The assignment that a solver starts from.

    Attributes
    ----------
    plan : Candidate
        Of the finest problem.
    devices, order : int32 [n_ops]
        Of the problem that is solved.
    charge : uint64 [n_ops]
        Bytes of each op of that problem.
    capacity : uint64 [n_devices]
        Bytes that may be charged; at least what the start is.
    """

    plan: Candidate
    devices: NDArray[np.int32]
    order: NDArray[np.int32]
    charge: NDArray[np.uint64]
    capacity: NDArray[np.uint64]


@dataclass(frozen=True)
class ExactMethod:
    """An exact method.

    Attributes
    ----------
    name : str
    solve : Solve
    rows : callable
        Estimates how many rows an instance has.
    max_ops, max_rows : int
        More are not solved.
    start : callable
        Where to start on a problem, given a memory model and the seconds there are in all.
    links : callable
        Gives an instance the method's link model.
    """

    name: str
    solve: Solve
    rows: Callable[[MilpInstance], int]
    max_ops: int
    max_rows: int
    start: Callable[[Solvable, MemoryModel, float], Start]
    links: Callable[[MilpInstance], MilpInstance] = lambda instance: instance


@dataclass(frozen=True)
class Limits:
    """A user's limits on an exact method: seconds (from when it was asked), a memory model, a file
    for the solver's output, whom to tell.
    """

    seconds: float
    memory: MemoryModel
    log: str | None
    progress: Progress | None
    began: float = field(default_factory=time.perf_counter)

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(self.seconds - (time.perf_counter() - self.began), 0.0)

    @classmethod
    def checked(
        cls,
        time_limit: float | None,
        memory: MemoryModel,
        log: str | None,
        progress: Progress | None,
    ) -> Limits:
        """Raises :class:`~loadmaster.InputError` for what makes no sense, or cannot be written."""
        check_memory(memory)
        if log is not None and not isinstance(log, str):
            raise InputError(f"log is {log!r}: wants the path of a file")
        if log is not None:
            write_bytes(log, b"")
        seconds = SECONDS if time_limit is None else checks.time_limit(time_limit)
        return cls(seconds, memory, log, progress)


def best_plan(
    solvable: Solvable, method: ExactMethod, limits: Limits, notes: tuple[str, ...] = ()
) -> Candidate:
    """The better of the start and of what the solver makes of it, for a small enough problem.

    Raises
    ------
    InfeasibleError
        Nothing fits: with the smallest relaxation that would make it.
    """
    tell = limits.progress or (lambda stage, makespan: None)
    start = start_of(solvable, method, limits)
    best = start.plan.noted(*notes)
    tell(method.name, Incumbent(best.verdict.step_time))
    if best.is_interrupted:
        return best
    if limits.seconds == 0 or (solvable.finest.best_effort and not best.fits):
        reason = "no time for the solver" if limits.seconds == 0 else "the start does not fit"
        return best.noted(f"{method.name}: {reason}, so this is where it starts")
    try:
        return _from_start(solvable, method, limits, replace(start, plan=best))
    except KeyboardInterrupt:
        return interrupted(best, method)


def interrupted(candidate: Candidate, method: ExactMethod) -> Candidate:
    """The best that is known when Ctrl-C comes, with a warning."""
    note = f"{method.name} was interrupted: the best so far"
    warnings.warn(note, stacklevel=2)
    return candidate.interrupted(note)


def or_heft(
    problem: Problem, method: ExactMethod, limits: Limits, make: Callable[[], Candidate]
) -> Candidate:
    """The plan that is made; HEFT's where Ctrl-C comes before the method has one of its own."""
    try:
        candidate = make()
    except KeyboardInterrupt:
        with contextlib.suppress(InfeasibleError):
            return interrupted(heft.place(problem, memory=limits.memory), method)
        raise
    return accepted(problem, Outcome(candidate, 1.0))


def _from_start(solvable: Solvable, method: ExactMethod, limits: Limits, start: Start) -> Candidate:
    """The better of a start and of what the solver makes of it in the time left."""
    best = start.plan
    tell = limits.progress or (lambda stage, makespan: None)
    instance = replace(
        instance_of(solvable.problem, start.charge, bound(solvable.problem).seconds),
        capacity=np.minimum(start.capacity, np.iinfo(np.int64).max).astype(np.int64),
    )
    instance = method.links(instance)
    # Twins that change their names run the same schedule.
    schedule = settled(instance, instance.canonical(start.devices), start.order)
    if not best.fits:
        schedule = _delayed(instance, schedule)

    def told(objective: float | None, lower: float | None, cpu: float) -> None:
        known = "" if lower is None else f", bound {instance.seconds(lower):.4g} s"
        tell(f"{method.name}{known}, {cpu:.0f} s of CPU", Incumbent(best.verdict.step_time))

    answer = method.solve(instance, schedule, max(limits.left, LEAST), told)
    if limits.log is not None:
        write_bytes(limits.log, answer.log.encode())
    if answer.trouble is not None:
        best = best.noted(f"{answer.trouble.splitlines()[0]}; the best plan so far is kept")
        warnings.warn(f"{method.name}: {answer.trouble}", stacklevel=2)
    best = _improved(solvable, instance, best, answer)
    return _bounded(solvable, instance, best, answer, limits.memory)


def _delayed(instance: MilpInstance, schedule: Timed) -> Timed:
    """The schedule with its last start put off until the time of all ops and all transfers: what
    fits may take longer than a start that does not, and never longer than that.
    """
    sent = sum(len(tensor.readers) * int(tensor.time.max()) for tensor in instance.tensors)
    last = int(schedule.order(instance)[-1])
    start, finish = [*schedule.start], [*schedule.finish]
    finish[last] = max(int(instance.time.max(axis=1).sum()) + sent, schedule.makespan)
    start[last] += finish[last] - schedule.finish[last]
    return replace(schedule, start=start, finish=finish)


def _improved(
    solvable: Solvable, instance: MilpInstance, best: Candidate, answer: Answer
) -> Candidate:
    """The better of the best so far and the solver's answer, as the simulator sees them."""
    if answer.devices is None or answer.start is None:
        return best
    finish = answer.start + instance.time[np.arange(instance.n_ops), answer.devices]
    order = in_order(instance, answer.start, finish)
    candidate = solvable.plan(answer.devices, order)
    chosen = solvable.finest.objective.better(best, candidate)
    return replace(chosen, notes=best.notes)


def _bounded(
    solvable: Solvable, instance: MilpInstance, best: Candidate, answer: Answer, memory: MemoryModel
) -> Candidate:
    """The candidate with what its bound says, and of what."""
    seconds = instance.seconds(answer.bound)
    objective = solvable.finest.objective
    if solvable.finer is not None:
        gap = objective.gap(best.verdict, seconds)
        return best.noted(
            f"{answer.by}: no plan for the {counted(instance.n_ops, 'group')} takes less than "
            f"{seconds:.6g} s ({gap:.1%} below this one); a plan that parts groups may"
        )
    tight = bool((instance.unit_charge.sum() > instance.capacity).any())
    if tight and memory == "dynamic":
        return best.noted(
            f"{answer.by}: no plan takes less than {seconds:.6g} s whose ops fit as the method "
            "charges them: what they hold at the peak of a sequential run"
        )
    source = f"{answer.by}, static memory" if tight else answer.by
    if objective.is_proved(best.verdict, seconds):
        seconds = objective.seconds(best.verdict)
        best = best.noted(f"proved optimal ({source}): no placement and order is faster")
    return replace(best, bound=Bound(seconds, source, {source: seconds}))


# -- where to start ----------------------------------------------------------------------------


def start_of(solvable: Solvable, method: ExactMethod, limits: Limits) -> Start:
    """The method's start, or HEFT's with best effort where the method finds none that fits.

    Raises
    ------
    InfeasibleError
        It is proved that nothing fits, with the smallest relaxation that would make it; or nothing
        was found under the papers' own constraint.
    """
    try:
        return method.start(solvable, limits.memory, limits.left)
    except InfeasibleError as error:
        if solvable.finest.best_effort:
            raise
        certified = _certified(solvable.finest, limits.memory, error)
        if certified is not None or limits.memory == "static":
            # The papers' own constraint is not the simulator's.
            raise certified or error from error
        start = start_from_list(solvable.loosened(), limits.memory)
        plan = replace(start.plan, problem=solvable.finest)
        return replace(start, plan=plan, capacity=solvable.finest.capacity)


def start_from_list(solvable: Solvable, memory: MemoryModel, seconds: float = 0.0) -> Start:
    """HEFT on a problem, in as much memory as lets the simulator find that the plan fits."""
    problem = solvable.problem
    graph = problem.graph
    _, upward = fast.levels(problem.weights)
    rank = fast.priority_order(graph, upward)
    core = problem.core.led_by(deciders(graph)[0]).within(best_effort=solvable.finest.best_effort)
    tried: list[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint64]]] = []

    def attempt(bytes_: NDArray[np.uint64], capacity: NDArray[np.uint64]) -> Assignment:
        devices, begin, finish = fast.schedule(
            core.within(op_bytes=solvable.charge(bytes_), capacity=capacity), rank
        )
        order = by_start(graph, begin, finish)
        tried.append((devices, order, capacity))
        return solvable.expanded(devices, order)

    plan = within_memory(solvable.finest, attempt, memory)
    devices, order, capacity = tried[-1]
    again = ordered(solvable.finest, plan.assignment.devices)
    plan = solvable.finest.objective.better(plan, again)
    return Start(plan, devices, order, solvable.charge(_bytes(solvable.finest, memory)), capacity)


def start_from_search(
    solvable: Solvable, memory: MemoryModel, seconds: float, *, search: Search | None = None
) -> Start:
    """The result of a search that gets a share of the seconds.

    Where the problem is the finest and memory is the simulator's, ``search`` places all ops, no
    worse than HEFT. Else, or without a ``search``, moves of single ops start from
    :func:`start_from_list`.
    """
    share = SEARCH_SHARE * seconds
    if search is not None and solvable.finer is None and memory == "dynamic":
        plan = search(solvable.problem, time_limit=share, warm_start=_by_heft(solvable.problem))
        order = by_start(solvable.problem.graph, plan.schedule.start, plan.schedule.finish)
        charge = solvable.problem.reduced.held_at_peak
        # The simulator has found that what the plan holds fits.
        used = _used(solvable.problem, plan.assignment.devices, charge)
        capacity = np.maximum(solvable.problem.capacity, used)
        return Start(plan, plan.assignment.devices, order, charge, capacity)
    start = start_from_list(solvable, memory)
    used = _used(solvable.problem, start.devices, start.charge)
    if share == 0 or (used > start.capacity).any():
        return start
    devices, order, *_ = fast.search(
        solvable.problem.core.within(op_bytes=start.charge, capacity=start.capacity),
        (start.devices, start.order),
        fast.Stop(time_limit=share),
        seed=solvable.problem.seed,
    )
    plan = solvable.finest.objective.better(start.plan, solvable.plan(devices, order))
    return replace(start, plan=plan, devices=devices, order=order)


def _by_heft(problem: Problem) -> Assignment | None:
    """HEFT's placement, if it finds one: where there is no time to search, it is the start."""
    with contextlib.suppress(InfeasibleError):
        return heft.place(problem).assignment
    return None


def _bytes(problem: Problem, memory: MemoryModel) -> NDArray[np.uint64]:
    return problem.graph.static_bytes if memory == "static" else problem.reduced.held_at_peak


def _used(
    problem: Problem, devices: NDArray[np.int32], charge: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    used = np.zeros(problem.cluster.n_devices, dtype=np.uint64)
    np.add.at(used, devices, charge)
    return used


def _certified(
    problem: Problem, memory: MemoryModel, error: InfeasibleError
) -> InfeasibleError | None:
    """The error with the smallest relaxation that would make the problem feasible, where resident
    bytes (or, counted statically, all) alone do not fit; None: that is not proved.
    """
    charge = problem.graph.static_bytes if memory == "static" else problem.graph.resident
    instance = instance_of(problem, charge, 0.0)
    try:
        relaxation = least_relaxation(
            instance.unit_allowed, instance.unit_charge, instance.capacity
        )
    except SolverError:
        return None
    if not relaxation.total or not relaxation.is_proved:
        return None
    names = [device.name for device in problem.cluster.devices]
    missing = {
        name: int(short) for name, short in zip(names, relaxation.missing, strict=True) if short
    }
    which = ", ".join(f"{name} {format_bytes(b)} ({b} bytes)" for name, b in missing.items())
    counted = "resident bytes and outputs" if memory == "static" else "resident bytes alone"
    return InfeasibleError(
        f"does not fit (proved): {counted} need {format_bytes(relaxation.total)} "
        f"({relaxation.total} bytes) more memory than the cluster has where they may be; "
        f"with this more it would fit: {which} "
        f"(no smaller relaxation does). {error}",
        missing,
    )


def _bundled(graph: OpGraph) -> OpGraph:
    """The same graph with other numbers of tensors.

    Tensors that one group sends to the same other groups get numbers in a row. Ties break by
    number, so these tensors are sent one right after the other, as one message would be.
    """
    document = graph.to_document()
    edges = document["edges"]
    readers: dict[int, tuple[int, list[int]]] = {}
    for src, dst, tensor in zip(edges["src"], edges["dst"], edges["tensor"], strict=True):
        readers.setdefault(tensor, (src, []))[1].append(dst)
    readers.pop(-1, None)
    order = sorted(readers, key=lambda tensor: (*readers[tensor], tensor))
    number = {tensor: i for i, tensor in enumerate(order)} | {-1: -1}
    numbered = {**edges, "tensor": [number[tensor] for tensor in edges["tensor"]]}
    return OpGraph.from_document({**document, "edges": numbered})


# -- size --------------------------------------------------------------------------------------


def size_of(problem: Problem, method: ExactMethod) -> int:
    """Rows that a problem would have; more than allowed where it has too many ops to count."""
    if problem.graph.n_ops > method.max_ops:
        return method.max_rows + 1
    instance = method.links(instance_of(problem, problem.graph.resident, 0.0))
    return method.rows(instance)


def refusal(problem: Problem, method: ExactMethod) -> str | None:
    """Why a problem is too large, if it is."""
    n_ops = problem.graph.n_ops
    if n_ops > method.max_ops:
        return f"{method.name}: {n_ops} ops are more than the {method.max_ops} it takes"
    rows = size_of(problem, method)
    if rows > method.max_rows:
        return (
            f"{method.name}: {n_ops} ops make about {rows:,} rows, more than the "
            f"{method.max_rows:,} it takes"
        )
    return None


def small_enough(
    solvable: Solvable, method: ExactMethod, coarsener: Coarsener, most: int
) -> Solvable | None:
    """The finest coarsening of a problem that the method takes; None: there is none."""
    for groups in (most, *(g for g in GROUPS if g < most)):
        coarser = solvable.coarser(coarsener, groups)
        if refusal(coarser.problem, method) is None:
            return coarser
    return None
