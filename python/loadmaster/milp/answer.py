"""The answer of a solver's process as plain data, the same for every solver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from loadmaster.milp.model import Model

#: Solvers write infinity as a larger number than this, or as no number.
INFINITE = 1e49


def answer(
    model: Model, status: str, values: Sequence[float] | None, bound: Callable[[], float | None]
) -> dict[str, Any]:
    """The fields of :class:`~loadmaster.milp.worker.Solution` that the process knows.

    Integers are rounded to whole numbers, and the objective is that of the rounded point. The bound
    of a linear program is its optimum. The bound of an integer program is the solver's, unless the
    solver found no point.

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
        proved = bound()
        least = float(proved) if proved is not None and abs(proved) < INFINITE else None
    return {"status": status, "objective": objective, "bound": least, "values": x}
