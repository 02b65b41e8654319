"""Contiguous stages: any strategy's placement, made one whose devices are in order along the graph.

:mod:`loadmaster.rules.stages` says what stages allow, and brings ops into an order for them; here
a dynamic program cuts that order into one range per device.

Of all cuts that devices allow and have memory for, the one is taken that moves least work away from
where the strategy put it. A placement that is contiguous already stays as it is. The cut need not
be the fastest one: steps are not compared. And some contiguous placements are no cut of this order,
since branches can be cut apart in other ways.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.units import format_seconds
from loadmaster.judge.problem import Problem
from loadmaster.rules.stages import Stages
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.refusal import refuse_overfull
from loadmaster.strategies.simple.assigned import assigned, per_set

#: Cost of a cut that cannot be made.
_NEVER = np.iinfo(np.int64).max // 4


def contiguous(candidate: Candidate) -> Candidate:
    """A strategy's candidate, if its stages are contiguous, or the nearest cut into ranges.

    Parameters
    ----------
    candidate : Candidate

    Raises
    ------
    InputError
        What ops allow leaves no contiguous placement.
    InfeasibleError
        No cut fits.

    Notes
    -----
    O(V + E + knots x devices) per share of the memory that is tried.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    >>> scattered = lm.place(graph, cluster, "random")
    >>> rules = lm.Constraints(contiguous=True)
    >>> plan = lm.place(graph, cluster, "random", constraints=rules)
    >>> stages = Stages.of(plan.problem)
    >>> [bool(stages.hold(plan.problem, p.assignment.devices)) for p in (scattered, plan)]
    [False, True]
    """
    problem, devices = candidate.problem, candidate.assignment.devices
    stages = Stages.of(problem)
    if stages.hold(problem, devices):
        return candidate
    cost = _costs(problem, stages, devices)

    def assign(bytes_: NDArray[np.uint64], capacity: NDArray[np.uint64]) -> NDArray[np.int32]:
        held = np.zeros(len(cost))
        np.add.at(held, stages.knot, per_set(problem, bytes_))
        by_knot = cut(stages, cost, held, capacity.astype(np.float64))
        if by_knot is None:
            by_knot = cut(stages, cost, held, np.full(len(capacity), np.inf))
            assert by_knot is not None
            if not problem.best_effort:
                devices = by_knot[stages.knot][problem.graph.colocation]
                refuse_overfull(problem, "a contiguous stage", devices, bytes_, capacity)
        return by_knot[stages.knot][problem.graph.colocation]

    assigned_candidate = assigned(problem, assign, "dynamic")
    moved = int((assigned_candidate.assignment.devices != devices).sum())
    note = (
        f"contiguous stages: {moved} of {len(devices)} ops moved, step "
        f"{format_seconds(candidate.verdict.step_time)} before"
    )
    return replace(assigned_candidate, notes=(*candidate.notes, note), bound=candidate.bound)


def cut(
    stages: Stages,
    cost: NDArray[np.int64],
    held: NDArray[np.float64],
    capacity: NDArray[np.float64],
) -> NDArray[np.int32] | None:
    """A device per knot: ranges of the order, one per device, of the least cost; None: none fits.

    Parameters
    ----------
    stages : Stages
    cost : int64 [n_knots, n_devices]
        Of each knot on each device.
    held : float64 [n_knots]
        Bytes.
    capacity : float64 [n_devices]

    Notes
    -----
    Where a range that ends at j may begin moves on with j, so the least of what comes before is a
    sliding window's: O(knots x devices).
    """
    order = stages.order
    n, k = len(order), len(capacity)
    held_until = np.concatenate([[0.0], np.cumsum(held[order])])
    least = np.full(n + 1, _NEVER, dtype=np.int64)
    least[0] = 0
    begins = np.zeros((k, n + 1), dtype=np.int64)
    for stage in range(k):
        spent = np.concatenate([[0], np.cumsum(cost[order, stage])])
        # The first position from which this device may and can hold everything up to j.
        refused = np.where(stages.allowed[order, stage], 0, np.arange(1, n + 1))
        by_rule = np.concatenate([[0], np.maximum.accumulate(refused)])
        by_memory = np.searchsorted(held_until, held_until - capacity[stage], "left")
        first = np.maximum(by_rule, by_memory)
        least, begins[stage] = _windowed(least, spent, first)
    if least[n] >= _NEVER:
        return None
    devices = np.empty(n, dtype=np.int32)
    end = n
    for stage in range(k - 1, -1, -1):
        begin = int(begins[stage, end])
        devices[order[begin:end]] = stage
        end = begin
    return devices


def _windowed(
    least: NDArray[np.int64], spent: NDArray[np.int64], first: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The least ``least[i] + spent[j] - spent[i]`` with first[j] <= i <= j, and i, for every j."""
    base = np.where(least >= _NEVER, _NEVER, least - spent).tolist()
    window: deque[int] = deque()
    ends, begin = [], []
    for j, start in enumerate(first.tolist()):
        while window and base[window[-1]] > base[j]:
            window.pop()
        window.append(j)
        while window[0] < start:
            window.popleft()
        begin.append(window[0])
        ends.append(base[window[0]])
    best = np.array(ends, dtype=np.int64)
    return np.where(best >= _NEVER, _NEVER, best + spent), np.array(begin, dtype=np.int64)


def _costs(problem: Problem, stages: Stages, devices: NDArray[np.int32]) -> NDArray[np.int64]:
    """Work that is not where the strategy put it, if a knot is on a device: nanoseconds, and one
    for every op; int64 [n_knots, n_devices].
    """
    of = stages.knot[problem.graph.colocation]
    work = np.rint(problem.op_time * 1e9).astype(np.int64) + 1
    cost = np.zeros(stages.allowed.shape, dtype=np.int64)
    np.add.at(cost, of, work[:, None])
    np.subtract.at(cost, (of, devices), work)
    return cost
