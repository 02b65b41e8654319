"""A compiled plan run by plain Python, device by device in any order, and checked on the way.

It knows nothing of clocks: a seed decides which device goes on, and when what was sent arrives.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import numpy as np

from loadmaster.running.devices.compiled import Compiled


class Interpreter:
    """One step of a compiled plan."""

    def __init__(self, compiled: Compiled, seed: int = 0) -> None:
        self.c, self.random = compiled, random.Random(seed)
        c = compiled
        self.missing: Counter[int] = Counter()
        self.next: dict[int, list[int]] = defaultdict(list)
        for before, task in pairs(c.order):
            assert c.device[before] == c.device[task], "a task of another device"
            self.next[before].append(task)
            self.missing[task] += 1
        self.waiting: dict[int, list[int]] = defaultdict(list)
        told = set(pairs(c.tells))
        for arrival, task in pairs(c.waits):
            assert (arrival, int(c.device[task])) in told, "nobody tells the device"
            self.waiting[arrival].append(task)
            self.missing[task] += 1
        self.sends: dict[int, list[int]] = defaultdict(list)
        for arrival, after in enumerate(c.after.tolist()):
            assert after < 0 or c.device[after] == c.sender[arrival], "sent by another device"
            self.sends[after].append(arrival)
        self.reads: dict[int, set[int]] = defaultdict(set)
        for edge, piece in enumerate(c.pieces.read.tolist()):
            if piece >= 0:
                self.reads[int(c.graph.dst[edge])].add(piece)
        self.uses = c.pieces.uses.tolist()
        self.ran: list[int] = []
        self.flying: list[int] = []
        self.arrived: set[int] = set()
        self.freed: list[tuple[int, int]] = []
        #: By piece, the changes in place that its data has seen; by owner, those so far.
        self.written: Counter[int] = Counter()

    def run(self) -> list[int]:
        """The tasks in the order in which they ran."""
        c = self.c
        ready = {d: {int(t) for t in np.flatnonzero(c.device == d) if not self.missing[t]}
                 for d in range(c.n_devices)}  # fmt: skip
        sequence = {
            d: sorted((int(c.priority[t]), int(t)) for t in np.flatnonzero(c.device == d)
                      if not c.at_once[t])
            for d in range(c.n_devices)
        }  # fmt: skip
        for arrival in self.sends[-1]:
            self.send(arrival)
        total = int((c.device >= 0).sum())
        while len(self.ran) < total:
            choices: list[tuple[str, int]] = [("arrival", i) for i in range(len(self.flying))]
            choices += [("task", d) for d in ready if self.head(ready[d], sequence[d]) is not None]
            assert choices, f"deadlock after {len(self.ran)} of {total} tasks"
            what, at = self.random.choice(choices)
            if what == "arrival":
                arrival = self.flying.pop(at)
                self.arrived.add(arrival)
                self.release(self.waiting[arrival], ready)
                continue
            task = self.head(ready[at], sequence[at])
            assert task is not None
            ready[at].discard(task)
            sequence[at] = [entry for entry in sequence[at] if entry[1] != task]
            self.task(task)
            self.release(self.next[task], ready)
        assert not self.flying or all(not self.waiting[a] for a in self.flying)
        return self.ran

    def head(self, ready: set[int], sequence: list[tuple[int, int]]) -> int | None:
        """The task that a device takes next."""
        c = self.c
        at_once = sorted(t for t in ready if c.at_once[t])
        if at_once:
            return at_once[0]
        if c.is_fixed:
            return sequence[0][1] if sequence and sequence[0][1] in ready else None
        return min(ready, key=lambda t: (int(c.priority[t]), t), default=None)

    def release(self, tasks: list[int], ready: dict[int, set[int]]) -> None:
        for task in tasks:
            self.missing[task] -= 1
            if not self.missing[task]:
                ready[int(self.c.device[task])].add(task)

    def task(self, task: int) -> None:
        c = self.c
        self.ran.append(task)
        for piece in self.reads[task] if task < c.n_ops else ():
            brought = int(c.pieces.brought[piece])
            assert c.pieces.device[piece] == c.device[task], "read on another device"
            assert brought < 0 or brought in self.arrived, "read before it arrived"
            self.use(piece)
        for arrival in self.sends[task]:
            self.send(arrival)

    def send(self, arrival: int) -> None:
        self.flying.append(arrival)
        piece = int(self.c.pieces.sent[arrival])
        if piece >= 0:
            assert self.c.pieces.device[piece] == self.c.sender[arrival], "sent from elsewhere"
            self.use(piece)

    def use(self, piece: int) -> None:
        self.uses[piece] -= 1
        assert self.uses[piece] >= 0, "read after it was freed"
        if not self.uses[piece]:
            self.freed.append((len(self.ran), piece))


def pairs(columns) -> list[tuple[int, int]]:
    """Two columns as pairs."""
    return list(zip(*(column.tolist() for column in columns), strict=True))
