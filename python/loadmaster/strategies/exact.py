"""What the exact methods share: the size they can take, where they start, and what becomes of what
a solver finds.

A solver never costs its user anything: it starts from a plan, what it finds is simulated and only
counts if it is better, and where it crashes, hangs or is interrupted the best plan so far is
returned with a warning that says what happened.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce

import numpy as np
from numpy.typing import NDArray

from loadmaster import fast
from loadmaster.bounds import Bound, bound
from loadmaster.coarsening import Coarse, Coarsener, coarsen_problem
from loadmaster.errors import InfeasibleError, InputError, SolverError
from loadmaster.milp.instance import Instance, instance_of
from loadmaster.milp.memory import least_relaxation
from loadmaster.milp.timing import Timed, in_order, timed
from loadmaster.problem import Problem, ranks
from loadmaster.simulation import as_costs
from loadmaster.strategies import heft
from loadmaster.strategies.base import Candidate, MemoryModel, Placement, better, judged
from loadmaster.strategies.listing import check_memory, ordered
from loadmaster.units import format_bytes

#: Seconds, if no time limit is given.
SECONDS = 10.0

#: Groups that an exact method takes, and what it tries if those have too many rows.
GROUPS = (200, 150, 100, 75, 50, 35, 25, 15)

#: Share of a bound by which a makespan may miss it and still be called optimal: rounding to ticks.
ROUNDING = 1e-6

Progress = Callable[[str, float | None], None]


@dataclass(frozen=True)
class Answer:
    """What a solver found.

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
Solve = Callable[[Instance, Timed, float, Callable[[float | None, float | None], None]], Answer]


@dataclass(frozen=True)
class Method:
    """An exact method.

    Attributes
    ----------
    name : str
    solve : Solve
    rows : callable
        Estimates how many rows an instance has.
    max_rows : int
        More are not solved.
    links : callable
        Gives an instance the method's link model.
    start : callable
        Where to start within some seconds.
    """

    name: str
    solve: Solve
    rows: Callable[[Instance], int]
    max_rows: int
    start: Callable[[Problem, float], Candidate]
    links: Callable[[Instance], Instance] = lambda instance: instance


@dataclass(frozen=True)
class Limits:
    """What a user asks of an exact method: seconds, a memory model, a file for the solver's
    output, whom to tell.
    """

    seconds: float
    memory: MemoryModel
    log: str | None
    progress: Progress | None

    @classmethod
    def checked(
        cls,
        time_limit: float | None,
        memory: MemoryModel,
        log: str | None,
        progress: Progress | None,
    ) -> Limits:
        """Raises :class:`~loadmaster.InputError` for what makes no sense."""
        check_memory(memory)
        if log is not None and not isinstance(log, str):
            raise InputError(f"log is {log!r}: wants the path of a file")
        return cls(SECONDS if time_limit is None else float(time_limit), memory, log, progress)


@dataclass(frozen=True)
class Level:
    """A problem and what it was coarsened from."""

    problem: Problem
    coarse: Coarse | None = None
    finer: Level | None = None

    def coarser(self, method: Coarsener, groups: int) -> Level:
        """A level of so many groups."""
        problem = self.problem
        coarse = coarsen_problem(problem, method, groups)
        graph = coarse.graph
        costs = as_costs(None, graph, problem.cluster)
        made = Problem.make(
            graph, problem.cluster, costs, seed=problem.seed, best_effort=problem.best_effort
        )
        return Level(made, coarse, self)

    def expanded(self, devices: NDArray[np.int32], order: NDArray[np.int32]) -> Candidate:
        """A placement and an order of this level as one of the finest: the groups' own order, or
        the best found for the placement.
        """
        if self.finer is None or self.coarse is None:
            return judged(self.problem, Placement(devices, ranks(order), is_sequence=True))
        of_group = self.problem.reduced.map
        group, finer = self.coarse.group, self.finer
        place = devices[of_group][group]
        rank = ranks(order)[of_group][group]
        topological = ranks(fast.m_topo(finer.problem.graph))
        inner = np.lexsort((topological, rank)).astype(np.int32)
        candidates = [finer.expanded(place, inner)]
        if finer.finer is None:
            candidates.append(ordered(finer.problem, place))
        return reduce(partial(better, self.finest), candidates)

    @property
    def finest(self) -> Problem:
        """The problem that is to be solved."""
        return self.problem if self.finer is None else self.finer.finest


