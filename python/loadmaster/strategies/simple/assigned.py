"""Parts that baselines share which only choose devices: rules per colocated set, memory, an order.

METIS, layers and the dice know nothing of schedules: they give each op a device, and the order
comes after.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.allowed import allowed_devices
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, ranks
from loadmaster.strategies.attempts import MemoryModel, Outcome, accepted, try_memory
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.lists.listing import ordered

#: Device per reduced op, given bytes per reduced op and capacity per device.
Assign = Callable[[NDArray[np.uint64], NDArray[np.uint64]], NDArray[np.int32]]


def assigned(problem: Problem, assign: Assign, memory: MemoryModel) -> Candidate:
    """Devices that fit, in the better of Kahn order and a list order.

    Raises
    ------
    InfeasibleError
        No assignment fits.
    """
    in_kahn_order = ranks(fast.m_topo(problem.graph))

    def attempt(bytes_: NDArray[np.uint64], capacity: NDArray[np.uint64]) -> Assignment:
        return Assignment(assign(bytes_, capacity), in_kahn_order)

    return in_a_better_order(problem, try_memory(problem, attempt, memory))


def in_a_better_order(problem: Problem, outcome: Outcome) -> Candidate:
    """The outcome's devices, if they fit, in the better of its own order and a list order.

    Raises
    ------
    InfeasibleError
        They do not fit, or there are none.
    """
    candidate = accepted(problem, outcome)
    return problem.objective.better(ordered(problem, candidate.assignment.devices), candidate)


def per_set(problem: Problem, per_op: NDArray[np.generic]) -> NDArray[np.float64]:
    """Sums a column, or each column of a matrix, over the colocated sets."""
    sets = problem.graph.colocation
    columns = per_op.astype(np.float64).reshape(len(sets), -1)
    sums = [np.bincount(sets, weights=column) for column in columns.T]
    return np.stack(sums, axis=1).astype(np.float64).reshape(-1, *per_op.shape[1:])


def on_allowed(problem: Problem, device_of_set: NDArray[np.int32]) -> NDArray[np.int32]:
    """Moves sets that may not be where they are to the least loaded device that they allow."""
    allowed = allowed_devices(problem)
    seconds = per_set(problem, problem.time)[:, problem.cluster.device_types]
    everyone = np.arange(len(device_of_set))
    moved = np.flatnonzero(~allowed[everyone, device_of_set])
    result = device_of_set.copy()
    if not len(moved):
        return result
    load = np.zeros(problem.cluster.n_devices)
    stays = allowed[everyone, device_of_set]
    np.add.at(load, device_of_set[stays], seconds[everyone, device_of_set][stays])
    for s in moved:
        after = np.where(allowed[s], load + seconds[s], np.inf)
        result[s] = int(np.argmin(after))
        load[result[s]] = after[result[s]]
    return result
