"""Reductions: axes that are summed, averaged, or reduced by an exchange between the parts."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.dimensions.call import NamedCall
from loadmaster.dimensions.draft import NONE, Draft
from loadmaster.dimensions.form import Meaning, Pattern
from loadmaster.dimensions.products import linear_sets
from loadmaster.dimensions.rules import CallRule


def reduction(call: NamedCall, rule: CallRule) -> Pattern | None:
    """The pattern of a reduction of the first argument over the axes ``dim``; all if not given.

    ``exchanged``: bytes per element of the first output that parts of a reduced axis exchange; 0:
    they are summed, or averaged (``mean``).
    """
    rank = len(call.inputs[0])
    axes = call.axes("dim", rank, rule.options.get("default")) or range(rank)
    words = [f"axis{i}" for i in range(rank)]
    draft = Draft(call)
    same = [j for j, sizes in enumerate(call.inputs) if sizes == call.inputs[0]]
    draft.shared(words, same, [])
    for j, sizes in enumerate(call.outputs):
        # An axis that is kept has length 1.
        is_kept = len(sizes) == rank
        left = [NONE if i in axes else word for i, word in enumerate(words)]
        draft.outputs[j] = left if is_kept else [w for i, w in enumerate(words) if i not in axes]
    elements = 1
    for size in call.outputs[0]:
        elements *= size
    meaning = Meaning(
        exchanged=rule.options.get("exchanged", 0) * elements,
        is_mean=rule.options.get("mean", False),
    )
    draft.means((words[i] for i in axes), meaning)
    return draft.finished(linear_sets(call, rule))


def along(call: NamedCall, rule: CallRule) -> Pattern | None:
    """The pattern of an op along the axes ``dim``, which is free of all others.

    ``exchanged``: bytes per element of all other axes together that parts of ``dim`` exchange; 0:
    it is never cut. Axes of which tensors have more or less than the first output are not cut, nor
    are axes after ``dim`` with ``flat``: older calls mean all axes from ``dim`` on.
    """
    axes = call.axes("dim", len(call.outputs[0]), rule.options.get("default"))
    if axes is None:
        return None
    if rule.options.get("flat", False):
        axes = list(range(axes[0], len(call.outputs[0])))
    return _along(call, rule, axes)


def moved(call: NamedCall, rule: CallRule) -> Pattern | None:
    """The pattern of an op that moves along some axes, such as a window, and is free of all others.

    ``numbers`` names its lists of a number per axis. An axis is free if all of them have the number
    ``still`` there.
    """
    rank, axes = len(call.outputs[0]), set[int]()
    for name in rule.options["numbers"]:
        numbers = call.value(name)
        if not isinstance(numbers, tuple) or len(numbers) != rank:
            return None
        axes.update(i for i, number in enumerate(numbers) if number != rule.options["still"])
    return _along(call, rule, sorted(axes))


def _along(call: NamedCall, rule: CallRule, axes: Sequence[int]) -> Pattern | None:
    sizes = call.outputs[0]
    per, row = rule.options.get("exchanged", 0), rule.options.get("word", "axis")
    same = [
        all(len(other) != len(sizes) or other[i] == size for other in call.inputs + call.outputs)
        for i, size in enumerate(sizes)
    ]
    words = [f"axis{i}" if same[i] and i not in axes else NONE for i in range(len(sizes))]
    draft = Draft(call)
    if per and all(same[i] for i in axes):
        elements = 1
        for i, size in enumerate(sizes):
            elements *= 1 if i in axes else size
        for i in axes:
            words[i] = f"{row}{i}" if len(axes) > 1 else row
            draft.means([words[i]], Meaning(exchanged=per * elements))
    draft.shared(
        words,
        [j for j, other in enumerate(call.inputs) if len(other) == len(sizes)],
        range(len(call.outputs)),
    )
    return draft.finished(linear_sets(call, rule))
