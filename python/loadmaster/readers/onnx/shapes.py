"""Shapes and costs of the nodes of an ONNX graph, found node by node for fixed input shapes.

ONNX's own inference serves its own ops, the rules in `onnx_runtime` those of ONNX Runtime, and the
shapes the file declares come last: optimised files carry stale ones. Computing tiny constants along
the way is what resolves a Reshape whose target is made from other shapes. Weights are not read.
"""

from __future__ import annotations

import graphlib
import math
from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadmaster.base.checks import product
from loadmaster.base.errors import InputError, malformed
from loadmaster.base.files import naming
from loadmaster.readers.onnx.costs import (
    ELEMENT_TYPES,
    METADATA,
    cost,
    is_known,
)
from loadmaster.readers.onnx.runtime_shapes import RULES, STAND_INS
from loadmaster.readers.shared.columns import counts, without_flops
from loadmaster.readers.shared.formulas import Cost
from loadmaster.readers.shared.open_dims import Dim, substituted
from loadmaster.readers.shared.ops import Op, Tensor, UnknownShapeError, dims

# Constants up to this many elements are looked at and computed with; beyond it they are weights.
_TINY = 1024
#: Elements that no tensor has: their bytes would not fit 64 bits.
_MOST = 2**59
_NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}

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
    return bool(count <= (_TINY if dtype in ("i64", "i32", "b8") else 16 if dtype == "f32" else -1))


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


def _from_array(array: Any) -> Tensor | None:
    """A computed constant; None for what is no numeric array."""
    array = np.asarray(array)
    name = {"b": "b8", "i": "i", "u": "u", "f": "f"}.get(array.dtype.kind)
    if name is None or array.size > _TINY:
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


# ---- nodes ------------------------------------------------------------------------------------


