"""From a pattern and the factors of a call's tensors to the call's form.

A dimension of an op can be cut at a factor that all axes of the dimension have at the same place:
as many elements before the next one, and as many of them. That alone decides. Where tensors could
not be taken apart alike, there is no cut, and never a wrong one.

A call's tensors are counted through: its arguments, then its outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from loadmaster.dimensions.factors import Run
from loadmaster.dimensions.form import (
    ANY,
    PARTIAL,
    PICKED,
    REPLICATE,
    Cut,
    Factor,
    Form,
    Meaning,
    Pattern,
)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class DimensionPlace:
    """A dimension of a call within one of its tensors.

    Attributes
    ----------
    tensor : int
        Counted through the call.
    first, end : int
        The axes that are the dimension.
    low, high : int
        The strides of the dimension within these axes. They are counted in units of ``low``.
    size : int
        Of these axes together.
    """

    tensor: int
    first: int
    end: int
    low: int
    high: int
    size: int

    def run(self, start: int) -> Run:
        """The same among the axes of all tensors, if the tensor's begin at ``start``."""
        return start + self.first, start + self.end, self.low, self.high


@dataclass(frozen=True)
class Tie:
    """Axes of a call's tensors that are one dimension.

    Attributes
    ----------
    dimension : int
        Of the pattern; -1: a reshape.
    places : tuple of Place
    joined : bool
        Whether factors are shared. Else the dimension can be cut only as a whole.
    """

    dimension: int
    places: tuple[DimensionPlace, ...]
    joined: bool = True

    @cached_property
    def is_of_axes(self) -> bool:
        """True if the dimension is one whole axis of each tensor, all of one size."""
        one = self.places[0]
        return self.dimension >= 0 and all(
            place.low == 1 and place.high == place.size == one.size for place in self.places
        )


def ties(pattern: Pattern, shapes: Sequence[Shape]) -> list[Tie]:
    """The ties that a pattern makes between axes of a call's tensors, arguments then outputs."""
    tied = []
    where: dict[int, list[tuple[int, int]]] = {}
    for tensor, dimensions in enumerate((*pattern.inputs, *pattern.outputs)):
        for axis, dimension in enumerate(dimensions or ()):
            if dimension >= 0 and shapes[tensor][axis] > 1:
                where.setdefault(dimension, []).append((tensor, axis))
    for dimension, axes in sorted(where.items()):
        sizes = [shapes[tensor][axis] for tensor, axis in axes]
        meaning = pattern.meanings[dimension]
        windows, joined = _windows(sizes, meaning)
        places = [
            DimensionPlace(tensor, axis, axis + 1, *window, shapes[tensor][axis])
            for (tensor, axis), window in zip(axes, windows, strict=True)
        ]
        tied.append(Tie(dimension, tuple(places), joined))
    for dimension in sorted({piece.dimension for piece in pattern.pieces}):
        of = [piece for piece in pattern.pieces if piece.dimension == dimension]
        places = [
            DimensionPlace(p.tensor, p.axis, p.axis + 1, p.low, p.high, shapes[p.tensor][p.axis])
            for p in of
        ]
        tied.append(Tie(dimension, tuple(places)))
    if pattern.is_reshape:
        sides = (0, len(pattern.inputs))
        places = [
            DimensionPlace(at, 0, len(shapes[at]), 1, *[math.prod(shapes[at])] * 2) for at in sides
        ]
        tied.append(Tie(-1, tuple(places)))
    return tied


