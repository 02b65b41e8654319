"""Many graphs on many clusters by many methods, on as many machines as there are.

Every combination is a case. Cases go to the workers of a ``concurrent.futures.Executor``. Each case
comes back as a row of a table, and the row is on disk before the sweep waits for the next one. A
sweep that was broken off continues when it is run again with the same table.

A worker may die while it runs a case. The case is then run again alone, which tells a case that
kills its worker from cases that were merely running beside it. If its worker dies each time, the
row of the case says so.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from loadmaster.base import checks
from loadmaster.base.children import sparing_children
from loadmaster.base.errors import InfeasibleError, InputError, LoadmasterError, refusing
from loadmaster.base.text import Printed, aligned, escaped, in_lines
from loadmaster.base.units import counted, format_bytes, format_seconds
from loadmaster.base.warnings import warn
from loadmaster.costs.runtimes.priced import RUNTIMES
from loadmaster.judge.objective import OBJECTIVES, Goal
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph
from loadmaster.plans.plan import Plan
from loadmaster.plans.planner import Planner
from loadmaster.rules.constraints import Constraints, as_constraints
from loadmaster.strategies.registry import function_of
from loadmaster.systems.registry import check_no_target, target_of
from loadmaster.tasks.given import ClusterLike, GraphLike, as_cluster, as_graph
from loadmaster.tasks.place import place
from loadmaster.tasks.sweep_table import Key, SweepRow, Table
from loadmaster.tasks.worker_losses import Losses

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

MethodLike: TypeAlias = str | tuple[str, Mapping[str, Any]]

#: Called with the number of cases done, the number of all cases, and the last row.
SweepProgress = Callable[[int, int, SweepRow], None]

#: Cases that a user's executor holds at a time.
IN_FLIGHT = 256

#: Most times that a case whose worker died is run again.
RETRIES = 2

#: Executors that are made, one after the other, until one takes a case.
STARTS = 3

#: Seconds between looks at what does not call: other sweeps of the table, and dask's workers.
POLL = 0.5

_UNGUARDED = (
    "a sweep starts processes, which read the script again: it needs its statements under "
    'if __name__ == "__main__":, and cannot be read from stdin'
)

#: Options that :func:`loadmaster.place` takes for any method.
_OF_PLACE = ("time_limit", "on_oom", "refine", "objective", "runtime")


@dataclass(frozen=True)
class Case:
    """One combination, as it travels to a worker.

    Attributes
    ----------
    graph, cluster : str
        Names for people.
    packed : bytes
        The graph as gzipped opgraph JSON.
    toml : str
        The cluster.
    planner : Planner
    options : mapping
    constraints : Constraints
    start : bytes
        The plan to start from, as gzipped JSON; empty: none.
    key : Key
        Key of the row in the table.
    """

    graph: str
    cluster: str
    packed: bytes
    toml: str
    planner: Planner
    options: Mapping[str, Any]
    constraints: Constraints
    start: bytes
    key: Key

    def row(self, outcome: str, error: str = "", **figures: Any) -> SweepRow:
        """The case's row."""
        return SweepRow(
            self.graph, self.cluster, *self.key, outcome=outcome, error=error, **figures
        )


@dataclass(frozen=True)
class Sweep(Printed):
    """Result of a sweep.

    Attributes
    ----------
    rows : tuple of Row
        One per case that is done, in the order of the cases: graphs, clusters, methods, seeds.
    resumed : int
        Number of rows that the table already had, or that another sweep has added meanwhile.
    unfinished : int
        Cases without a row, since the sweep was interrupted.
    """

    rows: tuple[SweepRow, ...]
    resumed: int = 0
    unfinished: int = 0

    @property
    def failures(self) -> tuple[SweepRow, ...]:
        """Rows without a plan."""
        return tuple(row for row in self.rows if row.outcome != "done")

    def __str__(self) -> str:
        goals = {json.loads(row.options).get("objective", "step") for row in self.rows}
        seconds = {"step": "step time", "throughput": "period"}
        seen = " or ".join(seconds[goal] for goal in seconds if goal in goals)
        head = ("graph", "cluster", "method", seen, "gap", "moved", "peak", "planned in")
        lines = aligned([head, *map(_cells, self.rows)])
        lines += [
            f"{row.graph} on {row.cluster} by {row.method}: {row.error}" for row in self.failures
        ]
        for text in dict.fromkeys(row.constraints for row in self.rows):
            obeyed = Constraints.from_document(json.loads(text))
            lines += [] if obeyed.is_empty else [f"constraints  {obeyed}"]
        if self.unfinished:
            lines.append(
                f"interrupted: {counted(self.unfinished, 'case is', 'cases are')} not done"
            )
        return in_lines(lines)