def kind_of(node: Any) -> str:
    """The op type, with its domain where that is not ONNX's own."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def _attributes(onnx: Any, node: Any) -> dict[str, Any]:
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
    """Dimensions as the file gives them; 0 and -1 are how some exporters say "open"."""
    tensor = type_proto.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [d.dim_param or (d.dim_value if d.dim_value > 0 else None) for d in tensor.shape.dim]


# ---- shapes -----------------------------------------------------------------------------------


_Flow = Callable[[Op, Mapping[str, Tensor]], tuple[Cost, list[Tensor]]]


@dataclass(frozen=True, slots=True)
class CostedNode:
    """A node as costed: its op with output tensors known as far as they can be, and its cost."""

    op: Op
    cost: Cost


class ShapeWalker:
    """Goes through nodes in order, finding outputs and costs, and notes what it could not know."""

    def __init__(self, onnx: Any, model: Any, symbols: Mapping[str, int]) -> None:
        self.onnx = onnx
        self.opsets = {
            "" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import
        }
        self.opsets.setdefault("", onnx.defs.onnx_opset_version() if self.opsets else 1)
        for domain, version in self.opsets.items():
            if not 0 < version < 2**31:
                raise InputError(f"opset {domain or 'ai.onnx'!r} has the version {version}")
        self._opset_protos = [onnx.helper.make_opsetid(d, v) for d, v in self.opsets.items()]
        self._inference_errors = (
            onnx.shape_inference.InferenceError,
            onnx.checker.ValidationError,
            RuntimeError,
            ValueError,
        )
        self._symbols = symbols
        self._declared: dict[str, Any] = {}
        self._unknown_kinds: Counter[str] = Counter()
        self._unknown_sizes: Counter[str] = Counter()
        self._incomplete: Counter[str] = Counter()
        self._control: Counter[str] = Counter()

    def declare(self, graph: Any) -> None:
        """Remember the shapes the file itself gives for the values of a graph."""
        values = (*graph.value_info, *graph.output)
        self._declared.update((v.name, v.type) for v in values if v.type.WhichOneof("value"))

    def notes(self) -> list[str]:
        """Notes on what the costs leave out or assume, one sentence each."""
        notes = []
        if self._unknown_kinds:
            notes.append(without_flops(counts(self._unknown_kinds)))
        if self._unknown_sizes:
            notes.append(
                "values of a size known only at run time count as 0 bytes: from "
                + counts(self._unknown_sizes)
            )
        if self._incomplete:
            notes.append(
                "ops that cost less here than they will, for want of such sizes: "
                + counts(self._incomplete)
            )
        if self._control:
            notes.append(f"control flow counts as one op: {counts(self._control)}")
        return notes

    def visit(self, node: Any, known: MutableMapping[str, Tensor], name: str) -> CostedNode:
        """Cost a node whose inputs are in ``known``, and put its outputs there.

        Raises
        ------
        InputError
            A node without an attribute that it must have, or with one of another type or length.
        """
        with malformed(f"op {name!r} ({kind_of(node)}) is damaged"):
            return self._visit(node, known, name)

    def _visit(self, node: Any, known: MutableMapping[str, Tensor], name: str) -> CostedNode:
        ins = [self._lookup(value, known, name) for value in node.input]
        op = Op(kind_of(node), ins, (), _attributes(self.onnx, node))
        flow = self._control_flow(op.kind)
        try:
            work, outs = flow(op, known) if flow else (None, self._outputs(node, op, name))
        except KeyError as error:
            raise InputError(f"op {name!r} ({op.kind}) has no attribute {error}") from None
        outs = (outs + [Tensor()] * len(node.output))[: len(node.output)]
        # Copies: one Tensor object stands for one value, and rules may give the same one twice.
        outs = [replace(self._complete(t, v)) for v, t in zip(node.output, outs, strict=True)]
        op = replace(op, outs=[t if v else None for v, t in zip(node.output, outs, strict=True)])
        if work is None:
            with naming(f"op {name!r}"):
                work = cost(op) + self._bodies_once(node, known)
        known.update((v, t) for v, t in zip(node.output, outs, strict=True) if v)
        self._note(op, work)
        return CostedNode(op, work)

    def _lookup(self, value: str, known: Mapping[str, Tensor], name: str) -> Tensor | None:
        if value and value not in known:
            raise InputError(f"op {name!r} reads {value!r}, which nothing produces")
        return known[value] if value else None

    def _note(self, op: Op, work: Cost) -> None:
        if self._control_flow(op.kind) is None and not is_known(op.kind):
            self._unknown_kinds[op.kind] += 1
        if not work.known:
            self._incomplete[op.kind] += 1
        for tensor in op.outs:
            if tensor is not None and tensor.nbytes is None:
                self._unknown_sizes[op.kind] += 1

    def _complete(self, tensor: Tensor, value: str) -> Tensor:
        """Fill what inference left open from what the file declares; None where it is silent."""
        declared = self._declared.get(value)
        if tensor.known or tensor.other is not None or declared is None:
            return tensor
        hint = from_type(declared, substituted(declared_dims(declared), self._symbols))
        if tensor.shape is None or hint.shape is None or len(hint.shape) != len(tensor.shape):
            merged = tensor.shape if tensor.shape is not None else hint.shape
        else:
            pairs = zip(tensor.shape, hint.shape, strict=True)
            merged = tuple(b if a is None else a for a, b in pairs)
        return replace(tensor, dtype=tensor.dtype or hint.dtype, shape=merged, other=hint.other)

    def _outputs(self, node: Any, op: Op, name: str) -> list[Tensor]:
        """The outputs of a node that is no control flow: computed, by rule, or inferred."""
        refusal = None
        try:
            outs = self._by_rule_or_inference(node, op, name)
        except InputError as error:  # runtimes take some ops that ONNX's rules refuse
            outs, refusal = [], error
        computed = self._computed(node, op, outs)
        if refusal is not None and computed is None:
            raise refusal
        return computed or outs

    def _by_rule_or_inference(self, node: Any, op: Op, name: str) -> list[Tensor]:
        if op.kind in ("Constant", *METADATA):
            return [_constant(self.onnx, op)]
        rule = RULES.get(op.kind)
        if rule is None:
            return self._inferred(node, op, name)
        try:
            return rule(op)
        except (UnknownShapeError, IndexError, KeyError, ValueError):
            return []

    def _inferred(self, node: Any, op: Op, name: str) -> list[Tensor]:
        """ONNX's own shape inference for one node."""
        if op.kind == "Slice" and op.ins and op.ins[0] is not None and 0 in (op.ins[0].shape or ()):
            # Nothing, of which every part is nothing. ONNX's inference would end the process where
            # a step is negative.
            return _of_any_content(op.ins[:1])
        node, schema = self._schema(node, op.kind)
        if schema is None or any(t is not None and not (t.dtype or t.other) for t in op.ins):
            return []
        by_name = dict(zip(node.input, op.ins, strict=False))
        present = {v: t for v, t in by_name.items() if t is not None}
        data = {
            v: self.onnx.numpy_helper.from_array(t.data, v)
            for v, t in present.items()
            if t.data is not None
        }
        try:
            types = self.onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                {v: self._type(t) for v, t in present.items()},
                data,
                opset_imports=self._opset_protos,
            )
        except self._inference_errors as error:
            if all(t.known for t in present.values()):
                seen = ", ".join(map(str, present.values()))
                raise InputError(
                    f"op {name!r} ({op.kind}) cannot take {seen}: {first_line(error)}"
                ) from None
            return []
        return [
            from_type(types[v], _inferred_dims(types[v])) if v in types else Tensor()
            for v in node.output
        ]

    def _schema(self, node: Any, kind: str) -> tuple[Any, Any]:
        """The node, or a stand-in of the same shapes, and the schema ONNX has for it, or None."""
        stand_in, n_inputs = STAND_INS.get(kind, (None, 0))
        domain = "" if stand_in or node.domain == "ai.onnx" else node.domain
        try:
            schema = self.onnx.defs.get_schema(
                stand_in or node.op_type, self.opsets.get(domain, 1), domain
            )
        except self.onnx.defs.SchemaError:
            return node, None
        if stand_in is None:
            return node, schema
        known = [a for a in node.attribute if a.name in schema.attributes]
        return self.onnx.NodeProto(
            op_type=stand_in, input=node.input[:n_inputs], output=node.output[:1], attribute=known
        ), schema

    def _type(self, tensor: Tensor) -> Any:
        if tensor.other is not None:
            return tensor.other
        return self.onnx.helper.make_tensor_type_proto(_NUMBERS[tensor.dtype], tensor.shape)

    def _computed(self, node: Any, op: Op, outs: list[Tensor]) -> list[Tensor] | None:
        """Tiny constants computed from tiny constants: how exporters write shapes."""
        if op.kind in _RANDOM or node.domain not in ("", "ai.onnx") or bodies(node):
            return None
        if not op.ins or any(t is not None and t.data is None for t in op.ins):
            return None
        sized = bool(outs) and all(t.known and product(dims(t)) <= _TINY for t in outs)
        if not sized and not _is_tiny_by_content(op):
            return None
        feeds = {v: t.data for v, t in zip(node.input, op.ins, strict=True) if t is not None}
        try:
            evaluator = self.onnx.reference.ReferenceEvaluator(node, opsets=self.opsets)
            with np.errstate(all="ignore"):
                arrays = evaluator.run(None, feeds)
        except Exception:  # computing it is a bonus: any failure leaves the inferred shape
            return None
        tensors = [_from_array(array) for array in arrays]
        return None if None in tensors else tensors  # type: ignore[return-value]

    # Control flow: the op costs what its body costs; what that assumes is noted.

    def _body(
        self, graph: Any, known: Mapping[str, Tensor], inputs: Sequence[Tensor | None]
    ) -> tuple[Cost, list[Tensor]]:
        """Cost of one run of a subgraph, and its outputs."""
        scope: MutableMapping[str, Tensor] = ChainMap({}, known)  # type: ignore[arg-type]
        self.declare(graph)
        scope.update(
            (initializer_name(i), from_initializer(self.onnx, i)) for i in initializers(graph)
        )
        for declared, tensor in zip(graph.input, inputs, strict=False):
            fallback = from_type(declared.type, declared_dims(declared.type))
            scope[declared.name] = fallback if tensor is None else tensor
        total = Cost()
        for position, node in enumerate(in_order(graph)):
            total += self.visit(node, scope, node_name(node, position)).cost
        outs = []
        for output in graph.output:
            tensor = self._lookup(output.name, scope, graph.name)
            if tensor is None:
                raise InputError(f"the graph {graph.name!r} inside a node has an unnamed output")
            outs.append(tensor)
        return total, outs

    def _bodies_once(self, node: Any, known: Mapping[str, Tensor]) -> Cost:
        total = Cost()
        for graph in bodies(node):
            self._control[f"{node.op_type}, its body once"] += 1
            total += self._body(graph, known, [None] * len(graph.input))[0]
        return total

    def _control_flow(self, kind: str) -> _Flow | None:
        # Before opset 9 a Scan had a batch dimension: rare enough to count its body once.
        scan = self._scan if self.opsets[""] >= 9 else None
        return {"If": self._if, "Loop": self._loop, "Scan": scan}.get(kind)

    def _if(self, op: Op, known: Mapping[str, Tensor]) -> tuple[Cost, list[Tensor]]:
        """The branch taken where the condition is known, else the one with more work."""
        condition = _data(op.ins, 0)
        branches = [op.attrs["then_branch"], op.attrs["else_branch"]]
        if condition is not None:
            return self._body(branches[0 if condition.all() else 1], known, ())
        self._control["If, its larger branch"] += 1
        taken, refused = [], []
        for graph in branches:
            try:
                taken.append(self._body(graph, known, ()))
            except InputError as error:  # never taken with these shapes, or it could not run
                refused.append(error)
        if not taken:
            raise refused[0]
        work, outs = max(taken, key=lambda branch: (branch[0].flops, branch[0].bytes))
        return work, _of_any_content(outs)

    def _loop(self, op: Op, known: Mapping[str, Tensor]) -> tuple[Cost, list[Tensor]]:
        """The body as often as the trip count says, once where it is not known."""
        limit = _data(op.ins, 0)
        trips = None if limit is None else max(int(limit.reshape(-1)[0]), 0)
        self._control[f"Loop, its body {'once' if trips is None else f'{trips} times'}"] += 1
        carried = _of_any_content(op.ins[2:])
        index, condition = Tensor("i64", ()), Tensor("b8", ())
        work, outs = self._body(op.attrs["body"], known, [index, condition, *carried])
        after = [_agree(a, b) for a, b in zip(carried, outs[1:], strict=False)]
        stacked = [_stack(t, trips, 0) for t in outs[1 + len(carried) :]]
        return work.times(1 if trips is None else trips), after + stacked

    def _scan(self, op: Op, known: Mapping[str, Tensor]) -> tuple[Cost, list[Tensor]]:
        """The body as often as the scanned inputs are long."""
        n_scanned = int(op.attrs["num_scan_inputs"])
        n_states = len(op.ins) - n_scanned
        ins = _of_any_content(op.ins)
        states, scanned = ins[:n_states], ins[n_states:]
        axes = op.attrs.get("scan_input_axes") or [0] * n_scanned
        pairs = list(zip(scanned, axes, strict=False))
        trips = next((t.shape[a] for t, a in pairs if t.shape and t.shape[a] is not None), None)
        if trips is None:
            self._control["Scan, its body once"] += 1
        slices = [_without(t, axis) for t, axis in pairs]
        work, outs = self._body(op.attrs["body"], known, [*states, *slices])
        out_axes = op.attrs.get("scan_output_axes") or [0] * (len(outs) - n_states)
        stacked = [_stack(t, trips, a) for t, a in zip(outs[n_states:], out_axes, strict=False)]
        return work.times(1 if trips is None else trips), _of_any_content(outs[:n_states]) + stacked


