"""Executions of HLO instructions in a trace of JAX's profiler.

The events name the instruction (``hlo_op``), the module and the run: nothing is guessed.
"""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

from loadmaster.base.checks import is_number
from loadmaster.base.errors import InputError
from loadmaster.base.files import parse_json, read_bytes
from loadmaster.model.graph import ANY_TYPE

#: The lane that repeats all ops of a device; the lanes of its streams have them, too.
_ALL_OPS = "XLA Ops"


class _Thread(NamedTuple):
    process: str
    thread: str


@dataclass(slots=True)
class _Event:
    """One execution of an instruction, in seconds; ``own`` leaves out events within it."""

    op: str
    run: str
    start: float
    end: float
    own: float


@dataclass(frozen=True)
class HloTrace:
    """Times of the runs of a module.

    Attributes
    ----------
    seconds
        Per instruction, the seconds of each run: of all its executions, without what ran within
        them on the same thread. NaN: it did not run.
    runs
        What the trace calls the runs.
    device_types
        Kinds of devices that it ran on, as the trace says.
    """

    seconds: dict[str, list[float]]
    runs: list[str]
    device_types: set[str]

    @classmethod
    def read(cls, path: str | os.PathLike[str], module: str) -> HloTrace:
        """The executions of a module's instructions. O(n log n) for n events.

        Raises
        ------
        InputError
            No trace, no run of the module, a time that is none.
        """
        document = parse_json(read_bytes(path), path)
        rows = document.get("traceEvents") if isinstance(document, Mapping) else None
        if not isinstance(rows, list):
            raise InputError("no profiler trace: it has no list 'traceEvents'")
        rows = [row for row in rows if isinstance(row, Mapping)]
        names = _names(rows)
        threads: dict[_Thread, list[_Event]] = defaultdict(list)
        for thread, event in _events(rows, module):
            threads[thread].append(event)
        lanes = {t for t in threads if names.get(t) == _ALL_OPS}
        processes = {t.process for t in lanes}
        kept = sorted(t for t in threads if t in lanes or t.process not in processes)
        for thread in kept:
            _take_nested_out(threads[thread])
        events = [event for thread in kept for event in threads[thread]]
        runs = list(dict.fromkeys(event.run for event in events))
        column = {run: i for i, run in enumerate(runs)}
        seconds: dict[str, list[float]] = {}
        for event in events:
            row = seconds.setdefault(event.op, [math.nan] * len(runs))
            before = row[column[event.run]]
            row[column[event.run]] = event.own + (0.0 if math.isnan(before) else before)
        kinds = {_device_type(names.get(_Thread(thread.process, ""), "")) for thread in kept}
        return cls(seconds, runs, kinds)

    def device_type(self) -> str:
        """The kind of device that was measured.

        Raises
        ------
        InputError
            There are several.
        """
        if len(self.device_types) > 1:
            kinds = ", ".join(sorted(self.device_types))
            raise InputError(f"ops ran on several kinds of devices ({kinds}): give device_type=")
        return next(iter(self.device_types))

    def notes(self) -> list[str]:
        """Notes on what had to be assumed."""
        if self.runs == [""]:
            return ["the trace does not tell runs apart: all of it counts as one"]
        return [f"times are medians of {len(self.runs)} runs"]


def _names(rows: Sequence[Mapping[str, Any]]) -> dict[_Thread, str]:
    """Names of processes and threads; a process has the thread None."""
    names = {}
    for row in rows:
        args = row.get("args")
        if row.get("ph") != "M" or not isinstance(args, Mapping):
            continue
        if row.get("name") == "process_name":
            names[_Thread(str(row.get("pid")), "")] = str(args.get("name"))
        elif row.get("name") == "thread_name":
            names[_Thread(str(row.get("pid")), str(row.get("tid")))] = str(args.get("name"))
    return names


def _events(rows: Sequence[Mapping[str, Any]], module: str) -> Iterator[tuple[_Thread, _Event]]:
    """Executions of a module's instructions, with their threads."""
    modules: Counter[str] = Counter()
    for row in rows:
        args = row.get("args")
        if not isinstance(args, Mapping) or row.get("ph") != "X" or "hlo_op" not in args:
            continue
        # Traces may add the program's number: jit_step(123).
        name = str(args.get("hlo_module", "")).partition("(")[0]
        modules[name] += 1
        if name != module:
            continue
        start, length = row.get("ts"), row.get("dur")
        if not (_is_time(start) and _is_time(length)):
            raise InputError(
                f"{args['hlo_op']!r} has ts {start!r} and dur {length!r}: wants microseconds, not "
                "negative"
            )
        thread = _Thread(str(row.get("pid")), str(row.get("tid")))
        times = start * 1e-6, (start + length) * 1e-6, length * 1e-6
        yield thread, _Event(str(args["hlo_op"]), str(args.get("run_id", "")), *times)
    if not modules[module]:
        others = ", ".join(sorted(filter(None, modules)))
        raise InputError(
            f"it has no execution of module {module!r}"
            + (f"; it has {others}" if others else ": no event names an hlo_op")
        )


def _take_nested_out(events: list[_Event]) -> None:
    """Each second of a thread belongs to the innermost event that spans it."""
    events.sort(key=lambda e: (e.start, -e.end))
    around: list[_Event] = []
    for event in events:
        while around and around[-1].end < event.end:
            around.pop()
        if around:
            around[-1].own = max(around[-1].own - (event.end - event.start), 0.0)
        around.append(event)


def _is_time(value: Any) -> TypeGuard[float]:
    return is_number(value) and 0 <= value < 1e18


def _device_type(process: str) -> str:
    """Of the name of a process, such as ``/device:GPU:0`` or ``/host:CPU``."""
    kinds = (kind for kind in ("tpu", "gpu", "cpu") if kind in process.lower())
    return next(kinds, ANY_TYPE)
