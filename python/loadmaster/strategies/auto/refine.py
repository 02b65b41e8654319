"""Refinement: a placement of any strategy, made better by moving groups of ops between devices.

The uncoarsening half of multilevel placement: a hierarchy of groups is built once, and on each
level, coarse to fine, groups move where an estimated schedule gets shorter
(:func:`loadmaster.fast.refine_placement`): in the order of the placement's own schedule, by rank,
in the order of what came of that, and so on. The simulator has the last word.

Groups are of ops near each other (:func:`hierarchy`), or of ops that play the same part in every
layer (:func:`repeats`): where all layers wait for one device, what helps is to move a part of all.
"""

from __future__ import annotations

from itertools import cycle

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, by_start, ranks
from loadmaster.strategies.candidate import Candidate, judged

#: Devices that refinement and search take at most: they are kept as bits of a word.
MOST_DEVICES = 64

#: Groups on each level of the hierarchy; the finest level is single ops.
LEVELS = (32, 128, 512, 2048)

#: A group of a level takes this many times the mean at most.
EVENNESS = 3.0

#: Shares of all time that groups of what repeats take at most, coarse to fine.
REPEATED_SHARES = (0.6, 0.4, 0.25, 0.125, 0.0625, 0.015625)

#: Shares of each device's memory that refinement may fill, in turn, until the result fits.
SHARES = (1.0, 0.9, 0.7)

#: Share of what is left of them that a pass over all levels may take, the least per op that it is
#: worth beginning with, and what it takes as long as before and after.
PASS_SHARE = 0.7
LEAST_PASS = 60
AROUND_PASS = 25


def refined_by(
    problem: Problem, candidate: Candidate, levels: list[NDArray[np.int32]], budget: int
) -> tuple[Candidate, int]:
    """The candidate, or a better one near it, and visits of ops over all moves tried, or what takes
    as long: never worse, for the simulator decides.

    Passes over all levels in two orders in turn, each from the best so far, until neither order
    gains.

    Parameters
    ----------
    levels : list of int32 [n_reduced]
        Groups per level, coarse to fine.
    budget : int
        Most visits: the time it takes, but the same on any machine.
    """
    best, visits, barren = candidate, 0, 0
    for order_of in cycle((_own_order, _rank_order)):
        left, least = budget - visits, LEAST_PASS * problem.graph.n_ops
        if barren == 2 or left < least:
            return best, visits
        most = max(int(PASS_SHARE * left), least)
        found, visited = _passed(problem, best, order_of(problem, best), levels, most)
        visits += visited
        before, best = best, problem.objective.better(best, found)
        barren = barren + 1 if best is before else 0
    raise AssertionError("a cycle does not end")


def _passed(
    problem: Problem,
    candidate: Candidate,
    order: NDArray[np.int32],
    levels: list[NDArray[np.int32]],
    budget: int,
) -> tuple[Candidate, int]:
    """A pass in one order; what it finds may be no better, nor fit."""
    visits = 0
    for share in SHARES:
        devices, _, visited = fast.refine_placement(
            problem.core.within(
                op_bytes=problem.reduced.held_at_peak,
                capacity=(problem.capacity * share).astype(np.uint64),
            ),
            order,
            candidate.assignment.devices,
            levels,
            budget=budget // 2 if visits else budget,
        )
        visits += visited + AROUND_PASS * problem.graph.n_ops
        found = judged(problem, Assignment(devices, ranks(order), "fixed"), candidate.notes)
        if found.fits:
            break
    return found, visits


def hierarchy(problem: Problem) -> list[NDArray[np.int32]]:
    """Groups of even time with little between them, ever finer, down to single ops."""
    graph, op_time = problem.graph, problem.op_time
    levels = []
    for groups in LEVELS:
        if 2 * groups > graph.n_ops:
            break
        group, _ = fast.batch_merge(
            problem.weights, groups, max_time=EVENNESS * float(op_time.sum()) / groups
        )
        levels.append(group)
    return [*levels, np.arange(graph.n_ops, dtype=np.int32)]


def repeats(problem: Problem, rounds: int) -> list[NDArray[np.int32]]:
    """Groups of ops that play the same part in every layer or step, ever finer; ops are alike as
    far as ``rounds`` steps around them show (:func:`loadmaster.fast.repeated_groups`).
    """
    total = float(problem.op_time.sum())
    return fast.repeated_groups(
        problem.weights, rounds, [share * total for share in REPEATED_SHARES]
    )


def _own_order(problem: Problem, candidate: Candidate) -> NDArray[np.int32]:
    """That of the candidate's schedule."""
    return by_start(problem.graph, candidate.schedule.start, candidate.schedule.finish)


def _rank_order(problem: Problem, _candidate: Candidate) -> NDArray[np.int32]:
    """By b-level (HEFT's upward rank)."""
    graph = problem.graph
    _, b_level = fast.levels(problem.weights)
    return np.lexsort((ranks(fast.m_topo(graph)), -b_level)).astype(np.int32)
