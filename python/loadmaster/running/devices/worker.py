"""One device at work: it calls what a dispatcher says, and sends what others read."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import RunError
from loadmaster.running.devices.packing import ALIGNED, Packed
from loadmaster.running.devices.wiring import Task, Wired, Wiring
from loadmaster.running.tape.calls import Call, Values, runner
from loadmaster.running.tape.replay import below_autograd, prepare, starting
from loadmaster.running.tape.slots import Slot

#: No task, where one is told.
NOTHING = -1


class Arena:
    """Memory that devices share: a block per transfer, each as the tensor that it is in transit."""

    def __init__(self, wiring: Wiring, memory: Callable[[int], Any]) -> None:
        starts, end = {}, 0
        for key, packed in wiring.packed.items():
            item = packed.slot.dtype.itemsize
            starts[key] = end + packed.slot.offset * item % ALIGNED
            end = _aligned(starts[key] + packed.numel * item)
        self._memory = memory(max(end, 1))
        self.blocks = {
            key: _block(self._memory, start, wiring.packed[key]) for key, start in starts.items()
        }


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNED) * ALIGNED


def _block(memory: Any, start: int, packed: Packed) -> torch.Tensor:
    dtype = packed.slot.dtype
    if not packed.numel:
        return torch.empty(packed.sizes, dtype=dtype)
    flat = torch.frombuffer(memory, dtype=dtype, count=packed.numel, offset=start)
    return flat.as_strided(packed.sizes, packed.strides)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A value that a transfer brings: ``slot``, which is all of ``base`` or a view of it."""

    index: int
    block: torch.Tensor
    base: Packed
    slot: Slot

    def shown(self) -> torch.Tensor:
        """The value where it was sent to."""
        return _shown(self.block, self.slot, self.base.slot)

    def laid_out(self) -> torch.Tensor:
        """The value with the strides that it had, and aligned as it was, where it came from."""
        base, item = self.base, self.base.slot.dtype.itemsize
        start = base.slot.offset * item % ALIGNED
        memory = torch.empty(start + base.span * item, dtype=torch.uint8)
        flat = memory[start:].view(base.slot.dtype)
        flat.as_strided(base.sizes, base.slot.strides).copy_(self.block)
        return _shown(flat, self.slot, base.slot)


def _shown(memory: torch.Tensor, slot: Slot, base: Slot) -> torch.Tensor:
    """The part that a slot shows of the memory that begins with ``base``."""
    offset = memory.storage_offset() + slot.offset - base.offset
    return memory.as_strided(slot.sizes, slot.strides, offset)


@dataclass(frozen=True, slots=True)
class _Work:
    """A call as it runs; ``releases`` are the values of which it is one of the readers."""

    call: Call
    run: Callable[[Values], None]
    releases: tuple[int, ...]
    laid: tuple[_Copy, ...]


