"""The role of a factor in the model: batch, token, expert, head, spatial, feature or parameter.

Factors that are one all over the graph have one role. The first of these that holds is it:

* batch: axis 0 of an input whose size is the batch. That is what ``meta`` says, or else what all
  inputs agree on.
* token: another axis of an input of whole numbers; all but the last axis of other inputs that have
  at most three.
* expert: the axis among which a top-k chooses, and axis 0 of a parameter of at least three axes,
  none of size 1, that is the batch of a product.
* head: heads of an attention, and the batch of a product that comes of an axis of a parameter.
* spatial: what windows move along, and axes 2 and up of an input of at least four.
* feature: an axis of a parameter that what the model computes has too.
* parameter: any other axis of a parameter, such as the taps of a convolution.

The role is empty if none of them holds. Only "batch" is a promise, which data parallelism needs.
The others are words for people and for recipes.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.dimensions.form import Pattern
from loadmaster.dimensions.tensors import Tensors
from loadmaster.model.batch import batch_of
from loadmaster.model.graph import INPUT, PARAMETER, OpGraph

#: Roles, the first of which goes before those after it.
ROLES = ("batch", "token", "expert", "head", "spatial", "feature", "parameter")

#: Per tensor, its factors: the axis, and the factor's number.
Factors = Sequence[Sequence[tuple[int, int]]]


def named(
    graph: OpGraph, tensors: Tensors, patterns: Sequence[Pattern | None], factors: Factors
) -> dict[int, str]:
    """The role of each factor that has one. O(V + E)."""
    of_role: dict[str, set[int]] = {role: set() for role in ROLES}
    _of_inputs(graph, tensors, factors, of_role)
    batched: set[int] = set()
    _of_words(tensors, patterns, factors, of_role, batched)
    _chosen(graph, tensors, patterns, factors, of_role)
    parameters = [tensors.first[op] for op, it in enumerate(graph.stands_for) if it == PARAMETER]
    for t in parameters:
        of_role["parameter"].update(factor for _, factor in factors[t])
        if len(tensors.shapes[t]) >= 3 and min(tensors.shapes[t]) > 1:
            of_role["expert"].update(f for axis, f in factors[t] if axis == 0 and f in batched)
    of_role["head"] |= batched & of_role["parameter"]
    runs = ~(graph.placeholder | graph.view)
    for t, op in enumerate(tensors.maker):
        if runs[op] and graph.phases[op] not in ("b", "o"):
            of_role["feature"].update(factor for _, factor in factors[t])
    of_role["feature"] &= of_role["parameter"]
    return {factor: role for role in reversed(ROLES) for factor in of_role[role]}


def _of_inputs(
    graph: OpGraph, tensors: Tensors, factors: Factors, of_role: dict[str, set[int]]
) -> None:
    inputs = [tensors.first[op] for op, it in enumerate(graph.stands_for) if it == INPUT]
    inputs = [t for t in inputs if tensors.shapes[t]]
    batch = batch_of(graph)
    if batch is None:
        sizes = {tensors.shapes[t][0] for t in inputs}
        batch = sizes.pop() if len(sizes) == 1 else None
    for t in inputs:
        shape = tensors.shapes[t]
        is_whole = not graph.outputs[tensors.maker[t]].startswith(("f", "bf"))
        for axis, factor in factors[t]:
            if axis == 0 and shape[0] == batch:
                of_role["batch"].add(factor)
            elif is_whole or (len(shape) <= 3 and axis < len(shape) - 1):
                of_role["token"].add(factor)
            elif len(shape) > 3 and axis >= 2:
                of_role["spatial"].add(factor)


def _of_words(
    tensors: Tensors,
    patterns: Sequence[Pattern | None],
    factors: Factors,
    of_role: dict[str, set[int]],
    batched: set[int],
) -> None:
    """The roles that rules name; the batches of products go to ``batched``."""
    known: dict[int, list[tuple[int, int, set[int]]]] = {}
    for op, pattern in enumerate(patterns):
        if pattern is None:
            continue
        places = known.get(id(pattern))
        if places is None:
            places = known[id(pattern)] = _spoken(pattern, of_role, batched)
        if places:
            seen = tensors.of_call(op)
            for tensor, axis, into in places:
                into.update(factor for at, factor in factors[seen[tensor]] if at == axis)


def _spoken(
    pattern: Pattern, of_role: dict[str, set[int]], batched: set[int]
) -> list[tuple[int, int, set[int]]]:
    """Tensors and axes of a call whose dimension has a word with a meaning, and where they go."""
    into: dict[int, set[int]] = {}
    for dimension, word in enumerate(pattern.words):
        if word.startswith("spatial"):
            into[dimension] = of_role["spatial"]
        elif word in ("head", "expert"):
            into[dimension] = of_role[word]
        elif word.startswith("batch") and "contraction" in pattern.words:
            into[dimension] = batched
    in_parts = {(piece.tensor, piece.axis) for piece in pattern.pieces}
    return [
        (tensor, axis, into[dimension])
        for tensor, dimensions in enumerate((*pattern.inputs, *pattern.outputs))
        for axis, dimension in enumerate(dimensions or ())
        if dimension in into and (tensor, axis) not in in_parts
    ]


def _chosen(
    graph: OpGraph,
    tensors: Tensors,
    patterns: Sequence[Pattern | None],
    factors: Factors,
    of_role: dict[str, set[int]],
) -> None:
    """Axes among which a top-k chooses."""
    for op, kind in enumerate(graph.kinds):
        pattern = patterns[op] if "topk" in kind.lower() else None
        if pattern is not None:
            for axis, factor in factors[tensors.taken[op][0]]:
                if pattern.inputs[0] and pattern.inputs[0][axis] < 0:
                    of_role["expert"].add(factor)
