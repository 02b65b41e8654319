"""Compiled: what each device of a plan does in a step, waits for and sends, as arrays alone.

The same arrays drive emulated devices, worker processes and streams. Nothing in them needs a model.

A *task* is what a device does in one go. Task ``i`` is op ``i`` of the graph that runs. A member of
a collective has a second task, its *share*, numbered after all ops: it brings what the op reads.
An *arrival* is what a device tells others. The transfers of the plan come first, one for one as
they were simulated (messages without data among them), then one arrival per share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InputError
from loadmaster.judge.simulation import run
from loadmaster.judge.timeline import Timeline, Transfers
from loadmaster.model.graph import OpGraph
from loadmaster.plans.plan import Plan

Ids = NDArray[np.int32]
Pairs = tuple[Ids, Ids]
#: Tasks that a dispatcher says are missing, each with arrivals and tasks that it waits for.
Missing = Sequence[tuple[int, Sequence[int], Sequence[int]]]

#: In a column of tasks or arrivals: none.
NONE = -1


@dataclass(frozen=True, eq=False)
class Pieces:
    """Every piece of data that a device holds: a tensor where it is made, and each copy of it.

    Attributes
    ----------
    tensor : int32 [n_pieces]
        The tensor's id in the graph that runs.
    device : int32 [n_pieces]
    brought : int32 [n_pieces]
        The arrival that brings it; -1: a task makes it there, or it is a placeholder's.
    stays : bool [n_pieces]
        Whether it is a placeholder's, which no step frees.
    uses : int32 [n_pieces]
        How many tasks and transfers of the device read it. It is freed once all of them are done.
    read : int32 [n_edges]
        The piece that the destination of each edge reads; -1: the edge has no data. Where the edge
        and the piece are of two tensors, the edge's is a view of all of the piece.
    sent : int32 [n_arrivals]
        The piece of which each transfer is a copy; -1: it has no data.
    """

    tensor: Ids
    device: Ids
    brought: Ids
    stays: NDArray[np.bool_]
    uses: Ids
    read: Ids
    sent: Ids

    def __len__(self) -> int:
        return len(self.tensor)


@dataclass(frozen=True, eq=False)
class Compiled:
    """A plan as its devices run it.

    Attributes
    ----------
    graph : OpGraph
        The graph that runs.
    n_devices : int
    is_fixed : bool
        Whether a device runs its ops exactly in the order of :attr:`priority`.
    device : int32 [n_tasks]
        Where each task runs; -1: it is a placeholder, which does not run.
    priority : int32 [n_tasks]
        Of the tasks that are ready, the one with the smallest runs first, then the smaller number.
    at_once : bool [n_tasks]
        Tasks that take no time of their device (views, and those of collectives): they run as soon
        as they can.
    order : pair of int32
        Tasks of one device, of which the second waits for the first.
    waits : pair of int32
        Arrivals, and tasks that wait for them.
    tells : pair of int32
        Arrivals, and devices that are told of them.
    transfers : Transfers
        Those of :attr:`timeline`, and after them those that were added; see :func:`compile_plan`.
    after : int32 [n_arrivals]
        The task of the sender after which each is sent, before that device starts another; -1: as
        the step begins. What is sent is what the tensor holds then.
    sender : int32 [n_arrivals]
    collective : int32 [n_arrivals]
        The collective of each share; -1: a transfer.
    overwritten : pair of int32
        Transfers, and tasks of the sender that change in place what was sent. The sender reads the
        tensor to the end before such a task starts.
    timeline : Timeline
        The step as it was simulated.
    pieces : Pieces
        What devices hold, and when that is freed.
    """

    graph: OpGraph
    n_devices: int
    is_fixed: bool
    device: Ids
    priority: Ids
    at_once: NDArray[np.bool_]
    order: Pairs
    waits: Pairs
    tells: Pairs
    transfers: Transfers
    after: Ids
    sender: Ids
    collective: Ids
    overwritten: Pairs
    timeline: Timeline
    pieces: Pieces

    @property
    def n_ops(self) -> int:
        """Number of ops of the graph that runs."""
        return self.graph.n_ops

    @property
    def n_tasks(self) -> int:
        """Number of ops, and of shares."""
        return len(self.device)

    @property
    def n_transfers(self) -> int:
        """Number of transfers."""
        return len(self.transfers)

    @property
    def n_arrivals(self) -> int:
        """Number of transfers, and of shares."""
        return len(self.after)

    @cached_property
    def members(self) -> Ids:
        """The op that each share is of, int32 [n_tasks - n_ops]."""
        return np.flatnonzero(self.timeline.collectives.of_op(self.n_ops) >= 0).astype(np.int32)

    def part(self, device: int) -> fast.Part:
        """The part of one device, for a :class:`fast.Dispatcher`."""
        tasks = np.flatnonzero(self.device == device).astype(np.int32)
        columns = tasks, self.priority[tasks], self.at_once[tasks]
        order, waits, tells = self.order, self.waits, self.tells
        return fast.Part(
            device,
            columns,
            chosen(order, self.device[order[0]] == device),
            chosen(waits, self.device[waits[1]] == device),
            chosen(tells, self.sender[tells[0]] == device),
            fixed=self.is_fixed,
        )

    def board(self) -> tuple[fast.Board, tuple[NDArray[np.uint64], ...]]:
        """A board for devices that share this process, and the arrays that it is of."""
        lengths = fast.Board.words(self.n_devices, self.n_arrivals, self.n_tasks)
        arrays = tuple(np.zeros(n, dtype=np.uint64) for n in lengths)
        return fast.Board(*arrays), arrays

    def sent_after(self, device: int) -> tuple[Ids, Pairs]:
        """Arrivals that a device sends: those as a step begins, and (task, arrival) after that."""
        mine = np.flatnonzero(self.sender == device).astype(np.int32)
        later = mine[self.after[mine] >= 0]
        return mine[self.after[mine] < 0], (self.after[later], later)

    def name(self, task: int) -> str:
        """A task in words, for messages."""
        if task < self.n_ops:
            return f"op {self.graph.names[task]!r}"
        return f"the share of {self.graph.names[self.members[task - self.n_ops]]!r}"

    def arrival_name(self, arrival: int, devices: Sequence[str]) -> str:
        """An arrival in words, for messages."""
        sender = devices[self.sender[arrival]]
        if arrival >= self.n_transfers:
            return f"{self.name(self.n_ops + arrival - self.n_transfers)} from {sender}"
        name = f"{self.graph.names[self.transfers.op[arrival]]!r}"
        tensor = self.transfers.tensor[arrival]
        if tensor < 0:
            return f"word from {sender} that {name} is done"
        return f"tensor {tensor} of {name} from {sender}"

    def waiting(self, missing: Sequence[Missing], devices: Sequence[str]) -> str:
        """The wait of each device that gave up, from its :meth:`fast.Dispatcher.missing`."""
        return "; ".join(
            self._waiting(device, rows, devices) for device, rows in enumerate(missing) if rows
        )

    def _waiting(self, device: int, missing: Missing, devices: Sequence[str]) -> str:
        # A task that waits for another device, and for none of its own, is what holds it up.
        held_up = (row for row in missing if row[1] and not row[2])
        task, arrivals, _ = next(held_up, (NONE, (), ()))
        if task == NONE:
            return f"{devices[device]} waits for the end of the step on other devices"
        words = [self.arrival_name(arrival, devices) for arrival in arrivals]
        more = f" and {len(words) - 3} more" if len(words) > 3 else ""
        return f"{self.name(task)} on {devices[device]} waits for {', '.join(words[:3])}{more}"


def chosen(pairs: Pairs, keep: NDArray[np.bool_]) -> Pairs:
    """Some of the pairs."""
    return pairs[0][keep], pairs[1][keep]


def compile_plan(plan: Plan, writes: tuple[ArrayLike, ArrayLike] | None = None) -> Compiled:
    """The work of each device of a plan. O((V + E) log E), beside a simulation if none is there.

    Parameters
    ----------
    plan : Plan
    writes : pair of int, optional
        Ops of the graph that runs that change memory, and the ops whose memory it is, beside those
        that ``alias_of`` tells of: a batch norm that updates statistics, say.

    Notes
    -----
    Transfers are the simulator's. One is added where two ops of one device read the same tensor
    before and after it is changed in place, since one copy cannot be both: the graphs of no
    framework that was tried has such ops.

    Raises
    ------
    InputError
        A write by, or to, an op that the graph does not have.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "random")
    >>> compiled = compile_plan(plan)
    >>> compiled.n_transfers == len(plan.schedule.transfers)
    True
    """
    return _Compiler(plan, writes).compiled()


class _Compiler:
    """One plan's way to its arrays."""

    def __init__(self, plan: Plan, writes: tuple[ArrayLike, ArrayLike] | None) -> None:
        self.plan = plan
        simulated = plan.schedule if plan.observed is None else run(plan.problem, plan.assignment)
        self.timeline = simulated.timeline
        self.graph = plan.program.graph
        self.on = plan.running_devices
        self.n = self.graph.n_ops
        self.is_data, self.edge_tensor = _tensors(self.graph)
        self.as_tensor, self.shown = self.graph._core.sent()
        self.writers, self.changed = _writes(self.graph, writes)
        self.producer = np.full(len(self.as_tensor), NONE, dtype=np.int32)
        self.producer[self.edge_tensor[self.is_data]] = self.graph.src[self.is_data]
        placeholder = self.graph.placeholder
        #: The edges whose data an op that runs, or a view, reads; and where that is elsewhere.
        self.reads = self.is_data & ~placeholder[self.graph.dst]
        views = self.graph.view[self.graph.dst]
        self.reads &= ~views | (self.shown[self.graph.dst] == self.edge_tensor)
        self.remote = self.reads & (self.on[self.graph.src] != self.on[self.graph.dst])

    def compiled(self) -> Compiled:
        """All of it."""
        self._versions()
        order, waits = self._order()
        members = np.flatnonzero(self.timeline.collectives.of_op(self.n) >= 0).astype(np.int32)
        share = np.full(self.n, NONE, dtype=np.int32)
        share[members] = self.n + np.arange(len(members), dtype=np.int32)
        first = np.where(share >= 0, share, np.arange(self.n, dtype=np.int32))
        order, waits = (order[0], first[order[1]]), (waits[0], first[waits[1]])
        before = self._read_before(members)
        order = _joined(order, (first[before[0]], before[1]))
        gathered, done = self._shares(members)
        priority = self.plan.running_priority
        on = np.where(self.graph.placeholder, NONE, self.on).astype(np.int32)
        sent = len(self.sent)
        transfers = np.arange(sent, dtype=np.int32)
        return Compiled(
            graph=self.graph,
            n_devices=self.plan.cluster.n_devices,
            is_fixed=self.plan.policy == "fixed",
            device=np.concatenate([on, self.on[members]]),
            priority=np.concatenate([priority, priority[members]]),
            at_once=np.concatenate([self.graph.view | (share >= 0), np.ones(len(members), bool)]),
            order=order,
            waits=_joined(waits, (gathered[0] + sent, gathered[1])),
            tells=_joined((transfers, self.sent.dst), (done[0] + sent, done[1])),
            transfers=self.sent,
            after=np.concatenate([self.after, first[members]]),
            sender=np.concatenate([self.sent.src, self.on[members]]),
            collective=np.concatenate(
                [np.full(sent, NONE, np.int32), self.timeline.collectives.of_op(self.n)[members]]
            ),
            overwritten=self._overwritten(),
            timeline=self.timeline,
            pieces=self._pieces(len(members)),
        )

    def _versions(self) -> None:
        """The transfers, and which of them each edge between devices waits for.

        A tensor that was changed in place after it was made is sent once the change is done, to
        those who are ordered after it.
        """
        sent, k = self.timeline.transfers, self.plan.cluster.n_devices
        edges = np.flatnonzero(self.remote)
        value = self.as_tensor[self.edge_tensor[edges]].astype(np.int64)
        to = self.on[self.graph.dst[edges]]
        producer = self.producer[value]
        producer = np.where(self.graph.placeholder[producer], NONE, producer)
        after = self._last_writes(edges, producer)
        planned = np.flatnonzero(sent.tensor >= 0)
        key = sent.tensor[planned].astype(np.int64) * k + sent.dst[planned]
        order = np.argsort(key)
        at = np.searchsorted(key, value * k + to, sorter=order)
        transfer = planned[order[at]]
        versions, row = np.unique(np.stack([transfer, after], axis=1), axis=0, return_inverse=True)
        n = len(sent)
        of, new = versions[:, 0], np.flatnonzero(versions[1:, 0] == versions[:-1, 0]) + 1
        number = of.copy()
        number[new] = n + np.arange(len(new))
        self.arrival = np.full(self.graph.n_edges, NONE, dtype=np.int32)
        self.arrival[edges] = number[row.reshape(-1)]
        self.sent = Transfers(
            *(
                np.concatenate([v, v[of[new]]])
                for v in (getattr(sent, f.name) for f in fields(sent))
            )
        )
        self.after = np.concatenate([sent.op, np.zeros(len(new), np.int32)]).astype(np.int32)
        self.after[number] = versions[:, 1]

    def _last_writes(
        self, edges: NDArray[np.intp], producer: NDArray[np.integer]
    ) -> NDArray[np.int64]:
        """The task after which the data of each edge is what its reader wants: what made it, or the
        last change that the reader is ordered after by an edge of its own.
        """
        after = producer.astype(np.int64)
        if not len(self.writers):
            return after
        owner = _owners(self.graph)
        changes: dict[int, list[tuple[int, int]]] = {}
        for writer, owned in zip(self.writers.tolist(), self.changed.tolist(), strict=True):
            changes.setdefault(writer, []).append((writer, owned))
        before: dict[tuple[int, int], int] = {}
        src, dst = self.graph.src, self.graph.dst
        for e in np.flatnonzero(np.isin(src, self.writers)).tolist():
            for writer, owned in changes[int(src[e])]:
                known = before.get((int(dst[e]), owned), NONE)
                before[int(dst[e]), owned] = max(known, writer)
        for i, e in enumerate(edges.tolist()):
            last = before.get((int(dst[e]), int(owner[src[e]])), NONE)
            after[i] = max(int(after[i]), last)
        return after

    def _order(self) -> tuple[Pairs, Pairs]:
        """Waits of ops: for others of their device, and for arrivals."""
        graph, reduced = self.graph, self.plan.problem.reduced
        local = self.reads & ~self.remote & ~graph.placeholder[graph.src]
        source, target, tensor, *_ = fast.edges(reduced.graph)
        control = tensor < 0
        source, target = reduced.op_of[source[control]], reduced.op_of[target[control]]
        apart = self.on[source] != self.on[target]
        order = _joined(
            (graph.src[local].astype(np.int32), graph.dst[local].astype(np.int32)),
            (source[~apart], target[~apart]),
        )
        word = np.flatnonzero(self.sent.tensor < 0)
        k = self.plan.cluster.n_devices
        key = self.sent.op[word].astype(np.int64) * k + self.sent.dst[word]
        by_key = np.argsort(key)
        wanted = source[apart].astype(np.int64) * k + self.on[target[apart]]
        messages = word[by_key[np.searchsorted(key, wanted, sorter=by_key)]]
        edges = np.flatnonzero(self.remote)
        data = self.arrival[edges], graph.dst[edges].astype(np.int32)
        return order, _joined(data, (messages.astype(np.int32), target[apart]))

    def _read_before(self, members: Ids) -> Pairs:
        """Ops that read what a member changes, and that member, which waits for them: for a member
        of another collective until it has brought what it reads.

        What gathers parameters that were updated changes them in place, and no edge says so.
        """
        is_writer = np.isin(self.writers, members)
        if not is_writer.any():
            return np.empty(0, np.int32), np.empty(0, np.int32)
        src, dst = self.graph.src[self.reads], self.graph.dst[self.reads]
        owner = _owners(self.graph)[src]
        order = np.argsort(owner, kind="stable")
        pairs = []
        for writer, owned in zip(self.writers[is_writer], self.changed[is_writer], strict=True):
            ends = np.searchsorted(owner[order], [owned, owned + 1])
            readers = dst[order[ends[0] : ends[1]]]
            readers = readers[(self.on[readers] == self.on[writer]) & (readers != writer)]
            pairs.append((readers.astype(np.int32), np.full(len(readers), writer, np.int32)))
        return _joined(*pairs)

    def _shares(self, members: Ids) -> tuple[Pairs, Pairs]:
        """Shares that each member waits for, and devices that are told of each share."""
        of = self.timeline.collectives.of_op(self.n)[members]
        pairs = [
            (share, member)
            for share, collective in enumerate(of.tolist())
            for member in members[of == collective].tolist()
        ]
        waits = np.array(pairs, dtype=np.int32).reshape(-1, 2)
        return (waits[:, 0], waits[:, 1]), _joined((waits[:, 0], self.on[waits[:, 1]]))

    def _overwritten(self) -> Pairs:
        """Transfers, and the ops of their sender that change what was sent after it was."""
        if not len(self.writers):
            return np.empty(0, np.int32), np.empty(0, np.int32)
        reduced = self.plan.problem.reduced
        rank = np.empty(reduced.graph.n_ops, dtype=np.int64)
        rank[fast.m_topo(reduced.graph)] = np.arange(reduced.graph.n_ops)
        when = np.where(self.after >= 0, rank[reduced.map[self.after]], -1)
        data = np.flatnonzero(self.sent.tensor >= 0)
        owner = _owners(self.graph)[self.producer[self.sent.tensor[data]]]
        pairs = [
            (transfer, writer)
            for writer, owned in zip(self.writers.tolist(), self.changed.tolist(), strict=True)
            for transfer in data[owner == owned].tolist()
            if when[transfer] < rank[reduced.map[writer]]
        ]
        rows = np.array(pairs, dtype=np.int32).reshape(-1, 2)
        return _joined((rows[:, 0], rows[:, 1]))

    def _pieces(self, n_shares: int) -> Pieces:
        """Every tensor where it is read or sent, and the copies of it."""
        graph = self.graph
        edges = np.flatnonzero(self.reads)
        sent = np.flatnonzero(self.sent.tensor >= 0).astype(np.int32)
        brought = self.arrival[edges]
        local = brought < 0
        tensors = np.unique(
            np.concatenate([self.edge_tensor[edges[local]], self.sent.tensor[sent]])
        )
        place = np.full(len(self.as_tensor), NONE, dtype=np.int32)
        place[tensors] = np.arange(len(tensors), dtype=np.int32)
        copies = np.full(
            len(self.sent.tensor) + 1, NONE, dtype=np.int32
        )  # the last for those at home
        copies[sent] = len(tensors) + np.arange(len(sent), dtype=np.int32)
        read = np.full(graph.n_edges, NONE, dtype=np.int32)
        read[edges] = np.where(local, place[self.edge_tensor[edges]], copies[brought])
        source = np.full(len(self.sent.tensor) + n_shares, NONE, dtype=np.int32)
        source[sent] = place[self.sent.tensor[sent]]
        producer = self.producer[tensors]
        by_ops, _ = _joined((read[edges], graph.dst[edges].astype(np.int32)))
        uses = np.bincount(
            np.concatenate([by_ops, source[sent]]), minlength=len(tensors) + len(sent)
        )
        return Pieces(
            np.concatenate([tensors, self.sent.tensor[sent]]).astype(np.int32),
            np.concatenate([self.on[producer], self.sent.dst[sent]]),
            np.concatenate([np.full(len(tensors), NONE, np.int32), sent]),
            np.concatenate([graph.placeholder[producer], np.zeros(len(sent), bool)]),
            uses.astype(np.int32),
            read,
            source,
        )