# Kinds whose output size depends on what their inputs hold, and is no larger than these.
_SIZED_BY_CONTENT = frozenset(("NonZero", "Compress", "Unique", "Reshape"))
_RANDOM = frozenset(
    ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
     "RandomUniformLike")
)  # fmt: skip


def _is_tiny_by_content(op: Op) -> bool:
    """True if what a kind makes of its inputs, which are known, is tiny."""
    arrays = [t.data for t in op.ins if t is not None]
    if op.kind == "Range" and len(arrays) == 3:
        start, limit, delta = (float(array.reshape(-1)[0]) for array in arrays)
        return bool(delta != 0 and (limit - start) / delta <= _TINY)
    if op.kind == "Expand" and len(arrays) == 2:
        size = arrays[0].size * math.prod(map(abs, arrays[1].reshape(-1).tolist()))
        return bool(size <= _TINY)
    return op.kind in _SIZED_BY_CONTENT


def _inferred_dims(type_proto: Any) -> list[Dim] | None:
    """Dimensions as ONNX inferred them, where 0 means 0."""
    tensor = type_proto.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]


def _constant(onnx: Any, op: Op) -> Tensor:
    """The output of a Constant, a Shape or a Size."""
    if op.kind == "Constant":
        return _from_constant(onnx, op.attrs)
    source = op.ins[0] if op.ins else None
    if source is None or source.shape is None:
        return Tensor("i64", () if op.kind == "Size" else None)
    if op.kind == "Size":
        size = product(dims(source)) if source.known else None
        return Tensor("i64", (), None if size is None else np.array(size, np.int64))
    part = source.shape[op.attrs.get("start", 0) : op.attrs.get("end")]
    return Tensor("i64", (len(part),), None if None in part else np.array(part, np.int64))


