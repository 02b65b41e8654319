"""Cluster scheduling's second half: groups of ops mapped to devices, then ordered by the engine.

Guided load balancing (GLB, Radulescu and van Gemund 1998): groups by the time at which their first
op could start, each to the device where its load would be done first.
"""

from __future__ import annotations

from functools import partial, reduce

import numpy as np
from numpy.typing import NDArray

from loadmaster import fast
from loadmaster.errors import InfeasibleError
from loadmaster.problem import Problem
from loadmaster.strategies.base import (
    Candidate,
    MemoryModel,
    Placement,
    better_outcome,
    try_memory,
)
from loadmaster.strategies.fused import deciders
from loadmaster.strategies.listing import (
    check_memory,
    no_slower_than_one,
    ordered,
)


def mapped(problem: Problem, group: NDArray[np.int32], *, memory: MemoryModel) -> Candidate:
    """Groups mapped by load, their ops ordered; never slower than one device that holds everything.

    Parameters
    ----------
    group : int32 [n_reduced]
        Group per op; groups may depend on each other in a circle.
    """
    check_memory(memory)
    outcomes = [
        try_memory(problem, partial(_attempt, problem, group, lead), memory)
        for lead in deciders(problem.graph)
    ]
    return no_slower_than_one(problem, reduce(partial(better_outcome, problem), outcomes))


def _attempt(
    problem: Problem,
    group: NDArray[np.int32],
    lead: NDArray[np.int32],
    bytes_: NDArray[np.uint64],
    capacity: NDArray[np.uint64],
) -> Placement:
    found = ordered(problem, guided_load_balancing(problem, group, lead, bytes_, capacity))
    return Placement(found.devices, found.priority, found.estimate)


def guided_load_balancing(
    problem: Problem,
    group: NDArray[np.int32],
    lead: NDArray[np.int32],
    bytes_: NDArray[np.uint64],
    capacity: NDArray[np.uint64],
) -> NDArray[np.int32]:
    """A device per op: that of the group of the op that decides for it.

    Groups whose ops may run on different device types are taken apart by what they may use.
    O(groups x devices).

    Raises
    ------
    InfeasibleError
        A group that no device has room for, unless best effort will do.
    """
    deciding = np.stack([group[lead].astype(np.uint64), problem.graph.allowed[lead]])
    _, member, part = np.unique(deciding, axis=1, return_index=True, return_inverse=True)
    part = part.reshape(-1)
    n_parts = len(member)
    allowed = problem.allowed_types[lead[member]]
    seconds = np.stack([np.bincount(part, column, n_parts) for column in problem.time.T], axis=1)
    taken = np.zeros(n_parts, dtype=np.uint64)
    np.add.at(taken, part, bytes_)
    first = np.full(n_parts, np.inf)
    top, _ = fast.levels(
        problem.graph,
        problem.op_time,
        problem.tensor_time(problem.graph),
        control_time=problem.control_time,
    )
    np.minimum.at(first, part, top)

    types = np.array(problem.cluster.device_types)
    free = capacity.astype(object)
    load = np.zeros(problem.cluster.n_devices)
    device_of = np.zeros(n_parts, dtype=np.int32)
    for g in np.lexsort((np.arange(n_parts), first)).tolist():
        may = allowed[g, types]
        room = may & np.array([f >= int(taken[g]) for f in free])
        if not room.any():
            device = _roomiest(problem, int(member[g]), may, free, int(taken[g]))
        else:
            done = np.where(room, load + seconds[g, types], np.inf)
            device = int(done.argmin())
        device_of[g] = device
        load[device] += seconds[g, types[device]]
        free[device] -= int(taken[g])
    return device_of[part]


def _roomiest(
    problem: Problem,
    member: int,
    may: NDArray[np.bool_],
    free: NDArray[np.object_],
    needed: int,
) -> int:
    """Where a group goes that fits nowhere: the roomiest device allowed, or an error."""
    name = problem.model.names[problem.reduced.op_of[member]]
    if not may.any():
        raise InfeasibleError(f"op {name!r} is allowed on no device of this cluster")
    device = max(np.flatnonzero(may).tolist(), key=lambda d: (free[d], -d))
    if not problem.best_effort:
        where, short = problem.cluster.devices[device].name, needed - int(free[device])
        raise InfeasibleError(
            f"the group of op {name!r} takes {needed} bytes; the most that is free on a device "
            f"it may use is {free[device]} bytes, on {where}: {short} bytes short",
            {where: short},
        )
    return device
