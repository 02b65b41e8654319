"""What a solver's process answers about a model, as plain data; the same for every solver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from loadmaster.milp.model import Model

#: What solvers call infinite is more, or is not a number.
INFINITE = 1e49


def answer(
    model: Model,
    status: str,
    values: Sequence[float] | None,
    bound: Callable[[], float | None],
) -> dict[str, Any]:
    """The fields of :class:`~loadmaster.milp.worker.Solution` that the process knows.

    Integers are made whole, and the objective is theirs. A linear program's bound is its optimum;
    an integer program's is asked of the solver unless there is no point at all.

    Examples
    --------
    >>> from loadmaster.milp import Builder
    >>> b = Builder()
    >>> _ = b.variables(1, upper=3.0, objective=[2.0], integer=True)
    >>> answer(b.model(), "feasible", [1.0000001], lambda: 1.5)
    {'status': 'feasible', 'objective': 2.0, 'bound': 1.5, 'values': array([1.])}
    """
    x, objective, least = None, None, None
    if values is not None:
        x = np.array(values, dtype=np.float64)
        x[model.integer] = np.rint(x[model.integer])
        objective = float(model.objective @ x)
    if not model.n_integers:
        least = objective if status == "optimal" else None
    elif status in ("optimal", "feasible", "no_solution"):
        told = bound()
        least = float(told) if told is not None and abs(told) < INFINITE else None
    return {"status": status, "objective": objective, "bound": least, "values": x}
