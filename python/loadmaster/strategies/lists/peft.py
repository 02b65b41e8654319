"""PEFT (Arabnejad and Barbosa 2014): HEFT that looks ahead through a table of optimistic costs.

Ready ops come by the mean of their optimistic costs to the end (eq. (1), (2)); each goes where its
finish plus the optimistic cost from there is least (eq. (3)). Of use only where device types
differ: on equal devices the table says the same of all.
"""

from __future__ import annotations

from collections.abc import Iterator

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.lists.listing import Scheduled, list_scheduled
from loadmaster.strategies.registry import strategy


@strategy("peft", "HEFT with a table of optimistic costs to the end (PEFT)")
def place(
    problem: Problem, *, memory: MemoryModel = "dynamic", contention: bool = True
) -> Candidate:
    """``contention=False`` is the paper's model: any number of transfers at once."""
    graph = problem.graph
    costs = fast.optimistic_costs(
        problem.core, problem.tensor_time(graph), control_time=problem.control_time
    )
    order = fast.priority_order(graph, problem.core.mean(costs))

    def scheduler(core: fast.Problem) -> Iterator[Scheduled]:
        yield fast.schedule(core, order, bias=costs)

    return list_scheduled(problem, scheduler, memory=memory, contention=contention)
