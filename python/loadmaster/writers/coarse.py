"""Pictures of a coarse graph: DOT for Graphviz, GraphML for Gephi, yEd and networkx.

An op's size says how long it takes, its colour on which device it is, an edge's width what it
carries.
"""

from __future__ import annotations

import math
import os
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from numpy.typing import ArrayLike

from loadmaster.coarsening import Coarse
from loadmaster.errors import InputError
from loadmaster.files import write_bytes
from loadmaster.units import format_bytes, format_seconds

#: A colour per device, told apart by most people (Okabe and Ito); more devices go round again.
COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#bbbbbb")
NO_DEVICE = "#eeeeee"


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
    >>> from loadmaster.writers.coarse import to_dot
    >>> to_dot(lm.coarsen(lm.read("example:lenet"), groups=5)).splitlines()[0]
    'digraph "lenet_train_b256 in 5 groups" {'
    """
    lines = [f"digraph {_quoted(coarse.graph.name)} {{", "  node [shape=ellipse, style=filled];"]
    for g, (name, seconds, device) in enumerate(_nodes(coarse, devices)):
        label = _quoted(f"{name}\n{format_seconds(seconds)}")
        width = 0.6 + 3 * math.sqrt(seconds / max(coarse.problem.op_time.sum(), 1e-300))
        lines.append(
            f"  {g} [label={label}, fillcolor={_quoted(_colour(device))}, width={width:.2f}];"
        )
    for src, dst, tensors, size in _edges(coarse):
        pen = 1 + math.log10(1 + size / 1e6)
        label = _quoted(f"{format_bytes(size)} in {tensors}")
        lines.append(f"  {src} -> {dst} [label={label}, penwidth={pen:.2f}];")
    return "\n".join([*lines, "}", ""])


def to_graphml(coarse: Coarse, devices: ArrayLike | None = None) -> str:
    """The coarse graph as GraphML; arguments and errors as for :func:`to_dot`.

    Nodes have ``name``, ``seconds``, ``device`` (-1: none) and ``colour``; edges ``tensors`` and
    ``bytes``.

    Examples
    --------
    >>> import loadmaster as lm
    >>> from loadmaster.writers.coarse import to_graphml
    >>> to_graphml(lm.coarsen(lm.read("example:lenet"), groups=5)).count("<node ")
    5
    """
    keys = [
        ("node", "name", "string"),
        ("node", "seconds", "double"),
        ("node", "device", "int"),
        ("node", "colour", "string"),
        ("edge", "tensors", "int"),
        ("edge", "bytes", "long"),
    ]
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">',
        *(
            f'  <key id="{name}" for="{what}" attr.name="{name}" attr.type="{kind}"/>'
            for what, name, kind in keys
        ),
        f'  <graph id={quoteattr(_printable(coarse.graph.name))} edgedefault="directed">',
    ]

    def data(**values: object) -> str:
        return "".join(
            f'<data key="{k}">{escape(_printable(str(v)))}</data>' for k, v in values.items()
        )

    for g, (name, seconds, device) in enumerate(_nodes(coarse, devices)):
        values = data(name=name, seconds=seconds, device=device, colour=_colour(device))
        lines.append(f'    <node id="{g}">{values}</node>')
    for src, dst, tensors, size in _edges(coarse):
        values = data(tensors=tensors, bytes=size)
        lines.append(f'    <edge source="{src}" target="{dst}">{values}</edge>')
    return "\n".join([*lines, "  </graph>", "</graphml>", ""])


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


def _colour(device: int) -> str:
    return NO_DEVICE if device < 0 else COLOURS[device % len(COLOURS)]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _printable(text: str) -> str:
    """Without control characters, which XML cannot hold."""
    return "".join(c if c >= " " or c in "\t\n" else " " for c in text)