class Worker:
    """Runs the part of one device, step after step.

    ``alone`` is held while a random op runs: generators belong to a process.
    """

    def __init__(
        self,
        wiring: Wiring,
        wired: Wired,
        arena: Arena,
        dispatcher: fast.Dispatcher,
        *,
        seed: int = 0,
        alone: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.wiring, self.wired = wiring, wired
        self._seed, self._alone = seed, alone or nullcontext()
        self.steps = 0
        #: The task at hand; -1: none.
        self.task = NOTHING
        self.dispatcher = dispatcher
        self.held: Held | None = None
        homes = [wiring.tape.placeholders[i] for i in wired.homes]
        kept, self._fresh = starting(wiring.tape, homes, wiring.inputs)
        self.values: Values = [None] * wired.n_values
        for slot, tensor in kept.items():
            self.values[slot] = tensor
        self._left = [0] * wired.n_values
        for index, n in wired.uses.items():
            self._left[index] = max(n, 1)
        self._brought: dict[int, torch.Tensor] = {}
        self._work = {op: self._made(task, arena) for op, task in wired.tasks.items()}
        self._outgoing = {
            arrival: [
                (slot, arena.blocks[arrival, slot], wiring.packed[arrival, slot])
                for slot in wiring.carried.get(arrival, ())
            ]
            for arrivals in wired.sends.values()
            for arrival in arrivals
        }

    def _made(self, task: Task, arena: Arena) -> _Work:
        """The call of a task; the values that it reads where they were sent to stand ready."""
        wiring, uses, call = self.wiring, self.wired.uses, task.call
        laid = []
        for copied in task.copies:
            key = copied.arrival, copied.base
            base, slot = wiring.packed[key], wiring.slots[copied.slot]
            copy = _Copy(copied.index, arena.blocks[key], base, slot)
            if base.is_dense:
                self._brought[copied.index] = copy.shown()
            else:
                laid.append(copy)
        unread = [slot for slot in call.results if uses.get(slot) == 0]
        releases = [index for index in (*task.uses, *unread) if index in uses]
        run = runner(call, source=task.source.__getitem__)
        return _Work(call, run, tuple(releases), tuple(laid))

    def step(self, numbers: Sequence[float]) -> int:
        """Runs a step: when it began, in nanoseconds.

        Raises
        ------
        TimeoutError, InterruptedError
            As :class:`fast.Dispatcher` does.
        """
        self._set_out(numbers)
        work, dispatcher, sends = self._work, self.dispatcher, self.wired.sends
        left = self._left.copy()
        began = dispatcher.begin()
        with below_autograd():
            self._send(sends[NOTHING], left)
            while (task := dispatcher.next()) >= 0:
                self.task = task
                task_work = work.get(task)
                if task_work is not None:
                    self._call(task_work)
                dispatcher.done(task)
                if task in sends:
                    self._send(sends[task], left)
                if task_work is not None:
                    self._release(task_work.releases, left)
        self.task = NOTHING
        dispatcher.end()
        self.steps += 1
        return began

    def _set_out(self, numbers: Sequence[float]) -> None:
        """Puts what every step begins with in its place."""
        values = self.values
        for slot, number in zip(self.wiring.tape.numbers, numbers, strict=True):
            values[slot] = number
        for slot, tensor in self._fresh.items():
            values[slot] = tensor.clone()
        for index, tensor in self._brought.items():
            values[index] = tensor

    def _call(self, work: _Work) -> None:
        values, call = self.values, work.call
        for copy in work.laid:
            if values[copy.index] is None:
                values[copy.index] = copy.laid_out()
        if call.random:
            with self._alone:
                prepare(call, self._seed, self.steps)
                work.run(values)
        else:
            prepare(call, self._seed, self.steps)
            work.run(values)
        if self.held is not None:
            self.held.made(call.results)

    def _send(self, arrivals: Sequence[int], left: list[int]) -> None:
        """Copies what others read, as it is now, to where they read it."""
        for arrival in arrivals:
            start = time.monotonic_ns()
            for slot, block, packed in self._outgoing[arrival]:
                value = self.values[slot]
                if value.stride() != packed.slot.strides or value.shape != packed.slot.sizes:
                    raise RunError(
                        f"it gives strides {value.stride()} where it gave {packed.slot.strides} "
                        "when the step was tried on one device"
                    )
                if packed.sizes != packed.slot.sizes:
                    value = value.as_strided(packed.sizes, packed.slot.strides)
                block.copy_(value)
                if slot in self.wired.uses:
                    self._release((slot,), left)
            self.dispatcher.arrive(arrival, start, time.monotonic_ns())

    def _release(self, indices: Sequence[int], left: list[int]) -> None:
        """Forgets values that nothing reads any more."""
        for index in indices:
            left[index] -= 1
            if not left[index]:
                self.values[index] = None
                if self.held is not None:
                    self.held.freed(index)


class Held:
    """The bytes that a device holds, and the most of them, counted as tensors come and go.

    ``came`` is the last step in which each arrival came in.
    """

    def __init__(self, worker: Worker, came: NDArray[np.uint64]) -> None:
        self._worker, self._came = worker, came
        self._slots = worker.wiring.slots
        self._live: Counter[int] = Counter()  # slots that show each storage
        self._size: dict[int, int] = {}  # of storages that are live
        tasks = worker.wired.tasks.values()
        self._copies = {copied.index: copied for task in tasks for copied in task.copies}
        # Values that show what each arrival brought, and its bytes.
        self._parts = Counter(copied.arrival for copied in self._copies.values())
        self._bytes = Counter[int]()
        for (arrival, _), packed in worker.wiring.packed.items():
            self._bytes[arrival] += packed.numel * packed.slot.dtype.itemsize
        self._coming = set(self._parts)
        self.now = self.peak = 0
        self.made([slot for slot, value in enumerate(worker.values) if value is not None])

    def made(self, slots: Sequence[int]) -> None:
        """Counts the results of a call, and what has arrived until now."""
        for slot in slots:
            if slot in self._slots and self._worker.values[slot] is not None:
                storage = self._slots[slot].storage
                if not self._live[storage]:
                    self._size[storage] = self._worker.values[slot].untyped_storage().nbytes()
                    self.now += self._size[storage]
                self._live[storage] += 1
        step = self._worker.steps + 1
        for arrival in [a for a in self._coming if self._came[a] >= step]:
            self._coming.discard(arrival)
            self.now += self._bytes[arrival]
        self.peak = max(self.peak, self.now)

    def freed(self, index: int) -> None:
        """Counts a value that was forgotten."""
        if index in self._slots:
            storage = self._slots[index].storage
            self._live[storage] -= 1
            if not self._live[storage]:
                self.now -= self._size.pop(storage)
            return
        arrival = self._copies[index].arrival
        self._parts[arrival] -= 1
        if not self._parts[arrival]:
            self.now -= self._bytes[arrival]
