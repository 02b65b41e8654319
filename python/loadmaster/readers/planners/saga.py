"""Reads files of SAGA, a library of scheduling algorithms: a task graph, and what it runs on.

What ``Dataset.save_instance`` of SAGA 2 writes: tasks with a cost, dependencies with a size, nodes
and links with a speed. A task takes cost / speed, a transfer size / speed; both are taken as
seconds. SAGA has no memory and no contention: a link carries any number of transfers at a time
there, and one at a time here.

Papers: Coleman and Krishnamachari, "Comparing Task Graph Scheduling Algorithms: An Adversarial
Approach" (arXiv:2403.07120).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster.base.checks import not_negative, positive
from loadmaster.base.errors import InputError
from loadmaster.base.files import naming, parse_json, read_bytes
from loadmaster.base.text import shown
from loadmaster.model.cluster import Cluster
from loadmaster.model.clusters.devices import Device
from loadmaster.model.clusters.links import Link
from loadmaster.model.graph import OpGraph

#: Key of a graph's ``meta`` with the numbers of the file: ``scale``, bytes per unit of size;
#: ``cost`` and ``size``, one per op and per edge; ``local``, the speeds of nodes' links to
#: themselves, where these are finite. What stays on a device takes no time here.
META = "saga"

#: Tasks that SAGA puts before several first ones and behind several last ones.
SUPER_SOURCE, SUPER_SINK = "__super_source__", "__super_sink__"

#: Bytes per second of a link whose speed is infinite.
UNLIMITED = 2.0**900

#: Bytes of a device: SAGA knows of no memory.
MEMORY = 1 << 60

#: Bytes of the largest size where sizes are no whole numbers: fine enough that a transfer's time is
#: right to 1e-12 of the longest.
_LARGEST = 40

#: The most bytes of a unit of size, as a power of two: sizes may be next to nothing.
_MOST_FINE = 500

_ASSUMED = (
    "cost / speed and size / speed are seconds",
    "a link carries one transfer at a time (in SAGA any number)",
    "memory to spare",
)


def read(path: str | os.PathLike[str]) -> OpGraph:
    """The task graph of a problem instance or a schedule, with its times on the nodes there.

    Tasks stand in the order of their names, as SAGA itself writes them in any order. A task's time
    stands once per speed of a node, under the device type that :func:`cluster` gives such nodes.

    Raises
    ------
    InputError
        A damaged file; a task, dependency or node without a field, or with one that is no number or
        negative; a name given twice or that no task has; a cycle.

    Examples
    --------
    >>> import json, tempfile
    >>> tasks = [{"name": "a", "cost": 2}, {"name": "b", "cost": 4}]
    >>> graph = {"tasks": tasks, "dependencies": [{"source": "a", "target": "b", "size": 3}]}
    >>> network = {"nodes": [{"name": "n", "speed": 2.0}], "edges": []}
    >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    ...     json.dump({"name": "two", "task_graph": graph, "network": network}, file)
    ...     file.flush()
    ...     found = read(file.name)
    >>> found.time["speed 2.0"].tolist(), found.bytes.tolist()
    ([1.0, 2.0], [3])
    """
    document = _document(path)
    with naming(path):
        return _graph(document, _Network(document))


def cluster(path: str | os.PathLike[str]) -> Cluster:
    """The network of the same file: a device per node, links that bytes of :func:`read` take.

    Raises
    ------
    InputError
        As :func:`read`; a link between nodes that are not there; a speed that is not above 0.
    """
    document = _document(path)
    with naming(path):
        network = _Network(document)
        scale = scale_of([size for *_, size in _dependencies(document, _tasks(document))])
        return network.cluster(str(document.get("name", "")), scale)


def type_of(speed: float) -> str:
    """The device type of nodes of a speed.

    >>> type_of(2.5)
    'speed 2.5'
    """
    return f"speed {speed!r}"


def scale_of(sizes: Sequence[float]) -> float:
    """Bytes per unit of size: 1 where all are whole numbers, else a power of two.

    >>> scale_of([3.0, 5.0]), scale_of([0.5, 0.1]) == 2.0**41
    (1.0, True)
    """
    largest = max(sizes, default=0.0)
    if all(size == int(size) for size in sizes) and largest < 2.0**_LARGEST:
        return 1.0
    return 2.0 ** min(_LARGEST - math.frexp(largest)[1] + 1, _MOST_FINE)


def _document(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    document = parse_json(read_bytes(path), path)
    with naming(path):
        for part in ("task_graph", "network"):
            if not isinstance(document, dict) or not isinstance(document.get(part), dict):
                raise InputError(f"no file of SAGA: it has no {part}")
    checked: Mapping[str, Any] = document
    return checked


class _Network:
    """Speeds of nodes and links, by name."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        network = document["network"]
        self.nodes = {
            name: positive(f"network.nodes: speed of {name!r}", row.get("speed"))
            for name, row in _named(network, "network.nodes", "nodes").items()
        }
        if not self.nodes:
            raise InputError("network.nodes is empty: wants at least one node")
        self.links: dict[tuple[str, str], float] = {}
        self.local: dict[str, float] = {}
        for at, row in enumerate(_rows(network, "network.edges", "edges")):
            ends = [_end(row, f"network.edges[{at}]", key, self.nodes) for key in _ENDS]
            pair = (min(ends), max(ends))
            speed = _speed(row, f"{ends[0]!r}-{ends[1]!r}")
            if self.links.setdefault(pair, speed) != speed:
                raise InputError(f"network.edges: two speeds between {ends[0]!r} and {ends[1]!r}")
            if pair[0] == pair[1] and speed < math.inf:
                self.local[pair[0]] = speed

    @property
    def speeds(self) -> list[float]:
        """The speeds of nodes, each once, ascending."""
        return sorted(set(self.nodes.values()))

    def cluster(self, name: str, scale: float) -> Cluster:
        """Its devices and links, in the order of their names."""
        devices = [Device(n, type_of(self.nodes[n]), MEMORY) for n in sorted(self.nodes)]
        links = []
        for (a, b), speed in sorted(self.links.items()):
            if a != b and speed > 0:
                rate = UNLIMITED if speed == math.inf else speed * scale
                links += [Link(a, b, rate), Link(b, a, rate)]
        return Cluster(devices, links, name=name, source="a file of SAGA")


