"""CP-SAT on the first-come-first-served model (:mod:`loadmaster.milp.cpsat`), from where the search
ends.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from loadmaster.base import checks
from loadmaster.base.progress import Progress
from loadmaster.judge.coarsening import Coarsener
from loadmaster.judge.problem import Problem
from loadmaster.milp import cpsat as program
from loadmaster.milp import ilp
from loadmaster.milp.instance import MilpInstance
from loadmaster.milp.timing import Timed
from loadmaster.milp.worker import Watch
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.exact.ilp import on_groups_if_large
from loadmaster.strategies.exact.solving import (
    GROUPS,
    LEAST,
    Answer,
    ExactMethod,
    Limits,
    Search,
    Solve,
    or_heft,
    start_from_search,
)
from loadmaster.strategies.registry import strategy

#: More rows, as the mixed-integer program would have, are not given to the solver.
MAX_ROWS = 100_000

#: Share of the time for the model that schedules, where a bound is asked for as well.
PLAN_SHARE = 0.5


@strategy("cpsat", "constraint programming, from where the search ends (CP-SAT)", is_final=True)
def place(
    problem: Problem,
    *,
    prove: bool = False,
    workers: int = 8,
    coarsen: bool = True,
    groups: int = max(GROUPS),
    coarsener: Coarsener = "multilevel",
    memory: MemoryModel = "dynamic",
    log: str | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
    start_search: Search | None = None,
) -> Candidate:
    """The better of the search's plan and CP-SAT's.

    Parameters
    ----------
    prove : bool
        Whether half of the time goes into the bound. It comes from a smaller model whose channels
        serve in any order, so that it holds for first come, first served as well.
    workers : int
        Threads of the solver; with more than one, what it finds within a limit differs from run to
        run.
    coarsen, groups, coarsener, memory, log, time_limit, progress, start_search
        As for ``ilp``.

    Raises
    ------
    InfeasibleError
        Nothing fits; where memory is to blame whatever the order, with the smallest relaxation.
    MissingExtraError
        CP-SAT is not installed.
    """
    checks.flag("prove", prove)
    checks.integer("workers", workers)
    program.require()
    limits = Limits.checked(time_limit, memory, log, progress)
    solve = _solver(prove, workers, problem.seed)
    start = partial(start_from_search, search=start_search)
    method = ExactMethod("cpsat", solve, ilp.estimated_rows, max(GROUPS), MAX_ROWS, start)
    plan_of = partial(on_groups_if_large, problem, method, limits, coarsen, groups, coarsener)
    return or_heft(problem, method, limits, plan_of)


def _solver(prove: bool, workers: int, seed: int) -> Solve:
    def answer(instance: MilpInstance, start: Timed, seconds: float, tell: Watch) -> Answer:
        share = PLAN_SHARE if prove else 1.0
        task = program.CpsatTask(instance, start, share * seconds, workers, seed)
        solved = program.solve(task, progress=tell)
        bound, by, log = solved.bound, "CP-SAT", solved.log
        if prove and solved.status != "optimal" and solved.failure is None:
            left = max(seconds - solved.seconds, LEAST)
            free = program.solve(replace(task, time_limit=left, is_fcfs=False), progress=tell)
            log += free.log
            if free.bound > bound:
                bound, by = free.bound, "CP-SAT, links in any order"
        begun = None if solved.start is None else solved.start.astype(np.float64)
        return Answer(solved.devices, begun, bound, by, solved.failure, log)

    return answer
