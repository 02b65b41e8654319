"""Nodes and stored values of an ONNX graph: names, order, attributes, bodies, types, constants."""

from __future__ import annotations

import graphlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from loadmaster.base.errors import InputError
from loadmaster.readers.onnx.costs import ELEMENT_TYPES
from loadmaster.readers.shared.open_dims import Dim
from loadmaster.readers.shared.ops import Tensor

# Constants up to this many elements are looked at and computed with; beyond it they are weights.
TINY = 1024
#: Elements that no tensor has: their bytes would not fit 64 bits.
_MOST = 2**59
#: Names of dimensions that say nothing but "open".
_NO_NAMES = frozenset(("?", "*", "-1", "None", "none", "unk", "unknown", "dynamic"))
#: Kinds that draw numbers.
RANDOM = frozenset(
    ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
     "RandomUniformLike")
)  # fmt: skip

# ---- values -----------------------------------------------------------------------------------


def dtype_name(number: int) -> str:
    """The spelling of an element type by its ONNX number; empty for one not known here."""
    return ELEMENT_TYPES.get(number, "")


def from_type(type_proto: Any, shape: Sequence[Dim] | None) -> Tensor:
    """A value of an ONNX type, with the given shape for the one that stands in the type."""
    if type_proto.WhichOneof("value") not in (None, "tensor_type"):
        return Tensor(other=type_proto)
    known = None if shape is None else tuple(d if isinstance(d, int) else None for d in shape)
    return Tensor(dtype_name(type_proto.tensor_type.elem_type), known)


def is_tiny(tensor: Any) -> bool:
    """True if a stored tensor may hold shapes, axes or scales and is looked at."""
    count = math.prod(size if size >= 0 else _MOST for size in tensor.dims)
    dtype = dtype_name(tensor.data_type)
    # Floating-point ones matter as the scales of a Resize: at most one per axis, twice for the ROI.
    return bool(count <= (TINY if dtype in ("i64", "i32", "b8") else 16 if dtype == "f32" else -1))


def _from_dense(onnx: Any, tensor: Any) -> Tensor:
    data = None
    if is_tiny(tensor) and tensor.data_location != tensor.EXTERNAL:
        try:
            data = onnx.numpy_helper.to_array(tensor)
        except (ValueError, TypeError):  # fewer bytes than its dimensions ask for
            data = None
    return Tensor(dtype_name(tensor.data_type), tuple(tensor.dims), data)


def _check_dims(name: str, tensor: Any) -> None:
    if any(size < 0 for size in tensor.dims) or math.prod(tensor.dims) >= _MOST:
        raise InputError(f"the stored tensor {name!r} has the dimensions {list(tensor.dims)}")


def _from_sparse(tensor: Any) -> Tensor:
    """Dense in shape, sparse in bytes: what is stored is the values and their indices."""
    parts = (tensor.values, tensor.indices)
    stored = sum(Tensor(dtype_name(p.data_type), tuple(p.dims)).nbytes or 0 for p in parts)
    return Tensor(dtype_name(tensor.values.data_type), tuple(tensor.dims), stored=stored)


def from_constant(onnx: Any, attributes: Mapping[str, Any]) -> Tensor:
    if not attributes:
        return Tensor()
    attribute, value = next(iter(attributes.items()))
    if attribute == "value":
        return _from_dense(onnx, value)
    if attribute == "sparse_value":
        return _from_sparse(value)
    dtype = {"value_int": "i64", "value_float": "f32"}.get(attribute.removesuffix("s"), "str")
    shape = np.shape(value)
    if dtype == "str" or math.prod(shape) > TINY:
        return Tensor(dtype, shape)
    return Tensor(dtype, shape, np.array(value, np.int64 if dtype == "i64" else np.float32))


def from_array(array: Any) -> Tensor | None:
    """A computed constant; None for what is no numeric array."""
    array = np.asarray(array)
    name = {"b": "b8", "i": "i", "u": "u", "f": "f"}.get(array.dtype.kind)
    if name is None or array.size > TINY:
        return None
    dtype = name if name == "b8" else f"{name}{array.dtype.itemsize * 8}"
    return Tensor(dtype, array.shape, array)


def initializers(graph: Any) -> Iterator[Any]:
    """The stored tensors of a graph, dense and sparse."""
    yield from graph.initializer
    yield from graph.sparse_initializer


