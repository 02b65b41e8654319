"""Plans of fully sharded data parallelism: mesh and units, and limits of FSDP2 on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from loadmaster.base.errors import InputError
from loadmaster.dimensions.form import FLAT
from loadmaster.model.graph import PARAMETER
from loadmaster.model.parallelism import Parallelism
from loadmaster.model.patterns import innermost
from loadmaster.plans.plan import Plan
from loadmaster.plans.specs import recipe_in_words
from loadmaster.strategies.sharding.units import RECIPE, unit_patterns
from loadmaster.systems.shared.names import listed
from loadmaster.systems.shared.processes import several_families
from loadmaster.systems.shared.refusal import Reason, refusal, staged
from loadmaster.systems.shared.uniform_meshes import PARTS, REPLICAS
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.shares import only_gradients


def parallelism_in(plan: Plan, name: str) -> Parallelism:
    """The plan's parallelism: as it was made for a system that has FSDP2, or as its labels have it.

    Raises
    ------
    InputError
        All that is in the way.
    """
    recipe, parallelism = plan.recipe, plan.parallelism
    is_planned = plan.target is not None and recipe is not None and recipe.name == RECIPE
    if is_planned and parallelism is not None:
        return parallelism
    layout, reasons = plan.layout, list(in_the_way(plan))
    if reasons or layout is None:
        raise refusal(plan, name, reasons)
    parts = layout.mesh.shape[_inner(layout)[0]]
    return Parallelism(replicate=layout.mesh.size // parts, shard=parts, shard_state="parameters")


def mesh_of(parallelism: Parallelism) -> dict[str, int]:
    """The sizes of the mesh, by the names of the file."""
    outer = {REPLICAS: parallelism.replicate} if parallelism.replicate > 1 else {}
    return {**outer, PARTS: parallelism.shard}


def _inner(layout: Layout) -> list[int]:
    """The axes on which parameters are sharded."""
    of = layout.graph.stands_for == PARAMETER
    inner: list[int] = np.flatnonzero((layout.labels[:, of] == FLAT).any(axis=1)).tolist()
    return inner


def words_of_units(plan: Plan) -> Mapping[str, str]:
    """The units as patterns, those of FSDP2's usage where the recipe has none."""
    assert plan.recipe is not None
    usual = {**dict.fromkeys(unit_patterns(plan.graph), "again"), ".": "kept"}
    return plan.recipe.units or usual


def modules_in(plan: Plan, patterns: Sequence[str], root: str = "") -> list[str]:
    """The modules that patterns mean."""
    if not patterns:
        return []
    modules = innermost(list(dict.fromkeys(plan.graph.modules)), list(patterns), "recompute")
    return list(dict.fromkeys(below_root(path, root) for path, _ in modules if path))


def below_root(path: str, root: str) -> str:
    """A path as the model below the root has it."""
    if not root:
        return path
    if not path.startswith(f"{root}."):
        raise InputError(f"{path!r} is not below the root {root!r}")
    return path[len(root) + 1 :]


def one_by_one(plan: Plan) -> Iterator[Reason]:
    """The reason against units of modules where every parameter is one."""
    units = plan.recipe.units if plan.recipe is not None else {}
    if any(word.startswith("each") for word in units.values()):
        yield "parameters are gathered one by one, which simplefsdp does"


def in_the_way(plan: Plan) -> Iterator[Reason]:
    """Everything that FSDP2 cannot do of the plan."""
    layout, recipe = plan.layout, plan.recipe
    if recipe is None:
        yield "parameters are not sharded"
        return
    yield from several_families(plan, recipe.mesh.on(plan.cluster).tolist())
    yield from staged(recipe)
    yield from one_by_one(plan)
    if layout is None:
        return
    graph, names = plan.graph, plan.graph.names
    known = (layout.labels == 0) | layout.is_batch | (layout.labels == FLAT)
    # What only adds gradients up is done before they are scattered, or after.
    known = known | only_gradients(graph, graph.roles)
    other = np.flatnonzero(~(known | graph.view).all(axis=0))
    if other.size:
        reason = f"ops are shared otherwise than by the batch ({recipe_in_words(plan)})"
        yield reason, [repr(names[op]) for op in other]
    sharded = _inner(layout)
    if not sharded:
        yield "no parameter is sharded: what has all of them whole is written as ddp"
    if len(sharded) > 1:
        axes = [layout.mesh.names[axis] for axis in sharded]
        yield "parameters are sharded on several axes, and fully_shard has one", axes
    if any(axis.shares is not None for axis in layout.mesh.axes):
        yield "processes have unequal shares of the batch"
    if recipe.overrides:
        yield "ops are put on devices by name", [repr(name) for name in recipe.overrides]
    whole = [
        names[op]
        for op in np.flatnonzero(graph.stands_for == PARAMETER).tolist()
        if sharded and not (layout.labels[:, op] == FLAT).any() and graph.param_bytes[op]
    ]
    if whole:
        yield f"parameters are whole beside others that are sharded ({listed(whole)})"
