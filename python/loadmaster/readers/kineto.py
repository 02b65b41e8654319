"""Reads traces of ``torch.profiler`` (Kineto's Chrome JSON), without torch.

A trace tells how long every call took, and which kernels of a GPU it launched. It has no ids of
tensors, so the edges of a graph made of it alone are guesses; joined with an execution trace of the
same step (:mod:`loadmaster.readers.chakra`) the graph is the real one.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InputError
from loadmaster.files import parse_json, read_bytes, uncollected
from loadmaster.graph import OpGraph
from loadmaster.profile import Profile
from loadmaster.readers.notes import warn
from loadmaster.readers.torch_calls import MODULE_PREFIX, Calls, chosen, role_of, tensor_of
from loadmaster.units import format_seconds

#: The device type of traces without kernels.
CPU = "cpu"

#: Categories of events, in the spelling of all versions since 2021, by what they are here.
_CALLS = frozenset({"cpu_op", "Operator", "user_annotation", "python_function"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "Runtime"})
_KERNELS = frozenset(
    {"kernel", "Kernel", "gpu_memcpy", "gpu_memset", "Memcpy", "Memset", "concurrent_kernel"}
)
_COMMUNICATION = re.compile(r"(nccl|rccl|oneccl|mscclKernel)", re.IGNORECASE)

#: Calls whose ends differ by less than this, in us, end together: older traces have whole us.
_ROUNDING = 1.0


def read(
    path: str | os.PathLike[str], *, step: int | None = None, device_type: str | None = None
) -> OpGraph:
    """Reads the ops of a step, with measured times; its edges are assumed.

    Parameters
    ----------
    path
        What ``prof.export_chrome_trace`` wrote, plain or gzipped.
    step
        The ``ProfilerStep`` to read. All of them if absent, which must then have the same ops:
        the time of an op is the median over the steps.
    device_type
        What to call the device that the times are of: the name in the trace if absent, ``"cpu"``
        where nothing ran on a GPU.

    Returns
    -------
    OpGraph
        Ops as the dispatcher handed them to a backend (:mod:`loadmaster.readers.torch_calls`),
        named by module and kind. The time of an op is that of its kernels, or on a CPU of the call
        itself with all that it called. Each op is assumed to read what the op that started before
        it put out, and backward ops also what the forward op of the same autograd number put out:
        nothing can then run at the same time, but nothing runs before what it needs.

    Raises
    ------
    InputError
        No whole trace, no ops of PyTorch in it, a time that is none, steps that differ.

    Warns
    -----
    UserWarning
        The assumed edges; kernels that no op launched; calls that overlap where they cannot.
        ``graph.meta["assumed"]`` keeps the same.

    Examples
    --------
    >>> import json, tempfile, warnings
    >>> call = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0}
    >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file, warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     json.dump({"traceEvents": [{**call, "dur": 5}]}, file)
    ...     file.flush()
    ...     graph = read(file.name)
    >>> graph.names, graph.time["cpu"].tolist()
    (['aten::mm'], [5e-06])
    """
    return _graph(load(path), Path(path), step, device_type)


def profile(
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    device_type: str | None = None,
    batch: int | None = None,
) -> Profile:
    """The measured times of a trace: a row per op as :func:`read` names them, a column per step.

    Arguments, errors and warnings are those of :func:`read`; ``batch`` is kept.

    Examples
    --------
    >>> import json, tempfile
    >>> call = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0}
    >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    ...     json.dump({"traceEvents": [{**call, "dur": 5}]}, file)
    ...     file.flush()
    ...     found = profile(file.name, batch=16)
    >>> found.median().tolist(), found.device_type, found.batch
    ([5e-06], 'cpu', 16)
    """
    trace = load(path)
    steps = chosen(trace.calls, step, trace.source)
    for note in trace.notes(trace.calls.ops):
        warn(note)
    names, first = steps[0]
    return Profile(
        tuple(names),
        tuple(trace.calls.names[op] for op in first.tolist()),
        np.stack([trace.seconds(ops) for _, ops in steps], axis=1),
        device_type or trace.device_type,
        batch,
        trace.output_bytes(first),
    )


# ---- events -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Events:
    """What is kept of the events of a file, in its order: plain rows, made while it is parsed."""

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


_OF_CALL = (
    "Sequence number", "External id", "Record function id", "Fwd thread id", "Input Dims",
    "Input type",
)  # fmt: skip
_OF_LAUNCH = ("correlation",)
_OF_KERNEL = ("correlation", "External id", "external id", "device")


def load(path: str | os.PathLike[str]) -> Trace:
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
        try:
            document = parse_json(read_bytes(path), path, events.keep)
        except (TypeError, AttributeError) as error:
            raise InputError(f"{source} has an event that is none: {error}") from error
        if not isinstance(document, dict) or "traceEvents" not in document:
            raise InputError(f"{source} is no Chrome trace: it has no traceEvents")
        if not events.calls and not events.kernels:
            raise InputError(
                f"{source} is a Chrome trace without calls of PyTorch (events of category cpu_op): "
                "what torch.profiler exports is wanted"
            )
        return Trace.of(source, events, document)


@dataclass(frozen=True, eq=False)
class Trace:
    """A trace: its calls, and the kernels that each of them launched.

    Attributes
    ----------
    source : str
        The file, for messages.
    calls : Calls
        Times in us.
    duration : float64 [n_calls]
        In us, as recorded: the difference of two moments would lose digits.
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
    calls: Calls
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
    def of(cls, source: str, events: _Events, document: dict[str, Any]) -> Trace:
        """Sorts out what was parsed."""
        columns = _columns(events.calls, 6 + len(_OF_CALL))
        names = _texts(columns[0], source)
        threads = _Threads()
        thread = threads.codes(columns[2], columns[3])
        start = _numbers(columns[4], names, "ts", source)
        duration = _numbers(columns[5], names, "dur", source, least=0.0)
        order = np.lexsort((-(start + duration), start))
        names = [names[i] for i in order.tolist()]
        start, duration, thread = start[order], duration[order], thread[order]
        end = start + duration
        parent, crossings = _nested(start, end, thread)
        annotation = [columns[1][i] == "user_annotation" for i in order.tolist()]
        known: dict[tuple[str, bool], int] = {}
        for key in zip(names, annotation, strict=True):
            if key not in known:
                known[key] = role_of(key[0], annotation=key[1])
        roles = [known[key] for key in zip(names, annotation, strict=True)]

        def ids(column: int, default: int) -> NDArray[np.int64]:
            return _ids(columns[column], default)[order]

        where = _Where(start, end, thread, parent)
        kernel = _columns(events.kernels, 5 + len(_OF_KERNEL))
        kernels = _texts(kernel[0], source)
        kernel_call = _launching(events.launches, kernel, where, threads, ids(7, 0), source)
        launches = np.zeros(len(names), dtype=bool)
        launches[kernel_call[kernel_call >= 0]] = True
        memory = _columns(events.memory, 5)
        moments = _numbers(memory[2], ["[memory]"] * len(events.memory), "ts", source)
        return cls(
            source,
            Calls(names, np.array(roles, np.uint8), parent, start, end, ids(6, -1), launches),
            duration,
            ids(8, 0),
            [(columns[10][i], columns[11][i]) for i in order.tolist()],
            kernels,
            _numbers(kernel[4], kernels, "dur", source, least=0.0) / 1e6,
            kernel_call,
            _device_name(kernel[8], document.get("deviceProperties")),
            where.find(threads.codes(memory[0], memory[1]), moments),
            list(zip(memory[3], memory[4], strict=True)),
            crossings,
        )

    @property
    def device_type(self) -> str:
        """What the times are of: the name of the GPU, or ``"cpu"``."""
        return self.kernel_type if self.kernels else CPU

    @cached_property
    def communication(self) -> NDArray[np.bool_]:
        """Which kernels send data between devices."""
        return np.array([bool(_COMMUNICATION.match(name)) for name in self.kernels], dtype=bool)

    def within(self, ops: NDArray[np.int32]) -> NDArray[np.int32]:
        """Position in ``ops`` of the innermost of them around each call, -1: none."""
        position = np.full(len(self.calls), -1, dtype=np.int32)
        position[ops] = np.arange(len(ops), dtype=np.int32)
        found: list[int] = []
        for own, parent in zip(position.tolist(), self.calls.parent.tolist(), strict=True):
            found.append(own if own >= 0 or parent < 0 else found[parent])
        return np.array(found, dtype=np.int32)

    def seconds(self, ops: NDArray[np.int32]) -> NDArray[np.float64]:
        """Time of each op: of the kernels it launched, or of the call, where nothing ran on a GPU.

        Kernels that communicate are left out: how long they wait for others is no op's time.
        """
        if not self.kernels:
            return self.duration[ops] / 1e6
        op = self._of_kernels(ops)
        counts = (op >= 0) & ~self.communication
        return np.bincount(op[counts], self.kernel_seconds[counts], len(ops)).astype(np.float64)

    def elapsed(self, steps: Sequence[NDArray[np.int32]]) -> float:
        """Seconds from the start of the first op of a step to the end of the last one, median."""
        start, end = self.calls.start, self.calls.end
        return (
            float(np.median([end[ops].max() - start[ops].min() for ops in steps if len(ops)])) / 1e6
        )

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
        """What is wrong with the trace, or in the time of no op; ``ops`` are those of all steps."""
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
                f"{len(self.crossings)} calls overlap another of their thread, {first!r} and "
                f"{second!r} first: the time they share counts twice"
            )
        return notes


