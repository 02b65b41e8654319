"""One device for everything: the baseline a split must beat."""

from __future__ import annotations

import numpy as np

from loadmaster.base.errors import InfeasibleError
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, ranks
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.registry import strategy


@strategy("single", "everything on the fastest device that holds it", is_final=True)
def place(problem: Problem) -> Candidate:
    """Everything on the device that runs it fastest, of those that hold it in Kahn's order, the
    program's or a frugal one (:mod:`loadmaster.model.orders`).

    Raises
    ------
    InfeasibleError
        No device holds the graph; the one that comes closest says how many bytes it is short.
    """
    n = problem.graph.n_ops
    allowed = np.bitwise_and.reduce(problem.graph.allowed)
    tried: dict[tuple[int, int], Candidate] = {}
    for index, device_type in enumerate(problem.cluster.device_types):
        kind = (device_type, problem.cluster.memory[index])
        if kind not in tried and int(allowed) >> device_type & 1:
            priority = ranks(problem.reduced.order_within(kind[1]))
            tried[kind] = judged(problem, Assignment(np.full(n, index, dtype=np.int32), priority))
    if not tried:
        raise InfeasibleError(
            "no device may run every op: device_types or pins rule out a single device"
        )
    best = problem.objective.best(tried.values())
    return accepted(problem, Outcome(best, 1.0, None))
