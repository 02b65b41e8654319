"""Solves a model in a process of its own (:mod:`~loadmaster.milp.process`)."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.base.errors import InputError, MissingExtraError, SolverError
from loadmaster.milp import process
from loadmaster.milp.model import Model

Solver = Literal["auto", "cbc", "highs", "gurobi"]
Status = Literal["optimal", "feasible", "infeasible", "unbounded", "no_solution"]

#: Called with the objective of the best point so far and the bound, each None while unknown, and
#: the CPU seconds that the solver had taken by then.
Watch = Callable[[float | None, float | None, float], None]

#: Amount by which a start may break a bound or row.
START_TOLERANCE = 1e-5

#: A line of a solver's table of the tree search, with its bound and its best solution.
_TREE_LINE = {
    "highs": re.compile(
        r"^ [A-Za-z ] +\d+ +\d+ +\d+ +[\d.]+% +(?P<bound>\S+) +(?P<best>\S+) +(?:[\d.]+%|inf|Large)"
    ),
    "cbc": re.compile(
        r"^\W*\d+ +\d+ +\d+ +(?P<best>-?[\d.]\S*|—|-)(?: +[A-Za-z]\D*?)? +(?P<bound>-?[\d.]\S*)"
        r" +[\d.]+% +[\d.]+$"
    ),
    "gurobi": re.compile(
        r"^[H* ] *\d+ +\d+ .*? (?P<best>-?[\d.]\S*|-) +(?P<bound>-?[\d.]\S*) +(?:[\d.]+%|-) .*s$"
    ),
}


@dataclass(frozen=True)
class Solution:
    """The answer of a solver.

    Attributes
    ----------
    status : str
        "optimal"; "feasible" (the time was up); "infeasible"; "unbounded" (or infeasible, where a
        solver does not tell the two apart); "no_solution" (the time was up before one was found).
    objective : float or None
        Of ``values``.
    bound : float or None
        No point is below it; None: the solver gave none.
    values : float64 [n_variables] or None
        Integers are whole.
    solver : str
        Which one it was.
    seconds : float
        Wall time, the worker's start and the building of the model included.
    cpu : float
        CPU seconds of the worker.
    log : str
        All that the solver printed.
    """

    status: Status
    objective: float | None
    bound: float | None
    values: NDArray[np.float64] | None
    solver: str
    seconds: float
    cpu: float
    log: str


def solve(
    model: Model,
    *,
    solver: Solver = "auto",
    time_limit: float = 60.0,
    cpu_limit: float = math.inf,
    progress: Watch | None = None,
    log: Callable[[str], None] | None = None,
) -> Solution:
    """Solves a linear or mixed-integer program in a worker process, on one thread.

    Parameters
    ----------
    model : Model
        If its ``start`` is set, the answer is no worse than the start.
    solver : "auto" (default), "cbc", "highs" or "gurobi"
        "auto" is HiGHS where it is installed, else CBC, which python-mip brings along. Gurobi, its
        package and a licence are the user's own, and it is never chosen unasked.
    time_limit : float
        Seconds, the building of the model included; 0: the start is the answer. The call returns
        or raises at most :data:`process.GRACE` seconds later.
    cpu_limit : float
        CPU seconds after which the worker is stopped, which is an error. For measurements, which
        use what ``progress`` was told.
    progress : callable, optional
        Called with objective, bound and CPU seconds whenever the solver reports better ones, and
        with those of the solution at last.
    log : callable, optional
        Called with every line that the solver prints, as it comes.

    Raises
    ------
    InputError
        An unknown solver, a bad limit, a start of the model that is not feasible.
    MissingExtraError
        The solver is not installed; the extra that brings it is named.
    SolverError
        The solver crashed, hung past its limit, was stopped, or returned nonsense; ``log`` has its
        output.
    KeyboardInterrupt
        Ctrl-C: the worker is gone when this arrives.

    Examples
    --------
    >>> from loadmaster.milp import Builder, solve
    >>> b = Builder()
    >>> x = b.variables(3, upper=1.0, objective=[-3.0, -2.0, -2.0], integer=True)
    >>> weights = b.rows([0, 0, 0], x, [3.0, 2.0, 2.0], upper=[4.0])
    >>> solution = solve(b.model(), time_limit=10)
    >>> solution.status, solution.objective, solution.values.tolist()
    ('optimal', -4.0, [0.0, 1.0, 1.0])
    """
    checks.one_of("solver", solver, get_args(Solver))
    seconds = checks.time_limit(time_limit)
    if model.start is not None and (off := model.violation(model.start)) > START_TOLERANCE:
        raise InputError(f"the start is not feasible: it breaks a bound or row by {off:.3g}")
    began = time.monotonic()
    name = _chosen(solver)
    if seconds == 0 or model.n_variables == 0:
        solution = _unsolved(model, name)
    else:
        solution = _solved(model, name, seconds, cpu_limit, progress, log)
    return replace(_kept(model, solution), seconds=time.monotonic() - began)


def optimum(model: Model, time_limit: float) -> tuple[NDArray[np.float64] | None, str]:
    """The optimum of a linear program; where it is not found in time, or the solver fails, why."""
    try:
        solution = solve(model, time_limit=time_limit)
    except SolverError as error:
        return None, str(error).splitlines()[0]
    if solution.status != "optimal":
        return None, f"the linear program was not solved within {time_limit:g} s"
    return solution.values, ""


def _chosen(solver: Solver) -> str:
    """The solver's name, once it is known to be there (without importing it)."""
    if find_spec("mip") is None:
        raise MissingExtraError("mip", "highs", "solving linear programs")
    has_highs = _has_highs()
    if solver == "highs" and not has_highs:
        raise MissingExtraError("highspy<1.16", "highs", "the solver HiGHS")
    if solver == "gurobi" and find_spec("gurobipy") is None:
        raise InputError("the solver Gurobi needs its own package: python -m pip install gurobipy")
    if solver == "auto":
        return "highs" if has_highs else "cbc"
    return solver


