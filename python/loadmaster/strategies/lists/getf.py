"""GETF (Su, Ren, Vardi and Wierman 2020): ETF in which ops keep to groups of devices of like speed.

The groups come from the linear program of :mod:`~loadmaster.strategies.lists.getf_groups`. On equal
devices there is one group, and GETF is ETF.
"""

from __future__ import annotations

from collections.abc import Iterator

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.lists.etf import by_static_level
from loadmaster.strategies.lists.getf_groups import type_masks
from loadmaster.strategies.lists.listing import Scheduled, list_scheduled
from loadmaster.strategies.registry import strategy


@strategy("getf", "ETF within groups of devices of like speed (GETF)")
def place(
    problem: Problem, *, memory: MemoryModel = "dynamic", contention: bool = True
) -> Candidate:
    """``contention=False`` is the paper's model: any number of transfers at once."""
    types = type_masks(problem)
    ties = by_static_level(problem)

    def scheduler(core: fast.Problem) -> Iterator[Scheduled]:
        grouped = core.restricted(types.masks[core.lead])
        yield fast.schedule_earliest(grouped, ties)

    candidate = list_scheduled(problem, scheduler, memory=memory, contention=contention)
    return candidate.noted(*types.notes)
