"""Moirai (Zhang et al. 2023): ops fused by rules (section III-B), then the MILP of section III-D
over placement and schedule, with times per device and per link (:mod:`loadmaster.milp.moirai`).

The reference, corrected where it must be and otherwise as printed: no free solver gets far with it.
It starts from HEFT on the groups. Where fusion leaves more than a solver takes, batches are merged,
which the paper, with a commercial solver and hours, does not do.
"""

from __future__ import annotations

from functools import partial
from typing import get_args

from loadmaster.base import checks
from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.milp import moirai as program
from loadmaster.milp.moirai import Links
from loadmaster.milp.worker import Solver
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.exact.pesto import MAX_OPS, MAX_ROWS, on_merged
from loadmaster.strategies.exact.programs import by_program
from loadmaster.strategies.exact.solving import (
    GROUPS,
    ExactMethod,
    Limits,
    Solvable,
    or_heft,
    start_from_list,
)
from loadmaster.strategies.registry import strategy


@strategy("moirai", "fusion rules, then placement and schedule as a MILP (Moirai)")
def place(
    problem: Problem,
    *,
    links: Links = "per-link",
    groups: int = max(GROUPS),
    solver: Solver = "cbc",
    memory: MemoryModel = "dynamic",
    log: str | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The solution of Moirai's MILP on fused ops, or its start.

    Parameters
    ----------
    links : "per-link" (default) or "one-port"
        What cannot overlap: transfers of one ordered pair of devices, as the paper's text says, or
        all that leave a device and all that come to it, as its equation (8) does.
    groups : int
        Fused ops are merged on until there are so many.
    solver : "cbc" (default), "highs" or "gurobi"
    memory : "dynamic" (default) or "static", the paper's
        As for ``ilp``.
    log, time_limit, progress
        As for ``ilp``.

    Raises
    ------
    InfeasibleError
        Nothing fits; where memory is to blame whatever the order, with the smallest relaxation.
    MissingExtraError
        The solver is not installed.
    """
    checks.one_of("links", links, get_args(Links))
    limits = Limits.checked(time_limit, memory, log, progress)
    solve = by_program("moirai", program.formulate, solver)
    in_links = partial(program.with_links, links=links)
    method = ExactMethod(
        "moirai", solve, program.estimated_rows, MAX_OPS, MAX_ROWS, start_from_list, in_links
    )

    def made() -> Candidate:
        return on_merged(Solvable(problem).coarser("rules", 1), method, limits, groups)

    return or_heft(problem, method, limits, made)
