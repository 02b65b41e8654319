"""A placement problem as exact formulations read it: whole numbers, per op, device and tensor.

Times are whole numbers of ticks; the tick is the instance's own. Times that are no multiples are
rounded down. So every real schedule, with its starts rounded down too, is a schedule of the
instance, and a bound on the instance's makespan is a bound on the real one. An instance is plain
data: it can be pickled and sent to a worker process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem, summed

Longs = NDArray[np.int64]

#: Most ticks that all work and all transfers may take together.
MAX_TICKS = 10**9


class MilpTensor(NamedTuple):
    """Data that one op sends: a tensor, or several in turn with the same readers.

    ``time`` is ticks per source and destination device.
    """

    source: int
    readers: tuple[int, ...]
    home: bool
    time: Longs


class Message(NamedTuple):
    """A tensor on its way to a device: the numbers of both."""

    tensor: int
    device: int


@dataclass(frozen=True)
class MilpInstance:
    """A problem in ticks and bytes.

    Attributes
    ----------
    tick : float
        Seconds.
    exact : bool
        Whether all times are whole numbers of ticks.
    time : int64 [n_ops, n_devices]
    allowed : bool [n_ops, n_devices]
    head, tail : int64 [n_ops, n_devices]
        Least ticks before the start and after the end of an op on a device.
    unit : int64 [n_ops]
        The unit of each op, from 0: ops of a unit share a device.
    tensors : tuple of Tensor
        In the order that breaks ties between transfers. Tensors that exist at time 0 come first.
    channels : tuple of frozenset of (int, int)
        Per channel, the ordered pairs of devices of which only one can send at a time.
    charge : int64 [n_ops]
        Bytes that each op holds for the whole step.
    capacity : int64 [n_devices]
    lower : int
        A lower bound on the makespan.
    """

    tick: float
    exact: bool
    time: Longs
    allowed: NDArray[np.bool_]
    head: Longs
    tail: Longs
    unit: Longs
    tensors: tuple[MilpTensor, ...]
    channels: tuple[frozenset[tuple[int, int]], ...]
    charge: Longs
    capacity: Longs
    lower: int

    @property
    def n_ops(self) -> int:
        """Number of ops."""
        return len(self.time)

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return len(self.capacity)

    @property
    def n_units(self) -> int:
        """Number of sets of ops that share a device."""
        return int(self.unit.max()) + 1

    @cached_property
    def unit_allowed(self) -> NDArray[np.bool_]:
        """Mask of the devices that each unit may be on: bool [n_units, n_devices]."""
        allowed = np.ones((self.n_units, self.n_devices), dtype=bool)
        np.logical_and.at(allowed, self.unit, self.allowed)
        return allowed

    @cached_property
    def devices_of(self) -> list[list[int]]:
        """Devices that each op may be on."""
        return [np.flatnonzero(self.unit_allowed[unit]).tolist() for unit in self.unit]

    @cached_property
    def unit_of(self) -> list[int]:
        """The unit of each op."""
        return [int(unit) for unit in self.unit]

    @cached_property
    def unit_charge(self) -> Longs:
        """Bytes that each unit takes: int64 [n_units]."""
        return summed(self.charge, self.unit, self.n_units)

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """Every tensor with each device that it may be sent to, in the order of tensors."""
        return tuple(
            Message(t, d)
            for t, tensor in enumerate(self.tensors)
            for d in range(self.n_devices)
            if any(
                self.allowed[r, d] and self.unit[r] != self.unit[tensor.source]
                for r in tensor.readers
            )
            and self.senders(Message(t, d))
        )

    def senders(self, message: Message) -> list[int]:
        """Devices that a message may come from."""
        source = self.tensors[message.tensor].source
        return [s for s in self.devices_of[source] if s != message.device]

    @cached_property
    def edges(self) -> dict[tuple[int, int], int]:
        """Ops and their readers, with the least ticks of the transfer between two devices.

        Only devices that the two ops may be on count.
        """
        least: dict[tuple[int, int], int] = {}
        for tensor in self.tensors:
            if tensor.home:
                continue
            for reader in tensor.readers:
                pair = (tensor.source, reader)
                between = self.allowed[tensor.source][:, None] & self.allowed[reader][None, :]
                np.fill_diagonal(between, False)
                sent = int(tensor.time[between].min()) if between.any() else 0
                least[pair] = max(least.get(pair, 0), sent)
        return least

    @cached_property
    def precedes(self) -> NDArray[np.bool_]:
        """Mask of the pairs of ops that a path joins: bool [n_ops, n_ops]."""
        below = np.zeros((self.n_ops, self.n_ops), dtype=bool)
        after: list[list[int]] = [[] for _ in range(self.n_ops)]
        for source, reader in self.edges:
            after[source].append(reader)
        for op in self.topological[::-1]:
            for reader in after[op]:
                below[op] |= below[reader]
                below[op, reader] = True
        return below

    @cached_property
    def topological(self) -> list[int]:
        """Ops in topological order; of those that may come next, the op with the smallest index."""
        waits = np.zeros(self.n_ops, dtype=np.int64)
        after: list[list[int]] = [[] for _ in range(self.n_ops)]
        for source, reader in self.edges:
            waits[reader] += 1
            after[source].append(reader)
        order = [op for op in range(self.n_ops) if waits[op] == 0]
        for op in order:
            for reader in after[op]:
                waits[reader] -= 1
                if waits[reader] == 0:
                    order.append(reader)
        return order

    @cached_property
    def loose_pairs(self) -> list[tuple[int, int]]:
        """Pairs of ops that no path joins, the smaller index first."""
        either = self.precedes | self.precedes.T
        np.fill_diagonal(either, True)
        return [(int(u), int(v)) for u, v in np.argwhere(~either) if u < v]

    @cached_property
    def conflict(self) -> NDArray[np.bool_]:
        """Mask of transfers, i to j and k to l, that exclude each other: bool, [i, j, k, l]."""
        conflict = np.zeros((self.n_devices,) * 4, dtype=bool)
        for channel in self.channels:
            for a in channel:
                for b in channel:
                    conflict[(*a, *b)] = True
        return conflict

    @cached_property
    def sharing(self) -> dict[tuple[int, int], frozenset[tuple[int, int]]]:
        """Per pair of destinations, the pairs of senders that exclude each other."""
        return {
            (d, e): frozenset(
                (s, r)
                for s, r in np.argwhere(self.conflict[:, d, :, e]).tolist()
                if s != d and r != e
            )
            for d in range(self.n_devices)
            for e in range(self.n_devices)
        }

    @property
    def is_private(self) -> bool:
        """True if every ordered pair of devices has channels of its own.

        Then a transfer queues only behind transfers of the same sender.
        """
        return all(len(channel) == 1 for channel in self.channels)

    @cached_property
    def twins(self) -> list[list[int]]:
        """Classes of devices; exchanging two devices of a class changes no schedule."""
        classes: list[list[int]] = []
        for device in range(self.n_devices):
            for members in classes:
                if self._are_twins(members[0], device):
                    members.append(device)
                    break
            else:
                classes.append([device])
        return classes

    def _are_twins(self, a: int, b: int) -> bool:
        swap = np.arange(self.n_devices)
        swap[[a, b]] = b, a
        # On shared channels ties break by the destination's index.
        return (
            self.is_private
            and self.capacity[a] == self.capacity[b]
            and all(
                (c[:, a] == c[:, b]).all() for c in (self.time, self.allowed, self.head, self.tail)
            )
            and all((t.time[swap][:, swap] == t.time).all() for t in self.tensors)
        )

    def canonical(self, devices: NDArray[np.int32]) -> NDArray[np.int32]:
        """The placement after an exchange of twins, so that twins are used in their order."""
        place = np.arange(self.n_devices)
        by_op = devices[self.first_of_units]
        for members in self.twins:
            used = [d for d in dict.fromkeys(by_op.tolist()) if d in members]
            rest = [d for d in members if d not in used]
            place[used + rest] = members
        return place[devices].astype(np.int32)

    @cached_property
    def first_of_units(self) -> Longs:
        """The first op of each unit."""
        return np.unique(self.unit, return_index=True)[1]

    def seconds(self, ticks: float) -> float:
        """Ticks as seconds, a little less because of rounding, so that a bound stays a bound."""
        return ticks * self.tick * (1 - 1e-9)


def instance_of(problem: Problem, charge: NDArray[np.uint64], lower: float) -> MilpInstance:
    """The reduced graph of a problem.

    Collectives take no time and nothing waits for other members than its own: a bound on such an
    instance bounds the real schedules.

    Parameters
    ----------
    problem : Problem
    charge : uint64 [n_reduced]
        Bytes that each op holds for the whole step.
    lower : float
        A lower bound on the makespan, in seconds.
    """
    graph, links = problem.graph, problem.links
    kinds = np.array(problem.cluster.device_types)
    n_devices = problem.cluster.n_devices
    sent = _bundles(problem)
    latency, per_byte = np.zeros((2, n_devices, n_devices))
    channels: dict[int, set[tuple[int, int]]] = {}
    for s in range(n_devices):
        for d in range(n_devices):
            if s != d:
                latency[s, d], width, used, _ = links.route(s, d)
                per_byte[s, d] = 1 / width
                for channel in used:
                    channels.setdefault(channel, set()).add((s, d))
    transfers = [bundle.count * latency + bundle.bytes * per_byte for bundle in sent]
    for matrix in transfers:
        np.fill_diagonal(matrix, 0.0)

    seconds = problem.compute_time[:, kinds]
    allowed = problem.allowed_types[:, kinds]
    horizon = float(np.where(allowed, seconds, 0).max(axis=1).sum())
    horizon += sum(
        float(m.max()) * len(bundle.readers) for bundle, m in zip(sent, transfers, strict=True)
    )
    tick = _tick(horizon, [seconds[allowed], *(m.ravel() for m in transfers)])
    heads, tails = fast.heads_and_tails(problem.core)
    columns = (seconds, heads[:, kinds], tails[:, kinds])
    time, head, tail = (_ticks(np.where(allowed, column, 0.0), tick) for column in columns)
    every = np.concatenate([seconds[allowed], *(m.ravel() for m in transfers)])
    exact = bool(np.allclose(every / tick, np.rint(every / tick), rtol=0, atol=1e-5))
    if not exact:
        # Rounding may shorten a schedule by a tick per op and transfer on its critical path.
        slack = 2 * len(time)
        head, tail = np.maximum(head - slack, 0), np.maximum(tail - slack, 0)
    return MilpInstance(
        tick=tick,
        exact=exact,
        time=time,
        allowed=allowed,
        head=head,
        tail=tail,
        unit=np.unique(graph.colocation, return_inverse=True)[1].astype(np.int64),
        tensors=tuple(
            MilpTensor(bundle.source, bundle.readers, bundle.home, _ticks(m, tick))
            for bundle, m in zip(sent, transfers, strict=True)
        ),
        channels=tuple(frozenset(pairs) for _, pairs in sorted(channels.items())),
        charge=charge.astype(np.int64),
        capacity=np.minimum(problem.capacity, np.iinfo(np.int64).max).astype(np.int64),
        # Either all makespans are whole, or all are rounded down.
        lower=math.ceil(lower / tick - 1e-5) if exact else math.floor(lower / tick * (1 - 1e-9)),
    )


@dataclass
class _Bundle:
    """Tensors that go from one op to the same readers, one right after the other.

    They are one message of ``count`` tensors, each of which pays a latency.
    """

    source: int
    readers: tuple[int, ...]
    home: bool
    count: int
    bytes: int


def _bundles(problem: Problem) -> list[_Bundle]:
    """In the order in which ties break."""
    readers: dict[tuple[bool, float, int], list[int]] = {}
    bytes_: dict[tuple[bool, float, int], int] = {}
    for src, dst, tensor, size, home in zip(
        *(column.tolist() for column in fast.edges(problem.graph)), strict=True
    ):
        # Tensors at home come first, messages without data come after all tensors.
        key = (not home, math.inf if tensor < 0 else tensor, src)
        readers.setdefault(key, []).append(dst)
        bytes_[key] = size
    # Only the order of one op's tensors counts; numbers of other ops may lie between.
    bundles: list[_Bundle] = []
    last: dict[tuple[bool, int], _Bundle] = {}
    for key in sorted(readers):
        home, source, by = not key[0], key[2], tuple(readers[key])
        before = last.get((home, source))
        if before is not None and before.readers == by:
            before.count += 1
            before.bytes += bytes_[key]
            continue
        last[home, source] = _Bundle(source, by, home, 1, bytes_[key])
        bundles.append(last[home, source])
    return bundles


def _tick(horizon: float, times: list[NDArray[np.float64]]) -> float:
    """The largest number of seconds of which all times are multiples, unless it is too small."""
    if horizon <= 0:
        return 1.0
    tick = 10.0 ** -math.floor(math.log10(MAX_TICKS / horizon))
    whole = np.concatenate([_ticks(column, tick) for column in times])
    return tick * max(int(np.gcd.reduce(whole)), 1) if len(whole) else tick


def _ticks(seconds: NDArray[np.float64], tick: float) -> Longs:
    return np.floor(seconds / tick + 1e-5).astype(np.int64)
