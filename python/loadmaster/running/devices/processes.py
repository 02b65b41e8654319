"""Runs a plan on worker processes: one per device, pinned to cores, tensors in shared memory.

Workers are forked once the tape is there, since a tape cannot be pickled. They die with the process
that started them. Whatever goes wrong in one of them stops them all.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from loadmaster.base.children import sparing_children
from loadmaster.base.closing import Closing
from loadmaster.base.errors import InputError
from loadmaster.running.devices.crew import Crew, Failed, Member, RunSettings
from loadmaster.running.devices.wiring import Wiring
from loadmaster.running.measured.measured import Steps

#: ``PR_SET_PDEATHSIG`` of prctl(2).
_SET_DEATH_SIGNAL = 1

#: Seconds that a worker has to end by itself, before it is killed.
_GRACE = 5.0


class Processes(Closing):
    """Workers of a plan, which keep parameters and optimizer slots from step to step.

    Raises
    ------
    RunError
        By `run` and `fetch`: an op failed, a device waited in vain, a worker died. Op and device
        are named.
    """

    def __init__(self, wiring: Wiring, settings: RunSettings) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise InputError(
                "worker processes are forked, which this system cannot: run on threads (thread:0)"
            )
        self.places, self.wiring = settings.places, wiring
        self._crew = Crew(wiring, settings, lambda n_bytes: mmap.mmap(-1, n_bytes))
        self._pipes: list[Connection] = []
        self._workers: list[Any] = []
        context = multiprocessing.get_context("fork")
        gc.freeze()  # or a collection in a worker would copy all that it shares with this process
        for device in range(self._crew.n_devices):
            ours, theirs = context.Pipe()
            worker = context.Process(
                target=_main, args=(self._crew, device, theirs, os.getpid()), daemon=True
            )
            with sparing_children():
                worker.start()
            theirs.close()
            self._pipes.append(ours)
            self._workers.append(worker)
        gc.unfreeze()

    def run(self, steps: int, *, memory: bool = False) -> Steps:
        """Runs so many steps more; ``memory``: counts what devices hold, which takes time."""
        self.begin(steps, memory=memory)
        return self.ended()

    def begin(self, steps: int, *, memory: bool = False) -> None:
        """Has the workers run so many steps more; :meth:`ended` must be called next."""
        self._tell("run", self._crew.numbers(steps), memory)

    def ended(self) -> Steps:
        """The steps that the workers were told to run, once they are run."""
        return self._crew.joined(self._answers())

    def fetch(self, names: Sequence[str] | None = None) -> dict[str, torch.Tensor]:
        """Outputs of the last step by name, from the devices that hold them; all by default."""
        tape = self._crew.wiring.tape
        values: dict[int, torch.Tensor] = {}
        self._tell("outputs", tape.slots_of(names))
        for part in self._answers():
            values |= {slot: _unpacked(*sent) for slot, sent in part.items()}
        return tape.named(values.__getitem__, names)

    def _tell(self, *words: Any) -> None:
        """Asks all workers for something."""
        for pipe in self._pipes:
            with suppress(OSError):  # its worker is dead, as is found when it is to answer
                pipe.send(words)

    def _answers(self) -> list[Any]:
        """Answers of all workers."""
        answers: dict[int, Any] = {}
        failed = False
        while len(answers) < len(self._pipes):
            waits = {p.fileno(): d for d, p in enumerate(self._pipes) if d not in answers}
            ready = wait(list(waits), _GRACE if failed else None)
            if not ready:  # its op hangs: it is killed below
                answers |= dict.fromkeys(waits.values(), Failed())
            for number in ready:
                device = waits[number]  # type: ignore[index]
                answers[device] = self._answer(device)
                failed |= isinstance(answers[device], Failed)
        in_order = [answers[device] for device in range(len(self._pipes))]
        if failed:
            self.close()
            raise self._crew.failure(in_order)
        return in_order

    def _answer(self, device: int) -> Any:
        try:
            return self._pipes[device].recv()
        except (EOFError, OSError):
            self._crew.board.stop()
            self._workers[device].join(_GRACE)
            code = self._workers[device].exitcode
            why = f"by signal {signal.Signals(-code).name}" if code and code < 0 else f"({code})"
            return Failed(f"the worker of {self._crew.names[device]} died {why}")

    def close(self) -> None:
        """Ends all workers."""
        self._crew.board.stop()
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(("end",))
            pipe.close()
        for worker in self._workers:
            worker.join(_GRACE)
            if worker.is_alive():
                worker.kill()
                worker.join()


def _main(crew: Crew, device: int, pipe: Connection, parent: int) -> None:
    """A worker's life: it answers until nobody asks any more.

    It works in a thread of its own, since OpenMP's threads of the first one are left behind by the
    fork.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it tells it to stop
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    gc.disable()
    thread = threading.Thread(target=_serve, args=(crew, device, pipe))
    thread.start()
    thread.join()


def _serve(crew: Crew, device: int, pipe: Connection) -> None:
    member: Member | None = None
    while True:
        try:
            request, *words = pipe.recv()
        except (EOFError, OSError):
            return
        if request == "end":
            return
        try:
            member = member or Member(crew, device)
            if request == "run":
                pipe.send(member.run(*words))
            else:
                pipe.send({s: _packed(t) for s, t in member.outputs(*words).items()})
        except BaseException as error:
            crew.board.stop()
            name = crew.names[device]
            pipe.send(member.failed(error) if member else Failed(f"{name}: {error}"))


def _packed(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return tensor.dtype, tuple(tensor.shape), flat.numpy().tobytes()


def _unpacked(dtype: torch.dtype, sizes: tuple[int, ...], data: bytes) -> torch.Tensor:
    if not data:
        return torch.empty(sizes, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(sizes)