def _cells(row: SweepRow) -> tuple[str, ...]:
    options = "" if row.options == "{}" else f" {row.options}"
    seed = f" seed {row.seed}" if row.seed else ""
    named = (row.graph, row.cluster, f"{row.method}{options}{seed}")
    if row.makespan is None or row.gap is None or row.peak is None or row.bytes_moved is None:
        return (*named, row.outcome)
    return (
        *named,
        format_seconds(row.makespan),
        f"{row.gap:.1%}",
        format_bytes(row.bytes_moved),
        f"{row.peak:.0%}",
        format_seconds(row.planning_seconds or 0.0),
    )


def sweep(
    graphs: GraphLike | Iterable[GraphLike],
    clusters: ClusterLike | Iterable[ClusterLike],
    methods: MethodLike | Iterable[MethodLike] = (),
    *,
    targets: MethodLike | Iterable[MethodLike] = (),
    seeds: Iterable[int] = (0,),
    constraints: Constraints | None = None,
    objective: Goal = "step",
    runtime: str | None = None,
    warm_start: Plan | Iterable[Plan] = (),
    executor: Executor | Callable[[], Executor] | None = None,
    workers: int | None = None,
    out: str | os.PathLike[str] | None = None,
    retries: int = RETRIES,
    progress: SweepProgress | None = None,
) -> Sweep:
    """Places every graph on every cluster by every method, and keeps a table of the results.

    Ctrl-C ends the sweep, not the program: the rows so far are returned, and are in the table.

    Parameters
    ----------
    graphs : OpGraph, path or ``"example:NAME"``, or several
        Each file is read once and sent to the workers, which need no access to it.
    clusters : Cluster, path of a TOML file or preset, or several
    methods : str or (str, mapping of options), or several
        As for :func:`loadmaster.place`; ``time_limit``, ``on_oom``, ``refine``, ``objective`` and
        ``runtime`` may be among the options.
    targets : str or (str, mapping of options), or several
        Systems that are planned for, as for :func:`loadmaster.place`. The rows of one that is named
        ``ddp`` have the method ``"target ddp"``; those of a model that it does not take say so.
    seeds : integers
    constraints : Constraints, optional
        Constraints that every plan must obey. A pattern or a device that a case does not have is an
        error of that case, and its row says so.
    objective : "step" (default) or "throughput"
        As for :func:`loadmaster.place`; it stands among the options of each row.
    runtime : "eager", "compiled" or "graphs", optional
        The same.
    warm_start : Plan, or several
        Cases of a graph with the same ops start from this plan, as in :func:`loadmaster.place`; one
        plan per graph. Cases of other graphs have no plan to start from.
    executor : Executor, or a function that makes one, optional
        Where cases run. If absent, they run in processes of this machine, and a script needs the
        usual ``if __name__ == "__main__":``. Examples are ``dask.distributed``'s
        ``client.get_executor()`` and ``mpi4py.futures.MPIPoolExecutor()``. The workers need the
        same version of Loadmaster. A pool of processes breaks for good when a process dies. If a
        function that makes the pool is given, it is called again.
    workers : int, optional
        Number of cases under way at a time. If absent: the number of CPUs, or 256 with an executor.
    out : path, optional
        The file of the table. Each row is appended to a ``.csv`` file at once, and flushed to disk.
        A ``.parquet`` file (the ``parquet`` extra) is written at the end, from the ``.csv`` file
        beside it. Cases that the table has are not run again, except those whose worker died.
        Several sweeps may share a table at the same time: a file with ``.lock`` behind the name
        says which cases are under way, and is gone when the last of them ends. Windows lacks such
        locks, and a warning says so. A
        case is known by the hashes of its graph, its cluster and the plan that it starts from, by
        its method, options, seed and constraints, and by the version of Loadmaster. Of several rows
        of a case, the last one counts.
    retries : int
        Most times that a case whose worker died is run again, alone.
    progress : callable, optional
        Called with the number of cases done, the number of cases, and the last row.

    Returns
    -------
    Sweep
        A row per case. A case that does not fit, fails or kills its worker has a row that says so.

    Raises
    ------
    InputError
        A graph, cluster, table or constraints that cannot be read; an unknown method or option; a
        bad number; a plan to start from whose ops no graph has; two plans to start from with the
        same ops; a table that another sweep of this process has open. All these are found before
        any case runs. Also a table that cannot be written any more, which then has the rows so far.
    MissingExtraError
        Parquet without pyarrow.
    LoadmasterError
        The executor takes no more cases, or no process can be started. The table has the rows so
        far.

    Warns
    -----
    UserWarning
        Only cases that another sweep is at are left, and their rows are waited for. Or the system
        has no locks.

    Examples
    --------
    >>> import loadmaster as lm
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as threads:
    ...     done = lm.sweep("example:lenet", ["4xV100-PCIe", "2xV100-NVLink"],
    ...                     ["heft", ("auto", {"effort": 0.01})], executor=threads)
    >>> [(row.method, row.outcome) for row in done.rows]
    [('heft', 'done'), ('auto', 'done'), ('heft', 'done'), ('auto', 'done')]
    """
    for name, value, least in (("workers", workers, 1), ("retries", retries, 0)):
        if value is not None:
            checks.integer(name, value, least)
    checks.one_of("objective", objective, tuple(OBJECTIVES))
    common: dict[str, Any] = {} if objective == "step" else {"objective": objective}
    if runtime is not None:
        checks.one_of("runtime", runtime, RUNTIMES)
        common["runtime"] = runtime
    chosen = _planners(methods, targets)
    chosen = [(planner, {**common, **options}) for planner, options in chosen]
    numbers = [checks.seed(seed) for seed in _several("seeds", seeds, int, np.integer)]
    obeyed = as_constraints(constraints)
    starts = _starts(warm_start)
    with closing(Table.open(out)) as table:
        cases = _cases(graphs, clusters, chosen, numbers, obeyed, starts)
        ledger = _Ledger(cases, table, progress)
        return _swept(ledger, lambda todo: _Crew(executor, workers, todo), retries)


