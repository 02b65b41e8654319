"""Shapes and costs of the nodes of an ONNX graph, found node by node for fixed input shapes.

ONNX's own inference serves its own ops, the rules in `onnx_runtime` those of ONNX Runtime, and the
shapes the file declares come last: optimised files carry stale ones. Computing tiny constants along
the way is what resolves a Reshape whose target is made from other shapes. Weights are not read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from loadmaster.base.checks import product
from loadmaster.base.errors import InputError, malformed
from loadmaster.base.files import naming
from loadmaster.readers.onnx.control_flow import BodyRun, ControlFlow, CostedNode
from loadmaster.readers.onnx.costs import ELEMENT_TYPES, METADATA, cost, is_known
from loadmaster.readers.onnx.nodes import (
    RANDOM,
    TINY,
    attributes_of,
    bodies,
    declared_dims,
    first_line,
    from_array,
    from_constant,
    from_type,
    kind_of,
    lookup,
    of_any_content,
)
from loadmaster.readers.onnx.runtime_shapes import RULES, STAND_INS, StandIn
from loadmaster.readers.onnx.unsized import UnsizedOps, origin_of, with_origin
from loadmaster.readers.shared.columns import counts, without_flops
from loadmaster.readers.shared.formulas import Cost
from loadmaster.readers.shared.open_dims import Dim, substituted
from loadmaster.readers.shared.ops import Op, Tensor, UnknownShapeError, dims

_NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}

# ---- shapes -----------------------------------------------------------------------------------


class ShapeWalker:
    """Goes through nodes in order, finding outputs and costs, and notes what it could not know."""

    def __init__(self, onnx: Any, model: Any, symbols: Mapping[str, int]) -> None:
        self.onnx = onnx
        self.opsets: dict[str, int] = {
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
        #: Ops whose sizes nobody knows.
        self.unsized = UnsizedOps()
        #: The node that could not be computed, with the reason; empty: the last one could.
        self._failure = ""
        self._flow = ControlFlow(self)

    def declare(self, graph: Any) -> None:
        """Remember the shapes the file itself gives for the values of a graph."""
        values = (*graph.value_info, *graph.output)
        self._declared.update((v.name, v.type) for v in values if v.type.WhichOneof("value"))

    def notes(self) -> list[str]:
        """Notes on what the costs leave out or assume, one sentence each."""
        notes = []
        if self._unknown_kinds:
            notes.append(without_flops(counts(self._unknown_kinds)))
        notes += self.unsized.sentences()
        if self._flow.assumed:
            notes.append(f"control flow counts as one op: {counts(self._flow.assumed)}")
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
        ins = [lookup(value, known, name) for value in node.input]
        op = Op(kind_of(node), ins, (), attributes_of(self.onnx, node))
        rule = self._flow.rule(op.kind)
        try:
            run = rule(op, known) if rule else BodyRun(Cost(), self._outputs(node, op, name))
        except KeyError as error:
            raise InputError(f"op {name!r} ({op.kind}) has no attribute {error}") from None
        outs = (run.outs + [Tensor()] * len(node.output))[: len(node.output)]
        outs = [self._complete(t, v) for v, t in zip(node.output, outs, strict=True)]
        failure, self._failure = "" if rule else self._failure, ""
        origin = origin_of(replace(op, outs=outs), name, failure, self._has_rule(node))
        # Copies: one Tensor object stands for one value, and rules may give the same one twice.
        outs = [with_origin(t, origin) for t in outs]
        op = replace(op, outs=[t if v else None for v, t in zip(node.output, outs, strict=True)])
        if not rule:
            with naming(f"op {name!r}"):
                run = self._flow.once(node, known)
                run = replace(run, cost=cost(op) + run.cost)
        known.update((v, t) for v, t in zip(node.output, outs, strict=True) if v)
        if rule is None and not is_known(op.kind):
            self._unknown_kinds[op.kind] += 1
        self.unsized.note(op, name, run.cost, origin)
        return CostedNode(op, run.cost, run.workspace)

    def _has_rule(self, node: Any) -> bool:
        """True if something says the shapes of what a node makes."""
        kind = kind_of(node)
        known = kind in RULES or kind in STAND_INS or self._flow.rule(kind) is not None
        return known or self._schema(node) is not None

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
        computed = self._computed(node, op, name, outs)
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
        """ONNX's own shape inference for one node, or for one of the same shapes."""
        if op.kind == "Slice" and op.ins and op.ins[0] is not None and 0 in (op.ins[0].shape or ()):
            # Nothing, of which every part is nothing. ONNX's inference would end the process where
            # a step is negative.
            return of_any_content(op.ins[:1])
        if any(t is not None and not (t.dtype or t.other) for t in op.ins):
            return []
        stand_in = STAND_INS.get(op.kind)
        if stand_in is None:
            return self._inferred_of(node, op.ins, name, op.kind)
        first = op.ins[0] if op.ins else None
        if first is None:
            return []
        has_channels_last = stand_in.has_channels_last(op)
        taken = replace(first, dtype=stand_in.dtype or first.dtype)
        if has_channels_last:
            taken = _with_channels(taken, of=-1, to=1)
        ins = [taken, *op.ins[1 : stand_in.n_inputs]]
        outs = self._inferred_of(self._standing_in(node, stand_in), ins, name, op.kind)
        if stand_in.dtype:
            outs = [replace(t, dtype=first.dtype) for t in outs]
        return [_with_channels(t, of=1, to=-1) for t in outs] if has_channels_last else outs

    def _inferred_of(
        self, node: Any, ins: Sequence[Tensor | None], name: str, kind: str
    ) -> list[Tensor]:
        schema = self._schema(node)
        if schema is None:
            return []
        present = {v: t for v, t in zip(node.input, ins, strict=False) if t is not None}
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
                    f"op {name!r} ({kind}) cannot take {seen}: {first_line(error)}"
                ) from None
            return []
        return [
            from_type(types[v], _inferred_dims(types[v])) if v in types else Tensor()
            for v in node.output
        ]

    def _schema(self, node: Any) -> Any:
        """The schema that ONNX has for a node; None: it has none."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        try:
            return self.onnx.defs.get_schema(node.op_type, self.opsets.get(domain, 1), domain)
        except self.onnx.defs.SchemaError:
            return None

    def _standing_in(self, node: Any, stand_in: StandIn) -> Any:
        """The node of ONNX's own that has the shapes of a node."""
        node_of_onnx = self.onnx.NodeProto(
            op_type=stand_in.kind,
            input=node.input[: stand_in.n_inputs],
            output=node.output[:1],
        )
        schema = self._schema(node_of_onnx)
        names = schema.attributes if schema is not None else ()
        node_of_onnx.attribute.extend(a for a in node.attribute if a.name in names)
        return node_of_onnx

    def _type(self, tensor: Tensor) -> Any:
        if tensor.other is not None:
            return tensor.other
        return self.onnx.helper.make_tensor_type_proto(_NUMBERS[tensor.dtype], tensor.shape)

    def _computed(self, node: Any, op: Op, name: str, outs: list[Tensor]) -> list[Tensor] | None:
        """Tiny constants computed from tiny constants: how exporters write shapes."""
        if op.kind in RANDOM or node.domain not in ("", "ai.onnx") or bodies(node):
            return None
        if not op.ins or any(t is not None and t.data is None for t in op.ins):
            return None
        sized = bool(outs) and all(t.known and product(dims(t)) <= TINY for t in outs)
        if not sized and not _is_tiny_by_content(op):
            return None
        feeds = {v: t.data for v, t in zip(node.input, op.ins, strict=True) if t is not None}
        # A function says the versions of its opsets; a node alone would run as in the newest ones.
        function = self.onnx.helper.make_function(
            "", "computed", list(feeds), list(filter(None, node.output)), [node], self._opset_protos
        )
        try:
            evaluator = self.onnx.reference.ReferenceEvaluator(function)
            with np.errstate(all="ignore"):
                arrays = evaluator.run(None, feeds, attributes={})
        except Exception as error:  # of any class; it is told if a size stays unknown for it
            self._failure = (
                f"from op {name!r} on ({op.kind}), which cannot be computed: {first_line(error)}"
            )
            return None
        tensors = [from_array(array) for array in arrays]
        if None in tensors:
            return None
        # The evaluator reduces some values of three dimensions to two: the inferred sizes hold.
        pairs = zip(tensors, outs, strict=False)
        differs = any(a is not None and a.shape != t.shape for a, t in pairs if t.known)
        return None if differs else tensors  # type: ignore[return-value]


