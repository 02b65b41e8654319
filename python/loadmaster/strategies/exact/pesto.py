"""Pesto (Hafeez et al., Middleware 2021): batch merging to 200 groups (section 3.3), then the ILP
of section 3.2 over placement and schedule (:mod:`loadmaster.milp.pesto`).

The reference, corrected where it must be and otherwise as printed: no free solver gets far with it.
It starts from HEFT on the groups, without which CBC finds nothing. Batches that make more rows than
a solver takes are merged further.
"""

from __future__ import annotations

from dataclasses import replace

from loadmaster.base import checks
from loadmaster.base.progress import Progress
from loadmaster.base.units import counted
from loadmaster.judge.problem import Problem
from loadmaster.milp import pesto as program
from loadmaster.milp.worker import Solver
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.exact.programs import by_program
from loadmaster.strategies.exact.solving import (
    GROUPS,
    ExactMethod,
    Limits,
    Solvable,
    best_plan,
    or_heft,
    refusal,
    small_enough,
    start_from_list,
    start_of,
)
from loadmaster.strategies.registry import strategy

#: Merging may leave somewhat more groups than it is asked for.
MAX_OPS = 250

#: More rows take longer to write down than to search for a plan.
MAX_ROWS = 200_000


@strategy("pesto", "batch merging, then placement and schedule as an ILP (Pesto)")
def place(
    problem: Problem,
    *,
    groups: int = max(GROUPS),
    solver: Solver = "cbc",
    memory: MemoryModel = "dynamic",
    log: str | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The solution of Pesto's ILP on groups, or its start.

    Parameters
    ----------
    groups : int
        Batches are merged until there are so many; the paper's 200.
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
    limits = Limits.checked(time_limit, memory, log, progress)
    solve = by_program("pesto", program.formulate, solver)
    method = ExactMethod(
        "pesto",
        solve,
        program.estimated_rows,
        MAX_OPS,
        MAX_ROWS,
        start_from_list,
        program.with_links,
    )
    return or_heft(
        problem, method, limits, lambda: on_merged(Solvable(problem), method, limits, groups)
    )


def on_merged(solvable: Solvable, method: ExactMethod, limits: Limits, groups: int) -> Candidate:
    """A method's plan on batches: on so many, or as many as it takes."""
    checks.integer("groups", groups)
    merged = (
        solvable.coarser("batch", groups) if solvable.problem.graph.n_ops > groups else solvable
    )
    why = refusal(merged.problem, method)
    if why is None or limits.seconds == 0:
        return best_plan(merged, method, limits)
    smaller = small_enough(solvable, method, "batch", groups)
    if smaller is None:
        note = f"{why}, and so do its coarsest groups: the plan is the method's start"
        began = start_of(merged, method, replace(limits, seconds=0.0)).plan
        return began if began.is_interrupted else began.noted(note)
    note = f"{why}: solved on {counted(smaller.problem.graph.n_ops, 'group')}"
    return best_plan(smaller, method, limits, (note,))
