"""The words of recipes for labels: 0 is whole, i > 0 is the cut i - 1 of an op's form.

An op has the cut of its label's name, or else the first whose dimension is that in the model: the
line ``"**" = "batch"`` cuts every op along the batch that can be cut so. Of "expert", what is of
one of several experts, and has no such dimension, is whole on the expert's device. An op that a
line means and that cannot be cut as it says is whole, if some other op of the line can.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import FLAT, OWNER, Form
from loadmaster.model.recipe import AUTO, REPLICATE, WHOLE, Recipe, RecipeLine

#: The label of what a recipe leaves to a solver.
FREE = -6

#: Cuts what has a dimension of experts, and has what is of one expert on one device.
EXPERT = "expert"

#: Roles of a dimension in the model that say less than the name of the cut.
_VAGUE = ("", "feature", "parameter")

_SAME = {"flat": FLAT, "owner": OWNER, AUTO: FREE}
_NUMBERED = {label: word for word, label in _SAME.items()}
_SPEC = re.compile(r"Shard\((\d+)\)(.*)")
_AXIS = re.compile(r"axis(\d+)(.*)")


def label_of(form: Form | None, word: str) -> int | None:
    """The label that a word means for an op of a form; None: it cannot be cut so.

    ``form`` is None of an op that has no form, and can only be whole.
    """
    if word in (WHOLE, REPLICATE):
        return 0
    if word in _SAME:
        return _SAME[word]
    name = _SPEC.sub(r"axis\1\2", word)
    cuts = () if form is None else form.cuts
    by_name = (i for i, cut in enumerate(cuts, start=1) if cut.name == name)
    by_role = (i for i, cut in enumerate(cuts, start=1) if cut.role == name)
    return next(by_name, next(by_role, None))


def word_of(form: Form | None, label: int, *, is_placeholder: bool = False) -> str:
    """The word for a label of an op of a form; of a placeholder, its spec.

    A dimension is told by what it is in the model, if that says which it is: "batch" for the rows
    of a product as for the first axis of a sum. So most ops of a module have one word.
    """
    if label in _NUMBERED:
        return _NUMBERED[label]
    if label == 0 or form is None:
        return REPLICATE if is_placeholder else WHOLE
    cut = form.cuts[label - 1]
    if is_placeholder:
        return _AXIS.sub(r"Shard(\1)\2", cut.name)
    return cut.role if cut.role not in _VAGUE and label_of(form, cut.role) == label else cut.name


def words_of(
    dimensions: Dimensions, axes: Sequence[str], labels: NDArray[np.int32]
) -> dict[str, list[str | None]]:
    """Per axis and op the word of its label, as :meth:`Recipe.of_labels` takes them.

    ``labels`` are int32 [n_axes, n_ops]. Ops without a form have None.
    """
    graph, by_axis = dimensions.graph, {}
    for axis, column in zip(axes, labels, strict=True):
        known: dict[tuple[int, int, bool], str] = {}
        words: list[str | None] = []
        rows = dimensions.form_of.tolist(), column.tolist(), graph.placeholder.tolist()
        for key in zip(*rows, strict=True):
            form, label, is_placeholder = key
            if form < 0:
                words.append(None)
                continue
            if key not in known:
                known[key] = word_of(dimensions.forms[form], label, is_placeholder=is_placeholder)
            words.append(known[key])
        by_axis[axis] = words
    return by_axis


def labels_there(
    here: Dimensions, labels: NDArray[np.int32], ops: NDArray[np.int64], there: Dimensions
) -> NDArray[np.int32]:
    """The labels of the ops of another graph, int32 [n_axes, n_ops there]: op i has that of
    ``ops[i]`` here, by the word for it.
    """
    table = np.zeros((len(labels), len(ops)), dtype=np.int32)
    for axis, column in enumerate(labels[:, ops]):
        rows = np.stack([here.form_of[ops], column, here.graph.placeholder[ops], there.form_of])
        some, which = np.unique(rows, axis=1, return_inverse=True)
        labels_of = [
            label_of(
                there.forms[to], word_of(here.forms[form], label, is_placeholder=bool(is_tensor))
            )
            if min(form, to) >= 0
            else 0
            for form, label, is_tensor, to in some.T.tolist()
        ]
        table[axis] = np.array([label or 0 for label in labels_of], dtype=np.int32)[which.ravel()]
    return table


def labels_of(dimensions: Dimensions, recipe: Recipe) -> NDArray[np.int32]:
    """The labels that a recipe says, int32 [n_axes, n_ops]; :data:`FREE` where it says "auto".

    Raises
    ------
    InputError
        A line means nothing in the graph, or none of the ops that it means can be cut as it says;
        the cuts that they have are named.
    """
    graph, names = dimensions.graph, recipe.mesh.names
    labels = np.zeros((len(names), graph.n_ops), dtype=np.int32)
    labels[:, dimensions.form_of >= 0] = FREE if recipe.rest == AUTO else 0
    for line in recipe.lines(graph):
        forms = dimensions.form_of[line.ops]
        distinct, of = np.unique(forms, return_inverse=True)
        of_form = [
            label_of(dimensions.forms[form] if form >= 0 else None, line.word)
            for form in distinct.tolist()
        ]
        owns = line.word == EXPERT and (dimensions.experts.of_op[line.ops] >= 0).any()
        if all(label is None for label in of_form) and not owns:
            raise _no_such_cut(dimensions, line)
        column = np.array([label or 0 for label in of_form], dtype=np.int32)[of]
        if line.word == EXPERT:
            is_whole = (column == 0) & (dimensions.experts.of_op[line.ops] >= 0)
            column = np.where(is_whole, np.int32(OWNER), column)
        labels[names.index(line.axis), line.ops] = np.where(forms >= 0, column, 0)
    return labels


def _no_such_cut(dimensions: Dimensions, line: RecipeLine) -> InputError:
    known: Counter[str] = Counter()
    for form in dimensions.form_of[line.ops].tolist():
        cuts = dimensions.forms[form].cuts if form >= 0 else ()
        known.update([cut.name for cut in cuts])
    names = [name for name, _ in known.most_common(8)]
    if line.table == "parameters":
        names = [_AXIS.sub(r"Shard(\1)\2", name) for name in names]
    can = f"they can be {', '.join(names)}" if names else "they can only be whole"
    return InputError(f"recipe: {line}: nothing that it means can be {line.word!r}; {can}")
