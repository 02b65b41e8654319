"""All calls of an ATen op that fit the sizes of its tensors, where nobody says what the call was.

Tensors are numbered as the op reads them, each once. What a rule does not look at is left out. A
number that stands in the place of a tensor is 1. Families that are not here, such as convolutions,
have arguments that no sizes tell.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from loadmaster.dimensions.rules import CallRule
from loadmaster.model.arguments import Call
from loadmaster.model.shapes import Shape

Sizes = tuple[int, ...]

#: Tensors that ATen's elementwise ops take, where it matters which; "": any other kind.
_SLOTS = {
    "add": 2, "addcdiv": 3, "addcmul": 3, "copy": 2, "div": 2, "lerp": 3, "log_sigmoid_backward": 3,
    "masked_fill": 3, "mul": 2, "rrelu_with_noise_backward": 3, "sub": 2, "where": 3,
}  # fmt: skip

#: Of products, tensors that need not be given.
_OPTIONAL = frozenset(("attn_bias", "attn_mask"))


def fitting(
    kind: str, rule: CallRule, inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> Iterator[Call]:
    """The calls, the likelier ones first. Some may be ones that the kind's rule refuses.

    >>> from loadmaster.dimensions.rules import rule_of
    >>> kind, shapes = "aten.mean.dim", ([("f32", (2, 3))], [("f32", (2, 1))])
    >>> list(fitting(kind, rule_of(kind), *shapes))
    [[[{'op': 0}, [1], True]]]
    """
    every = [*inputs, *outputs]
    sizes = [shape for _, shape in every if shape is not None]
    known = len(sizes) == len(every) or rule.family in ("elementwise", "made")
    if rule.family in _FAMILIES and known:
        yield from _FAMILIES[rule.family](kind, rule, sizes[: len(inputs)], sizes[len(inputs) :])


def _tensor(number: int) -> dict[str, int]:
    return {"op": number}


def _all(n: int) -> Call:
    return [[_tensor(i) for i in range(n)]]


def _named(rule: CallRule, values: Mapping[str, Any]) -> Call:
    """A call of named arguments: the first ones by position."""
    n = next((i for i, a in enumerate(rule.arguments) if a not in values), len(rule.arguments))
    positional = [values[name] for name in rule.arguments[:n]]
    keywords = {name: value for name, value in values.items() if name not in rule.arguments[:n]}
    return [positional, keywords] if keywords else [positional]


def _tensors(names: Sequence[str], n: int) -> dict[str, Any]:
    return {name: _tensor(i) for i, name in enumerate(names[:n])}


# -- which tensor stands where --------------------------------------------------------------------


def _as_read(
    kind: str, rule: CallRule, inputs: Sequence[Sizes], outputs: Sequence[Sizes]
) -> Iterator[Call]:
    """Ops of which only the shapes matter."""
    yield _all(len(inputs))


def _elementwise(
    kind: str, rule: CallRule, inputs: Sequence[Sizes], outputs: Sequence[Sizes]
) -> Iterator[Call]:
    if "linear" not in rule.options:
        yield _all(len(inputs))
        return
    name, _, overload = kind.removeprefix("aten.").partition(".")
    stem = name.removesuffix("_")
    slots = _SLOTS.get(stem, 2 if stem.endswith("_backward") else 1)
    last: Sequence[Sequence[int]] = [[]]
    if stem in _SLOTS and overload == "Scalar":
        slots, last = slots - 1, [[1], [0]] if "zero" in rule.options else [[1]]
    for filled in _filled(slots, len(inputs), with_numbers=True):
        for number in last:
            yield [[*filled, *number]]


def _filled(slots: int, n: int, with_numbers: bool = False) -> Iterator[list[Any]]:
    """All ways in which ``n`` tensors, first seen in order, fill places; others have a number."""

    def extended(filled: list[Any], seen: int) -> Iterator[list[Any]]:
        if len(filled) == slots:
            if seen == n:
                yield filled
            return
        choices = [_tensor(i) for i in range(min(seen + 1, n))]
        for choice in reversed(choices):
            yield from extended([*filled, choice], max(seen, choice["op"] + 1))
        if with_numbers and filled:
            yield from extended([*filled, 1], seen)

    yield from extended([], 0)


def _product(
    kind: str, rule: CallRule, inputs: Sequence[Sizes], outputs: Sequence[Sizes]
) -> Iterator[Call]:
    n_terms = rule.options["axes"].partition("->")[0].count(",") + 1
    names = rule.options.get("tensors", "").split() or list(rule.arguments)[:n_terms]
    optional = [name in _OPTIONAL or (name == "bias" and "linear" in kind) for name in names]
    # Fewer tensors than there must be: some stand in several places.
    for filled in _filled(max(n_terms - sum(optional), len(inputs)), len(inputs)):
        yield _named(rule, dict(zip(names, filled, strict=False))) if names else [filled]


# -- along which axis -----------------------------------------------------------------------------


def _permute(
    kind: str, rule: CallRule, inputs: Sequence[Sizes], outputs: Sequence[Sizes]
) -> Iterator[Call]:
    [source], [result] = inputs, outputs
    axes = range(len(source))
    if "dims" in rule.arguments:
        for order in itertools.permutations(axes):
            if tuple(source[i] for i in order) == result:
                yield _named(rule, {"self": _tensor(0), "dims": list(order)})
    elif not kind.startswith(("aten.transpose", "aten.swapaxes")):
        yield _all(1)
    else:
        for first, second in itertools.combinations_with_replacement(axes, 2):
            swapped = list(axes)
            swapped[first], swapped[second] = second, first
            if tuple(source[i] for i in swapped) == result:
                yield _named(rule, {"self": _tensor(0), "dim0": first, "dim1": second})


def _along(
    kind: str, rule: CallRule, inputs: Sequence[Sizes], outputs: Sequence[Sizes]
) -> Iterator[Call]:
    if "dim" not in rule.arguments:
        yield _all(len(inputs))
        return
    tensors = rule.arguments[: rule.arguments.index("dim")]
    if rule.options.get("word") == "softmax" and len(inputs) == len(tensors):
        yield _named(rule, {**_tensors(tensors, len(inputs)), "dim": -1})
    elif len(inputs) == 1 and "roll" not in kind and "flip" not in kind:
        for axis in range(len(inputs[0])):
            if all(_without(s, axis) == _without(inputs[0], axis) for s in outputs):
                yield _named(rule, {"self": _tensor(0), "dim": axis})


def _reduction(
    kind: str, rule: CallRule, inputs: Sequence[Sizes], outputs: Sequence[Sizes]
) -> Iterator[Call]:
    [source], result = inputs, outputs[0]
    if not result and source:
        yield _all(1)
        return
    for n in range(1, len(source) + 1):
        for axes in itertools.combinations(range(len(source)), n):
            kept = tuple(1 if i in axes else size for i, size in enumerate(source))
            for is_kept, reduced in ((True, kept), (False, _without(source, *axes))):
                if reduced == result:
                    how = {"dim": list(axes), "keepdim": is_kept}
                    yield _named(rule, {"self": _tensor(0), **how})


def _element(
    kind: str, rule: CallRule, inputs: Sequence[Sizes], outputs: Sequence[Sizes]
) -> Iterator[Call]:
    [source] = inputs
    for axis, size in enumerate(source):
        if "unbind" in kind and size != len(outputs):
            continue
        if all(element == _without(source, axis) for element in outputs):
            yield _named(rule, {"self": _tensor(0), "dim": axis})


def _piece(
    kind: str, rule: CallRule, inputs: Sequence[Sizes], outputs: Sequence[Sizes]
) -> Iterator[Call]:
    [whole] = inputs
    is_one = "start" in rule.arguments
    for axis in _axes_of_pieces(whole, outputs):
        length = sum(piece[axis] for piece in outputs)
        if is_one or length == whole[axis]:
            for start in _starts(length, whole[axis]) if is_one else (None,):
                how = {} if start is None else {"start": start}
                yield _named(rule, {"self": _tensor(0), "dim": axis, **how})


def _axes_of_pieces(whole: Sizes, pieces: Sequence[Sizes]) -> list[int]:
    """The axes along which tensors can be pieces of another."""
    if any(len(piece) != len(whole) for piece in pieces):
        return []
    return [
        axis
        for axis in range(len(whole))
        if all(_without(piece, axis) == _without(whole, axis) for piece in pieces)
    ]


def _starts(length: int, size: int) -> Sequence[int]:
    """Places where a piece may begin: at a multiple of its length, or not."""
    return (0,) if length == size else (1, 0)


def _joined(
    kind: str, rule: CallRule, inputs: Sequence[Sizes], outputs: Sequence[Sizes]
) -> Iterator[Call]:
    [whole] = outputs
    for axis in _axes_of_pieces(whole, inputs):
        if sum(sizes[axis] for sizes in inputs) == whole[axis]:
            yield _named(rule, {"tensors": _all(len(inputs))[0], "dim": axis})


def _stacked(
    kind: str, rule: CallRule, inputs: Sequence[Sizes], outputs: Sequence[Sizes]
) -> Iterator[Call]:
    [whole] = outputs
    for axis, size in enumerate(whole):
        if size == len(inputs) and all(sizes == _without(whole, axis) for sizes in inputs):
            yield _named(rule, {"tensors": _all(len(inputs))[0], "dim": axis})


def _put_back(
    kind: str, rule: CallRule, inputs: Sequence[Sizes], outputs: Sequence[Sizes]
) -> Iterator[Call]:
    [piece], [whole] = inputs, outputs
    common = {"grad_output": _tensor(0), "input_sizes": list(whole)}
    if rule.options.get("drops", False):
        for axis in range(len(whole)):
            if piece == _without(whole, axis):
                yield _named(rule, {**common, "dim": axis})
        return
    for axis in _axes_of_pieces(whole, inputs):
        for start in _starts(piece[axis], whole[axis]):
            yield _named(rule, {**common, "dim": axis, "start": start})


def _without(sizes: Sizes, *axes: int) -> Sizes:
    return tuple(size for i, size in enumerate(sizes) if i not in axes)


# -- calls of which sizes do not tell all ----------------------------------------------------------


def likely(
    kind: str, rule: CallRule, inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> Iterator[Call]:
    """Calls of ops with arguments that no sizes tell, as they are most often.

    Windows have some stride: what is then said of batch and channels holds for any, what is said of
    spatial axes does not. A convolution that can be either is not transposed. What is not of ATen
    has no arguments but its tensors, and matrices may be transposed.

    >>> from loadmaster.dimensions.rules import rule_of
    >>> kind = "aten.convolution"
    >>> shapes = [("f32", (8, 4, 9, 9)), ("f32", (6, 2, 3, 3))], [("f32", (8, 6, 4, 4))]
    >>> next(likely(kind, rule_of(kind), *shapes))[1]["groups"]
    2
    """
    every = [sizes or () for _, sizes in (*inputs, *outputs)]
    n = len(inputs)
    names = rule.arguments or ("",)
    if rule.family in ("convolution", "convolution-backward"):
        yield from _convolution(rule, n, every)
    elif rule.family in ("pool", "resize") and n:
        tensors = [name for name in names if name in ("grad_output", "self", "indices", "")]
        window = {"kernel_size": [1] * rule.options.get("spatial", len(every[0]) - 2)}
        yield _named(rule, {**_tensors(tensors, n), **(window if rule.family == "pool" else {})})
    elif rule.family == "batch-norm" and "training" in rule.options:
        yield _named(rule, _tensors(names, n))
    elif "swapped" in rule.options:
        for swapped in itertools.product((0, 1), repeat=2):
            yield [*_all(n), dict(zip(rule.options["swapped"], swapped, strict=True))]
    elif not kind.startswith("aten."):
        yield _all(n)


def _convolution(rule: CallRule, n: int, every: Sequence[Sizes]) -> Iterator[Call]:
    """``every``: sizes of the tensors that it reads, then of those that it makes."""
    is_backward = rule.family == "convolution-backward"
    names = ("grad_output", "input", "weight") if is_backward else ("input", "weight", "bias")
    if n < len(names) - (not is_backward):
        return
    x, weight, result = (every[1], every[2], every[0]) if is_backward else (*every[:2], every[n])
    if not len(x) == len(weight) == len(result) > 2 or not weight[1]:
        return
    transposed = bool(rule.options.get("transposed", x[1] % weight[1] > 0))
    source, target = (result[1], x[1]) if transposed else (x[1], result[1])
    groups = source // weight[1]
    if source == groups * weight[1] and target == weight[0]:
        how = {"transposed": transposed, "groups": groups}
        yield _named(rule, {**_tensors(names, n), **how})


# -- over which axes, in how many groups ----------------------------------------------------------


def _layer_norm(
    kind: str, rule: CallRule, inputs: Sequence[Sizes], outputs: Sequence[Sizes]
) -> Iterator[Call]:
    """Statistics have a 1 for each axis that is normalised."""
    names = [
        name for name in rule.arguments if name not in ("normalized_shape", "eps", "output_mask")
    ]
    is_backward = "grad_out" in names
    if len(inputs) < 4 if is_backward else len(outputs) < 2:
        return
    sizes, statistics = inputs[int(is_backward)], inputs[2] if is_backward else outputs[1]
    for over in range(1, len(sizes) + 1):
        if statistics == sizes[: len(sizes) - over] + (1,) * over:
            shape = {"normalized_shape": list(sizes[len(sizes) - over :])}
            yield _named(rule, {**_tensors(names, len(inputs)), **shape})


def _batch_norm(
    kind: str, rule: CallRule, inputs: Sequence[Sizes], outputs: Sequence[Sizes]
) -> Iterator[Call]:
    """Statistics of the batch have a length in training, and none otherwise."""
    if "training" not in rule.arguments or len(outputs) < 3:
        return
    names = rule.arguments[: rule.arguments.index("training")]
    if len(inputs) == len(names):
        statistics = inputs[names.index("save_mean")] if "save_mean" in names else outputs[1]
        training = {"training": statistics != (0,)}
        yield _named(rule, {**_tensors(names, len(inputs)), **training})


def _group_norm(
    kind: str, rule: CallRule, inputs: Sequence[Sizes], outputs: Sequence[Sizes]
) -> Iterator[Call]:
    """Statistics are [batch, group]."""
    names = rule.arguments[: rule.arguments.index("N")]
    if len(inputs) == len(names):
        statistics = inputs[names.index("mean")] if "mean" in names else outputs[1]
        yield _named(rule, {**_tensors(names, len(inputs)), "group": statistics[1]})


_FAMILIES: Mapping[
    str, Callable[[str, CallRule, Sequence[Sizes], Sequence[Sizes]], Iterator[Call]]
] = {
    "along": _along,
    "batch-norm": _batch_norm,
    "element": _element,
    "elementwise": _elementwise,
    "group-norm": _group_norm,
    "joined": _joined,
    "layer-norm": _layer_norm,
    "made": _as_read,
    "permute": _permute,
    "piece": _piece,
    "product": _product,
    "put-back": _put_back,
    "reduction": _reduction,
    "repeat": _as_read,
    "reshape": _as_read,
    "same": _as_read,
    "stacked": _stacked,
}
