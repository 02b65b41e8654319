"""The best order of the ops of a plan, every op on its device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster.base import checks
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import by_start, ranks
from loadmaster.milp import cpsat
from loadmaster.milp.instance import instance_of
from loadmaster.milp.timing import in_order, settled
from loadmaster.plans.plan import Plan
from loadmaster.strategies.candidate import Candidate, judged

#: A plan with more ops is not ordered: the model has a row for each pair of ops on a device.
MAX_OPS = 400


def optimise_order(
    plan: Plan, *, time_limit: float = 10.0, workers: int = 8, progress: Progress | None = None
) -> Plan:
    """The same devices in the best order that CP-SAT finds; a note says whether it is optimal.

    Parameters
    ----------
    plan : Plan
    time_limit : float
        Seconds.
    workers : int
        Threads of the solver.
    progress : callable, optional
        Called with "order" and the best makespan so far, in seconds.

    Returns
    -------
    Plan
        Never slower than the given plan. A plan with more than 400 ops that run stays as it is, and
        gets a note.

    Raises
    ------
    InputError
        A bad number.
    MissingExtraError
        The ``cpsat`` extra is not installed.

    Examples
    --------
    >>> import loadmaster as lm
    >>> cluster = lm.Cluster.preset("2xV100-NVLink")
    >>> plan = lm.place(lm.read("example:lenet"), cluster, "round-robin")
    >>> lm.optimise_order(plan, time_limit=5).makespan <= plan.makespan  # doctest: +SKIP
    True
    """
    seconds = checks.time_limit(time_limit)
    checks.integer("workers", workers)
    cpsat.require()
    problem, before = plan.binding.problem, plan.assignment
    n_ops = problem.graph.n_ops
    if n_ops > MAX_OPS:
        return _noted(plan, f"order: {n_ops} ops are more than the {MAX_OPS} that can be ordered")
    best = Candidate(problem, before, problem.verdict(before))
    instance = instance_of(problem, np.zeros(n_ops, dtype=np.uint64), 0.0)
    order = by_start(problem.graph, best.schedule.start, best.schedule.finish)

    def told(best: float | None, bound: float | None, cpu: float) -> None:
        if progress is not None and best is not None:
            progress("order", Incumbent(best * instance.tick))

    if seconds == 0:
        return _noted(plan, "order: no time to look for a better one")
    start = settled(instance, before.devices, order)
    task = cpsat.CpsatTask(instance, start, seconds, workers, problem.seed, is_fixed=True)
    solved = cpsat.solve(task, progress=told)
    if solved.start is not None:
        finish = solved.start + instance.time[np.arange(n_ops), before.devices]
        own = in_order(instance, solved.start, finish)
        sequence = Assignment(before.devices, ranks(own), "fixed", before.estimate)
        best = problem.objective.better(best, judged(problem, sequence))
    least = instance.seconds(solved.bound)
    note = f"order: no order of this placement takes less than {least:.6g} s (CP-SAT)"
    if problem.objective.is_proved(best.verdict, least):
        note = "order: proved optimal for this placement (CP-SAT, first come, first served)"
    if solved.failure is not None:
        note = f"order: {solved.failure.splitlines()[0]}; the best so far is kept"
    ordered = replace(plan, assignment=best.assignment, verdict=best.verdict)
    return _noted(ordered, note)


def _noted(plan: Plan, note: str) -> Plan:
    return replace(plan, notes=(*plan.notes, note))