def _amount(rows: Sequence[tuple[str, float]], what: str) -> str:
    return f"{len(rows)} {what}{'s' * (len(rows) != 1)} ({format_seconds(sum(s for _, s in rows))})"


def _most(names: Iterable[str]) -> str:
    """The three most frequent names with their counts, shortened."""
    counts = Counter(names)
    listed = [f"{name[:60]!r} ({n})" for name, n in counts.most_common(3)]
    return ", ".join(listed) + (f" and {len(counts) - 3} more kinds" if len(counts) > 3 else "")


def _taken(values: NDArray[np.int32], at: NDArray[np.int32]) -> NDArray[np.int32]:
    """The values at positions; -1 where there is none."""
    return np.where(at >= 0, values[np.maximum(at, 0)], np.int32(-1)).astype(np.int32)


# ---- columns ----------------------------------------------------------------------------------


def _columns(rows: list[tuple[Any, ...]], width: int) -> list[Sequence[Any]]:
    return list(zip(*rows, strict=True)) if rows else [()] * width


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
    """A column of identifiers; what is none is the default."""
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
        found = np.full(len(moment), -1, dtype=np.int32)
        for code, calls in self._calls.items():
            here = np.flatnonzero(thread == code)
            last = np.searchsorted(self._starts[code], moment[here], side="right") - 1
            found[here] = np.where(last >= 0, calls[np.maximum(last, 0)], -1)
        while True:
            over = np.flatnonzero((found >= 0) & (self.end[found] < moment))
            if not len(over):
                return found
            found[over] = self.parent[found[over]]


