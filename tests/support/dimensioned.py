"""Named dimensions by hand, for the graphs of ``trained.linears``: what the rules would say."""

from __future__ import annotations

import numpy as np

import loadmaster as lm
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import PARTIAL, REPLICATE, Cut, Form
from loadmaster.model.shapes import parse_output


def by_hand(graph: lm.OpGraph) -> Dimensions:
    shapes = [parse_output(text)[0][1] for text in graph.outputs]
    factors = [tuple(enumerate(shape)) for shape in shapes]
    forms: dict[Form, int] = {}
    form_of, first, edges = [], [0], []
    for op, name in enumerate(graph.names):
        into = np.flatnonzero((graph.dst == op) & (graph.tensor >= 0)).tolist()
        tensors = tuple(factors[s] for s in graph.src[into].tolist())
        form = Form(_cuts(name, graph.kinds[op], shapes[op], tensors), tensors, (factors[op],))
        form_of.append(forms.setdefault(form, len(forms)))
        edges += into
        first.append(len(edges))
    n = len(edges)
    return Dimensions(
        graph,
        tuple(forms),
        np.array(form_of, dtype=np.int32),
        np.array(first, dtype=np.int64),
        graph.src[edges].astype(np.int32),
        np.zeros(n, dtype=np.int16),
        np.array(edges, dtype=np.int64),
        np.zeros(n, dtype=np.int32),
        ((0, 1),),
        {},
    )


def _cuts(name: str, kind: str, shape, tensors) -> tuple[Cut, ...]:
    if kind == "aten.mm":
        # Which axis of either argument is the row, the column, and what is summed over.
        rows = {"dw": ((1, 0), (0, 1)), "dy": ((0, 1), (1, 0))}.get(name[:2], ((0, 1), (1, 0)))
        (row, left), (right, column) = rows
        found = [
            Cut("row", "batch", shape[0], (row, REPLICATE), (0,)),
            Cut("column", "feature", shape[1], (REPLICATE, column), (1,)),
            Cut("contraction", "feature", tensors[0][left][1], (left, right), (PARTIAL,)),
        ]
        if name.startswith("dy"):
            found[1] = Cut("column", "feature", shape[1], (REPLICATE, 0), (1,))
            found[2] = Cut("contraction", "feature", tensors[0][1][1], (1, 1), (PARTIAL,))
        if name.startswith("dw"):
            found[2] = Cut("contraction", "batch", tensors[0][0][1], (0, 0), (PARTIAL,))
        return tuple(cut for cut in found if cut.size >= 2)
    specs = [(axis, size) for axis, size in enumerate(shape) if size >= 2]
    found = [Cut(f"axis{axis}", "", size, (axis,) * len(tensors), (axis,)) for axis, size in specs]
    if name == "loss":
        found.append(Cut("partial", "", 0, (PARTIAL,), (PARTIAL,), works=False))
    return tuple(found)
