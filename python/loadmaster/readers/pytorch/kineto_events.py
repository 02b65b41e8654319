"""The events of a Kineto trace: its calls, and the kernels that each of them launched."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError, refusing
from loadmaster.base.files import parse_json, read_bytes, uncollected
from loadmaster.base.units import counted, format_seconds
from loadmaster.model.graph import LAUNCHES
from loadmaster.readers.pytorch.calls import MODULE_PREFIX, ProcessCalls, role_of

#: The device type of traces without kernels.
CPU = "cpu"

#: Categories of events, as all versions since 2021 spell them, and their names here.
_CALLS = frozenset({"cpu_op", "Operator", "user_annotation", "python_function"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "Runtime"})
_KERNELS = frozenset(
    {"kernel", "Kernel", "gpu_memcpy", "gpu_memset", "Memcpy", "Memset", "concurrent_kernel"}
)
_COMMUNICATION = re.compile(r"(nccl|rccl|oneccl|mscclKernel)", re.IGNORECASE)

#: Microseconds: calls whose ends differ by less end together, as older traces have whole us.
_ROUNDING = 1.0


@dataclass(slots=True)
class _Events:
    """The events of a file that are kept, in its order: plain rows, made while it is parsed."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    launches: list[tuple[Any, ...]] = field(default_factory=list)
    kernels: list[tuple[Any, ...]] = field(default_factory=list)
    memory: list[tuple[Any, ...]] = field(default_factory=list)

    def keep(self, item: dict[str, Any]) -> Any:
        """Keeps an event and gives None for it; any other object stays what it is."""
        phase = item.get("ph")
        if phase is None:
            return item
        args = item.get("args") or {}
        category, name = item.get("cat"), item.get("name")
        if phase == "X":
            where = (item.get("pid"), item.get("tid"), item.get("ts"), item.get("dur"))
            if category in _CALLS:
                if category != "python_function" or str(name).startswith(MODULE_PREFIX):
                    self.calls.append((name, category, *where, *map(args.get, _OF_CALL)))
            elif category in _LAUNCHES:
                self.launches.append((name, *where, *map(args.get, _OF_LAUNCH)))
            elif category in _KERNELS:
                self.kernels.append((name, *where, *map(args.get, _OF_KERNEL)))
        elif phase == "i" and name == "[memory]":
            thread = (item.get("pid"), item.get("tid"))
            self.memory.append((*thread, item.get("ts"), args.get("Bytes"), args.get("Addr")))
        return None


# The keys of ``args`` that are kept, and the columns of the rows.
_OF_CALL = ("Sequence number", "External id", "Record function id", "Input Dims", "Input type")
_OF_LAUNCH = ("correlation",)
_OF_KERNEL = ("correlation", "External id", "external id", "device")
_CALL = ("name", "cat", "pid", "tid", "ts", "dur", *_OF_CALL)
_LAUNCH = ("name", "pid", "tid", "ts", "dur", *_OF_LAUNCH)
_KERNEL = ("name", "pid", "tid", "ts", "dur", *_OF_KERNEL)
_MEMORY = ("pid", "tid", "ts", "Bytes", "Addr")


def load(path: str | os.PathLike[str]) -> KinetoTrace:
    """The events of a trace.

    Raises
    ------
    InputError
        The file cannot be read or unpacked, is cut off, is no trace of PyTorch, or has a time that
        is none; the event is named.
    """
    source = os.fspath(path)
    events = _Events()
    with uncollected():
        with refusing(f"{source} has an event that is none", TypeError, AttributeError):
            document = parse_json(read_bytes(path), path, events.keep)
        if not isinstance(document, dict) or "traceEvents" not in document:
            raise InputError(f"{source} is no Chrome trace: it has no traceEvents")
        if not events.calls and not events.kernels:
            raise InputError(
                f"{source} is a Chrome trace without calls of PyTorch (events of category cpu_op): "
                "what torch.profiler exports is wanted"
            )
        return KinetoTrace.of(source, events, document)


