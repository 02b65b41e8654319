"""Runs a plan on threads of this process, one per device, pinned to cores.

Dispatch takes turns on Python's global lock, so that devices delay each other: worker processes do
not. Threads need no fork.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Lock
from typing import Any

import torch

from loadmaster.base.closing import Closing
from loadmaster.running.devices.crew import Crew, Failed, Member, RunSettings
from loadmaster.running.devices.wiring import Wiring
from loadmaster.running.measured.measured import Steps


class Threads(Closing):
    """Workers of a plan, which keep parameters and optimizer slots from step to step.

    Raises
    ------
    RunError
        By `run` and `fetch`: an op failed, or a device waited in vain. Op and device are named.
    """

    def __init__(self, wiring: Wiring, settings: RunSettings) -> None:
        self.places, self.wiring = settings.places, wiring
        self._crew = Crew(wiring, settings, bytearray)
        self._alone = Lock()
        devices = range(self._crew.n_devices)
        self._threads = [ThreadPoolExecutor(1, "loadmaster") for _ in devices]
        self._members: list[Member] = []
        self._members = self._ask(lambda device: Member(self._crew, device, self._alone))

    def run(self, steps: int, *, memory: bool = False) -> Steps:
        """Runs so many steps more; ``memory``: counts what devices hold, which takes time."""
        numbers = self._crew.numbers(steps)
        with torch.random.fork_rng(devices=[]):
            return self._crew.joined(self._ask(lambda d: self._members[d].run(numbers, memory)))

    def fetch(self, names: Sequence[str] | None = None) -> dict[str, torch.Tensor]:
        """Outputs of the last step by name, from the devices that hold them; all by default."""
        tape = self._crew.wiring.tape
        values: dict[int, torch.Tensor] = {}
        for member in self._members:
            values |= member.outputs(tape.slots_of(names))
        return tape.named(lambda slot: values[slot].clone(), names)

    def _ask(self, question: Callable[[int], Any]) -> list[Any]:
        """Answers of all workers."""

        def answer(device: int) -> Any:
            try:
                return question(device)
            except BaseException as error:
                self._crew.board.stop()
                if not self._members:
                    return Failed(f"{self._crew.names[device]}: {error}")
                return self._members[device].failed(error)

        answers = [thread.submit(answer, device) for device, thread in enumerate(self._threads)]
        try:
            wait(answers, return_when=FIRST_EXCEPTION)
        except BaseException:
            self.close()
            raise
        results = [answer.result() for answer in answers]
        if any(isinstance(each, Failed) for each in results):
            self.close()
            raise self._crew.failure(results)
        return results

    def close(self) -> None:
        """Ends all workers."""
        self._crew.board.stop()
        for thread in self._threads:
            thread.shutdown()
