"""Solvers in worker processes: right answers, and no fault of theirs that reaches the caller."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from folders import SUPPORT

from loadmaster.base.errors import InputError, MissingExtraError, SolverError
from loadmaster.milp import Builder, Model, process, solve, worker

pytest.importorskip("mip")


def of_its_own(solver: str, package: str):
    return pytest.param(solver, marks=pytest.mark.needs(package))


SOLVERS = ["cbc", of_its_own("highs", "highspy"), of_its_own("gurobi", "gurobipy")]


def diet() -> Model:
    """min 2a + 3b, a + b >= 4, a + 3b >= 6: at (3, 1), 9."""
    b = Builder()
    x = b.variables(2, objective=[2.0, 3.0])
    b.rows([0, 0, 1, 1], [*x, *x], [1.0, 1.0, 1.0, 3.0], lower=[4.0, 6.0])
    return b.model()


def knapsack(start: bool = False) -> Model:
    """Values 10, 13, 7, 8 and weights 3, 4, 2, 3 in 7: 10 + 13 = 23."""
    b = Builder()
    x = b.variables(4, upper=1.0, objective=[-10.0, -13.0, -7.0, -8.0], integer=True)
    b.rows(np.zeros(4), x, [3.0, 4.0, 2.0, 3.0], upper=[7.0])
    return b.model(np.array([1.0, 0.0, 1.0, 0.0]) if start else None)


def hard(n: int = 120, m: int = 60) -> Model:
    """A packing of many weights that no solver proves within seconds; the empty one is feasible."""
    random = np.random.default_rng(1)
    weights = random.integers(1, 60, (m, n)).astype(np.float64)
    b = Builder()
    x = b.variables(
        n, upper=1.0, objective=-random.integers(1, 60, n).astype(np.float64), integer=True
    )
    b.rows(
        np.repeat(np.arange(m), n), np.tile(x, m), weights.ravel(), upper=weights.sum(axis=1) // 3
    )
    return b.model(np.zeros(n))


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_linear_program_with_a_known_optimum(solver):
    found = solve(diet(), solver=solver, time_limit=20)
    assert found.status == "optimal"
    assert found.objective == pytest.approx(9.0)
    assert found.bound == pytest.approx(9.0)
    assert found.values.tolist() == pytest.approx([3.0, 1.0])
    assert found.solver == solver
    assert found.log.strip(), "what the library prints is kept"


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_program_with_integers_with_and_without_a_start(solver, start):
    found = solve(knapsack(start), solver=solver, time_limit=20)
    assert found.status == "optimal"
    assert found.objective == pytest.approx(-23.0)
    assert found.bound == pytest.approx(-23.0)
    assert found.values.tolist() == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("solver", SOLVERS)
def test_infeasible_and_unbounded_are_statuses(solver):
    b = Builder()
    x = b.variables(1, objective=1.0)
    b.rows([0, 1], [*x, *x], 1.0, lower=[2.0, -np.inf], upper=[np.inf, 1.0])
    found = solve(b.model(), solver=solver, time_limit=20)
    assert (found.status, found.objective, found.values) == ("infeasible", None, None)

    b = Builder()
    b.variables(1, objective=-1.0)
    assert solve(b.model(), solver=solver, time_limit=20).status == "unbounded"

    b = Builder()
    whole = b.variables(1, lower=0.25, upper=0.75, objective=1.0, integer=True)
    b.rows([0], whole, 1.0, upper=[9.0])
    assert solve(b.model(), solver=solver, time_limit=20).status == "infeasible"


@pytest.mark.parametrize("solver", SOLVERS)
def test_coefficients_given_twice_add_up_and_rows_may_have_two_sides(solver):
    # x + x - y in [2, 6] with y = 2: x from 2 to 4.
    for sign, wanted in ((1.0, 2.0), (-1.0, 4.0)):
        b = Builder()
        x, y = b.variables(2, lower=[0.0, 2.0], upper=[9.0, 2.0], objective=[sign, 0.0])
        b.rows([0, 0, 0], [x, x, y], [1.0, 1.0, -1.0], lower=[2.0], upper=[6.0])
        model = b.model()
        assert model.value.tolist() == [2.0, -1.0]
        found = solve(model, solver=solver, time_limit=20)
        assert found.values.tolist() == pytest.approx([wanted, 2.0])


@pytest.mark.parametrize("solver", SOLVERS)
def test_drawn_programs_agree_with_all_their_points(solver):
    random = np.random.default_rng(7)
    points = np.array(np.meshgrid(*[[0, 1]] * 6)).reshape(6, -1).T.astype(np.float64)
    for _ in range(4):
        a = random.integers(-5, 6, (4, 6)).astype(np.float64)
        low = -random.integers(0, 4, 4).astype(np.float64)
        cost = random.integers(-9, 10, 6).astype(np.float64)
        b = Builder()
        x = b.variables(6, upper=1.0, objective=cost, integer=True)
        b.rows(np.repeat(np.arange(4), 6), np.tile(x, 4), a.ravel(), lower=low)
        feasible = points[((points @ a.T) >= low).all(axis=1)]
        found = solve(b.model(), solver=solver, time_limit=20)
        assert found.objective == pytest.approx((feasible @ cost).min())


@pytest.mark.parametrize("solver", SOLVERS)
def test_when_the_time_is_up_the_best_so_far_comes_back(solver):
    seen, lines = [], []
    found = solve(
        hard(),
        solver=solver,
        time_limit=2,
        progress=lambda *now: seen.append(now),
        log=lines.append,
    )
    assert found.status == "feasible"
    assert found.objective < 0
    assert found.bound <= found.objective
    assert found.seconds < 2 + process.GRACE
    assert hard().violation(found.values) <= 1e-6
    assert "\n".join(lines).strip() in found.log
    bests = [best for best, _, _ in seen if best is not None]
    assert bests, found.log
    assert bests[-1] == pytest.approx(found.objective, rel=1e-3)
    assert all(bound is None or bound <= found.objective + 1e-6 for _, bound, _ in seen)
    clocks = [cpu for *_, cpu in seen]
    assert clocks == sorted(clocks)
    assert 0 < clocks[0] <= clocks[-1] <= found.cpu


def test_a_worker_is_stopped_at_its_limit_of_cpu_time():
    told = []
    with pytest.raises(SolverError, match=r"stopped at its limit of 3 s of CPU"):
        solve(hard(), solver="cbc", cpu_limit=3, progress=lambda *now: told.append(now))
    best, bound, cpu = told[-1]
    assert bound <= best < 0
    assert cpu < 5


def test_entries_that_cancel_leave_nothing():
    b = Builder()
    x, y = b.variables(2)
    b.rows([0, 0, 0, 0], [x, x, x, y], [0.1, 0.2, -0.3, 1.0], lower=[1.0])
    model = b.model()
    assert (model.column.tolist(), model.value.tolist()) == ([y], [1.0])


def test_no_time_gives_the_start():
    found = solve(knapsack(start=True), time_limit=0)
    assert (found.status, found.objective) == ("feasible", -17.0)
    assert solve(knapsack(), time_limit=0).status == "no_solution"


def test_a_model_of_nothing():
    assert solve(Builder().model()).objective == 0.0


def children(pid: int) -> list[int]:
    """Ids of the processes that a process has started and not yet collected."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