class _Ledger:
    """The cases of a sweep, and which of them have their row, in this sweep or in its table."""

    def __init__(
        self, cases: Mapping[Key, Case], table: Table, progress: SweepProgress | None
    ) -> None:
        self.cases = cases
        self.table = table
        self._progress = progress
        self._waits = False
        known = ((key, table.rows.get(key)) for key in cases)
        self.known = {k: row for k, row in known if row is not None and row.outcome != "crashed"}
        self.resumed = len(self.known)

    def todo(self) -> list[Case]:
        """Cases without a row, and those whose worker died when they last ran."""
        return [case for key, case in self.cases.items() if key not in self.known]

    def record(self, row: SweepRow) -> None:
        """Keeps the row of a case that ran here."""
        self.table.append(row)
        self._note(row)

    def look_around(self) -> None:
        """Notes rows of this sweep's cases that other sweeps have added to the table."""
        for row in self.table.news():
            if row.key in self.cases and row.key not in self.known:
                self.resumed += 1
                self._note(row)

    def say_that_it_waits(self, cases: int) -> None:
        """Warns once that only cases of other sweeps are left.

        Raises
        ------
        LoadmasterError
            This sweep is run by the import of a script in a worker of the very sweep that it would
            wait for.
        """
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise LoadmasterError(_UNGUARDED)
        if not self._waits:
            self._waits = True
            left = counted(cases, "case that is", "cases that are")
            warn(f"waiting for {left} under way in another sweep of the same table")

    def _note(self, row: SweepRow) -> None:
        self.known[row.key] = row
        if self._progress is not None:
            self._progress(len(self.known), len(self.cases), row)


def _swept(ledger: _Ledger, crew_for: Callable[[int], _Crew], retries: int) -> Sweep:
    """Runs the cases that the table lacks."""
    todo = ledger.todo()
    crew = crew_for(len(todo))
    try:
        _drive(todo, crew, retries, ledger)
    except KeyboardInterrupt:
        crew.abandon()
    except BaseException:
        crew.abandon()
        raise
    rows = tuple(ledger.known[key] for key in ledger.cases if key in ledger.known)
    return Sweep(rows, ledger.resumed, len(ledger.cases) - len(rows))


