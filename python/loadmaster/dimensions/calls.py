"""The tensors that each call of a graph takes, and the pattern that its kind's rule gives."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from loadmaster.dimensions.binding import pattern
from loadmaster.dimensions.form import Meaning, Pattern
from loadmaster.dimensions.guessed import guessed, read_by_edges
from loadmaster.dimensions.tensors import PICK, Output
from loadmaster.model.arguments import Call
from loadmaster.model.graph import OpGraph
from loadmaster.model.shapes import Shape, parse_output

#: Before kinds of TensorFlow where rules speak of them: ONNX has other ops of the same names.
TENSORFLOW = "tensorflow."

#: Stands for a tensor in what is alike of two calls.
_TENSOR = "<tensor>"


#: Keyword of a call whose tensors all begin with so many axes of a mesh, which the call is mapped
#: over: its kind's rule is of what is left.
MAPPED = "mapped_axes"

#: Begins the words of dimensions that are such axes.
MAPPED_WORD = "mapped"

#: Keyword of a call that sends along one of these axes: the axis, and pairs of places from which
#: and to which it sends, or by how many places every one does, round the end.
SENDS = "sends"

#: Keyword of a view that says how an array is to lie: the axes of a mesh with their sizes, those
#: that cut each axis of the array (:data:`OPEN`: any more may), and those that may cut none.
LIES = "lies"

#: Stands for axes of a mesh that may cut an axis of an array, though nothing says that they do.
OPEN = "?"


def keyword(graph: OpGraph, op: int, name: str) -> Any:
    """A keyword of an op's call; None: it has none of this name, or nobody knows."""
    call = graph.args[op] if graph.args is not None else None
    return call[1].get(name) if call and len(call) > 1 else None


def is_mapped(graph: OpGraph) -> bool:
    """True if a program maps some ops over a mesh by hand."""
    return any(keyword(graph, op, MAPPED) is not None for op in range(graph.n_ops))


def calls(graph: OpGraph) -> tuple[list[list[Output]], list[Pattern | None]]:
    """Per op, the outputs that its call takes, in order, and its pattern; None: no rule. O(V + E).

    What two ops were called with is compared but for the ops that made their tensors, so that each
    rule is asked once for calls that are alike. Of a graph that says no arguments, those that sizes
    tell are taken. An op of which nobody knows its arguments takes what its edges say, and so does
    one that is said to take what no edge brings.
    """
    taken: list[list[Output]] = [[] for _ in range(graph.n_ops)]
    patterns: list[Pattern | None] = [None] * graph.n_ops
    known: dict[tuple[Any, ...], Pattern | None] = {}
    shapes = {text: parse_output(text) for text in set(graph.outputs)}
    kinds, outputs, placeholder = graph.kinds, graph.outputs, graph.placeholder.tolist()
    prefix = TENSORFLOW if str(graph.meta.get("framework")).startswith("tensorflow") else ""
    reads = _Reads(graph, shapes)
    unknown = []
    for op, call in enumerate(guessed(graph) if graph.args is None else graph.args):
        if placeholder[op]:
            continue
        sources: list[int] = []
        alike = tuple([_alike(part, sources) for part in call or ()])
        which = call[0][1:2] if call and kinds[op] == PICK else []
        some = [reads.output(source, op, *which) for source in sources]
        if call is None or None in some:
            unknown.append(op)
            continue
        taken[op] = some  # type: ignore[assignment]
        if kinds[op] != PICK:
            key = (kinds[op], alike, outputs[op], *[(outputs[at], i) for at, i in taken[op]])
            if key not in known:
                inputs: list[Shape] = [shapes[text][i] for text, i in key[3:]]
                known[key] = _read(prefix + kinds[op], call, inputs, shapes[outputs[op]])
            patterns[op] = known[key]
    if unknown:
        by_edges = read_by_edges(graph)
        for op in unknown:
            taken[op] = [out for at in by_edges[op] if (out := reads.output(at, op)) is not None]
    return taken, patterns


