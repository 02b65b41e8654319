"""Celeritas' Order-Place (section 5.2): groups in CPD-TOPO order, one device filled after another.

With room on the first device for everything, everything goes there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster import fast
from loadmaster.problem import Problem, ranks
from loadmaster.strategies.base import Candidate, MemoryModel, judged, within_memory
from loadmaster.strategies.fused import Fused, M, R, fuse


def place(
    problem: Problem,
    *,
    max_ops: int = R,
    max_bytes: float = M,
    max_time: float | None = None,
    memory: MemoryModel = "dynamic",
) -> Candidate:
    """Fuses (see :func:`~loadmaster.strategies.fused.fuse` for the knobs), then fills devices."""
    fused = fuse(problem, max_ops=max_ops, max_bytes=max_bytes, max_time=max_time)

    def attempt(bytes_: NDArray[np.uint64], capacity: NDArray[np.uint64]) -> Candidate:
        return order_place(problem, fused, bytes_, capacity)

    return within_memory(problem, attempt, memory)


def order_place(
    problem: Problem, fused: Fused, bytes_: NDArray[np.uint64], capacity: NDArray[np.uint64]
) -> Candidate:
    """One attempt with given bytes per op and capacity per device."""
    devices = fast.fill_in_order(
        fused.coarse,
        problem.links,
        fused.coarse_order,
        op_bytes=fused.charge(problem.graph, bytes_),
        capacity=capacity,
        best_effort=problem.best_effort,
    )
    return judged(problem, fused.expand(problem.graph, devices), ranks(fused.order))
