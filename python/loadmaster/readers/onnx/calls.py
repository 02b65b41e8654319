"""Calls of ONNX's ops: inputs are positional tensors, attributes are keywords.

What is an attribute in one opset and an input in another (axes, shapes, starts) is a keyword in
both, by its name in ONNX's schema, where its numbers are known. Attributes that a node leaves out
have the values that its opset gives them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster.model.arguments import Call
from loadmaster.readers.shared.arguments import told
from loadmaster.readers.shared.ops import Op, Tensor


class NodeCalls:
    """Calls of the nodes of a model, with the names and defaults that its opsets have."""

    def __init__(self, onnx: Any, opsets: Mapping[str, int]) -> None:
        self._onnx = onnx
        self._opsets = opsets
        self._known: dict[tuple[str, str], tuple[list[str], dict[str, Any]]] = {}

    def of(self, node: Any, op: Op, sources: Sequence[int | None]) -> Call:
        """The call of a node; ``sources`` are the ops that made its inputs (None: left out)."""
        kind = ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
        if kind not in self._known:
            self._known[kind] = self._schema(*kind)
        names, defaults = self._known[kind]
        # What an op works on comes first; numbers that are known say how.
        further = zip(names[1:], op.ins[1:], strict=False)
        numbers = {name: _numbers(tensor) for name, tensor in further if _says_how(tensor)}
        positional = [None if at is None else _OnnxSource(at) for at in sources]
        return told(positional, {**defaults, **numbers, **op.attrs}, _op_of)

    def _schema(self, domain: str, op_type: str) -> tuple[list[str], dict[str, Any]]:
        """Names of inputs, and the defaults of attributes, as far as ONNX has the kind."""
        onnx = self._onnx
        try:
            schema = onnx.defs.get_schema(op_type, self._opsets.get(domain, 1), domain)
        except onnx.defs.SchemaError:
            return [], {}
        names = [
            one.name for one in schema.inputs if one.option != schema.FormalParameterOption.Variadic
        ]
        defaults = {name: one.default_value for name, one in sorted(schema.attributes.items())}
        values = {
            name: onnx.helper.get_attribute_value(value)
            for name, value in defaults.items()
            if value.type != onnx.AttributeProto.UNDEFINED
        }
        return names, {k: v.decode() if isinstance(v, bytes) else v for k, v in values.items()}


class _OnnxSource(int):
    """The op that made an input."""


def _op_of(value: Any) -> int | None:
    return int(value) if isinstance(value, _OnnxSource) else None


def _says_how(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.data is not None and tensor.data.ndim <= 1


def _numbers(tensor: Any) -> Any:
    return tensor.data.tolist()
