"""A search over assignments for the least overflow: what decides where every greedy pass fails.

A small problem is tried whole: every assignment, in each order of
:data:`~loadmaster.model.orders.ORDERS`. Else groups of colocated sets, coarse to fine, leave
devices that are over their memory, at random, as often as not in exchange for another group. What
holds no more bytes too many is kept (a walk as in WalkSAT, Selman, Kautz and Cohen 1994).
Simulations are counted, so the same problem has the same answer on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError
from loadmaster.judge.allowed import allowed_devices
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, ranks
from loadmaster.model.orders import ORDERS
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.lists.listing import ordered
from loadmaster.strategies.options import takes
from loadmaster.strategies.refusal import proof
from loadmaster.strategies.simple import single

#: Note of a plan that came from here.
NOTE = "the method itself found no placement that fits: a search for the least overflow did"

#: The most assignments that are all tried.
FEW = 10_000

#: The most simulations of a walk, and the most ops that they have in all: some seconds.
SIMULATIONS = 2_000
SIMULATED_OPS = 2_000_000

#: Groups that move, coarse to fine, before single sets do.
GROUPS = (16, 64, 256)


def place(problem: Problem, start: Candidate | None = None) -> Candidate:
    """The best placement found, where it fits or best effort will do; it says where it came from.

    Parameters
    ----------
    problem : Problem
    start : Candidate, optional
        One that does not fit, to begin with beside others.

    Raises
    ------
    InfeasibleError
        None was found that fits; a set may be on no device.

    Examples
    --------
    Two layers, of which the first that comes takes the only device for the second:

    >>> import loadmaster as lm
    >>> ops = {"name": ["a", "b"], "param_bytes": [14, 20], "time": {"*": [1.0, 1.0]}}
    >>> graph = lm.OpGraph(ops, {"src": [], "dst": []})
    >>> both = [lm.Link("large", "small", 1e9), lm.Link("small", "large", 1e9)]
    >>> devices = [lm.Device("large", "V100", 24), lm.Device("small", "V100", 16)]
    >>> lm.place(graph, lm.Cluster(devices, both), "m-topo").devices.tolist()
    [1, 0]
    """
    candidate = searched(problem, start)
    return replace(candidate, notes=(NOTE,)) if candidate.fits else candidate


def rescued(
    problem: Problem, function: Callable[..., Candidate], keywords: Mapping[str, Any]
) -> Candidate:
    """A placement in the place of a method that refuses: its own with best effort, if it takes
    that and it fits after all, else the best placement found, beginning with its own.

    Raises
    ------
    InfeasibleError
        None was found that fits.
    """
    closest: Candidate | None = None
    if takes(function, "memory"):
        with suppress(InfeasibleError):
            closest = function(replace(problem, best_effort=True), **keywords)
            closest = replace(closest, problem=replace(closest.problem, best_effort=False))
    if closest is not None and closest.fits:
        return closest
    is_of_these_ops = closest is not None and closest.problem.program is problem.program
    return place(problem, closest if is_of_these_ops else None)


def searched(problem: Problem, start: Candidate | None = None) -> Candidate:
    """The same, but that it says nothing: of several placements, one more.

    Raises
    ------
    InfeasibleError
        None was found that fits.
    """
    allowed = allowed_devices(problem)
    priorities = [ranks(make(problem.graph)) for make in ORDERS]
    is_hopeless = proof(problem) is not None
    count = math.prod(allowed.sum(axis=1).tolist())
    best: Candidate | None = None
    if not is_hopeless and count <= FEW and count * problem.graph.n_ops <= SIMULATED_OPS:
        best = _best_of_all(problem, _every(allowed, count), priorities)
    if best is None:
        best = problem.objective.best(_starts(problem, priorities, start))
        if not is_hopeless:
            best = _walked(problem, best, allowed, priorities)
    candidate = accepted(problem, Outcome(best, 1.0))
    return problem.objective.better(candidate, ordered(problem, candidate.assignment.devices))


def _every(allowed: NDArray[np.bool_], count: int) -> NDArray[np.int32]:
    """All assignments: int32 [count, n_sets]."""
    every = np.empty((count, len(allowed)), dtype=np.int32)
    left = np.arange(count)
    for s, row in enumerate(allowed):
        left, choice = np.divmod(left, row.sum())
        every[:, s] = np.flatnonzero(row)[choice]
    return every


def _best_of_all(
    problem: Problem, every: NDArray[np.int32], priorities: list[NDArray[np.int32]]
) -> Candidate | None:
    """The best of all assignments that fit, in the first order in which one does."""
    sets = problem.graph.colocation
    kept = np.bincount(sets, weights=problem.graph.resident.astype(np.float64))
    for device, memory in enumerate(problem.memory):
        every = every[(every == device) @ kept <= memory]
    for priority in priorities:
        tried = (judged(problem, Assignment(row[sets], priority, "fixed")) for row in every)
        fitting = [one for one in tried if one.fits]
        if fitting:
            return problem.objective.best(fitting)
    return None


def _starts(
    problem: Problem, priorities: list[NDArray[np.int32]], first: Candidate | None
) -> Iterator[Candidate]:
    """Placements that greedy passes make where what has no room goes where there is most."""
    if first is not None:
        yield first
    with suppress(InfeasibleError):
        yield judged(problem, single.place(replace(problem, best_effort=True)).assignment)
    core = problem.core.within(best_effort=True)
    charged = core.within(op_bytes=problem.reduced.held_at_peak)
    for priority in priorities:
        order = np.argsort(priority).astype(np.int32)
        for devices in (
            fast.follow_bytes(charged, order),
            fast.fill_in_order(charged, order, devices=problem.fastest_first),
            fast.schedule(core, order)[0],
        ):
            yield judged(problem, Assignment(devices, priority, "fixed"))


def _levels(problem: Problem) -> Iterator[NDArray[np.int32]]:
    """A group per colocated set, coarse to fine; each set is one at last."""
    sets = problem.graph.colocation
    first = np.unique(sets, return_index=True)[1]
    for groups in GROUPS:
        if groups < len(first):
            yield fast.batch_merge(problem.weights, groups)[0][first]
    yield np.arange(len(first), dtype=np.int32)


def _walked(
    problem: Problem,
    best: Candidate,
    allowed: NDArray[np.bool_],
    priorities: list[NDArray[np.int32]],
) -> Candidate:
    """The result of a walk from a candidate, each step of which overflows less, until it fits."""
    rng = np.random.default_rng(problem.seed)
    sets = problem.graph.colocation
    first = np.unique(sets, return_index=True)[1]
    held = np.bincount(sets, weights=problem.reduced.held_at_peak.astype(np.float64)) + 1
    levels = list(_levels(problem))
    most = min(SIMULATIONS, SIMULATED_OPS // problem.graph.n_ops) // len(levels)
    for group in levels:
        for _ in range(most):
            if best.fits:
                return best
            devices = best.assignment.devices[first]
            over = best.verdict.peak > problem.capacity
            here = int(rng.choice(np.flatnonzero(over)))
            there = int(rng.choice(np.delete(np.arange(len(over)), here))) if len(over) > 1 else 0
            moved = devices.copy()
            moved[_drawn(rng, group, held * ((devices == here) & allowed[:, there]))] = there
            if rng.random() < 0.5:
                moved[_drawn(rng, group, held * ((devices == there) & allowed[:, here]))] = here
            priority = best.assignment.priority
            if rng.random() < 1 / 4:
                priority = priorities[rng.integers(len(priorities))]
            candidate = judged(problem, Assignment(moved[sets], priority, "fixed"))
            if candidate.verdict.excess <= best.verdict.excess:
                best = candidate
    return best


def _drawn(
    rng: np.random.Generator, group: NDArray[np.int32], weight: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """The sets of a group that have a weight; the group is drawn by them."""
    total = float(weight.sum())
    if total == 0:
        return np.zeros(len(weight), dtype=bool)
    drawn = rng.choice(len(weight), p=weight / total)
    chosen: NDArray[np.bool_] = (group == group[drawn]) & (weight > 0)
    return chosen
