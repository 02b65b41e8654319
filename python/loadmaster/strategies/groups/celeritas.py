"""Celeritas (Xu et al. 2022): fuse, place by Adjusting Placement, keep the better of that and
Order-Place.

The paper proves Adjusting Placement never worse than Order-Place in a model without contention;
with contention it may be, so both are simulated. Where either does not fit in the whole memory at
the first try, ops placed with their largest inputs compete too, which the paper does not have;
``memory="static"`` is the paper's own constraint and nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import (
    MemoryModel,
    Outcome,
    accepted,
    better_outcome,
    try_memory,
)
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.deciders import deciders
from loadmaster.strategies.groups import locality
from loadmaster.strategies.groups.order_place import order_place
from loadmaster.strategies.groups.segments import Cuts, OrderSegments, segmented
from loadmaster.strategies.registry import strategy

_LOCALITY_NOTE = (
    "memory is tight: each op is placed with its largest inputs, which fits better here than "
    "Adjusting Placement and Order-Place"
)


@strategy("celeritas", "fuse, then Adjusting Placement or Order-Place (Celeritas)")
def place(problem: Problem, *, memory: MemoryModel = "dynamic", **cuts: Unpack[Cuts]) -> Candidate:
    """Cuts segments, then places groups.

    The options are those of :func:`~loadmaster.strategies.groups.segments.segmented`.
    """
    segments = segmented(problem, **cuts)

    best = Outcome(None, 1.0)
    at_ease = True
    for lead in deciders(problem.graph):
        for place_groups in (adjusting_placement, order_place):
            attempt = partial(place_groups, segments, lead)
            outcome = try_memory(problem, attempt, memory, best.candidate)
            at_ease = at_ease and outcome.at_ease
            best = better_outcome(problem, best, outcome)
    if memory == "dynamic" and not at_ease:
        outcomes = map(_noted, locality.outcomes(problem, segments.order))
        best = reduce(partial(better_outcome, problem), outcomes, best)
    return accepted(problem, best)


def _noted(outcome: Outcome) -> Outcome:
    if outcome.candidate is None:
        return outcome
    return replace(outcome, candidate=outcome.candidate.noted(_LOCALITY_NOTE))


def adjusting_placement(
    segments: OrderSegments,
    lead: NDArray[np.int32],
    bytes_: NDArray[np.uint64],
    capacity: NDArray[np.uint64],
) -> Assignment:
    """One attempt of Adjusting Placement (Algorithm 2), given the deciding op of each op."""
    decides = segments.group.take(lead)
    devices, _, _ = fast.adjusting_placement(
        segments.core.within(op_bytes=segments.charge(bytes_, decides), capacity=capacity),
        segments.group_order,
    )
    return Assignment(devices.take(decides), segments.priority)
