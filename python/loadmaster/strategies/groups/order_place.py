"""Celeritas' Order-Place (section 5.2): groups in CPD-TOPO order, one device filled after another.

The fastest device is filled first; with room there for everything, everything goes there.
"""

from __future__ import annotations

from functools import partial, reduce

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel, better_outcome, settled, try_memory
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.groups.fused import Fused, M, R, deciders, fuse
from loadmaster.strategies.registry import strategy


@strategy("order-place", "fuse, then fill one device after another (Celeritas)")
def place(
    problem: Problem,
    *,
    max_ops: int = R,
    max_bytes: float = M,
    max_time: float | None = None,
    memory: MemoryModel = "dynamic",
) -> Candidate:
    """Fuses (options: :func:`~loadmaster.strategies.groups.fused.fuse`), then fills devices."""
    fused = fuse(problem, max_ops=max_ops, max_bytes=max_bytes, max_time=max_time)

    outcomes = [
        try_memory(problem, partial(order_place, problem, fused, fused.group.take(lead)), memory)
        for lead in deciders(problem.graph)
    ]
    return settled(problem, reduce(partial(better_outcome, problem), outcomes))


def order_place(
    problem: Problem,
    fused: Fused,
    decides: NDArray[np.int32],
    bytes_: NDArray[np.uint64],
    capacity: NDArray[np.uint64],
) -> Assignment:
    """One attempt, given the deciding group and bytes per op, and capacity per device."""
    devices = fast.fill_in_order(
        fused.coarse,
        problem.links,
        fused.coarse_order,
        devices=problem.fastest_first,
        op_bytes=fused.charge(decides, bytes_),
        capacity=capacity,
        best_effort=problem.best_effort,
    )
    return Assignment(devices.take(decides), fused.priority)
