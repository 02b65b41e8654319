"""Normalisations: statistics over some axes, which parts of these axes exchange."""

from __future__ import annotations

from math import prod

from loadmaster.dimensions.call import NamedCall
from loadmaster.dimensions.draft import NONE, Draft
from loadmaster.dimensions.form import Meaning, Pattern
from loadmaster.dimensions.products import linear_sets
from loadmaster.dimensions.rules import CallRule

#: Bytes of the two sums that make a mean and a variance, or their gradients.
_SUMS = 8


def layer_norm(call: NamedCall, rule: CallRule) -> Pattern | None:
    """Over the last axes: as many as ``normalized_shape`` has, or from ``dim`` on, or the last."""
    sizes = call.inputs[call.tensors("input")[0]]
    rank = len(sizes)
    [first] = call.axes("dim", rank, -1) or [0]
    over = len(call.value("normalized_shape", ())) or rank - first
    words = [f"axis{i}" for i in range(rank - over)]
    features = ["feature"] if over == 1 else [f"feature{i}" for i in range(over)]
    draft = Draft(call)
    draft.means(features, Meaning(exchanged=_SUMS * prod(sizes[: rank - over])))
    draft.shared(words + features, range(call.n_tensors), range(len(call.outputs)))
    return draft.finished(linear_sets(call, rule))


def batch_norm(call: NamedCall, rule: CallRule) -> Pattern | None:
    """Over all axes but the second, or the last where ``data_format`` says so.

    Parts of the batch exchange sums in training. A batch norm of local statistics, as data-parallel
    training has, is this without the exchange. Inputs after the first ``spoken`` are not cut.
    """
    sizes = call.inputs[call.tensors("input")[0]]
    words = ["batch", "channel", *(f"spatial{i}" for i in range(len(sizes) - 2))]
    if call.value("data_format", "") == "NHWC":
        words.append(words.pop(1))
    training = call.value("training", rule.options.get("training", True))
    draft = Draft(call)
    if training:
        meaning = Meaning(exchanged=_SUMS * sizes[words.index("channel")])
        draft.means((word for word in words if word != "channel"), meaning)
    _of_channels(draft, words)
    for j in range(rule.options.get("spoken", call.n_tensors), call.n_tensors):
        draft.inputs[j] = [NONE] * len(call.inputs[j])
    return draft.finished(linear_sets(call, rule))


def group_norm(call: NamedCall, rule: CallRule) -> Pattern | None:
    """Over all axes but the first, in groups of channels, by default one channel each.

    Statistics are [batch, group].
    ``backward``: the gradients of weight and bias are made of the sums that parts exchange.
    """
    sizes = call.inputs[call.tensors("input")[0]]
    groups = call.value("group", sizes[1])
    words = ["batch", "channel", *(f"spatial{i}" for i in range(len(sizes) - 2))]
    draft = Draft(call)
    per = sizes[1] if rule.options.get("backward", False) else groups
    draft.means(words[2:], Meaning(exchanged=_SUMS * sizes[0] * per))
    _of_channels(draft, words)
    if groups == 1:
        words[1] = ""
        draft.inputs = [[w if w != "channel" else "" for w in each or ()] for each in draft.inputs]
        draft.outputs = [[w if w != "channel" else "" for w in each] for each in draft.outputs]
    shortest = min(each[1] for each in call.inputs + call.outputs if len(each) > 1)
    draft.unequal.add("channel")
    draft.means(["channel"], Meaning(least=max(shortest // groups, 1)))
    return draft.finished(linear_sets(call, rule))


def _of_channels(draft: Draft, words: list[str]) -> None:
    """Tensors of one axis are of channels; all others begin with batch and channel."""

    def of(sizes: tuple[int, ...]) -> list[str]:
        return ["channel"] if len(sizes) == 1 else words[: len(sizes)]

    draft.inputs = [of(sizes) for sizes in draft.call.inputs]
    draft.outputs = [of(sizes) for sizes in draft.call.outputs]
