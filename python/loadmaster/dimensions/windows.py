"""Convolutions, pools and what changes the resolution: windows that move along spatial axes.

A part of the places of the window needs a part of the finer tensor with some more before and after
it, its halo: see :class:`~loadmaster.dimensions.form.Meaning`. A window of size k with dilation d,
stride s and padding p, at places [a, b), sees [a s - p, (b - 1) s - p + d (k - 1) + 1). The other
way round, positions [a s, b s) are seen from places [a - (d (k - 1) - p) // s, b + ceil(p / s)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadmaster.dimensions.call import NamedCall
from loadmaster.dimensions.draft import NONE, Draft
from loadmaster.dimensions.form import Meaning, Pattern
from loadmaster.dimensions.products import linear_sets
from loadmaster.dimensions.rules import CallRule

#: Positions before and after its own that a part needs.
Halo = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """A window along one axis: its size, stride, padding before it and dilation."""

    size: int
    stride: int
    padding: int
    dilation: int

    @property
    def seen(self) -> Halo:
        """Halo of the finer tensor, for places of the window."""
        return self.padding, max(self.reach - self.stride - self.padding, 0)

    @property
    def seeing(self) -> Halo:
        """Halo of the places, for positions of the finer tensor."""
        before = max((self.reach - 1 - self.padding) // self.stride, 0)
        return before, -(-self.padding // self.stride)

    @property
    def reach(self) -> int:
        return self.dilation * (self.size - 1) + 1


def convolution(call: NamedCall, rule: CallRule) -> Pattern | None:
    """``convolution``, transposed or not, in groups or not."""
    draft, fine = Draft(call), call.tensors("input")[0]
    transposed = bool(call.value("transposed", rule.options.get("transposed", False)))
    spatial = _spatial(len(call.inputs[fine]) - 2)
    source, target = _channels(call, draft)
    weight = [source, target] if transposed else [target, source]
    if source == target:
        weight[1] = NONE
    draft.inputs[fine] = ["batch", source, *spatial]
    draft.outputs[0] = ["batch", target, *spatial]
    draft.shared([*weight, *([NONE] * len(spatial))], call.tensors("weight"), [])
    draft.shared([target], call.tensors("bias"), [])
    for word, axis, window in zip(spatial, range(2, 9), windows(call), strict=False):
        if transposed:
            moved = _Moved(draft, word, axis, fine=[~0], coarse=[fine])
            moved.cut(window, {fine: window.seeing})
        else:
            moved = _Moved(draft, word, axis, fine=[fine], coarse=[~0])
            moved.cut(window, {fine: window.seen})
    return draft.finished(linear_sets(call, rule))


def convolution_backward(call: NamedCall, rule: CallRule) -> Pattern | None:
    """The gradients of input, weight and bias: of the latter two, parts of rows have sums."""
    draft = Draft(call)
    gradient, data, kernel = (call.tensors(w)[0] for w in ("grad_output", "input", "weight"))
    transposed = bool(call.value("transposed", False))
    spatial = [NONE if transposed else word for word in _spatial(len(call.inputs[data]) - 2)]
    source, target = _channels(call, draft)
    weight = [source, target] if transposed else [target, source]
    if source == target:
        weight[1] = NONE
    weight += [NONE] * len(spatial)
    draft.inputs[gradient] = ["batch", target, *spatial]
    draft.inputs[data] = ["batch", source, *spatial]
    draft.inputs[kernel] = weight
    for j, words in enumerate((["batch", source, *spatial], weight, [target])):
        draft.shared(words, [], [j] if call.outputs[j] else [])
    for word, axis, window in zip(spatial, range(2, 9), windows(call), strict=False):
        if word:
            fine = [data, ~0] if call.outputs[0] else [data]
            moved = _Moved(draft, word, axis, fine=fine, coarse=[gradient])
            moved.cut(window, {gradient: window.seeing, data: window.seen})
    return draft.finished(linear_sets(call, rule))


def pool(call: NamedCall, rule: CallRule) -> Pattern | None:
    """A pool over the last axes, of which there are ``spatial``, or its gradient (``backward``).

    Without ``cut`` these are never cut, nor is a pool that tells the places of its maxima: these
    speak of the whole plane.
    """
    backward, draft = rule.options.get("backward", False), Draft(call)
    count = rule.options.get("spatial", len(call.outputs[0]) - 2)
    words = _planes(len(call.outputs[0]), count)
    if not rule.options.get("cut", True) or len(call.outputs) > 1:
        words[-count:] = [NONE] * count
    draft.shared(words, range(call.n_tensors), range(len(call.outputs)))
    for j in call.tensors("self") if backward else ():
        draft.inputs[j] = None  # Only its shape matters.
    first = len(words) - count
    for word, axis, window in zip(words[first:], range(first, 9), windows(call), strict=False):
        if not word:
            continue
        if backward:
            moved = _Moved(draft, word, axis, fine=[~0], coarse=[0])
            moved.cut(window, {0: window.seeing})
        else:
            moved = _Moved(draft, word, axis, fine=[0], coarse=[~0])
            moved.cut(window, {0: window.seen})
    return draft.finished(linear_sets(call, rule))


def resize(call: NamedCall, rule: CallRule) -> Pattern | None:
    """Each place of the coarser tensor is as many of the finer one: adaptive pools, upsampling.

    An axis along which the numbers do not divide is not cut; nor is any, without ``cut``. With
    ``mean``, an axis of which one place is left is averaged.
    """
    result, n = call.outputs[0], call.n_tensors
    backward = rule.options.get("backward", False)
    count = rule.options.get("spatial", len(result) - 2)
    words = _planes(len(result), count)
    draft = Draft(call)
    for i in range(len(result) - count, len(result)):
        lengths = (call.inputs[0][i], result[i])
        if not rule.options.get("cut", True) or max(lengths) % min(lengths):
            words[i] = NONE
        elif min(lengths) == 1:
            if rule.options.get("mean", False):
                draft.means([words[i]], Meaning(is_mean=True))
            else:
                words[i] = NONE
        elif lengths[0] != lengths[1]:
            steps = tuple(length // min(lengths) for length in lengths)
            draft.means([words[i]], Meaning(halos=((0, 0),) * n, steps=(*steps[:1] * n, steps[1])))
    draft.shared(words, [j for j in range(n) if len(call.inputs[j]) > 2], range(len(call.outputs)))
    if backward:
        for j in call.tensors("self"):
            draft.inputs[j] = None
    return draft.finished(linear_sets(call, rule))


@dataclass(frozen=True)
class _Moved:
    """A spatial axis: which inputs are fine and which coarse; ``~j`` is output j."""

    draft: Draft
    word: str
    axis: int
    fine: Sequence[int]
    coarse: Sequence[int]

    def length(self, tensor: int) -> int:
        call = self.draft.call
        return call.inputs[tensor][self.axis] if tensor >= 0 else call.outputs[~tensor][self.axis]

    def cut(self, window: Window, halos: dict[int, Halo]) -> None:
        """Sets the effect of cutting the axis; an axis with one place of the window is not cut."""
        draft, call = self.draft, self.draft.call
        places, positions = self.length(self.coarse[0]), self.length(self.fine[0])
        if places == 1:
            for tensor in (*self.fine, *self.coarse):
                words = draft.inputs[tensor] if tensor >= 0 else draft.outputs[~tensor]
                assert words is not None
                words[self.axis] = NONE
            return
        if positions == places and window.stride == 1 and not any(map(any, halos.values())):
            return
        n = call.n_tensors
        steps = [1] * (n + len(call.outputs))
        for tensor in self.fine:
            steps[tensor if tensor >= 0 else n + ~tensor] = window.stride
        meaning = Meaning(halos=tuple(halos.get(j, (0, 0)) for j in range(n)), steps=tuple(steps))
        draft.means([self.word], meaning)


def windows(call: NamedCall) -> list[Window]:
    """The windows of a call, one per spatial axis."""
    kernel = call.value("kernel_size")
    weight = call.tensors("weight")
    sizes = call.inputs[weight[0]][2:] if weight else _several(kernel, 1)
    count = len(sizes)
    rows = zip(
        sizes,
        _several(call.value("stride") or (1 if weight else sizes), count),
        _several(call.value("padding", 0), count)[:count],
        _several(call.value("dilation", 1), count),
        strict=True,
    )
    each_axis = [Window(*each) for each in rows]
    if not str(call.value("same", "")).upper().startswith("SAME"):
        return each_axis
    return [_same(call, 2 + i, window) for i, window in enumerate(each_axis)]


def _same(call: NamedCall, axis: int, window: Window) -> Window:
    """A window with the padding that makes as many places as positions over the stride."""
    positions, places = sorted((call.inputs[0][axis], call.outputs[0][axis]))[::-1]
    total = max((places - 1) * window.stride + window.reach - positions, 0)
    is_before = str(call.value("same")).upper() == "SAME_LOWER"
    return replace(window, padding=(total + is_before) // 2)


def _several(value: int | Sequence[int], count: int) -> Sequence[int]:
    """One number per axis."""
    several = (value,) if isinstance(value, int) else tuple(value)
    return several * count if len(several) == 1 else several


def _spatial(count: int) -> list[str]:
    return [f"spatial{i}" for i in range(count)]


def _planes(rank: int, spatial: int) -> list[str]:
    return ["batch", "channel"][spatial + 2 - rank :] + _spatial(spatial)


def _channels(call: NamedCall, draft: Draft) -> tuple[str, str]:
    """Words for channels of the input and of the output; in groups, both are the group."""
    groups = call.value("groups", 1)
    if groups == 1:
        return "input_channel", "output_channel"
    sizes = [call.inputs[call.tensors("input")[0]][1]]
    gradient = call.tensors("grad_output")
    sizes.append((call.inputs[gradient[0]] if gradient else call.outputs[0])[1])
    draft.unequal.add("group")
    draft.means(["group"], Meaning(least=min(sizes) // groups))
    return "group", "group"
