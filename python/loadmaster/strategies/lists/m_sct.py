"""Baechi's m-SCT (Jeon et al., SoCC 2020): m-ETF in which favourite children follow their parents.

A device whose last op has a favourite child that is ready, or only waits for its inputs to arrive,
takes nothing that would delay it. Favourites come from
:mod:`~loadmaster.strategies.lists.favourites`' linear program.
"""

from __future__ import annotations

from collections.abc import Iterator

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.lists import favourites
from loadmaster.strategies.lists.favourites import Favourites, favourite_children
from loadmaster.strategies.lists.listing import Scheduled, list_scheduled
from loadmaster.strategies.registry import strategy


@strategy("m-sct", "m-ETF in which favourite children follow their parents (Baechi)")
def place(
    problem: Problem, *, memory: MemoryModel = "dynamic", contention: bool = True
) -> Candidate:
    """``contention=False, memory="static"`` is the paper's model."""
    return following(problem, favourite_children(problem), memory, contention)


def without_program(problem: Problem) -> Candidate:
    """m-SCT whose favourites come from no linear program: fast, and the same on every machine."""
    return following(problem, favourites.without_program(problem))


def following(
    problem: Problem,
    favourites: Favourites,
    memory: MemoryModel = "dynamic",
    contention: bool = True,
) -> Candidate:
    """List scheduling by given favourite children."""
    ties = fast.m_topo(problem.graph)

    def scheduler(core: fast.Problem) -> Iterator[Scheduled]:
        yield fast.schedule_earliest(core, ties, favourite=favourites.child)

    placed = list_scheduled(problem, scheduler, memory=memory, contention=contention)
    return placed.noted(*favourites.notes)