_ENDS = ("source", "target")


def _speed(row: Mapping[str, Any], place: str) -> float:
    """The speed of a link: 0 is none, and null is what SAGA writes for infinity."""
    speed = row.get("speed")
    if speed is None or speed == math.inf:
        return math.inf
    return not_negative(f"network.edges: speed of {place}", speed)


def _graph(document: Mapping[str, Any], network: _Network) -> OpGraph:
    tasks = _tasks(document)
    names = sorted(tasks)
    dependencies = _dependencies(document, tasks)
    index = {name: at for at, name in enumerate(names)}
    costs, sizes = [tasks[name] for name in names], [size for *_, size in dependencies]
    scale = scale_of(sizes)
    bytes_ = [round(size * scale) for size in sizes]
    return OpGraph(
        {
            "name": names,
            "time": {type_of(v): [cost / v for cost in costs] for v in network.speeds},
        },
        {
            "src": [index[a] for a, *_ in dependencies],
            "dst": [index[b] for _, b, _ in dependencies],
            # Each dependency is data of its own; without any, it is order alone.
            "tensor": [at if size else -1 for at, size in enumerate(bytes_)],
            "bytes": bytes_,
        },
        name=str(document.get("name", "")),
        meta={
            "framework": "SAGA",
            "assumed": list(_ASSUMED),
            META: {"scale": scale, "cost": costs, "size": sizes, "local": network.local},
        },
    )


def _tasks(document: Mapping[str, Any]) -> dict[str, float]:
    """Cost by task, without SAGA's own first and last ones."""
    graph = document["task_graph"]
    costs = {
        name: not_negative(f"task_graph.tasks: cost of {name!r}", row.get("cost"))
        for name, row in _named(graph, "task_graph.tasks", "tasks").items()
    }
    added = {name for name in (SUPER_SOURCE, SUPER_SINK) if costs.get(name) == 0}
    if not costs.keys() - added:
        raise InputError("task_graph.tasks is empty: wants at least one task")
    return {name: cost for name, cost in costs.items() if name not in added}


def _dependencies(
    document: Mapping[str, Any], tasks: Mapping[str, float]
) -> list[tuple[str, str, float]]:
    """Source, target and size of each, in the order of their names."""
    known = {*tasks, SUPER_SOURCE, SUPER_SINK}
    size_of: dict[tuple[str, str], float] = {}
    for at, row in enumerate(
        _rows(document["task_graph"], "task_graph.dependencies", "dependencies")
    ):
        place = f"task_graph.dependencies[{at}]"
        pair = (_end(row, place, "source", known), _end(row, place, "target", known))
        if pair in size_of:
            raise InputError(f"{place}: a second dependency of {pair[1]!r} on {pair[0]!r}")
        size_of[pair] = not_negative(f"{place}: size", row.get("size"))
    return sorted((a, b, size) for (a, b), size in size_of.items() if a in tasks and b in tasks)


def _rows(document: Mapping[str, Any], place: str, key: str) -> list[Mapping[str, Any]]:
    rows = document.get(key)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{place} is no list of objects")
    return rows


def _named(document: Mapping[str, Any], place: str, key: str) -> dict[str, Mapping[str, Any]]:
    by_name: dict[str, Mapping[str, Any]] = {}
    for at, row in enumerate(_rows(document, place, key)):
        name = row.get("name")
        if not isinstance(name, str) or not name:
            raise InputError(f"{place}[{at}] has the name {shown(name)}: wants a text")
        if by_name.setdefault(name, row) is not row:
            raise InputError(f"{place}: two are named {name!r}")
    return by_name


def _end(row: Mapping[str, Any], place: str, key: str, known: Any) -> str:
    name = row.get(key)
    if not isinstance(name, str) or name not in known:
        raise InputError(f"{place}: {key} is {shown(name)}, and nothing is named so")
    return name
