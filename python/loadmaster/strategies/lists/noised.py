"""HEFT on times with noise: a start for the search that rules of thumb about ranks do not lead to.

Problem-space search (Storer, Wu and Vaccari 1992): not the schedule is searched but the data that a
list scheduler ranks by. Times of some ops and tensors are changed at random, ops ranked and
scheduled anew at their true times, and the change is kept if that takes no longer. It begins with
the better of two ranks: every transfer charged, as in :mod:`.heft`, or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem
from loadmaster.judge.verdict import Verdict
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.lists.heft import DELAY_WEIGHTS
from loadmaster.strategies.lists.listing import Scheduled, in_order_of_start, list_scheduled

#: Schedules tried, and the shares of transfer times that the first two are ranked by.
ROUNDS = 100
CHARGED = (1.0, 0.0)

#: Share of the times that a round changes, and by how much at most.
SHARE = 0.1
NOISE = 0.5

Times = NDArray[np.float64]


class _NoisedSchedule(NamedTuple):
    """A schedule, its verdict, and the times of ops and tensors that it was ranked by."""

    verdict: Verdict
    scheduled: Scheduled
    op_time: Times
    sent: Times


def place(problem: Problem) -> Candidate:
    """The best of 100 schedules, by ranks that each come from the best before."""
    graph = problem.graph

    def scheduler(core: fast.Problem) -> Iterator[Scheduled]:
        def tried(op_time: Times, sent: Times) -> _NoisedSchedule:
            _, rank = fast.levels(
                fast.Weights(graph, op_time, sent, control_time=problem.control_time)
            )
            order = fast.priority_order(graph, rank)
            scheduled = fast.schedule(core, order, delay_weight=DELAY_WEIGHTS[0])
            candidate = judged(problem, in_order_of_start(problem, scheduled))
            return _NoisedSchedule(candidate.verdict, scheduled, op_time, sent)

        random = np.random.default_rng(problem.seed)
        op_time, sent = problem.op_time, problem.tensor_time(graph)
        best = problem.objective.quickest(tried(op_time, share * sent) for share in CHARGED)
        for _ in range(ROUNDS - len(CHARGED)):
            candidate = tried(noised(best.op_time, random), noised(best.sent, random))
            best = problem.objective.quickest((candidate, best))
        yield best.scheduled

    return list_scheduled(problem, scheduler, memory="dynamic", contention=True)


def noised(times: Times, random: np.random.Generator) -> Times:
    """Times of which some are longer or shorter by a random factor."""
    # Products and quotients alone: they are the same on every machine.
    factor = 1 + NOISE * random.random(len(times)) * (random.random(len(times)) < SHARE)
    return np.where(random.random(len(times)) < 0.5, times * factor, times / factor)
