"""Reads the benchmark of "Efficient Algorithms for Device Placement of DNN Graph Operators".

Microsoft Research, NeurIPS 2020; the JSON of github.com/msr-fiddle/dnn-partitioning. A node has the
time it takes on a CPU core and on an accelerator (the files call every accelerator "FPGA"), the
bytes it holds there, and a colour class that keeps nodes together. An edge has the time that its
source's output takes between an accelerator and the host's memory.

The files do not state their units, and the units of published files differ: the caller states them.
The time of an edge is taken as true, its ``size`` is not: edges of one output have different sizes.
An edge's bytes are its time at the median bandwidth over edges. So a transfer takes the edge's time
on the links of :func:`cluster`.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from loadmaster.base.checks import is_integer, not_negative
from loadmaster.base.errors import InputError
from loadmaster.base.files import naming, parse_json, read_bytes
from loadmaster.base.units import parse_bytes, parse_seconds
from loadmaster.model.cluster import Cluster
from loadmaster.model.clusters.devices import Device
from loadmaster.model.clusters.links import Link
from loadmaster.model.graph import OpGraph

#: Device types of the two times, as the files call them.
CPU, ACCELERATOR = "cpu", "fpga"

#: B/s of the links where no edge has a size: then only bytes divided by this mean something.
_NOMINAL = 1e9
#: B/s between cores, which share memory: no transfer between cores takes noticeable time.
_SHARED = 1e18


def read(
    path: str | os.PathLike[str],
    *,
    time_unit: str | None = None,
    size_unit: str | None = None,
    cost_unit: str | None = None,
) -> OpGraph:
    """Read a benchmark graph, with times for the types "cpu" and "fpga".

    Parameters
    ----------
    path
        A JSON file, plain or gzipped.
    time_unit
        Of ``cpuLatency`` and ``fpgaLatency``: "s", "ms", "us", "ns". Required.
    size_unit
        Of ``size`` and ``maxSizePerFPGA``: "B", "KiB", "MB", ... Required.
    cost_unit
        Of an edge's ``cost``; ``time_unit`` if absent. (The published layer graphs have latencies
        in milliseconds and costs that make sense in seconds.)

    Returns
    -------
    OpGraph
        Nodes by name where names are unique, else by name and id. A node's ``size`` is resident.

    Raises
    ------
    InputError
        A unit that is missing or unknown; a damaged file; a node or edge without a field, or with
        one that is no number or negative; an id given twice or that no node has; a cycle.

    Examples
    --------
    >>> graph = read("bert_l-3_inference.json", time_unit="ms", size_unit="B")  # doctest: +SKIP
    """
    benchmark = _Benchmark.read(path, time_unit, size_unit, cost_unit)
    with naming(path):
        return OpGraph.from_document(benchmark.document(Path(path).name.partition(".")[0]))


def cluster(
    path: str | os.PathLike[str],
    *,
    time_unit: str | None = None,
    size_unit: str | None = None,
    cost_unit: str | None = None,
) -> Cluster:
    """The machine that a benchmark file is for; parameters and errors as for :func:`read`.

    A device per accelerator (``maxFPGAs`` of ``maxSizePerFPGA``) and per core (``maxCPUs``, with
    room for everything: the host's memory is not limited). An accelerator has one channel to the
    host and one from it; from one to another, a tensor passes both, one after the other.

    Examples
    --------
    >>> c = cluster("bert_l-3_inference.json", time_unit="ms", size_unit="B")  # doctest: +SKIP
    """
    benchmark = _Benchmark.read(path, time_unit, size_unit, cost_unit)
    with naming(path):
        return benchmark.cluster(Path(path).name.partition(".")[0])


def is_benchmark(document: Any) -> bool:
    """True if parsed JSON is of this benchmark."""
    return isinstance(document, dict) and "maxFPGAs" in document and "nodes" in document


@dataclass(frozen=True)
class _Benchmark:
    """A benchmark file in seconds and bytes."""

    header: Mapping[str, Any]
    nodes: list[Mapping[str, Any]]
    edges: list[Mapping[str, Any]]
    second: float
    byte: int
    cost_second: float

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        time_unit: str | None,
        size_unit: str | None,
        cost_unit: str | None,
    ) -> _Benchmark:
        name = os.fspath(path)
        document = parse_json(read_bytes(path), path)
        if not is_benchmark(document):
            raise InputError(f"{name} is no benchmark of msr-fiddle: it has no nodes and maxFPGAs")
        if time_unit is None or size_unit is None:
            raise InputError(
                f"{name} does not say its units: give time_unit= (as 'ms') and size_unit= (as 'B')"
            )
        second = parse_seconds(f"1{time_unit}", "time_unit")
        cost_second = second if cost_unit is None else parse_seconds(f"1{cost_unit}", "cost_unit")
        byte = parse_bytes(f"1{size_unit}", "size_unit")
        for part in ("nodes", "edges"):
            rows = document.get(part)
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise InputError(f"{name}: {part} is no list of objects")
        return cls(document, document["nodes"], document["edges"], second, byte, cost_second)

    @cached_property
    def bandwidth(self) -> float:
        """B/s between an accelerator and the host: the median over edges with size and cost."""
        ratios = []
        for at, edge in enumerate(self.edges):
            cost, size = self._cost(at, edge), edge.get("size")
            if isinstance(size, (int, float)) and 0 < size < 2**63 and cost > 0:
                ratios.append(size * self.byte / cost)
        median = statistics.median(ratios) if ratios else _NOMINAL
        if not 0 < median < math.inf:
            raise InputError(f"costs and sizes of edges give a bandwidth of {median} B/s")
        return median

    def _cost(self, at: int, edge: Mapping[str, Any]) -> float:
        return _number(edge, "cost", f"edge {at}") * self.cost_second

    def document(self, name: str) -> dict[str, Any]:
        """The graph as an opgraph v1 document."""
        index: dict[Any, int] = {}
        for at, node in enumerate(self.nodes):
            key = node.get("id")
            if not is_integer(key):
                raise InputError(f"node {at} has the id {key!r}: wants an integer")
            if index.setdefault(key, at) != at:
                raise InputError(f"two nodes have the id {key}")
        training = any(_flag(node, "isBackwardNode") for node in self.nodes)
        ops = {
            "name": _names(self.nodes),
            "phase": ["b" if _flag(node, "isBackwardNode") else "f" for node in self.nodes],
            "param_bytes": [self._size(node) for node in self.nodes],
            "colocation": [
                f"colour {node['colorClass']}" if node.get("colorClass") is not None else ""
                for node in self.nodes
            ],
            "device_types": ["" if self._accelerated(node) else CPU for node in self.nodes],
            "time": {
                CPU: [_latency(node, "cpuLatency") * self.second for node in self.nodes],
                ACCELERATOR: [
                    _latency(node, "fpgaLatency" if self._accelerated(node) else "cpuLatency")
                    * self.second
                    for node in self.nodes
                ],
            },
        }
        return {
            "format": "opgraph",
            "version": 1,
            "name": name,
            "meta": {
                "framework": "msr-fiddle/dnn-partitioning",
                "mode": "train" if training else "infer",
                "bandwidth": self.bandwidth,
                "assumed": [
                    "a node's size stays for the whole step, what it sends comes on top of it",
                    f"edges are as large as their cost at {self.bandwidth:.6g} B/s",
                ],
            },
            "ops": ops,
            "edges": self._edges(index),
        }

    def _edges(self, index: Mapping[Any, int]) -> dict[str, list[int]]:
        """Edge columns: a tensor per source and cost, of which there should be one."""
        columns: dict[str, list[int]] = {"src": [], "dst": [], "tensor": [], "bytes": []}
        tensors: dict[tuple[int, int], int] = {}
        for at, edge in enumerate(self.edges):
            ends = [edge.get("sourceId"), edge.get("destId")]
            for end in ends:
                if not isinstance(end, int) or end not in index:
                    raise InputError(f"edge {at} joins {ends[0]!r} and {ends[1]!r}: no such node")
            src, dst = index[ends[0]], index[ends[1]]
            size = _bytes(self._cost(at, edge) * self.bandwidth, f"edge {at}")
            tensor = tensors.setdefault((src, size), len(tensors))
            for column, number in zip(columns.values(), (src, dst, tensor, size), strict=True):
                column.append(number)
        return columns

    def _size(self, node: Mapping[str, Any]) -> int:
        size = _number(node, "size", _called(node), default=0.0)
        return _bytes(size * self.byte, _called(node))

    def _accelerated(self, node: Mapping[str, Any]) -> bool:
        return _flag(node, "supportedOnFpga")

    def cluster(self, name: str) -> Cluster:
        """The devices and links."""
        counts = []
        for key in ("maxFPGAs", "maxCPUs"):
            count = self.header.get(key)
            if not is_integer(count) or not 0 <= count <= 64:
                raise InputError(f"{key} is {count!r}: wants a number of devices, at most 64")
            counts.append(count)
        limit = _number(self.header, "maxSizePerFPGA", "the file")
        memory = _bytes(limit * self.byte, "maxSizePerFPGA")
        total = sum(self._size(node) for node in self.nodes)
        costs = sum(self._cost(at, edge) for at, edge in enumerate(self.edges))
        room = _bytes(2 * (total + costs * self.bandwidth), "all that is stored and sent") + 1
        accelerators = [f"{ACCELERATOR}{i}" for i in range(counts[0])]
        cores = [f"{CPU}{i}" for i in range(counts[1])]
        devices = [Device(d, ACCELERATOR, memory) for d in accelerators]
        devices += [Device(d, CPU, room) for d in cores]
        return Cluster(devices, self._links(accelerators, cores), name=name)

    def _links(self, accelerators: list[str], cores: list[str]) -> Iterator[Link]:
        source = "edge costs of the file"
        for a in accelerators:
            for core in cores:
                yield Link(a, core, self.bandwidth, channels=(f"{a}-out",), source=source)
                yield Link(core, a, self.bandwidth, channels=(f"{a}-in",), source=source)
            for b in accelerators:
                if a != b:
                    channels = (f"{a}-out", f"{b}-in")
                    yield Link(a, b, self.bandwidth / 2, channels=channels, source=source)
        for a in cores:
            for b in cores:
                if a != b:
                    yield Link(a, b, _SHARED, source="cores share the host's memory")


def _called(node: Mapping[str, Any]) -> str:
    return f"node {node.get('id')!r}"


def _names(nodes: list[Mapping[str, Any]]) -> list[str]:
    """Names where they are unique, else names and ids."""
    names = [str(node.get("name") or f"node{node['id']}") for node in nodes]
    if len(set(names)) == len(names):
        return names
    return [f"{name}#{node['id']}" for name, node in zip(names, nodes, strict=True)]


def _number(row: Mapping[str, Any], key: str, place: str, default: float | None = None) -> float:
    value = row.get(key, default)
    return not_negative(f"{place}: {key}", value)


def _bytes(size: float, subject: str) -> int:
    """A size in whole bytes; an InputError for one beyond 64 bits."""
    if size >= 2**62:
        raise InputError(f"{subject} has {size:.3g} bytes: wants fewer than 2^62")
    return round(size)


def _latency(node: Mapping[str, Any], key: str) -> float:
    return _number(node, key, _called(node))


def _flag(node: Mapping[str, Any], key: str) -> bool:
    value = node.get(key, False)
    if value not in (0, 1):
        raise InputError(f"{_called(node)} has the {key} {value!r}: wants true or false")
    return bool(value)
