"""How a plan's recipe comes out for each op, in words for people.

A label is told as what its dimension is in the model: "batch" for the rows of a product as for the
first axis of a sum. A feature is told by the cut's own name, such as "column" or "contraction".
"""

from __future__ import annotations

from loadmaster.dimensions.form import Form
from loadmaster.dimensions.words import word_of
from loadmaster.plans.plan import Plan

#: What a dimension is in the model, where that says less than the name of the cut.
_VAGUE = ("", "feature", "parameter")


def told(form: Form | None, label: int, is_placeholder: bool) -> str:
    """The word for a label; the spec of a placeholder."""
    if label > 0 and form is not None and not is_placeholder:
        role = form.cuts[label - 1].role
        if role not in _VAGUE:
            return role
    return word_of(form, label, is_placeholder=is_placeholder)


def told_words(plan: Plan) -> dict[str, list[str]]:
    """Per axis of a plan's mesh and op of the user's graph, how it comes out."""
    layout = plan.layout
    assert layout is not None
    forms, found = layout.dimensions.forms, {}
    of_op = layout.dimensions.form_of.tolist(), plan.graph.placeholder.tolist()
    known: dict[tuple[int, bool, int], str] = {}
    for axis, labels in zip(layout.mesh.names, layout.labels.tolist(), strict=True):
        words = []
        for key in zip(*of_op, labels, strict=True):
            if key not in known:
                form, is_placeholder, label = key
                has = form >= 0
                known[key] = told(forms[form] if has else None, label, is_placeholder)
            words.append(known[key])
        found[axis] = words
    return found
