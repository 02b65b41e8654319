"""What runs inside a worker process: solves a model with Gurobi, through its own package.

    python -m loadmaster.milp.gurobi_child FOLDER STARTED

python-mip calls Gurobi's C library, which the licence that comes with gurobipy (2000 variables and
rows) lets no one but gurobipy call. No other module imports gurobipy, and nothing imports this one.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gurobipy as gp
import numpy as np
from gurobipy import GRB

from loadmaster.milp.model import Model
from loadmaster.milp.process import serve

#: Least seconds the solver is given when building the model has used up the limit.
LEAST = 0.05

#: Gurobi's error for a model that its licence does not allow.
TOO_LARGE = 10010

WORDS = {
    GRB.OPTIMAL: "optimal",
    GRB.INFEASIBLE: "infeasible",
    GRB.INF_OR_UNBD: "unbounded",
    GRB.UNBOUNDED: "unbounded",
}


def work(task: tuple[Model, str, float], folder: Path, began: float) -> dict[str, Any]:
    """The answer to a model and a limit in seconds; what Gurobi refuses is a failure."""
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
        target.Params.TimeLimit = max(time_limit - (time.monotonic() - began), LEAST)
        target.optimize()
        found = target.SolCount > 0
        word = WORDS.get(target.Status, "feasible" if found else "no_solution")
        answer: dict[str, Any] = {"status": word, "objective": None, "bound": None, "values": None}
        if found and word in ("optimal", "feasible"):
            x = np.array(target.getAttr("X", variables), dtype=np.float64)
            x[model.integer] = np.rint(x[model.integer])
            answer["values"] = x
            answer["objective"] = float(model.objective @ x)
        if word == "optimal" and not model.n_integers:
            answer["bound"] = answer["objective"]
        elif word in ("optimal", "feasible", "no_solution") and model.n_integers:
            answer["bound"] = (
                float(target.ObjBound) if abs(target.ObjBound) < GRB.INFINITY else None
            )
        return answer


def _built(model: Model, target: gp.Model) -> list[gp.Var]:
    """The variables, once all rows are there."""
    kinds = [GRB.INTEGER if whole else GRB.CONTINUOUS for whole in model.integer.tolist()]
    columns = {"lb": model.lower, "ub": model.upper, "obj": model.objective}
    given = {name: column.tolist() for name, column in columns.items()}
    variables = list(target.addVars(model.n_variables, **given, vtype=kinds).values())
    entries = [variables[c] for c in model.column.tolist()]
    at, values = model.row_start.tolist(), model.value.tolist()
    bounds = zip(model.row_lower.tolist(), model.row_upper.tolist(), strict=True)
    for r, (low, high) in enumerate(bounds):
        left = gp.LinExpr(values[at[r] : at[r + 1]], entries[at[r] : at[r + 1]])
        if low == high:
            target.addLConstr(left, GRB.EQUAL, low)
            continue
        if high < GRB.INFINITY:
            target.addLConstr(left, GRB.LESS_EQUAL, high)
        if low > -GRB.INFINITY:
            target.addLConstr(left, GRB.GREATER_EQUAL, low)
    if model.start is not None and model.n_integers:
        target.setAttr("Start", variables, model.start.tolist())
    return variables


if __name__ == "__main__":
    serve(work)
