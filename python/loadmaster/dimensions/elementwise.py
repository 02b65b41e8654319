"""Ops that work element by element: axes aligned by broadcasting, whatever the op is."""

from __future__ import annotations

from loadmaster.dimensions.call import NamedCall
from loadmaster.dimensions.draft import Draft
from loadmaster.dimensions.form import Pattern
from loadmaster.dimensions.products import linear_sets
from loadmaster.dimensions.rules import CallRule


def elementwise(call: NamedCall, rule: CallRule) -> Pattern | None:
    """The pattern of an op on elements; all of its tensors are aligned.

    ``linear``: see :func:`~loadmaster.dimensions.products.linear_sets`; ``zero``: only where the
    argument at this position is 0. Values of integers and truths are not linear.
    """
    rank = len(call.outputs[0])
    words = [f"axis{i}" for i in range(rank)]
    if any(len(sizes) > rank for sizes in call.inputs):
        return None
    draft = Draft(call)
    draft.shared(words, range(call.n_tensors), range(len(call.outputs)))
    zero = rule.options.get("zero")
    if (
        call.results[0][0] not in "bfc"
        or call.results[0] == "b8"
        or (zero and call.value(zero) != 0)
    ):
        return draft.finished()
    return draft.finished(linear_sets(call, rule))


def made(call: NamedCall, rule: CallRule) -> Pattern | None:
    """The pattern of a new tensor: the values of the arguments do not matter, if there are any."""
    draft = Draft(call)
    for j, sizes in enumerate(call.outputs):
        draft.shared([f"axis{i}" for i in range(len(sizes))], [], [j])
    draft.inputs = [None] * call.n_tensors
    return draft.finished()
