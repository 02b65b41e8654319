"""Passes: groups of ops moved to better devices, level by level, from any placement.

This is the uncoarsening half of multilevel placement. On each level of groups, coarse to fine,
groups move where the estimated schedule gets shorter (:func:`loadmaster.fast.refine_placement`).
The estimate takes ops in a given order: that of the placement's own schedule in one pass, by rank
in the next. The simulator has the last word on what a pass finds.

Groups are of ops near each other (:func:`near_levels`), or of ops that play the same part in every
layer (:func:`repeats_levels`). Where all layers wait for one device, moving the same part of every
layer helps, and moving a part of one layer does not.
"""

from __future__ import annotations

from itertools import cycle

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, by_start, ranks
from loadmaster.strategies.auto.tuning import TUNING, Tuning
from loadmaster.strategies.candidate import Candidate, judged

#: The most devices that refinement and search take: a set of devices is the bits of a word.
MOST_DEVICES = 64

#: The group of each op of the reduced graph, level by level, coarse to fine.
Levels = list[NDArray[np.int32]]


def by_passes(
    problem: Problem, candidate: Candidate, levels: Levels, budget: int, tuning: Tuning = TUNING
) -> tuple[Candidate, int]:
    """The candidate or a better one near it, by passes over all levels, and the visits spent.

    Passes take their orders in turn, each from the best candidate so far. They end when neither
    order gains, or when the visits left are too few for a pass.

    Parameters
    ----------
    problem : Problem
        That of the candidate.
    candidate : Candidate
    levels : list of int32 [n_reduced]
        Groups per level, coarse to fine.
    budget : int
        Most visits. They stand for time, but are the same on every machine.
    """
    best, visits, barren = candidate, 0, 0
    least = tuning.least_pass * problem.graph.n_ops
    for order_of in cycle((_own_order, _rank_order)):
        left = budget - visits
        if barren == 2 or left < least:
            return best, visits
        most = max(int(tuning.pass_share * left), least)
        passed, visited = _passed(problem, best, order_of(problem, best), levels, most, tuning)
        visits += visited
        before, best = best, problem.objective.better(best, passed)
        barren = barren + 1 if best is before else 0
    raise AssertionError("a cycle does not end")


def _passed(
    problem: Problem,
    candidate: Candidate,
    order: NDArray[np.int32],
    levels: Levels,
    budget: int,
    tuning: Tuning,
) -> tuple[Candidate, int]:
    """The result of a pass in one order, and its visits. It may be no better, and need not fit."""
    visits = 0
    for share in tuning.pass_memory:
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
        visits += visited + tuning.around_pass * problem.graph.n_ops
        moved = judged(problem, Assignment(devices, ranks(order), "fixed"), candidate.notes)
        if moved.fits:
            break
    return moved, visits


def near_levels(problem: Problem, tuning: Tuning = TUNING) -> Levels:
    """Groups of even time that send little to each other, ever finer, down to single ops."""
    n_ops, total = problem.graph.n_ops, float(problem.op_time.sum())
    levels = []
    for groups in tuning.near_groups:
        if 2 * groups > n_ops:
            break
        most = tuning.near_evenness * total / groups
        levels.append(fast.batch_merge(problem.weights, groups, max_time=most)[0])
    return [*levels, np.arange(n_ops, dtype=np.int32)]


def repeats_levels(problem: Problem, rounds: int, tuning: Tuning = TUNING) -> Levels:
    """Groups of ops that play the same part in every layer or step, ever finer: of ops that look
    alike as far as ``rounds`` steps around them (:func:`loadmaster.fast.repeated_groups`).
    """
    total = float(problem.op_time.sum())
    most = [share * total for share in tuning.repeats_shares]
    return fast.repeated_groups(problem.weights, rounds, most)


def _own_order(problem: Problem, candidate: Candidate) -> NDArray[np.int32]:
    """The order of the candidate's schedule."""
    return by_start(problem.graph, candidate.schedule.start, candidate.schedule.finish)


def _rank_order(problem: Problem, _candidate: Candidate) -> NDArray[np.int32]:
    """The order by b-level (HEFT's upward rank)."""
    graph = problem.graph
    _, b_level = fast.levels(problem.weights)
    return np.lexsort((ranks(fast.m_topo(graph)), -b_level)).astype(np.int32)
