"""Contiguous stages: their meaning for the ops of a problem.

Devices, in the cluster's order, are stages. No op feeds a forward op of an earlier stage. No
backward op feeds a backward op of a later stage: the backward pass runs through the stages in
reverse. The optimizer may be anywhere. Sets of ops that depend on each other in both directions
share a stage. All other sets get an order that the stages allow, close to that of the forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InputError
from loadmaster.judge.allowed import allowed_devices
from loadmaster.judge.problem import Problem, ranks


@dataclass(frozen=True)
class Stages:
    """The meaning of contiguous stages for a problem.

    Attributes
    ----------
    before, after : int64 columns
        Pairs of colocated sets: the stage of ``after`` is not earlier than that of ``before``.
    knot : int64 [n_sets]
        Knot of each set. Sets that depend on each other in both directions share a knot, and so a
        stage.
    allowed : bool [n_knots, n_devices]
        Whether a knot may be on a device.
    order : int64 [n_knots]
        Knots in an order that can be cut into ranges, one per device, so that the cut obeys every
        pair and ``allowed``.
    """

    before: NDArray[np.int64]
    after: NDArray[np.int64]
    knot: NDArray[np.int64]
    allowed: NDArray[np.bool_]
    order: NDArray[np.int64]

    @classmethod
    def of(cls, problem: Problem) -> Stages:
        """The pairs, knots and order of a problem. O((V + E) + knots x devices).

        Raises
        ------
        InputError
            The devices that ops allow leave no contiguous placement; the error names an op.
        """
        sets = problem.graph.colocation.astype(np.int64)
        first, second = _pairs(problem)
        before, after = sets[first], sets[second]
        across = before != after
        before, after = before[across], after[across]
        knot = knots(int(sets.max()) + 1, before, after)
        n = int(knot.max()) + 1
        allowed = np.ones((n, problem.cluster.n_devices), dtype=bool)
        np.logical_and.at(allowed, knot, allowed_devices(problem))
        # Knots are numbered so that pairs lead from smaller to larger numbers.
        rows = np.unique(np.stack([knot[before], knot[after]], axis=1), axis=0)
        rows = rows[rows[:, 0] != rows[:, 1]]
        earliest = _earliest(problem, knot, allowed, rows)
        latest = _latest(allowed, rows)
        order = np.lexsort((np.arange(n), _positions(problem, knot, rows), latest, earliest))
        return cls(before, after, knot, allowed, order)

    def hold(self, problem: Problem, devices: NDArray[np.int32]) -> bool:
        """True if a placement of the reduced ops is contiguous."""
        stage = np.empty(len(self.knot), dtype=np.int64)
        stage[problem.graph.colocation] = devices
        return bool((stage[self.before] <= stage[self.after]).all())


def _pairs(problem: Problem) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Pairs of reduced ops: the second may not be on an earlier stage than the first."""
    src, dst, _, _ = problem.graph.flows()
    phase = _phases(problem)
    forward = np.isin(phase, ("", "f"))[dst]
    backward = (phase[src] == "b") & (phase[dst] == "b")
    return (
        np.concatenate([src[forward], dst[backward]]),
        np.concatenate([dst[forward], src[backward]]),
    )


def _phases(problem: Problem) -> NDArray[np.str_]:
    return np.array([problem.model.phases[op] for op in problem.reduced.op_of.tolist()])