# -- cases -------------------------------------------------------------------------------------


def _several(name: str, value: Any, *kinds: type) -> list[Any]:
    """One thing of these kinds, or several, as a list."""
    if isinstance(value, kinds):
        return [value]
    if not isinstance(value, Iterable):
        raise InputError(f"{name} is {value!r}: wants one or several")
    several = list(value)
    wrong = [one for one in several if not isinstance(one, kinds)]
    if wrong or not several:
        raise InputError(f"{name} has {wrong[0]!r}" if wrong else f"no {name} are given")
    return several


def _planners(
    methods: MethodLike | Iterable[MethodLike], targets: MethodLike | Iterable[MethodLike]
) -> list[tuple[Planner, dict[str, Any]]]:
    """Methods, then targets, with their options."""
    planners = [
        _planner(named, is_target=is_target)
        for name, several, is_target in (("methods", methods, False), ("targets", targets, True))
        for named in (_several(name, several, str, tuple) if several else ())
    ]
    if not planners:
        raise InputError("no methods and no targets are given")
    return planners


def _planner(named: Any, *, is_target: bool) -> tuple[Planner, dict[str, Any]]:
    match (named, {}) if isinstance(named, str) else named:
        case (str(name), Mapping() as chosen):
            options = dict(chosen)
        case _:
            raise InputError(f"a method is {named!r}: wants its name, or its name and its options")
    with refusing(f"options of {name!r} cannot be written as JSON", TypeError, ValueError):
        json.dumps(options, allow_nan=False)
    own = {k: v for k, v in options.items() if k not in _OF_PLACE}
    if is_target:
        target_of(name).checked(own)
    else:
        check_no_target(name)
        function_of(name, own)
    return Planner(name, is_target), options


@dataclass(frozen=True)
class _Start:
    """A plan to start from: the plan, its bytes for a worker, and its hash."""

    plan: Plan
    packed: bytes
    digest: str


def _starts(warm: Plan | Iterable[Plan]) -> list[_Start]:
    """Plans to start from, at most one for the same ops."""
    plans = [warm] if isinstance(warm, Plan) else list(warm)
    wrong = [one for one in plans if not isinstance(one, Plan)]
    if wrong:
        raise InputError(f"warm_start has {wrong[0]!r}: wants plans")
    for first, second in itertools.combinations(plans, 2):
        if first.program.graph.names == second.program.graph.names:
            raise InputError(f"two plans to start from are for the ops of {first.graph!r}")
    return [_Start(plan, _packed(plan.to_document()), _digest(plan)) for plan in plans]


def _digest(plan: Plan) -> str:
    """Hash of everything in a plan that matters to a case that starts from it."""
    placed = [plan.running_devices.tolist(), plan.running_priority.tolist(), plan.policy]
    text = json.dumps([plan.program.graph.digest, plan.cluster.digest, *placed])
    return hashlib.sha256(text.encode()).hexdigest()


def _cases(
    graphs: GraphLike | Iterable[GraphLike],
    clusters: ClusterLike | Iterable[ClusterLike],
    planners: Sequence[tuple[Planner, dict[str, Any]]],
    seeds: Sequence[int],
    constraints: Constraints,
    starts: Sequence[_Start],
) -> dict[Key, Case]:
    """Every combination once, by its key."""
    version = metadata.version("loadmaster")
    obeyed = json.dumps(constraints.to_document(), sort_keys=True)
    on = [
        as_cluster(source) for source in _several("clusters", clusters, str, os.PathLike, Cluster)
    ]
    known = [(cluster.name or "cluster", cluster.to_toml(), cluster.digest) for cluster in on]
    unused = list(starts)
    cases: dict[Key, Case] = {}
    for source in _several("graphs", graphs, str, os.PathLike, OpGraph):
        graph = as_graph(source)
        name, packed = graph.name or "graph", _packed(graph.to_document())
        start = next((one for one in starts if one.plan.program.graph.names == graph.names), None)
        unused = [one for one in unused if one is not start]
        for (where, toml, digest), (planner, options), seed in itertools.product(
            known, planners, seeds
        ):
            key = Key(
                str(planner),
                json.dumps(options, sort_keys=True),
                seed,
                obeyed,
                start.digest if start else "",
                graph.digest,
                digest,
                version,
            )
            beginning = start.packed if start else b""
            case = Case(name, where, packed, toml, planner, options, constraints, beginning, key)
            cases.setdefault(key, case)
    if unused:
        raise InputError(f"a plan to start from is for {unused[0].plan.graph!r}: no such graph")
    return cases


