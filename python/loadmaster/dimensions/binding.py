"""The pattern of a call: its kind's rule, read for its arguments and the shapes of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from loadmaster.dimensions import (
    elementwise,
    indexing,
    losses,
    normalisation,
    products,
    recurrent,
    reductions,
    views,
    windows,
)
from loadmaster.dimensions.call import Argument, NamedCall, skeleton
from loadmaster.dimensions.form import Pattern
from loadmaster.dimensions.rules import TENSORFLOW, CallRule, rule_of
from loadmaster.model.shapes import Shape

#: Beginning of the dtypes that every call of TensorFlow has among its keywords.
_DTYPE = "DT_"

#: Readers of calls, by family.
FAMILIES: Mapping[str, Callable[[NamedCall, CallRule], Pattern | None]] = {
    "along": reductions.along,
    "batch-norm": normalisation.batch_norm,
    "contraction": products.contraction,
    "convolution": windows.convolution,
    "convolution-backward": windows.convolution_backward,
    "broadcast": views.broadcast,
    "einsum": products.einsum,
    "element": views.element,
    "elementwise": elementwise.elementwise,
    "gather": indexing.gather,
    "group-norm": normalisation.group_norm,
    "index": indexing.index,
    "index-add": indexing.add,
    "index-select": indexing.select,
    "joined": views.joined,
    "labelled": products.labelled,
    "layer-norm": normalisation.layer_norm,
    "likelihood": losses.likelihood,
    "likelihood-backward": losses.likelihood_backward,
    "loss": losses.loss,
    "made": elementwise.made,
    "moved": reductions.moved,
    "padded": views.padded,
    "permute": views.permute,
    "piece": views.piece,
    "pieces": views.pieces,
    "pool": windows.pool,
    "product": products.product,
    "put-back": views.put_back,
    "recurrent": recurrent.recurrent,
    "recurrent_layer": recurrent.recurrent_layer,
    "reduction": reductions.reduction,
    "repeat": views.repeat,
    "reshape": views.reshape,
    "resize": windows.resize,
    "scatter": indexing.scatter,
    "same": views.same,
    "strided": views.strided,
    "stacked": views.stacked,
}


def pattern(
    kind: str, args: Sequence[Any], inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> Pattern | None:
    """The axes of a call's tensors that are one dimension, and the effect of cutting it.

    Parameters
    ----------
    kind : str
    args : sequence
        The call's entry of ``OpGraph.args``.
    inputs, outputs : sequence of (dtype, sizes)
        Per tensor argument in the order of the call, and per output.

    Returns
    -------
    Pattern or None
        None: no rule fits, or the arguments are not what calls of the kind have, and the op is
        whole. Calls that are alike have the same pattern.

    Examples
    --------
    >>> shapes = [("f32", (2, 3)), ("f32", (3, 4))], [("f32", (2, 4))]
    >>> pattern("aten.mm.default", [[{"op": 0}, {"op": 1}]], *shapes).words
    ('row', 'column', 'contraction')
    """
    positional, keywords = skeleton(args)
    return _pattern(kind, positional, keywords, tuple(inputs), tuple(outputs))


@lru_cache(maxsize=65536)
def _pattern(
    kind: str,
    positional: tuple[Argument, ...],
    keywords: tuple[tuple[str, Argument], ...],
    inputs: tuple[Shape, ...],
    outputs: tuple[Shape, ...],
) -> Pattern | None:
    is_tensorflow = any(str(value).startswith(_DTYPE) for _, value in keywords)
    rule = rule_of(TENSORFLOW + kind if is_tensorflow else kind)
    shapes = (*inputs, *outputs[:1])
    if rule is None or any(sizes is None and dtype != "none" for dtype, sizes in shapes):
        return None
    values = {rule.names.get(name, name): value for name, value in keywords}
    call = NamedCall(kind, positional, values, inputs, outputs, rule.arguments)
    if any(call.value(name, value) != value for name, value in rule.only.items()):
        return None
    if any(call.value(name) is None for name in rule.needs):
        return None
    try:
        return FAMILIES[rule.family](call, rule)
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None  # The arguments are not what calls of this kind have: nothing is known.
