"""Reads ONNX models: the sizes of every value for one batch, costs, and the columns of a graph.

Weights are never read: an initializer counts by its type and dimensions, so a model whose external
data is missing reads like any other. Only tiny constants are looked at, for the shapes they give.
"""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadmaster.base.errors import InputError, importing
from loadmaster.base.files import naming, read_bytes
from loadmaster.base.warnings import warn
from loadmaster.model.arguments import Call
from loadmaster.model.graph import LAUNCHES, OpGraph
from loadmaster.readers.onnx.calls import NodeCalls
from loadmaster.readers.onnx.costs import METADATA, is_view
from loadmaster.readers.onnx.nodes import (
    attributes_of,
    bodies,
    declared_dims,
    dtype_name,
    from_constant,
    from_initializer,
    from_type,
    in_order,
    initializer_name,
    initializers,
    is_tiny,
    kind_of,
    library_errors,
    node_name,
    values_read,
)
from loadmaster.readers.onnx.shapes import ShapeWalker
from loadmaster.readers.shared.columns import FLOAT_NAMES, OPS, GraphColumns
from loadmaster.readers.shared.formulas import Cost
from loadmaster.readers.shared.messages import check_messages
from loadmaster.readers.shared.names import unique
from loadmaster.readers.shared.open_dims import close
from loadmaster.readers.shared.ops import Tensor


