"""The structure of a stack of layers: one width all the way, alone in its model, read from words.

Systems that run models of their own kind build the model again from a few numbers, such as the
number of layers and their width. These functions say in words why that cannot be the model.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.graph import INPUT
from loadmaster.model.shapes import parse_output
from loadmaster.rules.attention import attention
from loadmaster.rules.layer_list import LayerList, lists_of, longest, patterns
from loadmaster.rules.module_cuts import ModuleCuts, Span

Mask = NDArray[np.bool_]


def stacks(cuts: ModuleCuts) -> dict[str, tuple[int, ...]]:
    """The numbers of layers of every list of modules in which there is attention.

    >>> import loadmaster as lm
    >>> list(stacks(ModuleCuts(lm.read("example:gpt3-330m"))))
    ['h']
    """
    is_attention = np.isin(cuts.order, attention(cuts.graph, cuts.order.tolist()))
    lists = lists_of(cuts)
    return {name: n for name, n in lists.items() if is_attention[_inside(cuts, name)].any()}


def not_in_line(layers: LayerList) -> str:
    """The first layer of which nothing goes to the next, or which has another width than those
    before it, in words; empty: there is none.

    Examples
    --------
    >>> import loadmaster as lm
    >>> not_in_line(LayerList.of(lm.read("example:gpt3-330m")))
    ''
    """
    named = [f"{layers.name}.{number}".lstrip(".") for number in layers.numbers]
    before = 0
    for name, span in zip(named[:-1], _passed_on(layers), strict=True):
        if span is None:
            return f"the layer behind {name!r} reads nothing of it"
        width = _width(layers, span)
        if before and width and width != before:
            return (
                f"its layers are not of one width: {before} features go into {name!r}, and {width} "
                "come out"
            )
        before = width or before
    return ""


def _passed_on(layers: LayerList) -> list[Span | None]:
    """Of each layer but the last, the largest of the tensors that the next one reads of it, or of
    what stands between them.
    """
    layer, size = layers.layer, layers.cuts.graph.output_bytes
    passed: list[Span | None] = [None] * (len(layers) - 1)
    for span in _computed(layers.cuts):
        maker, *readers = span.places
        at = int(layer[maker])
        if maker >= layers.first and at + 1 in layer[readers]:
            other = passed[at]
            if other is None or size[span.op] > size[other.op]:
                passed[at] = span
    return passed


def _width(layers: LayerList, span: Span) -> int:
    """The size of the last axis of a tensor; 0: the graph does not say."""
    sizes = parse_output(layers.cuts.graph.outputs[span.op])[0][1] or ()
    return int(sizes[-1]) if sizes else 0


def not_alone(cuts: ModuleCuts, layers: str | None) -> str:
    """The way in which a model has several stacks of layers with attention; empty: it has one, or
    others only come before the first layer or behind the last.

    Parameters
    ----------
    cuts : ModuleCuts
    layers : str or None
        The stack that counts; the longest if None.
    """
    every = stacks(cuts)
    best = [layers] if layers is not None else longest(every)
    if not best:
        return ""
    one = best[0]
    alike = [name for name in every if set(patterns(name)) & set(patterns(one))]
    if len(alike) > 1:
        return f"it has a stack of layers in each of {', '.join(map(repr, alike))}"
    # Lists that differ in a number are parts of layers, or of stages.
    n_alike = Counter(pattern for name in every for pattern in patterns(name))
    others = (
        name
        for name, numbers in every.items()
        if len(numbers) > 1 and not (_is_within(name, one) or _is_within(one, name))
        if all(n_alike[pattern] == 1 for pattern in patterns(name))
    )
    return next(filter(None, (_beside(cuts, one, other) for other in others)), "")


def _beside(cuts: ModuleCuts, one: str, other: str) -> str:
    """The way in which two stacks do not simply follow each other; empty: they do."""
    behind = {name: _behind(cuts, _inside(cuts, name)) for name in (one, other)}
    for first, second in ((other, one), (one, other)):
        if (behind[first] & _inside(cuts, second)).any():
            break
    else:
        return f"it has two stacks of layers side by side, {one!r} and {other!r}"
    only = behind[first] & ~behind[second]
    start, readers = len(second) + 1, set[str]()
    for span in _computed(cuts):
        if only[span.places[0]]:
            paths = (cuts.module_of[place] for place in span.places[1:])
            readers |= {p[start:].partition(".")[0] for p in paths if _is_within(p, second)}
    if len(readers) < 2:
        return ""
    return (
        f"it is an encoder and a decoder: the layers {second!r} each read what the layers "
        f"{first!r} compute"
    )


def words_reach(layers: LayerList) -> bool:
    """True if an input of whole numbers comes to the layers, or the graph does not say what inputs
    are.

    >>> import loadmaster as lm
    >>> words_reach(LayerList.of(lm.read("example:gpt3-330m")))
    True
    """
    cuts, graph = layers.cuts, layers.cuts.graph
    inputs = np.flatnonzero(graph.stands_for == INPUT).tolist()
    kinds = {op: parse_output(graph.outputs[op])[0][0] for op in inputs}
    if not all(kinds.values()) or not kinds:
        return True
    begin = np.zeros(len(cuts.order), dtype=bool)
    for span in cuts.read_on:
        if kinds.get(span.op, "f")[0] in "iu":
            begin[list(span.places)] = True
    return bool((_behind(cuts, begin) & _inside(cuts, layers.name)).any())


def _computed(cuts: ModuleCuts) -> list[Span]:
    """The tensors that ops of the forward pass make and others read, in its order."""
    runs = set(cuts.order.tolist())
    return sorted((s for s in cuts.read_on if s.op in runs), key=lambda span: span.places[0])


def _is_within(path: str, module: str) -> bool:
    """True if a path is that of a module, or of one below it."""
    return not module or f"{path}.".startswith(f"{module}.")


def _inside(cuts: ModuleCuts, module: str) -> Mask:
    """Mask of the places of the forward pass that are in a module."""
    return np.array([_is_within(path, module) for path in cuts.module_of], dtype=bool)


def _behind(cuts: ModuleCuts, begin: Mask) -> Mask:
    """Mask of some places of the forward pass, and of those that depend on them. O(V + E)."""
    reached = begin.copy()
    for span in _computed(cuts):
        if reached[span.places[0]]:
            reached[list(span.places[1:])] = True
    return reached
