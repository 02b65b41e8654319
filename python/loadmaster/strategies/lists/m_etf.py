"""Baechi's m-ETF (Jeon et al., SoCC 2020): earliest time first within the devices' memory.

Of the pairs of ready op and device that start first, the op that comes first topologically.
"""

from __future__ import annotations

from collections.abc import Iterator

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.lists.listing import Scheduled, list_scheduled
from loadmaster.strategies.registry import strategy


@strategy("m-etf", "ETF within memory, ties in topological order (Baechi)")
def place(
    problem: Problem, *, memory: MemoryModel = "dynamic", contention: bool = True
) -> Candidate:
    """``contention=False, memory="static"`` is the paper's model."""
    ties = fast.m_topo(problem.graph)

    def scheduler(core: fast.Problem) -> Iterator[Scheduled]:
        yield fast.schedule_earliest(core, ties)

    return list_scheduled(problem, scheduler, memory=memory, contention=contention)
