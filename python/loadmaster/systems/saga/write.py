"""SAGA: the task graph and the network of a plan, or its schedule, as that library reads them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.checks import is_number
from loadmaster.base.errors import InputError
from loadmaster.base.files import write_bytes
from loadmaster.model.cluster import Cluster
from loadmaster.plans.plan import Plan
from loadmaster.readers.planners.saga import META, SUPER_SINK, SUPER_SOURCE, UNLIMITED
from loadmaster.systems.shared.refusal import Reason, refusal

#: Share by which times may differ from one speed per device: floats are divided and multiplied.
_SAME = 1e-9


def saga(plan: Plan, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """The plan's graph and cluster, as a ``ProblemInstance`` of SAGA 2: tasks, dependencies, nodes,
    links.

    A file that was read from SAGA is written with the numbers that it had. SAGA has one speed per
    node: a task takes cost / speed. It has no memory, no latency and no contention. Equal latencies
    on equal links are written as if they were data. Infinite speeds are written as ``Infinity``,
    which SAGA reads.

    Returns
    -------
    dict
        The document: ``name``, ``task_graph``, ``network``.

    Raises
    ------
    InputError
        The plan splits ops, devices do not differ by one factor for all ops, links differ in their
        two directions, or have latencies and are not all equal.

    Examples
    --------
    >>> import loadmaster as lm
    >>> found = lm.instances.load("planted/100x2-ccr1-0")
    >>> document = saga(lm.place(found.graph, found.cluster, "heft"))
    >>> document["network"]["nodes"]
    [{'name': 'gpu0', 'speed': 1.0}, {'name': 'gpu1', 'speed': 1.0}]
    """
    document = {"name": plan.graph.name or "graph", **_instance(plan, "saga")}
    return _written(document, path)


def saga_schedule(plan: Plan, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """The plan as a ``Schedule`` of SAGA 2: the same, and when each task runs where.

    Starts and ends are the simulator's: where transfers wait for each other, SAGA, which knows no
    contention, could begin earlier.

    Returns
    -------
    dict
        The document: ``task_graph``, ``network``, ``mapping``.

    Raises
    ------
    InputError
        As :func:`saga`.

    Examples
    --------
    >>> import loadmaster as lm
    >>> found = lm.instances.load("planted/100x2-ccr1-0")
    >>> document = saga_schedule(lm.place(found.graph, found.cluster, "heft"))
    >>> len(document["mapping"]["gpu0"]) + len(document["mapping"]["gpu1"]) >= 100
    True
    """
    document = _instance(plan, "saga-schedule")
    return _written({**document, "mapping": _mapping(plan, document["task_graph"])}, path)


def _written(document: dict[str, Any], path: str | os.PathLike[str] | None) -> dict[str, Any]:
    if path is not None:
        write_bytes(path, (json.dumps(document, indent=1) + "\n").encode())
    return document


def _instance(plan: Plan, target: str) -> dict[str, Any]:
    """Task graph and network."""
    reasons: list[Reason] = []
    if not plan.program.is_plain:
        raise refusal(plan, target, ["it splits ops: place with --split none"])
    speeds, costs = _speeds(plan, reasons)
    links, extra = _links(plan.cluster, reasons)
    if reasons:
        raise refusal(plan, target, reasons)
    kept = _Kept(plan)
    tasks, pairs = _tasks(plan, kept, costs, extra)
    nodes = zip(plan.cluster.devices, plan.cluster.device_types, strict=True)
    return {
        "task_graph": {
            "tasks": [{"name": name, "cost": cost} for name, cost in tasks],
            "dependencies": [{"source": a, "target": b, "size": s} for a, b, s in pairs],
        },
        "network": {
            "nodes": [{"name": device.name, "speed": speeds[kind]} for device, kind in nodes],
            "edges": [
                {"source": a, "target": b, "speed": kept.speed(a, b, speed)}
                for (a, b), speed in sorted(links.items())
            ],
        },
    }


def _tasks(
    plan: Plan, kept: _Kept, costs: NDArray[np.float64], extra: float
) -> tuple[list[tuple[str, float]], list[tuple[str, str, float]]]:
    """Tasks with their costs and dependencies with their sizes, SAGA's own included."""
    names = _names(plan)
    src, dst, _, size = plan.problem.graph.flows()
    pairs = [
        (names[a], names[b], kept.size(names[a], names[b], n, extra))
        for a, b, n in zip(src.tolist(), dst.tolist(), size.tolist(), strict=True)
    ]
    tasks = [
        (name, kept.cost(name, cost)) for name, cost in zip(names, costs.tolist(), strict=True)
    ]
    _add_ends(tasks, pairs)
    return sorted(tasks), sorted(pairs)


