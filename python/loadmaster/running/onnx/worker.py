"""The process of a device that runs segments: its main program.

It reads its :class:`~loadmaster.running.onnx.processes.SegmentWork`, loads its sub-models, and
then runs as many steps as it is told to. It ends when the process that started it does, however
that ends.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import LoadmasterError, RunError
from loadmaster.base.run_queue import waited_for_a_core
from loadmaster.base.units import counted
from loadmaster.readers.onnx.nodes import first_line
from loadmaster.running.devices.shared_arrays import SharedArrays
from loadmaster.running.onnx.processes import BOARD, SegmentWork
from loadmaster.running.onnx.segments import session, share_memory

#: ``prctl``'s number for how late, in nanoseconds, sleeps may end: 50,000 else, a message's length.
_PR_SET_TIMERSLACK = 29


class _OnnxDevice:
    """Segments of a device, loaded and bound to shared memory."""

    def __init__(self, work: SegmentWork) -> None:
        os.sched_setaffinity(0, work.cores)
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        self._work = work
        self._values, shared = SharedArrays(*work.values), SharedArrays(*work.board)
        self._values.close()
        shared.close()
        board = fast.Board(*(shared[name].view(np.uint64) for name in BOARD))
        self._clocks = shared["tasks"].reshape(-1, 2)
        self._mine = np.array(list(work.segments))
        n = len(self._mine)
        sends = [pair for pairs in work.sends.values() for pair in pairs]
        part = fast.Part(
            work.device,
            (self._mine, np.arange(n), np.zeros(n, dtype=bool)),
            _columns([]),
            _columns(work.waits),
            _columns(sends),
            fixed=True,
        )
        self._dispatcher = fast.Dispatcher(part, board, work.patience, work.alert)
        self._delay = waited_for_a_core()
        share_memory()
        self._bound = {i: self._binding(row) for i, row in work.segments.items()}

    def _binding(self, row: Any) -> tuple[Any, Any, list[tuple[int, str]]]:
        """A session with its inputs and outputs where they lie in shared memory, and the positions
        and names of outputs to copy there.

        ONNX Runtime writes nothing to where a file declares another shape. It warns, and makes the
        output elsewhere.
        """
        work = self._work
        chosen = session(
            Path(work.folder),
            row,
            work.providers,
            threads=len(work.cores),
            optimize=work.optimize,
            shares=True,
        )
        binding = chosen.io_binding()
        declared = {output.name: output.shape for output in chosen.get_outputs()}
        copied = []
        for name in row["inputs"]:
            there = self._values[name]
            binding.bind_input(name, "cpu", 0, there.dtype, there.shape, there.ctypes.data)
        for position, name in enumerate(row["outputs"]):
            there = self._values[name]
            if _may_be(declared[name], there.shape):
                binding.bind_output(name, "cpu", 0, there.dtype, there.shape, there.ctypes.data)
            else:
                binding.bind_output(name, "cpu")
                copied.append((position, name))
        return chosen, binding, copied

    def run(self, steps: int) -> tuple[NDArray[Any], ...]:
        """Begin of each step, its segments with start and finish, and the time without a core, in
        nanoseconds.
        """
        begins, delays = np.zeros((2, steps), dtype=np.uint64)
        clocks = np.zeros((2, steps, len(self._mine)), dtype=np.uint64)
        for step in range(steps):
            self._delay()
            try:
                begins[step] = self._dispatcher.begin()
                self._step()
                delays[step] = self._delay()
                clocks[:, step] = self._clocks[self._mine].T
                self._dispatcher.end()
            except TimeoutError:
                raise RunError(self._overdue()) from None
        return begins, self._mine, *clocks, delays

    def _step(self) -> None:
        dispatcher, sends = self._dispatcher, self._work.sends
        while (segment := dispatcher.next()) >= 0:
            chosen, binding, copied = self._bound[segment]
            try:
                chosen.run_with_iobinding(binding)
                outputs = binding.get_outputs() if copied else []
            except Exception as error:  # of ONNX Runtime, whose errors have no common class
                file = self._work.segments[segment]["file"]
                raise RunError(f"ONNX Runtime cannot run {file}: {first_line(error)}") from None
            for position, name in copied:
                self._values[name][...] = outputs[position].numpy()
            for arrival, _ in sends.get(segment, ()):
                now = time.monotonic_ns()
                dispatcher.arrive(arrival, now, now)
            dispatcher.done(segment)

    def _overdue(self) -> str:
        """The arrival that the device waits for in vain."""
        words = "other devices do not end their step"
        if missing := self._dispatcher.missing():
            segment, arrivals, _ = missing[0]
            words = f"{self._work.segments[segment]['file']} waits for "
            words += f"{counted(len(arrivals), 'segment')} of other devices"
        return f"nothing happened for {self._work.patience:g} s: {words}"


def _may_be(declared: Sequence[Any], shape: tuple[int, ...]) -> bool:
    """True if an output of a declared shape, with numbers where it is fixed, can have this one.

    >>> _may_be(["n", 8], (4, 8)), _may_be([1, 8], (4, 8)), _may_be([], (4,))
    (True, False, False)
    """
    if len(declared) != len(shape):
        return False
    pairs = zip(declared, shape, strict=True)
    return all(size == d for d, size in pairs if isinstance(d, int))


def _columns(pairs: Sequence[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs as two columns."""
    first, second = np.array(pairs, dtype=np.int64).reshape(-1, 2).T.copy()
    return first, second


def _end_with_parent(descriptor: int) -> None:
    watched = select.poll()
    # Nothing but that the other side is closed, which is always told.
    watched.register(descriptor, 0)
    watched.poll()
    os._exit(1)


def main(descriptor: int) -> None:
    """Answers until the other side is closed."""
    connection = Connection(descriptor)
    threading.Thread(target=_end_with_parent, args=(descriptor,), daemon=True).start()
    device: _OnnxDevice | None = None
    while True:
        message = connection.recv()
        answer: object = None
        try:
            if device is None:
                device = _OnnxDevice(message)
            else:
                answer = device.run(message)
        except LoadmasterError as error:
            answer = str(error)
        connection.send(answer)


if __name__ == "__main__":
    main(int(sys.argv[1]))
