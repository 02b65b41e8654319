"""Whole recurrent nets in one op: sequences of a batch are independent."""

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