def _packed(document: Mapping[str, Any]) -> bytes:
    text = json.dumps(document, separators=(",", ":"))
    return gzip.compress(text.encode(), compresslevel=3, mtime=0)


@lru_cache(maxsize=4)
def _unpacked(packed: bytes) -> OpGraph:
    """The graph of a case, cached: a worker mostly gets the same graph again."""
    return OpGraph.from_document(json.loads(gzip.decompress(packed)))


@lru_cache(maxsize=4)
def _unpacked_plan(packed: bytes) -> Plan:
    """The plan that a case starts from, cached like the graph."""
    return Plan.from_document(json.loads(gzip.decompress(packed)))


# -- in the worker -----------------------------------------------------------------------------


def run_case(case: Case) -> SweepRow:
    """Plans one case. An exception becomes a row that has its message."""
    version = metadata.version("loadmaster")
    if version != case.key.version:
        return case.row("error", f"the worker has loadmaster {version}, not {case.key.version}")
    try:
        plan = place(
            _unpacked(case.packed),
            Cluster.from_toml(case.toml),
            seed=case.key.seed,
            warm_start=_unpacked_plan(case.start) if case.start else None,
            constraints=case.constraints,
            **case.planner.arguments,
            **case.options,
        )
    except InfeasibleError as error:
        return case.row("infeasible", str(error))
    except Exception as error:
        return case.row("error", f"{type(error).__name__}: {error}")
    capacity = np.maximum(plan.memory.capacity, 1)
    return case.row(
        "done",
        makespan=plan.objective.seconds(plan.verdict),
        lower_bound=plan.lower_bound,
        gap=plan.gap,
        one_device=plan.single,
        fits=plan.fits,
        peak=float((plan.memory.peak / capacity).max()),
        busy=float(plan.schedule.utilisation.mean()),
        devices_used=len(np.unique(plan.assignment.devices)),
        bytes_moved=plan.schedule.bytes_moved,
        planning_seconds=plan.planning_seconds,
    )


def _follow(lifeline: Connection) -> None:
    """Ends a worker as soon as its sweep ends, even if the sweep was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.formatwarning = lambda message, *_, **__: (
        escaped(f"loadmaster: warning: {message}") + "\n"
    )

    def watch() -> None:
        # Nothing is ever sent, so the wait ends when the other end closes.
        lifeline.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# -- in the parent -----------------------------------------------------------------------------


class _Crew:
    """The executor of a sweep: its own processes, the user's, or those that a function makes."""

    def __init__(
        self, executor: Executor | Callable[[], Executor] | None, workers: int | None, cases: int
    ) -> None:
        self.flying: dict[Future[SweepRow], tuple[Case, int]] = {}
        cpus = os.cpu_count() or 1
        self.size = workers or (cpus if executor is None else IN_FLIGHT)
        self._processes = min(self.size, max(cases, 1))
        self._given = executor
        self._lifeline: Connection | None = None
        self._executor: Executor | None = executor if isinstance(executor, Executor) else None
        self.losses = Losses.of(self._executor)

    @property
    def is_retrying(self) -> bool:
        """True if a case that has failed is under way, which is to be alone."""
        return any(failed for _, failed in self.flying.values())

    def submit(self, case: Case, failed: int) -> None:
        """Hands over a case that has failed ``failed`` times.

        Raises
        ------
        LoadmasterError
            The executor takes no case, and no other can be made.
        """
        for _ in range(STARTS):
            try:
                if self._executor is None:
                    self._start()
                assert self._executor is not None
                # Which may start a process.
                with sparing_children():
                    future = self._executor.submit(run_case, case)
            except (BrokenExecutor, RuntimeError) as error:
                if isinstance(self._given, Executor):
                    raise LoadmasterError(
                        f"the executor takes no more cases ({_said(error)}): run the sweep again "
                        "with the same table, or give a function that makes executors"
                    ) from error
                refused = error
                self.retire()
            else:
                self.flying[future] = case, failed
                return
        why = f"{STARTS} new executors, one after the other, took no case ({_said(refused)})"
        if self._given is None:
            why += f": {_UNGUARDED}"
        raise LoadmasterError(why) from refused

    def _start(self) -> None:
        """Makes an executor; one of its own has a process that runs."""
        if self._given is not None:
            assert not isinstance(self._given, Executor)
            self._executor = self._given()
            self.losses = Losses.of(self._executor)
            return
        from concurrent.futures import ProcessPoolExecutor

        spawn = multiprocessing.get_context("spawn")
        followed, self._lifeline = spawn.Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(
            self._processes, mp_context=spawn, initializer=_follow, initargs=(followed,)
        )
        with sparing_children():
            first = self._executor.submit(os.getpid)
        first.result()

    def landed(self, timeout: float | None) -> set[Future[SweepRow]]:
        """Waits for cases; those that are done, none after so many seconds.

        All cases of a broken executor are done.
        """
        if not self.flying:
            time.sleep(timeout or 0.0)
            return set()
        done = wait(self.flying, timeout, return_when=FIRST_COMPLETED).done
        if any(isinstance(_failure(future), BrokenExecutor) for future in done):
            # The other cases of a broken executor are lost, and fail as well.
            done = wait(self.flying).done
            self.retire()
        return done

    def drop(self) -> list[tuple[Case, int]]:
        """Cancels the cases that are under way; each, and how often it failed before."""
        for future in self.flying:
            future.cancel()
        dropped = list(self.flying.values())
        self.flying.clear()
        return dropped

    def retire(self, *, wait_for_it: bool = False) -> None:
        """Shuts the executor down unless it is the user's; ends the sweep's own processes."""
        if self._executor is None or self._executor is self._given:
            return
        if wait_for_it:
            self._executor.shutdown(wait=True)
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None
        if not wait_for_it:
            self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = None

    def abandon(self) -> None:
        """Drops the cases that are under way, and what ran them."""
        self.drop()
        self.retire()


