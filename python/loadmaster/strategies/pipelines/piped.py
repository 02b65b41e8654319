"""Stages, micro-batches and a schedule as a plan, and as a recipe: each made of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.judge.problem import Problem
from loadmaster.model.micro import NAMED, WINDOWS, Micro
from loadmaster.model.recipe import Mesh, Recipe
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.pipelines.schedules import Named, Windows
from loadmaster.strategies.pipelines.scheduling import scheduled
from loadmaster.strategies.pipelines.staged import Staged
from loadmaster.transforms.micro_batches import micro_batches
from loadmaster.transforms.recomputation import recompute


def micro_batched(
    problem: Problem, m: int, modules: Sequence[str] = (), rows: Sequence[int] | None = None
) -> Problem:
    """The problem with so many micro-batches, and some modules recomputed."""
    if modules:
        problem = problem.transformed(recompute(problem.model, modules))
    return problem.transformed(micro_batches(problem.model, m, rows))


def piped(
    problem: Problem,
    stage: NDArray[np.integer],
    devices: Sequence[int],
    micro: Micro,
    modules: Sequence[str] = (),
) -> Candidate:
    """Stages with micro-batches, judged.

    Parameters
    ----------
    problem : Problem
    stage : int [n_user_ops]
    devices : sequence of int
        Of each stage.
    micro : Micro
    modules : sequence of str
        Patterns of modules that are recomputed.

    Raises
    ------
    InputError
        What the transforms and the schedule refuse.
    """
    placed = micro_batched(problem, micro.n, modules)
    return scheduled(Staged.of(placed, stage, devices), schedule_of(micro))


def with_recipe(
    found: Candidate,
    stage: NDArray[np.integer],
    devices: Sequence[int],
    micro: Micro,
    modules: Sequence[str] = (),
) -> Candidate:
    """What :func:`piped` made of these, with their recipe in its program."""
    problem = found.problem
    names = [problem.cluster.devices[d].name for d in devices[: len(devices) // micro.chunks]]
    mesh = Mesh.of({"pp": len(names)}, names)
    source = problem.program.source
    recipe = Recipe.of_stages(source, mesh, stage, micro, recompute=tuple(modules))
    program = replace(problem.program, recipe=recipe)
    return replace(found, problem=replace(problem, program=program))


def by_recipe(problem: Problem, recipe: Recipe) -> Candidate:
    """The pipeline of a recipe, judged as it is.

    Raises
    ------
    InputError
        The recipe means nothing in this graph, or names devices that the cluster lacks.
    """
    assert recipe.micro is not None
    stage = recipe.stage_of(problem.model)
    on = recipe.mesh.on(problem.cluster).tolist() * recipe.micro.chunks
    found = piped(problem, stage, on, recipe.micro, recipe.recompute)
    program = replace(found.problem.program, recipe=recipe)
    return replace(found, problem=replace(found.problem, program=program))


def micro_of(m: int, schedule: Named | Windows, chunks: int = 1) -> Micro:
    """Micro-batches and a schedule, as a recipe says them."""
    if isinstance(schedule, str):
        return Micro(m, schedule, chunks)
    return Micro(m, WINDOWS, chunks, schedule.ahead, schedule.delay or (), schedule.in_order)


def schedule_of(micro: Micro) -> Named | Windows:
    """The schedule that a recipe says."""
    for name in NAMED:
        if micro.schedule == name:
            return name
    return Windows(micro.ahead, micro.delay or None, micro.in_order)
