"""TensorFlow: a plan as a device string per node, and as a GraphDef that has them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from loadmaster.base.errors import InputError, importing
from loadmaster.base.files import read_bytes, write_bytes, written
from loadmaster.base.quoting import command
from loadmaster.plans.plan import Plan
from loadmaster.systems.shared.names import device_names, refuse_parts

#: The attribute that names nodes which a node must be colocated with, and how each name begins.
_CLASS, _LOCATION = "_class", "loc:@"


def tensorflow(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    names: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The plan as TensorFlow's device of each node, by the node's name.

    Parameters
    ----------
    plan : Plan
        Of a graph whose ops have the names of TensorFlow's nodes.
    path : optional
        Where to write it as JSON.
    names : mapping, optional
        Device names to TensorFlow's, such as ``{"gpu0": "/job:worker/task:1/device:GPU:0"}``.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "heft")
    >>> lm.writers.tensorflow(plan)["convolution"]
    '/device:GPU:0'
    """
    refuse_parts(plan, "TensorFlow's graph")
    spelled = device_names(plan, lambda f, n: f"/device:{f.upper()}:{n}", names)
    devices = {
        name: spelled[device]
        for name, device in zip(plan.graph.names, plan.devices.tolist(), strict=True)
    }
    return written(devices, path)


def tensorflow_graph(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    model: Any,
    names: Mapping[str, str] | None = None,
) -> Any:
    """A GraphDef with the plan's devices; nodes that the plan does not have keep theirs.

    Parameters
    ----------
    plan : Plan
    path : optional
        Where to write it, as a binary protobuf.
    model : tf.compat.v1.GraphDef, or path of a binary one
        What the plan's graph was made from; left as it is.
    names
        As for :func:`tensorflow`.

    Returns
    -------
    tf.compat.v1.GraphDef

    Raises
    ------
    InputError
        No op of the plan is a node of it, or nodes that TensorFlow must colocate are apart.

    Examples
    --------
    >>> placed = lm.writers.tensorflow_graph(plan, model=graph_def)      # doctest: +SKIP
    """
    graph_def = _load(model) if isinstance(model, (str, os.PathLike)) else model
    if not hasattr(graph_def, "node") or not hasattr(graph_def, "SerializeToString"):
        raise InputError(f"model: wants a GraphDef, got {type(graph_def).__name__}")
    devices = tensorflow(plan, names=names)
    known = {node.name for node in graph_def.node}
    if not known & set(devices):
        raise InputError("the GraphDef is not the model that the plan is for: no name is the same")
    placed = type(graph_def)()
    placed.CopyFrom(graph_def)
    for node in placed.node:
        if node.name not in devices:
            continue
        node.device = devices[node.name]
        for text in node.attr[_CLASS].list.s if _CLASS in node.attr else ():
            other = text.decode().removeprefix(_LOCATION)
            if other in devices and devices[other] != node.device:
                pin = command("--pin", f"{node.name}={plan.device(other)}")
                raise InputError(
                    f"TensorFlow must colocate {node.name!r} with {other!r}, but the plan has them "
                    f"on {plan.device(node.name)} and {plan.device(other)}: place it again with "
                    f"{pin}, or give both ops one colocation group"
                )
    if path is not None:
        write_bytes(path, placed.SerializeToString(deterministic=True))
    return placed


def _load(path: str | os.PathLike[str]) -> Any:
    with importing("tensorflow", "tensorflow", "reading a GraphDef"):
        from tensorflow.core.framework.graph_pb2 import GraphDef
    from google.protobuf.message import DecodeError

    try:
        return GraphDef.FromString(read_bytes(path))
    except DecodeError:
        raise InputError(f"{os.fspath(path)} is no GraphDef, or a truncated one") from None
