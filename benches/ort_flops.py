"""FLOPs of the products that ONNX Runtime runs, by the shapes in its own profile.

Nothing of Loadmaster is used. The model runs once with optimisations off, each node under a name
of its own, those of bodies included. The profile has the shapes of what every node read and wrote,
once for each time that it ran: a branch that was not taken is not there, and a loop's body is
there once a round. A multiplication and an addition are two.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

Shapes = list[list[int]]

_FIRST_GATES = {"LSTM": 4, "DynamicQuantizeLSTM": 4, "GRU": 3, "RNN": 1}


def _recurrent(node: Any, ins: Shapes, outs: Shapes) -> int:
    """Products with the input and with the state, for each step, sample and direction."""
    steps, batch, width = ins[0]
    attributes = {a.name: a for a in node.attribute}
    hidden = attributes["hidden_size"].i
    directions = (
        2 if attributes.get("direction", onnx.AttributeProto()).s == b"bidirectional" else 1
    )
    gates = _FIRST_GATES[node.op_type]
    return 2 * steps * batch * directions * gates * hidden * (width + hidden)


def _einsum(node: Any, ins: Shapes, outs: Shapes) -> int:
    """One product over all letters."""
    equation = node.attribute[0].s.decode().replace(" ", "").partition("->")[0]
    sizes = {
        letter: size
        for term, shape in zip(equation.split(","), ins, strict=True)
        for letter, size in zip(term, shape, strict=True)
    }
    return 2 * prod(sizes.values()) if len(ins) > 1 else 0


def _gemm(node: Any, ins: Shapes, outs: Shapes) -> int:
    transposed = any(a.name == "transA" and a.i for a in node.attribute)
    return 2 * prod(outs[0]) * ins[0][0 if transposed else 1]


#: FLOPs of kinds of nodes, from the node, the shapes that it read, and those that it wrote.
PRODUCTS: Mapping[str, Callable[[Any, Shapes, Shapes], int]] = {
    "MatMul": lambda node, ins, outs: 2 * prod(outs[0]) * ins[0][-1],
    "MatMulInteger": lambda node, ins, outs: 2 * prod(outs[0]) * ins[0][-1],
    "DynamicQuantizeMatMul": lambda node, ins, outs: 2 * prod(outs[0]) * ins[0][-1],
    "FusedMatMul": lambda node, ins, outs: 2 * prod(outs[0]) * ins[0][-1],
    "QLinearMatMul": lambda node, ins, outs: 2 * prod(outs[0]) * ins[0][-1],
    "Gemm": _gemm,
    "Conv": lambda node, ins, outs: 2 * prod(outs[0]) * prod(ins[1][1:]),
    "ConvInteger": lambda node, ins, outs: 2 * prod(outs[0]) * prod(ins[1][1:]),
    "FusedConv": lambda node, ins, outs: 2 * prod(outs[0]) * prod(ins[1][1:]),
    "QLinearConv": lambda node, ins, outs: 2 * prod(outs[0]) * prod(ins[3][1:]),
    "ConvTranspose": lambda node, ins, outs: 2 * prod(ins[0]) * prod(ins[1][1:]),
    **dict.fromkeys(_FIRST_GATES, _recurrent),
    "Einsum": _einsum,
}


def count(
    model: Path,
    shapes: Mapping[str, list[int]],
    feeds: Mapping[str, float],
    batch: int | None = None,
) -> int:
    """FLOPs of products in one run.

    ``shapes`` has shapes of inputs, and ``batch`` is the size of first dimensions that the file
    leaves open. ``feeds`` has the number that fills an input; others are zeros if whole numbers,
    true if yes or no, else drawn.
    """
    loaded = onnx.load(model)
    nodes = dict(_named(loaded.graph, loaded.functions))
    with tempfile.TemporaryDirectory() as folder:
        named = Path(folder) / "named.onnx"
        onnx.save(loaded, named)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        # The profile leaves out what was packed for good.
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.log_severity_level = 4
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(str(named), options, ["CPUExecutionProvider"])
        session.run(None, {i.name: _value(i, shapes, feeds, batch) for i in session.get_inputs()})
        events = json.loads(Path(session.end_profiling()).read_text())
    total = 0
    for event in events:
        kind = event.get("args", {}).get("op_name")
        if (
            event.get("cat") == "Node"
            and event["name"].endswith("_kernel_time")
            and kind in PRODUCTS
        ):
            node = nodes[event["name"].removesuffix("_kernel_time").rpartition("/")[2]]
            ins, outs = (
                [list(shape) for entry in event["args"][key] for shape in entry.values()]
                for key in ("input_type_shape", "output_type_shape")
            )
            total += PRODUCTS[kind](node, ins, outs)
    return total


def _named(graph: Any, functions: Any = ()) -> Iterator[tuple[str, Any]]:
    """Every node of a graph, of bodies and of functions, by the name that it is given."""
    at = 0
    todo = [graph, *functions]
    while todo:
        for node in todo.pop().node:
            node.name = f"node{at}"
            at += 1
            yield node.name, node
            for attribute in node.attribute:
                todo += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _value(
    entry: Any, shapes: Mapping[str, list[int]], feeds: Mapping[str, float], batch: int | None
) -> Any:
    """The value of an input of a session."""
    name = entry.type.removeprefix("tensor(").removesuffix(")")
    dtype = np.dtype({"float": "float32", "double": "float64"}.get(name, name))
    shape = [
        batch if batch and axis == 0 and not isinstance(size, int) else size
        for axis, size in enumerate(shapes.get(entry.name, entry.shape))
    ]
    if entry.name in feeds:
        return np.full(shape, feeds[entry.name], dtype=dtype)
    if dtype.kind == "f":
        return np.random.default_rng(0).random(shape).astype(dtype)
    return np.full(shape, dtype.kind == "b", dtype=dtype)