def _names(plan: Plan) -> list[str]:
    """The names of the ops that run."""
    return [plan.graph.names[op] for op in plan.problem.reduced.op_of.tolist()]


class _Kept:
    """The numbers of the file that a graph was read from, as far as they are still its own."""

    def __init__(self, plan: Plan) -> None:
        graph, kept = plan.graph, plan.graph.meta.get(META)
        # The graph's file may have been written by anybody.
        kept = kept if isinstance(kept, Mapping) and is_number(kept.get("scale")) else {}
        self.scale = float(kept.get("scale", 1.0))
        self.scale = self.scale if 0 < self.scale < math.inf else 1.0
        costs, sizes = (_all_numbers(kept.get(key)) for key in ("cost", "size"))
        local = kept.get("local")
        self._local: Mapping[str, float] = local if isinstance(local, Mapping) else {}
        is_whole = len(costs) == graph.n_ops and len(sizes) == graph.n_edges
        names = graph.names
        self._costs = dict(zip(names, costs, strict=True)) if is_whole else {}
        ends = zip(graph.src.tolist(), graph.dst.tolist(), strict=True)
        pairs = [(names[a], names[b]) for a, b in ends]
        self._sizes = dict(zip(pairs, sizes, strict=True)) if is_whole else {}

    def cost(self, name: str, cost: float) -> float:
        """A task's cost: the file's, unless the graph has another one by now."""
        said = self._costs.get(name)
        return said if said is not None and math.isclose(said, cost, rel_tol=_SAME) else cost

    def size(self, a: str, b: str, bytes_: int, extra: float) -> float:
        """A dependency's size, ``extra`` bytes included that stand for the latency."""
        said = self._sizes.get((a, b))
        if said is not None and round(said * self.scale) == bytes_ and not extra:
            return float(said)
        return (bytes_ + (extra if bytes_ else 0.0)) / self.scale

    def speed(self, a: str, b: str, rate: float) -> float:
        """A link's speed."""
        if a == b and is_number(self._local.get(a)):
            return self._local[a]
        return math.inf if rate >= UNLIMITED else rate / self.scale


def _all_numbers(values: Any) -> list[float]:
    """A list of numbers; empty: it is none."""
    return values if isinstance(values, list) and all(map(is_number, values)) else []


def _speeds(plan: Plan, reasons: list[Reason]) -> tuple[list[float], NDArray[np.float64]]:
    """Speed of each device type, and cost of each reduced op."""
    time = plan.problem.time
    types = sorted(set(plan.cluster.device_types))
    speeds = [1.0] * time.shape[1]
    said = {f"speed {value!r}": value for value in _said_speeds(plan)}
    busy = np.flatnonzero((time[:, types] > 0).all(axis=1))
    first, reference = types[0], plan.cluster.types[types[0]].name
    speeds[first] = said.get(reference, 1.0)
    costs = np.asarray(time[:, first] * speeds[first], dtype=np.float64)
    for kind in types[1:]:
        name = plan.cluster.types[kind].name
        ratio = float(time[busy[0], first] / time[busy[0], kind]) if len(busy) else 1.0
        speeds[kind] = said.get(name, ratio * speeds[first])
        takes = costs / speeds[kind]
        off = ~np.isclose(takes, time[:, kind], rtol=_SAME, atol=0.0)
        if off.any():
            names = [plan.graph.names[op] for op in plan.problem.reduced.op_of[off].tolist()]
            said_so = f"{name} is not faster or slower than {reference} by one factor for all ops"
            reasons.append((f"SAGA has one speed per node, and {said_so}", names))
    if not np.isfinite(costs).all():
        reasons.append("an op may not run on every device")
    return speeds, costs


