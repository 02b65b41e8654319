"""The nodes of an execution trace: its calls, and the tensors that each was given and gave back."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.base.files import parse_json, read_bytes
from loadmaster.readers.pytorch.aten_costs import AtenTensor
from loadmaster.readers.pytorch.calls import (
    OP,
    TENSOR_TYPE,
    WRAPPER,
    ProcessCalls,
    role_of,
    tensor_of,
)
from loadmaster.readers.shared.dataflow import Schema, TensorRef, schema_of


@dataclass(frozen=True, slots=True)
class TraceArgument:
    """An argument or result: the tensors in it, and its value as the cost tables take it."""

    refs: tuple[TensorRef, ...]
    value: Any
    is_list: bool = False

    def part(self, i: int) -> TraceArgument:
        """The part of the argument that belongs to the i-th op of a list op."""
        if not self.is_list:
            return self
        return TraceArgument(self.refs[i : i + 1], self.value[i]) if self.refs else self


@dataclass(frozen=True, eq=False)
class RecordedTrace:
    """An execution trace: its calls in the order in which they were made.

    Attributes
    ----------
    source, schema : str
        The file, and the version of the format.
    calls : Calls
        Start and end are node ids, which grow with time.
    record : int64 [n_calls]
        Record function ids; 0: none.
    nodes, attributes : list of dict
        As in the file.
    """

    source: str
    schema: str
    calls: ProcessCalls
    record: NDArray[np.int64]
    nodes: list[dict[str, Any]]
    attributes: list[dict[str, Any]]
    _given: dict[int, list[TraceArgument]] = field(default_factory=dict, repr=False)

    def arguments(self, call: int) -> list[TraceArgument]:
        """The arguments of a call."""
        if call not in self._given:
            self._given[call] = _arguments(self.nodes[call].get("inputs"))
        return self._given[call]

    def results(self, call: int) -> list[TraceArgument]:
        """The results of a call."""
        return _arguments(self.nodes[call].get("outputs"))

    def argument_names(self, call: int) -> dict[tuple[int, int], tuple[str, ...]]:
        """The names of the arguments as which an op and its callers were given each tensor."""
        names: dict[tuple[int, int], tuple[str, ...]] = {}
        while call >= 0 and self.calls.roles[call] in (OP, WRAPPER):
            words = self.schema_of(call).names
            for word, argument in zip(words, self.arguments(call), strict=False):
                for ref in argument.refs:
                    key = (ref.tensor, ref.storage)
                    names[key] = (*names.get(key, ()), word)
            call = int(self.calls.parent[call])
        return names

    def schema_of(self, call: int) -> Schema:
        """The schema of a call's op, as far as it is recorded."""
        text = self.attributes[call].get("op_schema")
        return schema_of(text if isinstance(text, str) else "")


def load(path: str | os.PathLike[str]) -> RecordedTrace:
    """The calls of an execution trace.

    Raises
    ------
    InputError
        The file cannot be read or unpacked, is cut off, or is no execution trace of a version that
        names its tensors' storages; the node is named.
    """
    source = os.fspath(path)
    document = parse_json(read_bytes(path), path)
    schema = document.get("schema") if isinstance(document, dict) else None
    nodes = document.get("nodes") if isinstance(document, dict) else None
    if not isinstance(schema, str) or not isinstance(nodes, list):
        raise InputError(f"{source} is no execution trace: it has no schema and nodes")
    if "chakra" not in schema:
        raise InputError(
            f"{source} has schema {schema}; versions named 'chakra' are read: record it with "
            "PyTorch 2.2 or later"
        )
    nodes = sorted(_checked(nodes, source), key=lambda node: int(node["id"]))
    position = {node["id"]: i for i, node in enumerate(nodes)}
    if len(position) < len(nodes):
        twice = next(i for i, n in Counter(node["id"] for node in nodes).items() if n > 1)
        raise InputError(f"{source} has two nodes with id {twice}")
    # The root is its own parent. A parent that is not there began before the recording.
    above = [position.get(node.get("ctrl_deps"), -1) for node in nodes]
    parent = [p if p < i else -1 for i, p in enumerate(above)]
    late = next((i for i, p in enumerate(above) if p > i), None)
    if late is not None:
        raise InputError(
            f"{source}: node {nodes[late]['id']} ({nodes[late]['name']!r}) is called by a later one"
        )
    attributes = list(map(_attributes, nodes))
    calls = _calls(nodes, attributes, parent)
    return RecordedTrace(source, schema, calls, _numbers(attributes, "rf_id", 0), nodes, attributes)


