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
from loadmaster.strategies.attempts import MemoryModel, accepted, better_outcome, try_memory
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.deciders import deciders
from loadmaster.strategies.groups.segments import M, R, Segments, segmented
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
    """Cuts segments, then fills devices.

    The options are those of :func:`~loadmaster.strategies.groups.segments.segmented`.
    """
    segments = segmented(problem, max_ops=max_ops, max_bytes=max_bytes, max_time=max_time)

    outcomes = [
        try_memory(problem, partial(order_place, segments, segments.group.take(lead)), memory)
        for lead in deciders(problem.graph)
    ]
    return accepted(problem, reduce(partial(better_outcome, problem), outcomes))


def order_place(
    segments: Segments,
    decides: NDArray[np.int32],
    bytes_: NDArray[np.uint64],
    capacity: NDArray[np.uint64],
) -> Assignment:
    """One attempt, given the deciding group and bytes per op, and capacity per device."""
    devices = fast.fill_in_order(
        segments.core.within(op_bytes=segments.charge(bytes_, decides), capacity=capacity),
        segments.group_order,
        devices=segments.problem.fastest_first,
    )
    return Assignment(devices.take(decides), segments.priority)
