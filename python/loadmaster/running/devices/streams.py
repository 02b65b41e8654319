"""A compiled plan as a program of streams: what one host thread issues, and the events between.

GPUs run what is put into a stream in its order, and streams beside each other. Each device has a
stream for its ops, each pair of devices that sends one for its copies, and each device with
collectives one for those. What one stream needs of another it waits for by an event. Nothing here
needs a GPU; :mod:`loadmaster.running.devices.cuda` issues it.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from loadmaster.running.devices.compiled import Compiled, Ids, Pairs


class What(IntEnum):
    """A kind of instruction, and the ``item`` that it is of."""

    #: Runs an op (a task of the compiled plan).
    RUN = 0
    #: Copies what a transfer carries to its device.
    COPY = 1
    #: Does a member's part of a collective (the member's op). Those of one follow each other.
    GATHER = 2
    #: Notes in an event that all before it in the stream is done.
    RECORD = 3
    #: Has the stream wait for an event.
    WAIT = 4


@dataclass(frozen=True)
class Stream:
    """The use of a stream: ops (``dst`` is ``src``), copies between two devices, collectives."""

    src: int
    dst: int
    collective: bool = False


@dataclass(frozen=True, eq=False)
class StreamProgram:
    """Instructions in the order in which the host issues them.

    Attributes
    ----------
    streams : tuple of Stream
        The first ones are those of the devices' ops, by device.
    kind : uint8 [n]
        Of :class:`What`.
    stream : int32 [n]
    item : int32 [n]
        A task, a transfer, a member's op or an event.
    n_events : int
    """

    streams: tuple[Stream, ...]
    kind: NDArray[np.uint8]
    stream: Ids
    item: Ids
    n_events: int

    def __len__(self) -> int:
        return len(self.kind)

    def __iter__(self) -> Iterator[tuple[What, int, int]]:
        columns = self.kind.tolist(), self.stream.tolist(), self.item.tolist()
        return ((What(kind), stream, item) for kind, stream, item in zip(*columns, strict=True))


#: Something to be issued: what it is, and its task, transfer or member.
Node = tuple[What, int]


def stream_program(compiled: Compiled, holds: Pairs | None = None) -> StreamProgram:
    """The streams of a plan. O((V + E) S log V) for S streams.

    Parameters
    ----------
    compiled : Compiled
        Ops of a device are issued in the order of its simulation.
    holds : pair of int32, optional
        Transfers, and channels that they hold. Where it is given, the transfers of one channel
        follow each other as they were simulated, so that links can be paced; else the hardware
        shares them out.

    Examples
    --------
    >>> import loadmaster as lm
    >>> from loadmaster.running.devices.compiled import compile_plan
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "random")
    >>> program = stream_program(compile_plan(plan))
    >>> sum(what is What.COPY for what, *_ in program) < len(plan.schedule.transfers)
    True
    """
    before = _before(compiled, holds)
    order = _issued(compiled, before)
    return _Issuing(compiled, before, order).program()


def _before(compiled: Compiled, holds: Pairs | None) -> dict[Node, list[Node]]:
    """Nodes that each node comes after, whatever the streams."""
    before: dict[Node, list[Node]] = {
        (What.RUN, int(task)): [] for task in np.flatnonzero(compiled.device[: compiled.n_ops] >= 0)
    }
    members = compiled.members.tolist()
    share_of = dict(zip(range(compiled.n_ops, compiled.n_tasks), members, strict=True))
    sent, tensor = compiled.n_transfers, compiled.transfers.tensor.tolist()
    before |= {(What.COPY, i): [] for i in range(sent) if tensor[i] >= 0}
    before |= {(What.GATHER, member): [] for member in members}

    def task(number: int) -> Node:
        """The node that waits in a task's stead: of a member, its part of the collective."""
        return (What.GATHER, share_of[number]) if number >= compiled.n_ops else (What.RUN, number)

    for first, then in _pairs(compiled.order):
        before[task(then)].append(task(first))
    for arrival, waiter in _pairs(compiled.waits):
        if arrival >= sent:
            before[task(waiter)].append((What.GATHER, members[arrival - sent]))
        elif tensor[arrival] >= 0:
            before[task(waiter)].append((What.COPY, arrival))
        else:  # a message is an event after the op that it speaks of
            before[task(waiter)].append(task(int(compiled.after[arrival])))
    for transfer, after in enumerate(compiled.after[:sent].tolist()):
        if tensor[transfer] >= 0 and after >= 0:
            before[What.COPY, transfer].append(task(after))
    for transfer, writer in _pairs(compiled.overwritten):
        before[What.RUN, writer].append((What.COPY, transfer))
    for earlier, later in _channel_order(compiled, holds):
        before[What.COPY, later].append((What.COPY, earlier))
    return before


