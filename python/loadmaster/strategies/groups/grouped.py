"""HEFT on groups of ops: a start for the search.

The groups keep the graph's parallelism, and few transfers lead from one to another.

Groups come from :func:`loadmaster.fast.parallel_merge`; the ops of a placed group are then ordered
one by one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.coarse import CoarseProblem
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import accepted, best_way
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.lists.listing import ordered

#: Groups, unless a group that may not grow any further leaves more.
GROUPS = 300


def place(problem: Problem) -> Candidate:
    """Merges to 300 groups, places them by upward rank, orders their ops."""
    group, _ = fast.parallel_merge(problem.weights, GROUPS)
    coarse = CoarseProblem(problem, group)
    _, rank = fast.levels(coarse.weights)
    order = fast.priority_order(coarse.contracted, rank)

    def attempt(
        lead: NDArray[np.int32], bytes_: NDArray[np.uint64], capacity: NDArray[np.uint64]
    ) -> Assignment:
        devices, _, _ = fast.schedule(
            coarse.core.within(op_bytes=coarse.charge(bytes_, group[lead]), capacity=capacity),
            order,
        )
        return ordered(problem, devices[group[lead]]).assignment

    return accepted(problem, best_way(problem, attempt, "dynamic"))
