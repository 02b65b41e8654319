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

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel, Outcome, better_outcome, settled, try_memory
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.groups import locality
from loadmaster.strategies.groups.fused import Fused, M, R, deciders, fuse
from loadmaster.strategies.groups.order_place import order_place
from loadmaster.strategies.registry import strategy

_LOCALITY_NOTE = (
    "memory is tight: each op is placed with its largest inputs, which fits better here than "
    "Adjusting Placement and Order-Place"
)


@strategy("celeritas", "fuse, then Adjusting Placement or Order-Place (Celeritas)")
def place(
    problem: Problem,
    *,
    max_ops: int = R,
    max_bytes: float = M,
    max_time: float | None = None,
    memory: MemoryModel = "dynamic",
) -> Candidate:
    """Fuses (options: :func:`~loadmaster.strategies.groups.fused.fuse`), then places groups."""
    fused = fuse(problem, max_ops=max_ops, max_bytes=max_bytes, max_time=max_time)

    best = Outcome(None, 1.0)
    at_ease = True
    for lead in deciders(problem.graph):
        decides = fused.group.take(lead)
        for place_groups in (adjusting_placement, order_place):
            attempt = partial(place_groups, problem, fused, decides)
            outcome = try_memory(problem, attempt, memory, best.candidate)
            at_ease = at_ease and outcome.at_ease
            best = better_outcome(problem, best, outcome)
    if memory == "dynamic" and not at_ease:
        outcomes = map(_noted, locality.outcomes(problem, fused.order))
        best = reduce(partial(better_outcome, problem), outcomes, best)
    return settled(problem, best)


def _noted(outcome: Outcome) -> Outcome:
    if outcome.candidate is None:
        return outcome
    return replace(outcome, candidate=outcome.candidate.noted(_LOCALITY_NOTE))


def adjusting_placement(
    problem: Problem,
    fused: Fused,
    decides: NDArray[np.int32],
    bytes_: NDArray[np.uint64],
    capacity: NDArray[np.uint64],
) -> Assignment:
    """One attempt of Adjusting Placement (Algorithm 2), given the deciding group of each op."""
    devices, _, _ = fast.adjusting_placement(
        fused.coarse,
        problem.links,
        fused.coarse_order,
        fused.time,
        op_bytes=fused.charge(decides, bytes_),
        capacity=capacity,
        best_effort=problem.best_effort,
    )
    return Assignment(devices.take(decides), fused.priority)
