"""Sub-models that a plan was exported to, run in parallel: a process for each device.

Values that segments hand to each other lie in memory that the processes share: ONNX Runtime writes
them there and reads them from there, and nothing is copied. Each process runs its segments in the
manifest's order; :class:`loadmaster.fast.Dispatcher` says when the next one may start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Pipe, wait
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.base.closing import Closing
from loadmaster.base.errors import InputError, RunError
from loadmaster.running.devices.places import OWN_CORE, are_apart, place_of, usable_cores
from loadmaster.running.devices.shared_arrays import ArraySpec, Location, SharedArrays
from loadmaster.running.measured.measured import MOST_DELAY, typical
from loadmaster.running.onnx.buffers import buffers
from loadmaster.running.onnx.segments import OnnxSegments, check_feeds
from loadmaster.systems.onnx.manifest import read_manifest

#: The arrays of the board.
BOARD = ("gates", "arrivals", "tasks")

#: Seconds for which a process may take to load its sub-models.
_LOADING = 600.0

#: Bytes at the end of what a process printed that an error shows.
_TAIL = 2000

_WORKER = "loadmaster.running.onnx.worker"

#: Arrays as they are handed to another process.
Shared = tuple[Mapping[str, Location], int]


@dataclass(frozen=True, eq=False)
class SegmentSteps:
    """Start and finish of segments, in each step that was measured.

    Attributes
    ----------
    seconds : float64 [n_steps]
        Of the whole step.
    start, finish : float64 [n_steps, n_segments]
        Seconds since the step began, in the manifest's order.
    delay : float64 [n_steps]
        Seconds for which processes were ready and had no core, the longest of all processes.
    """

    seconds: NDArray[np.float64]
    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    delay: NDArray[np.float64]

    @cached_property
    def step(self) -> float:
        """Seconds per step: the 10th percentile of 24 steps and more, the least of fewer."""
        return float(typical(self.seconds))

    @property
    def is_busy(self) -> bool:
        """True if processes waited for a core for more than 2 % of the time: the machine had other
        work, and times are too long.
        """
        return bool(self.delay.sum() > MOST_DELAY * self.seconds.sum())


@dataclass(frozen=True)
class SegmentWork:
    """The first message to the process of a device.

    Attributes
    ----------
    folder : str
        The export's.
    device : int
        Its number on the board.
    segments : mapping of int to manifest rows
        Its segments by their numbers, in the order in which they run.
    waits : list of (int, int)
        Arrivals, and segments that wait for them. An arrival is a segment's results on a device.
    sends : mapping of int to list of (int, int)
        Per segment the arrivals that it brings about, and the devices that they are on.
    providers : sequence, optional
        Of ONNX Runtime; by the manifest if absent.
    optimize : bool
        Whether ONNX Runtime may rewrite sub-models.
    cores : tuple of int
        Those that it may use, each for a thread.
    values, board : SharedArrays' places and descriptor
        Where the values and the board's arrays lie.
    patience : float
        Seconds without news after which it gives up.
    alert : float, optional
        Seconds for which it keeps its core while it waits, before it naps.
    """

    folder: str
    device: int
    segments: Mapping[int, Mapping[str, Any]]
    waits: list[tuple[int, int]]
    sends: Mapping[int, list[tuple[int, int]]]
    providers: Sequence[Any] | None
    optimize: bool
    cores: tuple[int, ...]
    values: Shared
    board: Shared
    patience: float
    alert: float | None


class OnnxProcesses(Closing):
    """Runs what :func:`loadmaster.writers.onnx` wrote, with a process for each device.

    Close it, or use it as a context: its processes end then, or else with this one.

    Parameters
    ----------
    folder : path
    feeds : mapping
        A value for every input of the model. Later ones have the same types and shapes.
    providers : mapping, optional
        As for :class:`~loadmaster.running.onnx.segments.OnnxSegments`.
    optimize : bool
        Whether ONNX Runtime may rewrite each sub-model.
    on : mapping of str to str, optional
        Device name to the cores that its process is pinned to, ``"cpu:0"`` or ``"cpu:0-3"``; ops
        have a thread per core. One core each if absent, those that this process may use in turn.
    patience : float
        Seconds without any progress after which a step is given up.

    Raises
    ------
    InputError
        No export in the folder, an input that is missing, a value between segments that is no
        tensor of numbers, a core that this process may not use.
    RunError
        A process failed; with what it said.
    MissingExtraError
        The package ``onnxruntime`` is not installed.

    Examples
    --------
    >>> with OnnxProcesses("parts", {"x": x}) as placed:                       # doctest: +SKIP
    ...     outputs = placed.run({"x": x})
    ...     print(placed.measure(30).step)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        feeds: Mapping[str, Any],
        providers: Mapping[str, Sequence[Any]] | None = None,
        *,
        optimize: bool = True,
        on: Mapping[str, str] | None = None,
        patience: float = 60.0,
    ) -> None:
        checks.positive("patience", patience)
        #: The manifest.
        self.manifest = read_manifest(folder)
        check_feeds(self.manifest, feeds)
        rows = self.manifest["segments"]
        #: Names of the devices that have segments.
        self.devices = list(dict.fromkeys(row["device"] for row in rows))
        pinned = _pinned(self.devices, on)
        self._patience, self._processes = patience, list[_Process]()
        whole = OnnxSegments(folder, providers, optimize=optimize)
        self._inputs = [i["name"] for i in self.manifest["inputs"]]
        shared = _described(feeds, self._inputs, "the input")
        for row, outputs in zip(rows, whole.made(feeds), strict=True):
            shared |= _described(outputs, row["outputs"], f"{row['file']} sends")
        del whole
        routes = _Routes(rows, self.devices)
        lengths = fast.Board.words(len(self.devices), len(routes.arrivals), len(rows))
        self._board = SharedArrays.made(
            {name: ArraySpec("<u8", (n,)) for name, n in zip(BOARD, lengths, strict=True)}
        )
        sizes = {name: spec.nbytes for name, spec in shared.items()}
        self._values = SharedArrays.made(shared, buffers(rows, sizes, self.manifest["outputs"]))
        self._give(feeds)
        try:
            for number, device in enumerate(self.devices):
                work = SegmentWork(
                    os.fspath(folder),
                    number,
                    {i: row for i, row in enumerate(rows) if row["device"] == device},
                    *routes.of(number),
                    (providers or {}).get(device),
                    optimize,
                    pinned[device],
                    (self._values.places, self._values.descriptor),
                    (self._board.places, self._board.descriptor),
                    patience,
                    OWN_CORE if are_apart(pinned.values()) else None,
                )
                self._processes.append(_Process(device, work))
            self._answers(_LOADING)
        except BaseException:
            self.close()
            raise
        finally:
            self._values.close()
            self._board.close()

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.close()
        self._processes = []

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs of the whole model after a step, by name.

        Raises
        ------
        InputError
            An input is missing, or has another type or shape than at first.
        RunError
            A process failed, or waited in vain.
        """
        check_feeds(self.manifest, feeds)
        self._give(feeds)
        self.measure(1)
        return {name: self._values[name].copy() for name in self.manifest["outputs"]}

    def measure(self, steps: int) -> SegmentSteps:
        """Runs so many steps with the inputs as they are, one after the other.

        Raises
        ------
        InputError
            No number of steps, or the processes are closed.
        RunError
            A process failed, or waited in vain.
        """
        if not self._processes:
            raise InputError("the processes are closed")
        steps = checks.count("steps", steps)
        for process in self._processes:
            process.tell(steps)
        clocks = np.empty((2, steps, len(self.manifest["segments"])), dtype=np.uint64)
        begins, delays = [], []
        for begin, mine, started, finished, delay in self._answers(self._patience):
            clocks[0][:, mine], clocks[1][:, mine] = started, finished
            begins.append(begin)
            delays.append(delay)
        # All processes begin a step at the same time.
        start, finish = (clocks - begins[0][:, None]).astype(np.float64) / 1e9
        delay = np.max(delays, axis=0).astype(np.float64) / 1e9
        return SegmentSteps(finish.max(axis=1), start, finish, delay)

    def _give(self, feeds: Mapping[str, Any]) -> None:
        for name in self._inputs:
            value, there = np.asarray(feeds[name]), self._values[name]
            if (value.shape, value.dtype) != (there.shape, there.dtype):
                raise InputError(
                    f"the input {name!r} has shape {value.shape} ({value.dtype}): the processes "
                    f"were started for {there.shape} ({there.dtype})"
                )
            there[...] = value

    def _answers(self, patience: float) -> list[Any]:
        """The answer of each process; the first that fails ends them all."""
        answers: dict[_Process, Any] = {}
        seen = None
        try:
            while missing := [p for p in self._processes if p not in answers]:
                ready = wait([process.connection for process in missing], patience)
                for process in missing:
                    if process.connection in ready:
                        answers[process] = process.answer()
                now = self._board["tasks"].copy()
                if not ready and seen is not None and bool((now == seen).all()):
                    raise RunError(
                        f"the process of {missing[0].device} did nothing for {patience:g} s"
                    )
                seen = now
        except BaseException:
            self.close()
            raise
        return [answers[process] for process in self._processes]


def _described(values: Mapping[str, Any], names: Iterable[str], noun: str) -> dict[str, ArraySpec]:
    """Types and shapes of values that are to be shared."""
    described = {}
    for name in names:
        value = np.asarray(values[name]) if not isinstance(values[name], (list, dict)) else None
        if value is None or value.dtype.kind not in "fiubc":
            raise InputError(
                f"{noun} {name!r}, which is no tensor of numbers: processes cannot share it. "
                "lm.writers.OnnxSegments runs the export in one process"
            )
        described[name] = ArraySpec(value.dtype.str, value.shape)
    return described


def _pinned(devices: Sequence[str], on: Mapping[str, str] | None) -> dict[str, tuple[int, ...]]:
    """The cores of each device's process."""
    usable = usable_cores()
    pinned: dict[str, tuple[int, ...]] = {
        device: (usable[i % len(usable)],) for i, device in enumerate(devices)
    }
    for device, text in (on or {}).items():
        if device not in pinned:
            raise InputError(f"on= speaks of {device!r}, which has no segment")
        place = place_of(text)
        if place.kind != "cpu":
            raise InputError(f"{device!r} cannot be {text}: sub-models run in processes, on cpu:0")
        pinned[device] = place.cores
    return pinned