def _read(
    kind: str, call: Call, inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> Pattern | None:
    """The pattern of a call; None: there is no rule for it, or the rule cannot read it.

    What ops were called with comes from files of others. A call that is not as its kind's are is
    whole, as one without a rule is, and is listed with these.
    """
    try:
        mapped = call[1].get(MAPPED, 0) if len(call) > 1 else 0
        if mapped:
            of_parts = pattern(kind, call, _parts(inputs, mapped), _parts(outputs, mapped))
            sends = call[1].get(SENDS)
            sizes = inputs[0][1] if sends else None
            return mapped_over(of_parts, mapped, _pairs(sends, sizes) if sends and sizes else {})
        return pattern(kind, call, inputs, outputs)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
        return None


def _parts(shapes: Sequence[Shape], n: int) -> list[Shape]:
    return [(dtype, None if sizes is None else sizes[n:]) for dtype, sizes in shapes]


def _pairs(said: Any, sizes: Sequence[int]) -> dict[int, tuple[tuple[int, int], ...]]:
    """The pairs of places that a call sends between, by the axis that it sends along."""
    axis, sends = said
    if isinstance(sends, int):
        return {axis: tuple((at, (at + sends) % sizes[axis]) for at in range(sizes[axis]))}
    return {axis: tuple((source, target) for source, target in sends)}


def mapped_over(
    pattern: Pattern | None,
    n: int,
    sends: Mapping[int, tuple[tuple[int, int], ...]] = MappingProxyType({}),
) -> Pattern | None:
    """The pattern of a call that is mapped over ``n`` first axes of all its tensors, and ``sends``
    between places of some of them.

    >>> one = Pattern(("axis0",), (Meaning(),), ((0,),), ((0,),))
    >>> mapped_over(one, 1).inputs, mapped_over(one, 1).words
    (((1, 0),), ('axis0', 'mapped0'))
    """
    if pattern is None:
        return None
    first = len(pattern.words)
    # The axes of a reshape are joined in their order.
    lead = (-1,) * n if pattern.is_reshape else tuple(range(first, first + n))
    new = 0 if pattern.is_reshape else n
    return replace(
        pattern,
        words=pattern.words + tuple(f"{MAPPED_WORD}{i}" for i in range(new)),
        meanings=pattern.meanings + tuple(Meaning(sends=sends.get(i, ())) for i in range(new)),
        inputs=tuple(None if axes is None else (*lead, *axes) for axes in pattern.inputs),
        outputs=tuple((*lead, *axes) for axes in pattern.outputs),
        pieces=tuple(replace(piece, axis=piece.axis + n) for piece in pattern.pieces),
    )


class _Reads:
    """The output of an op that another reads, where nothing but sizes says that."""

    def __init__(self, graph: OpGraph, shapes: Mapping[str, list[Shape]]) -> None:
        self._n, self._outputs = graph.n_ops, graph.outputs
        self._placeholder, self._view = graph.placeholder.tolist(), graph.view.tolist()
        pairs = (graph.src * self._n + graph.dst).tolist()
        self._carried = dict(zip(reversed(pairs), reversed(graph.bytes.tolist()), strict=True))
        self._sizes = {
            text: [_n_bytes(shape) for shape in parsed]
            for text, parsed in shapes.items()
            if len(parsed) > 1
        }

    def output(self, source: int, op: int, which: Any = None) -> Output | None:
        """The output that an op takes of another: ``which`` output, or the first that is as large
        as what the edge carries, or else the first; None: no edge leads there, or it has no such
        output. The shape of a view may be a constant to which no edge leads.
        """
        carried = self._carried.get(source * self._n + op)
        if carried is None and not (self._placeholder[source] and self._view[op]):
            return None
        sizes = self._sizes.get(self._outputs[source], [carried])
        if which is None:
            return source, sizes.index(carried) if carried in sizes else 0
        return (source, which) if type(which) is int and 0 <= which < len(sizes) else None


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