def read(
    path: str | os.PathLike[str],
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> OpGraph:
    """Read an ONNX model as an op graph, for inference.

    Parameters
    ----------
    path
        A ``.onnx`` file. Its external data need not be there.
    batch
        Size of the first dimension of every input that leaves it open.
    shapes
        Complete shapes of inputs by name, for what ``batch`` does not settle.

    Raises
    ------
    InputError
        The file is not a whole ONNX model, a dimension of an input is left open, or ``batch`` and
        ``shapes`` contradict the model.
    MissingExtraError
        The package ``onnx`` is not installed.

    Warns
    -----
    UserWarning
        What the costs leave out: kinds of ops they do not know, sizes known only at run time, and
        how often control flow was assumed to run. ``graph.meta["assumed"]`` keeps the same.

    Example
    -------
    >>> graph = read("resnet18.onnx", batch=8)                        # doctest: +SKIP
    >>> graph = read("bert.onnx", shapes={"input_ids": (8, 128)})     # doctest: +SKIP
    """
    with naming(path):
        model = load(path)
        columns = to_columns(model, name=Path(path).stem, batch=batch, shapes=shapes)
    return OpGraph.from_document(columns)


def to_columns(
    model: Any,
    *,
    name: str,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Any]:
    """The opgraph v1 document of an ``onnx.ModelProto``, which is left as it is.

    ``name`` names the graph; ``batch``, ``shapes``, errors and warnings are those of `read`.
    """
    onnx = _import_onnx()
    check_whole(model)
    # Weights stay behind: only their sizes count.
    model = inlined(without_payload(model)) if model.functions else model
    graph = model.graph
    stored = {initializer_name(i) for i in initializers(graph)}
    inputs, symbols = _resolve_inputs(
        [i for i in graph.input if i.name not in stored], batch, shapes or {}
    )
    walker = ShapeWalker(onnx, model, symbols)
    columns, calls = _Columns(), NodeCalls(onnx, walker.opsets)
    _add_initializers(columns, walker, graph)
    for value, tensor in inputs.items():
        columns.add([value], [tensor], _Head(value, "input"))
    for position, node in enumerate(in_order(graph)):
        _add_node(columns, walker, calls, node, position)
    notes = walker.notes()
    warn(*notes)
    assumed = [*(f"{symbol} = {size}" for symbol, size in sorted(symbols.items())), *notes]
    meta = {
        "model": graph.name,
        "framework": " ".join(filter(None, ("onnx", model.producer_name, model.producer_version))),
        "opset": walker.opsets[""],
        "batch": batch if batch is not None else _first_dim(inputs.values()),
        "dtype": columns.float_type(),
        "mode": "infer",
        "assumed": assumed,
        **walker.unsized.meta,
    }
    document = columns.document(name, meta)
    if columns.launches:
        names = document["ops"]["name"]
        document["meta"][LAUNCHES] = {names[at]: n for at, n in columns.launches.items()}
    return document


# ---- loading ----------------------------------------------------------------------------------


def _import_onnx() -> Any:
    with importing("onnx", "onnx", "reading ONNX models"):
        import onnx
        import onnx.inliner
        import onnx.reference
        import onnx.shape_inference
    return onnx


def load(path: str | os.PathLike[str]) -> Any:
    """The ``onnx.ModelProto`` in a file, weights that are stored outside of it left there."""
    onnx = _import_onnx()
    from google.protobuf.message import DecodeError

    try:
        data = read_bytes(path)
        check_messages(data, "its graph")
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        raise InputError(
            "not an ONNX model, or a truncated one, nor anything else that is read"
        ) from None
    _load_tiny_external(onnx, model.graph, Path(path).parent)
    return model


def _load_tiny_external(onnx: Any, graph: Any, folder: Path) -> None:
    """Shapes may be stored outside too; where that file is missing they stay unknown."""
    for tensor in graph.initializer:
        if tensor.data_location == tensor.EXTERNAL and is_tiny(tensor):
            try:
                _shorten(tensor)
                onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
                tensor.data_location = tensor.DEFAULT
            except (OSError, ValueError, TypeError, RuntimeError, onnx.checker.ValidationError):
                tensor.ClearField("raw_data")


def _shorten(tensor: Any) -> None:
    """Makes a tensor take from its file what its dimensions ask for: without a length, or with a
    larger one, all of the file would be read.
    """
    entries = {entry.key: entry for entry in tensor.external_data}
    size = Tensor(dtype_name(tensor.data_type), tuple(tensor.dims)).nbytes or 0
    length = entries.get("length") or tensor.external_data.add(key="length", value=str(size))
    length.value = str(min(int(length.value), size))


def check_whole(model: Any) -> None:
    """Refuses what is no model, or no whole one."""
    if not model.HasField("graph"):
        raise InputError("not an ONNX model: it holds no graph (an empty file, or another format)")
    if model.ir_version >= 3 and not model.opset_import:
        raise InputError("a truncated ONNX model: it does not say which opset it uses")
    if not model.graph.node:
        raise InputError("the ONNX model has no ops")
    if any(isinstance(text, bytes) for text in _texts(model)):
        raise InputError("a damaged ONNX model: it has names that are not text")


def _texts(model: Any) -> Iterator[Any]:
    """Every name in the model; protobuf gives the bytes of one that is not UTF-8."""
    yield from (model.producer_name, model.producer_version, model.graph.name)
    yield from (o.domain for o in model.opset_import)
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        yield from (v.name for v in (*graph.input, *graph.output, *graph.value_info))
        yield from (initializer_name(i) for i in initializers(graph))
        for node in graph.node:
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            yield from (a.name for a in node.attribute)
            graphs += bodies(node)


def inlined(model: Any) -> Any:
    """The model with its own functions written out."""
    if not model.functions:
        return model
    with library_errors("its functions cannot be inlined", Exception):
        return _import_onnx().inliner.inline_local_functions(model)


def without_payload(model: Any) -> Any:
    """A copy of a model that has the types and dimensions of its weights, not the weights."""
    light = type(model)()
    for descriptor, value in model.ListFields():
        if descriptor.name != "graph":
            _set_field(light, descriptor, value)
    for descriptor, value in model.graph.ListFields():
        if descriptor.name != "initializer":
            _set_field(light.graph, descriptor, value)
    for tensor in model.graph.initializer:
        if is_tiny(tensor):
            light.graph.initializer.append(tensor)
        else:
            light.graph.initializer.add(
                name=tensor.name, dims=tensor.dims, data_type=tensor.data_type
            )
    return light


def _set_field(message: Any, descriptor: Any, value: Any) -> None:
    current = getattr(message, descriptor.name)
    if hasattr(current, "MergeFrom"):  # a message or a list of them
        current.MergeFrom(value)
    else:
        setattr(message, descriptor.name, value)


# ---- inputs -----------------------------------------------------------------------------------


def _resolve_inputs(
    inputs: Sequence[Any], batch: int | None, shapes: Mapping[str, Sequence[int]]
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Every input with a full shape, and the sizes the symbols thereby got."""
    declared = {i.name: declared_dims(i.type) for i in inputs}
    sized = {i.name for i in inputs if i.type.HasField("tensor_type")}
    symbols: dict[str, int] = {}
    closed = close(declared, symbols, batch=batch, shapes=shapes, sized=sized)
    return {i.name: from_type(i.type, closed[i.name]) for i in inputs}, symbols


def _first_dim(inputs: Iterable[Tensor]) -> int | None:
    return next((t.shape[0] for t in inputs if t.shape), None)


# ---- names ------------------------------------------------------------------------------------


def _module(name: str, node: Any = None) -> str:
    """The module of an op: PyTorch's scopes where the node has them, else its own path."""
    for entry in node.metadata_props if node is not None else ():
        if entry.key == "pkg.torch.onnx.name_scopes":
            return _scope(entry.value)
    if node is None and "/" not in name:
        return name.rpartition(".")[0]
    parts: list[str] = []
    # ONNX Runtime appends the fusion that made a node to its name: no module of the user's.
    for part in (p for p in name.split("/") if p and not p.endswith("Fusion")):
        if parts and f"{part}.".startswith(f"{parts[-1]}."):
            parts.pop()  # PyTorch names a nested module by its full path: layer1/layer1.0
        parts.append(part)
    return ".".join(parts[:-1])


def _scope(text: str) -> str:
    """The innermost module of ``"['', 'encoder', 'encoder.layer.0', 'matmul']"``."""
    try:
        scopes = ast.literal_eval(text)
        return str(scopes[-2])
    except (ValueError, SyntaxError, IndexError, TypeError):
        return ""


# ---- columns ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Value:
    """A value of the graph: the op that produces it, what is known of it, its tensor id."""

    producer: int
    tensor: Tensor
    id: int = -1


@dataclass(frozen=True, slots=True)
class _Head:
    """The name, the kind and the module of an op."""

    name: str
    kind: str
    module: str = ""


class _Columns(GraphColumns):
    """The graph as it grows: one entry per op and per edge, in the order of the file."""

    def __init__(self) -> None:
        super().__init__(f"{OPS} workspace args")
        #: Kernels by op, of ops that launch several.
        self.launches: dict[int, int] = {}
        self.values: dict[str, _Value] = {}
        self.tensors: dict[str, Tensor] = {}
        self._n_tensors = 0
        self._float_bytes: Counter[str] = Counter()

    def add(
        self,
        values: Sequence[str],
        tensors: Sequence[Tensor | None],
        head: _Head,
        *,
        work: Cost | None = None,
        workspace: int = 0,
        alias_of: int = -1,
        args: Call | None = None,
    ) -> int:
        """Append an op that produces the named values; its index."""
        index = len(self.ops["name"])
        work = work or Cost()
        with naming(f"op {head.name!r}"):
            size = sum(t.nbytes or 0 for t in tensors if t is not None)
        row = {
            "name": head.name,
            "kind": head.kind,
            "module": head.module,
            "phase": "f",
            "flops": work.flops,
            "bytes_accessed": work.bytes,
            "output_bytes": 0 if alias_of >= 0 else size,
            "param_bytes": size if head.kind == "parameter" else 0,
            "workspace": workspace,
            "view": int(alias_of >= 0),
            "alias_of": alias_of,
            "output": ";".join("none" if t is None else str(t) for t in tensors),
            "args": args,
        }
        for column, entry in row.items():
            self.ops[column].append(entry)
        if work.launches > 1:
            self.launches[index] = work.launches
        for value, tensor in zip(values, tensors, strict=True):
            if value and tensor is not None:
                if value in self.values:
                    raise InputError(f"the value {value!r} is defined twice")
                self.values[value] = _Value(index, tensor)
                self.tensors[value] = tensor
                if tensor.dtype in FLOAT_NAMES:
                    self._float_bytes[tensor.dtype] += tensor.nbytes or 0
        return index

    def connect(self, value: str, op: int) -> None:
        """The edge that carries a value to an op."""
        source = self.read_by(value, self.ops["name"][op])
        if source.id < 0:
            source.id = self._n_tensors
            self._n_tensors += 1
        self.draw(source.producer, op, source.id, source.tensor.nbytes or 0)

    def order(self, value: str, op: int) -> None:
        """The control edge to an op from the producer of a value it does not read."""
        self.draw(self.values[value].producer, op)

    def read_by(self, value: str, name: str) -> _Value:
        """A value that the op of a name reads.

        Raises
        ------
        InputError
            Nothing produces it.
        """
        if value not in self.values:
            raise InputError(f"op {name!r} reads {value!r}, which nothing produces")
        return self.values[value]

    def owner(self, value: str) -> int:
        """The op that owns the storage of a value."""
        producer = self.values[value].producer
        alias = int(self.ops["alias_of"][producer])
        return producer if alias < 0 else alias

    def is_computed(self, value: str) -> bool:
        kind = self.ops["kind"][self.values[value].producer]
        return kind not in ("parameter", "input", "constant")

    def float_type(self) -> str:
        """The floating-point type most bytes are of; empty when there is none."""
        most = max(self._float_bytes.items(), key=lambda item: item[1], default=("", 0))
        return FLOAT_NAMES.get(most[0], "")


def _add_initializers(columns: _Columns, walker: ShapeWalker, graph: Any) -> None:
    """A parameter op for every initializer, used or not: together they are the model's size."""
    walker.declare(graph)
    for initializer in initializers(graph):
        name = initializer_name(initializer)
        tensor = from_initializer(walker.onnx, initializer)
        columns.add([name], [tensor], _Head(name, "parameter", _module(name)))


def _add_node(
    columns: _Columns, walker: ShapeWalker, calls: NodeCalls, node: Any, position: int
) -> None:
    name = node_name(node, position)
    module = _module(node.name, node)
    result = walker.visit(node, columns.tensors, name)
    # `visit` filed the outputs as it does for a subgraph; `add` files them again with their op.
    inside = _add_stored_inside(columns, walker, node)
    op = result.op
    view = is_view(op) and bool(node.input) and bool(node.input[0])
    kind = "constant" if op.kind == "Constant" else op.kind
    alias_of = columns.owner(node.input[0]) if view else -1
    # An op reads what its bodies capture and store: its call has that, after its own inputs.
    captured = [value for value in values_read(node) if value not in node.input]
    read = [*node.input, *captured, *inside]
    sources = [columns.read_by(value, name).producer if value else None for value in read]
    index = columns.add(
        node.output,
        op.outs,
        _Head(name, kind, module),
        work=result.cost,
        workspace=result.workspace,
        alias_of=alias_of,
        args=None if kind == "constant" else calls.of(node, op, sources),
    )
    if view:
        data, rest = [node.input[0]], [v for v in node.input[1:] if v]
    elif op.kind in METADATA:
        data, rest = [], [v for v in node.input if v]
    else:
        data, rest = list(dict.fromkeys(filter(None, read))), []
    for value in data:
        columns.connect(value, index)
    before = {columns.values[v].producer for v in data}
    for value in rest:
        producer = columns.values[value].producer
        if producer not in before and columns.is_computed(value):
            before.add(producer)
            columns.order(value, index)


def _add_stored_inside(columns: _Columns, walker: ShapeWalker, node: Any) -> list[str]:
    """Ops for what the subgraphs of a node store; their keys among the values.

    All that a file stores is loaded, in branches that are never taken, too. Subgraphs are scopes of
    their own, so a key is unlike any name a graph can have.
    """
    keys: list[str] = []
    for name, stored in _stored_inside(node):
        keys.append(f"\0{len(columns.values)}")
        if hasattr(stored, "op_type"):
            tensor = from_constant(walker.onnx, attributes_of(walker.onnx, stored))
            head = _Head(name, "constant", _module(stored.name, stored))
        else:
            tensor = from_initializer(walker.onnx, stored)
            head = _Head(name, "parameter", _module(name))
        columns.add(keys[-1:], [tensor], head)
    return keys


def _stored_inside(node: Any) -> Iterator[tuple[str, Any]]:
    """Names of what the subgraphs of a node store, and theirs: initializers, Constant nodes."""
    for graph in bodies(node):
        for initializer in initializers(graph):
            yield initializer_name(initializer), initializer
        for position, inner in enumerate(graph.node):
            if kind_of(inner) == "Constant":
                yield node_name(inner, position), inner
            yield from _stored_inside(inner)


def op_names(graph: Any) -> tuple[list[str], list[int]]:
    """Names of the ops that a graph is read as, and which of them each node is.

    Nodes in topological order, as :func:`~loadmaster.readers.onnx.nodes.in_order` gives them.
    """
    names = [initializer_name(i) for i in initializers(graph)]
    stored = set(names)
    names += [i.name for i in graph.input if i.name not in stored]
    positions = []
    for position, node in enumerate(in_order(graph)):
        names += [name for name, _ in _stored_inside(node)]
        positions.append(len(names))
        names.append(node_name(node, position))
    return unique(names), positions
