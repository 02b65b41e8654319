"""A user's recipe, applied and judged as it is: only the better of two orders is chosen."""

from __future__ import annotations

import fnmatch
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.judge.problem import Problem
from loadmaster.model.program import Program
from loadmaster.model.recipe import Recipe
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.pipelines.piped import by_recipe
from loadmaster.strategies.registry import strategy
from loadmaster.strategies.sharding.degrees import degrees
from loadmaster.strategies.simple.data_parallel import in_best_order
from loadmaster.strategies.simple.homes import where_allowed
from loadmaster.transforms import shard
from loadmaster.transforms.layout import Layout


@strategy("recipe", "a user's recipe, applied as it is", is_final=True)
def place(problem: Problem, *, recipe: Recipe) -> Candidate:
    """The program of :func:`loadmaster.transforms.shard`, each op on its place of the mesh.

    Ops run in Kahn order or in the program's own, whichever is faster. A recipe with micro-batches
    is a pipeline: ops are on their stages' devices, and run by its schedule.

    Parameters
    ----------
    problem : Problem
    recipe : Recipe

    Raises
    ------
    InputError
        The recipe means nothing in this graph, leaves something to a solver, or has devices that
        the cluster lacks.
    InfeasibleError
        It does not fit, or no device may run some op.
    """
    mesh = recipe.mesh.on(problem.cluster)
    if recipe.micro is not None:
        return by_recipe(problem, recipe)
    candidate = on_mesh(problem, shard(problem.model, recipe), mesh)
    if recipe.overrides:
        return candidate
    named = degrees(Layout.of(problem.model, recipe), recipe.recompute)
    return replace(candidate, parallelism=named)


def on_mesh(problem: Problem, program: Program, mesh: NDArray[np.int32]) -> Candidate:
    """A program of shards with each op on its place of a mesh, in the better of two orders.

    ``mesh`` has the device of each place. An op that may be anywhere is on the first.
    """
    placed = problem.transformed(program)
    devices = mesh[np.maximum(placed.program.rank[placed.reduced.op_of], 0)]
    if program.recipe is not None:
        _override(placed, program.recipe, devices)
    candidate = in_best_order(placed, where_allowed(placed, devices))
    return candidate.noted(*placed.program.notes)


def _override(placed: Problem, recipe: Recipe, devices: NDArray[np.int32]) -> None:
    """Puts what the recipe's overrides name on its devices."""
    program: Program = placed.program
    for pattern, device in recipe.overrides.items():
        there = placed.cluster.index(device)
        meant = fnmatch.filter(program.source.names, pattern)
        if not meant:
            raise InputError(f"recipe: overrides: no op is named {pattern!r}")
        for name in meant:
            at = int(program.whole[program.source.index(name)])
            if at < 0:
                raise InputError(
                    f"recipe: overrides: {name!r} has parts on several devices, which its labels "
                    "place: make it whole on a mesh of one device, or leave the override out"
                )
            devices[placed.reduced.map[at]] = there
