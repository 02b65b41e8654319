"""Graphs and clusters as users give them: themselves, files, examples, presets, instances."""

from __future__ import annotations

import os
from typing import Any, Literal

from loadmaster.base.errors import InputError
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph
from loadmaster.readers.formats.saga import is_saga
from loadmaster.readers.planners import saga
from loadmaster.readers.reading import INSTANCE, read
from loadmaster.readers.registry import File

#: Forms of a graph: itself, a path, ``example:NAME`` or ``instance:NAME``.
GraphLike = OpGraph | str | os.PathLike[str]

#: Forms of a cluster: itself, a path of a TOML file or of one of SAGA, the name of a preset, or
#: ``instance:NAME``.
ClusterLike = Cluster | str | os.PathLike[str]

#: Answers to a graph that does not fit: an error, or a plan all the same.
OnOom = Literal["error", "best_effort"]


def as_graph(source: Any) -> OpGraph:
    """The graph, or what a file or an example has.

    Raises
    ------
    InputError
        What :func:`loadmaster.read` refuses, or a model, which has to be captured with inputs.

    Examples
    --------
    >>> as_graph("example:lenet").n_ops
    104
    """
    if isinstance(source, OpGraph):
        return source
    if any(base.__module__.startswith("torch.nn.") for base in type(source).__mro__):
        name = type(source).__name__
        is_graph = any(base.__name__ == "GraphModule" for base in type(source).__mro__)
        if not is_graph:
            raise InputError(
                f"{name} is a model, not its graph: give lm.capture(model, inputs), or for a "
                "training step lm.capture(model, inputs, optimizer=torch.optim.AdamW)"
            )
    return read(source)


def as_cluster(source: Any) -> Cluster:
    """The cluster, or that of a TOML file, a file of SAGA, a preset or an instance.

    Raises
    ------
    InputError
        No cluster, file, preset or instance.

    Examples
    --------
    >>> as_cluster("4xV100-PCIe").n_devices
    4
    """
    if isinstance(source, Cluster):
        return source
    if isinstance(source, str) and source.startswith(INSTANCE):
        from loadmaster.readers import instances

        return instances.load(source.removeprefix(INSTANCE)).cluster
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        return saga.cluster(path) if has_network(path) else Cluster.named(path)
    raise InputError(
        f"a cluster is a Cluster, the name of a preset or the path of a TOML file, not a "
        f"{type(source).__name__}"
    )


def has_network(path: str) -> bool:
    """True for a file of SAGA, which holds a network beside its graph.

    >>> has_network("4xV100-PCIe")
    False
    """
    return os.path.isfile(path) and is_saga(File.of(path))