linux = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="looks into /proc")


def struck(by: signal.Signals):
    """Sends a signal to the workers started from now on as soon as they print."""
    others = children(os.getpid())

    def strike(_line: str) -> None:
        for pid in children(os.getpid()):
            if pid not in others:
                os.kill(pid, by)

    return strike


@linux
def test_a_worker_that_is_killed_is_an_error_with_the_log():
    with pytest.raises(SolverError, match="signal 9") as caught:
        solve(hard(), solver="cbc", time_limit=30, log=struck(signal.SIGKILL))
    assert caught.value.log.strip()
    assert "the last it said" in str(caught.value)


@linux
def test_a_worker_that_hangs_is_killed(monkeypatch):
    monkeypatch.setattr(process, "GRACE", 0.5)
    began, others = time.monotonic(), children(os.getpid())
    with pytest.raises(SolverError, match="was killed"):
        solve(hard(), solver="cbc", time_limit=5, log=struck(signal.SIGSTOP))
    assert time.monotonic() - began < 9
    assert children(os.getpid()) == others


def test_a_worker_that_cannot_start_says_why(monkeypatch, tmp_path):
    (tmp_path / "mip.py").write_text(
        "print('from the library', flush=True)\nimport os\nos._exit(3)"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SolverError, match="exit code 3") as caught:
        solve(diet(), time_limit=5)
    assert "from the library" in caught.value.log


