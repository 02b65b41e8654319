"""Solves a model in a process of its own, which can be killed and whose output is kept.

Solvers crash, hang, overshoot their limits by seconds, print past Python, and cannot share a
process with one another (design section 10). So none is ever imported here: every solve starts
``python -m loadmaster.milp.child`` afresh, with its output in a file from the first byte on, and
waits no longer than the limit and some grace. A fresh interpreter rather than
:mod:`multiprocessing`'s spawn, which would run a user's unguarded script again.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InputError, MissingExtraError, SolverError
from loadmaster.milp.model import Model

Solver = Literal["auto", "cbc", "highs"]
Status = Literal["optimal", "feasible", "infeasible", "unbounded", "no_solution"]

#: Called with the objective of the best point so far and the bound, each None while unknown.
Progress = Callable[[float | None, float | None], None]

#: Seconds past its limit after which a worker is taken for hung: limits overshoot by seconds.
GRACE = 10.0

#: Seconds between two looks at a running worker.
_POLL = 0.05

#: Lines of the log that an error shows.
_TAIL = 12

#: A line of a solver's table of the tree search, with its bound and its best solution.
_TREE_LINE = {
    "highs": re.compile(
        r"^ [A-Za-z ] +\d+ +\d+ +\d+ +[\d.]+% +(?P<bound>\S+) +(?P<best>\S+) +(?:[\d.]+%|inf|Large)"
    ),
    "cbc": re.compile(
        r"^\W*\d+ +\d+ +\d+ +(?P<best>-?[\d.]\S*|—|-)(?: +[A-Za-z]\D*?)? +(?P<bound>-?[\d.]\S*)"
        r" +[\d.]+% +[\d.]+$"
    ),
}


@dataclass(frozen=True)
class Solution:
    """What a solver found.

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
    log : str
        All that the solver printed.
    """

    status: Status
    objective: float | None
    bound: float | None
    values: NDArray[np.float64] | None
    solver: str
    seconds: float
    log: str


def solve(
    model: Model,
    *,
    solver: Solver = "auto",
    time_limit: float = 60.0,
    progress: Progress | None = None,
    log: Callable[[str], None] | None = None,
) -> Solution:
    """Solves a linear or mixed-integer program in a worker process, on one thread.

    Parameters
    ----------
    model : Model
        A model whose ``start`` is set is never answered by anything worse.
    solver : "auto" (default), "cbc" or "highs"
        "auto" is HiGHS where it is installed, else CBC, which python-mip brings along.
    time_limit : float
        Seconds, the building of the model included; 0: the start is the answer. The call returns
        or raises at most :data:`GRACE` seconds later.
    progress : callable, optional
        Called with objective and bound whenever the solver reports better ones.
    log : callable, optional
        Called with every line that the solver prints, as it comes.

    Raises
    ------
    InputError
        An unknown solver, a bad limit, a start of the model that is not feasible.
    MissingExtraError
        The solver is not installed; the extra that brings it is named.
    SolverError
        The solver crashed, hung past its limit, or returned nonsense; ``log`` has its output.
    KeyboardInterrupt
        Ctrl-C: the worker is gone when this arrives.

    Examples
    --------
    >>> from loadmaster.milp import Builder, solve
    >>> b = Builder()
    >>> x = b.variables(3, upper=1.0, objective=[-3.0, -2.0, -2.0], integer=True)
    >>> weights = b.rows([0, 0, 0], x, [3.0, 2.0, 2.0], upper=[4.0])
    >>> found = solve(b.model(), time_limit=10)
    >>> found.status, found.objective, found.values.tolist()
    ('optimal', -4.0, [0.0, 1.0, 1.0])
    """
    if solver not in get_args(Solver):
        raise InputError(f"solver is {solver!r}: wants one of {', '.join(get_args(Solver))}")
    if not isinstance(time_limit, Real) or not 0 <= time_limit < float("inf"):
        raise InputError(f"time_limit is {time_limit!r}: wants seconds >= 0")
    if model.start is not None and (off := model.violation(model.start)) > 1e-5:
        raise InputError(f"the start is not feasible: it breaks a bound or row by {off:.3g}")
    began = time.monotonic()
    name = _chosen(solver)
    if time_limit == 0 or model.n_variables == 0:
        found = _unsolved(model, name)
    else:
        found = _Worker(model, name, float(time_limit), progress, log).answer()
    return replace(_kept(model, found), seconds=time.monotonic() - began)


def _chosen(solver: Solver) -> str:
    """The solver's name, once it is known to be there (without importing it)."""
    if find_spec("mip") is None:
        raise MissingExtraError("mip", "highs", "solving linear programs")
    has_highs = find_spec("highspy") is not None or find_spec("highsbox") is not None
    if solver == "highs" and not has_highs:
        raise MissingExtraError("highspy", "highs", "the solver HiGHS")
    if solver == "auto":
        return "highs" if has_highs else "cbc"
    return solver


