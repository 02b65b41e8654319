"""Runs a plan on GPUs: one thread issues a program of streams, and events keep its order.

Not yet run on a GPU. What is issued is checked without one: the program as data, and the numbers of
this module's own code on a stand-in whose streams do at once what they are told.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from loadmaster.base.closing import Closing
from loadmaster.base.errors import InputError, LoadmasterError, RunError
from loadmaster.base.run_queue import waited_for_a_core
from loadmaster.running.devices.crew import RunSettings
from loadmaster.running.devices.emulated import held_channels
from loadmaster.running.devices.packing import Packed
from loadmaster.running.devices.places import DevicePlace
from loadmaster.running.devices.streams import Stream, StreamProgram, What, stream_program
from loadmaster.running.devices.wiring import Copied, Task, Wiring
from loadmaster.running.measured.measured import Steps
from loadmaster.running.tape.calls import Call, Values, runner
from loadmaster.running.tape.replay import below_autograd, prepare, starting
from loadmaster.running.tape.slots import Slot


class GpuCalls(Protocol):
    """The few calls to GPUs that issuing needs; a stand-in has them too."""

    @property
    def devices(self) -> Sequence[torch.device]:
        """The place where each device of the plan keeps its tensors."""

    @property
    def is_shared(self) -> bool:
        """True if devices of the plan share a GPU, so that links between them are paced."""

    def stream(self, stream: Stream) -> Any:
        """A stream, with ``wait_event``."""

    def within(self, stream: Any) -> AbstractContextManager[Any]:
        """Has what is called within go into a stream."""

    def event(self, timed: bool) -> Any:
        """An event, with ``record(stream)``; if it is timed, with ``elapsed_time(later)`` in ms."""

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        """Has the memory of a tensor not used anew before a stream is done with it."""

    def settle(self, stream: Any, device: torch.device) -> None:
        """Has a stream wait for what copies to a device have put into that one's own stream."""

    def pace(self, stream: Any, seconds: float) -> None:
        """Has a stream wait."""

    def finish(self) -> None:
        """Waits until all that was issued is done."""


class Gpus:
    """CUDA devices, by places such as ``cuda:0``; devices of one place have a part of that GPU.

    Parts are green contexts with equal shares of the multiprocessors. They share memory bandwidth
    and caches, which no plan knows of.

    Raises
    ------
    InputError
        A GPU that there is not; parts, where PyTorch or the driver have no green contexts.
    """

    def __init__(self, places: Sequence[DevicePlace]) -> None:
        indices = [place.cores[0] for place in places]
        there = torch.cuda.device_count()
        missing = next((index for index in indices if index >= there), None)
        if missing is not None:
            raise InputError(f"cuda:{missing}: this process sees {there} GPUs")
        self.devices: Sequence[torch.device] = [torch.device("cuda", index) for index in indices]
        counts = Counter(indices)
        self.is_shared: bool = max(counts.values()) > 1
        self._contexts: dict[int, Any] = {}
        for index, n in counts.items():
            if n > 1:
                here = [device for device, i in enumerate(indices) if i == index]
                self._contexts |= dict(zip(here, _parts(index, n), strict=True))
        self._cycles: dict[int, float] = {}

    def stream(self, stream: Stream) -> Any:
        """A stream; one for ops has its device's part of the GPU."""
        is_of_ops = stream.src == stream.dst and not stream.collective
        if is_of_ops and stream.src in self._contexts:
            return self._contexts[stream.src].Stream()
        return torch.cuda.Stream(self.devices[stream.src])

    def within(self, stream: Any) -> AbstractContextManager[Any]:
        """Has what is called within go into a stream."""
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context

    def event(self, timed: bool) -> Any:
        """An event."""
        return torch.cuda.Event(enable_timing=timed)

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        """Has the memory of a tensor not used anew before a stream is done with it."""
        tensor.record_stream(stream)

    def settle(self, stream: Any, device: torch.device) -> None:
        """Has a stream wait for what copies to a device have put into that one's own stream.

        PyTorch allocates what a copy fills, and lays it out if its elements do not lie side by
        side, in the current stream of the device that it goes to.
        """
        stream.wait_stream(torch.cuda.current_stream(device))

    def pace(self, stream: Any, seconds: float) -> None:
        """Has a stream wait, by the cycles that the GPU was measured to have in a second."""
        index = stream.device_index
        if index not in self._cycles:
            self._cycles[index] = _cycles_per_second(index)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(int(seconds * self._cycles[index]))

    def finish(self) -> None:
        """Waits until all that was issued is done."""
        for device in set(self.devices):
            torch.cuda.synchronize(device)


