"""Loadmaster's own mixed-integer program (:mod:`loadmaster.milp.ilp`), from where the search ends.

Beyond 200 groups or 50,000 rows no free solver gets anywhere: there the graph is coarsened until
the program fits, or, if that is not wanted, the search's plan is the answer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from loadmaster.base import checks
from loadmaster.base.progress import Progress
from loadmaster.base.units import counted
from loadmaster.judge.coarsening import Coarsener
from loadmaster.judge.problem import Problem
from loadmaster.milp import ilp as program
from loadmaster.milp.worker import Solver
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.exact.programs import by_program
from loadmaster.strategies.exact.solving import (
    GROUPS,
    ExactMethod,
    Limits,
    Search,
    Solvable,
    best_plan,
    interrupted,
    or_heft,
    refusal,
    small_enough,
    start_from_search,
    start_of,
)
from loadmaster.strategies.registry import strategy

#: More rows are not given to a solver.
MAX_ROWS = 50_000


@strategy("ilp", "a strengthened mixed-integer program, from where the search ends", is_final=True)
def place(
    problem: Problem,
    *,
    solver: Solver = "cbc",
    coarsen: bool = True,
    groups: int = max(GROUPS),
    coarsener: Coarsener = "multilevel",
    memory: MemoryModel = "dynamic",
    log: str | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
    start_search: Search | None = None,
) -> Candidate:
    """The better of the search's plan and the program's solution.

    Parameters
    ----------
    solver : "cbc" (default), "highs" or "gurobi"
    coarsen : bool
        Whether a graph that is too large is solved on groups; else the search's plan is returned,
        with a note that names the size.
    groups : int
        How many groups to make then, at most.
    coarsener : str
        By which method of :func:`loadmaster.coarsen`.
    memory : "dynamic" (default) or "static"
        What ops are charged for the whole step: what each holds at the peak of a sequential run
        (the simulator then has the last word), or the papers' resident bytes and outputs.
    log : str, optional
        A file for all that the solver prints.
    time_limit : float, optional
        Seconds, 10 if absent, a fifth of them for the search; 0: HEFT's plan, or that of one device
        if it is faster.
    progress : called with the stage, the solver's bound in it, and the best makespan.
    start_search : callable, optional
        The method that finds the plan to start from; HEFT's is the start if absent.

    Raises
    ------
    InfeasibleError
        Nothing fits; where memory is to blame whatever the order, with the smallest relaxation.
    MissingExtraError
        The solver is not installed.
    """
    limits = Limits.checked(time_limit, memory, log, progress)
    solve = by_program("ilp", program.formulate, solver)
    start = partial(start_from_search, search=start_search)
    method = ExactMethod("ilp", solve, program.estimated_rows, max(GROUPS), MAX_ROWS, start)
    plan_of = partial(on_groups_if_large, problem, method, limits, coarsen, groups, coarsener)
    return or_heft(problem, method, limits, plan_of)


def on_groups_if_large(
    problem: Problem,
    method: ExactMethod,
    limits: Limits,
    coarsen: bool,
    groups: int,
    coarsener: Coarsener,
) -> Candidate:
    """A method's plan, on as many groups as it can take where the graph is too large for it; never
    worse than the search's on the graph as it is.
    """
    checks.flag("coarsen", coarsen)
    checks.integer("groups", groups)
    fine = Solvable(problem)
    why = refusal(problem, method)
    if why is None:
        return best_plan(fine, method, limits)
    began = start_of(fine, method, limits).plan
    if began.is_interrupted:
        return began
    if limits.seconds == 0:
        note = f"{why}, and there is no time for groups: this is where the search starts"
        return began.noted(note)
    if not coarsen:
        note = f"{why}: the search's plan is returned; coarsen=True would solve it on groups"
        return began.noted(note)
    try:
        smaller = small_enough(fine, method, coarsener, groups)
        if smaller is None:
            note = f"{why}, and so do its coarsest groups: the search's plan is returned"
            return began.noted(note)
        note = f"{why}: solved on {counted(smaller.problem.graph.n_ops, 'group')}"
        candidate = best_plan(smaller, method, limits, (note,))
    except KeyboardInterrupt:
        return interrupted(began, method)
    return replace(problem.objective.better(candidate, began), notes=candidate.notes)
