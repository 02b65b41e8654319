"""Cuts of one op by itself: along whole axes of its tensors, into parts that need nothing of each
other.

The op's call has a pattern (:mod:`.binding`), and the pattern has cuts (:mod:`.forming`). Kept are
those whose parts share the work and neither exchange sums nor overlap. Of an op of which nobody
says what it was called with, every call that fits the sizes of its tensors is read
(:mod:`.fitting`), and the cuts that all of these have are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from loadmaster.dimensions import forming
from loadmaster.dimensions.binding import pattern
from loadmaster.dimensions.fitting import fitting, likely
from loadmaster.dimensions.form import ANY, PARTIAL, REPLICATE, Cut
from loadmaster.dimensions.forming import Look
from loadmaster.dimensions.rules import rule_of
from loadmaster.model.arguments import Call, tensors
from loadmaster.model.shapes import Shape

#: The dtype of an output that a call leaves out, such as a gradient that nobody wants.
NOTHING = "none"

#: Families whose spatial axes nobody can cut who does not know the windows.
_WINDOWED = frozenset(("convolution", "convolution-backward", "pool", "resize"))


@dataclass(frozen=True)
class AxisCut:
    """One dimension of an op, along which it can be split.

    Attributes
    ----------
    name : str
        The word of the dimension, such as "batch", "row" or "output_channel".
    size : int
        Its length, on every axis that it is.
    inputs : tuple of (int or None)
        Per tensor, the axis along which it is sliced. None: every part reads all of it.
    outputs : tuple of (int or None)
        Per output, the axis along which the parts are concatenated. None: they are summed.
    """

    name: str
    size: int
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]


def axis_cuts(
    kind: str, call: Call | None, inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> tuple[AxisCut, ...]:
    """The cuts of an op, in the order of its pattern.

    Parameters
    ----------
    kind : str
        With the prefix "tensorflow." if it is of TensorFlow.
    call : Call or None
        What the op was called with, its tensors numbered as in ``inputs``. None: nobody says.
    inputs, outputs : sequence of (dtype, sizes)
        Per tensor that the op reads, each once, and per output.

    Examples
    --------
    >>> shapes = [("f32", (2, 3)), ("f32", (3, 4))], [("f32", (2, 4))]
    >>> [(cut.name, cut.inputs) for cut in axis_cuts("aten.mm.default", None, *shapes)]
    [('row', (0, None)), ('column', (None, 1)), ('contraction', (1, 0))]
    """
    if call is None:
        return _of_sizes(kind, tuple(inputs), tuple(outputs))
    return _of_call(kind, call, inputs, outputs)


@lru_cache(maxsize=65536)
def _of_sizes(
    kind: str, inputs: tuple[Shape, ...], outputs: tuple[Shape, ...]
) -> tuple[AxisCut, ...]:
    """The cuts that all calls have which fit the sizes."""
    rule = rule_of(kind)
    if rule is None:
        return ()
    for calls in (fitting, likely):
        ways = [
            _of_call(kind, call, inputs, outputs) for call in calls(kind, rule, inputs, outputs)
        ]
        if any(ways):
            break
    first, *others = [way for way in ways if way] or [()]
    axes = [{(cut.inputs, cut.outputs) for cut in way} for way in others]
    return tuple(
        cut
        for cut in first
        if all((cut.inputs, cut.outputs) in way for way in axes)
        and not (rule.family in _WINDOWED and cut.name.startswith("spatial"))
    )


def _of_call(
    kind: str, call: Call, inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> tuple[AxisCut, ...]:
    read = list(tensors(call))
    shapes = [*(inputs[i] for i in read), *outputs]
    if any(sizes is None and dtype != NOTHING for dtype, sizes in shapes):
        return ()
    try:
        said = pattern(kind, call, [inputs[i] for i in read], outputs)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
        return ()  # The call is not as its kind's are.
    if said is None:
        return ()
    sizes = [sizes or () for _, sizes in shapes]
    looks = [_look(each) for each in sizes]
    form = forming.form(said, forming.ties(said, sizes), looks)
    cuts = (_axis_cut(cut, read, len(inputs), looks) for cut in form.cuts)
    return tuple(cut for cut in cuts if cut is not None)


def _look(sizes: Sequence[int]) -> Look:
    """A tensor whose axes are taken apart no further."""
    factors = tuple((axis, size) for axis, size in enumerate(sizes) if size > 1)
    return Look(factors, ("",) * len(factors))


def _axis_cut(cut: Cut, read: Sequence[int], n: int, looks: Sequence[Look]) -> AxisCut | None:
    """A cut by axes of the tensors that the op reads; None: its parts need more than that."""
    if not cut.works or cut.exchanged or cut.is_mean or cut.sends or any(map(any, cut.halos)):
        return None
    taken = {REPLICATE, ANY}
    if any(spec < 0 and spec not in taken for spec in cut.inputs):
        return None
    if any(spec < 0 and spec != PARTIAL for spec in cut.outputs):
        return None
    axes: list[int | None] = []
    lengths = set()
    for spec, look in zip((*cut.inputs, *cut.outputs), looks, strict=True):
        axis, size = look.factors[spec] if spec >= 0 else (None, 0)
        axes.append(axis)
        lengths.add(size)
    lengths.discard(0)
    if len(lengths) != 1:
        return None
    [size] = lengths
    results = axes[len(read) :]
    inputs: list[int | None] = [None] * n
    for i, axis, spec, look in zip(read, axes, cut.inputs, looks, strict=False):
        # A part is called with a tensor of its own shape, also where no values matter.
        shaped = spec == ANY and (results[0], size) in look.factors
        inputs[i] = results[0] if shaped else axis
    # A tensor that stands in two places must be sliced alike in both.
    alike = all(
        axis == inputs[i] or spec == ANY
        for i, axis, spec in zip(read, axes, cut.inputs, strict=False)
    )
    if not alike or all(axis is None for axis in inputs):
        return None
    return AxisCut(cut.name, size, tuple(inputs), tuple(results))