def _parts(index: int, n: int) -> Sequence[Any]:
    """Green contexts with equal shares of a GPU."""
    from torch.cuda import green_contexts

    torch.cuda.init()
    processors = torch.cuda.get_device_properties(index).multi_processor_count
    share = processors // n // 8 * 8  # GPUs hand out multiprocessors by eights
    if not hasattr(green_contexts.GreenContext, "split") or not share:
        raise InputError(
            f"{n} devices on cuda:{index} are green contexts, which want PyTorch 2.15, CUDA 13.1 "
            f"and 8 multiprocessors each (it has {processors}): give each a GPU of its own"
        )
    with torch.cuda.device(index):
        contexts: Sequence[Any] = green_contexts.GreenContext.split(
            num_sms=(share,) * n, device_id=index
        )
    return contexts


def _cycles_per_second(index: int) -> float:
    """Of the counter that ``torch.cuda._sleep`` waits by."""
    cycles = 10_000_000
    with torch.cuda.device(index):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(cycles)  # the first call takes longer
        first.record()
        torch.cuda._sleep(cycles)
        last.record()
        last.synchronize()
    return float(cycles / (first.elapsed_time(last) / 1e3))


class _CudaDevice:
    """The values of one device of the plan, and what its ops call."""

    def __init__(self, wiring: Wiring, device: int, where: torch.device) -> None:
        wired, tape = wiring.device(device), wiring.tape
        homes = [tape.placeholders[i] for i in wired.homes]
        kept, fresh = starting(tape, homes, wiring.inputs)
        moved: dict[int, torch.Tensor] = {}
        self.fresh = {slot: _moved(tensor, where, moved) for slot, tensor in fresh.items()}
        self.values: Values = [None] * wired.n_values
        for slot, tensor in kept.items():
            self.values[slot] = _moved(tensor, where, moved)
        self.uses = wired.uses
        self.left: list[int] = []
        self._unused = [0] * wired.n_values
        for index, n in wired.uses.items():
            self._unused[index] = max(n, 1)
        self.tasks = wired.tasks
        self.calls = {op: self._call(task, where) for op, task in wired.tasks.items()}

    def _call(self, task: Task, where: torch.device) -> tuple[Call, Callable[[Values], None]]:
        call = replace(
            task.call,
            args=tuple(_placed(argument, where) for argument in task.call.args),
            kwargs={name: _placed(value, where) for name, value in task.call.kwargs.items()},
        )
        return call, runner(call, source=task.source.__getitem__)

    def set_out(self, numbers: dict[int, float]) -> None:
        """Puts what every step begins with in its place."""
        for slot, number in numbers.items():
            self.values[slot] = number
        for slot, tensor in self.fresh.items():
            self.values[slot] = tensor.clone()
        self.left = self._unused.copy()

    def release(self, indices: Iterable[int]) -> None:
        """Forgets values that nothing reads any more."""
        for index in indices:
            if index in self.uses:
                self.left[index] -= 1
                if not self.left[index]:
                    self.values[index] = None


def _placed(argument: Any, where: torch.device) -> Any:
    """An argument with the device that a call names turned into that on which it runs."""
    if isinstance(argument, torch.device):
        return where
    if type(argument) in (list, tuple):
        return type(argument)(_placed(each, where) for each in argument)
    return argument


def _moved(
    tensor: torch.Tensor, where: torch.device, moved: dict[int, torch.Tensor]
) -> torch.Tensor:
    """A tensor on a device; those that shared a storage share it there."""
    storage = tensor.untyped_storage()
    key = storage.data_ptr()
    if key not in moved:
        memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
        moved[key] = memory.to(where, copy=True)
    there = torch.empty(0, dtype=tensor.dtype, device=where)
    return there.set_(
        moved[key].untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )


