"""Reads traces of ``torch.profiler`` (Kineto's Chrome JSON), without torch.

A trace tells how long every call took, and which kernels of a GPU it launched. It has no ids of
tensors, so the edges of a graph made of a trace alone are guesses. Joined with an execution trace
of the same step (:mod:`loadmaster.readers.pytorch.execution_trace`), a trace gives the real graph.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.units import counted
from loadmaster.base.warnings import warn
from loadmaster.model.graph import OpGraph
from loadmaster.model.profile import Profile
from loadmaster.readers.pytorch.calls import ProcessCalls, chosen, tensor_of
from loadmaster.readers.pytorch.kineto_events import KinetoTrace, launches, load


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
        Ops as the dispatcher handed them to a backend (:mod:`loadmaster.readers.pytorch.calls`),
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
    graph: str | os.PathLike[str] | None = None,
    step: int | None = None,
    device_type: str | None = None,
    batch: int | None = None,
) -> Profile:
    """The measured times of a trace: a row per op as :func:`read` names them, a column per step.

    Arguments, errors and warnings are those of :func:`read`; ``batch`` is kept. With the
    execution trace of the same step as ``graph``, as
    :func:`loadmaster.readers.pytorch.execution_trace.profile`.

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
    if graph is not None:
        from loadmaster.readers.pytorch import execution_trace as chakra

        return chakra.profile(path, graph=graph, step=step, device_type=device_type, batch=batch)
    trace = load(path)
    steps = chosen(trace.calls, step, trace.source)
    warn(*trace.notes(trace.calls.ops))
    names, first = steps[0]
    return Profile(
        tuple(names),
        tuple(trace.calls.names[op] for op in first.tolist()),
        np.stack([trace.seconds(ops) for _, ops in steps], axis=1),
        device_type or trace.device_type,
        batch,
        trace.output_bytes(first),
    )


# ---- the graph --------------------------------------------------------------------------------

_ASSUMED = (
    "edges: each op reads what the op that started before it put out, and a backward op what the "
    "forward op of the same autograd number put out; the trace has no ids of tensors"
)
_NO_FLOPS = "no FLOPs: the trace has the shapes of what ops read, not of what they put out"


def _graph(trace: KinetoTrace, path: Path, step: int | None, device_type: str | None) -> OpGraph:
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
        *_left_out(trace, seconds),
    ]
    warn(
        "the edges of this graph are guesses, and nothing in it can run at the same time: the "
        "trace has no ids of tensors. Read the execution trace of the same step instead, with this "
        "one as profile= (--profile)"
    )
    warn(*assumed[3:], *([] if sizes.any() else [sizes_from]))
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
            **launches(names, trace.kernels_of(ops)),
        },
    )


def _left_out(trace: KinetoTrace, seconds: NDArray[np.float64]) -> list[str]:
    """Notes on recorded ops and times that the graph leaves out."""
    notes = []
    idle = int((seconds == 0).sum())
    if trace.kernels and idle:
        notes.append(f"{idle} of {len(seconds)} ops launched no kernel: 0 s on {trace.device_type}")
    outside = len(trace.calls.ops) - sum(len(each.ops) for each in trace.calls.steps())
    if outside:
        notes.append(f"{counted(outside, 'op is', 'ops are')} outside of every step, and left out")
    return notes


def _sizes(trace: KinetoTrace, ops: NDArray[np.int32]) -> tuple[NDArray[np.uint64], str]:
    """Bytes that each op hands on, and how they were found.

    An op that allocates nothing hands its input on.
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
    calls: ProcessCalls, ops: NDArray[np.int32], sizes: NDArray[np.uint64]
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