def _has_highs() -> bool:
    """True if python-mip can call HiGHS: by highsbox, or by highspy up to 1.15, which exports the C
    interface.
    """
    if find_spec("highsbox") is not None:
        return True
    try:
        major, minor = version("highspy").split(".")[:2]
    except PackageNotFoundError:
        return False
    return find_spec("highspy") is not None and (int(major), int(minor)) < (1, 16)


def _unsolved(model: Model, solver: str) -> Solution:
    """The solution of a model without variables, or without time."""
    if model.n_variables:
        return Solution("no_solution", None, None, None, solver, 0.0, 0.0, "")
    empty = np.zeros(0)
    if model.violation(empty) > 0:
        return Solution("infeasible", None, None, None, solver, 0.0, 0.0, "")
    return Solution("optimal", 0.0, 0.0, empty, solver, 0.0, 0.0, "")


def _kept(model: Model, solution: Solution) -> Solution:
    """The solution, or the model's start where that is better or the only one."""
    if model.start is None or solution.status not in ("feasible", "no_solution"):
        return solution
    objective = float(model.objective @ model.start)
    if solution.objective is not None and solution.objective <= objective:
        return solution
    return replace(solution, status="feasible", objective=objective, values=model.start.copy())


def _solved(
    model: Model,
    solver: str,
    time_limit: float,
    cpu_limit: float,
    progress: Watch | None,
    log: Callable[[str], None] | None,
) -> Solution:
    seen: tuple[float | None, float | None] = (None, None)

    def follow(line: str, cpu: float) -> None:
        nonlocal seen
        if log is not None:
            log(line)
        match = _TREE_LINE[solver].match(line)
        if match is None or progress is None:
            return
        now = (_number(match["best"]), _number(match["bound"]))
        if now != seen:
            seen = now
            progress(*seen, cpu)

    child = "gurobi_child" if solver == "gurobi" else "child"
    task = (model, solver, time_limit)
    ended = process.run(f"loadmaster.milp.{child}", task, time_limit, follow, cpu_limit)
    failure, answer = ended.failure, ended.answer
    if failure is None and "missing" in answer:
        raise MissingExtraError("mip", "highs", f"solving ({answer['missing']})")
    if failure is None and "failed" in answer:
        failure = f"it reports {answer['failed']}"
    if failure is None:
        values = answer["values"]
        off = 0.0 if values is None else model.violation(values)
        if off <= _tolerance(model):
            solution = Solution(**answer, solver=solver, seconds=0.0, cpu=ended.cpu, log=ended.log)
            # Solvers print only now and then: no line may show the last solution.
            if (
                progress is not None
                and solution.objective is not None
                and solution.objective != seen[0]
            ):
                progress(solution.objective, solution.bound, ended.cpu)
            return solution
        failure = f"its solution breaks a bound or row by {off:.3g}"
    raise SolverError(f"the solver {solver} failed: {failure}", ended.log)


def _tolerance(model: Model) -> float:
    """Rows are kept to 1e-6, and by as much per unit of the largest coefficient, once integers are
    rounded.
    """
    return 1e-4 * max(1.0, float(np.abs(model.value).max(initial=0.0)))


def _number(word: str) -> float | None:
    """A number as solvers print it; None: infinite, or none."""
    try:
        number = float(word)
    except ValueError:
        return None
    return number if abs(number) < 1e49 else None
