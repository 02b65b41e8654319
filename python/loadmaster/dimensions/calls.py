"""What each call of a graph takes, and the pattern that its kind's rule gives."""

from __future__ import annotations

from typing import Any

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
    n = graph.n_ops
    taken: list[list[Output]] = [[] for _ in range(n)]
    patterns: list[Pattern | None] = [None] * n
    known: dict[tuple[Any, ...], Pattern | None] = {}
    shapes = {text: parse_output(text) for text in set(graph.outputs)}
    kinds, outputs = graph.kinds, graph.outputs
    args = guessed(graph) if graph.args is None else graph.args
    unknown = [op for op in range(n) if args[op] is None and not graph.placeholder[op]]
    if unknown:
        reads = read_by_edges(graph)
        for op in unknown:
            taken[op] = [(source, 0) for source in reads[op]]
    for op in range(n):
        call = args[op]
        if call is None:
            continue
        kind = kinds[op]
        sources: list[int] = []
        alike = tuple([_alike(part, sources) for part in call])
        if kind == PICK:
            taken[op] = [(source, call[0][1]) for source in sources]
            continue
        taken[op] = [(source, 0) for source in sources]
        key = (kind, alike, outputs[op], *[_seen(graph, source) for source in sources])
        if key not in known:
            inputs: list[Shape] = [shapes[text][at] for text, at in key[3:]]
            known[key] = pattern(kind, call, inputs, shapes[outputs[op]])
        patterns[op] = known[key]
    return taken, patterns


def _seen(graph: OpGraph, source: int) -> tuple[str, int]:
    """The text with an op's shapes, and which of them a reader sees."""
    return graph.outputs[source], 0


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
