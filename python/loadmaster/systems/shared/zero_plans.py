"""Plans of ZeRO, and limits of DeepSpeed on them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loadmaster.dimensions.form import FLAT
from loadmaster.model.graph import PARAMETER
from loadmaster.plans.plan import Plan
from loadmaster.plans.specs import recipe_in_words
from loadmaster.systems.shared.processes import no_replicas, several_families
from loadmaster.systems.shared.refusal import Reason, staged


def in_the_way(plan: Plan) -> Iterator[Reason]:
    """Everything that ZeRO cannot do of the plan."""
    recipe, layout = plan.recipe, plan.layout
    if recipe is None:
        yield from no_replicas(plan)
        kinds = {label.partition("/")[0] for label in plan.program.graph.collectives if label}
        if not plan.program.is_plain and not kinds and plan.graph.updates.any():
            yield "gradients are summed by parameter servers"
        return
    yield from several_families(plan, recipe.mesh.on(plan.cluster).tolist())
    yield from staged(recipe)
    if layout is None:
        return
    known = (layout.labels == 0) | layout.is_batch | (layout.labels == FLAT)
    other = np.flatnonzero(~(known | plan.graph.view).all(axis=0))
    if other.size:
        reason = f"ops are shared otherwise than by the batch ({recipe_in_words(plan)})"
        yield reason, [repr(plan.graph.names[op]) for op in other]
    if len(recipe.mesh.axes) > 1:
        yield "the mesh has several axes, and ZeRO has one", list(recipe.mesh.names)
    if any(axis.shares is not None for axis in recipe.mesh.axes):
        yield "processes have unequal shares of the batch"
    of = plan.graph.stands_for == PARAMETER
    if not (layout.labels[:, of] == FLAT).any():
        yield "no parameter is sharded: what has all of them whole is written as ddp"
    if recipe.recompute:
        yield (
            "modules are recomputed, which is said in the model's own code",
            list(recipe.recompute),
        )
    if recipe.units:
        yield "parameters are gathered by modules, which is written as fsdp", list(recipe.units)
