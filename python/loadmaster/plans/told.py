"""The labels that a plan's recipe gives each op, in the words of recipes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.dimensions.words import words_of
from loadmaster.model.recipe import WHOLE
from loadmaster.plans.plan import Plan


def told_words(plan: Plan) -> dict[str, list[str]]:
    """Per axis of a plan's mesh and op of the user's graph, its label; of a placeholder, its spec.

    What has no label, such as a view, is whole. Of a pipeline's axis the words are stages.
    """
    by_axis: dict[str, list[str]] = {}
    if (stage := stage_of(plan)) is not None:
        assert plan.recipe is not None
        by_axis[plan.recipe.mesh.names[0]] = [f"stage {s}" for s in stage.tolist()]
    if (layout := plan.layout) is not None:
        words = words_of(layout.dimensions, layout.mesh.names, layout.labels)
        by_axis |= {axis: [word or WHOLE for word in column] for axis, column in words.items()}
    return by_axis


def stage_of(plan: Plan) -> NDArray[np.int32] | None:
    """The stage of each op of the user's graph, int32 [n_ops]; None: the plan is no pipeline."""
    if plan.recipe is None or plan.recipe.micro is None:
        return None
    return plan.recipe.stage_of(plan.graph)