class _Times:
    """Begin and end of everything in a step, by events."""

    def __init__(self, gpus: GpuCalls, wiring: Wiring, program: StreamProgram) -> None:
        compiled = wiring.compiled
        self._compiled, self._gpus = compiled, gpus
        self._base = [gpus.event(timed=True) for _ in gpus.devices]
        ran = [(kind, item) for kind, _, item in program if kind <= What.GATHER]
        self._spans = {key: (gpus.event(timed=True), gpus.event(timed=True)) for key in ran}
        self._on = {
            (kind, item): program.streams[stream].src
            for kind, stream, item in program
            if kind <= What.GATHER
        }

    def begin(self, streams: Sequence[Any]) -> None:
        """Notes that a step begins; ``streams`` are those of the devices' ops."""
        for base, stream in zip(self._base, streams, strict=True):
            base.record(stream)

    @contextmanager
    def of(self, kind: What, item: int, stream: Any) -> Iterator[None]:
        """Notes when what is issued within begins and ends."""
        start, finish = self._spans[kind, item]
        start.record(stream)
        yield
        finish.record(stream)

    def row(self) -> dict[str, NDArray[np.float64]]:
        """The columns of :class:`Steps` for the step that is done."""
        compiled, line = self._compiled, self._compiled.timeline
        ops, sent = np.zeros((compiled.n_ops, 2)), np.zeros((compiled.n_transfers, 2))
        shares = np.zeros((len(compiled.members), 2))
        share = {op: i for i, op in enumerate(compiled.members.tolist())}
        for (kind, item), (start, finish) in self._spans.items():
            base = self._base[self._on[kind, item]]
            span = base.elapsed_time(start) / 1e3, base.elapsed_time(finish) / 1e3
            rows = {What.RUN: ops, What.COPY: sent, What.GATHER: shares}[kind]
            rows[share[item] if kind is What.GATHER else item] = span
        words = np.flatnonzero(compiled.transfers.tensor < 0)
        sent[words] = ops[compiled.transfers.op[words], 1][:, None]
        gathered = np.zeros((len(line.collectives), 2))
        for i, members in enumerate(line.collectives.members):
            of = [share[op] for op in members]
            gathered[i] = shares[of, 0].max(), max(shares[of, 1].max(), ops[list(members), 1].max())
            ops[list(members), 0], ops[list(members), 1] = shares[of, 0], gathered[i, 1]
        columns = {
            "start": ops[:, 0],
            "finish": ops[:, 1],
            "sent_start": sent[: len(line.transfers), 0],
            "sent_finish": sent[: len(line.transfers), 1],
            "gathered_start": gathered[:, 0],
            "gathered_finish": gathered[:, 1],
        }
        return {name: np.maximum(column, 0.0) for name, column in columns.items()}


