"""Segments: an assignment of whole ops cut where devices send or wait, and its step as these.

A segment runs as one piece: it starts when all that it reads is there, and hands out what others
read when it ends. So a device's ops are cut after each op whose result another device reads, and
before each op that waits for what was not there when its segment began. Then every segment starts
when its first op does, and the step is as long as the assignment's. With fewer segments it is not:
one that goes on after a send lets the receiver wait, and one that begins too early waits itself.

But where a segment is a run of a session, each costs time of its own (:class:`SessionCost`). So
segments merge: several cuts are tried, each with more patience for such waits than the one before,
and the one is taken whose step, with the costs of its runs, is the shortest.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.coarse import CoarseProblem
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import Simulation, run
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import INPUT, PLACEHOLDERS
from loadmaster.model.runtime import SessionCost

#: Patience that cuts are tried with, as multiples of the cost of a run; beside none, and no end.
_PATIENCE = (0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class SegmentCut:
    """An assignment cut into segments.

    Attributes
    ----------
    of : int32 [n_ops]
        Segment of each op of the user's graph, numbered in an order in which segments can run; -1:
        a placeholder, which every segment has that reads it.
    step : float
        Seconds per step where segments run as they are, as simulated: each starts when all is there
        that one of its ops reads, and sends when its last op has ended.
    """

    of: NDArray[np.int32]
    step: float


def cut(problem: Problem, assignment: Assignment, session: SessionCost | None = None) -> SegmentCut:
    """The cut of an assignment of whole ops that has the shortest step; of equals the fewest
    segments.

    ``session`` is the cost of running a segment on device types that do not say theirs. None:
    segments cost nothing, and nothing is gained by merging them.

    O(V log V + E), and a simulation, per cut that is tried: a dozen, if segments cost anything.
    """
    costs = () if session is None else sessions(problem.cluster, session)
    tried: dict[bytes, SegmentCut] = {}
    dearest = max((cost.run for cost in costs), default=0.0)
    for of in _cuts(problem, assignment, dearest):
        if of.tobytes() not in tried:
            tried[of.tobytes()] = SegmentCut(of, step_of(problem, assignment, of, costs))
    return min(tried.values(), key=lambda one: (one.step, int(one.of.max(initial=-1))))


def sessions(cluster: Cluster, otherwise: SessionCost) -> tuple[SessionCost, ...]:
    """The cost of running a segment per device type of a cluster."""
    return tuple(kind.session_cost or otherwise for kind in cluster.types)


def _cuts(problem: Problem, assignment: Assignment, run_cost: float) -> Iterator[NDArray[np.int32]]:
    """The segment of each op of the user's graph, by cuts of growing patience."""
    graph, devices = problem.model, assignment.devices[problem.reduced.map]
    computed = [i for i, kind in enumerate(graph.kinds) if kind not in PLACEHOLDERS]
    node_of = {op: node for node, op in enumerate(computed)}
    reads: list[list[int]] = [[] for _ in computed]
    for src, dst in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        if src in node_of and dst in node_of:
            reads[node_of[dst]].append(node_of[src])
    seen = run(problem, assignment)
    times = (seen.start, seen.finish, _arrived(problem, devices, seen))
    start, finish, arrived = (column[computed].tolist() for column in times)
    multiples = (0.0, *_PATIENCE, inf) if run_cost else (0.0,)
    for multiple in multiples:
        patience = multiple * run_cost
        runs = segments(devices[computed].tolist(), reads, start, finish, arrived, patience)
        of = np.full(graph.n_ops, -1, dtype=np.int32)
        for segment, nodes in enumerate(runs):
            of[[computed[node] for node in nodes]] = segment
        yield of


def step_of(
    problem: Problem,
    assignment: Assignment,
    of: NDArray[np.int32],
    costs: Sequence[SessionCost] = (),
) -> float:
    """Seconds per step where segments run as they are; see :class:`SegmentCut`.

    ``costs`` are those of running a segment, per device type; none: it costs nothing.
    """
    present, group = np.unique(of[problem.reduced.op_of], return_inverse=True)
    coarse = CoarseProblem(problem, group.astype(np.int32))
    core = coarse.core
    if costs:
        bound = _bound_tensors(problem, of)[present]
        runs = [[cost.seconds(n) for cost in costs] for n in bound.tolist()]
        core = fast.Problem(coarse.contracted, problem.links, coarse.time + np.array(runs), None)
        core = core.within(best_effort=problem.best_effort)
    devices = np.zeros(len(present), dtype=np.int32)
    devices[group] = assignment.devices
    order = np.arange(len(present), dtype=np.int32)
    return fast.simulate(core, devices, order, policy="fixed").makespan