def _drive(todo: Sequence[Case], crew: _Crew, retries: int, ledger: _Ledger) -> None:
    """Runs cases, or leaves them to other sweeps that are at them, until each has a row."""
    waiting = deque(todo)
    suspects: deque[tuple[Case, int]] = deque()
    while waiting or suspects or crew.flying:
        if suspects and not crew.flying:
            crew.submit(*suspects.popleft())
        elif not suspects and not crew.is_retrying:
            _hand_out(waiting, crew, ledger)
        polls = crew.losses is not None or (waiting and len(crew.flying) < crew.size)
        done = crew.landed(POLL if polls else None)
        for future in done:
            case, failed = crew.flying.pop(future)
            error = _failure(future)
            if error is None:
                ledger.record(replace(future.result(), tries=failed + 1))
            elif failed == retries:
                ledger.record(_crashed(case, failed, _said(error)))
            else:
                suspects.append((case, failed + 1))
        _look_at_workers(crew, ledger, bool(done))
        ledger.look_around()
    crew.retire(wait_for_it=True)


def _hand_out(waiting: deque[Case], crew: _Crew, ledger: _Ledger) -> None:
    """Hands over as many cases as the crew takes; cases of other sweeps go on waiting."""
    for _ in range(len(waiting)):
        if len(crew.flying) == crew.size:
            return
        case = waiting.popleft()
        if case.key in ledger.known:
            continue
        if ledger.table.claim(case.key):
            crew.submit(case, 0)
        else:
            waiting.append(case)
    if waiting and not crew.flying:
        ledger.say_that_it_waits(len(waiting))


def _look_at_workers(crew: _Crew, ledger: _Ledger, is_done: bool) -> None:
    """Gives the cases that are under way up if workers are lost again and again."""
    if crew.losses is None or not crew.flying:
        return
    if is_done:
        crew.losses.forget()
    elif why := crew.losses.look():
        crew.losses.forget()
        for case, failed in crew.drop():
            ledger.record(_crashed(case, failed, why))


def _crashed(case: Case, failed: int, why: str) -> SweepRow:
    return replace(case.row("crashed", f"the worker died: {why}"), tries=failed + 1)


def _failure(future: Future[SweepRow]) -> BaseException | None:
    """Why a case has no row: its worker died, or the executor cancelled the case."""
    try:
        return future.exception()
    except CancelledError as error:
        return error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
