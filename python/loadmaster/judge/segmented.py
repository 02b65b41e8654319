"""Segments: an assignment of whole ops cut where devices send or wait, and its step as these.

A segment runs as one piece: it starts when all that it reads is there, and hands out what others
read when it ends. So a device's ops are cut after each op whose result another device reads, and
before each op that waits for what was not there when its segment began. Then every segment starts
when its first op does, and the step is as long as the assignment's. With fewer segments it is not:
one that goes on after a send lets the receiver wait, and one that begins too early waits itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.coarse import CoarseProblem
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import Simulation, run
from loadmaster.model.graph import PLACEHOLDERS


def in_segments(problem: Problem, assignment: Assignment) -> NDArray[np.int32]:
    """The segment of each op of the user's graph: int32 [n_ops], numbered in an order in which
    segments can run; -1: a placeholder, which every segment has that reads it.

    O(V log V + E), and a simulation.
    """
    graph, devices = problem.model, assignment.devices[problem.reduced.map]
    computed = [i for i, kind in enumerate(graph.kinds) if kind not in PLACEHOLDERS]
    node_of = {op: node for node, op in enumerate(computed)}
    reads: list[list[int]] = [[] for _ in computed]
    for src, dst in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        if src in node_of and dst in node_of:
            reads[node_of[dst]].append(node_of[src])
    seen = run(problem, assignment)
    runs = segments(
        devices[computed].tolist(),
        reads,
        seen.start[computed].tolist(),
        seen.finish[computed].tolist(),
        _arrived(problem, devices, seen)[computed].tolist(),
    )
    of = np.full(graph.n_ops, -1, dtype=np.int32)
    for segment, nodes in enumerate(runs):
        of[[computed[node] for node in nodes]] = segment
    return of


def step_of(problem: Problem, assignment: Assignment, of: NDArray[np.int32]) -> float:
    """Seconds per step where segments run as they are, as simulated: each starts when all is there
    that one of its ops reads, and sends when its last op has ended.
    """
    present, group = np.unique(of[problem.reduced.op_of], return_inverse=True)
    coarse = CoarseProblem(problem, group.astype(np.int32))
    devices = np.zeros(len(present), dtype=np.int32)
    devices[group] = assignment.devices
    order = np.arange(len(present), dtype=np.int32)
    return fast.simulate(coarse.core, devices, order, policy="fixed").makespan


def segments(
    devices: Sequence[int],
    reads: Sequence[Sequence[int]],
    start: Sequence[float],
    finish: Sequence[float],
    arrived: Sequence[float],
) -> list[list[int]]:
    """Nodes of each segment, in an order in which nodes and segments can run; all nodes, once.

    A segment sends what its last node makes, and what nodes after it make in no time from nodes of
    the segment: views of what is sent. All its other nodes are read on its device alone. So a
    segment that reads another has the later last node, and there is no cycle. O(V log V + E).

    Parameters
    ----------
    devices
        Device per node.
    reads
        Per node the nodes that it reads.
    start, finish
        Seconds, per node. A node counts as starting no earlier than what it reads is there.
    arrived
        Seconds at which the last came that a node reads from another device; 0: nothing does.

    Examples
    --------
    Node 1 reads node 0 from another device, and node 3 needs the result back; node 2 does not:

    >>> segments([0, 1, 0, 0], [[], [0], [0], [1, 2]], [0, 1, 1, 3], [1, 2, 2, 4], [0, 1, 0, 2])
    [[0], [1], [2], [3]]

    Had node 2 taken longer, nobody would wait for the result:

    >>> segments([0, 1, 0, 0], [[], [0], [0], [1, 2]], [0, 1, 1, 9], [1, 2, 9, 10], [0, 1, 0, 1])
    [[0], [1], [2, 3]]
    """
    sent = [False] * len(devices)
    for node, sources in enumerate(reads):
        for source in sources:
            sent[source] |= devices[source] != devices[node]
    order, began, ended = _in_order(reads, start, finish, arrived)
    runs: list[list[int]] = []
    # Per segment: when it begins, and the place of its last node but those that only follow.
    begins: list[float] = []
    last: list[int] = []
    of = [-1] * len(devices)
    current: dict[int, int] = {}
    closed: set[int] = set()
    for place, node in enumerate(order):
        segment = current.get(devices[node], -1)
        follows = began[node] == ended[node] and all(of[u] == segment for u in reads[node])
        begin = segment < 0 or arrived[node] > begins[segment]
        if begin or (segment in closed and not follows):
            segment = current[devices[node]] = len(runs)
            runs.append([])
            begins.append(began[node])
            last.append(place)
        elif not follows:
            last[segment] = place
        runs[segment].append(node)
        of[node] = segment
        if sent[node]:
            closed.add(segment)
    return [runs[i] for i in sorted(range(len(runs)), key=last.__getitem__)]


def _in_order(
    reads: Sequence[Sequence[int]],
    start: Sequence[float],
    finish: Sequence[float],
    arrived: Sequence[float],
) -> tuple[list[int], list[float], list[float]]:
    """Nodes by start, then finish, each after what it reads; and when they start and finish."""
    readers: list[list[int]] = [[] for _ in reads]
    missing = [len(set(sources)) for sources in reads]
    for node, sources in enumerate(reads):
        for source in set(sources):
            readers[source].append(node)
    began = [max(pair) for pair in zip(start, arrived, strict=True)]
    ended = [max(pair) for pair in zip(began, finish, strict=True)]
    heap = [(began[n], ended[n], n) for n, count in enumerate(missing) if count == 0]
    heapq.heapify(heap)
    order: list[int] = []
    while heap:
        *_, node = heapq.heappop(heap)
        order.append(node)
        for reader in readers[node]:
            began[reader] = max(began[reader], ended[node])
            ended[reader] = max(ended[reader], began[reader])
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(heap, (began[reader], ended[reader], reader))
    return order, began, ended


def _arrived(problem: Problem, devices: NDArray[np.int32], seen: Simulation) -> NDArray[np.float64]:
    """Seconds at which the last came that each op of the user's graph reads from elsewhere."""
    graph, reduced, sent = problem.model, problem.reduced, seen.transfers
    arrived = np.zeros(graph.n_ops)
    keys = zip(sent.op.tolist(), sent.tensor.tolist(), sent.dst.tolist(), strict=True)
    came = dict(zip(keys, sent.finish.tolist(), strict=True))
    src, dst, tensor, _, _ = fast.edges(reduced.graph)
    for maker, reader, key in zip(
        reduced.op_of[src].tolist(), reduced.op_of[dst].tolist(), tensor.tolist(), strict=True
    ):
        at = came.get((maker, key, int(devices[reader])), 0.0)
        arrived[reader] = max(arrived[reader], at)
    # A view is with its data, but what it reads beside that may come from elsewhere.
    last: dict[tuple[int, int], float] = {}
    for (op, _, device), finish in came.items():
        last[op, device] = max(finish, last.get((op, device), 0.0))
    shown = reduced.op_of[reduced.map]
    for op, reader in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        if not reduced.runs[reader]:
            at = last.get((int(shown[op]), int(devices[reader])), 0.0)
            arrived[reader] = max(arrived[reader], at)
    return arrived
