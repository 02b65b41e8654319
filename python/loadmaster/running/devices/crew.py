"""The workers of all devices of a plan: what they share, and what each of them does when asked."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import loadmaster.fast as fast
from loadmaster.base.errors import LoadmasterError, RunError
from loadmaster.base.run_queue import waited_for_a_core
from loadmaster.running.devices.clocks import StepClock, steps_of
from loadmaster.running.devices.compiled import Missing
from loadmaster.running.devices.places import OWN_CORE, DevicePlace, are_apart
from loadmaster.running.devices.wiring import Wiring
from loadmaster.running.devices.worker import NOTHING, Arena, Held, Worker
from loadmaster.running.measured.measured import Steps


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Inputs of a run beside its plan and its tape.

    ``places`` are those of the devices' workers; ops use as many threads as a place has cores.
    ``seed`` is that of random ops. After ``patience`` seconds without news a worker gives up.
    """

    places: Sequence[DevicePlace]
    seed: int = 0
    patience: float = 60.0


@dataclass(frozen=True, slots=True)
class WorkerSteps:
    """One worker's measurements of some steps; the first worker keeps the board's words of each."""

    delay: list[int]
    peak: int
    began: list[int]
    words: list[tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a worker gave up: nothing is said where it waited in vain, or another told it to stop.

    ``missing`` are the tasks that have not started, and what they wait for.
    """

    message: str = ""
    missing: Missing = ()


class Crew:
    """State that all workers of a run share; ``memory`` gives bytes that they share."""

    def __init__(self, wiring: Wiring, settings: RunSettings, memory: Callable[[int], Any]) -> None:
        compiled = wiring.compiled
        self.wiring, self.settings = wiring, settings
        self.names = [device.name for device in wiring.plan.cluster.devices]
        lengths = fast.Board.words(compiled.n_devices, compiled.n_arrivals, compiled.n_tasks)
        self._words = [np.frombuffer(memory(8 * max(n, 1)), np.uint64, n) for n in lengths]
        self.board = fast.Board(*self._words)
        self.arena = Arena(wiring, memory)
        self._steps = 0

    @property
    def n_devices(self) -> int:
        """The number of workers."""
        return self.wiring.compiled.n_devices

    @property
    def alert(self) -> float | None:
        """Seconds for which a worker that waits keeps its core, before it naps."""
        places = self.settings.places
        alone = places[0].kind == "cpu" and are_apart(place.cores for place in places)
        return OWN_CORE if alone else None

    def numbers(self, steps: int) -> list[tuple[float, ...]]:
        """The host's numbers for each of the next steps."""
        first, self._steps = self._steps, self._steps + steps
        return [tuple(self.wiring.tape.host(step)) for step in range(first, self._steps)]

    def joined(self, parts: Sequence[WorkerSteps]) -> Steps:
        """The steps that all workers ran."""
        delays = zip(*(part.delay for part in parts), strict=True)
        rows = zip(parts[0].words, parts[0].began, delays, strict=True)
        seen = [StepClock(*words, began, delay) for words, began, delay in rows]
        peaks = np.array([part.peak for part in parts], dtype=np.uint64)
        return steps_of(self.wiring.compiled, seen, peaks if peaks.any() else None)

    def failure(self, answers: Sequence[Any]) -> RunError:
        """The error of a run, as the worker says that saw it happen."""
        failed = [answer if isinstance(answer, Failed) else Failed() for answer in answers]
        for each in failed:
            if each.message:
                return RunError(each.message)
        words = self.wiring.compiled.waiting([each.missing for each in failed], self.names)
        return RunError(f"nothing happened for {self.settings.patience:.3g} s: {words}")


class Member:
    """A worker of a crew, in the process and the thread that it works in."""

    def __init__(
        self, crew: Crew, device: int, alone: AbstractContextManager[Any] | None = None
    ) -> None:
        cores = crew.settings.places[device].cores
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)
        torch.set_num_threads(len(cores))
        self._crew, self._device = crew, device
        self._delay = waited_for_a_core()
        part, settings = crew.wiring.compiled.part(device), crew.settings
        self._worker = Worker(
            crew.wiring,
            crew.wiring.device(device),
            crew.arena,
            fast.Dispatcher(part, crew.board, settings.patience, crew.alert),
            seed=settings.seed,
            alone=alone,
        )

    def run(self, numbers: Sequence[Sequence[float]], memory: bool) -> WorkerSteps:
        """Runs a step per row of numbers; ``memory``: counts what the device holds."""
        crew, worker = self._crew, self._worker
        _, arrivals, tasks = crew._words
        worker.held = Held(worker, arrivals[::3]) if memory else None
        part = WorkerSteps([], 0, [], [])
        for row in numbers:
            self._delay()
            began = worker.step(row)
            part.delay.append(self._delay())
            if self._device == 0:  # which opens the next step, so that none has begun
                part.began.append(began)
                part.words.append((arrivals.copy(), tasks.copy()))
        if worker.held is None:
            return part
        return WorkerSteps(part.delay, worker.held.peak, part.began, part.words)

    def outputs(self, slots: Sequence[int]) -> dict[int, torch.Tensor]:
        """Those of the last step's outputs that the device holds."""
        wiring = self._crew.wiring
        home = wiring.home
        return {
            slot: self._worker.values[slot]
            for slot in slots
            if home[wiring.slots[slot].op] == self._device
        }

    def failed(self, error: BaseException) -> Failed:
        """Why the worker gives up, and has all others do so too."""
        crew, worker = self._crew, self._worker
        crew.board.stop()
        missing = worker.dispatcher.missing()
        if isinstance(error, (InterruptedError, TimeoutError)):
            return Failed(missing=missing)
        name, compiled = crew.names[self._device], crew.wiring.compiled
        where = name if worker.task == NOTHING else f"{compiled.name(worker.task)} on {name}"
        words = (
            str(error)
            if isinstance(error, LoadmasterError)
            else "".join(traceback.format_exception_only(error)).strip()
        )
        return Failed(f"{where}: {words}", missing)
