"""V-cycles: a placement refined on coarse graphs first, the coarsest first of all.

Ops of one device are merged into groups, these into larger ones, and so on, so that the placement
is one of each coarse graph, too. On the coarsest it is refined (:mod:`.refine`), expanded to the
next finer graph, refined there, and at last on the graph of the ops: the V-cycle of multilevel
partitioning (Karypis and Kumar 1998; from a placement as here: Walshaw 2004), judged by the
schedule instead of the cut. On a coarse graph a move takes a fraction of the time, and leads past
placements that are worse where groups move one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.coarse import CoarseProblem as Coarse
from loadmaster.judge.problem import Problem, by_start, ranks
from loadmaster.model.graph import Reduced
from loadmaster.strategies.auto.refine import MOST_DEVICES, hierarchy, refined_by, repeats
from loadmaster.strategies.candidate import Candidate, judged

#: Ops per group on each coarse graph, fine to coarse; one is left out that would have fewer groups
#: than this, or hardly fewer than the one before.
RATIOS = (2, 4, 8)
FEWEST = 64
SHRINKS = 0.9

#: Share of what is left of the visits that refinement on a coarse graph may take.
COARSE_SHARE = 0.4

#: The least visits per op that coarse graphs are worth building with.
LEAST = 450

#: Visits that one on a coarse graph takes as long as: its ops read and make more tensors.
HEAVIER = 2

#: Visits that it takes as long to build a coarse graph, per op of the finer one.
BUILDING = 60


@dataclass(frozen=True)
class _Groups(Reduced):
    """What a coarse graph is a reduction of, and the bytes that groups hold."""

    held: NDArray[np.uint64]

    @cached_property
    def held_at_peak(self) -> NDArray[np.uint64]:
        """What the ops of each group hold at the peak of a sequential run, in bytes."""
        return self.held


@dataclass(frozen=True, kw_only=True)
class CoarseProblem(Problem):
    """A problem whose ops are groups of a finer one's.

    Attributes
    ----------
    finer : Problem
    group : int32 [finer.graph.n_ops]
        Numbered in a topological order.
    """

    finer: Problem
    group: NDArray[np.int32]

    @classmethod
    def of(cls, finer: Problem, group: NDArray[np.int32]) -> CoarseProblem:
        """That of given groups, of which none has ops of two devices."""
        graph = fast.contract(finer.graph, group, colocated=True)
        n, fine = graph.n_ops, finer.reduced
        held = np.zeros(n, dtype=np.uint64)
        np.add.at(held, group, fine.held_at_peak)
        reduced = _Groups(graph, group[fine.map], _of_first(group, fine.op_of), fine.shows, held)
        time = Coarse(finer, group).time
        return cls(
            finer.program,
            finer.cluster,
            finer.costs,
            reduced,
            time,
            finer.seed,
            finer.best_effort,
            finer=finer,
            group=group,
        )

    def expanded(self, candidate: Candidate) -> Candidate:
        """A candidate for the groups, as one for the ops: those of a group one after another."""
        topological = ranks(fast.m_topo(self.finer.graph))
        schedule = candidate.schedule
        of_group = ranks(by_start(self.graph, schedule.start, schedule.finish))
        order = np.lexsort((topological, of_group[self.group])).astype(np.int32)
        devices = candidate.assignment.devices[self.group]
        return judged(self.finer, Assignment(devices, ranks(order), "fixed"))


class Way(NamedTuple):
    """How a placement is coarsened and refined.

    Attributes
    ----------
    rounds : int
        Ops are alike as far as so many steps around them show; 0: no groups of what repeats.
    evenness : float
        A group of a coarse graph takes this many times the mean at most; 0: no coarse graphs.
    is_given : bool
        Whether the ops of coarse graphs are alike where their longest ops are, or as the coarse
        graph itself shows.
    """

    rounds: int
    evenness: float
    is_given: bool = False


class Hierarchy(NamedTuple):
    """Groups to refine by on the graph of the ops, coarse to fine.

    Attributes
    ----------
    repeated : list of int32 [n_reduced]
        Of what repeats.
    near : list of int32 [n_reduced]
        Of ops near each other.
    """

    repeated: list[NDArray[np.int32]]
    near: list[NDArray[np.int32]]


#: The ways of one refinement, in turn, each for this share of what is left of the visits; these are
#: about a second.
TURNS = ((Way(6, 30.0), 0.5), (Way(0, 8.0), 0.5), (Way(0, 0.0), 1.0))
BUDGET = 40_000_000


def refined(problem: Problem, candidate: Candidate) -> Candidate:
    """The candidate, or a better one near it, by V-cycles in several ways: never worse.

    Parameters
    ----------
    problem : Problem
        That of the candidate.
    candidate : Candidate
        From any strategy.

    Examples
    --------
    >>> import loadmaster as lm
    >>> from loadmaster.strategies.auto.v_cycle import refined
    >>> cluster = lm.Cluster.preset("4xV100-PCIe")
    >>> plan = lm.place(lm.read("example:lenet"), cluster, "round-robin")
    >>> from loadmaster.judge.assignment import Assignment
    >>> from loadmaster.strategies.candidate import judged
    >>> before = judged(plan.problem, Assignment(plan.assignment.devices, plan.assignment.priority))
    >>> refined(plan.problem, before).schedule.makespan <= before.schedule.makespan
    True
    """
    n_devices = problem.cluster.n_devices
    if n_devices == 1:
        return candidate
    if n_devices > MOST_DEVICES:
        note = f"not refined: {n_devices} devices, and refinement takes at most {MOST_DEVICES}"
        return replace(candidate, notes=(*candidate.notes, note))
    near, found, left = hierarchy(problem), candidate, BUDGET
    for way, share in TURNS:
        groups = Hierarchy(repeats(problem, way.rounds) if way.rounds else [], near)
        found, visits = v_cycle(problem, found, groups, way, int(share * left))
        left = max(left - visits, 0)
    if found is candidate:
        return candidate
    # Coarse graphs know nothing of how the candidate came about.
    return replace(found, notes=candidate.notes)


def v_cycle(
    problem: Problem, candidate: Candidate, groups: Hierarchy, way: Way, budget: int
) -> tuple[Candidate, int]:
    """The candidate, or a better one near it, and visits of ops over all moves tried, or what takes
    as long.

    Parameters
    ----------
    problem : Problem
        That of the candidate.
    candidate : Candidate
        From any strategy.
    groups : Hierarchy
        Of the graph of the ops; its groups of what repeats are those of the way.
    way : Way
    budget : int
        Most visits. Where they are few, no coarse graphs are made.

    Examples
    --------
    >>> import numpy as np
    >>> import loadmaster as lm
    >>> from loadmaster.judge.assignment import Assignment
    >>> from loadmaster.strategies.candidate import judged
    >>> from loadmaster.strategies.auto.v_cycle import Hierarchy, Way, v_cycle
    >>> from loadmaster.strategies.auto.refine import hierarchy
    >>> cluster = lm.Cluster.preset("4xV100-PCIe")
    >>> plan = lm.place(lm.read("example:inception-v3"), cluster, "round-robin")
    >>> before = judged(plan.problem, Assignment(plan.assignment.devices, plan.assignment.priority))
    >>> groups = Hierarchy([], hierarchy(plan.problem))
    >>> after, _ = v_cycle(plan.problem, before, groups, Way(0, 8.0), 5_000_000)
    >>> after.schedule.makespan < before.schedule.makespan
    True
    """
    evenness = way.evenness if budget >= LEAST * problem.graph.n_ops else 0.0
    coarse, visits = _coarsened(problem, candidate, evenness)
    current = _on_coarsest(candidate, coarse)
    near = hierarchy(coarse[-1]) if coarse else []
    for level, ops in zip(reversed(coarse), reversed(_longest(problem, coarse)), strict=True):
        if way.is_given:
            repeated = [_dense(group[ops]) for group in groups.repeated]
        else:
            repeated = repeats(level, way.rounds) if way.rounds else []
        most = int(COARSE_SHARE * max(budget - visits, 0)) // HEAVIER
        current, visited = refined_by(level, current, [*repeated, *near], most)
        visits += HEAVIER * visited
        current = level.expanded(current)
        single = np.arange(level.finer.graph.n_ops, dtype=np.int32)
        near = [*(group[level.group] for group in near), single]
    best = problem.objective.better(candidate, current)
    levels = [*groups.repeated, *groups.near]
    found, visited = refined_by(problem, best, levels, max(budget - visits, 0))
    return found, visits + visited


def _coarsened(
    problem: Problem, candidate: Candidate, evenness: float
) -> tuple[list[CoarseProblem], int]:
    """Ever coarser problems, none of whose groups has ops of two devices, and visits."""
    found: list[CoarseProblem] = []
    finer, devices, visits = problem, candidate.assignment.devices, 0
    total, n_ops = float(problem.op_time.sum()), problem.graph.n_ops
    for ratio in RATIOS if evenness else ():
        groups = n_ops // ratio
        if groups < FEWEST:
            break
        graph = finer.graph
        visits += BUILDING * graph.n_ops
        group, _ = fast.batch_merge(
            finer.weights.kept_to(devices), groups, max_time=evenness * total / groups
        )
        coarse = CoarseProblem.of(finer, group)
        if coarse.graph.n_ops > SHRINKS * graph.n_ops:
            break
        found.append(coarse)
        finer, devices = coarse, _of_first(group, devices)
    return found, visits


def _on_coarsest(candidate: Candidate, coarse: list[CoarseProblem]) -> Candidate:
    """The candidate as one of the last of these problems: groups are dispatched as their first ops
    start.
    """
    if not coarse:
        return candidate
    devices, start = candidate.assignment.devices, candidate.schedule.start
    for level in coarse:
        devices = _of_first(level.group, devices)
        first = np.full(level.graph.n_ops, np.inf)
        np.minimum.at(first, level.group, start)
        start = first
    order = np.argsort(start, kind="stable").astype(np.int32)
    return judged(coarse[-1], Assignment(devices, ranks(order)))


def _of_first(group: NDArray[np.int32], column: NDArray[np.int32]) -> NDArray[np.int32]:
    """What each group's first op has."""
    first = np.empty(int(group.max()) + 1, dtype=np.int32)
    first[group[::-1]] = column[::-1]
    return first


def _longest(problem: Problem, coarse: list[CoarseProblem]) -> list[NDArray[np.int64]]:
    """The op that takes longest in each group, per coarse graph: of the finer one's longest."""
    found = []
    ops = np.arange(problem.graph.n_ops)
    for level in coarse:
        order = np.argsort(problem.op_time[ops], kind="stable")
        last = np.empty(level.graph.n_ops, dtype=np.int64)
        last[level.group[order]] = order
        ops = ops[last]
        found.append(ops)
    return found


def _dense(group: NDArray[np.int32]) -> NDArray[np.int32]:
    """The same groups, numbered without gaps."""
    return np.unique(group, return_inverse=True)[1].astype(np.int32)
