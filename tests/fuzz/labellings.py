"""``fast.Labelling`` on costs of any value, and on columns some of which are wrong."""

from __future__ import annotations

import contextlib
from random import Random
from typing import Any

import numpy as np
from labellings import n_labels, random_costs

from loadmaster.strategies.sharding.labels import LabelCosts

from .frame import refused, target

_COSTS = [0.0, -0.0, 1.0, -1.0, 5e-324, 1e300, 1.7e308, -1.7e308, np.inf, np.inf, -np.inf, np.nan]
_NUMBERS = [0, 1, 2, 3, 5, -1, -(2**31), 2**31 - 1, 2**32, 2**63 - 1]


def _damaged(random: Random, costs: LabelCosts) -> LabelCosts:
    """The costs with one column wrong somewhere, or with another length, type or shape."""
    columns: dict[str, Any] = dict(vars(costs))
    name = random.choice(list(columns))
    column = columns[name].copy()
    odd = _COSTS if column.dtype.kind == "f" else _NUMBERS
    match random.randrange(6):
        case 0:
            column = column[: random.randrange(len(column) + 1)]
        case 1:
            column = np.concatenate([column, column[:1]])
        case 2:
            column = column.reshape(1, -1)
        case 3:
            with np.errstate(all="ignore"):
                column = column.astype(random.choice(("i4", "i8", "u4", "f4", "?", "O")))
        case _ if column.size:
            with np.errstate(all="ignore"):
                value = np.array(random.choice(odd)).astype(column.dtype)
            column.flat[random.randrange(column.size)] = value
    columns[name] = column
    return LabelCosts(**columns)


def _priced(random: Random, costs: LabelCosts) -> LabelCosts:
    """The costs with a few of any value."""
    columns: dict[str, Any] = dict(vars(costs))
    for name in ("unary", "pair"):
        table = columns[name].copy()
        for _ in range(random.choice((0, 0, 1, 5, table.size))):
            table.flat[random.randrange(table.size)] = random.choice(_COSTS)
        columns[name] = table
    return LabelCosts(**columns)


@target("labellings", in_ci=1000)
def one(random: Random) -> None:
    """A solve, a walk and a descent of a small problem."""
    n = random.choice((1, 2, 3, 6))
    seed = random.randrange(2**32)
    costs = random_costs(seed, n=n, m=random.choice((0, 1, 2, 9)), labels=random.choice((1, 3)))
    kinds = n_labels(costs)
    if random.random() < 0.7:
        costs = _priced(random, costs)
    if random.random() < 0.3:
        costs = _damaged(random, costs)
    rng = np.random.default_rng(seed)
    weights = np.array([random.choice((0.0, 1.0, 1.0, 1e-300, 1e300, -1.0)) for _ in range(2)])
    labels = rng.integers(0, 3, n) % (kinds if random.random() < 0.9 else 3)
    tied = rng.integers(-1, 3, n) if random.random() < 0.3 else None
    with contextlib.suppress(ValueError), refused():
        problem = costs.problem
        sweeps = random.choice((0, 1, 30))
        problem.energy(labels, weights)
        problem.walk(labels, weights, random.choice((0, 1, 99)), seed)
        problem.descend(labels, weights)
        found = problem.solve(
            weights, tied=tied, start=random.choice((None, labels)), sweeps=sweeps
        )
        assert found.bound <= found.energy < np.inf
        assert problem.energy(found.labels, weights) == found.energy
        assert found.gap >= 0