@dataclass(frozen=True, eq=False)
class KinetoTrace:
    """A trace: its calls, and the kernels that each of them launched.

    Attributes
    ----------
    source : str
        The file, for messages.
    calls : Calls
        Times in us.
    duration : float64 [n_calls]
        Microseconds, as recorded: the difference of two times would lose digits.
    record : int64 [n_calls]
        Record function id, which an execution trace of the same step has too; 0: none.
    inputs : list of (dims, types)
        Of each call, as recorded.
    kernels : list of str
        What ran on a device besides the host: kernels, copies, fills.
    kernel_seconds : float64 [n_kernels]
    kernel_call : int32 [n_kernels]
        The innermost call that launched each; -1: not known.
    kernel_type : str
        Name of the device that they ran on.
    memory_call : int32 [n_events]
        The innermost call in which memory was allocated or freed.
    memory : list of (bytes, address)
        Of each such event; bytes are negative where freed.
    crossings : list of (int, int)
        Pairs of calls of one thread that overlap, neither inside the other.
    """

    source: str
    calls: ProcessCalls
    duration: NDArray[np.float64]
    record: NDArray[np.int64]
    inputs: list[tuple[Any, Any]]
    kernels: list[str]
    kernel_seconds: NDArray[np.float64]
    kernel_call: NDArray[np.int32]
    kernel_type: str
    memory_call: NDArray[np.int32]
    memory: list[tuple[Any, Any]]
    crossings: list[tuple[int, int]]

    @classmethod
    def of(cls, source: str, events: _Events, document: dict[str, Any]) -> KinetoTrace:
        """Sorts out what was parsed."""
        columns = _columns(events.calls, _CALL)
        names = _texts(columns["name"], source)
        threads = _Threads()
        thread = threads.codes(columns["pid"], columns["tid"])
        start = _numbers(columns["ts"], names, "ts", source)
        duration = _numbers(columns["dur"], names, "dur", source, least=0.0)
        order = np.lexsort((-(start + duration), start))
        at = order.tolist()
        names = [names[i] for i in at]
        start, duration, thread = start[order], duration[order], thread[order]
        end = start + duration
        parent, crossings = _nested(start, end, thread)
        marked = [columns["cat"][i] == "user_annotation" for i in at]
        known = {
            key: role_of(key[0], annotation=key[1]) for key in set(zip(names, marked, strict=True))
        }
        roles = [known[key] for key in zip(names, marked, strict=True)]

        def ids(key: str, default: int) -> NDArray[np.int64]:
            return _ids(columns[key], default)[order]

        where = _Where(start, end, thread, parent)
        kernel = _columns(events.kernels, _KERNEL)
        kernels = _texts(kernel["name"], source)
        launch = _columns(events.launches, _LAUNCH)
        launch_call = where.find(
            threads.codes(launch["pid"], launch["tid"]),
            _numbers(launch["ts"], list(map(str, launch["name"])), "ts", source),
        )
        kernel_call = _launching(launch, launch_call, kernel, ids("External id", 0))
        launches = np.zeros(len(names), dtype=bool)
        launches[kernel_call[kernel_call >= 0]] = True
        memory = _columns(events.memory, _MEMORY)
        moments = _numbers(memory["ts"], ["[memory]"] * len(events.memory), "ts", source)
        sequence = ids("Sequence number", -1)
        return cls(
            source,
            ProcessCalls(names, np.array(roles, np.uint8), parent, start, end, sequence, launches),
            duration,
            ids("Record function id", 0),
            [(columns["Input Dims"][i], columns["Input type"][i]) for i in at],
            kernels,
            _numbers(kernel["dur"], kernels, "dur", source, least=0.0) / 1e6,
            kernel_call,
            _device_name(kernel["device"], document.get("deviceProperties")),
            where.find(threads.codes(memory["pid"], memory["tid"]), moments),
            list(zip(memory["Bytes"], memory["Addr"], strict=True)),
            crossings,
        )

    @property
    def device_type(self) -> str:
        """The device that the times are of: the name of the GPU, or ``"cpu"``."""
        return self.kernel_type if self.kernels else CPU

    @cached_property
    def communication(self) -> NDArray[np.bool_]:
        """Mask of the kernels that send data between devices."""
        return np.array([bool(_COMMUNICATION.match(name)) for name in self.kernels], dtype=bool)

    def within(self, ops: NDArray[np.int32]) -> NDArray[np.int32]:
        """Per call, the position in ``ops`` of the innermost op around it; -1: none."""
        n = len(self.calls)
        position = np.full(n + 1, -1, dtype=np.int32)
        position[ops] = np.arange(len(ops), dtype=np.int32)
        parent = np.where(self.calls.parent < 0, n, self.calls.parent)
        # An op points to itself, any other call to its caller; every round doubles the way.
        up = np.append(np.where(position[:n] >= 0, np.arange(n), parent), n)
        while not np.array_equal(further := up[up], up):
            up = further
        return np.asarray(position[up[:n]], dtype=np.int32)

    def seconds(self, ops: NDArray[np.int32]) -> NDArray[np.float64]:
        """Time of each op: of the kernels it launched, or of the call, where nothing ran on a GPU.

        Kernels that communicate are left out: they wait for other devices, which is no op's time.
        """
        if not self.kernels:
            return self.duration[ops] / 1e6
        op = self._of_kernels(ops)
        counts = (op >= 0) & ~self.communication
        return np.bincount(op[counts], self.kernel_seconds[counts], len(ops)).astype(np.float64)

    def kernels_of(self, ops: NDArray[np.int32]) -> list[int]:
        """The number of kernels that each op launched."""
        op = self._of_kernels(ops)
        return list(map(int, np.bincount(op[op >= 0], minlength=len(ops))))

    def elapsed(self, steps: Sequence[NDArray[np.int32]]) -> float:
        """Seconds from the start of the first op of a step to the end of the last one, median."""
        start, end = self.calls.start, self.calls.end
        spans = [end[ops].max() - start[ops].min() for ops in steps if len(ops)]
        return float(np.median(spans)) / 1e6

    def _of_kernels(self, ops: NDArray[np.int32]) -> NDArray[np.int32]:
        return _taken(self.within(ops), self.kernel_call)

    def output_bytes(self, ops: NDArray[np.int32]) -> NDArray[np.uint64] | None:
        """Bytes that each op allocated and left behind; None where memory was not profiled."""
        if not self.memory:
            return None
        alive: list[dict[int, int]] = [{} for _ in range(len(ops))]
        events = _taken(self.within(ops), self.memory_call).tolist()
        for number, (op, (size, address)) in enumerate(zip(events, self.memory, strict=True)):
            if op < 0 or not isinstance(size, int):
                continue
            if not isinstance(address, int):  # older traces: only the balance is known
                alive[op][-1 - number] = size
            elif size >= 0:
                alive[op][address] = size
            else:
                alive[op].pop(address, None)
        left = [min(max(0, sum(sizes.values())), 2**62) for sizes in alive]
        return np.array(left, dtype=np.uint64)

    def notes(self, ops: NDArray[np.int32]) -> list[str]:
        """Faults of the trace, and times that belong to no op; ``ops`` are the ops of all steps."""
        notes = []
        op = self._of_kernels(ops)
        lost = [(self.kernels[k], self.kernel_seconds[k]) for k in np.flatnonzero(op < 0).tolist()]
        if lost:
            notes.append(
                f"{_amount(lost, 'kernel')} of {len(self.kernels)} were launched by no op in the "
                f"trace, and are in no op's time: {_most(name for name, _ in lost)}"
            )
        sent = np.flatnonzero(self.communication).tolist()
        if sent:
            rows = [(self.kernels[k], self.kernel_seconds[k]) for k in sent]
            notes.append(
                f"{_amount(rows, 'communication kernel')} are left out of the times: "
                f"{_most(name for name, _ in rows)}"
            )
        if self.crossings:
            first, second = (self.calls.names[call] for call in self.crossings[0])
            notes.append(
                f"{counted(len(self.crossings), 'call overlaps', 'calls overlap')} another of "
                f"their thread, {first!r} and {second!r} first: the time they share counts twice"
            )
        return notes