def _unsolved(model: Model, solver: str) -> Solution:
    """Of a model without variables, or without time."""
    if model.n_variables:
        return Solution("no_solution", None, None, None, solver, 0.0, "")
    empty = np.zeros(0)
    if model.violation(empty) > 0:
        return Solution("infeasible", None, None, None, solver, 0.0, "")
    return Solution("optimal", 0.0, 0.0, empty, solver, 0.0, "")


def _kept(model: Model, found: Solution) -> Solution:
    """The solution, or the model's start where that is better or the only one."""
    if model.start is None or found.status not in ("feasible", "no_solution"):
        return found
    objective = float(model.objective @ model.start)
    if found.objective is not None and found.objective <= objective:
        return found
    return replace(found, status="feasible", objective=objective, values=model.start.copy())


class _Worker:
    """One process, from its start to its answer."""

    def __init__(
        self,
        model: Model,
        solver: str,
        time_limit: float,
        progress: Progress | None,
        log: Callable[[str], None] | None,
    ) -> None:
        self.model = model
        self.solver = solver
        self.time_limit = time_limit
        self.progress = progress
        self.log = log
        self.seen: tuple[float | None, float | None] = (None, None)

    def answer(self) -> Solution:
        """Starts the worker, follows it, and reads what it leaves behind."""
        with tempfile.TemporaryDirectory(prefix="loadmaster-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            task = (self.model, self.solver, self.time_limit)
            (folder / "task.pickle").write_bytes(pickle.dumps(task))
            output = folder / "log.txt"
            with output.open("wb") as file:
                code = self._run(folder, file, output)
            text = output.read_text(encoding="utf-8", errors="replace")
            written = folder / "answer.pickle"
            if code != 0 or not written.exists():
                raise self._error(f"its process ended with {_ending(code)}", text)
            return self._solution(pickle.loads(written.read_bytes()), text)

    def _run(self, folder: Path, file: IO[bytes], output: Path) -> int:
        """The exit code; the process is gone when this returns or raises."""
        command = [sys.executable, "-m", "loadmaster.milp.child", str(folder)]
        paths = os.pathsep.join(path for path in sys.path if path)
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8"},
            # Ctrl-C is for the parent, which then kills the worker.
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + self.time_limit + GRACE
            lines = _lines(output)
            while True:
                try:
                    code = process.wait(_POLL)
                except subprocess.TimeoutExpired:
                    self._follow(lines)
                else:
                    self._follow(lines)
                    return code
                if time.monotonic() > deadline:
                    process.kill()
                    process.wait()
                    raise self._error(
                        f"it was still running {GRACE:g} s past its limit of "
                        f"{self.time_limit:g} s and was killed",
                        output.read_text(encoding="utf-8", errors="replace"),
                    )
        finally:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def _follow(self, lines: Iterator[str | None]) -> None:
        """Passes on the lines that have come since the last look."""
        for line in iter(lambda: next(lines), None):
            if self.log is not None:
                self.log(line)
            match = _TREE_LINE[self.solver].match(line)
            if match is None or self.progress is None:
                continue
            seen = (_number(match["best"]), _number(match["bound"]))
            if seen != self.seen:
                self.seen = seen
                self.progress(*seen)

    def _solution(self, answer: dict[str, Any], text: str) -> Solution:
        if "missing" in answer:
            raise MissingExtraError("mip", "highs", f"solving ({answer['missing']})")
        if "failed" in answer:
            raise self._error(f"it reports {answer['failed']}", text)
        values = answer["values"]
        if values is not None and (off := self.model.violation(values)) > self._tolerance():
            raise self._error(f"its solution breaks a bound or row by {off:.3g}", text)
        return Solution(**answer, solver=self.solver, seconds=0.0, log=text)

    def _tolerance(self) -> float:
        """Rows are kept to 1e-6, and by as much per unit of the largest coefficient, once integers
        are rounded.
        """
        return 1e-4 * max(1.0, float(np.abs(self.model.value).max(initial=0.0)))

    def _error(self, what: str, text: str) -> SolverError:
        tail = "\n".join(text.rstrip().splitlines()[-_TAIL:])
        said = f"; the last it said:\n{tail}" if tail else "; it said nothing"
        return SolverError(f"the solver {self.solver} failed: {what}{said}", text)


def _lines(path: Path) -> Iterator[str | None]:
    """Whole lines of a growing file as they come; None where there is none yet."""
    with path.open("rb") as file:
        rest = b""
        while True:
            chunk = file.read()
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (line.decode("utf-8", errors="replace") for line in whole)
            yield None


def _number(word: str) -> float | None:
    """A number as solvers print it; None: infinite, or none."""
    try:
        number = float(word)
    except ValueError:
        return None
    return number if abs(number) < 1e49 else None


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code} and no answer"
