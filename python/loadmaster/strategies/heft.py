"""HEFT (Topcuoglu, Hariri and Wu 2002): ops by upward rank, each where it finishes earliest.

Ranks count mean times over the devices an op may run on and mean transfer times; ops of no time are
told apart topologically. An op may go into an idle slot before ops that are scheduled already.
"""

from __future__ import annotations

from loadmaster import fast
from loadmaster.problem import Problem
from loadmaster.strategies.base import Candidate, MemoryModel
from loadmaster.strategies.listing import Rules, Scheduled, list_scheduled


def place(
    problem: Problem, *, memory: MemoryModel = "dynamic", contention: bool = True
) -> Candidate:
    """``contention=False`` is the paper's model: any number of transfers at once."""
    graph = problem.graph
    _, rank = fast.levels(
        graph, problem.op_time, problem.tensor_time(graph), control_time=problem.control_time
    )
    order = fast.priority_order(graph, rank)

    def scheduler(rules: Rules) -> Scheduled:
        return fast.schedule(graph, problem.links, order, problem.time, **vars(rules))

    return list_scheduled(problem, scheduler, memory=memory, contention=contention)
