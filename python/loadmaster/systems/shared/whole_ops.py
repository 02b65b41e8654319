"""Plans of whole ops for targets that price them in their own way: those of a few methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from loadmaster.base.errors import InfeasibleError
from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.strategies.auto import auto
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.lists import heft
from loadmaster.strategies.simple import layers, single
from loadmaster.systems.registry import refused


def refuse_others(name: str, problem: Problem) -> None:
    """Refuses what is no inference, for the target of a name.

    Raises
    ------
    InputError
        A training step, or a graph that was transformed.
    """
    if set(problem.model.phases) - {"", "f"}:
        raise refused(name, "the graph is of a training step")
    if not problem.program.is_plain or problem.model.is_member.any():
        raise refused(name, "the graph was transformed, or has collectives of its own")


def whole_op_plans(
    problem: Problem, time_limit: float | None, progress: Progress | None
) -> Iterator[Candidate]:
    """One device, ranges of layers, HEFT, and the search; those that fit."""
    for method in (single.place, layers.place, heft.place):
        with suppress(InfeasibleError):
            yield method(problem)
    with suppress(InfeasibleError):
        yield auto.place(problem, split="none", time_limit=time_limit, progress=progress)