def initializer_name(initializer: Any) -> Any:
    """The name of a dense or sparse initializer: a sparse one goes by that of its values."""
    return initializer.values.name if hasattr(initializer, "values") else initializer.name


def from_initializer(onnx: Any, initializer: Any) -> Tensor:
    """A stored tensor: its type, its dimensions, and its content where that is tiny."""
    _check_dims(initializer_name(initializer), initializer)
    if hasattr(initializer, "values"):
        return _from_sparse(initializer)
    return _from_dense(onnx, initializer)


def data_of(tensors: Sequence[Tensor | None], i: int) -> Any:
    """The content of an input where it is known."""
    tensor = tensors[i] if i < len(tensors) else None
    return None if tensor is None else tensor.data


def of_any_content(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    """Values that change from run to run: their sizes are known, what they hold is not."""
    return [Tensor() if t is None else replace(t, data=None) for t in tensors]


def lookup(value: str, known: Mapping[str, Tensor], name: str) -> Tensor | None:
    """A value that an op reads; None for one that it leaves out."""
    if value and value not in known:
        raise InputError(f"op {name!r} reads {value!r}, which nothing produces")
    return known[value] if value else None


# ---- nodes ------------------------------------------------------------------------------------


def kind_of(node: Any) -> str:
    """The op type, with its domain where that is not ONNX's own."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def attributes_of(onnx: Any, node: Any) -> dict[str, Any]:
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {k: v.decode(errors="replace") if isinstance(v, bytes) else v for k, v in values.items()}


def bodies(node: Any) -> list[Any]:
    """The subgraphs of a node."""
    return [
        graph
        for attribute in node.attribute
        for graph in ([attribute.g] if attribute.HasField("g") else attribute.graphs)
    ]


def _captured(graph: Any) -> list[str]:
    """Values a subgraph reads from the scopes around it, each once, in order of use."""
    own = {i.name for i in graph.input} | {initializer_name(i) for i in initializers(graph)}
    own |= {value for node in graph.node for value in node.output}
    read = [v for node in graph.node for v in values_read(node)]
    read += [output.name for output in graph.output]
    return [value for value in dict.fromkeys(read) if value not in own]


def values_read(node: Any) -> list[str]:
    """Inputs of a node and the values its subgraphs capture, each once."""
    captured = [value for graph in bodies(node) for value in _captured(graph)]
    return list(dict.fromkeys(filter(None, (*node.input, *captured))))


def node_name(node: Any, position: int) -> str:
    """The node's own name, else that of its first output, unless it is only a number."""
    output = next(filter(None, node.output), "")
    derived = output if output and not output.isdecimal() else f"{node.op_type}_{position}"
    return node.name or derived


def first_line(error: Exception) -> str:
    """The message of a library's error, without its stack trace."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def library_errors(failed: str, *errors: type[Exception]) -> Iterator[None]:
    """As :func:`~loadmaster.base.errors.refusing`, with the first line of an error: what is written
    in C++ raises errors of many classes, with the stack in their text.
    """
    try:
        yield
    except errors as error:
        raise InputError(f"{failed}: {first_line(error)}") from None


def in_order(graph: Any) -> list[Any]:
    """The nodes in topological order: as they stand, where they do (as ONNX asks them to)."""
    nodes = list(graph.node)
    producer: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for value in filter(None, node.output):
            if producer.setdefault(value, i) != i:
                raise InputError(f"two nodes produce the value {value!r}")
    reads = [{producer[v] for v in values_read(node) if v in producer} for node in nodes]
    if all(not sources or max(sources) < i for i, sources in enumerate(reads)):
        return nodes
    try:
        order = graphlib.TopologicalSorter(dict(enumerate(reads))).static_order()
        return [nodes[i] for i in order]
    except graphlib.CycleError as error:
        cycle = " -> ".join(node_name(nodes[i], i) for i in error.args[1])
        raise InputError(f"the graph has a cycle: {cycle}") from None


def declared_dims(type_proto: Any) -> list[Dim] | None:
    """Dimensions as the file gives them; 0 and -1 are how some exporters say "open", and so are
    names that name nothing: two of them are not one symbol.
    """
    tensor = type_proto.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [
        (d.dim_param if d.dim_param not in _NO_NAMES else "")
        or (d.dim_value if d.dim_value > 0 else None)
        for d in tensor.shape.dim
    ]
