"""Recurrent nets and their layers in one op: sequences of a batch are independent."""

from __future__ import annotations

from loadmaster.dimensions.call import NamedCall
from loadmaster.dimensions.draft import NONE, Draft
from loadmaster.dimensions.form import Pattern
from loadmaster.dimensions.rules import CallRule


def recurrent(call: NamedCall, rule: CallRule) -> Pattern | None:
    """An LSTM or a GRU over [step, batch, feature] (``batch_first``: the batch comes first)."""
    if call.value("batch_first") is None or len(call.inputs[0]) != 3:
        return None
    draft = Draft(call)
    sequence = ["batch", NONE, NONE] if call.value("batch_first") else [NONE, "batch", NONE]
    draft.inputs[0] = draft.outputs[0] = sequence
    state = [NONE, "batch", NONE]
    draft.shared(state, call.tensors("hx"), range(1, len(call.outputs)))
    return draft.finished()


def recurrent_layer(call: NamedCall, rule: CallRule) -> Pattern | None:
    """A layer of an LSTM, forward or backward: sequences are [step, batch, feature], states [batch,
    feature]; ``states`` are the outputs of that form. What the forward pass only keeps, for
    ``workspace``, is each device's own.
    """
    if call.value("batch_sizes"):
        return None
    draft = Draft(call)
    weights = {at for name in ("w0", "w1", "w2", "w3") for at in call.tensors(name)}
    for at, sizes in enumerate(call.inputs):
        if at in call.tensors("workspace"):
            draft.inputs[at] = None
        elif at not in weights:
            draft.shared([NONE, "batch", NONE] if len(sizes) == 3 else ["batch", NONE], [at], ())
    for at, sizes in enumerate(call.outputs):
        if len(sizes) == 3:
            draft.shared([NONE, "batch", NONE], (), [at])
    draft.shared(["batch", NONE], (), rule.options["states"])
    return draft.finished()
