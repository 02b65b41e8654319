"""Cuts a plan into segments that each run on one device, where the plan sends or waits.

A segment runs as one piece: it starts when all that it reads is there, and hands out what others
read when it ends. So a device's ops are cut after each op whose result another device reads, and
before each op that waits for what was not there when its segment began. Then every segment starts
when its first op does, and the step is as long as the plan's. With fewer segments it is not: one
that goes on after a send lets the receiver wait, and one that begins too early waits itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.units import format_seconds
from loadmaster.judge.coarse import CoarseProblem
from loadmaster.judge.simulation import Simulation, run
from loadmaster.model.graph import PLACEHOLDERS
from loadmaster.plans.plan import Plan


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
    found: list[list[int]] = []
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
            segment = current[devices[node]] = len(found)
            found.append([])
            begins.append(began[node])
            last.append(place)
        elif not follows:
            last[segment] = place
        found[segment].append(node)
        of[node] = segment
        if sent[node]:
            closed.add(segment)
    return [found[i] for i in sorted(range(len(found)), key=last.__getitem__)]


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


@dataclass(frozen=True)
class Exported:
    """What a step takes, as simulated.

    Attributes
    ----------
    plan : float
        Seconds as the plan has it.
    exported : float
        Seconds as its segments have it.
    single : float or None
        Seconds on the fastest single device that holds the model; None: none does.

    Examples
    --------
    >>> print(Exported(0.95e-3, 1.72e-3, 1.2e-3))
    plan 950 us, as exported 1.72 ms, one device 1.2 ms
    """

    plan: float
    exported: float
    single: float | None

    @property
    def growth(self) -> float:
        """The share by which the step grows in being exported."""
        return self.exported / self.plan - 1 if self.plan else 0.0

    @property
    def advice(self) -> str:
        """What to do where one device is faster than what is exported; empty where it is not."""
        if self.single is None or self.exported <= self.single:
            return ""
        return (
            "as exported the plan is slower than one device: place it by method auto, or by single "
            "for one device"
        )

    def to_document(self) -> dict[str, Any]:
        """As JSON has it, in seconds."""
        return asdict(self)

    def __str__(self) -> str:
        figures = {"plan": self.plan, "as exported": self.exported, "one device": self.single}
        return ", ".join(
            f"{what} {format_seconds(seconds)}"
            for what, seconds in figures.items()
            if seconds is not None
        )


@dataclass(frozen=True)
class Segments:
    """A plan cut into segments.

    Attributes
    ----------
    plan : Plan
        Of whole ops.
    of : int32 [n_ops]
        Segment of each op of the user's graph, numbered in an order in which segments can run; -1:
        a placeholder, which every segment has that reads it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "single")
    >>> Segments.cut(plan).devices.tolist()
    [0]
    """

    plan: Plan
    of: NDArray[np.int32]

    @classmethod
    def cut(cls, plan: Plan) -> Segments:
        """Cuts a plan of whole ops where it sends or waits. O(V log V + E), and a simulation."""
        graph = plan.graph
        computed = [i for i, kind in enumerate(graph.kinds) if kind not in PLACEHOLDERS]
        node_of = {op: node for node, op in enumerate(computed)}
        reads: list[list[int]] = [[] for _ in computed]
        for src, dst in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
            if src in node_of and dst in node_of:
                reads[node_of[dst]].append(node_of[src])
        seen = run(plan.problem, plan.assignment)
        found = segments(
            plan.devices[computed].tolist(),
            reads,
            seen.start[computed].tolist(),
            seen.finish[computed].tolist(),
            _arrived(plan, seen)[computed].tolist(),
        )
        of = np.full(graph.n_ops, -1, dtype=np.int32)
        for segment, nodes in enumerate(found):
            of[[computed[node] for node in nodes]] = segment
        return cls(plan, of)

    @cached_property
    def devices(self) -> NDArray[np.int32]:
        """Device per segment."""
        devices = np.zeros(int(self.of.max(initial=-1)) + 1, dtype=np.int32)
        runs = self.of >= 0
        devices[self.of[runs]] = self.plan.devices[runs]
        return devices

    @cached_property
    def exported(self) -> Exported:
        """Its step beside the plan's and one device's."""
        return Exported(
            run(self.plan.problem, self.plan.assignment).makespan, self.step, self.plan.single
        )

    @cached_property
    def step(self) -> float:
        """Seconds per step where segments run as they are, as simulated: each starts when all is
        there that one of its ops reads, and sends when its last op has ended.
        """
        problem = self.plan.problem
        present, group = np.unique(self.of[problem.reduced.op_of], return_inverse=True)
        coarse = CoarseProblem(problem, group.astype(np.int32))
        order = np.arange(len(present), dtype=np.int32)
        schedule = fast.simulate(coarse.core, self.devices[present], order, policy="fixed")
        return schedule.makespan


def _arrived(plan: Plan, seen: Simulation) -> NDArray[np.float64]:
    """Seconds at which the last came that each op of the user's graph reads from elsewhere."""
    reduced, sent = plan.problem.reduced, seen.transfers
    arrived = np.zeros(plan.graph.n_ops)
    keys = zip(sent.op.tolist(), sent.tensor.tolist(), sent.dst.tolist(), strict=True)
    came = dict(zip(keys, sent.finish.tolist(), strict=True))
    src, dst, tensor, _, _ = fast.edges(reduced.graph)
    for maker, reader, key in zip(
        reduced.op_of[src].tolist(), reduced.op_of[dst].tolist(), tensor.tolist(), strict=True
    ):
        at = came.get((maker, key, int(plan.devices[reader])), 0.0)
        arrived[reader] = max(arrived[reader], at)
    # A view is with its data, but what it reads beside that may come from elsewhere.
    last: dict[tuple[int, int], float] = {}
    for (op, _, device), finish in came.items():
        last[op, device] = max(finish, last.get((op, device), 0.0))
    shown = reduced.op_of[reduced.map]
    for op, reader in zip(plan.graph.src.tolist(), plan.graph.dst.tolist(), strict=True):
        if not reduced.runs[reader]:
            at = last.get((int(shown[op]), int(plan.devices[reader])), 0.0)
            arrived[reader] = max(arrived[reader], at)
    return arrived
