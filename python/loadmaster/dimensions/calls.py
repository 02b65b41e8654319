"""What each call of a graph takes, and the pattern that its kind's rule gives."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from loadmaster.dimensions.binding import pattern
from loadmaster.dimensions.form import Pattern
from loadmaster.dimensions.guessed import guessed, read_by_edges
from loadmaster.dimensions.tensors import PICK, Output
from loadmaster.model.graph import OpGraph
from loadmaster.model.shapes import Shape, parse_output

#: Stands for a tensor in what is alike of two calls.
_TENSOR = "<tensor>"


def calls(graph: OpGraph) -> tuple[list[list[Output]], list[Pattern | None]]:
    """Per op, the outputs that its call takes, in order, and its pattern; None: no rule. O(V + E).

    What two ops were called with is compared but for the ops that made their tensors, so that each
    rule is asked once for calls that are alike. Of a graph that says no arguments, those that sizes
    tell are taken. An op of which nobody knows its arguments takes what its edges say.
    """
    taken: list[list[Output]] = [[] for _ in range(graph.n_ops)]
    patterns: list[Pattern | None] = [None] * graph.n_ops
    known: dict[tuple[Any, ...], Pattern | None] = {}
    shapes = {text: parse_output(text) for text in set(graph.outputs)}
    kinds, outputs = graph.kinds, graph.outputs
    several = _Several(graph, shapes)
    args = guessed(graph) if graph.args is None else graph.args
    unknown = [op for op, call in enumerate(args) if call is None and not graph.placeholder[op]]
    if unknown:
        reads = read_by_edges(graph)
        for op in unknown:
            taken[op] = [(source, 0) for source in reads[op]]
    for op, call in enumerate(args):
        if call is None:
            continue
        sources: list[int] = []
        alike = tuple([_alike(part, sources) for part in call])
        if kinds[op] == PICK:
            taken[op] = [(source, call[0][1]) for source in sources]
            continue
        taken[op] = [several.taken(source, op) for source in sources]
        key = (kinds[op], alike, outputs[op], *[(outputs[at], i) for at, i in taken[op]])
        if key not in known:
            inputs: list[Shape] = [shapes[text][at] for text, at in key[3:]]
            known[key] = pattern(kinds[op], call, inputs, shapes[outputs[op]])
        patterns[op] = known[key]
    return taken, patterns


class _Several:
    """Which output of an op that has several a call takes, where nothing but sizes says it."""

    def __init__(self, graph: OpGraph, shapes: Mapping[str, list[Shape]]) -> None:
        texts = {text for text, parsed in shapes.items() if len(parsed) > 1}
        self._sizes = {text: [_n_bytes(shape) for shape in shapes[text]] for text in texts}
        self._outputs = graph.outputs
        self._bytes: dict[tuple[int, int], int] = {}
        many = np.fromiter(map(texts.__contains__, graph.outputs), bool, graph.n_ops)
        for edge in np.flatnonzero(many[graph.src] & (graph.bytes > 0)).tolist():
            pair = (int(graph.src[edge]), int(graph.dst[edge]))
            self._bytes.setdefault(pair, int(graph.bytes[edge]))

    def taken(self, source: int, op: int) -> Output:
        """The first output that is as large as what the edge carries, else the first."""
        sizes = self._sizes.get(self._outputs[source])
        carried = self._bytes.get((source, op)) if sizes else None
        return source, sizes.index(carried) if sizes and carried in sizes else 0


def _n_bytes(shape: Shape) -> int | None:
    """Bytes of an output, if its dtype has its number of bits in its name, as in "f8e4m3"."""
    dtype, sizes = shape
    bits = re.search(r"\d+", dtype)
    return math.prod(sizes) * int(bits[0]) // 8 if bits and sizes is not None else None


def _alike(value: Any, sources: list[int]) -> Any:
    """An argument without the ops whose tensors it has; these are added to ``sources``."""
    if type(value) is dict:
        if len(value) == 1 and "op" in value:
            sources.append(value["op"])
            return _TENSOR
        return tuple([(key, _alike(item, sources)) for key, item in value.items()])
    if type(value) is list:
        return tuple([_alike(item, sources) for item in value])
    return value
