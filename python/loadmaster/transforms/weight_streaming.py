"""Weights that are stored on one device and copied to another when a module runs: streaming.

That is how Hugging Face accelerate runs the modules that a device map has on ``cpu`` or ``disk``:
before a module's ``forward``, a hook copies the module's own parameters to the GPU, behind all that
the GPU has to do already, and after it the copies are dropped. Nothing overlaps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.model.graph import PARAMETER, TIME_SOURCES, OpGraph
from loadmaster.model.program import Program
from loadmaster.transforms.base import ranks

#: The kind of a parameter's op where it is loaded: an op that hands the weights on.
LOAD = "load"


def stream_weights(graph: OpGraph, parameters: Iterable[int]) -> Program:
    """The same ops, where each of some parameters is an op that loads it.

    A load takes no time of its own: its device keeps the weights, and what takes time is the
    transfer to the device that reads them. It begins after the op that comes before the module that
    holds the parameter, in the graph's order, and the copy is there until the module is done.

    Parameters
    ----------
    graph : OpGraph
        Of inference.
    parameters : iterable of int
        Indices of parameters, each read by ops of its own module or of modules below that.

    Raises
    ------
    InputError
        The graph has a backward pass, which would read weights that are gone; or an op is no
        parameter, or is read by other modules. The op is named.

    Notes
    -----
    O(V + E).

    Examples
    --------
    >>> import loadmaster as lm
    >>> ops = {"name": ["w", "mm"], "kind": ["parameter", "mm"], "module": ["fc", "fc"],
    ...        "param_bytes": [64, 0], "time": {"*": [0, 1]}}
    >>> graph = lm.OpGraph(ops, {"src": [0], "dst": [1], "bytes": [64]})
    >>> stream_weights(graph, [0]).graph.kinds
    ['load', 'mm']
    """
    chosen = sorted(set(parameters))
    if set(graph.phases) & {"b", "o"}:
        op = next(i for i, phase in enumerate(graph.phases) if phase in ("b", "o"))
        raise InputError(
            f"weights are streamed in inference only: {graph.names[op]!r} is of a training step, "
            "and reads weights that are gone by then"
        )
    for op in chosen:
        if graph.stands_for[op] != PARAMETER:
            raise InputError(f"op {graph.names[op]!r} is no parameter: only weights are streamed")
    edges = _LoadEdges(graph)
    src, dst, is_held = edges.added(chosen)
    streamed_graph = OpGraph(
        _ops(graph, chosen),
        _with_edges(graph, src, dst, is_held),
        name=graph.name,
        meta={k: v for k, v in graph.meta.items() if k != TIME_SOURCES},
    )
    return Program.made(graph, streamed_graph, np.arange(graph.n_ops, dtype=np.int32))


def streamed(program: Program) -> NDArray[np.bool_]:
    """True for the user's ops that are parameters which the program loads, bool [source.n_ops]."""
    source = program.source
    is_loaded = np.zeros(source.n_ops, dtype=bool)
    if program.is_plain or LOAD not in program.graph.kinds:
        return is_loaded
    loads = np.array([kind == LOAD for kind in program.graph.kinds], dtype=bool) & ~program.own
    is_loaded[program.serves[loads]] = True
    is_loaded &= source.stands_for == PARAMETER
    return is_loaded


def _ops(graph: OpGraph, chosen: list[int]) -> dict[str, Any]:
    """The columns of the ops: a parameter that is loaded is bound to no other op's device."""
    columns: dict[str, Any] = {name: list(texts) for name, texts in graph.texts.items()}
    for op in chosen:
        columns["kind"][op] = LOAD
        columns["colocation"][op] = columns["device_types"][op] = ""
    names = ("flops", "bytes_accessed", "output_bytes", "param_bytes", "workspace")
    columns |= {name: getattr(graph, name) for name in (*names, "runs", "view", "alias_of")}
    # What a parameter keeps, a load keeps; some readers give it as the bytes of the output.
    columns["param_bytes"] = graph.param_bytes.copy()
    columns["param_bytes"][chosen] = np.maximum(graph.param_bytes, graph.output_bytes)[chosen]
    return {**columns, "time": graph.time}


def _with_edges(
    graph: OpGraph, src: list[int], dst: list[int], is_held: list[bool]
) -> dict[str, Any]:
    """The edges, with more: control edges, and reads that keep a copy where it is."""
    tensor = graph.src if graph.tensor is None else graph.tensor
    first = {int(op): at for at, op in reversed(list(enumerate(graph.src.tolist())))}
    held = [first[a] if one else -1 for a, one in zip(src, is_held, strict=True)]
    return {
        "src": np.concatenate([graph.src, np.array(src, dtype=np.int64)]),
        "dst": np.concatenate([graph.dst, np.array(dst, dtype=np.int64)]),
        "tensor": np.concatenate(
            [tensor, np.array([int(tensor[at]) if at >= 0 else -1 for at in held], dtype=np.int64)]
        ),
        "bytes": np.concatenate(
            [
                graph.bytes,
                np.array([int(graph.bytes[at]) if at >= 0 else 0 for at in held], np.uint64),
            ]
        ),
    }


class _LoadEdges:
    """Edges from what a load waits for, and to what keeps its copy."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        rank, runs = ranks(graph), graph.reduced.runs
        #: Ops that run, in the graph's order.
        self.order = [int(op) for op in np.argsort(rank, kind="stable") if runs[op]]
        #: Positions of the first and the last op that runs in each module or below it.
        self.span: dict[str, tuple[int, int]] = {}
        for at, op in enumerate(self.order):
            for path in above(graph.modules[op]):
                first, _ = self.span.get(path, (at, at))
                self.span[path] = first, at
        owner = graph.reduced.shows[graph.src]
        self.readers: dict[int, set[int]] = {}
        for a, b in zip(owner.tolist(), graph.dst.tolist(), strict=True):
            if runs[b] and graph.stands_for[a] == PARAMETER:
                self.readers.setdefault(a, set()).add(b)
        self.read_at_all = set(graph.src.tolist())

    def added(self, chosen: list[int]) -> tuple[list[int], list[int], list[bool]]:
        """Sources and destinations of more edges, and which of them are reads."""
        src: list[int] = []
        dst: list[int] = []
        is_held: list[bool] = []
        for op in chosen:
            holder = self.graph.modules[op]
            readers = self.readers.get(op, set())
            for reader in readers:
                if holder not in above(self.graph.modules[reader]):
                    raise InputError(
                        f"{self.graph.names[op]!r} is not streamed: "
                        f"{self.graph.names[reader]!r} of another module reads it"
                    )
            if not readers:
                continue
            begin, end = self.span[holder]
            if begin:
                src.append(self.order[begin - 1])
                dst.append(op)
                is_held.append(False)
            last = self.order[end]
            if last not in readers and op in self.read_at_all:
                src.append(op)
                dst.append(last)
                is_held.append(True)
        return src, dst, is_held


def above(path: str) -> list[str]:
    """A module and those that it is in, the model (empty) first.

    >>> above("layers.0.fc")
    ['', 'layers', 'layers.0', 'layers.0.fc']
    """
    parts = path.split(".") if path else []
    return [".".join(parts[:depth]) for depth in range(len(parts) + 1)]
