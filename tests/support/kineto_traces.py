"""Kineto and execution traces as small as a test needs them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def call(name, start, duration, *, thread=1, cat="cpu_op", seq=None, **args):
    """A call on the host, in us; ``seq`` is autograd's number."""
    if seq is not None:
        args["Sequence number"] = seq
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": thread, "ts": start,
            "dur": duration, "args": args}  # fmt: skip


def mark(name, start, duration, **options):
    return call(name, start, duration, cat="user_annotation", **options)


def launch(correlation, start, duration=1, *, thread=1, name="cudaLaunchKernel"):
    return call(name, start, duration, thread=thread, cat="cuda_runtime", correlation=correlation)


def kernel(name, start, duration, correlation=None, *, cat="kernel", **args):
    if correlation is not None:
        args["correlation"] = correlation
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": start,
            "dur": duration, "args": {"device": 0, **args}}  # fmt: skip


def memory(start, size, address=None, *, thread=1):
    args = {"Bytes": size} | ({} if address is None else {"Addr": address})
    return {"ph": "i", "s": "t", "name": "[memory]", "pid": 7, "tid": thread, "ts": start,
            "args": args}  # fmt: skip


def write_trace(path: Path, events: Any, **document: Any) -> Path:
    """The trace as a file, gzipped if its name ends so."""
    text = json.dumps({"schemaVersion": 1, **document, "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def tensor(number, storage, shape, dtype="float", width=4, offset=0, strides=None):
    """A tensor argument of an execution trace, with its type."""
    elements = 1
    default = []
    for size in reversed(shape):
        default.insert(0, elements)
        elements *= size
    return ([number, storage, offset, elements, width, "cpu"], shape, f"Tensor({dtype})",
            strides or default)  # fmt: skip


def tensors(*members):
    """A list of tensors as one argument."""
    values, shapes, types, strides = (list(column) for column in zip(*members, strict=True))
    return values, shapes, f"GenericList[{','.join(types)}]", strides


def plain(value, kind="Int"):
    return value, [], kind, []


def _side(arguments):
    columns = [list(column) for column in zip(*arguments, strict=True)] or [[], [], [], []]
    return dict(zip(("values", "shapes", "types", "strides"), columns, strict=True))


def node(number, name, parent=1, inputs=(), outputs=(), schema="", seq=-1, scope=0, rf=None):
    """A call of an execution trace."""
    attributes = {
        "rf_id": number if rf is None else rf, "fw_parent": 0, "seq_id": seq, "scope": scope,
        "tid": 1, "fw_tid": 0, "op_schema": schema,
    }  # fmt: skip
    return {
        "id": number, "name": name, "ctrl_deps": parent,
        "inputs": _side(inputs), "outputs": _side(outputs),
        "attrs": [{"name": k, "type": "", "value": v} for k, v in attributes.items()],
    }  # fmt: skip


ROOT = node(1, "[pytorch|profiler|execution_trace|process]", scope=7, rf=0)


def write_nodes(path: Path, nodes: Any, schema="1.1.1-chakra.0.0.4") -> Path:
    """The execution trace as a file."""
    path.write_text(json.dumps({"schema": schema, "pid": 7, "nodes": [ROOT, *nodes]}))
    return path
