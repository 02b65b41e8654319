"""Ops and shapes that ran, in the words of a model: the op of each kernel in a recording.

The kernel of a node without a name is called by its kind and a number that the session gave it.
Nodes run in the order of the file that the session wrote, which tells them apart.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from loadmaster.readers.onnx.costs import ELEMENT_TYPES
from loadmaster.readers.onnx.model import op_names
from loadmaster.readers.onnx.nodes import bodies, in_order, kind_of
from loadmaster.readers.onnx.recording import RuntimeProfile, Typed

#: Ways to match the inputs of a node with those of its kernel that are looked at.
_WAYS = 1000


def ops_by_kernel(graph: Any, recording: RuntimeProfile) -> dict[str, str]:
    """Names of ops by those of kernels, where these are not the same."""
    names, positions = op_names(graph)
    nodes = in_order(graph)
    taken = {node.name for node in nodes if node.name}
    unnamed: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for position, (node, at) in enumerate(zip(nodes, positions, strict=True)):
        if not node.name and kind_of(node) != "Constant":
            unnamed[node.op_type].append((position, names[at]))
    kernels: dict[str, list[str]] = defaultdict(list)
    for name, kind in recording.kinds.items():
        if name not in taken and re.fullmatch(rf"{re.escape(kind)}_\d+", name):
            kernels[kind].append(name)
    known: dict[str, str] = {}
    for kind, ops in unnamed.items():
        if len(kernels[kind]) == len(ops):
            known.update(zip(kernels[kind], (op for _, op in ops), strict=True))
        else:
            numbered = {f"{kind}_{position}": op for position, op in ops}
            known.update((name, numbered[name]) for name in kernels[kind] if name in numbered)
    return known


def types_that_ran(graph: Any, recording: RuntimeProfile) -> dict[str, Typed]:
    """Element types and shapes of the values that kernels read and wrote, by value.

    A kernel's inputs stand in the order of its node's. Stored ones may be missing: some kernels
    keep them in a form of their own. Which these are, the types of the others tell.
    """
    names, positions = op_names(graph)
    stored = _stored(graph)
    inputs = {i.name: i.type.tensor_type for i in graph.input if i.type.HasField("tensor_type")}
    known: dict[str, Typed] = {}
    for node, at in zip(in_order(graph), positions, strict=True):
        read, written = recording.inputs.get(names[at], []), recording.outputs.get(names[at], [])
        known |= _matched([value for value in node.input if value], read, stored, inputs)
        values = [value for value in node.output if value]
        if len(values) == len(written):
            known.update(zip(values, written, strict=True))
    for body in _bodies_of(graph):
        inside = stored | _stored(body)
        for node in body.node:
            read = recording.read_inside.get(node.name, [])
            way = _matched([value for value in node.input if value], read, inside, inputs)
            # Of what bodies read, inputs of the model are the same in every run of a body.
            known.update((v, typed) for v, typed in way.items() if v in inputs and v not in known)
    return {value: typed for value, typed in known.items() if value not in stored}


def _stored(graph: Any) -> dict[str, Typed]:
    """Types of the dense tensors that a graph stores."""
    return {i.name: (ELEMENT_TYPES.get(i.data_type, ""), list(i.dims)) for i in graph.initializer}


def _bodies_of(graph: Any) -> Iterator[Any]:
    """The bodies of the nodes of a graph, and theirs."""
    for node in graph.node:
        for body in bodies(node):
            yield body
            yield from _bodies_of(body)


def _matched(
    values: Sequence[str],
    read: Sequence[Typed],
    stored: Mapping[str, Typed],
    inputs: Mapping[str, Any],
) -> dict[str, Typed]:
    """Types of a node's inputs, from those that its kernel read, as far as all ways agree."""
    missing = len(values) - len(read)
    droppable = [at for at, value in enumerate(values) if value in stored]
    if missing < 0 or math.comb(len(droppable), missing) > _WAYS:
        return {}
    ways = []
    for dropped in combinations(droppable, missing):
        kept = [value for at, value in enumerate(values) if at not in dropped]
        way = dict(zip(kept, read, strict=True))
        if all(
            stored.get(value, typed) == typed and _fits(inputs.get(value), typed)
            for value, typed in way.items()
        ):
            ways.append(way)
    common = ways[0].items() if ways else ()
    return {value: typed for value, typed in common if all(w.get(value) == typed for w in ways)}


def _fits(declared: Any, typed: Typed) -> bool:
    """True if what a kernel read can be an input of the model of a declared type."""
    if declared is None:
        return True
    dims, (dtype, shape) = declared.shape.dim, typed
    return (
        ELEMENT_TYPES.get(declared.elem_type, "") == dtype
        and len(dims) == len(shape)
        and all(d.dim_value in (0, -1, s) for d, s in zip(dims, shape, strict=True))
    )
