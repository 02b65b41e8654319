"""Views: which axis of the result is which axis of the argument."""

from __future__ import annotations

from loadmaster.dimensions.call import NamedCall
from loadmaster.dimensions.draft import NONE, Draft
from loadmaster.dimensions.form import Meaning, Pattern
from loadmaster.dimensions.rules import CallRule


def reshape(call: NamedCall, rule: CallRule) -> Pattern | None:
    """The same elements in the same order."""
    return Draft(call).reshape()


def permute(call: NamedCall, rule: CallRule) -> Pattern | None:
    """Axes in another order: ``dims``, or two that are swapped, by default the last two.

    With ``reversed``, all are by default.
    """
    rank = len(call.inputs[0])
    order = call.axes("dims", rank)
    if order is None and rule.options.get("reversed", False):
        order = list(range(rank))[::-1]
    if order is None:
        first, second = call.axes("dim0", rank, -2), call.axes("dim1", rank, -1)
        order = list(range(rank))
        if first and second and rank > 1:
            order[first[0]], order[second[0]] = second[0], first[0]
    draft = _beginning(call)
    draft.outputs[0] = [f"axis{i}" for i in order]
    return draft.finished([[0]])


def same(call: NamedCall, rule: CallRule) -> Pattern | None:
    """Every axis is itself, as far as it is as long: aliases, ``expand``."""
    draft = Draft(call)
    words = [f"axis{i}" for i in range(len(call.outputs[0]))]
    draft.shared(words, [0], [0])
    return draft.finished([[0]])


def strided(call: NamedCall, rule: CallRule) -> Pattern | None:
    """Sizes and strides that are given: those of the argument, row after row, leave it as it is."""
    below = 1
    for size, stride in zip(call.outputs[0][::-1], call.value("stride", ())[::-1], strict=True):
        if size > 1 and stride != below:
            return None
        below *= size
    is_all = call.inputs[0] == call.outputs[0] and not call.value("storage_offset")
    return Draft(call).reshape() if is_all else None


def broadcast(call: NamedCall, rule: CallRule) -> Pattern | None:
    """``broadcast_in_dim``: the axes that those of the argument become are ``dims``."""
    words = [f"axis{i}" for i in range(len(call.outputs[0]))]
    draft = Draft(call)
    draft.outputs[0] = words
    for j, sizes in enumerate(call.inputs[:1]):
        draft.inputs[j] = [words[i] for i in call.value("dims", ())][: len(sizes)]
    return draft.finished([[0]] if call.n_tensors else ())


def element(call: NamedCall, rule: CallRule) -> Pattern | None:
    """Without the axis ``dim``: one place of it (``select``), or each in turn (``unbind``)."""
    rank = len(call.inputs[0])
    [axis] = call.axes("dim", rank, 0) or [0]
    draft = _beginning(call)
    draft.inputs[0] = _without(rank, axis)
    for j in range(len(call.outputs)):
        draft.outputs[j] = [f"axis{i}" for i in range(rank) if i != axis]
    return draft.finished([[0]])


def piece(call: NamedCall, rule: CallRule) -> Pattern | None:
    """A part of the axis ``dim`` (``slice``), or all parts, one after the other (``split``).

    Where all are as long and begin at multiples of that, the axis is cut within these periods.
    ``at``: which tensor it is.
    """
    at = rule.options.get("at", 0)
    sizes = call.inputs[at]
    [axis] = call.axes("dim", len(sizes), 0) or [0]
    lengths = {piece[axis] for piece in call.outputs}
    period = lengths.pop()
    draft = Draft(call)
    words = _without(len(sizes), axis)
    start, step = call.value("start", 0), call.value("step", 1)
    if start < 0:
        start += sizes[axis]
    if not lengths and period and step == 1 and sizes[axis] % period == 0 == start % period:
        words[axis] = f"axis{axis}"
        draft.means([words[axis]], Meaning(period=0 if period == sizes[axis] else period))
    draft.shared(words, [at], range(len(call.outputs)))
    return draft.finished([[at]])


def pieces(call: NamedCall, rule: CallRule) -> Pattern | None:
    """A part of several axes ``dim``, each from its ``start`` on: see :func:`piece`.

    ``slice`` has begin, end and step of every axis. With ``forward``, which has no steps, an axis
    of which the result has all is itself wherever it begins.
    """
    sizes, ranges = call.inputs[0], call.value("slice", ())
    starts = call.value("start", [each[0] for each in ranges] or None)
    if starts is None and not rule.options.get("forward", False):
        return None
    if starts is None:
        starts = [None] * len(sizes)
    axes = call.axes("dim", len(sizes)) or list(range(len(starts)))
    strides = [each[2] if len(each) > 2 else 1 for each in ranges]
    steps = call.value("step") or strides or [1] * len(axes)
    words = [f"axis{i}" for i in range(len(sizes))]
    draft = Draft(call)
    for axis, start, step in zip(axes, starts, steps, strict=True):
        size, period = sizes[axis], call.outputs[0][axis]
        if start is None:
            words[axis] = words[axis] if size == period else NONE
            continue
        begin = max(start + size if start < 0 else start, 0)
        if period and step == 1 and size % period == 0 == begin % period:
            draft.means([words[axis]], Meaning(period=0 if period == size else period))
        else:
            words[axis] = NONE
    draft.shared(words, [0], [0])
    return draft.finished([[0]])


