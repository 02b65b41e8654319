"""A mixed-integer formulation as a solver of instances, for the methods that are one."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from loadmaster.base import checks
from loadmaster.base.errors import SolverError
from loadmaster.milp import solve
from loadmaster.milp.formulation import Formulate
from loadmaster.milp.instance import MilpInstance
from loadmaster.milp.timing import Timed
from loadmaster.milp.worker import START_TOLERANCE, Solver, Watch
from loadmaster.strategies.exact.solving import LEAST, Answer, Solve

#: Solvers of mixed-integer programs, as a person knows them.
SOLVERS: dict[str, str] = {"cbc": "CBC", "highs": "HiGHS", "gurobi": "Gurobi"}


def by_program(name: str, formulate: Formulate, solver: Solver) -> Solve:
    """Formulates an instance and solves the program by CBC, HiGHS or Gurobi."""
    checks.one_of("solver", solver, SOLVERS)

    def answer(instance: MilpInstance, start: Timed, seconds: float, tell: Watch) -> Answer:
        began = time.perf_counter()
        formulation = formulate(instance, start)
        model, scale = formulation.model, formulation.scale
        if model.start is not None and model.violation(model.start) > START_TOLERANCE:
            # Transfers are not served as in any settled schedule; the makespan still bounds.
            model = replace(model, start=None)

        least = float(instance.lower)

        def told(best: float | None, bound: float | None, cpu: float) -> None:
            nonlocal least
            if bound is not None:
                # Solvers keep rows to 1e-6, and so do their bounds; where all times are whole, so
                # is the makespan.
                ticks = bound / scale * (1 - 1e-6)
                ticks = math.ceil(ticks) if instance.exact else ticks
                least = max(min(ticks, start.makespan), least)
            tell(None if best is None else best / scale, least, cpu)

        by = f"{name}, {SOLVERS[solver]}"
        left = max(seconds - (time.perf_counter() - began), LEAST)
        try:
            solved = solve(model, solver=solver, time_limit=left, progress=told)
        except SolverError as error:
            return Answer(None, None, least, by, str(error), error.log)
        except KeyboardInterrupt:
            return Answer(None, None, least, by, f"{SOLVERS[solver]} was interrupted")
        told(solved.objective, solved.bound, solved.cpu)
        if solved.values is None:
            return Answer(None, None, least, by, log=solved.log)
        return Answer(*formulation.read(solved.values), least, by, log=solved.log)

    return answer
