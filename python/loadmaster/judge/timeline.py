"""Timeline: when and where every op, transfer and collective ran, simulated or measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InputError
from loadmaster.base.units import counted, format_bytes
from loadmaster.judge.problem import Problem
from loadmaster.model.graph import OpGraph
from loadmaster.model.program import Program

#: Number of times that a collective sends each other device's worth of the tensor; once if absent.
_TIMES = {"all_reduce": 2}


@dataclass(frozen=True)
class Transfers:
    """Every transfer, as columns of one length.

    Attributes
    ----------
    tensor : int32
        The tensor's id in the graph that runs; -1 for a message without data.
    op : int32
        The op that produced it (a placeholder's first reader stands for its home).
    src, dst : int32
        Devices.
    bytes : uint64
    queued, start, finish : float64
        Seconds.
    copied : float64
        Seconds: when the sender began to copy it out. The copy ends as it is queued. ``queued``
        where sending costs the sender nothing, or if absent.
    """

    tensor: NDArray[np.int32]
    op: NDArray[np.int32]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    bytes: NDArray[np.uint64]
    queued: NDArray[np.float64]
    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    copied: NDArray[np.float64] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.copied is None:
            object.__setattr__(self, "copied", self.queued)

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def copying(self) -> NDArray[np.float64]:
        """Seconds for which each kept its sender busy."""
        return self.queued - self.copied

    @classmethod
    def none(cls) -> Transfers:
        """No transfer at all."""
        index, seconds = np.empty(0, dtype=np.int32), np.empty(0)
        sizes = np.empty(0, dtype=np.uint64)
        return cls(index, index, index, index, sizes, seconds, seconds, seconds)


@dataclass(frozen=True)
class Collectives:
    """Every collective, as columns of one length.

    Attributes
    ----------
    op : int32
        The member that arrived last, an op of the graph that runs.
    kind, algorithm : tuple of str
        What it does (``all_reduce``, ...), and how (``ring``, ...).
    bytes : uint64
        Of the whole tensor that is summed, gathered or handed round, each time that it runs.
    runs : uint64
        How often it runs in a step: in a loop once a trip.
    queued, start, finish : float64
        Seconds: when all members had arrived, had all channels, and ended.
    busy : float64
        Seconds for which each member kept its device busy before it had arrived.
    channels : tuple of tuple of int
        The channels that it holds from start to finish, by index.
    members : tuple of tuple of int
        Its ops, of the graph that runs.
    devices : tuple of tuple of int
        The devices of its members, each once, ascending.
    """

    op: NDArray[np.int32]
    kind: tuple[str, ...]
    algorithm: tuple[str, ...]
    bytes: NDArray[np.uint64]
    runs: NDArray[np.uint64]
    queued: NDArray[np.float64]
    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    busy: NDArray[np.float64]
    channels: tuple[tuple[int, ...], ...]
    members: tuple[tuple[int, ...], ...]
    devices: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.kind)

    @classmethod
    def none(cls) -> Collectives:
        """No collective at all."""
        index, sizes, seconds = np.empty(0, np.int32), np.empty(0, np.uint64), np.empty(0)
        times = seconds, seconds, seconds, seconds
        return cls(index, (), (), sizes, sizes, *times, (), (), ())

    @classmethod
    def simulated(
        cls, problem: Problem, schedule: fast.Schedule, devices: NDArray[np.int32]
    ) -> Collectives:
        """The collectives of a simulation of reduced ops on these devices. O(V), if any."""
        if not schedule.n_collectives:
            return cls.none()
        labels, reduced = problem.model.collectives, problem.reduced
        members = defaultdict(list)
        for op, label in enumerate(labels):
            if label:
                members[label].append(op)
        columns = schedule.collectives()
        last = reduced.op_of[columns["op"]]
        of_each = [members[labels[op]] for op in last.tolist()]
        where = [np.unique(devices[reduced.map[ops]]).tolist() for ops in of_each]
        return cls(
            last,
            tuple(columns["kind"]),
            tuple(columns["algorithm"]),
            columns["bytes"],
            problem.model.runs[last].astype(np.uint64),
            columns["queued"],
            columns["start"],
            columns["finish"],
            columns["busy"],
            tuple(map(tuple, columns["channels"])),
            tuple(map(tuple, of_each)),
            tuple(map(tuple, where)),
        )

    def of_op(self, n_ops: int) -> NDArray[np.int32]:
        """The collective that each op of the graph that runs is a member of; -1: none."""
        of = np.full(n_ops, -1, dtype=np.int32)
        for i, members in enumerate(self.members):
            of[list(members)] = i
        return of

    def some(self, which: Sequence[int]) -> Collectives:
        """Some of them, by index."""
        at = list(which)
        return Collectives(
            self.op[at],
            tuple(self.kind[i] for i in at),
            tuple(self.algorithm[i] for i in at),
            self.bytes[at],
            self.runs[at],
            self.queued[at],
            self.start[at],
            self.finish[at],
            self.busy[at],
            tuple(self.channels[i] for i in at),
            tuple(self.members[i] for i in at),
            tuple(self.devices[i] for i in at),
        )

    def label(self, i: int) -> str:
        """One collective in words: ``all_reduce of 1.64 MiB on 2 devices (ring)``."""
        devices = counted(len(self.devices[i]), "device")
        words = f"{self.kind[i]} of {format_bytes(int(self.bytes[i]))} on {devices}"
        return f"{words} ({self.algorithm[i]})"

    @property
    def bytes_in_all(self) -> int:
        """Bytes of the tensors of all of them, in all runs."""
        return int((self.bytes * self.runs).sum())

    @property
    def bytes_sent(self) -> int:
        """Bytes that go from one device to another in all runs of all of them, by any of the
        algorithms.

        On k devices, a tensor of n bytes: all-reduce 2 (k - 1) n; reduce-scatter, all-gather and
        broadcast (k - 1) n; all-to-all (k - 1) n / k.
        """
        total = 0
        sizes = (self.bytes * self.runs).tolist()
        for kind, size, devices in zip(self.kind, sizes, self.devices, strict=True):
            others = max(len(devices) - 1, 0)
            total += (
                _TIMES.get(kind, 1) * others * size // (len(devices) if kind == "all_to_all" else 1)
            )
        return total

    @property
    def seconds(self) -> float:
        """Seconds of the step in which at least one is under way. O(n log n)."""
        order = np.argsort(self.start, kind="stable")
        start, finish = self.start[order], np.maximum.accumulate(self.finish[order])
        # What of each lies behind the end of all that started before it.
        before = np.concatenate([[0.0], finish[:-1]])
        return float(np.maximum(finish - np.maximum(start, before), 0.0).sum())


@dataclass(frozen=True)
class Shares:
    """The parts that devices did of collectives before a member had arrived, as columns of one
    length.

    Attributes
    ----------
    op : int32
        The member, an op of the graph that runs.
    start, finish : float64
        Seconds.
    """

    op: NDArray[np.int32]
    start: NDArray[np.float64]
    finish: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.op)

    @classmethod
    def none(cls) -> Shares:
        """No share at all."""
        return cls(np.empty(0, dtype=np.int32), np.empty(0), np.empty(0))

    def per_device(self, device: NDArray[np.int32], n_devices: int) -> NDArray[np.float64]:
        """Seconds of each device, [n_devices]; ``device`` is that of each op."""
        seconds = np.bincount(device[self.op], self.finish - self.start, n_devices)
        return seconds.astype(np.float64)


@dataclass(frozen=True)
class Timeline:
    """Start, finish and device of every op of the graph that runs.

    Attributes
    ----------
    device : int32 [n_ops]
        A view is where the op is whose data it shows, a placeholder at home.
    start, finish : float64 [n_ops]
        Seconds. A view starts and ends when its data is there, a placeholder at 0. A member of a
        collective starts and ends with the collective, and does not compute.
    transfers : Transfers
    collectives : Collectives
    launched : float64 [n_ops] or None
        Seconds: when its host launched each op; of views and placeholders, 0. None where launches
        cost nothing.
    shares : Shares
        None where collectives keep no device busy, and of a measured step.
    """

    device: NDArray[np.int32]
    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    transfers: Transfers
    collectives: Collectives = field(default_factory=Collectives.none)
    launched: NDArray[np.float64] | None = None
    shares: Shares = field(default_factory=Shares.none)

    @classmethod
    def simulated(
        cls, problem: Problem, schedule: fast.Schedule, devices: NDArray[np.int32]
    ) -> Timeline:
        """The timeline of a simulation of reduced ops on these devices. O(V + T), T transfers."""
        reduced = problem.reduced
        start, finish = schedule.start[reduced.map], schedule.finish[reduced.map]
        shows_one_that_runs = reduced.runs[reduced.shows]
        views = ~reduced.runs & shows_one_that_runs
        start[views] = finish[views]
        there_at_0 = ~shows_one_that_runs
        start[there_at_0] = finish[there_at_0] = 0.0
        columns = schedule.transfers()
        sent = Transfers(**{**columns, "op": reduced.op_of[columns["op"]]})
        together = Collectives.simulated(problem, schedule, devices)
        launched = schedule.launched
        if launched is not None:
            launched = np.where(reduced.runs, launched[reduced.map], 0.0)
        done = schedule.shares()
        shares = Shares(reduced.op_of[done["op"]], done["start"], done["finish"])
        return cls(devices[reduced.map], start, finish, sent, together, launched, shares)

    @classmethod
    def measured(
        cls,
        ran: OpGraph | Program,
        device: ArrayLike,
        start: ArrayLike,
        finish: ArrayLike,
        transfers: Transfers | None = None,
        collectives: Collectives | None = None,
    ) -> Timeline:
        """The timeline of a step that ran on real devices.

        Parameters
        ----------
        ran : OpGraph or Program
            The graph, or the program whose graph, ran.
        device : int [n_ops]
            Index of the device that each op ran on.
        start, finish : float [n_ops]
            Seconds since the step began.
        transfers : Transfers, optional
            None if absent.
        collectives : Collectives, optional
            None if absent.

        Raises
        ------
        InputError
            A column of another length, a device below 0, an op that ends before it starts; the op
            is named.

        Examples
        --------
        >>> import loadmaster as lm
        >>> graph = lm.OpGraph({"name": ["a", "b"]}, {"src": [0], "dst": [1]})
        >>> Timeline.measured(graph, [0, 0], [0.0, 0.5], [0.5, 0.75]).makespan
        0.75
        """
        graph = ran.graph if isinstance(ran, Program) else ran
        where, began, ended = np.asarray(device), np.asarray(start), np.asarray(finish)
        for name, column, kinds in (
            ("device", where, "iu"),
            ("start", began, "iuf"),
            ("finish", ended, "iuf"),
        ):
            if column.shape != (graph.n_ops,) or column.dtype.kind not in kinds:
                raise InputError(
                    f"{name} has shape {column.shape} ({column.dtype}), wants {graph.n_ops} numbers"
                )
        bad = np.flatnonzero(~((began >= 0) & (ended >= began) & (ended < np.inf)) | (where < 0))
        if len(bad):
            at = int(bad[0])
            raise InputError(
                f"op {graph.names[at]!r} ran on device {where[at]} from {began[at]} to "
                f"{ended[at]} s: wants a device, and seconds >= 0 in order"
            )
        columns = where.astype(np.int32), began.astype(np.float64), ended.astype(np.float64)
        return cls(*columns, transfers or Transfers.none(), collectives or Collectives.none())

    @property
    def makespan(self) -> float:
        """Seconds until the last op ended."""
        return float(self.finish.max(initial=0.0))
