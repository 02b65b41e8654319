"""The program of a worker process: solves a model with Gurobi, through its own package.

    python -m loadmaster.milp.gurobi_child FOLDER STARTED

python-mip cannot do that: it calls Gurobi's C library, and the licence that comes with gurobipy
(2000 variables and rows) lets only gurobipy call the library. No other module imports gurobipy, and
no module imports this one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gurobipy as gp
from gurobipy import GRB

from loadmaster.milp.answer import answer
from loadmaster.milp.model import Model
from loadmaster.milp.process import left, serve

#: Gurobi's error for a model that its licence does not allow.
TOO_LARGE = 10010

WORDS = {
    GRB.OPTIMAL: "optimal",
    GRB.INFEASIBLE: "infeasible",
    GRB.INF_OR_UNBD: "unbounded",
    GRB.UNBOUNDED: "unbounded",
}


def work(task: tuple[Model, str, float], folder: Path, began: float) -> dict[str, Any]:
    """The answer to a model and a limit in seconds; a model that Gurobi refuses is a failure."""
    model, _, time_limit = task
    try:
        return run(model, time_limit, began)
    except gp.GurobiError as error:
        why = f"{error}"
        if error.errno == TOO_LARGE:
            why += f" (this one has {model.n_variables} variables and {model.n_rows} rows)"
        return {"failed": why}


def run(model: Model, time_limit: float, began: float) -> dict[str, Any]:
    """Builds and solves a model; status, objective, bound and values as plain data."""
    with gp.Env() as env, gp.Model(env=env) as target:
        target.Params.Threads = 1
        variables = _built(model, target)
        target.Params.TimeLimit = left(time_limit, began)
        target.optimize()
        word = WORDS.get(target.Status, "feasible" if target.SolCount else "no_solution")
        has_values = target.SolCount and word in ("optimal", "feasible")
        values = target.getAttr("X", variables) if has_values else None
        return answer(model, word, values, lambda: target.ObjBound)


def _built(model: Model, target: gp.Model) -> list[gp.Var]:
    """The variables, after all rows have been added."""
    kinds = [GRB.INTEGER if whole else GRB.CONTINUOUS for whole in model.integer.tolist()]
    columns = {"lb": model.lower, "ub": model.upper, "obj": model.objective}
    lists = {name: column.tolist() for name, column in columns.items()}
    variables = list(target.addVars(model.n_variables, **lists, vtype=kinds).values())
    entries = [variables[c] for c in model.column.tolist()]
    at, values = model.row_start.tolist(), model.value.tolist()
    bounds = zip(model.row_lower.tolist(), model.row_upper.tolist(), strict=True)
    for r, (low, high) in enumerate(bounds):
        row = gp.LinExpr(values[at[r] : at[r + 1]], entries[at[r] : at[r + 1]])
        if low == high:
            target.addLConstr(row, GRB.EQUAL, low)
            continue
        if high < GRB.INFINITY:
            target.addLConstr(row, GRB.LESS_EQUAL, high)
        if low > -GRB.INFINITY:
            target.addLConstr(row, GRB.GREATER_EQUAL, low)
    if model.start is not None and model.n_integers:
        target.setAttr("Start", variables, model.start.tolist())
    return variables


if __name__ == "__main__":
    serve(work)