def _said_speeds(plan: Plan) -> list[float]:
    """Speeds in the names of device types, as the reader of SAGA gives them."""
    speeds = []
    for kind in plan.cluster.types:
        word, _, text = kind.name.partition(" ")
        try:
            speeds += [float(text)] if word == "speed" and float(text) > 0 else []
        except ValueError:
            continue
    return speeds


def _links(cluster: Cluster, reasons: list[Reason]) -> tuple[dict[tuple[str, str], float], float]:
    """Bytes per second of each pair of nodes, themselves included, and bytes that latency is."""
    names = [device.name for device in cluster.devices]
    links = {(name, name): math.inf for name in names}
    latencies: set[float] = set()
    torn: list[str] = []
    for i, a in enumerate(names):
        for b in names[:i]:
            there, back = _way(cluster, a, b), _way(cluster, b, a)
            torn += [f"{b} and {a}"] if there != back else []
            links[min(a, b), max(a, b)] = there[0]
            latencies.add(there[1])
    if torn:
        reasons.append(("links differ in their two directions", torn))
    rates = {rate for (a, b), rate in links.items() if a != b}
    if latencies - {0.0} and (len(latencies) > 1 or len(rates) > 1):
        reasons.append("links have latencies and are not all equal: SAGA knows sizes and speeds")
    return links, max(latencies, default=0.0) * max(rates, default=0.0)


def _way(cluster: Cluster, a: str, b: str) -> tuple[float, float]:
    """Bytes per second and latency between two devices; none: no way leads there."""
    try:
        route = cluster.route(a, b)
    except InputError:
        return 0.0, 0.0
    return route.bandwidth, route.latency


def _add_ends(tasks: list[tuple[str, float]], pairs: list[tuple[str, str, float]]) -> None:
    """SAGA wants one first task and one last one: where there are several, its own stand before and
    behind them, as it adds them itself.
    """
    targets, sources = {b for _, b, _ in pairs}, {a for a, _, _ in pairs}
    firsts = [name for name, _ in tasks if name not in targets]
    lasts = [name for name, _ in tasks if name not in sources]
    if len(firsts) > 1:
        tasks.append((SUPER_SOURCE, 0.0))
        pairs += [(SUPER_SOURCE, name, 0.0) for name in firsts]
    if len(lasts) > 1:
        tasks.append((SUPER_SINK, 0.0))
        pairs += [(name, SUPER_SINK, 0.0) for name in lasts]


def _mapping(plan: Plan, graph: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Tasks of each node, by start. SAGA's own first and last tasks run on the first one."""
    seen, ops, names = plan.schedule, plan.problem.reduced.op_of, _names(plan)
    devices = [device.name for device in plan.cluster.devices]
    tasks: dict[str, list[dict[str, Any]]] = {device: [] for device in devices}
    start, finish, where = seen.start[ops], seen.finish[ops], seen.devices[ops].tolist()
    for at in np.lexsort((np.arange(len(ops)), finish, start)).tolist():
        row = {"name": names[at], "start": float(start[at]), "end": float(finish[at])}
        tasks[devices[where[at]]].append({"node": devices[where[at]], **row})
    added = {task["name"] for task in graph["tasks"]} - set(names)
    last = float(finish.max(initial=0.0))
    for name, when, at in ((SUPER_SOURCE, 0.0, 0), (SUPER_SINK, last, len(ops))):
        if name in added:
            row = {"node": devices[0], "name": name, "start": when, "end": when}
            tasks[devices[0]].insert(at, row)
    return tasks
