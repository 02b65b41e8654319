"""Arguments of calls of ATen ops, from sizes alone: for graphs that do not say.

Several calls may fit the sizes of an op (:mod:`.fitting`). It is given one of them if every way to
cut that call is a way to cut each of the others. Else nobody knows what it was called with, and it
is whole. There is one convention: a softmax is along its last axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from loadmaster.dimensions.binding import pattern
from loadmaster.dimensions.fitting import fitting
from loadmaster.dimensions.form import Pattern
from loadmaster.dimensions.rules import rule_of
from loadmaster.dimensions.tensors import PICK
from loadmaster.model.arguments import Call, renumbered, tensors
from loadmaster.model.graph import OpGraph
from loadmaster.model.shapes import Shape, parse_output


def guessed(graph: OpGraph) -> list[Call | None]:
    """An entry per op as in :attr:`OpGraph.args`; None where it cannot be told. O(V + E).

    Edges say what each op reads, in the order of its arguments. A tensor that was given twice has
    one edge, and so has one beside numbers.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph = lm.OpGraph(
    ...     {"name": ["x", "sum"], "kind": ["input", "aten.sum.dim_IntList"],
    ...      "output": ["f32[4,8]", "f32[4]"]},
    ...     {"src": [0], "dst": [1], "tensor": [0]})
    >>> guessed(graph)
    [None, [[{'op': 0}, [1], False]]]
    """
    reads = read_by_edges(graph)
    picks = _picks(graph, reads)
    calls: list[Call | None] = []
    for op, (kind, sources) in enumerate(zip(graph.kinds, reads, strict=True)):
        if kind == PICK:
            calls.append([[{"op": sources[0]}, picks[op]]] if op in picks else None)
        elif graph.placeholder[op] or not all(_is_one(graph, source, picks) for source in sources):
            calls.append(None)
        else:
            seen = tuple([graph.outputs[source] for source in sources])
            call = _told(kind, seen, graph.outputs[op])
            calls.append(None if call is None else renumbered(call, sources.__getitem__))
    return calls


def read_by_edges(graph: OpGraph) -> list[list[int]]:
    """Per op, the ops whose tensors it reads, in the order of the edges."""
    reads: list[list[int]] = [[] for _ in range(graph.n_ops)]
    data = np.ones(graph.n_edges, dtype=bool) if graph.tensor is None else graph.tensor >= 0
    for src, dst in zip(graph.src[data].tolist(), graph.dst[data].tolist(), strict=True):
        reads[dst].append(src)
    return reads


def _is_one(graph: OpGraph, source: int, picks: Mapping[int, int]) -> bool:
    """True if what an op gives is known to be one tensor."""
    return source in picks if graph.kinds[source] == PICK else ";" not in graph.outputs[source]


def _picks(graph: OpGraph, reads: Sequence[Sequence[int]]) -> dict[int, int]:
    """The output that each ``getitem`` takes. Those that look alike are all taken, in order; or
    else nobody knows.
    """
    takers: dict[tuple[int, str], list[int]] = {}
    for op, kind in enumerate(graph.kinds):
        if kind == PICK and len(reads[op]) == 1:
            takers.setdefault((reads[op][0], graph.outputs[op]), []).append(op)
    picks: dict[int, int] = {}
    for (source, output), ops in takers.items():
        alike = [i for i, text in enumerate(graph.outputs[source].split(";")) if text == output]
        if len(alike) == len(ops):
            picks.update(zip(ops, alike, strict=True))
    return picks


@lru_cache(maxsize=65536)
def _told(kind: str, seen: tuple[str, ...], output: str) -> Call | None:
    """The call of an op, with its tensors numbered as it reads them."""
    rule = rule_of(kind)
    if rule is None:
        return None
    inputs: list[Shape] = [parse_output(text)[0] for text in seen]
    outputs = parse_output(output)
    calls: list[tuple[Call, _Ways]] = []
    for call in fitting(kind, rule, inputs, outputs):
        read = list(tensors(call))
        allowed = pattern(kind, call, [inputs[i] for i in read], outputs)
        if allowed is not None:
            calls.append((call, _ways(allowed, read)))
    return next((call for call, ways in calls if all(ways <= other for _, other in calls)), None)


_Ways = frozenset[Any]


def _ways(allowed: Pattern, read: Sequence[int]) -> _Ways:
    """All that a pattern allows: its dimensions, partial sums, and values that do not matter.

    ``read`` are the tensors of the call. If one stands where sums are partial and where they are
    not, it must be both, so that it is right whatever the call was.
    """
    places: dict[int, set[tuple[bool, int, int]]] = {d: set() for d in range(len(allowed.words))}
    ways: set[Any] = {"reshape"} if allowed.is_reshape else set()
    for number, axes in zip(read, allowed.inputs, strict=True):
        if axes is None:
            ways.add(number)
        for axis, d in enumerate(axes or ()):
            if d >= 0:
                places[d].add((True, number, axis))
    for number, axes in enumerate(allowed.outputs):
        for axis, d in enumerate(axes):
            if d >= 0:
                places[d].add((False, number, axis))
    ways |= {(allowed.meanings[d], frozenset(place)) for d, place in places.items()}
    for several in allowed.linear:
        partial = {read[i] for i in several}
        if partial.isdisjoint(read[i] for i in range(len(read)) if i not in several):
            ways.add(frozenset(partial))
    return frozenset(ways)