def _windows(sizes: list[int], meaning: Meaning) -> tuple[list[tuple[int, int]], bool]:
    """Strides of a dimension within its axes, and whether the axes share factors."""
    if meaning.period:
        fits = all(size % meaning.period == 0 for size in sizes)
        return [(1, meaning.period if fits else size) for size in sizes], fits
    # Parts have the same shares of all axes: whole groups of positions, one each if not said.
    groups = max(min(sizes) // meaning.least, 1)
    fits = all(size % groups == 0 for size in sizes)
    if _moves(meaning) or not fits:
        return [(1, size) for size in sizes], all(size == sizes[0] for size in sizes)
    return [(size // groups, size) for size in sizes], True


def _moves(meaning: Meaning) -> bool:
    """True if a window moves along the dimension, or positions of it are sent to others: its parts
    are intervals, of the whole axis.
    """
    is_window = any(map(any, meaning.halos)) or any(step != 1 for step in meaning.steps)
    return is_window or bool(meaning.sends)


@dataclass(frozen=True)
class Look:
    """A tensor as its call sees it: its factors, major to minor, and the role of each."""

    factors: tuple[Factor, ...]
    roles: tuple[str, ...]

    def strides(self, place: DimensionPlace) -> dict[int, int]:
        """Factors within a place by their strides there, major to minor."""
        by_stride = {}
        below = 1
        for number in range(len(self.factors) - 1, -1, -1):
            axis, size = self.factors[number]
            if place.first <= axis < place.end:
                if place.low <= below and below * size <= place.high and below % place.low == 0:
                    by_stride[below // place.low] = number
                below *= size
        return dict(reversed(by_stride.items()))


def form(pattern: Pattern, tied: Sequence[Tie], looks: Sequence[Look]) -> Form:
    """The ways to cut a call; ``looks`` are those of its arguments, then of its outputs."""
    n = len(pattern.inputs)
    cuts = [cut for tie in tied for cut in _cuts(pattern, tie, looks)]
    cuts += _partial(pattern, len(looks) - n)
    factors = [look.factors for look in looks]
    reads_values = any(axes is not None for axes in pattern.inputs)
    return Form(tuple(cuts), tuple(factors[:n]), tuple(factors[n:]), reads_values)


def _cuts(pattern: Pattern, tie: Tie, looks: Sequence[Look]) -> Iterator[Cut]:
    """A cut per factor that a dimension has in all of its places, major to minor."""
    meaning = Meaning() if tie.dimension < 0 else pattern.meanings[tie.dimension]
    tensors = [place.tensor for place in tie.places]
    if len(set(tensors)) < len(tensors):
        return
    count: dict[str, int] = {}
    for numbers in _common(tie, meaning, looks):
        at = dict(zip(tensors, numbers, strict=True))
        factors = [looks[tensor].factors[number] for tensor, number in at.items()]
        tensor = tensors[-1]
        word = f"axis{factors[-1][0]}" if tie.dimension < 0 else pattern.words[tie.dimension]
        count[word] = count.get(word, -1) + 1
        inputs, outputs = _specs(pattern, meaning, at, len(looks))
        yield Cut(
            name=f"{word}.{count[word]}" if count[word] else word,
            role=looks[tensor].roles[at[tensor]],
            size=min(size for _, size in factors),
            inputs=inputs,
            outputs=outputs,
            works=meaning.works,
            exchanged=meaning.exchanged,
            is_mean=meaning.is_mean,
            halos=meaning.halos,
            steps=meaning.steps,
            sends=meaning.sends,
        )


def _common(tie: Tie, meaning: Meaning, looks: Sequence[Look]) -> Iterator[list[int]]:
    """Numbers of a factor that is in all places, in the order of the places."""
    strides = [looks[place.tensor].strides(place) for place in tie.places]
    if not tie.joined or _moves(meaning):
        if all(len(by_stride) == 1 for by_stride in strides) and not meaning.period:
            yield [next(iter(by_stride.values())) for by_stride in strides]
        return
    for stride in strides[0]:
        if all(stride in by_stride for by_stride in strides):
            numbers = [by_stride[stride] for by_stride in strides]
            tensors = [place.tensor for place in tie.places]
            sizes = {looks[t].factors[i][1] for t, i in zip(tensors, numbers, strict=True)}
            if len(sizes) == 1:
                yield numbers


def _specs(
    pattern: Pattern, meaning: Meaning, at: dict[int, int], n: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Specs of arguments and outputs, of which those ``at`` are sharded by the factors there."""
    n_inputs = len(pattern.inputs)
    without = REPLICATE if meaning.exchanged else PARTIAL
    outputs = [
        at.get(tensor, PICKED if tensor in meaning.picked else without)
        for tensor in range(n_inputs, n)
    ]
    addends: set[int] = set()
    if PARTIAL in outputs:
        addends.update(*(some for some in pattern.linear if not at.keys().isdisjoint(some)))
    inputs = []
    for tensor, dimensions in enumerate(pattern.inputs):
        lacking = PICKED if tensor in meaning.picked else REPLICATE
        lacking = PARTIAL if tensor in addends else lacking
        inputs.append(ANY if dimensions is None else at.get(tensor, lacking))
    return tuple(inputs), tuple(outputs)


def _partial(pattern: Pattern, n_outputs: int) -> Iterator[Cut]:
    """A cut per set of arguments that may be partial sums."""
    for number, some in enumerate(pattern.linear):
        inputs = [
            ANY if dimensions is None else PARTIAL if tensor in some else REPLICATE
            for tensor, dimensions in enumerate(pattern.inputs)
        ]
        name = f"partial.{number}" if number else "partial"
        yield Cut(name, "", 0, tuple(inputs), (PARTIAL,) * n_outputs, works=False)


def placeholder(look: Look) -> Form:
    """The form of a tensor that is there when the step begins: a cut per factor."""
    cuts = []
    count: dict[int, int] = {}
    for number, ((axis, size), role) in enumerate(zip(look.factors, look.roles, strict=True)):
        count[axis] = count.get(axis, -1) + 1
        name = f"axis{axis}.{count[axis]}" if count[axis] else f"axis{axis}"
        cuts.append(Cut(name, role, size, (), (number,)))
    return Form(tuple(cuts), (), (look.factors,))