class Cuda(Closing):
    """A plan on GPUs, which keep parameters and optimizer slots from step to step.

    Raises
    ------
    RunError
        By `run`: an op failed. Op and device are named.
    """

    def __init__(
        self, wiring: Wiring, settings: RunSettings, hardware: GpuCalls | None = None
    ) -> None:
        other = next((c for c in wiring.tape.calls if c.brings or (c.shares and c.writes)), None)
        if other is not None:
            raise InputError(
                f"op {wiring.tape.graph.names[other.op]!r} is of a collective that GPUs do not "
                "run: run the plan on processes (cpu:0), or plan whole ops, or plain replicas"
            )
        self.places = settings.places
        self._wiring, self._seed = wiring, settings.seed
        self._gpus: GpuCalls = hardware or Gpus(settings.places)
        compiled = wiring.compiled
        holds = held_channels(wiring.plan, compiled) if self._gpus.is_shared else None
        self._program = stream_program(compiled, holds)
        self._streams = [self._gpus.stream(stream) for stream in self._program.streams]
        self._events = [self._gpus.event(timed=False) for _ in range(self._program.n_events)]
        self._devices = [
            _CudaDevice(wiring, device, where) for device, where in enumerate(self._gpus.devices)
        ]
        self._copies: dict[tuple[int, int], list[Copied]] = defaultdict(list)
        for number, device in enumerate(self._devices):
            for copied in {c for task in device.tasks.values() for c in task.copies}:
                self._copies[copied.arrival, number].append(copied)
        self._told: dict[int, list[int]] = defaultdict(list)
        for arrival, device_number in zip(*(c.tolist() for c in compiled.tells), strict=True):
            self._told[arrival].append(device_number)
        members = compiled.members.tolist()
        self._share = {op: compiled.n_transfers + share for share, op in enumerate(members)}
        self._times = _Times(self._gpus, wiring, self._program)
        self._delay = waited_for_a_core()
        self._steps = 0

    def run(self, steps: int, *, memory: bool = False) -> Steps:
        """Runs so many steps more; ``memory``: asks PyTorch what it holds at most."""
        seen, delays = [], []
        if memory:
            self._reset_peaks()
        with below_autograd():
            for _ in range(steps):
                self._delay()
                self._step()
                seen.append(self._times.row())
                delays.append(self._delay() / 1e9)
        columns = {name: np.stack([row[name] for row in seen]) for name in seen[0]}
        return Steps(
            **columns,
            seconds=columns["finish"].max(axis=1),
            delay=np.array(delays),
            peaks=self._peaks() if memory else None,
        )

    def _step(self) -> None:
        """Issues a step, and waits until it is done."""
        tape = self._wiring.tape
        numbers = dict(zip(tape.numbers, tape.host(self._steps), strict=True))
        self._gpus.finish()
        for number, device in enumerate(self._devices):
            with self._gpus.within(self._streams[number]):
                device.set_out(numbers)
        self._gpus.finish()
        self._times.begin(self._streams[: len(self._devices)])
        for kind, stream, item in self._program:
            if kind is What.WAIT:
                self._streams[stream].wait_event(self._events[item])
            elif kind is What.RECORD:
                self._events[item].record(self._streams[stream])
            elif kind is What.RUN:
                with self._times.of(kind, item, self._streams[stream]):
                    self._run(item, stream)
            else:
                with self._times.of(kind, item, self._streams[stream]):
                    self._send(self._share[item] if kind is What.GATHER else item, stream)
        self._gpus.finish()
        self._steps += 1

    def _run(self, op: int, stream: int) -> None:
        device = self._devices[stream]
        if op not in device.calls:
            return
        call, run = device.calls[op]
        with self._gpus.within(self._streams[stream]):
            try:
                prepare(call, self._seed, self._steps)
                run(device.values)
            except LoadmasterError:
                raise
            except Exception as error:
                compiled, names = self._wiring.compiled, self._wiring.plan.cluster.devices
                where = f"{compiled.name(op)} on {names[stream].name}"
                raise RunError(f"{where}: {type(error).__name__}: {error}") from error
        unread = [slot for slot in call.results if device.uses.get(slot) == 0]
        device.release((*device.tasks[op].uses, *unread))

    def _send(self, arrival: int, stream: int) -> None:
        """Copies what an arrival carries to the devices that read it."""
        wiring, gpus, on = self._wiring, self._gpus, self._streams[stream]
        sender = self._devices[int(wiring.compiled.sender[arrival])]
        with gpus.within(on):
            for slot in wiring.carried.get(arrival, ()):
                value, packed = sender.values[slot], wiring.packed[arrival, slot]
                gpus.keep(value, on)
                for reader in self._told[arrival]:
                    self._bring(arrival, slot, reader, value, packed, on)
                sender.release((slot,))
            if gpus.is_shared and arrival < wiring.compiled.n_transfers:
                line = wiring.compiled.transfers
                gpus.pace(on, float(line.finish[arrival] - line.start[arrival]))

    def _bring(
        self, arrival: int, slot: int, reader: int, value: torch.Tensor, packed: Packed, on: Any
    ) -> None:
        device, where = self._devices[reader], self._gpus.devices[reader]
        block = torch.empty(packed.span, dtype=value.dtype, device=where)
        block.as_strided(packed.sizes, packed.slot.strides).copy_(
            value.as_strided(packed.sizes, packed.slot.strides), non_blocking=True
        )
        self._gpus.settle(on, where)
        self._gpus.keep(block, self._streams[reader])
        for copied in self._copies[arrival, reader]:
            if copied.base == slot:
                shown: Slot = self._wiring.slots[copied.slot]
                offset = shown.offset - packed.slot.offset
                device.values[copied.index] = block.as_strided(shown.sizes, shown.strides, offset)

    def fetch(self, names: Sequence[str] | None = None) -> dict[str, torch.Tensor]:
        """Outputs of the last step by name, on the host; all by default."""
        wiring = self._wiring

        def value(slot: int) -> torch.Tensor:
            home = int(wiring.home[wiring.slots[slot].op])
            return self._devices[home].values[slot].cpu().clone()

        return wiring.tape.named(value, names)

    def _peaks(self) -> NDArray[np.uint64] | None:
        if self._gpus.is_shared or self._gpus.devices[0].type != "cuda":
            return None
        held = [torch.cuda.max_memory_allocated(device) for device in self._gpus.devices]
        return np.array(held, dtype=np.uint64)

    def _reset_peaks(self) -> None:
        for device in self._gpus.devices:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)

    def close(self) -> None:
        """Waits until all that was issued is done."""
        self._gpus.finish()
