"""ETF (Hwang, Chow, Anger and Lee 1989): of all ready ops and devices, the pair that starts first.

Ties go to the op with the larger static level: the longest path of compute to the end.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.lists.listing import Scheduled, list_scheduled
from loadmaster.strategies.registry import strategy


@strategy("etf", "the ready op and device that start first (ETF)")
def place(
    problem: Problem, *, memory: MemoryModel = "dynamic", contention: bool = True
) -> Candidate:
    """``contention=False`` is the paper's model: any number of transfers at once."""
    ties = by_static_level(problem)

    def scheduler(core: fast.Problem) -> Iterator[Scheduled]:
        yield fast.schedule_earliest(core, ties)

    return list_scheduled(problem, scheduler, memory=memory, contention=contention)


def by_static_level(problem: Problem) -> NDArray[np.int32]:
    """Ops by descending static level; ops of no time are told apart topologically."""
    graph = problem.graph
    _, level = fast.levels(fast.Weights(graph, problem.op_time))
    return fast.priority_order(graph, level)
