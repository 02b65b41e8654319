"""Moves of single ops that shorten the period: from the busiest device, or off the busiest channel.

What each device and each channel has to do per step is kept up to date (:mod:`loadmaster.judge.
loads` says what counts). The move is made after which the busiest of all that it touches is least
busy. Ops of a colocated set move together. What stays in memory must fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem
from loadmaster.strategies.pipelines.period_cuts import state_tensors

#: Moves that are looked at in one call, at most.
MOST_LOOKS = 40_000

#: Ops that change places with others of which at most so many are looked at together.
_PAIRS = 60

#: A device is a number from 0, a channel comes after all devices.
Resource: TypeAlias = int


class Balance:
    """A placement of ops, with the load of each device and channel.

    Parameters
    ----------
    problem : Problem
        Without collectives.
    devices : int32 [n_ops]
    free : uint64 [n_devices]
        Bytes that each device has to spare for what stays.
    """

    def __init__(
        self, problem: Problem, devices: NDArray[np.int32], free: NDArray[np.uint64]
    ) -> None:
        self.unit = problem.graph.colocation
        self.k, n = problem.cluster.n_devices, int(self.unit.max()) + 1
        kinds = np.array(problem.cluster.device_types)
        seconds = np.stack([np.bincount(self.unit, c, n) for c in problem.compute_time.T])
        may = np.ones((n, problem.allowed_types.shape[1]), dtype=bool)
        np.logical_and.at(may, self.unit, problem.allowed_types)
        self.seconds: list[list[float]] = seconds[kinds].T.tolist()
        self.may: list[list[bool]] = may[:, kinds].tolist()
        resident = np.bincount(self.unit, problem.graph.resident.astype(np.float64), n)
        self.resident: list[float] = resident.tolist()
        self.at: list[int] = np.zeros(n, dtype=np.int64).tolist()
        for unit, device in zip(self.unit.tolist(), devices.tolist(), strict=True):
            self.at[unit] = device
        self.room: list[float] = free.astype(np.float64).tolist()
        self._routes = self._all_routes(problem)
        self._read_tensors(problem, n)
        self.load = [0.0] * (self.k + problem.links.n_channels)
        self._add_up()
        self.looks = 0

    def _all_routes(self, problem: Problem) -> list[list[tuple[float, float, list[int]]]]:
        """Latency, seconds per byte and channels, between each pair of devices."""
        rows = []
        for a in range(self.k):
            row = []
            for b in range(self.k):
                latency, speed, channels, _ = (
                    (0.0, 1.0, [], []) if a == b else problem.links.route(a, b)
                )
                row.append((latency, 1 / speed, [self.k + channel for channel in channels]))
            rows.append(row)
        return rows

    def _read_tensors(self, problem: Problem, n: int) -> None:
        """Tensors and messages that ops of other units read."""
        src, dst, tensor, bytes_, _ = fast.edges(problem.graph)
        stays = state_tensors(problem)
        src_unit, dst_unit = self.unit[src], self.unit[dst]
        kept = (src_unit != dst_unit) & ((tensor < 0) | ~stays[np.maximum(tensor, 0)])
        key = np.where(tensor >= 0, tensor.astype(np.int64), -1 - src.astype(np.int64))[kept]
        keys, first, which = np.unique(key, return_index=True, return_inverse=True)
        self.maker: list[int] = src_unit[kept][first].tolist()
        self.bytes: list[int] = bytes_[kept][first].tolist()
        readers: list[set[int]] = [set() for _ in keys]
        for t, unit in zip(which.tolist(), dst_unit[kept].tolist(), strict=True):
            readers[t].add(unit)
        self.readers = [sorted(some) for some in readers]
        self.makes: list[list[int]] = [[] for _ in range(n)]
        self.reads: list[list[int]] = [[] for _ in range(n)]
        for t, maker in enumerate(self.maker):
            self.makes[maker].append(t)
            for unit in self.readers[t]:
                self.reads[unit].append(t)

    def _add_up(self) -> None:
        """Loads, and how many units on each device read each tensor."""
        self.count: list[dict[int, int]] = []
        change: dict[Resource, float] = {}
        for unit, device in enumerate(self.at):
            change[device] = change.get(device, 0.0) + self.seconds[unit][device]
        for t, maker in enumerate(self.maker):
            count: dict[int, int] = {}
            for unit in self.readers[t]:
                count[self.at[unit]] = count.get(self.at[unit], 0) + 1
            self.count.append(count)
            for device in count:
                self._send(change, t, self.at[maker], device, 1.0)
        for resource, seconds in change.items():
            self.load[resource] += seconds

    def _send(
        self, change: dict[Resource, float], tensor: int, a: int, b: int, times: float
    ) -> None:
        """Adds a transfer to a change of loads, or takes one back."""
        if a != b:
            latency, per_byte, channels = self._routes[a][b]
            seconds = times * (latency + per_byte * self.bytes[tensor])
            for channel in channels:
                change[channel] = change.get(channel, 0.0) + seconds

    @property
    def devices(self) -> NDArray[np.int32]:
        """The device of each op."""
        return np.array(self.at, dtype=np.int32)[self.unit]

    @property
    def busiest(self) -> float:
        """Seconds of the busiest device or channel."""
        return max(self.load)

    def change(self, unit: int, to: int) -> dict[Resource, float]:
        """The change of the loads by a move."""
        self.looks += 1
        at = self.at[unit]
        change = {at: -self.seconds[unit][at], to: self.seconds[unit][to]}
        for t in self.makes[unit]:
            for device in self.count[t]:
                self._send(change, t, at, device, -1.0)
                self._send(change, t, to, device, 1.0)
        for t in self.reads[unit]:
            maker = self.at[self.maker[t]]
            if self.count[t][at] == 1:
                self._send(change, t, maker, at, -1.0)
            if to not in self.count[t]:
                self._send(change, t, maker, to, 1.0)
        return change

    def move(self, unit: int, to: int) -> None:
        """Moves a unit."""
        at = self.at[unit]
        for resource, seconds in self.change(unit, to).items():
            self.load[resource] += seconds
        for t in self.reads[unit]:
            count = self.count[t]
            count[to] = count.get(to, 0) + 1
            count[at] -= 1
            if not count[at]:
                del count[at]
        self.at[unit] = to
        self.room[at] += self.resident[unit]
        self.room[to] -= self.resident[unit]

    def can_move(self, unit: int, to: int) -> bool:
        """True if a unit may go to another device, which has room for what stays."""
        return self.at[unit] != to and self.may[unit][to] and self.resident[unit] <= self.room[to]

    def after(self, change: dict[Resource, float]) -> tuple[float, float]:
        """The busiest of what a change touches, and what it adds to all loads."""
        return max(self.load[r] + s for r, s in change.items()), sum(change.values())

    def improve(self, enough: float) -> None:
        """Moves until the busiest is no busier than enough, or nothing helps."""
        while self.busiest > enough and self.looks < MOST_LOOKS:
            before = self.busiest
            moved = self._moved(before, near=True) or self._moved(before, near=False)
            if not moved and not self._swapped(before):
                return

    def _moved(self, before: float, *, near: bool) -> bool:
        """Makes the best move off the busiest, if one helps: to a neighbour's device, or to any."""
        best: tuple[tuple[float, float], int, int] | None = None
        for unit, to in self._near() if near else self._far():
            if self.looks >= MOST_LOOKS:
                break
            if self.can_move(unit, to):
                after = self.after(self.change(unit, to))
                if after[0] < before * (1 - 1e-6) and (best is None or after < best[0]):
                    best = after, unit, to
        if best is not None:
            self.move(best[1], best[2])
        return best is not None

    def _near(self) -> Iterator[tuple[int, int]]:
        """Units on the busiest device, or at the busiest channel, and devices of neighbours."""
        worst = self.load.index(self.busiest)
        for unit, at in enumerate(self.at):
            others = {self.at[self.maker[t]] for t in self.reads[unit]}
            for t in self.makes[unit]:
                others.update(self.count[t])
            others.discard(at)
            on_it = worst == at or any(
                worst in self._routes[a][b][2] for o in others for a, b in ((at, o), (o, at))
            )
            if on_it:
                for other in sorted(others):
                    yield unit, other

    def _far(self) -> Iterator[tuple[int, int]]:
        """Units on the busiest device, and the two least busy devices."""
        worst = self.load.index(self.busiest)
        idle = sorted(range(self.k), key=lambda d: (self.load[d], d))[:2]
        for unit, at in enumerate(self.at):
            if at == worst and self.seconds[unit][at] > 0:
                for device in idle:
                    yield unit, device

    def _swapped(self, before: float) -> bool:
        """Makes the first exchange found of a unit of the busiest device for a shorter one."""
        worst = self.load.index(self.busiest)
        mine = self._longest(worst)
        for other in sorted(range(self.k), key=lambda d: (self.load[d], d)):
            if other == worst or worst >= self.k:
                continue
            theirs = self._longest(other)
            for a in mine:
                if self._swaps(a, theirs, before):
                    return True
        return False

    def _longest(self, device: int) -> list[int]:
        """Some units of a device, the longest first."""
        here = [u for u, at in enumerate(self.at) if at == device and self.seconds[u][at] > 0]
        here.sort(key=lambda u: (-self.seconds[u][device], u))
        return here[:: max(len(here) // _PAIRS, 1)]

    def _swaps(self, a: int, theirs: list[int], before: float) -> bool:
        """True if a unit was exchanged for one of another device."""
        here, gap = self.at[a], 0.0
        for b in theirs:
            there = self.at[b]
            gap = self.seconds[a][here] - self.seconds[b][here]
            fits = self.load[there] + self.seconds[a][there] - self.seconds[b][there] < before
            if gap <= 0 or not fits or not (self.may[a][there] and self.may[b][here]):
                continue
            if self.looks >= MOST_LOOKS:
                return False
            more = self.resident[a] - self.resident[b]
            if more > self.room[there] or -more > self.room[here]:
                continue
            self.move(a, there)
            self.move(b, here)
            if self.busiest < before * (1 - 1e-6):
                return True
            self.move(b, there)
            self.move(a, here)
        return False
