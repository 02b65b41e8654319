"""Methods on instances, ranked: every plan judged by the simulator, beside the best known.

Nothing stands in for a method. What finds no plan that fits, raises an error or answers with
another kind of plan has a row that says so.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from loadmaster.base import checks
from loadmaster.base.csv_rows import csv_text
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import json_text, markdown
from loadmaster.base.text import Printed, aligned, in_lines, shortened
from loadmaster.base.units import counted, format_seconds
from loadmaster.judge.bounds import SPLIT_OPS, WHOLE_OPS, bound, split_bound
from loadmaster.judge.problem import Problem
from loadmaster.plans.planner import Planner
from loadmaster.readers import instances as known
from loadmaster.readers.instances.instance import SAME, Instance
from loadmaster.strategies.options import takes
from loadmaster.strategies.registry import function_of
from loadmaster.strategies.user_method import method_of
from loadmaster.tasks.planning import PlanRequest, plan_for

#: A name, FILE.py:FUNCTION, or either with options.
MethodLike: TypeAlias = str | tuple[str, Mapping[str, Any]]

#: Reasons why a row counts, or does not.
Outcome = Literal["done", "splits ops", "infeasible", "failed"]

#: Called with the number of rows done, the number of all, and the last row.
BoardProgress = Callable[[int, int, "BoardRow"], None]

#: Characters of a reason in tables; rows have all of it.
_LONGEST = 240

#: Formats of :meth:`Leaderboard.write`, by how a file's name ends.
SUFFIXES = (".md", ".csv", ".json")


@dataclass(frozen=True)
class BoardRow:
    """The result of one method on one instance.

    Attributes
    ----------
    instance, method : str
    outcome : str
        "done"; "splits ops": the plan is no plan of whole ops, where only these count;
        "infeasible": the method found no plan that fits; "failed": it raised an error.
    makespan : float or None
        Seconds, by the simulator.
    best_known : float or None
        Seconds, as the instance has it.
    lower_bound : float
        Seconds that no plan of those that count can go below.
    seconds : float
        Wall time of planning: not the same on every run.
    why : str
        Of a row that is not done.
    """

    instance: str
    method: str
    outcome: Outcome
    makespan: float | None
    best_known: float | None
    lower_bound: float
    seconds: float
    why: str = ""

    @property
    def reference(self) -> float:
        """Seconds: the best known, or the bound where nothing is known."""
        return self.lower_bound if self.best_known is None else self.best_known

    @property
    def ratio(self) -> float | None:
        """Makespan / reference of a row that counts."""
        if self.outcome != "done" or self.makespan is None:
            return None
        return self.makespan / self.reference if self.reference > 0 else math.inf


@dataclass(frozen=True)
class Standing:
    """A method over all instances.

    Attributes
    ----------
    rank : int
        More instances solved come first, then the smaller ``mean``. Methods that are level share a
        rank.
    method : str
    solved : int
        Instances of which it has a plan that counts.
    mean : float or None
        Geometric mean of makespan / best known over the instances that every method which solved
        any has solved; over its own where there is no such instance.
    worst : float or None
        The largest of its own ratios.
    best : int
        Instances on which no other method of the board is shorter.
    seconds : float
        Wall time of all its rows.
    """

    rank: int
    method: str
    solved: int
    mean: float | None
    worst: float | None
    best: int
    seconds: float


@dataclass(frozen=True)
class Leaderboard(Printed):
    """Rows of methods on instances.

    Attributes
    ----------
    methods, instances : tuple of str
    rows : tuple of BoardRow
        By instance, then by method.
    space : str
        Which plans count: "whole ops" or "split ops" (:mod:`loadmaster.judge.bounds`).
    unfinished : int
        Rows that are missing, since the run was interrupted.
    """

    methods: tuple[str, ...]
    instances: tuple[str, ...]
    rows: tuple[BoardRow, ...]
    space: str = WHOLE_OPS
    unfinished: int = 0

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """Methods, the best first."""
        ratios: dict[str, dict[str, float]] = {method: {} for method in self.methods}
        for row in self.rows:
            if row.ratio is not None:
                ratios[row.method][row.instance] = row.ratio
        solvers = [set(of_instance) for of_instance in ratios.values() if of_instance]
        common = set.intersection(*solvers) if solvers else set()
        rows = [
            self._standing(method, of_instance, ratios, common)
            for method, of_instance in ratios.items()
        ]
        rows.sort(key=_order)
        orders = [_order(row) for row in rows]
        return tuple(
            Standing(**{**asdict(row), "rank": 1 + orders.index(_order(row))}) for row in rows
        )

    def _standing(
        self,
        method: str,
        own: Mapping[str, float],
        ratios: Mapping[str, Mapping[str, float]],
        common: set[str],
    ) -> Standing:
        shared = [own[name] for name in own if name in common] or [*own.values()]
        least = {name: min(r[name] for r in ratios.values() if name in r) for name in own}
        return Standing(
            rank=0,
            method=method,
            solved=len(own),
            mean=statistics.geometric_mean(shared) if shared else None,
            worst=max(own.values(), default=None),
            best=sum(ratio <= least[name] * (1 + SAME) for name, ratio in own.items()),
            seconds=sum(row.seconds for row in self.rows if row.method == method),
        )

    @property
    def failures(self) -> tuple[BoardRow, ...]:
        """Rows that do not count."""
        return tuple(row for row in self.rows if row.outcome != "done")

    @property
    def records(self) -> tuple[BoardRow, ...]:
        """Rows that are shorter than what was known."""
        return tuple(
            row
            for row in self.rows
            if row.best_known is not None and row.ratio is not None and row.ratio < 1 - SAME
        )

    # -- tables ------------------------------------------------------------------------------

    def _summary(self) -> list[list[str]]:
        rows = [["rank", "method", "solved", "mean", "worst", "shortest", "planned in"]]
        n = len(self.instances)
        for one in self.standings:
            figures = ["-" if x is None else f"{x:.4f}" for x in (one.mean, one.worst)]
            last = [str(one.best), format_seconds(one.seconds)]
            rows.append([str(one.rank), one.method, f"{one.solved} of {n}", *figures, *last])
        return rows

    def _grid(self) -> list[list[str]]:
        by_place = {(row.instance, row.method): row for row in self.rows}
        rows = [["instance", "best known", "bound", *self.methods]]
        for name in self.instances:
            results = [by_place.get((name, method)) for method in self.methods]
            first = next((row for row in results if row is not None), None)
            if first is not None:
                best = "-" if first.best_known is None else format_seconds(first.best_known)
                cells = [_cell(row) for row in results]
                rows.append([name, best, format_seconds(first.lower_bound), *cells])
        return rows

    def _notes(self) -> list[str]:
        alike: dict[tuple[str, str], list[BoardRow]] = {}
        for row in self.failures:
            alike.setdefault((row.method, row.outcome), []).append(row)
        said = []
        for (method, outcome), rows in alike.items():
            where = counted(len(rows), "instance")
            why = shortened(rows[0].why, _LONGEST)
            said.append(f"{method}: {outcome} on {where}, the first {rows[0].instance}: {why}")
        said += [
            f"{row.method}: {format_seconds(row.makespan or 0.0)} on {row.instance} is shorter "
            f"than the best known by {1 - (row.ratio or 1):.2%}"
            for row in self.records
        ]
        if self.unfinished:
            said.append(f"interrupted: {counted(self.unfinished, 'row is', 'rows are')} missing")
        return said

    def __str__(self) -> str:
        lines = [*aligned(self._summary()), "", *aligned(self._grid()), "", _MEANING[self.space]]
        return in_lines([*lines, *self._notes()])

    def to_markdown(self) -> str:
        """The same as Markdown: standings, then a row per instance, then what failed."""
        lines = [
            _MEANING[self.space],
            "",
            *_markdown(self._summary()),
            "",
            *_markdown(self._grid()),
        ]
        notes = [f"* {markdown(note)}" for note in self._notes()]
        return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"

    def to_document(self) -> dict[str, Any]:
        """For JSON: standings and rows, makespans in seconds."""
        return {
            "space": self.space,
            "standings": [asdict(one) for one in self.standings],
            "rows": [{**asdict(row), "ratio": row.ratio} for row in self.rows],
            "unfinished": self.unfinished,
        }

    def to_csv(self) -> str:
        """A line per row, makespans in seconds."""
        names = [*BoardRow.__dataclass_fields__, "ratio"]
        return csv_text([names, *([getattr(row, name) for name in names] for row in self.rows)])

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes Markdown, CSV or JSON, as the name of the file ends.

        Raises
        ------
        InputError
            Another end, or a file that cannot be written.
        """
        check_suffix(path)
        name = os.fspath(path)
        if name.endswith(".md"):
            text = self.to_markdown()
        elif name.endswith(".csv"):
            text = self.to_csv()
        else:
            text = f"{json_text(self.to_document(), indent=1)}\n"
        write_bytes(path, text.encode())