def _bound_tensors(problem: Problem, of: NDArray[np.int32]) -> NDArray[np.int64]:
    """The number of inputs and outputs of each segment; weights are none."""
    graph, n = problem.model, int(of.max(initial=-1)) + 1
    tensor = graph.src if graph.tensor is None else graph.tensor
    reader, maker = of[graph.dst], of[graph.src]
    comes = (reader >= 0) & (reader != maker) & (tensor >= 0)
    comes &= (maker >= 0) | (graph.stands_for[graph.src] == INPUT)
    inputs = np.unique(np.stack([reader[comes], tensor[comes]]), axis=1)[0]
    goes = comes & (maker >= 0)
    outputs = np.unique(np.stack([maker[goes], tensor[goes]]), axis=1)[0]
    is_read = np.zeros(graph.n_ops, dtype=bool)
    is_read[graph.src] = True
    results = of[~is_read & (of >= 0)]
    return np.bincount(np.concatenate([inputs, outputs, results]), minlength=n)


def segments(
    devices: Sequence[int],
    reads: Sequence[Sequence[int]],
    start: Sequence[float],
    finish: Sequence[float],
    arrived: Sequence[float],
    patience: float = 0.0,
) -> list[list[int]]:
    """Nodes of each segment, in an order in which nodes and segments can run; all nodes, once.

    Without patience a segment sends what its last node makes, and what nodes after it make in no
    time from nodes of the segment: views of what is sent. All its other nodes are read on its
    device alone. So a segment that reads another has the later last node, and there is no cycle.
    With patience no node joins a segment that what it reads has waited for. O(V log V + E), and
    with patience O(V S) for S segments.

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
    patience
        Seconds that a segment may begin too early, and that what it sends may be late.

    Examples
    --------
    Node 1 reads node 0 from another device, and node 3 needs the result back; node 2 does not:

    >>> segments([0, 1, 0, 0], [[], [0], [0], [1, 2]], [0, 1, 1, 3], [1, 2, 2, 4], [0, 1, 0, 2])
    [[0], [1], [2], [3]]

    Had node 2 taken longer, nobody would wait for the result:

    >>> segments([0, 1, 0, 0], [[], [0], [0], [1, 2]], [0, 1, 1, 9], [1, 2, 9, 10], [0, 1, 0, 1])
    [[0], [1], [2, 3]]

    Nor is there a cut where two seconds of waiting are less than a segment costs; but what waits
    for node 1 cannot be in a segment that node 1 waits for:

    >>> times = [0, 1, 1, 3], [1, 2, 2, 4], [0, 1, 0, 2]
    >>> segments([0, 1, 0, 0], [[], [0], [0], [1, 2]], *times, patience=2)
    [[0, 2], [1], [3]]
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
    closed: dict[int, float] = {}
    waits = _Waits()
    for place, node in enumerate(order):
        segment = current.get(devices[node], -1)
        follows = began[node] == ended[node] and all(of[u] == segment for u in reads[node])
        begin = segment < 0 or arrived[node] > begins[segment] + patience
        late = ended[node] - closed.get(segment, inf)
        others = {of[u] for u in reads[node]} - {segment}
        if begin or (late >= patience and not follows) or waits.has(others, segment):
            segment = current[devices[node]] = len(runs)
            runs.append([])
            begins.append(began[node])
            last.append(place)
            others = {of[u] for u in reads[node]}
        elif not follows:
            last[segment] = place
        runs[segment].append(node)
        of[node] = segment
        waits.add(segment, others)
        if sent[node]:
            closed.setdefault(segment, ended[node])
    return [runs[segment] for segment in waits.order(last)]


class _Waits:
    """The segments that each segment waits for, itself included, as the bits of a number."""

    def __init__(self) -> None:
        self._bits: list[int] = []
        self._sources: list[set[int]] = []
        self._waiting: list[set[int]] = []

    def has(self, segments: Iterable[int], waited_for: int) -> bool:
        """True if one of these segments waits for another."""
        return any(self._bits[segment] >> waited_for & 1 for segment in segments)

    def add(self, segment: int, sources: Iterable[int]) -> None:
        """Lets a segment, which may be a new one, wait for others, and all that wait for it too."""
        if segment == len(self._bits):
            self._bits.append(1 << segment)
            self._sources.append(set())
            self._waiting.append(set())
        more = 0
        for source in sources:
            more |= self._bits[source]
            self._sources[segment].add(source)
            self._waiting[source].add(segment)
        longer = [segment]
        while longer:
            at = longer.pop()
            if more & ~self._bits[at]:
                self._bits[at] |= more
                longer += self._waiting[at]

    def order(self, rank: Sequence[int]) -> list[int]:
        """All segments by rank, but each after those that it waits for."""
        # One that waits for another waits for more than that one does.
        after = sorted(range(len(rank)), key=lambda at: self._bits[at].bit_count())
        latest = list(rank)
        for at in after:
            latest[at] = max([rank[at], *(latest[source] for source in self._sources[at])])
        return sorted(after, key=latest.__getitem__)


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