def best_plan(
    level: Level, method: Method, limits: Limits, notes: tuple[str, ...] = ()
) -> Candidate:
    """The better of the start and of what the solver makes of it, on a level that is small enough.

    Raises
    ------
    InfeasibleError
        Nothing fits: with the smallest relaxation that would make it.
    """
    began = time.perf_counter()
    tell = limits.progress or (lambda stage, makespan: None)
    start = _started(level, method, limits)
    best = _kept(level, start)
    best = replace(best, notes=(*best.notes, *notes))
    tell(method.name, best.schedule.makespan)
    left = limits.seconds - (time.perf_counter() - began)
    if limits.seconds == 0 or not start.fits:
        reason = "no time for the solver" if limits.seconds == 0 else "the start does not fit"
        return _noted(best, f"{method.name}: {reason}, so this is where it starts")
    instance = method.links(_instance(level.problem, start, limits.memory))
    # Renamed twins are the same schedule: the simulator's own order runs it.
    order = in_order(instance, start.schedule.start, start.schedule.finish)
    schedule = timed(instance, instance.canonical(start.devices), order)

    def told(objective: float | None, lower: float | None) -> None:
        known = "" if lower is None else f", bound {instance.seconds(lower):.4g} s"
        tell(f"{method.name}{known}", best.schedule.makespan)

    try:
        answer = method.solve(instance, schedule, max(left, 0.1), told)
    except KeyboardInterrupt:
        return _noted(best, f"{method.name} was interrupted: the best so far")
    except SolverError as error:
        answer = Answer(None, None, 0.0, method.name, str(error), error.log)
    if limits.log is not None:
        _write_log(limits.log, answer.log)
    if answer.trouble is not None:
        best = _noted(best, f"{answer.trouble.splitlines()[0]}; the best plan so far is kept")
        warnings.warn(f"{method.name}: {answer.trouble}", stacklevel=2)
    best = _improved(level, instance, best, answer)
    return _bounded(level, instance, best, answer, limits.memory)


def _noted(candidate: Candidate, note: str) -> Candidate:
    return replace(candidate, notes=(*candidate.notes, note))


def _kept(level: Level, start: Candidate) -> Candidate:
    """The start as a plan of the finest level."""
    if level.finer is None:
        return start
    order = _order_of(level.problem, start)
    return replace(level.expanded(start.devices, order), notes=start.notes)


def _order_of(problem: Problem, candidate: Candidate) -> NDArray[np.int32]:
    topological = ranks(fast.m_topo(problem.graph))
    schedule = candidate.schedule
    return np.lexsort((topological, schedule.finish, schedule.start)).astype(np.int32)


def _improved(level: Level, instance: Instance, best: Candidate, answer: Answer) -> Candidate:
    """The better of the best so far and the solver's answer, as the simulator sees them."""
    if answer.devices is None or answer.start is None:
        return best
    finish = answer.start + instance.time[np.arange(instance.n_ops), answer.devices]
    order = in_order(instance, answer.start, finish)
    found = level.expanded(answer.devices, order)
    chosen = better(level.finest, best, found)
    return replace(chosen, notes=best.notes)


def _bounded(
    level: Level, instance: Instance, best: Candidate, answer: Answer, memory: MemoryModel
) -> Candidate:
    """The candidate with what its bound says, and of what."""
    seconds = instance.seconds(answer.bound)
    makespan = best.schedule.makespan
    if level.finer is not None:
        gap = max(makespan - seconds, 0.0) / makespan if makespan else 0.0
        return _noted(
            best,
            f"{answer.by}: no plan for the {instance.n_ops} groups takes less than {seconds:.6g} s "
            f"({gap:.1%} below this one); a plan that parts groups may",
        )
    tight = bool((instance.unit_charge.sum() > instance.capacity).any())
    if tight and memory == "dynamic":
        return _noted(
            best,
            f"{answer.by}: no plan takes less than {seconds:.6g} s whose ops fit as the method "
            "charges them: what they hold at the peak of a sequential run",
        )
    source = f"{answer.by}, static memory" if tight else answer.by
    best = replace(best, bound=Bound(seconds, source, {source: seconds}))
    if makespan <= seconds * (1 + ROUNDING):
        best = replace(best, bound=Bound(makespan, source, {source: makespan}))
        return _noted(best, f"proved optimal ({source}): no placement and order is faster")
    return best


def _write_log(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"log: cannot write {path!r}: {error.strerror}") from error


# -- where to start ----------------------------------------------------------------------------