def launches(names: Iterable[str], kernels: Iterable[int]) -> dict[str, dict[str, int]]:
    """Entries of a graph's ``meta`` on ops that launch several kernels; none where none does."""
    several = {name: n for name, n in zip(names, kernels, strict=True) if n > 1}
    return {LAUNCHES: several} if several else {}


def _amount(rows: Sequence[tuple[str, float]], noun: str) -> str:
    return f"{counted(len(rows), noun)} ({format_seconds(sum(s for _, s in rows))})"


def _most(names: Iterable[str]) -> str:
    """The three most frequent names with their counts, shortened."""
    counts = Counter(names)
    listed = [f"{name[:60]!r} ({n})" for name, n in counts.most_common(3)]
    return ", ".join(listed) + (
        f" and {counted(len(counts) - 3, 'more kind')}" if len(counts) > 3 else ""
    )


def _taken(values: NDArray[np.int32], at: NDArray[np.int32]) -> NDArray[np.int32]:
    """The values at positions; -1 where there is none."""
    return np.where(at >= 0, values[np.maximum(at, 0)], np.int32(-1)).astype(np.int32)


# ---- columns ----------------------------------------------------------------------------------


def _columns(rows: list[tuple[Any, ...]], keys: Sequence[str]) -> dict[str, Sequence[Any]]:
    columns = zip(*rows, strict=True) if rows else [()] * len(keys)
    return dict(zip(keys, columns, strict=True))


def _texts(values: Sequence[Any], source: str) -> list[str]:
    if any(type(value) is not str for value in values):
        odd = next(value for value in values if not isinstance(value, str))
        raise InputError(f"{source} has an event whose name is {odd!r}: wants text")
    return list(values)


def _numbers(
    values: Sequence[Any], names: Sequence[str], key: str, source: str, least: float = -np.inf
) -> NDArray[np.float64]:
    """A column of numbers, each finite and at least so much."""
    try:
        if set(map(type, values)) <= {int, float}:
            column = np.array(values, dtype=np.float64)
            bad = np.flatnonzero(~(np.isfinite(column) & (column >= least)))
            if not len(bad):
                return column
            at = int(bad[0])
        else:
            at = next(i for i, value in enumerate(values) if type(value) not in (int, float))
    except OverflowError:
        at = next(i for i, value in enumerate(values) if abs(value) > 1e300)
    wants = "a number" if least == -np.inf else "a number that is not negative"
    raise InputError(
        f"{source}: {names[at]!r} (event {at} of its kind) has {key} {values[at]!r:.40}: "
        f"wants {wants}, in us"
    )