def _checked(nodes: Sequence[Any], source: str) -> Iterator[dict[str, Any]]:
    for i, node in enumerate(nodes):
        number, name = (
            (node.get("id"), node.get("name")) if isinstance(node, dict) else (None, None)
        )
        if type(number) is not int or not 0 <= number < 2**53 or not isinstance(name, str):
            raise InputError(f"{source}: node {i} of the list has id {number!r} and name {name!r}")
        if type(node.get("ctrl_deps")) not in (int, type(None)):
            raise InputError(f"{source}: node {number} has ctrl_deps {node['ctrl_deps']!r}")
        yield node


def _attributes(node: dict[str, Any]) -> dict[str, Any]:
    attributes = node.get("attrs")
    rows = attributes if isinstance(attributes, list) else ()
    return {str(row.get("name")): row.get("value") for row in rows if isinstance(row, dict)}


def _numbers(attributes: Sequence[dict[str, Any]], name: str, default: int) -> NDArray[np.int64]:
    values = [each.get(name) for each in attributes]
    whole = [v if type(v) is int and -(2**62) < v < 2**62 else default for v in values]
    return np.array(whole, dtype=np.int64)


def _calls(
    nodes: Sequence[dict[str, Any]], attributes: Sequence[dict[str, Any]], parent: list[int]
) -> ProcessCalls:
    names = [str(node["name"]) for node in nodes]
    start = [int(node["id"]) for node in nodes]
    end = [number + 0.5 for number in start]
    for call in range(len(nodes) - 1, -1, -1):
        if parent[call] >= 0:
            end[parent[call]] = max(end[parent[call]], end[call])
    # Scope 7: ranges that users mark, the process and its threads.
    marked = (_numbers(attributes, "scope", 0) == 7).tolist()
    roles = [role_of(name, annotation=mark) for name, mark in zip(names, marked, strict=True)]
    return ProcessCalls(
        names,
        np.array(roles, dtype=np.uint8),
        np.array(parent, dtype=np.int32),
        np.array(start, dtype=np.float64),
        np.array(end, dtype=np.float64),
        _numbers(attributes, "seq_id", -1),
        np.zeros(len(nodes), dtype=bool),
    )


# ---- arguments --------------------------------------------------------------------------------


def _arguments(side: Any) -> list[TraceArgument]:
    """The arguments on one side of a node."""
    side = side if isinstance(side, dict) else {}
    values, types = side.get("values"), side.get("types")
    if not isinstance(values, list) or not isinstance(types, list):
        return []
    shapes, strides = (_padded(side.get(key), len(values)) for key in ("shapes", "strides"))
    rows = zip(values, _padded(types, len(values)), shapes, strides, strict=True)
    seen: dict[tuple[Any, ...], TensorRef] = {}
    return [_argument(*row, seen) for row in rows]


def _padded(values: Any, n: int) -> list[Any]:
    values = values if isinstance(values, list) else []
    return [*values[:n], *[None] * (n - len(values))]


def _argument(
    value: Any, kind: Any, shape: Any, strides: Any, seen: dict[tuple[Any, ...], TensorRef]
) -> TraceArgument:
    """An argument; a tensor among ``seen`` is the same object again."""
    types = TENSOR_TYPE.findall(kind) if isinstance(kind, str) else []
    if types and kind.startswith("GenericList") and isinstance(value, list):
        n = len(value)
        rows = zip(value, _padded(types, n), _padded(shape, n), _padded(strides, n), strict=True)
        refs = tuple(ref for row in rows if (ref := _ref(*row, seen)) is not None)
        return TraceArgument(refs, [ref.value for ref in refs], is_list=True)
    if types:
        ref = _ref(value, types[0], shape, strides, seen)
        return TraceArgument((), None) if ref is None else TraceArgument((ref,), ref.value)
    return TraceArgument((), None if value == "<None>" else value)


def _ref(
    value: Any, dtype: Any, shape: Any, strides: Any, seen: dict[tuple[Any, ...], TensorRef]
) -> TensorRef | None:
    """A tensor from ``[tensor id, storage id, offset, elements, bytes of one, device]``."""
    if not isinstance(value, list) or len(value) < 5:
        return None
    if any(type(v) is not int or not 0 <= v < 2**48 for v in value[:5]) or not value[1]:
        return None
    number, storage, offset, elements, width = value[:5]
    known = tensor_of(shape, dtype, strides)
    if known is None:
        known = AtenTensor(f"u{8 * width}", (elements,))
    reach = elements
    if known.strides is not None and elements:
        reach = 1 + sum((n - 1) * s for n, s in zip(known.shape, known.strides, strict=True))
    bytes_ = min(known.shown_bytes or elements * width, 2**62)
    ref = TensorRef(number, storage, bytes_, min((offset + reach) * width, 2**62), known)
    return seen.setdefault((number, storage, known.shape), ref)
