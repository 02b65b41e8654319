"""Devices that an op may be on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InfeasibleError
from loadmaster.judge.problem import Problem


def check_allowed(problem: Problem) -> None:
    """Raises :class:`~loadmaster.InfeasibleError` for the first op that no device may run."""
    present = sum(1 << k for k in set(problem.cluster.device_types))
    nowhere = np.flatnonzero((problem.graph.allowed & np.uint64(present)) == 0)
    if len(nowhere):
        op = int(problem.reduced.op_of[nowhere[0]])
        raise InfeasibleError(
            f"op {problem.model.names[op]!r} may run on {problem.model.device_types[op]}, but the "
            f"cluster has {', '.join(t.name for t in problem.cluster.types)}"
        )


def allowed_devices(problem: Problem) -> NDArray[np.bool_]:
    """Mask of the devices that each colocated set may be on, bool [n_sets, n_devices].

    Raises
    ------
    InfeasibleError
        A set may be on no device; the error names its first op.
    """
    check_allowed(problem)
    first = np.unique(problem.graph.colocation, return_index=True)[1]
    return problem.allowed_types[first][:, problem.cluster.device_types]
