"""V-cycles: a placement refined on coarse graphs first, the coarsest of them before all others.

Ops of one device are merged into groups, these into larger ones, and so on, so that the placement
is one of each coarse graph, too. It is refined on the coarsest graph (:mod:`.passes`), expanded to
the next finer graph, refined there, and so on down to the graph of the ops: the V-cycle of
multilevel partitioning (Karypis and Kumar 1998; from a given placement, as here: Walshaw 2004),
judged by the schedule instead of the cut. On a coarse graph a move takes a fraction of the time. It
also moves many ops at once, so that it gets past placements that are worse than the one before and
the one after them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.allowance import Meter
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.coarse import CoarseProblem
from loadmaster.judge.problem import Problem, by_start, ranks
from loadmaster.model.graph import Reduced
from loadmaster.strategies.auto.passes import (
    MOST_DEVICES,
    Levels,
    by_passes,
    near_levels,
    repeats_levels,
)
from loadmaster.strategies.auto.tuning import TUNING, RefinementWay, Tuning
from loadmaster.strategies.candidate import Candidate, judged


@dataclass(frozen=True)
class _Groups(Reduced):
    """The reduction to the graph of the groups, and the bytes that groups hold."""

    held: NDArray[np.uint64]

    @cached_property
    def held_at_peak(self) -> NDArray[np.uint64]:
        """Bytes that the ops of each group hold at the peak of a sequential run."""
        return self.held


@dataclass(frozen=True)
class Level:
    """A step of the way down from the ops to the coarsest graph.

    Attributes
    ----------
    coarse : CoarseProblem
        The next finer problem, merged into groups that are numbered in a topological order.
    problem : Problem
        The problem of placing the groups.
    """

    coarse: CoarseProblem
    problem: Problem

    @classmethod
    def of(cls, finer: Problem, group: NDArray[np.int32]) -> Level:
        """The level of given groups, of which none has ops of two devices."""
        coarse, fine = CoarseProblem(finer, group), finer.reduced
        graph = fast.contract(finer.graph, group, colocated=True)
        held = coarse.charge(fine.held_at_peak)
        reduced = _Groups(graph, group[fine.map], coarse.first(fine.op_of), fine.shows, held)
        return cls(coarse, replace(finer, reduced=reduced, time=coarse.time, meter=Meter()))

    def expanded(self, candidate: Candidate) -> Candidate:
        """A candidate for the groups as one for the ops of the next finer graph."""
        schedule = candidate.schedule
        order = by_start(self.problem.graph, schedule.start, schedule.finish)
        finer = self.coarse.problem
        return judged(finer, self.coarse.expanded(candidate.assignment.devices, order))


class Hierarchy(NamedTuple):
    """Groups to refine by on the graph of the ops, level by level, coarse to fine.

    Attributes
    ----------
    repeated : list of int32 [n_reduced]
        Groups of ops that play the same part.
    near : list of int32 [n_reduced]
        Groups of ops near each other.
    """

    repeated: Levels
    near: Levels

    @classmethod
    def of(cls, problem: Problem, way: RefinementWay, tuning: Tuning = TUNING) -> Hierarchy:
        """The groups of a way."""
        return cls(_repeated(problem, way, tuning), near_levels(problem, tuning))


def polished(problem: Problem, candidate: Candidate, tuning: Tuning = TUNING) -> Candidate:
    """The candidate or a better one near it, by V-cycles in several ways: never worse.

    Parameters
    ----------
    problem : Problem
        That of the candidate.
    candidate : Candidate
        From any strategy.

    Examples
    --------
    >>> import loadmaster as lm
    >>> from loadmaster.strategies.auto.v_cycle import polished
    >>> from loadmaster.strategies.candidate import judged
    >>> cluster = lm.Cluster.preset("4xV100-PCIe")
    >>> plan = lm.place(lm.read("example:lenet"), cluster, "round-robin")
    >>> before = judged(plan.problem, plan.assignment)
    >>> after = polished(plan.problem, before)
    >>> plan.problem.objective.gain(before.verdict, after.verdict) >= 0
    True
    """
    n_devices = problem.cluster.n_devices
    # The moves know of no collectives, which tie replicas together.
    if n_devices == 1 or problem.has_collectives:
        return candidate
    if n_devices > MOST_DEVICES:
        note = f"not refined: {n_devices} devices, and refinement takes at most {MOST_DEVICES}"
        return candidate.noted(note)
    near, best, left = near_levels(problem, tuning), candidate, tuning.polish_visits
    for way, share in tuning.polish:
        groups = Hierarchy(_repeated(problem, way, tuning), near)
        best, visits = v_cycle(problem, best, groups, way, int(share * left), tuning)
        left = max(left - visits, 0)
    if best is candidate:
        return candidate
    # A candidate that comes from a coarse graph does not say how the one given came about.
    return replace(best, notes=candidate.notes)


def v_cycle(
    problem: Problem,
    candidate: Candidate,
    groups: Hierarchy,
    way: RefinementWay,
    budget: int,
    tuning: Tuning = TUNING,
) -> tuple[Candidate, int]:
    """The candidate or a better one near it, by one V-cycle, and the visits spent.

    Parameters
    ----------
    problem : Problem
        That of the candidate.
    candidate : Candidate
        From any strategy.
    groups : Hierarchy
        Of the graph of the ops; the groups of ops that play the same part are those of the way.
    way : Way
    budget : int
        Most visits. If they are few, no coarse graphs are made.

    Examples
    --------
    >>> import loadmaster as lm
    >>> from loadmaster.strategies.auto.tuning import RefinementWay
    >>> from loadmaster.strategies.auto.v_cycle import Hierarchy, v_cycle
    >>> from loadmaster.strategies.candidate import judged
    >>> cluster = lm.Cluster.preset("4xV100-PCIe")
    >>> plan = lm.place(lm.read("example:inception-v3"), cluster, "round-robin")
    >>> before, way = judged(plan.problem, plan.assignment), RefinementWay(0, 8.0)
    >>> groups = Hierarchy.of(plan.problem, way)
    >>> after, _ = v_cycle(plan.problem, before, groups, way, 5_000_000)
    >>> plan.problem.objective.gain(before.verdict, after.verdict) > 0
    True
    """
    is_worth_it = budget >= tuning.least_coarse * problem.graph.n_ops
    levels, visits = _coarsened(problem, candidate, way.evenness if is_worth_it else 0.0, tuning)
    current = _on_coarsest(candidate, levels)
    near = near_levels(levels[-1].problem, tuning) if levels else []
    for level, ops in zip(reversed(levels), reversed(_longest(problem, levels)), strict=True):
        if way.is_given:
            repeated = [_dense(group[ops]) for group in groups.repeated]
        else:
            repeated = _repeated(level.problem, way, tuning)
        most = int(tuning.coarse_share * max(budget - visits, 0)) // tuning.coarse_visit
        current, visited = by_passes(level.problem, current, [*repeated, *near], most, tuning)
        visits += tuning.coarse_visit * visited
        current = level.expanded(current)
        single = np.arange(level.coarse.problem.graph.n_ops, dtype=np.int32)
        near = [*(group[level.coarse.group] for group in near), single]
    best = problem.objective.better(candidate, current)
    of_ops = [*groups.repeated, *groups.near]
    passed, visited = by_passes(problem, best, of_ops, max(budget - visits, 0), tuning)
    return passed, visits + visited


def _repeated(problem: Problem, way: RefinementWay, tuning: Tuning) -> Levels:
    """Groups of ops that play the same part, if the way has any."""
    return repeats_levels(problem, way.rounds, tuning) if way.rounds else []


def _coarsened(
    problem: Problem, candidate: Candidate, evenness: float, tuning: Tuning
) -> tuple[list[Level], int]:
    """Ever coarser levels, and the visits that building them takes as long as. No group has ops of
    two devices. The row ends before a level of too few groups, or of hardly fewer than the one
    before.
    """
    levels: list[Level] = []
    finer, devices, visits = problem, candidate.assignment.devices, 0
    total, n_ops = float(problem.op_time.sum()), problem.graph.n_ops
    for ratio in tuning.coarse_ratios if evenness else ():
        groups = n_ops // ratio
        if groups < tuning.fewest_groups:
            break
        visits += tuning.coarse_building * finer.graph.n_ops
        group, _ = fast.batch_merge(
            finer.weights.kept_to(devices), groups, max_time=evenness * total / groups
        )
        level = Level.of(finer, group)
        if level.problem.graph.n_ops > tuning.coarse_shrinkage * finer.graph.n_ops:
            break
        levels.append(level)
        finer, devices = level.problem, level.coarse.first(devices)
    return levels, visits


def _on_coarsest(candidate: Candidate, levels: list[Level]) -> Candidate:
    """The candidate as one for the coarsest level, or itself if there is none. The priority of a
    group is by the start of the op in it that starts first.
    """
    if not levels:
        return candidate
    devices, start = candidate.assignment.devices, candidate.schedule.start
    for level in levels:
        devices = level.coarse.first(devices)
        first = np.full(level.coarse.n_groups, np.inf)
        np.minimum.at(first, level.coarse.group, start)
        start = first
    order = np.argsort(start, kind="stable").astype(np.int32)
    return judged(levels[-1].problem, Assignment(devices, ranks(order)))


def _longest(problem: Problem, levels: list[Level]) -> list[NDArray[np.int64]]:
    """For each level, an op that stands for each group: the longest of the ops that stand for its
    groups on the next finer level.
    """
    chains = []
    ops = np.arange(problem.graph.n_ops)
    for level in levels:
        order = np.argsort(problem.op_time[ops], kind="stable")
        last = np.empty(level.coarse.n_groups, dtype=np.int64)
        last[level.coarse.group[order]] = order
        ops = ops[last]
        chains.append(ops)
    return chains


def _dense(group: NDArray[np.int32]) -> NDArray[np.int32]:
    """The same groups, numbered without gaps."""
    return np.unique(group, return_inverse=True)[1].astype(np.int32)
