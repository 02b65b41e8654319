"""Cluster scheduling's second half: groups of ops mapped to devices, then ordered by the engine.

Guided load balancing (GLB, Radulescu and van Gemund 1998): groups by the time at which their first
op could start, each to the device where its load would be done first. Where memory is short, groups
are taken apart.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, summed
from loadmaster.strategies.attempts import MemoryModel, best_way
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.lists.listing import check_memory, no_slower_than_one, ordered


def by_load(problem: Problem, group: NDArray[np.int32], *, memory: MemoryModel) -> Candidate:
    """Groups mapped by load, their ops ordered; never slower than one device that holds everything.

    Parameters
    ----------
    group : int32 [n_reduced]
        Group per op; groups may depend on each other in a circle.
    """
    check_memory(memory)

    def attempt(
        lead: NDArray[np.int32], bytes_: NDArray[np.uint64], capacity: NDArray[np.uint64]
    ) -> Assignment:
        devices = guided_load_balancing(problem, group, lead, bytes_, capacity)
        return ordered(problem, devices).assignment

    return no_slower_than_one(problem, best_way(problem, attempt, memory))


def guided_load_balancing(
    problem: Problem,
    group: NDArray[np.int32],
    lead: NDArray[np.int32],
    bytes_: NDArray[np.uint64],
    capacity: NDArray[np.uint64],
) -> NDArray[np.int32]:
    """A device per op: that of the group of the op that decides for it.

    Groups whose ops may run on different device types are taken apart by what they may use, and a
    group that no device has room for into the ops that decide. O(groups x devices).

    Raises
    ------
    InfeasibleError
        An op, with those that follow it, that no device has room for, unless best effort will do.
    """
    n = problem.graph.n_ops
    seconds = np.stack([np.bincount(lead, column, n) for column in problem.time.T], axis=1)
    taken = summed(bytes_, lead, n)
    first = np.full(n, np.inf)
    top, _ = fast.levels(problem.weights)
    np.minimum.at(first, lead, top)

    # Plain numbers: there are few devices, and many parts of a single op.
    types, columns, bytes_of = problem.cluster.device_types, seconds.T.tolist(), taken.tolist()
    free, load = capacity.tolist(), [0.0] * problem.cluster.n_devices
    device_of = np.zeros(n, dtype=np.int32)
    parts = [ops.tolist() for ops in _parts(group, lead, problem.graph.allowed)]
    # By the time at which the first of their ops could start.
    waiting = [(first[ops].min(), i, ops) for i, ops in enumerate(parts)]
    heapq.heapify(waiting)
    while waiting:
        _, _, ops = heapq.heappop(waiting)
        needed = sum(bytes_of[op] for op in ops)
        cost = [sum(column[op] for op in ops) for column in columns]
        allowed = problem.allowed_types[ops[0]].tolist()
        may = [d for d, k in enumerate(types) if allowed[k]]
        room = [d for d in may if free[d] >= needed]
        if not room and len(ops) > 1:
            for op in ops:
                heapq.heappush(waiting, (first[op], len(parts) + op, [op]))
            continue
        if room:
            device = min(room, key=lambda d: load[d] + cost[types[d]])
        else:
            device = _roomiest(problem, ops[0], may, free, needed)
        device_of[ops] = device
        load[device] += cost[types[device]]
        free[device] -= needed
    return device_of[lead]


def _parts(
    group: NDArray[np.int32], lead: NDArray[np.int32], allowed: NDArray[np.uint64]
) -> list[NDArray[np.intp]]:
    """The ops that decide, by group and the device types they may use."""
    deciding = np.unique(lead)
    keys = np.stack([group[deciding].astype(np.uint64), allowed[deciding]])
    _, part = np.unique(keys, axis=1, return_inverse=True)
    part = part.reshape(-1)
    by_part = np.argsort(part, kind="stable")
    return np.split(deciding[by_part], np.flatnonzero(np.diff(part[by_part])) + 1)


def _roomiest(problem: Problem, member: int, may: list[int], free: list[int], needed: int) -> int:
    """The roomiest device allowed, for an op that fits nowhere; or an error."""
    name = problem.model.names[problem.reduced.op_of[member]]
    if not may:
        raise InfeasibleError(f"op {name!r} is allowed on no device of this cluster")
    device = max(may, key=lambda d: (free[d], -d))
    if not problem.best_effort:
        where, short = problem.cluster.devices[device].name, needed - free[device]
        raise InfeasibleError(
            f"op {name!r}, with what follows it, needs {needed} bytes; the most that is free on a "
            f"device it may use is {free[device]} bytes, on {where}: {short} bytes short",
            {where: short},
        )
    return device
