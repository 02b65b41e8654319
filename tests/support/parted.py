"""Calls of ops that are cut as their patterns say: parts are executed, joined, and compared.

Arguments are those of a call, with numpy arrays for tensors. Whoever tests says how an op is
executed, and what its parts do where slices alone are not enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.dimensions.binding import pattern
from loadmaster.dimensions.form import Meaning, Pattern, part_sizes
from loadmaster.model.shapes import Shape

Array = NDArray[Any]
Outputs = list["Array | None"]
Run = Callable[[list[Any], dict[str, Any]], Outputs]

_DTYPES = {"float64": "f64", "float32": "f32", "int64": "i64", "uint64": "u64", "bool": "b8"}


@dataclass
class Part:
    """What one of the parts has: its arguments, and where it stands.

    Attributes
    ----------
    case : Case
    word : str
        The dimension that is cut.
    index, of : int
    begin, end : int
        The part of the dimension.
    args, keywords
        Of the call, tensors sliced.
    wanting : dict of (int, int)
        By tensor argument, how much of its halo is outside of the tensor, before and after. The
        last part goes on to the end, whatever is after that.
    places : dict of (int, int column)
        By tensor argument, the axis that is sliced, and where.
    outputs : list of tuple
        The shapes that the outputs should have.
    made : dict of (int, int column)
        By output, the axis that is cut, and where.
    """

    case: Case
    word: str
    index: int
    of: int
    begin: int
    end: int
    args: list[Any]
    keywords: dict[str, Any]
    wanting: dict[int, tuple[int, int]]
    places: dict[int, tuple[int, NDArray[np.int64]]]
    outputs: list[tuple[int, ...]]
    made: dict[int, tuple[int, NDArray[np.int64]]]

    def run(self) -> Outputs:
        return self.case.run(self.args, self.keywords)


@dataclass
class Case:
    """A call, and what its parts do.

    Attributes
    ----------
    kind, args, keywords
        The call.
    run : callable
        Executes it, for the whole and for parts.
    fit : callable, optional
        Changes the arguments of a part that name sizes or places.
    alone : mapping of callable
        By the beginning of the word that is cut, what a part does instead.
    together : mapping of callable
        The same for parts that exchange something: all of them give their outputs.
    random : bool
        Whether values differ from call to call: only shapes are compared.
    """

    kind: str
    args: list[Any]
    run: Run
    keywords: dict[str, Any] = field(default_factory=dict)
    fit: Callable[[Part], None] | None = None
    alone: Mapping[str, Callable[[Part], Outputs]] = field(default_factory=dict)
    together: Mapping[str, Callable[[list[Part]], list[Outputs]]] = field(default_factory=dict)
    random: bool = False


def check(case: Case, k: int) -> Pattern:
    """Everything that the pattern of a call claims, in ``k`` parts."""
    whole = case.run(_copied(case.args), _copied(case.keywords))
    found = _pattern(case, whole)
    inputs, outputs = _shapes(_arrays(case)), _shapes(whole)
    for d, n in enumerate(lengths(found, inputs, outputs)):
        assert n >= 2, f"{case.kind}: {found.words[d]} has {n}"
        _check_cut(case, found, d, n, min(k, n), whole)
    for several in found.linear:
        _check_linear(case, several, whole)
    _check_values(case, found, whole)
    if found.is_reshape:
        assert whole[0] is not None
        np.testing.assert_array_equal(whole[0].ravel(), _arrays(case)[0].ravel())
    return found


def lengths(found: Pattern, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> list[int]:
    """How many parts there can be, per dimension of a pattern."""
    most: dict[int, int] = {}
    every = [*zip(found.inputs, inputs, strict=True), *zip(found.outputs, outputs, strict=True)]
    for axes, (_, sizes) in every:
        for d, size in zip(axes or (), sizes or (), strict=False):
            most[d] = min(size, most.get(d, size))
    return [meaning.period or most[d] // meaning.least for d, meaning in enumerate(found.meanings)]


def _pattern(case: Case, whole: Outputs) -> Pattern:
    count = iter(range(10**6))
    entry = _mapped([case.args, case.keywords], lambda _: {"op": next(count)})
    found = pattern(case.kind, entry, _shapes(_arrays(case)), _shapes(whole))
    assert found is not None, f"{case.kind} has no pattern"
    return found


def _check_cut(case: Case, found: Pattern, d: int, n: int, k: int, whole: Outputs) -> None:
    word, meaning = found.words[d], found.meanings[d]
    parts, ends = [], np.cumsum([0, *part_sizes(n, k)])
    for j in range(k):
        parts.append(_part(case, found, d, n, (int(ends[j]), int(ends[j + 1])), (j, k), whole))
    if meaning.exchanged:
        results = _of(case.together, word)(parts)
    else:
        results = [(_of(case.alone, word) or Part.run)(part) for part in parts]
    for i, result in enumerate(whole):
        if result is None:
            continue
        made = [outputs[i] for outputs in results]
        assert [m.shape for m in made] == [part.outputs[i] for part in parts], (case.kind, word)
        joined = _joined(found, d, n, i, result, parts, made)
        if not case.random:
            _same(joined, result, f"{case.kind} cut along {word}, output {i}")


def _part(
    case: Case,
    found: Pattern,
    d: int,
    n: int,
    bounds: tuple[int, int],
    place: tuple[int, int],
    whole: Outputs,
) -> Part:
    word, meaning = found.words[d], found.meanings[d]
    summed = [
        out
        for out, axes in zip(whole, found.outputs, strict=True)
        if d not in axes and out is not None
    ]
    wanting: dict[int, tuple[int, int]] = {}
    places: dict[int, tuple[int, NDArray[np.int64]]] = {}
    at = iter(range(10**6))

    def sliced(tensor: Array) -> Array:
        j = next(at)
        axes = found.inputs[j]
        if axes is None or d not in axes:
            is_addend = place[0] and summed and not meaning.exchanged and _adds(found, j, d)
            return np.zeros_like(tensor) if is_addend else tensor.copy()
        axis = axes.index(d)
        size = tensor.shape[axis]
        inside, wanting[j] = _positions(meaning, size, n, bounds, j, is_output=False)
        places[j] = axis, inside
        return np.take(tensor, inside, axis)

    args, keywords = _mapped([case.args, case.keywords], sliced)
    shapes, made = [], {}
    for i, result in enumerate(whole):
        sizes = list(result.shape) if result is not None else []
        if d in found.outputs[i]:
            axis = found.outputs[i].index(d)
            out = len(found.inputs) + i
            inside, _ = _positions(meaning, sizes[axis], n, bounds, out, is_output=True)
            made[i], sizes[axis] = (axis, inside), len(inside)
        shapes.append(tuple(sizes))
    part = Part(case, word, *place, *bounds, args, keywords, wanting, places, shapes, made)
    if case.fit:
        case.fit(part)
    return part


def masked(part: Part) -> Outputs:
    """What a part makes of whole tensors of which it knows only its slices: the rest is garbage.

    Outputs that are summed are made of the part's own of the first argument, without its halo.
    """
    random = np.random.default_rng(3)
    whole = _arrays(part.case)
    first_axis, _ = part.places.get(0, (0, None))
    own = np.zeros(whole[0].shape[first_axis], dtype=bool)
    own[part.begin : part.end if part.index + 1 < part.of else None] = True
    results = []
    for only_own in (False, True):
        at = iter(range(10**6))

        def known(tensor: Array, at: Iterator[int] = at, only_own: bool = only_own) -> Array:
            j = next(at)
            if j not in part.places:
                return tensor.copy()
            axis, inside = part.places[j]
            index = (slice(None),) * axis
            full = random.uniform(-9, 9, tensor.shape)
            full[(*index, inside)] = np.take(tensor, inside, axis)
            if j == 0 and only_own:
                full[(*index, ~own)] = 0
            return full

        args, keywords = _mapped([part.case.args, part.case.keywords], known)
        results.append(part.case.run(args, keywords))
    return [
        cut
        if cut is None
        else np.take(cut, part.made[i][1], part.made[i][0])
        if i in part.made
        else summed
        for i, (cut, summed) in enumerate(zip(*results, strict=True))
    ]


def _adds(found: Pattern, j: int, d: int) -> bool:
    """Whether an argument that lacks the dimension is added to what is summed."""
    has = [axes is not None and d in axes for axes in found.inputs]
    return any(j in several and any(has[i] for i in several) for several in found.linear)


def _positions(
    meaning: Meaning, size: int, n: int, bounds: tuple[int, int], tensor: int, is_output: bool
) -> tuple[NDArray[np.int64], tuple[int, int]]:
    """Where along an axis a part is, and how much of its halo is outside of the tensor."""
    begin, end = bounds
    if meaning.halos:
        step = meaning.steps[tensor]
        before, after = (0, 0) if is_output else meaning.halos[tensor]
        start = begin * step - before
        stop = size if end == n else end * step + after
        inside = np.arange(max(start, 0), min(stop, size))
        return inside, (max(min(stop, 0) - start, 0), max(stop - max(start, size), 0))
    if meaning.period:
        blocks = np.arange(0, size, meaning.period)[:, None]
        return (blocks + np.arange(begin, end)).ravel(), (0, 0)
    each = size // n
    assert each * n == size
    return np.arange(begin * each, end * each), (0, 0)


def _joined(
    found: Pattern, d: int, n: int, i: int, whole: Array, parts: list[Part], made: list[Array]
) -> Array:
    """Outputs of parts, joined along the dimension, or summed, or one of those that are equal."""
    meaning = found.meanings[d]
    shares = [(part.end - part.begin) / n if meaning.is_mean else 1 for part in parts]
    if d not in found.outputs[i]:
        if meaning.exchanged:
            for other in made[1:]:
                _same(other, made[0], f"what all parts of {parts[0].case.kind} have")
            return made[0]
        return sum(
            part.astype(whole.dtype) * share for part, share in zip(made, shares, strict=True)
        )
    axis = found.outputs[i].index(d)
    joined, filled = np.zeros_like(whole), np.zeros(whole.shape[axis], dtype=int)
    for part, result, share in zip(parts, made, shares, strict=True):
        bounds, out = (part.begin, part.end), len(found.inputs) + i
        at, _ = _positions(meaning, whole.shape[axis], n, bounds, out, is_output=True)
        filled[at] += 1
        scaled = result * share if meaning.is_mean else result
        joined[(slice(None),) * axis + (at,)] = scaled
    assert (filled == 1).all()
    return joined


def _check_linear(case: Case, several: Sequence[int], whole: Outputs) -> None:
    """Partial sums of these arguments give partial sums."""
    random = np.random.default_rng(7)
    results = []
    halves: dict[int, Array] = {}
    for second in (False, True):
        at = iter(range(10**6))

        def half(tensor: Array, at: Iterator[int] = at, second: bool = second) -> Array:
            j = next(at)
            if j not in several:
                return tensor.copy()
            if not second:
                part = tensor * random.uniform(0.2, 0.8, tensor.shape)
                halves[j] = np.asarray(part, dtype=tensor.dtype)
            return np.asarray(tensor - halves[j]) if second else halves[j].copy()

        args, keywords = _mapped([case.args, case.keywords], half)
        results.append(case.run(args, keywords))
    for i, result in enumerate(whole):
        if result is not None and not case.random:
            sums = results[0][i] + results[1][i]
            _same(sums, result, f"{case.kind} is not linear in {several}, output {i}")


def _check_values(case: Case, found: Pattern, whole: Outputs) -> None:
    """Values of the arguments that do not matter do not matter."""
    if case.random or all(axes is not None for axes in found.inputs):
        return
    at = iter(range(10**6))

    def other(tensor: Array) -> Array:
        return tensor.copy() if found.inputs[next(at)] is not None else np.ones_like(tensor)

    args, keywords = _mapped([case.args, case.keywords], other)
    for result, again in zip(whole, case.run(args, keywords), strict=True):
        if result is not None:
            _same(again, result, f"{case.kind} with other values")


def _same(a: Array, b: Array, what: str) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9, err_msg=what)


def _of(by_word: Mapping[str, Any], word: str) -> Any:
    return next((value for start, value in by_word.items() if word.startswith(start)), None)


def _mapped(value: Any, of: Callable[[Array], Any]) -> Any:
    """Arguments with something else for each array, in the order of the call."""
    if isinstance(value, np.ndarray):
        return of(value)
    if isinstance(value, list):
        return [_mapped(item, of) for item in value]
    if isinstance(value, dict):
        return {key: _mapped(item, of) for key, item in value.items()}
    return value


def _copied(value: Any) -> Any:
    return _mapped(value, np.copy)


def _arrays(case: Case) -> list[Array]:
    found: list[Array] = []
    _mapped([case.args, case.keywords], found.append)
    return found


def _shapes(arrays: Sequence[Array | None]) -> list[Shape]:
    return [
        ("none", None) if a is None else (_DTYPES[str(a.dtype)], tuple(a.shape)) for a in arrays
    ]
