"""Losses: elements or rows are compared, and the result is left, summed or averaged."""

from __future__ import annotations

from math import prod

from loadmaster.dimensions.call import NamedCall
from loadmaster.dimensions.draft import Draft
from loadmaster.dimensions.form import Meaning, Pattern
from loadmaster.dimensions.products import linear_sets
from loadmaster.dimensions.rules import CallRule

#: Values of ``reduction`` as PyTorch numbers them.
_LEFT, _MEAN = 0, 1


def loss(call: NamedCall, rule: CallRule) -> Pattern | None:
    """Between elements; or its gradient, which begins with the gradient of the loss."""
    rank = max(map(len, call.inputs))
    words = [f"axis{i}" for i in range(rank)]
    draft = Draft(call)
    draft.shared(words, range(call.n_tensors), range(len(call.outputs)))
    if call.value("reduction", _MEAN) == _MEAN:
        draft.means(words, Meaning(is_mean=True))
    return draft.finished(linear_sets(call, rule))


def likelihood(call: NamedCall, rule: CallRule) -> Pattern | None:
    """Negative log likelihood of ``target`` [batch, position*] by [batch, class, position*].

    Sums and the weight that a mean is divided by are exchanged: samples may be ignored.
    ``exchanged``: bytes per sample that parts of the classes exchange besides.
    """
    sizes = call.inputs[call.tensors("self")[0]]
    target = call.inputs[call.tensors("target")[0]]
    if len(target) != len(sizes) - 1 or len(sizes) < 2:
        return None
    samples = ["batch", *(f"position{i}" for i in range(len(sizes) - 2))]
    words = ["batch", "class", *samples[1:]]
    draft = Draft(call)
    per = 2 * 4 if call.value("reduction", _MEAN) == _MEAN else 0
    draft.means(samples, Meaning(exchanged=per))
    scores = rule.options.get("exchanged", 0) * prod(target)
    draft.means(["class"], Meaning(exchanged=per + scores))
    draft.shared(words, call.tensors("self"), [])
    draft.shared(samples, call.tensors("target"), [])
    draft.shared(["class"], call.tensors("weight"), [])
    if call.value("reduction", _MEAN) == _LEFT:
        draft.shared(samples, [], [0])
    return draft.finished(linear_sets(call, rule))


def likelihood_backward(call: NamedCall, rule: CallRule) -> Pattern | None:
    """Its gradient; the weight that a mean is divided by is an argument."""
    sizes = call.outputs[0]
    if len(sizes) < 2:
        return None
    samples = ["batch", *(f"position{i}" for i in range(len(sizes) - 2))]
    draft = Draft(call)
    draft.inputs[call.tensors("self")[0]] = None
    gradient = call.tensors("grad_output")
    draft.shared(samples, [j for j in gradient if call.inputs[j]], [])
    draft.shared(samples, call.tensors("target"), [])
    draft.shared(["class"], call.tensors("weight"), [])
    draft.shared(["batch", "class", *samples[1:]], [], [0])
    return draft.finished(linear_sets(call, rule))