def _launching(
    launches: list[tuple[Any, ...]],
    kernels: list[Sequence[Any]],
    where: _Where,
    threads: _Threads,
    external: NDArray[np.int64],
    source: str,
) -> NDArray[np.int32]:
    """The innermost call that launched each kernel, by correlation id; -1: not known.

    A kernel whose launch is not in the trace falls back to the call with its external id, unless
    that is only its correlation id again, as in some versions of Kineto.
    """
    columns = _columns(launches, 5 + len(_OF_LAUNCH))
    moments = _numbers(columns[3], [str(name) for name in columns[0]], "ts", source)
    at = where.find(threads.codes(columns[1], columns[2]), moments).tolist()
    by_correlation = dict(zip(_ids(columns[5], -1).tolist(), at, strict=True))
    by_external = {number: call for call, number in enumerate(external.tolist()) if number > 0}
    either = [a if a is not None else b for a, b in zip(kernels[6], kernels[7], strict=True)]
    found = []
    for correlation, number in zip(
        _ids(kernels[5], -1).tolist(), _ids(either, -1).tolist(), strict=True
    ):
        call = by_correlation.get(correlation, -1) if correlation >= 0 else -1
        if call < 0 and number != correlation:
            call = by_external.get(number, -1)
        found.append(call)
    return np.array(found, dtype=np.int32)


def _device_name(devices: Sequence[Any], properties: Any) -> str:
    """The name of the device that most kernels ran on; ``"gpu"`` where the trace does not tell."""
    names = {}
    for item in properties if isinstance(properties, list) else ():
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            names[str(item.get("id"))] = item["name"]
    counts = Counter(names.get(str(device), "") for device in devices)
    return max(counts, key=lambda name: (counts[name], name), default="") or "gpu"


# ---- the graph --------------------------------------------------------------------------------