def _channel_order(compiled: Compiled, holds: Pairs | None) -> list[tuple[int, int]]:
    """Transfers with data that follow each other on a channel."""
    if holds is None:
        return []
    last: dict[int, int] = {}
    pairs = []
    start = compiled.transfers.start
    for transfer, channel in sorted(_pairs(holds), key=lambda pair: (start[pair[0]], *pair)):
        if transfer >= compiled.n_transfers or compiled.transfers.tensor[transfer] < 0:
            continue
        if channel in last:
            pairs.append((last[channel], transfer))
        last[channel] = transfer
    return pairs


def _issued(compiled: Compiled, before: dict[Node, list[Node]]) -> list[Node]:
    """All nodes, each after what it comes after, and as they were simulated.

    The members of a collective come in one go, once all may: a library that does the collective
    wants all of them.
    """
    line, of = compiled.timeline, compiled.timeline.collectives.of_op(compiled.n_ops)
    together = line.collectives.members

    def key(node: Node) -> tuple[float, int, int]:
        kind, item = node
        start = compiled.transfers.start if kind is What.COPY else line.start
        return float(start[item]), int(kind), item

    after: dict[Node, list[Node]] = defaultdict(list)
    missing = {node: len(set(nodes)) for node, nodes in before.items()}
    for node, nodes in before.items():
        for first in set(nodes):
            after[first].append(node)
    absent = {i: len(members) for i, members in enumerate(together)}
    ready: list[tuple[tuple[float, int, int], Node]] = []

    def open_up(node: Node) -> None:
        if node[0] is not What.GATHER:
            heapq.heappush(ready, (key(node), node))
            return
        group = int(of[node[1]])
        absent[group] -= 1
        if not absent[group]:  # the first stands for all
            heapq.heappush(ready, (key(node), (What.GATHER, together[group][0])))

    for node, n in missing.items():
        if not n:
            open_up(node)
    order: list[Node] = []
    while ready:
        _, node = heapq.heappop(ready)
        group = together[of[node[1]]] if node[0] is What.GATHER else (node[1],)
        for item in group:
            order.append((node[0], item))
        for item in group:
            for later in after[node[0], item]:
                missing[later] -= 1
                if not missing[later]:
                    open_up(later)
    assert len(order) == len(before), "a compiled plan has no cycle"
    return order


class _Issuing:
    """Puts nodes into streams, with an event where one stream needs another."""

    def __init__(
        self, compiled: Compiled, before: dict[Node, list[Node]], order: Sequence[Node]
    ) -> None:
        self.compiled, self.before, self.order = compiled, before, order
        self.streams = [Stream(device, device) for device in range(compiled.n_devices)]
        self.number = {stream: i for i, stream in enumerate(self.streams)}
        self.at = {node: i for i, node in enumerate(order)}
        self.stream = [self._stream(node) for node in order]

    def _stream(self, node: Node) -> int:
        kind, item = node
        device = int(self.compiled.device[item]) if kind is not What.COPY else -1
        if kind is What.RUN:
            return device
        sent = self.compiled.transfers
        stream = (
            Stream(device, device, collective=True)
            if kind is What.GATHER
            else Stream(int(sent.src[item]), int(sent.dst[item]))
        )
        if stream not in self.number:
            self.number[stream] = len(self.streams)
            self.streams.append(stream)
        return self.number[stream]

    def program(self) -> StreamProgram:
        """The instructions."""
        waits = self._waits()
        wanted = {i: event for event, i in enumerate(sorted({i for row in waits for i in row}))}
        rows: list[tuple[int, int, int]] = []
        for i, (node, stream) in enumerate(zip(self.order, self.stream, strict=True)):
            rows += [(What.WAIT, stream, wanted[first]) for first in waits[i]]
            rows.append((node[0], stream, node[1]))
            if i in wanted:
                rows.append((What.RECORD, stream, wanted[i]))
        columns = np.array(rows, dtype=np.int32).reshape(-1, 3)
        return StreamProgram(
            tuple(self.streams),
            columns[:, 0].astype(np.uint8),
            columns[:, 1],
            columns[:, 2],
            len(wanted),
        )

    def _waits(self) -> list[list[int]]:
        """By place in the order, the places of other streams' nodes that each node waits for.

        A stream that waited for a node knows all that this one's stream knew then; what it knows
        already it does not wait for again. ``known[s][t]``: up to which place stream s knows t.
        """
        n_streams = len(self.streams)
        known = np.full((n_streams, n_streams), -1, dtype=np.int64)
        then = np.full((len(self.order), n_streams), -1, dtype=np.int64)
        waits = []
        for i, node in enumerate(self.order):
            here = self.stream[i]
            row = []
            # The latest first: it may tell of the others.
            for first in sorted({self.at[b] for b in self.before[node]}, reverse=True):
                if self.stream[first] != here and known[here, self.stream[first]] < first:
                    row.append(first)
                    np.maximum(known[here], then[first], out=known[here])
            known[here, here] = i
            then[i] = known[here]
            waits.append(row)
        return waits


def _pairs(columns: Pairs) -> list[tuple[int, int]]:
    return list(zip(columns[0].tolist(), columns[1].tolist(), strict=True))
