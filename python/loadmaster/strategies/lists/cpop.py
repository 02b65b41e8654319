"""CPoP (Topcuoglu, Hariri and Wu 2002): the critical path on one device, the rest where it finishes
earliest.

Ready ops come by upward plus downward rank. The critical-path device is the one that computes the
path fastest, of those its ops may run on.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.lists.listing import Scheduled, list_scheduled
from loadmaster.strategies.registry import strategy


@strategy("cpop", "the critical path on one device, the rest as HEFT (CPoP)")
def place(
    problem: Problem, *, memory: MemoryModel = "dynamic", contention: bool = True
) -> Candidate:
    """``contention=False`` is the paper's model: any number of transfers at once."""
    graph = problem.graph
    down, up = fast.levels(problem.weights)
    order = fast.priority_order(graph, up + down)
    critical = fast.critical_path(problem.weights)
    pinned = np.full(graph.n_ops, -1, dtype=np.int32)
    pinned[critical] = problem.fastest_for(critical)

    def scheduler(core: fast.Problem) -> Iterator[Scheduled]:
        yield fast.schedule(core, order, pinned=pinned)

    return list_scheduled(problem, scheduler, memory=memory, contention=contention)