def _from_constant(onnx: Any, attributes: Mapping[str, Any]) -> Tensor:
    if not attributes:
        return Tensor()
    attribute, value = next(iter(attributes.items()))
    if attribute == "value":
        return _from_dense(onnx, value)
    if attribute == "sparse_value":
        return _from_sparse(value)
    dtype = {"value_int": "i64", "value_float": "f32"}.get(attribute.removesuffix("s"), "str")
    shape = np.shape(value)
    if dtype == "str" or math.prod(shape) > _TINY:
        return Tensor(dtype, shape)
    return Tensor(dtype, shape, np.array(value, np.int64 if dtype == "i64" else np.float32))


def _data(tensors: Sequence[Tensor | None], i: int) -> Any:
    tensor = tensors[i] if i < len(tensors) else None
    return None if tensor is None else tensor.data


def _of_any_content(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    """Values that change from run to run: their sizes are known, what they hold is not."""
    return [Tensor() if t is None else replace(t, data=None) for t in tensors]


def _agree(a: Tensor, b: Tensor) -> Tensor:
    """A value a loop carries: dimensions that change from run to run are unknown."""
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return Tensor(b.dtype or a.dtype, other=b.other)
    pairs = zip(a.shape, b.shape, strict=True)
    return Tensor(b.dtype or a.dtype, tuple(x if x == y else None for x, y in pairs))


def _stack(tensor: Tensor, count: int | None, axis: int) -> Tensor:
    """``count`` copies of a value along a new axis."""
    if tensor.shape is None:
        return Tensor(tensor.dtype)
    at = axis if axis >= 0 else axis + len(tensor.shape) + 1
    return Tensor(tensor.dtype, (*tensor.shape[:at], count, *tensor.shape[at:]))


def _without(tensor: Tensor, axis: int) -> Tensor:
    """One slice of a value along an axis, which goes."""
    if tensor.shape is None:
        return Tensor(tensor.dtype)
    at = axis if axis >= 0 else axis + len(tensor.shape)
    return Tensor(tensor.dtype, (*tensor.shape[:at], *tensor.shape[at + 1 :]))
