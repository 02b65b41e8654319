"""Celeritas (Xu et al. 2022): fuse, place by Adjusting Placement, keep the better of that and
Order-Place.

The paper proves Adjusting Placement never worse than Order-Place in a model without contention;
with contention it may be, so both are simulated. Where neither fits in the whole memory at the
first try, ops placed with their largest inputs compete too, which the paper does not have;
``memory="static"`` is the paper's own constraint and nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce

import numpy as np
from numpy.typing import NDArray

from loadmaster import fast
from loadmaster.problem import Problem, ranks
from loadmaster.strategies import locality
from loadmaster.strategies.base import (
    Candidate,
    MemoryModel,
    Outcome,
    better,
    judged,
    settled,
    try_memory,
)
from loadmaster.strategies.fused import Fused, M, R, deciders, fuse
from loadmaster.strategies.order_place import order_place

_LOCALITY_NOTE = (
    "memory is tight: each op is placed with its largest inputs, which fits better here than "
    "Adjusting Placement and Order-Place"
)


def place(
    problem: Problem,
    *,
    max_ops: int = R,
    max_bytes: float = M,
    max_time: float | None = None,
    memory: MemoryModel = "dynamic",
) -> Candidate:
    """Fuses (see :func:`~loadmaster.strategies.fused.fuse` for the knobs), then places groups."""
    fused = fuse(problem, max_ops=max_ops, max_bytes=max_bytes, max_time=max_time)

    def attempt(bytes_: NDArray[np.uint64], capacity: NDArray[np.uint64]) -> Candidate:
        return reduce(
            partial(better, problem),
            (
                place_groups(problem, fused, lead, bytes_, capacity)
                for lead in deciders(problem.graph)
                for place_groups in (adjusting_placement, order_place)
            ),
        )

    outcome = try_memory(problem, attempt, memory)
    if memory == "static" or (outcome.fits and outcome.share == 1.0):
        return settled(problem, outcome)
    for order in (fused.order, fast.m_topo(problem.graph)):
        outcome = _better_outcome(problem, outcome, locality.try_order(problem, order))
    return settled(problem, outcome)


def adjusting_placement(
    problem: Problem,
    fused: Fused,
    lead: NDArray[np.int32],
    bytes_: NDArray[np.uint64],
    capacity: NDArray[np.uint64],
) -> Candidate:
    """One attempt of Adjusting Placement (Algorithm 2)."""
    devices, _, _ = fast.adjusting_placement(
        fused.coarse,
        problem.links,
        fused.coarse_order,
        fused.time,
        op_bytes=fused.charge(lead, bytes_),
        capacity=capacity,
        best_effort=problem.best_effort,
    )
    return judged(problem, fused.expand(lead, devices), ranks(fused.order))


def _better_outcome(problem: Problem, ours: Outcome, other: Outcome) -> Outcome:
    if other.candidate is None:
        return ours
    other = replace(other, candidate=replace(other.candidate, notes=(_LOCALITY_NOTE,)))
    if ours.candidate is None or other.candidate is None:
        return other
    return ours if better(problem, ours.candidate, other.candidate) is ours.candidate else other