def test_gurobi_is_never_picked_unasked(monkeypatch, tmp_path):
    # A package that ends every process that imports it.
    (tmp_path / "gurobipy.py").write_text("import os\nos._exit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    assert solve(diet(), time_limit=20).solver in ("cbc", "highs")
    with pytest.raises(SolverError, match="gurobi failed: its process ended with exit code 3"):
        solve(diet(), solver="gurobi", time_limit=20)


def test_what_gurobis_licence_does_not_allow_is_told():
    pytest.importorskip("gurobipy")
    b = Builder()
    b.variables(2100, upper=1.0, objective=-1.0, integer=True)
    said = ""
    try:
        solve(b.model(), solver="gurobi", time_limit=20)
    except SolverError as error:
        said = str(error)
    assert not said or "2100 variables and 0 rows" in said, "a licence of the user's own allows it"


@pytest.mark.parametrize(
    ("number", "picked"), [("1.15.1", "highs"), ("1.16.0", "cbc"), ("2.0", "cbc")]
)
def test_a_highspy_that_cannot_be_called_is_not_picked(monkeypatch, number, picked):
    known = importlib.util.find_spec

    def found(name):
        return None if name == "highsbox" else known("json" if name == "highspy" else name)

    monkeypatch.setattr(worker, "find_spec", found)
    monkeypatch.setattr(worker, "version", lambda name: number)
    assert worker._chosen("auto") == picked
    if picked == "cbc":
        with pytest.raises(MissingExtraError, match="highs"):
            worker._chosen("highs")


def test_a_missing_package_names_the_extra(monkeypatch):
    known = importlib.util.find_spec
    hidden = ("highspy", "highsbox")
    monkeypatch.setattr(worker, "find_spec", lambda n: None if n in hidden else known(n))
    with pytest.raises(MissingExtraError, match=r"loadmaster\[highs\]"):
        solve(diet(), solver="highs")
    assert solve(diet(), time_limit=20).solver == "cbc"


#: Lines are written whole: a signal may come in the middle of a print.
CALL = """
import os, sys
sys.path[:0] = {folders!r}
from test_milp import hard
from loadmaster.milp import solve
try:
    solve(hard(), solver="cbc", time_limit=60, log=lambda line: os.write(1, b"line\\n"))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@linux
def test_ctrl_c_ends_the_worker_and_its_files_too(tmp_path):
    code = CALL.format(folders=[os.path.dirname(__file__), str(SUPPORT)])
    caller = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert caller.stdout.readline() == "line\n"
    (child,) = children(caller.pid)
    caller.send_signal(signal.SIGINT)
    out, err = caller.communicate(timeout=20)
    assert out.splitlines()[-1] == "interrupted"
    assert err == ""
    assert not os.path.exists(f"/proc/{child}")
    assert not list(tmp_path.iterdir())


@linux
def test_a_caller_that_is_killed_takes_its_worker_and_its_files_along(tmp_path):
    code = CALL.format(folders=[os.path.dirname(__file__), str(SUPPORT)])
    caller = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert caller.stdout.readline() == "line\n"
    (child,) = children(caller.pid)
    assert list(tmp_path.glob("loadmaster-*"))
    caller.kill()
    caller.communicate()

    def ended() -> bool:
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        return state == "Z"  # an orphan that nobody has collected yet

    deadline = time.monotonic() + 5
    while not ended() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ended()
    assert not list(tmp_path.glob("loadmaster-*"))


def test_a_script_without_a_guard_may_solve(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from loadmaster.milp import Builder, solve\n"
        "b = Builder()\nb.variables(1, lower=2.0, objective=1.0)\n"
        "print(solve(b.model(), time_limit=20).objective)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("2.0\n", "")


def test_solving_imports_no_solver_into_the_caller():
    code = (
        "import sys\nfrom loadmaster.milp import Builder, solve\n"
        "b = Builder()\nb.variables(1, lower=2.0, objective=1.0)\n"
        "solve(b.model(), time_limit=20)\n"
        "print([m for m in ('mip', 'highspy', 'cffi') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def one_row(columns: int = 1, row: int = 0, column: int = 0, **bounds: object) -> Model:
    b = Builder()
    b.variables(columns)
    b.rows([row], [column], 1.0, **bounds)
    return b.model()


def of(**columns: object) -> Model:
    b = Builder()
    b.variables(2, **columns)
    return b.model()


def infeasible_start() -> None:
    b = Builder()
    b.rows([0, 0], b.variables(2, upper=9.0, integer=True), 1.0, upper=[3.0])
    solve(b.model(np.array([4.0, 4.0])))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: solve(diet(), solver="glpk"), "solver is 'glpk'"),
        (lambda: solve(diet(), time_limit=-1), "time_limit is -1"),
        (lambda: of(lower=[0.0, 1.0], upper=[1.0, 0.0]), r"variable 1 has bounds 1\.0 to 0\.0"),
        (lambda: of(objective=[0.0, np.inf]), r"objective\[1\] is inf"),
        (lambda: of(upper=[1.0, 2.0, 3.0]), "3 numbers for 2"),
        (lambda: one_row(lower=[np.nan]), "row 0 has bounds nan"),
        (lambda: one_row(column=1), "there are 1 variables"),
        (lambda: one_row(row=1, upper=[1.0]), "the block has 1 row"),
        (infeasible_start, "breaks a bound or row by 5"),
        (lambda: Builder().model(np.zeros(1)), "start has length 1"),
    ],
)
def test_bad_models_and_arguments_are_named(call, said):
    with pytest.raises(InputError, match=said):
        call()
