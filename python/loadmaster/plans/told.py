"""How a plan's recipe comes out for each op, in the words of recipes."""

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
    if (stage := stage_of(plan)) is not None:
        assert plan.recipe is not None
        return {axis: [f"stage {s}" for s in stage.tolist()] for axis in plan.recipe.mesh.names}
    layout = plan.layout
    assert layout is not None
    found = words_of(layout.dimensions, layout.mesh.names, layout.labels)
    return {axis: [word or WHOLE for word in column] for axis, column in found.items()}


def stage_of(plan: Plan) -> NDArray[np.int32] | None:
    """The stage of each op of the user's graph, int32 [n_ops]; None: the plan is no pipeline.

    What does not run, such as a parameter, is in the stage of the op that has it.
    """
    if plan.recipe is None or plan.recipe.micro is None:
        return None
    reduced = plan.graph.reduced
    return plan.recipe.stage_of(plan.graph)[reduced.op_of[reduced.map]]
