"""Reads PyTorch's execution traces (Chakra), alone or joined with a Kineto trace of the same step.

``torch.profiler.ExecutionTraceObserver`` records every call with the tensors that it reads and
gives out, but no times. Kineto records the times, but no tensors. Recorded together, both give a
call the same record function id.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.base.units import counted
from loadmaster.base.warnings import warn
from loadmaster.model.graph import TIME_SOURCES, OpGraph
from loadmaster.model.profile import Profile
from loadmaster.readers.pytorch import kineto_events
from loadmaster.readers.pytorch.aten_costs import cost
from loadmaster.readers.pytorch.calls import chosen
from loadmaster.readers.pytorch.execution_trace_nodes import RecordedTrace, load
from loadmaster.readers.pytorch.execution_trace_rows import RowLabels, TraceOp, TraceRows, labels_of
from loadmaster.readers.pytorch.kineto_events import KinetoTrace, launches
from loadmaster.readers.shared.formulas import Cost

_Steps = list[tuple[list[str], NDArray[np.int32]]]


def read(
    path: str | os.PathLike[str],
    *,
    profile: str | os.PathLike[str] | None = None,
    step: int | None = None,
    device_type: str | None = None,
) -> OpGraph:
    """Reads the graph of a step; with a Kineto trace of the same step, its times too.

    Parameters
    ----------
    path
        What ``torch.profiler.ExecutionTraceObserver`` wrote, plain or gzipped.
    profile
        What ``prof.export_chrome_trace`` wrote of the same step.
    step
        The ``ProfilerStep`` to read. If absent the first one is the graph, all must have the same
        ops, and times are medians over them.
    device_type
        What to call the device that the times are of: its name in the Kineto trace if absent.

    Returns
    -------
    OpGraph
        Ops as the dispatcher handed them to a backend (:mod:`loadmaster.readers.pytorch.calls`) and
        the tensors between them (:mod:`loadmaster.readers.shared.dataflow`). Tensors read before
        they are written are parameters (changed by the optimizer, or read as weights), buffers
        (changed otherwise, or first read by the optimizer), constants (of one element) or inputs. A
        list op (``_foreach_add_``) is an op per tensor, its time shared out by bytes. FLOPs and
        bytes are those of :mod:`loadmaster.readers.pytorch.aten_costs`. Views take no time.

    Raises
    ------
    InputError
        No whole trace, no ops in it, steps that differ, or a Kineto trace of another step.

    Warns
    -----
    UserWarning
        Kinds of ops whose FLOPs are not known; ops that the Kineto trace lacks, whose time is then
        guessed by their bytes. ``graph.meta["assumed"]`` keeps the same.

    Examples
    --------
    >>> import json, tempfile
    >>> x, y = [1, 11, 0, 6, 4, "cpu"], [2, 12, 0, 6, 4, "cpu"]  # tensor, storage, ...
    >>> side = {"shapes": [[2, 3]], "types": ["Tensor(float)"], "strides": [[3, 1]]}
    >>> call = {"id": 2, "name": "aten::relu", "ctrl_deps": 1, "attrs": [],
    ...         "inputs": {"values": [x], **side}, "outputs": {"values": [y], **side}}
    >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    ...     json.dump({"schema": "1.1.1-chakra.0.0.4", "nodes": [call]}, file)
    ...     file.flush()
    ...     graph = read(file.name)
    >>> graph.kinds, graph.bytes.tolist()
    (['input', 'aten::relu'], [24])
    """
    recorded, joined = load(path), None
    if profile is not None:
        joined = _JoinedTrace(recorded, kineto_events.load(profile))
        recorded = joined.recorded
    name = Path(path).name.partition(".")[0]
    return _graph(recorded, joined, name, step, device_type)


def profile(
    path: str | os.PathLike[str],
    *,
    graph: str | os.PathLike[str],
    step: int | None = None,
    device_type: str | None = None,
    batch: int | None = None,
) -> Profile:
    """The times of two traces joined: a row per measured op that is no view, a column per step.

    Arguments and errors are those of :func:`read`; ``batch`` is kept.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> call = {"id": 2, "name": "aten::rand", "attrs": [{"name": "rf_id", "value": 9}]}
    >>> timed = {"ph": "X", "cat": "cpu_op", "name": "aten::rand", "pid": 1, "tid": 1, "ts": 0,
    ...          "dur": 5, "args": {"Record function id": 9}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, other = pathlib.Path(folder, "et.json"), pathlib.Path(folder, "kineto.json")
    ...     _ = one.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": [call]}))
    ...     _ = other.write_text(json.dumps({"traceEvents": [timed]}))
    ...     profile(other, graph=one).median().tolist()
    [5e-06]
    """
    joined = _JoinedTrace(load(graph), kineto_events.load(path))
    recorded = joined.recorded
    modules = joined.modules()
    steps = chosen(recorded.calls, step, recorded.source, modules)
    names, ops = steps[0]
    rows = TraceRows(recorded, names, ops.tolist())
    labels = labels_of(rows, modules)
    seconds = joined.measured(rows, steps)
    view = np.array([row.view for row in rows.flow.rows])
    measured = np.flatnonzero(~view & ~np.isnan(seconds).all(axis=1))
    warn(*joined.notes())
    return Profile(
        tuple(labels.names[i] for i in measured.tolist()),
        tuple(labels.kinds[i] for i in measured.tolist()),
        seconds[measured],
        device_type or joined.trace.device_type,
        batch,
        np.array([rows.flow.rows[i].output_bytes for i in measured.tolist()], dtype=np.uint64),
    )


# ---- joined with times ------------------------------------------------------------------------


class _JoinedTrace:
    """A Kineto trace, and which of its calls each call of the execution trace is.

    Raises
    ------
    InputError
        The two are not of one step.
    """

    def __init__(self, recorded: RecordedTrace, trace: KinetoTrace) -> None:
        self.trace = trace
        timed = {number: call for call, number in enumerate(trace.record.tolist()) if number > 0}
        if not timed:
            raise InputError(
                f"{trace.source} has no record function ids: it was not recorded together with "
                f"{recorded.source}. Record both in one step: torch.profiler.profile(..., "
                "execution_trace_observer=ExecutionTraceObserver().register_callback('step.json'))"
            )
        calls = [timed.get(number, -1) if number > 0 else -1 for number in recorded.record.tolist()]
        #: The call of the trace per call of the execution trace, int32; -1: none.
        self.call = np.array(calls, dtype=np.int32)
        launches = (self.call >= 0) & np.append(trace.calls.launches, False)[self.call]
        #: The execution trace, with the calls marked that launch kernels.
        self.recorded = replace(recorded, calls=replace(recorded.calls, launches=launches))
        ops = recorded.calls.ops.tolist()
        pairs = [
            (recorded.calls.names[c], trace.calls.names[calls[c]]) for c in ops if calls[c] >= 0
        ]
        other = [f"{a!r} in one is {b!r} in the other" for a, b in pairs if a != b]
        if other or 2 * len(pairs) < len(ops):
            why = other[0] if other else f"{len(pairs)} of {len(ops)} ops are in both"
            raise InputError(f"{recorded.source} and {trace.source} are not of one step: {why}")

    def notes(self) -> list[str]:
        """Faults of the trace, and what its times leave out."""
        ops = self.call[self.recorded.calls.ops]
        return self.trace.notes(ops[ops >= 0])

    def modules(self) -> list[str]:
        """Module paths per call of the execution trace."""
        paths = self.trace.calls.modules
        return [paths[call] if call >= 0 else "" for call in self.call.tolist()]

    def elapsed(self, steps: _Steps) -> float:
        """Seconds from the start of the first op of a step to the end of the last one, median."""
        calls = [self.call[ops] for _, ops in steps]
        return self.trace.elapsed([each[each >= 0] for each in calls])

    def seconds(self, ops: NDArray[np.int32]) -> NDArray[np.float64]:
        """Measured times of ops of the execution trace; NaN: the op is not in the Kineto trace."""
        calls = self.call[ops]
        seconds = np.full(len(ops), np.nan)
        known = calls >= 0
        if not known.any():
            raise InputError(f"{self.trace.source} has no op of the step that is asked for")
        seconds[known] = self.trace.seconds(calls[known])
        return seconds

    def kernels(self, rows: TraceRows, ops: NDArray[np.int32]) -> list[int]:
        """The number of kernels that each row launched."""
        calls = self.call[ops]
        by_op = np.zeros(len(ops), dtype=np.int64)
        by_op[calls >= 0] = self.trace.kernels_of(calls[calls >= 0])
        kernels = [0] * len(rows)
        for row, op in rows.ops.items():
            kernels[row] = int(by_op[op.position])
        return kernels

    def measured(self, rows: TraceRows, steps: _Steps) -> NDArray[np.float64]:
        """Measured times, float64 [n_rows, n_steps]; NaN: a placeholder, or not measured."""
        by_op = np.stack([self.seconds(ops) for _, ops in steps], axis=1)
        seconds = np.full((len(rows), len(steps)), np.nan)
        for row, op in rows.ops.items():
            seconds[row] = by_op[op.position] * op.share
        return seconds


# ---- the graph --------------------------------------------------------------------------------

_ASSUMED = (
    "tensors that are read before they are written: parameters where the optimizer changes them or "
    "an op calls them weight or bias, buffers where they are changed otherwise, constants where "
    "they have one element, else inputs",
    "edges: what calls outside of PyTorch's dispatcher read and write is not recorded",
)

_VIEWS_FREE = "views take no time, whatever was measured of them"


def _graph(
    recorded: RecordedTrace,
    joined: _JoinedTrace | None,
    name: str,
    step: int | None,
    device_type: str | None,
) -> OpGraph:
    """The graph of a step; warns of what its figures leave out."""
    modules = recorded.calls.modules if joined is None else joined.modules()
    steps = chosen(recorded.calls, step, recorded.source, modules)
    names, ops = steps[0]
    rows = TraceRows(recorded, names, ops.tolist())
    labels = labels_of(rows, modules)
    costs = rows.column(
        lambda row, op: _cost(recorded, op, rows.flow.rows[row].view), Cost(0, 0, True)
    )
    notes = _unknown(labels.kinds, costs)
    if rows.flow.several:
        first = labels.names[rows.flow.several[0]]
        notes.append(
            f"{counted(len(rows.flow.several), 'op changes', 'ops change')} several tensors "
            f"in place, {first!r} first: each is bound to the device of the first that it changes"
        )
    columns = _columns(recorded, rows, labels, costs)
    meta: dict[str, Any] = {"framework": f"torch execution trace {recorded.schema}"}
    timed = []
    if joined is not None:
        seconds, filled, more = _times(
            rows, joined, steps, np.array(columns["view"]), columns["bytes_accessed"]
        )
        columns["time"] = {device_type or joined.trace.device_type: seconds}
        notes += more
        timed = [_VIEWS_FREE]
        meta["steps"] = len(steps)
        meta["step_seconds"] = joined.elapsed(steps)
        meta |= launches(columns["name"], joined.kernels(rows, ops))
        if filled.any():
            meta[TIME_SOURCES] = {"bytes": [columns["name"][i] for i in np.flatnonzero(filled)]}
    meta["mode"] = "train" if "b" in columns["phase"] else "infer"
    warn(*notes)
    meta["assumed"] = [*_ASSUMED, *timed, *notes]
    edges = [(src, dst, t) for dst, row in enumerate(rows.flow.rows) for src, t in row.edges]
    src, dst, tensor = np.array(edges, dtype=np.int64).reshape(-1, 3).T
    sizes = np.array([*rows.flow.sizes, 0], dtype=np.int64)
    return OpGraph(
        columns,
        {"src": src, "dst": dst, "tensor": tensor, "bytes": np.where(tensor < 0, 0, sizes[tensor])},
        name=name,
        meta=meta,
    )


def _columns(
    recorded: RecordedTrace, rows: TraceRows, labels: RowLabels, costs: Sequence[Cost]
) -> dict[str, Any]:
    """The columns of the ops, but for their times."""
    return {
        "name": labels.names,
        "kind": labels.kinds,
        "module": labels.modules,
        "phase": rows.column(lambda _, op: recorded.calls.phases[op.call], "f"),
        "colocation": labels.colocation,
        "output": [_output(rows, row) for row in range(len(rows))],
        "flops": [min(each.flops, 2**62) for each in costs],
        "bytes_accessed": [min(each.bytes, 2**62) for each in costs],
        "output_bytes": [min(row.output_bytes, 2**62) for row in rows.flow.rows],
        "param_bytes": _resident(rows, labels.kinds),
        "view": [row.view for row in rows.flow.rows],
        "alias_of": [row.alias_of for row in rows.flow.rows],
    }


def _cost(recorded: RecordedTrace, op: TraceOp, view: bool) -> Cost:
    if view:
        return Cost(0, 0, True)
    inputs = [each.value for each in op.inputs]
    return cost(recorded.calls.names[op.call], inputs, [each.value for each in op.outputs])


def _unknown(kinds: Sequence[str], costs: Sequence[Cost]) -> list[str]:
    counts = Counter(kind for kind, each in zip(kinds, costs, strict=True) if not each.known)
    if not counts:
        return []
    listed = ", ".join(f"{kind} ({n})" for kind, n in sorted(counts.items()))
    return [
        f"FLOPs of {counted(counts.total(), 'op')} are not known, they count by their bytes: "
        f"{listed}"
    ]


def _output(rows: TraceRows, row: int) -> str:
    storage = rows.flow.preset.get(row)
    if storage is not None:
        return str(storage.preset.value) if storage.preset else ""
    refs = [ref for each in rows.ops[row].outputs for ref in each.refs]
    return ";".join(str(ref.value) for ref in refs)


def _resident(rows: TraceRows, kinds: Sequence[str]) -> list[int]:
    kept = ("parameter", "buffer")
    return [
        row.output_bytes if kind in kept else 0
        for row, kind in zip(rows.flow.rows, kinds, strict=True)
    ]


def _times(
    rows: TraceRows,
    joined: _JoinedTrace,
    steps: _Steps,
    view: NDArray[np.bool_],
    moved: Sequence[int],
) -> tuple[NDArray[np.float64], NDArray[np.bool_], list[str]]:
    """Seconds per row, the rows that were not measured and have a time by their bytes, and notes on
    these.
    """
    notes = joined.notes()
    measured = joined.measured(rows, steps)
    runs = np.zeros(len(rows), dtype=bool)
    runs[list(rows.ops)] = True
    known = ~np.isnan(measured).all(axis=1)
    seconds = np.zeros(len(rows))
    seconds[known] = np.nanmedian(measured[known], axis=1)
    seconds[view] = 0.0
    lacking = runs & ~known & ~view
    if lacking.any():
        work = np.array(moved, dtype=np.float64)
        rate = seconds.sum() / max(float(work[known].sum()), 1.0)
        seconds[lacking] = work[lacking] * rate
        notes.append(
            f"{int(lacking.sum())} of {len(rows.ops)} ops are not in {joined.trace.source}: their "
            f"times are by their bytes, at the {rate * 1e9:.3g} s/GB of the others"
        )
    return seconds, lacking, notes