# Kinds whose output size depends on what their inputs hold, and is no larger than these.
_SIZED_BY_CONTENT = frozenset(("NonZero", "Compress", "Unique", "Reshape"))


def _is_tiny_by_content(op: Op) -> bool:
    """True if what a kind makes of its inputs, which are known, is tiny."""
    arrays = [t.data for t in op.ins if t is not None]
    if op.kind == "Range" and len(arrays) == 3:
        start, limit, delta = (float(array.reshape(-1)[0]) for array in arrays)
        return bool(delta != 0 and (limit - start) / delta <= TINY)
    if op.kind == "Expand" and len(arrays) == 2:
        size = arrays[0].size * math.prod(map(abs, arrays[1].reshape(-1).tolist()))
        return bool(size <= TINY)
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
        return from_constant(onnx, op.attrs)
    source = op.ins[0] if op.ins else None
    if source is None or source.shape is None:
        return Tensor("i64", () if op.kind == "Size" else None)
    if op.kind == "Size":
        size = product(dims(source)) if source.known else None
        return Tensor("i64", (), None if size is None else np.array(size, np.int64))
    part = source.shape[op.attrs.get("start", 0) : op.attrs.get("end")]
    return Tensor("i64", (len(part),), None if None in part else np.array(part, np.int64))


def _with_channels(tensor: Tensor, *, of: int, to: int) -> Tensor:
    """The value with the dimension of its channels at another place."""
    if not tensor.shape:
        return tensor
    shape = list(tensor.shape)
    channels = shape.pop(of)
    shape.insert(to if to >= 0 else len(shape), channels)
    return replace(tensor, shape=tuple(shape), data=None)