class _Routes:
    """Routes of segments' results: arrivals on the board."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], devices: Sequence[str]) -> None:
        maker = {value: i for i, row in enumerate(rows) for value in row["outputs"]}
        self._on = [devices.index(row["device"]) for row in rows]
        #: Number of each pair of a segment and a device that reads it from elsewhere.
        self.arrivals: dict[tuple[int, int], int] = {}
        self._waits: list[tuple[int, int]] = []
        for i, row in enumerate(rows):
            makers = sorted({maker[value] for value in row["inputs"] if value in maker})
            for source in makers:
                if self._on[source] != self._on[i]:
                    pair = source, self._on[i]
                    arrival = self.arrivals.setdefault(pair, len(self.arrivals))
                    self._waits.append((arrival, i))

    def of(self, device: int) -> tuple[list[tuple[int, int]], dict[int, list[tuple[int, int]]]]:
        """Waits and sends of a device, as :class:`SegmentWork` has them."""
        waits = [(arrival, i) for arrival, i in self._waits if self._on[i] == device]
        sends: dict[int, list[tuple[int, int]]] = {}
        for (source, to), arrival in self.arrivals.items():
            if self._on[source] == device:
                sends.setdefault(source, []).append((arrival, to))
        return waits, sends


class _Process:
    """The process of a device, from this side."""

    def __init__(self, device: str, work: SegmentWork) -> None:
        self.device = device
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self.connection, theirs = Pipe()
        paths = os.pathsep.join(path for path in sys.path if path)
        with theirs:
            handed = (theirs.fileno(), work.values[1], work.board[1])
            self._process = subprocess.Popen(
                [sys.executable, "-m", _WORKER, str(theirs.fileno())],
                pass_fds=handed,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": paths},
                # Ctrl-C is for this process, which then ends the other.
                start_new_session=True,
            )
        self.tell(work)

    def tell(self, message: object) -> None:
        """Sends a message; that the process is gone is found out by who waits for its answer."""
        with suppress(OSError):
            self.connection.send(message)

    def answer(self) -> Any:
        """Its answer, which is there."""
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            code = self._process.wait()
            raise RunError(
                f"the process of {self.device} ended with code {code}{self._said()}"
            ) from None
        if isinstance(answer, str):
            raise RunError(f"{self.device}: {answer}")
        return answer

    def _said(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(self._log.tell() - _TAIL, 0))
        text = " | ".join(self._log.read().decode("utf-8", "replace").split("\n")).strip(" |")
        return f"; the last it said: {text}" if text else ""

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        self.connection.close()
        self._log.close()