_ASSUMED = (
    "edges: each op reads what the op that started before it put out, and a backward op what the "
    "forward op of the same autograd number put out; the trace has no ids of tensors"
)
_NO_FLOPS = "no FLOPs: the trace has the shapes of what ops read, not of what they put out"


def _graph(trace: Trace, path: Path, step: int | None, device_type: str | None) -> OpGraph:
    steps = chosen(trace.calls, step, trace.source)
    names, ops = steps[0]
    calls = trace.calls
    kinds = [calls.names[op] for op in ops.tolist()]
    seconds = np.median([trace.seconds(each) for _, each in steps], axis=0)
    sizes, sizes_from = _sizes(trace, ops)
    assumed = [
        _ASSUMED,
        sizes_from,
        _NO_FLOPS,
        *trace.notes(trace.calls.ops),
        *_left_out(trace, steps, seconds),
    ]
    warn(
        "the edges of this graph are guesses, and nothing in it can run at the same time: the "
        "trace has no ids of tensors. Read the execution trace of the same step instead, with this "
        "one: lm.read(execution_trace, profile=trace)"
    )
    for note in [*assumed[3:], *([] if sizes.any() else [sizes_from])]:
        warn(note)
    return OpGraph(
        {
            "name": names,
            "kind": kinds,
            "module": [calls.modules[op] for op in ops.tolist()],
            "phase": [calls.phases[op] for op in ops.tolist()],
            "output_bytes": sizes,
            "time": {device_type or trace.device_type: seconds},
        },
        _edges(calls, ops, sizes),
        name=path.name.partition(".")[0],
        meta={
            "framework": "torch.profiler",
            "steps": len(steps),
            "step_seconds": trace.elapsed([each for _, each in steps]),
            "assumed": assumed,
        },
    )


def _left_out(
    trace: Trace, steps: Sequence[tuple[list[str], NDArray[np.int32]]], seconds: NDArray[np.float64]
) -> list[str]:
    """What of the recorded ops and times is not in the graph."""
    notes = []
    idle = int((seconds == 0).sum())
    if trace.kernels and idle:
        notes.append(f"{idle} of {len(seconds)} ops launched no kernel: 0 s on {trace.device_type}")
    outside = len(trace.calls.ops) - sum(len(each.ops) for each in trace.calls.steps())
    if outside:
        notes.append(f"{outside} ops are outside of every step, and left out")
    return notes


def _sizes(trace: Trace, ops: NDArray[np.int32]) -> tuple[NDArray[np.uint64], str]:
    """Bytes that each op hands on, and how they were found.

    An op that allocates nothing hands on what it was given.
    """
    own = trace.output_bytes(ops)
    if own is not None:
        how = "bytes on edges: what an op allocated and kept, or else what it was given"
    else:
        read_next = [_largest(trace.inputs[op]) for op in ops.tolist()[1:]]
        own = np.array([*read_next, 0], dtype=np.uint64)
        how = (
            "bytes on edges: the largest tensor that the next op reads (profile_memory=True tells)"
            if own.any()
            else "no bytes on edges: the trace has neither shapes (record_shapes=True) nor memory "
            "(profile_memory=True)"
        )
    handed, last = [], 0
    for size in own.tolist():
        last = size or last
        handed.append(last)
    return np.array(handed, dtype=np.uint64), how


def _largest(inputs: tuple[Any, Any]) -> int:
    dims, types = inputs
    if not isinstance(dims, list) or not isinstance(types, list):
        return 0
    sizes = [tensor.nbytes for tensor in map(tensor_of, dims, types) if tensor is not None]
    return min(max(sizes, default=0), 2**62)


def _edges(
    calls: Calls, ops: NDArray[np.int32], sizes: NDArray[np.uint64]
) -> dict[str, NDArray[Any]]:
    """From each op to the next, and from forward ops to those of their autograd nodes."""
    position = {op: i for i, op in enumerate(ops.tolist())}
    edges = {(i, i + 1) for i in range(len(ops) - 1)}
    for op, i in position.items():
        forward = position.get(calls.forward_of.get(int(calls.nodes[op]), -1), -1)
        if 0 <= forward < i:
            edges.add((forward, i))
    src, dst = np.array(sorted(edges), dtype=np.int64).reshape(-1, 2).T
    return {"src": src, "dst": dst, "tensor": src, "bytes": sizes[src]}
