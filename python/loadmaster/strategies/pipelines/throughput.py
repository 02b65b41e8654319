"""Placements with a short period: stages of several orders, single ops moved, models dealt out.

Contiguous stages (:mod:`.period_cuts`) and what methods place otherwise are starts for moves of
single ops (:mod:`.balance`). Whole models beside each other take batches in turn, each on a device
or on several (:func:`dealt_out`): their latency is one device's, and each holds all weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.bounds import bound
from loadmaster.judge.problem import Problem, ranks
from loadmaster.model.orders import program_order
from loadmaster.readers.planners.max_load import MaxLoad
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.pipelines.balance import Balance
from loadmaster.strategies.pipelines.lines import Line, lines
from loadmaster.strategies.pipelines.max_load import split
from loadmaster.strategies.pipelines.period_cuts import period_cuts, sent
from loadmaster.transforms.dealt import deal

#: Share above the bound at which a period is near enough.
_ENOUGH = 1.001

#: Batches of a round, at most.
_MOST_BATCHES = 32


def staged(problem: Problem, *, share: float = 1.0) -> list[Candidate]:
    """Contiguous stages of several orders on all devices; the best first.

    What stays in memory takes at most a share of it: the rest is for batches under way.
    """
    return _staged(problem, lines(problem), list(_paths(problem)), share)


def _staged(
    problem: Problem, along: list[Line], paths: list[list[int]], share: float = 1.0
) -> list[Candidate]:
    """The same along some lines, on each of several lists of devices."""
    distinct: dict[bytes, Candidate] = {}
    for line in along:
        left = len(line.is_open) - line.place[problem.reduced.op_of]
        order = fast.priority_order(problem.graph, left.astype(np.float64))
        for path in paths:
            at = period_cuts(problem, line, path, share)
            if at is not None and at.tobytes() not in distinct:
                distinct[at.tobytes()] = judged(problem, Assignment(at, ranks(order)))
    return sorted(distinct.values(), key=lambda one: problem.objective.rank(one.verdict))


def of_downsets(problem: Problem) -> Candidate | None:
    """The stages of :func:`loadmaster.strategies.pipelines.max_load.split`, which need not be
    contiguous in any one order. A stage's load there is what it computes, sends and reads, one
    after another; devices count as the slowest. None: none fit.
    """
    unit, n = problem.graph.colocation, int(problem.graph.colocation.max()) + 1
    slowest = max(problem.cluster.device_types, key=lambda k: float(problem.time[:, k].sum()))
    busy = np.bincount(unit, problem.compute_time[:, slowest], n)
    src, dst, seconds = sent(problem)
    away = unit[src] != unit[dst]
    ends = np.unique(np.stack([unit[src[away]], unit[dst[away]]]).astype(np.int64), axis=1)
    inputs = MaxLoad(
        ids=tuple(range(n)),
        times=np.stack([busy, busy], axis=1),
        bytes=np.bincount(unit, problem.graph.resident.astype(np.float64), n).astype(np.int64),
        backward=np.zeros(n, dtype=bool),
        colour=np.arange(n),
        src=ends[0],
        dst=ends[1],
        cost=np.bincount(unit[src[away]], seconds[away], n).astype(np.float64),
        accelerators=problem.cluster.n_devices,
        memory=min(problem.memory),
        cpus=0,
    )
    try:
        stage = split(inputs).stage
    except InfeasibleError:
        return None
    at = np.array(next(_paths(problem)), dtype=np.int32)[stage[unit]]
    if not problem.allowed_types[np.arange(len(at)), _types(problem)[at]].all():
        return None
    return judged(problem, Assignment(at, ranks(program_order(problem.graph))))


def _types(problem: Problem) -> NDArray[np.int64]:
    return np.array(problem.cluster.device_types)


def _paths(problem: Problem) -> Iterator[list[int]]:
    """Orders of the devices: by index, and each next one where a byte gets soonest from the last;
    where they are unequal, the fastest first, and last.
    """
    by_speed = problem.fastest_first.tolist()
    n = problem.cluster.n_devices
    paths = [list(range(n)), _nearest(problem, 0)]
    if len(set(problem.cluster.device_types)) > 1:
        paths += [by_speed, by_speed[::-1]]
    yield from (list(path) for path in dict.fromkeys(map(tuple, paths)))


def _nearest(problem: Problem, first: int) -> list[int]:
    path, links = [first], problem.links
    left = [d for d in range(problem.cluster.n_devices) if d != first]
    while left:
        at = path[-1]
        path.append(min(left, key=lambda d: (1 / links.route(at, d)[1], d)))
        left.remove(path[-1])
    return path


def balanced(one: Candidate) -> Candidate:
    """A candidate with single ops moved off the busiest device or channel; itself if none helps,
    or where its program has collectives or waits for updates.
    """
    problem = one.problem
    if problem.has_collectives or problem.waits_for_updates:
        return one
    peak = np.minimum(one.verdict.peak, problem.capacity)
    balance = Balance(problem, one.assignment.devices, problem.capacity - peak)
    least = bound(problem).seconds if problem.program.is_plain else 0.0
    balance.improve(least * _ENOUGH)
    moved = judged(problem, replace(one.assignment, devices=balance.devices), one.notes)
    return problem.objective.better(one, moved)


# -- whole models ----------------------------------------------------------------------------------


def dealt_out(problem: Problem) -> Iterator[Candidate]:
    """Whole models on groups of devices, which take batches of a round in turn: as many models as
    devices first, then fewer, each as stages of several devices.
    """
    path, along = next(_paths(problem)), lines(problem)
    n = len(path)
    for size in (size for size in range(1, n // 2 + 1) if n % size == 0):
        groups = [path[i : i + size] for i in range(0, n, size)]
        lanes = [_staged(problem, along, [group]) for group in groups]
        kept = [lane[0] for lane in lanes if lane]
        if len(kept) > 1:
            yield dealt(problem, kept)


def dealt(problem: Problem, lanes: list[Candidate]) -> Candidate:
    """Whole models beside each other that take batches of a round in turn, judged: as many batches
    for each lane, a placement of the model, as its speed allows.
    """
    periods = np.array([lane.verdict.period for lane in lanes])
    counts = counts_by_speed(periods)
    lanes = [lane for lane, count in zip(lanes, counts, strict=True) if count]
    counts = [count for count in counts if count]
    placed = problem.transformed(deal(problem.model, counts))
    op_of = placed.reduced.op_of
    batch = placed.program.replica[op_of]
    source = problem.reduced.map[placed.program.serves[op_of]]
    lane_of = np.repeat(np.arange(len(lanes)), counts)[batch]
    at = np.stack([lane.assignment.devices for lane in lanes])[lane_of, source]
    order = np.stack([lane.assignment.priority for lane in lanes])[lane_of, source]
    priority = batch * problem.graph.n_ops + order
    candidate = judged(placed, Assignment(at.astype(np.int32), priority.astype(np.int32)))
    return candidate.noted(turns_in_words(candidate))


def turns_in_words(candidate: Candidate) -> str:
    """Whole models that take batches in turn, in a few words: how many, and how many batches of a
    round each takes where these numbers differ.

    Models are told apart by their devices.
    """
    program = candidate.problem.program
    batch = program.replica[candidate.problem.reduced.op_of]
    devices = (candidate.assignment.devices[batch == i] for i in range(program.batches))
    turns = Counter(frozenset(some.tolist()) for some in devices)
    counts = list(turns.values())
    unequal = "" if len(set(counts)) == 1 else f", {', '.join(map(str, counts))} of each round"
    return f"{len(counts)} whole models take batches in turn{unequal}"


def counts_by_speed(periods: NDArray[np.float64]) -> list[int]:
    """Batches of a round for lanes of these periods, such that a round takes least per batch.

    >>> counts_by_speed(np.array([1.0, 1.0])), counts_by_speed(np.array([1.0, 2.0, 2.0]))
    ([1, 1], [2, 1, 1])
    """
    best: tuple[float, list[int]] | None = None
    counts = np.zeros(len(periods), dtype=np.int64)
    for batches in range(1, max(_MOST_BATCHES, len(periods)) + 1):
        counts[int(((counts + 1) * periods).argmin())] += 1
        each = float((counts * periods).max()) / batches
        if best is None or each < best[0] * (1 - 1e-3):
            best = each, counts.tolist()
    assert best is not None
    return best[1]
