"""A placed graph as DOT and GraphML: every op with its device and times, every edge with its bytes.

For graphs of more ops than a drawing can hold, draw the coarse graph
(:mod:`loadmaster.writers.pictures.coarse`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from loadmaster.base.colours import colour
from loadmaster.base.files import write_bytes
from loadmaster.base.units import format_bytes, format_seconds
from loadmaster.plans.plan import Plan
from loadmaster.plans.words import title
from loadmaster.writers.pictures.graph_files import dot_text, graphml_text


def dot(plan: Plan, path: str | os.PathLike[str] | None = None) -> str:
    """The graph that runs as DOT for Graphviz: a colour per device, times and bytes as labels.

    Raises
    ------
    InputError
        The file cannot be written.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "heft")
    >>> lm.writers.dot(plan).splitlines()[0]
    'digraph "lenet_train_b256 on 2xV100-NVLink" {'
    """
    graph, seconds = plan.program.graph, plan.schedule.finish - plan.schedule.start
    names = [d.name for d in plan.cluster.devices]
    nodes = (
        {
            "label": f"{name}\n{names[device]}" + (f", {format_seconds(took)}" if took else ""),
            "fillcolor": colour(device),
        }
        for name, device, took in zip(
            graph.names, plan.running_devices.tolist(), seconds.tolist(), strict=True
        )
    )
    edges = (
        (src, dst, {"label": format_bytes(size)} if size else {"style": "dashed"})
        for src, dst, size in _edges(plan)
    )
    text = dot_text(title(plan), nodes, edges)
    if path is not None:
        write_bytes(path, text.encode())
    return text


def graphml(plan: Plan, path: str | os.PathLike[str] | None = None) -> str:
    """The graph that runs as GraphML for Gephi, yEd and networkx.

    Nodes have ``name``, ``kind``, ``module``, ``device`` (its name), ``colour``, ``priority``,
    ``start`` and ``finish`` in seconds, and, where it is not the user's graph, ``origin``: the
    user's op that each serves; edges ``bytes``.

    Raises
    ------
    InputError
        The file cannot be written.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "heft")
    >>> lm.writers.graphml(plan).count("<node ")
    104
    """
    graph, ran, program = plan.program.graph, plan.schedule, plan.program
    names = [d.name for d in plan.cluster.devices]
    columns = {
        "name": graph.names,
        "kind": graph.kinds,
        "module": graph.modules,
        "device": [names[device] for device in plan.running_devices],
        "colour": [colour(device) for device in plan.running_devices.tolist()],
        "priority": plan.running_priority.tolist(),
        "start": ran.start.tolist(),
        "finish": ran.finish.tolist(),
    }
    if not program.is_plain:
        columns["origin"] = [program.source.names[op] for op in program.serves.tolist()]
    rows = zip(*columns.values(), strict=True)
    nodes = (dict(zip(columns, row, strict=True)) for row in rows)
    kinds = {"priority": int, "start": float, "finish": float}
    text = graphml_text(
        title(plan),
        {key: kinds.get(key, str) for key in columns},
        nodes,
        {"bytes": int},
        ((src, dst, {"bytes": size}) for src, dst, size in _edges(plan)),
    )
    if path is not None:
        write_bytes(path, text.encode())
    return text


def _edges(plan: Plan) -> Iterator[tuple[int, int, int]]:
    graph = plan.program.graph
    return zip(graph.src.tolist(), graph.dst.tolist(), graph.bytes.tolist(), strict=True)