def _beginning(call: NamedCall) -> Draft:
    draft = Draft(call)
    draft.inputs[0] = [f"axis{i}" for i in range(len(call.inputs[0]))]
    return draft


def _without(rank: int, *axes: int) -> list[str]:
    return [NONE if i in axes else f"axis{i}" for i in range(rank)]


def joined(call: NamedCall, rule: CallRule) -> Pattern | None:
    """``cat`` along ``dim`` of tensors; where all are as long, the axis is cut within each."""
    rank = len(call.outputs[0])
    [axis] = call.axes("dim", rank, 0) or [0]
    tensors = [j for j in range(call.n_tensors) if len(call.inputs[j]) == rank]
    words = _without(rank, axis)
    draft = Draft(call)
    lengths = {call.inputs[j][axis] for j in tensors}
    if len(lengths) == 1 and min(lengths) * len(tensors) == call.outputs[0][axis]:
        words[axis] = f"axis{axis}"
        draft.means([words[axis]], Meaning(period=0 if len(tensors) == 1 else lengths.pop()))
    draft.shared(words, tensors, [0])
    return draft.finished([tensors])


def stacked(call: NamedCall, rule: CallRule) -> Pattern | None:
    """``stack`` along a new axis ``dim``, by default the first."""
    rank = len(call.outputs[0])
    [axis] = call.axes("dim", rank, 0) or [0]
    words = _without(rank, axis)
    draft = Draft(call)
    draft.outputs[0] = words
    draft.shared([w for i, w in enumerate(words) if i != axis], range(call.n_tensors), [])
    return draft.finished([range(call.n_tensors)])


def put_back(call: NamedCall, rule: CallRule) -> Pattern | None:
    """The gradient of ``select`` and ``slice``: zeros, and the argument at its place in ``dim``."""
    rank = len(call.outputs[0])
    [axis] = call.axes("dim", rank) or [0]
    words = _without(rank, axis)
    draft = Draft(call)
    if rule.options.get("drops", False):
        draft.outputs[0] = words
        draft.shared([w for i, w in enumerate(words) if i != axis], [0], [])
        return draft.finished([[0]])
    period, start = call.inputs[0][axis], call.value("start", 0)
    if start < 0:
        start += call.outputs[0][axis]
    if (
        period
        and call.value("step", 1) == 1
        and 0 == call.outputs[0][axis] % period == start % period
    ):
        words[axis] = f"axis{axis}"
        draft.means([words[axis]], Meaning(period=period))
    draft.shared(words, [0], [0])
    return draft.finished([[0]])


def repeat(call: NamedCall, rule: CallRule) -> Pattern | None:
    """Copies one after the other along each axis: the axis is the place within a copy."""
    rank, sizes = len(call.outputs[0]), call.inputs[0]
    draft = Draft(call)
    words = [f"axis{i}" for i in range(rank)]
    for i, size in enumerate(sizes, rank - len(sizes)):
        if size > 1 and call.outputs[0][i] != size:
            draft.means([words[i]], Meaning(period=size))
    draft.shared(words, [0], [0])
    return draft.finished([[0]])


def padded(call: NamedCall, rule: CallRule) -> Pattern | None:
    """Values around a tensor: axes with nothing before or after them are themselves.

    ``pad`` has a pair per axis, the last axis first; or, with ``all_before``, what is before each
    axis and then what is after each. ``value`` is what is put there, and ``fill`` a tensor of it.
    """
    pads, rank = call.value("pad"), len(call.outputs[0])
    words = [f"axis{i}" for i in range(rank)]
    if pads is None:
        return None
    if rule.options.get("all_before", False):
        if len(pads) != 2 * rank:
            return None
        pads = [number for i in range(rank)[::-1] for number in (pads[i], pads[rank + i])]
    for i in range(len(pads) // 2):
        if pads[2 * i] or pads[2 * i + 1]:
            words[rank - 1 - i] = NONE
    draft = Draft(call)
    draft.shared(words, [0], [0])
    is_told = call.value("value") is not None or not call.tensors("fill")
    return draft.finished([[0]] if is_told and call.value("value", 0) == 0 else ())
