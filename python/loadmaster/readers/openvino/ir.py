"""Reads OpenVINO's intermediate representation: the XML, which states sizes of every port.

Weights lie beside it, in a ``.bin`` that is not needed: a Const has its type and dimensions in the
XML. Matrices at one place of the ``.bin`` are one weight. Ops whose inputs are constants alone are
folded as the model is loaded: they run in no step.

TensorIterator, Loop and If have bodies, which are such layers. One op stands for all of it, with
the work, kernels and weights of its bodies: an If takes the one of more FLOPs; a loop runs its own
as often as what it slices or joins is long, and once where it does neither.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadmaster.base.errors import InputError, malformed
from loadmaster.base.files import naming, read_bytes
from loadmaster.base.warnings import warn
from loadmaster.model.graph import LAUNCHES, OpGraph
from loadmaster.readers.openvino.costs import VIEWS, cost, is_known
from loadmaster.readers.openvino.xml import Element, parse
from loadmaster.readers.shared.columns import GraphColumns, counts, without_flops
from loadmaster.readers.shared.formulas import Cost
from loadmaster.readers.shared.ops import Op, Tensor

#: Element types by precision of a port; others are spelled as here, in capitals.
_PRECISIONS = {"FP64": "f64", "FP32": "f32", "FP16": "f16", "BF16": "bf16", "BOOL": "b8"} | {
    f"{sign}{bits}".upper(): f"{sign}{bits}" for sign in "iu" for bits in (4, 8, 16, 32, 64)
}

#: The tags of bodies, by the kinds of layers that have them.
_WITH_BODIES = {"TensorIterator": ["body"], "Loop": ["body"], "If": ["then_body", "else_body"]}

#: The first version of the format whose layers are ops of OpenVINO's opsets.
_FIRST = 10


def read(path: str | os.PathLike[str]) -> OpGraph:
    """Read the ``.xml`` of a model of OpenVINO as an op graph, for inference.

    Parameters
    ----------
    path
        The ``.xml``; its ``.bin`` need not be there.

    Raises
    ------
    InputError
        A damaged file, a version before 10, a dimension of an input that is left open.

    Warns
    -----
    UserWarning
        Kinds of ops that are not known, and sizes known only at run time.

    Examples
    --------
    >>> graph = read("resnet18.xml")                                       # doctest: +SKIP
    """
    with naming(path), malformed("a damaged model of OpenVINO"):
        net = parse(read_bytes(path), os.fspath(path))
        version = net.attributes.get("version", "")
        if net.tag != "net" or not version.isdecimal() or int(version) < _FIRST:
            raise InputError(
                f"no model of OpenVINO of version {_FIRST} or later (<{net.tag}> "
                f"version={version!r})"
            )
        document = _Layers(net).document(net.attributes.get("name", "") or Path(path).stem)
    return OpGraph.from_document(document)


class _Layers:
    """Layers of a model or a body, in the order in which they depend on each other."""

    def __init__(self, net: Element, *, is_body: bool = False) -> None:
        self._is_body = is_body
        self._layers = {layer.attributes["id"]: layer for layer in net.each("layers", "layer")}
        self._sources: dict[str, list[tuple[str, str]]] = {id_: [] for id_ in self._layers}
        edges = [edge.attributes for edge in net.each("edges", "edge")]
        edges.sort(key=lambda edge: int(edge["to-port"]))
        for edge in edges:
            self._sources[edge["to-layer"]].append((edge["from-layer"], edge["from-port"]))
        self._columns = GraphColumns()
        self._index: dict[str, int] = {}
        self._tensors: dict[tuple[str, str], tuple[int, Tensor]] = {}
        self._constant: set[str] = set()
        self._stored: dict[tuple[str, ...], str] = {}
        self._unknown: Counter[str] = Counter()
        self._open: Counter[str] = Counter()
        self._bodies: Counter[str] = Counter()
        #: Kernels of ops that have bodies, where these are several.
        self._launches: dict[int, int] = {}

    def _read(self) -> None:
        for id_ in self._order():
            if self._layers[id_].attributes["type"] != "Result":
                self._add(id_, self._layers[id_])

    def document(self, name: str) -> dict[str, Any]:
        """The opgraph v1 document."""
        self._read()
        notes = []
        if self._bodies:
            notes.append(f"ops with bodies count as one op each: {counts(self._bodies)}")
        if self._unknown:
            notes.append(without_flops(counts(self._unknown)))
        if self._open:
            notes.append(
                "values of a size known only at run time count as 0 bytes: from "
                + counts(self._open)
            )
        warn(*notes)
        folded = "ops of constants alone are folded as the model is loaded"
        meta = {"framework": "openvino", "mode": "infer", "assumed": [folded, *notes]}
        document = self._columns.document(name, meta)
        if self._launches:
            names = document["ops"]["name"]
            document["meta"][LAUNCHES] = {names[op]: n for op, n in self._launches.items()}
        return document

    def _order(self) -> list[str]:
        """Layers behind those that they read; by id as far as possible."""
        order: list[str] = []
        waiting = {id_: {source for source, _ in s} for id_, s in self._sources.items()}
        readers: dict[str, list[str]] = {id_: [] for id_ in waiting}
        for id_, sources in waiting.items():
            for source in sources:
                readers[source].append(id_)
        ready = [id_ for id_, sources in waiting.items() if not sources][::-1]
        while ready:
            order.append(ready.pop())
            for reader in readers[order[-1]][::-1]:
                waiting[reader].discard(order[-1])
                if not waiting[reader]:
                    ready.append(reader)
        if len(order) < len(waiting):
            names = [self._layers[i].attributes.get("name", i) for i in waiting if waiting[i]]
            raise InputError(f"the model has a cycle through {names[0]!r}")
        return order

    def _add(self, id_: str, layer: Element) -> None:
        kind, name = layer.attributes["type"], layer.attributes.get("name", id_)
        outs = [_tensor(port) for port in layer.each("output", "port")]
        sources = self._sources[id_]
        ins = [self._tensors[source][1] for source in sources]
        attributes = next((dict(data.attributes) for data in layer.each("data")), {})
        if kind == "Parameter" and not self._is_body and not all(t.known for t in outs):
            raise InputError(
                f"dimensions are left open: input {name!r} is {outs[0]}. Fix them in OpenVINO, "
                "model.reshape({...}), and save it again, openvino.save_model"
            )
        is_stored = kind == "Const"
        if is_stored and len(outs[0].shape or ()) > 1 and "offset" in attributes:
            place = (attributes["offset"], attributes["size"], str(outs[0]))
            first = self._stored.setdefault(place, id_)
            if first != id_:
                self._index[id_] = self._index[first]
                self._tensors[id_, self._port(id_)] = self._tensors[first, self._port(first)]
                self._constant.add(id_)
                return
        is_folded = bool(ins) and all(source in self._constant for source, _ in sources)
        is_view = is_folded or (kind in VIEWS and bool(ins))
        if is_stored or is_folded:
            self._constant.add(id_)
        work, stored = Cost(), 0
        if not is_view and kind in _WITH_BODIES:
            work, stored = self._run(kind, layer)
        elif not is_view and kind not in ("Parameter", "Const"):
            work = cost(Op(kind, ins, outs, attributes))
            work = replace(work, launches=int(bool(work.flops or work.bytes)))
            if not is_known(kind):
                self._unknown[kind] += 1
            if any(t.nbytes is None for t in outs):
                self._open[kind] += 1
        self._append(id_, name, kind, outs, work, is_view)
        self._columns.ops["param_bytes"][-1] += stored
        if work.launches > 1:
            self._launches[self._index[id_]] = work.launches

    def _run(self, kind: str, layer: Element) -> tuple[Cost, int]:
        """The cost of all runs of the bodies of a layer, and the bytes of weights in them."""
        bodies = []
        for tag in _WITH_BODIES[kind]:
            for element in layer.each(tag):
                inner = _Layers(element, is_body=True)
                inner._read()
                bodies.append(inner)
                self._unknown += inner._unknown
                self._open += inner._open
                self._bodies += inner._bodies
        runs = [body._work() for body in bodies]
        stored = sum(sum(body._columns.ops["param_bytes"]) for body in bodies)
        if kind == "If":
            self._bodies["If, its larger branch"] += 1
            return max(runs, key=lambda run: (run.flops, run.bytes), default=Cost()), stored
        trips = _trips(layer)
        self._bodies[f"{kind}, its body {'once' if trips is None else f'{trips} times'}"] += 1
        return sum(runs, Cost()).times(1 if trips is None else trips), stored

    def _work(self) -> Cost:
        """The cost of one run of all layers."""
        ops, launches = self._columns.ops, 0
        for op, pair in enumerate(zip(ops["flops"], ops["bytes_accessed"], strict=True)):
            launches += self._launches.get(op, int(any(pair)))
        return Cost(sum(ops["flops"]), sum(ops["bytes_accessed"]), launches=launches)

    def _port(self, id_: str) -> str:
        """The only output of a layer."""
        (port,) = self._layers[id_].each("output", "port")
        return port.attributes["id"]

    def _append(
        self, id_: str, name: str, kind: str, outs: list[Tensor], work: Cost, is_view: bool
    ) -> None:
        columns, sources = self._columns, self._sources[id_]
        size, index = sum(t.nbytes or 0 for t in outs), len(columns.ops["name"])
        owner = -1
        if is_view:
            first = self._index[sources[0][0]]
            alias = columns.ops["alias_of"][first]
            owner = first if alias < 0 else alias
        row = {
            "name": name,
            "kind": {"Parameter": "input", "Const": "parameter"}.get(kind, kind),
            "module": _module(name),
            "phase": "f",
            "flops": work.flops,
            "bytes_accessed": work.bytes,
            "output_bytes": 0 if is_view else size,
            "param_bytes": size if kind == "Const" else 0,
            "view": int(is_view),
            "alias_of": owner,
            "output": ";".join(map(str, outs)),
        }
        for column, entry in row.items():
            columns.ops[column].append(entry)
        self._index[id_] = index
        for source in dict.fromkeys(sources[:1] if is_view else sources):
            tensor, value = self._tensors[source]
            columns.draw(self._index[source[0]], index, tensor, value.nbytes or 0)
        ports = [port.attributes["id"] for port in self._layers[id_].each("output", "port")]
        for port, value in zip(ports, outs, strict=True):
            self._tensors[id_, port] = (len(self._tensors), value)


def _trips(loop: Element) -> int | None:
    """The runs of a loop, by the sizes of what it slices and joins; None: it does neither."""
    for side in ("input", "output"):
        ports = {port.attributes["id"]: _tensor(port) for port in loop.each(side, "port")}
        for row in loop.each("port_map", side):
            axis, port = row.attributes.get("axis"), row.attributes["external_port_id"]
            shape = ports[port].shape if axis is not None and port in ports else None
            size = shape[int(axis or 0)] if shape else None
            if size is not None:
                return size // max(abs(int(row.attributes.get("part_size", 1))), 1)
    return None


def _tensor(port: Element) -> Tensor:
    """The tensor that a port hands on; -1 is a dimension known at run time."""
    precision = port.attributes.get("precision", "")
    sizes = [int(dim.text) for dim in port.each("dim")]
    return Tensor(
        _PRECISIONS.get(precision, precision.lower()), tuple(None if n < 0 else n for n in sizes)
    )


def _module(name: str) -> str:
    """The module of a layer, by the path that its name is."""
    if name.startswith("__module."):  # of PyTorch, whose modules end at the first slash
        return name.removeprefix("__module.").partition("/")[0]
    return ".".join(part for part in name.split("/")[:-1] if part)
