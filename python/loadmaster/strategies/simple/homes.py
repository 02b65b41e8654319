"""Homes of the parameters of replicas with parameter servers.

A parameter, with its optimizer state, its update and the sum of its gradients, is on one device:
the largest first, each where the fewest bytes are so far, as parameter servers balance theirs. The
replicas elsewhere pull it every step. What a replica's device may not run goes to the next device
that may.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError
from loadmaster.judge.problem import Problem, summed
from loadmaster.model.program import Program


def with_homes(problem: Problem, done: Program, devices: Sequence[int]) -> NDArray[np.int32]:
    """Device per reduced op of a graph with one home per parameter, replica r on ``devices[r]``.

    What must share a device is a set. O(V + E).

    Raises
    ------
    InfeasibleError
        A set allows no device.
    """
    graph, sets = problem.graph, problem.graph.colocation
    replica = done.replica[problem.reduced.op_of]
    free = len(devices)
    of_set = np.full(int(sets.max()) + 1, free, dtype=np.int32)
    np.minimum.at(of_set, sets, np.where(replica >= 0, replica, free).astype(np.int32))

    kept = summed(graph.resident, sets, len(of_set))
    load = summed(kept[of_set < free], of_set[of_set < free], free)
    homes = np.flatnonzero((of_set == free) & (kept > 0))
    for home in homes[np.argsort(kept[homes], kind="stable")[::-1]].tolist():
        least = int(load.argmin())
        of_set[home] = least
        load[least] += kept[home]

    # The rest, sums of gradients above all, goes where it is read: readers are settled first.
    src, dst, _, _ = graph.flows()
    reader = np.full(graph.n_ops, -1, dtype=np.int64)
    reader[src[::-1]] = dst[::-1]
    for op in fast.m_topo(graph)[::-1].tolist():
        if of_set[sets[op]] == free:
            of_set[sets[op]] = of_set[sets[reader[op]]] if reader[op] >= 0 else 0
    return where_allowed(problem, np.array(devices, dtype=np.int32)[of_set][sets])


def where_allowed(problem: Problem, devices: NDArray[np.int32]) -> NDArray[np.int32]:
    """Devices of reduced ops; a set that may not run on its own goes to the next that it allows.

    Raises
    ------
    InfeasibleError
        A set allows no device.
    """
    graph, types = problem.graph, problem.cluster.device_types
    of_set = np.zeros(int(graph.colocation.max()) + 1, dtype=np.int32)
    of_set[graph.colocation] = devices
    masks = np.full(len(of_set), 2**64 - 1, dtype=np.uint64)
    np.bitwise_and.at(masks, graph.colocation, graph.allowed)
    here = np.array(types, dtype=np.uint64)[of_set]
    for at in np.flatnonzero((masks >> here) & np.uint64(1) == 0).tolist():
        around = [(int(of_set[at]) + i) % len(types) for i in range(len(types))]
        may = [device for device in around if int(masks[at]) >> types[device] & 1]
        if not may:
            op = problem.model.names[problem.reduced.op_of[np.argmax(graph.colocation == at)]]
            raise InfeasibleError(
                f"op {op!r} and what must share a device with it allow no device of the cluster"
            )
        of_set[at] = may[0]
    return of_set[graph.colocation]