def _ids(values: Sequence[Any], default: int) -> NDArray[np.int64]:
    """A column of identifiers; values that are none become the default."""
    whole = [v if type(v) is int and -(2**62) < v < 2**62 else default for v in values]
    return np.array(whole, dtype=np.int64)


class _Threads:
    """Numbers for the threads of processes, which are told by text or by number."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], int] = {}

    def codes(self, pids: Sequence[Any], tids: Sequence[Any]) -> NDArray[np.int64]:
        known = self._known
        pairs = zip(map(str, pids), map(str, tids), strict=True)
        return np.array([known.setdefault(pair, len(known)) for pair in pairs], dtype=np.int64)


def _nested(
    start: NDArray[np.float64], end: NDArray[np.float64], thread: NDArray[np.int64]
) -> tuple[NDArray[np.int32], list[tuple[int, int]]]:
    """The innermost call around each call of its thread, and pairs that only overlap. O(n)."""
    stacks: dict[int, list[tuple[float, int]]] = {}
    parent: list[int] = []
    crossings: list[tuple[int, int]] = []
    rows = zip(start.tolist(), end.tolist(), thread.tolist(), strict=True)
    for call, (begin, stop, where) in enumerate(rows):
        stack = stacks.setdefault(where, [])
        while stack and (stack[-1][0] < begin or stack[-1][0] == begin < stop):
            stack.pop()
        while stack and stack[-1][0] + _ROUNDING < stop:
            crossings.append((stack.pop()[1], call))
        parent.append(stack[-1][1] if stack else -1)
        stack.append((stop, call))
    return np.array(parent, dtype=np.int32), crossings


class _Where:
    """Finds the innermost call of a thread at a moment."""

    def __init__(
        self,
        start: NDArray[np.float64],
        end: NDArray[np.float64],
        thread: NDArray[np.int64],
        parent: NDArray[np.int32],
    ) -> None:
        self.end, self.parent = end, parent
        self._calls = {code: np.flatnonzero(thread == code) for code in np.unique(thread).tolist()}
        self._starts = {code: start[calls] for code, calls in self._calls.items()}

    def find(self, thread: NDArray[np.int64], moment: NDArray[np.float64]) -> NDArray[np.int32]:
        """The call in which each moment lies, int32; -1: none."""
        inside = np.full(len(moment), -1, dtype=np.int32)
        if not len(self.end):
            return inside
        for code, calls in self._calls.items():
            here = np.flatnonzero(thread == code)
            last = np.searchsorted(self._starts[code], moment[here], side="right") - 1
            inside[here] = np.where(last >= 0, calls[np.maximum(last, 0)], -1)
        while True:
            over = np.flatnonzero((inside >= 0) & (self.end[inside] < moment))
            if not len(over):
                return inside
            inside[over] = self.parent[inside[over]]


def _launching(
    launches: dict[str, Sequence[Any]],
    launch_call: NDArray[np.int32],
    kernels: dict[str, Sequence[Any]],
    external: NDArray[np.int64],
) -> NDArray[np.int32]:
    """The innermost call that launched each kernel, by correlation id; -1: not known.

    A kernel whose launch is not in the trace falls back to the call with its external id, unless
    that is only its correlation id again, as in some versions of Kineto.
    """
    correlations = _ids(launches["correlation"], -1).tolist()
    by_correlation = dict(zip(correlations, launch_call.tolist(), strict=True))
    by_external = {number: call for call, number in enumerate(external.tolist()) if number > 0}
    spelled = zip(kernels["External id"], kernels["external id"], strict=True)
    numbers = _ids([old if new is None else new for new, old in spelled], -1).tolist()
    callers = []
    for correlation, number in zip(_ids(kernels["correlation"], -1).tolist(), numbers, strict=True):
        call = by_correlation.get(correlation, -1) if correlation >= 0 else -1
        if call < 0 and number != correlation:
            call = by_external.get(number, -1)
        callers.append(call)
    return np.array(callers, dtype=np.int32)


def _device_name(devices: Sequence[Any], properties: Any) -> str:
    """The name of the device that most kernels ran on; ``"gpu"`` where the trace does not tell."""
    names = {}
    for item in properties if isinstance(properties, list) else ():
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            names[str(item.get("id"))] = item["name"]
    counts = Counter(names.get(str(device), "") for device in devices)
    return max(counts, key=lambda name: (counts[name], name), default="") or "gpu"
