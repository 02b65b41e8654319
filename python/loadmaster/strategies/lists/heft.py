"""HEFT (Topcuoglu, Hariri and Wu 2002): ops by upward rank, each where it finishes earliest.

Ranks count mean times over the devices an op may run on and mean transfer times; ops of no time are
told apart topologically. An op may go into an idle slot before ops that are scheduled already.

Those ranks charge every transfer, although most tensors stay on their device. So there are further
rounds, which the paper does not have: each ranks the ops by the placement of the round before,
where only tensors that change devices are charged, and schedules the ops again. The best round
counts. ``rounds=1, contention=False`` is the paper's HEFT.

The transfers of an op delay other transfers. An op goes where its finish plus that delay, times a
weight, is least. A high weight is better most often, but can keep a branch on its device that
should leave. So the second round has the weight 1, and the third ranks by what the second found.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, repeat

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.lists.listing import Scheduled, list_scheduled
from loadmaster.strategies.registry import strategy

ROUNDS = 6

#: Weight of the delay of others, by round; the last weight holds for all later rounds.
DELAY_WEIGHTS = (4, 1, 4)


@strategy("heft", "by upward rank, each where it finishes earliest (HEFT)")
def place(
    problem: Problem,
    *,
    rounds: int = ROUNDS,
    memory: MemoryModel = "dynamic",
    contention: bool = True,
) -> Candidate:
    """List scheduling by upward rank.

    Parameters
    ----------
    rounds : how often ops are ranked and scheduled.
    memory : see :func:`~loadmaster.strategies.lists.listing.list_scheduled`.
    contention : False: the paper's model, any number of transfers at once.
    """
    checks.integer("rounds", rounds)
    graph = problem.graph
    _, upward = fast.levels(problem.weights)

    def scheduler(core: fast.Problem) -> Iterator[Scheduled]:
        rank = upward
        for weight in islice(chain(DELAY_WEIGHTS, repeat(DELAY_WEIGHTS[-1])), rounds):
            order = fast.priority_order(graph, rank)
            scheduled = fast.schedule(core, order, delay_weight=weight)
            yield scheduled
            rank, _ = fast.placed_paths(core, scheduled[0])

    return list_scheduled(problem, scheduler, memory=memory, contention=contention)
