"""How a plan's recipe comes out for each op, in the words of recipes."""

from __future__ import annotations

from loadmaster.dimensions.words import words_of
from loadmaster.model.recipe import WHOLE
from loadmaster.plans.plan import Plan


def told_words(plan: Plan) -> dict[str, list[str]]:
    """Per axis of a plan's mesh and op of the user's graph, its label; of a placeholder, its spec.

    What has no label, such as a view, is whole.
    """
    layout = plan.layout
    assert layout is not None
    found = words_of(layout.dimensions, layout.mesh.names, layout.labels)
    return {axis: [word or WHOLE for word in column] for axis, column in found.items()}