def _charge(problem: Problem, memory: MemoryModel) -> NDArray[np.uint64]:
    return problem.graph.static_bytes if memory == "static" else problem.held_at_peak


def _instance(problem: Problem, start: Candidate, memory: MemoryModel) -> Instance:
    """The instance; what the start holds fits, since the simulator has found that it does."""
    charge = _charge(problem, memory)
    instance = instance_of(problem, charge, bound(problem).seconds)
    used = np.zeros(instance.n_devices, dtype=np.int64)
    np.add.at(used, start.devices, instance.charge)
    return replace(instance, capacity=np.maximum(instance.capacity, used))


def _started(level: Level, method: Method, limits: Limits) -> Candidate:
    problem = level.problem
    try:
        if limits.memory == "dynamic":
            return method.start(problem, limits.seconds)
        return _static_start(problem, method, limits)
    except InfeasibleError as error:
        if problem.best_effort:
            raise
        raise _certified(problem, limits.memory, error) from error


def _static_start(problem: Problem, method: Method, limits: Limits) -> Candidate:
    """The method's start if it fits statically, or a list schedule that does, or any placement."""
    charge = problem.graph.static_bytes
    candidates: list[Candidate] = []
    attempts: tuple[Callable[[], Candidate], ...] = (
        partial(method.start, problem, limits.seconds),
        partial(heft.place, problem, memory="static"),
    )
    for attempt in attempts:
        try:
            candidate = attempt()
        except InfeasibleError:
            continue
        used = np.zeros(problem.cluster.n_devices, dtype=np.uint64)
        np.add.at(used, candidate.devices, charge)
        if (used <= problem.capacity).all():
            candidates.append(candidate)
    if candidates:
        return reduce(partial(better, problem), candidates)
    instance = instance_of(problem, charge, 0.0)
    found = least_relaxation(instance.unit_allowed, instance.unit_charge, instance.capacity)
    if found.total and not problem.best_effort:
        raise InfeasibleError("does not fit in static memory")
    return ordered(problem, found.devices[instance.unit])


def _certified(problem: Problem, memory: MemoryModel, error: InfeasibleError) -> InfeasibleError:
    """The error with the smallest relaxation that would make the problem feasible, where resident
    bytes (or, counted statically, all) alone do not fit.
    """
    charge = problem.graph.static_bytes if memory == "static" else problem.graph.resident
    instance = instance_of(problem, charge, 0.0)
    try:
        found = least_relaxation(instance.unit_allowed, instance.unit_charge, instance.capacity)
    except SolverError:
        return error
    if not found.total:
        return error
    names = [device.name for device in problem.cluster.devices]
    missing = {name: int(short) for name, short in zip(names, found.missing, strict=True) if short}
    which = ", ".join(f"{name} {format_bytes(b)} ({b} bytes)" for name, b in missing.items())
    counted = "resident bytes and outputs" if memory == "static" else "resident bytes alone"
    proof = "no smaller relaxation does" if found.is_proved else "a smaller one may do"
    return InfeasibleError(
        f"does not fit: {counted} need {format_bytes(found.total)} ({found.total} bytes) more "
        f"memory than the cluster has where they may be; with this more it would fit: {which} "
        f"({proof}). {error}",
        missing,
    )


# -- size --------------------------------------------------------------------------------------


def size_of(problem: Problem, method: Method) -> int:
    """Rows that a problem would have; more than allowed where it has too many ops to count."""
    if problem.graph.n_ops > max(GROUPS):
        return method.max_rows + 1
    instance = method.links(instance_of(problem, problem.graph.resident, 0.0))
    return method.rows(instance)


def refusal(problem: Problem, method: Method) -> str | None:
    """Why a problem is too large, if it is."""
    n_ops = problem.graph.n_ops
    if n_ops > max(GROUPS):
        return f"{method.name}: {n_ops} ops are more than the {max(GROUPS)} it takes"
    rows = size_of(problem, method)
    if rows > method.max_rows:
        return (
            f"{method.name}: {n_ops} ops make about {rows:,} rows, more than the "
            f"{method.max_rows:,} it takes"
        )
    return None


def small_enough(level: Level, method: Method, coarsener: Coarsener, most: int) -> Level | None:
    """The finest coarsening of a level that the method takes; None: there is none."""
    for groups in (most, *(g for g in GROUPS if g < most)):
        coarser = level.coarser(coarsener, groups)
        if refusal(coarser.problem, method) is None:
            return coarser
    return None