def _tensors(graph: OpGraph) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Mask of the edges that have data, and the id of the tensor of each."""
    tensor = graph.src if graph.tensor is None else graph.tensor
    return tensor >= 0, tensor


def _owners(graph: OpGraph) -> NDArray[np.int64]:
    """The op whose memory each op gives out; itself, if that is its own."""
    owner = np.where(graph.alias_of >= 0, graph.alias_of, np.arange(graph.n_ops))
    while (owner[owner] != owner).any():
        owner = owner[owner]
    return owner


def _writes(
    graph: OpGraph, more: tuple[ArrayLike, ArrayLike] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ops that change memory, and the ops whose memory it is."""
    own = np.flatnonzero((graph.alias_of >= 0) & ~graph.view & ~graph.placeholder)
    owner = _owners(graph)
    if more is None:
        return own, owner[own]
    columns = [np.asarray(column, dtype=np.int64) for column in more]
    for column in columns:
        if column.ndim != 1 or len(column) != len(columns[0]):
            raise InputError("writes: wants two columns of one length")
        bad = np.flatnonzero((column < 0) | (column >= graph.n_ops))
        if len(bad):
            raise InputError(f"writes has op {column[bad[0]]}: the graph has {graph.n_ops} ops")
    pairs = np.unique(
        np.stack(
            [np.concatenate([own, columns[0]]), np.concatenate([owner[own], owner[columns[1]]])]
        ),
        axis=1,
    )
    return pairs[0], pairs[1]


def _joined(*pairs: Pairs) -> Pairs:
    """All pairs, each once, ascending."""
    both = np.stack([np.concatenate([p[i] for p in pairs]) for i in (0, 1)]).astype(np.int32)
    first, second = np.unique(both, axis=1)
    return first, second
