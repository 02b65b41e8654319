"""Times of ops and transfers, given devices and an order: the schedules that solvers start from.

The engine's own recurrence in an instance's ticks. Transfers are served first come, first served
(design section 6), which is feasible in every link model here.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loadmaster.milp.instance import Message, MilpInstance

#: Number of times that an order is refined by the starts that it leads to.
ROUNDS = 20


@dataclass(frozen=True)
class Timed:
    """A schedule in ticks.

    Attributes
    ----------
    devices : int32 [n_ops]
    start, finish : list of int
        Per op.
    sent : dict of Message to (start, finish)
        Every transfer that takes place.
    makespan : int
    """

    devices: NDArray[np.int32]
    start: list[int]
    finish: list[int]
    sent: dict[Message, tuple[int, int]]

    @property
    def makespan(self) -> int:
        """The last finish."""
        return max(self.finish)

    def order(self, instance: MilpInstance) -> NDArray[np.int32]:
        """Ops by start, ties by finish, then topologically."""
        return in_order(instance, self.start, self.finish)


def in_order(instance: MilpInstance, start: ArrayLike, finish: ArrayLike) -> NDArray[np.int32]:
    """Ops by start, ties by finish, then topologically."""
    rank = np.argsort(instance.topological)
    return np.lexsort((rank, np.asarray(finish), np.asarray(start))).astype(np.int32)


def timed(instance: MilpInstance, devices: NDArray[np.int32], order: NDArray[np.int32]) -> Timed:
    """Runs every op as soon as its device and its inputs allow.

    Parameters
    ----------
    instance : Instance
    devices : int32 [n_ops]
    order : int32 [n_ops]
        Topological, and by start where devices share channels.
    """
    run = _TimedRun(instance, devices)
    for t, tensor in enumerate(instance.tensors):
        if tensor.home:
            run.send(t, 0)
    for op in order.tolist():
        run.start_op(op)
    while run.waiting:
        run.serve()
    return Timed(devices, run.start, run.finish, run.sent)


def settled(instance: MilpInstance, devices: NDArray[np.int32], order: NDArray[np.int32]) -> Timed:
    """As :func:`timed`, from any topological order.

    The order is made anew from the starts that come out, until they stay the same, for at most
    :data:`ROUNDS` rounds.
    """
    schedule = timed(instance, devices, order)
    for _ in range(ROUNDS):
        again = timed(instance, devices, schedule.order(instance))
        if again.start == schedule.start and again.sent == schedule.sent:
            break
        schedule = again
    return schedule


class _TimedRun:
    def __init__(self, instance: MilpInstance, devices: NDArray[np.int32]) -> None:
        n = instance.n_ops
        self.instance = instance
        self.on: list[int] = devices.tolist()
        self.devices = devices
        self.free = [0] * instance.n_devices
        self.start, self.finish = [0] * n, [0] * n
        self.sent: dict[Message, tuple[int, int]] = {}
        #: By the time at which it was made; then in the order that breaks ties.
        self.waiting: list[tuple[int, Message]] = []
        self.last: dict[tuple[int, int], int] = {}
        self.inputs: list[list[int]] = [[] for _ in range(n)]
        self.outputs: list[list[int]] = [[] for _ in range(n)]
        for t, tensor in enumerate(instance.tensors):
            if not tensor.home:
                self.outputs[tensor.source].append(t)
            for reader in tensor.readers:
                self.inputs[reader].append(t)

    def send(self, t: int, ready: int) -> None:
        tensor = self.instance.tensors[t]
        here = self.on[tensor.source]
        for device in sorted({self.on[r] for r in tensor.readers} - {here}):
            heapq.heappush(self.waiting, (ready, Message(t, device)))

    def serve(self) -> None:
        """Sends the message that was made first, as soon as no transfer conflicts with it."""
        ready, message = heapq.heappop(self.waiting)
        tensor = self.instance.tensors[message.tensor]
        here = self.on[tensor.source]
        conflict = self.instance.conflict[here, message.device]
        taken = (at for pair, at in self.last.items() if conflict[pair])
        start = max(taken, default=0)
        start = max(start, ready)
        finish = start + int(tensor.time[here, message.device])
        self.last[here, message.device] = finish
        self.sent[message] = (start, finish)

    def start_op(self, op: int) -> None:
        device = self.on[op]
        at = self.free[device]
        for t in self.inputs[op]:
            tensor = self.instance.tensors[t]
            if self.on[tensor.source] == device:
                at = max(at, 0 if tensor.home else self.finish[tensor.source])
                continue
            message = Message(t, device)
            while message not in self.sent:
                self.serve()
            at = max(at, self.sent[message][1])
        self.start[op] = at
        self.finish[op] = self.free[device] = at + int(self.instance.time[op, device])
        for t in self.outputs[op]:
            self.send(t, self.finish[op])
