"""The program of a worker process: solves a model with python-mip.

    python -m loadmaster.milp.child FOLDER STARTED

The solver's C library prints to the stdout of this process, which is a file of the parent's. No
other module imports python-mip, and no module imports this one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadmaster.milp.answer import answer
from loadmaster.milp.model import Model
from loadmaster.milp.process import left, serve

#: Share of the time left that a solver is given. When CBC's time is up, it takes more time to turn
#: its solution into one of the model before presolve.
SHARE = 0.9

#: python-mip's names of solvers.
NAMES = {"cbc": "CBC", "highs": "HIGHS"}


def work(task: tuple[Model, str, float], folder: Path, began: float) -> dict[str, Any]:
    """The answer to a model, a solver's name and a limit in seconds."""
    try:
        return run(*task, began)
    except ImportError as error:
        return {"missing": str(error)}


def run(model: Model, solver: str, time_limit: float, began: float) -> dict[str, Any]:
    """Builds and solves a model; status, objective, bound and values as plain data.

    Rows are made from coefficient lists: python-mip 2.0.0 takes ``x + x`` for ``x``.
    """
    import mip

    target = mip.Model(sense=mip.MINIMIZE, solver_name=NAMES[solver])
    target.threads = 1
    columns = (model.lower, model.upper, model.objective, model.integer)
    for lower, upper, objective, whole in zip(*(c.tolist() for c in columns), strict=True):
        kind = mip.INTEGER if whole else mip.CONTINUOUS
        target.add_var(lb=lower, ub=upper, obj=objective, var_type=kind)
    variables = list(target.vars)
    bounds = model.row_start.tolist()
    values = model.value.tolist()
    entries = [variables[c] for c in model.column.tolist()]
    for r, (low, high) in enumerate(
        zip(model.row_lower.tolist(), model.row_upper.tolist(), strict=True)
    ):
        at, coefficients = entries[bounds[r] : bounds[r + 1]], values[bounds[r] : bounds[r + 1]]
        if low == high:
            target.add_constr(mip.LinExpr(at, coefficients, -low, mip.EQUAL))
            continue
        if high < mip.INF:
            target.add_constr(mip.LinExpr(at, coefficients, -high, mip.LESS_OR_EQUAL))
        if low > -mip.INF:
            target.add_constr(mip.LinExpr(at, coefficients, -low, mip.GREATER_OR_EQUAL))
    if model.start is not None and model.n_integers:
        target.start = list(zip(variables, model.start.tolist(), strict=True))
    if not model.n_integers:
        # CBC's default here, sprint, takes several times as long on the programs of m-SCT.
        target.lp_method = mip.LP_Method.DUAL
    status = target.optimize(max_seconds=SHARE * left(time_limit, began))
    return _answer(mip.OptimizationStatus, target, status, model)


def _answer(statuses: Any, target: Any, status: Any, model: Model) -> dict[str, Any]:
    words = {
        statuses.OPTIMAL: "optimal",
        statuses.FEASIBLE: "feasible",
        statuses.INFEASIBLE: "infeasible",
        statuses.INT_INFEASIBLE: "infeasible",
        statuses.UNBOUNDED: "unbounded",
        statuses.NO_SOLUTION_FOUND: "no_solution",
        # A linear program that was cut short has a basis, but no point known to be feasible.
        statuses.TRUNCATED: "no_solution",
    }
    word = words.get(status)
    if word is None:
        return {"failed": str(status)}
    has_values = word in ("optimal", "feasible")
    values = [v.x for v in target.vars] if has_values else None
    return answer(model, word, values, lambda: target.objective_bound)


if __name__ == "__main__":
    serve(work)
