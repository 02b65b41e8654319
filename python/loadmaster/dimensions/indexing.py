"""Ops that look up or write places that an index says.

Axes of the index are free. So are axes that are not indexed. Along the one axis that is indexed,
a part looks up what falls into its own places, or adds what does: so it has, or needs, the rows
that the index picks of its entries.
"""

from __future__ import annotations

from loadmaster.dimensions.call import NamedCall
from loadmaster.dimensions.draft import NONE, Draft
from loadmaster.dimensions.form import Meaning, Pattern
from loadmaster.dimensions.rules import CallRule

_ENTRY = "entry"


def index(call: NamedCall, rule: CallRule) -> Pattern | None:
    """``index`` and ``index_put`` (if there are ``values``), by tensors of integers."""
    layout = _layout(call)
    if layout is None:
        return None
    place, entries = layout
    draft = Draft(call)
    draft.inputs[0] = place
    for j in call.tensors("indices"):
        draft.shared([word for word in entries if word.startswith("index")], [j], [])
    values = call.tensors("values")
    if not values:
        draft.outputs[0] = entries
        draft.means([_ENTRY], Meaning(picked=(call.n_tensors,)))
        return draft.finished([[0]])
    draft.outputs[0] = place
    adds = bool(call.value("accumulate", False))
    if not adds:
        entries = [NONE if word.startswith("index") else word for word in entries]
        for j in call.tensors("indices"):
            draft.inputs[j] = [NONE] * len(call.inputs[j])
    else:
        draft.means([_ENTRY], Meaning(picked=tuple(values)))
    draft.shared(entries, values, [])
    return draft.finished([[0, *values]] if adds else ())


def _layout(call: NamedCall) -> tuple[list[str], list[str]] | None:
    """Words of the tensor that is indexed, and of what is found in it; None: by truths."""
    indices = call.value("indices")
    tensors = call.tensors("indices")
    if any(call.dtypes[j] in ("b8", "u8") for j in tensors):
        return None
    rank = max(len(call.inputs[j]) for j in tensors)
    indexed = [i for i, value in enumerate(indices) if value is not None]
    words = [f"axis{i}" for i in range(len(call.inputs[0]))]
    entries = [word for i, word in enumerate(words) if i not in indexed]
    is_one_run = indexed[-1] - indexed[0] + 1 == len(indexed)
    at = indexed[0] if is_one_run else 0
    entries[at:at] = [f"index{i}" for i in range(rank)]
    for i in indexed:
        words[i] = _ENTRY if len(indexed) == 1 else NONE
    return words, entries


def select(call: NamedCall, rule: CallRule) -> Pattern | None:
    """``index_select``: places of the axis ``dim``, by default the first, by a tensor of them."""
    rank = len(call.inputs[0])
    [axis] = call.axes("dim", rank, 0) or [0]
    [places] = call.tensors("index")
    words = [f"axis{i}" for i in range(rank)]
    index = [f"index{i}" for i in range(len(call.inputs[places]))]
    draft = Draft(call)
    draft.inputs[places] = index
    draft.outputs[0] = [*words[:axis], *index, *words[axis + 1 :]]
    words[axis] = _ENTRY
    draft.inputs[0] = words
    draft.means([_ENTRY], Meaning(picked=(call.n_tensors,)))
    return draft.finished([[0]])


def add(call: NamedCall, rule: CallRule) -> Pattern | None:
    """``index_add``: a source is added at places of the axis ``dim``."""
    rank = len(call.outputs[0])
    axes = call.axes("dim", rank)
    assert axes is not None
    words = [f"axis{i}" for i in range(rank)]
    source = call.tensors("source")
    draft = Draft(call)
    draft.shared(["index"], call.tensors("index"), [])
    draft.shared(["index" if i in axes else word for i, word in enumerate(words)], source, [])
    draft.shared([_ENTRY if i in axes else word for i, word in enumerate(words)], [0], [0])
    draft.means([_ENTRY], Meaning(picked=tuple(source)))
    return draft.finished([[0, *source]])


def gather(call: NamedCall, rule: CallRule) -> Pattern | None:
    """XLA's ``gather``: at places of some axes of a tensor, slices of all others.

    ``start_index_map`` has the axes that an index speaks of, ``offset_dims`` the axes of the result
    that are of slices. Pairs of axes may be a batch.
    """
    if call.n_tensors != 2:
        return None
    tensor, starts = call.inputs
    offsets, vector = call.value("offset_dims", ()), call.value("index_vector_dim", len(starts))
    batch = call.value("operand_batching_dims", ())
    gone = {*call.value("collapsed_slice_dims", ()), *batch}
    index = [f"index{i}" if i != vector else NONE for i in range(len(starts))]
    for own, other in zip(batch, call.value("start_indices_batching_dims", ()), strict=True):
        index[other] = f"axis{own}"
    words = [f"axis{i}" for i in range(len(tensor))]
    indexed = call.value("start_index_map", ())
    for i, (size, most) in enumerate(zip(call.value("slice_sizes"), tensor, strict=True)):
        if i in indexed or (size != most and i not in batch):
            words[i] = _ENTRY if [i] == [*indexed] and i in gone else NONE
    slices = [word for i, word in enumerate(words) if i not in gone]
    places = [word for i, word in enumerate(index) if i != vector]
    draft = Draft(call)
    draft.inputs = [words, index]
    draft.outputs[0] = [
        (slices if i in offsets else places).pop(0) for i in range(len(call.outputs[0]))
    ]
    return draft.finished([[0]])


def scatter(call: NamedCall, rule: CallRule) -> Pattern | None:
    """XLA's ``scatter``: slices of updates change a tensor at places of some of its axes.

    What happens where two write is not told, so that axes of the index are not cut.
    """
    rank = len(call.outputs[0])
    updates = call.inputs[-1]
    windows, gone = call.value("update_window_dims", ()), call.value("inserted_window_dims", ())
    indexed = call.value("scatter_dims_to_operand_dims", ())
    if call.n_tensors < 2 or call.value("input_batching_dims", ()) or len(call.outputs) > 1:
        return None
    words = [f"axis{i}" for i in range(rank)]
    kept = [i for i in range(rank) if i not in gone]
    draft = Draft(call)
    written = [NONE] * len(updates)
    for axis, own in zip(windows, kept, strict=True):
        if own in indexed or updates[axis] != call.outputs[0][own]:
            words[own] = NONE
        written[axis] = words[own]
    for i in gone:
        words[i] = _ENTRY if [i] == [*indexed] else NONE
    draft.inputs[-1] = written
    draft.outputs[0] = words
    if call.n_tensors > 2:
        draft.inputs[0] = words
    return draft.finished()
