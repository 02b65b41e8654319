"""Pictures of a coarse graph: DOT for Graphviz, GraphML for Gephi, yEd and networkx.

An op's size says how long it takes, its colour on which device it is, an edge's width what it
carries.
"""

from __future__ import annotations

import math
import os

import numpy as np
from numpy.typing import ArrayLike

from loadmaster.base.colours import colour
from loadmaster.base.errors import InputError
from loadmaster.base.files import write_bytes
from loadmaster.base.units import format_bytes, format_seconds
from loadmaster.judge.coarsening import Coarse
from loadmaster.writers.pictures.graph_files import dot_text, graphml_text


def to_dot(coarse: Coarse, devices: ArrayLike | None = None) -> str:
    """The coarse graph as DOT.

    Parameters
    ----------
    coarse : Coarse
    devices : int [n_groups], optional
        Device per group, for colours.

    Raises
    ------
    InputError
        Devices of the wrong length, or that are no indices.

    Examples
    --------
    >>> import loadmaster as lm
    >>> from loadmaster.writers.pictures.coarse import to_dot
    >>> to_dot(lm.coarsen(lm.read("example:lenet"), groups=5)).splitlines()[0]
    'digraph "lenet_train_b256 in 5 groups" {'
    """
    whole = max(coarse.problem.op_time.sum(), 1e-300)
    nodes = (
        {
            "label": f"{name}\n{format_seconds(seconds)}",
            "fillcolor": colour(device),
            "width": round(0.6 + 3 * math.sqrt(seconds / whole), 2),
        }
        for name, seconds, device in _nodes(coarse, devices)
    )
    edges = (
        (
            src,
            dst,
            {
                "label": f"{format_bytes(size)} in {tensors}",
                "penwidth": round(1 + math.log10(1 + size / 1e6), 2),
            },
        )
        for src, dst, tensors, size in _edges(coarse)
    )
    return dot_text(coarse.graph.name, nodes, edges)


def to_graphml(coarse: Coarse, devices: ArrayLike | None = None) -> str:
    """The coarse graph as GraphML; arguments and errors as for :func:`to_dot`.

    Nodes have ``name``, ``seconds``, ``device`` (-1: none) and ``colour``; edges ``tensors`` and
    ``bytes``.

    Examples
    --------
    >>> import loadmaster as lm
    >>> from loadmaster.writers.pictures.coarse import to_graphml
    >>> to_graphml(lm.coarsen(lm.read("example:lenet"), groups=5)).count("<node ")
    5
    """
    nodes = (
        {"name": name, "seconds": seconds, "device": device, "colour": colour(device)}
        for name, seconds, device in _nodes(coarse, devices)
    )
    edges = (
        (src, dst, {"tensors": tensors, "bytes": size})
        for src, dst, tensors, size in _edges(coarse)
    )
    return graphml_text(
        coarse.graph.name,
        {"name": str, "seconds": float, "device": int, "colour": str},
        nodes,
        {"tensors": int, "bytes": int},
        edges,
    )


def write(coarse: Coarse, path: str | os.PathLike[str], devices: ArrayLike | None = None) -> None:
    """Writes DOT or GraphML, by the file's suffix.

    Raises
    ------
    InputError
        Another suffix than ``.dot``, ``.gv`` and ``.graphml``; a file that cannot be written.
    """
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    makers = {".dot": to_dot, ".gv": to_dot, ".graphml": to_graphml}
    if suffix not in makers:
        raise InputError(f"{path}: wants a name that ends in {', '.join(makers)}")
    write_bytes(path, makers[suffix](coarse, devices).encode())


def _nodes(coarse: Coarse, devices: ArrayLike | None) -> list[tuple[str, float, int]]:
    n = coarse.report.groups
    if devices is None:
        chosen = np.full(n, -1)
    else:
        chosen = np.asarray(devices)
        if chosen.shape != (n,) or chosen.dtype.kind not in "iu" or chosen.min(initial=0) < 0:
            raise InputError(f"devices: wants {n} device indices, one per group")
    seconds = coarse.sum(coarse.problem.op_time)
    return list(zip(coarse.graph.names[:n], seconds.tolist(), chosen.tolist(), strict=True))


def _edges(coarse: Coarse) -> list[tuple[int, int, int, int]]:
    flows: tuple[np.ndarray, ...] = coarse.contracted.flows()
    return list(zip(*(column.tolist() for column in flows), strict=True))
