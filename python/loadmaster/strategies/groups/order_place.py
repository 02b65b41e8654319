"""Celeritas' Order-Place (section 5.2): groups in CPD-TOPO order, one device filled after another.

The fastest device is filled first; with room there for everything, everything goes there.
"""

from __future__ import annotations

from functools import partial
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel, accepted, best_way
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.groups.segments import Cuts, OrderSegments, segmented
from loadmaster.strategies.registry import strategy


@strategy("order-place", "fuse, then fill one device after another (Celeritas)")
def place(problem: Problem, *, memory: MemoryModel = "dynamic", **cuts: Unpack[Cuts]) -> Candidate:
    """Cuts segments, then fills devices.

    The options are those of :func:`~loadmaster.strategies.groups.segments.segmented`.
    """
    segments = segmented(problem, **cuts)

    return accepted(problem, best_way(problem, partial(order_place, segments), memory))


def order_place(
    segments: OrderSegments,
    lead: NDArray[np.int32],
    bytes_: NDArray[np.uint64],
    capacity: NDArray[np.uint64],
) -> Assignment:
    """One attempt, given the deciding op and bytes per op, and capacity per device."""
    decides = segments.group.take(lead)
    devices = fast.fill_in_order(
        segments.core.within(op_bytes=segments.charge(bytes_, decides), capacity=capacity),
        segments.group_order,
        devices=segments.problem.fastest_first,
    )
    return Assignment(devices.take(decides), segments.priority)
