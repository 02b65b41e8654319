"""Model Explorer (Google AI Edge): a plan as node data over a model, and as a graph of its own.

Model Explorer matches node data to a node by the node's id or by the name of one of its output
tensors. So node data fits any model whose nodes have the names of the plan's ops, and always fits
the plan's own graph.
"""

from __future__ import annotations

import os
from typing import Any

from loadmaster.base.colours import colour
from loadmaster.base.files import written
from loadmaster.base.units import format_bytes, format_seconds
from loadmaster.plans.plan import Plan
from loadmaster.plans.words import title


def model_explorer(plan: Plan, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """The device of every op as custom node data, in the colours of the devices; of an op that has
    parts, those of all of them.

    Parameters
    ----------
    plan : Plan
    path : optional
        Where to write it as JSON: load the model in Model Explorer, then this by "Custom node
        data".

    Raises
    ------
    InputError
        The file cannot be written.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "heft")
    >>> lm.writers.model_explorer(plan)["results"]["convolution"]
    {'value': 'gpu0', 'bgColor': '#56b4e9'}
    """
    document = {
        "name": f"device ({plan.method})",
        "results": {
            name: {"value": _where(plan, i), "bgColor": colour(int(plan.devices[i]))}
            for i, name in enumerate(plan.graph.names)
        },
    }
    return written(document, path)


def _where(plan: Plan, op: int) -> str:
    """The device of one of the user's ops, or the devices of its parts."""
    return ", ".join(dict.fromkeys(part.device for part in plan.parts(op)))


def model_explorer_graph(plan: Plan, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """The plan's graph for Model Explorer: modules as layers, device and times as attributes.

    The ids of its nodes are the ops' names, so that :func:`model_explorer` fits it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "heft")
    >>> len(lm.writers.model_explorer_graph(plan)["graphs"][0]["nodes"])
    104
    """
    graph, ran = plan.graph, plan.schedule
    incoming: list[list[dict[str, str]]] = [[] for _ in graph.names]
    for src, dst in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        incoming[dst].append({"sourceNodeId": graph.names[src]})
    nodes = []
    for i, name in enumerate(graph.names):
        parts = plan.program.parts_of(i)
        facts = {
            "op": name,
            "device": _where(plan, i),
            "start": format_seconds(float(ran.start[parts].min())),
            "takes": format_seconds(float((ran.finish[parts] - ran.start[parts]).sum())),
            "output": graph.outputs[i] or format_bytes(int(graph.output_bytes[i])),
        }
        nodes.append(
            {
                "id": name,
                "label": graph.kinds[i] or name,
                "namespace": graph.modules[i].replace(".", "/"),
                "attrs": [{"key": key, "value": value} for key, value in facts.items()],
                "incomingEdges": incoming[i],
            }
        )
    document = {"label": title(plan), "graphs": [{"id": graph.name or "graph", "nodes": nodes}]}
    return written(document, path)