def knots(n: int, before: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
    """Strongly connected components, int64 [n], numbered so that edges lead to larger numbers.

    Tarjan (1972), without recursion; O(n + edges).

    >>> knots(4, np.array([0, 1, 2, 1]), np.array([1, 2, 1, 3])).tolist()
    [0, 1, 1, 2]
    """
    by_tail = np.argsort(before, kind="stable")
    heads = after[by_tail].tolist()
    start = np.searchsorted(before[by_tail], np.arange(n + 1)).tolist()
    unseen = n
    number, low = [unseen] * n, [unseen] * n
    component = np.full(n, -1, dtype=np.int64)
    cursor = start[:-1].copy()
    seen = count = 0
    open_: list[int] = []
    for root in range(n - 1, -1, -1):
        path = [root] if number[root] == unseen else []
        while path:
            u = path[-1]
            if number[u] == unseen:
                number[u] = low[u] = seen
                seen += 1
                open_.append(u)
            if cursor[u] < start[u + 1]:
                v = heads[cursor[u]]
                cursor[u] += 1
                if number[v] == unseen:
                    path.append(v)
                elif component[v] < 0:
                    low[u] = min(low[u], number[v])
                continue
            path.pop()
            if path:
                low[path[-1]] = min(low[path[-1]], low[u])
            if low[u] == number[u]:
                while component[u] < 0:
                    component[open_.pop()] = count
                count += 1
    # Tarjan's algorithm finds a component after all components that its edges lead to.
    return count - 1 - component


def _earliest(
    problem: Problem, knot: NDArray[np.int64], allowed: NDArray[np.bool_], rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The first stage each knot can be on."""
    n = len(allowed)
    least = [0] * n
    cause = [-1] * n
    start = np.searchsorted(rows[:, 0], np.arange(n + 1)).tolist()
    heads = rows[:, 1].tolist()
    for u in range(n):
        may = np.flatnonzero(allowed[u, least[u] :])
        if not len(may):
            _refuse(problem, knot, allowed, u, cause[u], least[u])
        least[u] += int(may[0])
        for v in heads[start[u] : start[u + 1]]:
            if least[u] > least[v]:
                least[v], cause[v] = least[u], u
    return np.array(least, dtype=np.int64)


def _latest(allowed: NDArray[np.bool_], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The last stage each knot can be on."""
    n, k = allowed.shape
    most = [k - 1] * n
    start = np.searchsorted(rows[:, 0], np.arange(n + 1)).tolist()
    heads = rows[:, 1].tolist()
    for u in range(n - 1, -1, -1):
        least = min((most[v] for v in heads[start[u] : start[u + 1]]), default=k - 1)
        most[u] = int(np.flatnonzero(allowed[u, : least + 1])[-1])
    return np.array(most, dtype=np.int64)


def _refuse(
    problem: Problem,
    knot: NDArray[np.int64],
    allowed: NDArray[np.bool_],
    stuck: int,
    cause: int,
    least: int,
) -> None:
    """Raises for a knot that has no stage."""

    def name(of: int) -> str:
        op = int(np.flatnonzero(knot[problem.graph.colocation] == of)[0])
        return repr(problem.model.names[problem.reduced.op_of[op]])

    devices = problem.cluster.devices
    may = ", ".join(devices[d].name for d in np.flatnonzero(allowed[stuck]))
    if not may:
        raise InputError(
            f"contiguous stages: {name(stuck)} and ops that it depends on, and that depend on it, "
            "must share a stage, but no device is allowed to all of them"
        )
    raise InputError(
        f"contiguous stages: {name(stuck)} may be on {may} only, but what feeds it, such as "
        f"{name(cause)}, can be on {devices[least].name} at the earliest"
    )


def _positions(
    problem: Problem, knot: NDArray[np.int64], rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Position of each knot along the forward pass, never before a knot that must come earlier.

    A backward op has the position of the last forward op that it reads from. An op of the optimizer
    has the position of the op that reads what it updates, else the position of the op that it
    feeds.
    """
    graph, of = problem.graph, knot[problem.graph.colocation]
    src, dst, _, _ = graph.flows()
    topological = ranks(fast.m_topo(graph)).astype(np.int64)
    phase = _phases(problem)
    forward = np.isin(phase, ("", "f"))
    at = np.where(forward, topological, -1)
    reads = forward[src] & (phase[dst] == "b")
    np.maximum.at(at, dst[reads], topological[src[reads]])
    position = np.full(int(knot.max()) + 1, -1, dtype=np.int64)
    np.maximum.at(position, of, at)
    for before, after in rows[np.argsort(rows[:, 0], kind="stable")].tolist():
        position[after] = max(position[after], position[before])

    ruled = np.zeros(len(position), dtype=bool)
    ruled[rows.reshape(-1)] = True
    loose = ~ruled[of] & ~forward
    position[of[loose]] = position[of[graph.lead[loose]]]
    first_reader = np.full(graph.n_ops, -1, dtype=np.int64)
    first_reader[src[::-1]] = dst[::-1]
    for op in fast.m_topo(graph)[::-1].tolist():
        if loose[op] and position[of[op]] < 0 <= first_reader[op]:
            position[of[op]] = position[of[first_reader[op]]]
    return position
