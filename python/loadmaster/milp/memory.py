"""The smallest relaxation of memory under which a graph can be placed: a certificate.

With x_uk = 1 where unit u of colocated ops is on device k, m_u its bytes and e_k what k lacks:

    minimise sum_k e_k      sum_k x_uk = 1      sum_u m_u x_uk <= memory_k + e_k      x_uk in {0, 1}

Bytes here are those that an op holds for the whole step (under the papers' static model: resident
bytes and outputs), so no order needs less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.judge.problem import summed
from loadmaster.milp.model import Builder
from loadmaster.milp.worker import solve

#: Time limit of the program, in seconds.
TIME_LIMIT = 10.0


@dataclass(frozen=True)
class Relaxation:
    """Bytes that each device needs beyond its memory, and the placement that fits with them.

    The bytes are int64 [n_devices], the placement is a device per unit, int32 [n_units]. The flag
    says whether fewer bytes in all are proved not to suffice.
    """

    missing: NDArray[np.int64]
    is_proved: bool
    devices: NDArray[np.int32]

    @property
    def total(self) -> int:
        """Bytes missing in all."""
        return int(self.missing.sum())


def least_relaxation(
    allowed: NDArray[np.bool_],
    charge: NDArray[np.int64],
    capacity: NDArray[np.int64],
    *,
    time_limit: float = TIME_LIMIT,
) -> Relaxation:
    """The relaxation that adds fewest bytes in all.

    Parameters
    ----------
    allowed : bool [n_units, n_devices]
    charge : int64 [n_units]
        Bytes.
    capacity : int64 [n_devices]
        Bytes.
    time_limit : float
        Seconds for a worker process, which starts only if the first guess does not fit.

    Raises
    ------
    SolverError
        The solver failed.

    Examples
    --------
    >>> import numpy as np
    >>> from loadmaster.milp.memory import least_relaxation
    >>> anywhere = np.ones((3, 2), dtype=bool)
    >>> found = least_relaxation(anywhere, np.array([6, 6, 6]), np.array([7, 7]))
    >>> found.total, found.is_proved
    (5, True)
    """
    first = _largest_first(allowed, charge, capacity)
    start = _of(first, charge, capacity, proved=False)
    least = max(int(charge.sum()) - int(capacity.sum()), 0)
    if start.total <= least:
        return Relaxation(start.missing, True, first)
    n_units, n_devices = allowed.shape
    scale = 1000.0 / max(int(charge.max()), 1)
    b = Builder()
    x = b.variables(n_units * n_devices, upper=allowed.ravel().astype(np.float64), integer=True)
    e = b.variables(n_devices, objective=1.0)
    grid = x.reshape(n_units, n_devices)
    units, devices = np.indices(allowed.shape)
    b.rows(units.ravel(), x, 1.0, lower=np.ones(n_units), upper=1.0)
    b.rows(
        np.concatenate([devices.ravel(), np.arange(n_devices)]),
        np.concatenate([grid.ravel(), e]),
        np.concatenate([np.repeat(charge * scale, n_devices), -np.ones(n_devices)]),
        upper=capacity * scale,
    )
    values = np.zeros(len(x) + n_devices)
    values[grid[np.arange(n_units), first]] = 1.0
    values[e] = start.missing * scale
    solution = solve(b.model(values), solver="cbc", time_limit=time_limit)
    assert solution.values is not None
    chosen = solution.values[grid].argmax(axis=1).astype(np.int32)
    return _of(chosen, charge, capacity, proved=solution.status == "optimal")


def _of(
    devices: NDArray[np.int32], charge: NDArray[np.int64], capacity: NDArray[np.int64], proved: bool
) -> Relaxation:
    used = summed(charge, devices, len(capacity))
    return Relaxation(np.maximum(used - capacity, 0), proved, devices)


def _largest_first(
    allowed: NDArray[np.bool_], charge: NDArray[np.int64], capacity: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Puts each unit where most memory is left, the largest unit first."""
    left = capacity.copy()
    devices = np.zeros(len(charge), dtype=np.int32)
    for unit in np.argsort(-charge, kind="stable"):
        choices = np.flatnonzero(allowed[unit])
        devices[unit] = choices[left[choices].argmax()]
        left[devices[unit]] -= charge[unit]
    return devices