#: Subjects of the figures, by the plans that count.
_MEANING = {
    WHOLE_OPS: "Makespan by the simulator, over the best known (or the bound, where nothing is "
    "known). Plans that place every op whole on one device count.",
    SPLIT_OPS: "Makespan by the simulator, over the best known (or the bound, where nothing is "
    "known). Plans may split and replicate ops.",
}


def _order(row: Standing) -> tuple[int, float]:
    return -row.solved, math.inf if row.mean is None else round(row.mean, 12)


def _cell(row: BoardRow | None) -> str:
    if row is None:
        return "-"
    if row.ratio is None or row.makespan is None:
        return row.outcome
    return f"{format_seconds(row.makespan)} ({row.ratio:.3f})"


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(map(markdown, row))} |" for row in rows]
    return [lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Refuses a file whose name does not say a format of a leaderboard."""
    if not os.fspath(path).endswith(SUFFIXES):
        raise InputError(f"{os.fspath(path)}: a leaderboard is written to {', '.join(SUFFIXES)}")


def leaderboard(
    methods: MethodLike | Iterable[MethodLike],
    instances: str | Iterable[str | Instance] = "*",
    *,
    folder: str | os.PathLike[str] | None = None,
    split: Literal["none", "auto"] = "none",
    seed: int = 0,
    time_limit: float | None = None,
    progress: BoardProgress | None = None,
) -> Leaderboard:
    """Plans every instance by every method, and ranks the methods.

    Every method is given the same problem: graph, cluster, times and memory. Its plan counts as the
    simulator judges it. Where a method finds nothing that fits, nothing else stands in for it, as
    it would in :func:`loadmaster.place`. Ctrl-C ends the run, and the rows so far are returned.

    Parameters
    ----------
    methods : str or (str, mapping of options), or several
        Names in :data:`loadmaster.strategies.METHODS`, or ``FILE.py:FUNCTION``: a function from a
        :class:`~loadmaster.judge.problem.Problem` to an assignment, as under
        :func:`loadmaster.strategy`. The file is executed.
    instances : str, or str and :class:`~loadmaster.instances.Instance`, several
        Names or globs (:func:`loadmaster.instances.names`); all if absent.
    folder : path, optional
        Where instances are of yours, as for :func:`loadmaster.instances.load`.
    split : "none" (default) or "auto"
        Whether only plans of whole ops count, as papers make them, or all. With "none", methods
        that take the option ``split`` are given it.
    seed : int
        For methods that draw.
    time_limit : float, optional
        Seconds per plan, for methods that take one.
    progress : callable, optional
        Called with the number of rows done, of all rows, and the last row.

    Raises
    ------
    InputError
        An unknown method, option or instance; a file that cannot be executed. What a method raises
        while it plans is its row's.

    Examples
    --------
    >>> import loadmaster as lm
    >>> board = lm.leaderboard(["heft", "random"], "planted/100x2-*")
    >>> [(one.rank, one.method, one.solved) for one in board.standings]
    [(1, 'heft', 3), (2, 'random', 3)]
    """
    checks.one_of("split", split, ("none", "auto"))
    limit = None if time_limit is None else checks.time_limit(time_limit)
    seed = checks.seed(seed)
    chosen = _methods(methods, split)
    loaded = _instances(instances, folder)
    space = WHOLE_OPS if split == "none" else SPLIT_OPS
    rows: list[BoardRow] = []
    total = len(chosen) * len(loaded)
    try:
        for one in loaded:
            problem = Problem.make(one.graph, one.cluster, one.costs, seed=seed)
            least = _bound(problem, one, space)
            for method, options in chosen.items():
                row = _row(one, problem, method, options, least, limit, space)
                rows.append(row)
                if progress is not None:
                    progress(len(rows), total, row)
    except KeyboardInterrupt:
        pass
    return Leaderboard(
        tuple(chosen),
        tuple(one.name for one in loaded),
        tuple(rows),
        space,
        unfinished=total - len(rows),
    )


def _methods(methods: MethodLike | Iterable[MethodLike], split: str) -> dict[str, dict[str, Any]]:
    """Options by the name of the method, checked."""
    chosen: dict[str, dict[str, Any]] = {}
    for each in _several(methods):
        text, options = each if isinstance(each, tuple) else (each, {})
        name = method_of(text)
        if name in chosen:
            raise InputError(f"method {name!r} is given twice")
        function = function_of(name, dict(options))
        wanted = {"split": split} if takes(function, "split") else {}
        chosen[name] = {**wanted, **options}
    if not chosen:
        raise InputError("no method to rank: give one or more")
    return chosen


def _several(methods: MethodLike | Iterable[MethodLike]) -> list[MethodLike]:
    """One method as several."""
    if isinstance(methods, str):
        return [methods]
    several: list[Any] = list(methods)
    is_one = isinstance(methods, tuple) and len(several) == 2 and isinstance(several[1], Mapping)
    return [(several[0], several[1])] if is_one else several


def _instances(
    wanted: str | Iterable[str | Instance], folder: str | os.PathLike[str] | None
) -> list[Instance]:
    """The instances, each once."""
    instances: dict[str, Instance] = {}
    for one in [wanted] if isinstance(wanted, str) else wanted:
        if isinstance(one, Instance):
            instances.setdefault(one.name, one)
            continue
        # What is not listed may be of the form that listed ones have.
        for name in known.names(one, folder) or [one]:
            if name not in instances:
                loaded = known.load(name, folder)
                instances.setdefault(loaded.name, loaded)
    if not instances:
        raise InputError(
            "no instance to plan: give names or globs, as `loadmaster instances` lists"
        )
    return [*instances.values()]


def _bound(problem: Problem, one: Instance, space: str) -> float:
    if space == SPLIT_OPS:
        return split_bound(problem).seconds
    return max(bound(problem).seconds, one.lower_bound or 0.0)


def _row(
    one: Instance,
    problem: Problem,
    method: str,
    options: Mapping[str, Any],
    least: float,
    limit: float | None,
    space: str,
) -> BoardRow:
    """The result of a method on an instance, whatever it raises."""
    best = one.best_known
    if space == SPLIT_OPS:
        best = min((b for b in (best, one.best_split) if b is not None), default=None)
    request = PlanRequest(Planner(method), options, time_limit=limit, greedy=True)
    began = time.perf_counter()
    makespan, outcome, why = None, "done", ""
    try:
        plan = plan_for(problem, request)
        makespan = plan.makespan
        if space == WHOLE_OPS and not plan.program.is_plain:
            outcome, why = "splits ops", "only plans of whole ops are ranked here"
    except InfeasibleError as error:
        outcome, why = "infeasible", str(error)
    except Exception as error:
        outcome, why = "failed", f"{type(error).__name__}: {error}"
    return BoardRow(
        one.name,
        method,
        outcome,  # type: ignore[arg-type]
        makespan,
        best,
        least,
        time.perf_counter() - began,
        why,
    )
