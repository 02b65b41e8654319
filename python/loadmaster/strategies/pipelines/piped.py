"""Stages, micro-batches and a schedule as a plan, and as a recipe: each made of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.judge.problem import Problem
from loadmaster.model.graph import OpGraph
from loadmaster.model.micro import IN_V, NAMED, WINDOWS, Micro
from loadmaster.model.program import Program
from loadmaster.model.recipe import DeviceMesh, MeshAxis, Recipe
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.pipelines.batched import MicroBatched
from loadmaster.strategies.pipelines.in_turn import in_turn
from loadmaster.strategies.pipelines.schedules import Named, Windows
from loadmaster.strategies.pipelines.scheduling import scheduled
from loadmaster.strategies.pipelines.staged import Staged
from loadmaster.strategies.sharding.degrees import in_stages
from loadmaster.strategies.sharding.judging import in_best_order
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.micro_batches import micro_batches
from loadmaster.transforms.recomputation import recompute
from loadmaster.transforms.shards import shard

#: The name of the axis of stages in the recipes of pipelines.
STAGES = "pp"


def micro_batched(
    problem: Problem,
    m: int,
    modules: Sequence[str] = (),
    rows: Sequence[int] | None = None,
    layout: Layout | None = None,
) -> Problem:
    """The problem with so many micro-batches, some modules recomputed, and ops shared inside of
    stages as a layout has them.
    """
    return problem.transformed(in_micro_batches(problem.model, m, modules, rows, layout))


def in_micro_batches(
    graph: OpGraph,
    m: int,
    modules: Sequence[str] = (),
    rows: Sequence[int] | None = None,
    layout: Layout | None = None,
) -> Program:
    """The program of :func:`micro_batched`."""
    if layout is not None:
        return micro_batches(shard(graph, layout, modules), m, rows)
    return micro_batches(recompute(graph, modules) if modules else graph, m, rows)


def piped(
    problem: Problem,
    stage: NDArray[np.integer],
    devices: Sequence[int] | NDArray[np.integer],
    micro: Micro,
    modules: Sequence[str] = (),
    layout: Layout | None = None,
) -> Candidate:
    """Stages with micro-batches, judged.

    Parameters
    ----------
    problem : Problem
    stage : int [n_user_ops]
    devices : int [n_stages] or [n_stages, n_ranks]
        Of each stage; with a layout, of each place of its mesh; all of them where they take
        micro-batches in turn.
    micro : Micro
    modules : sequence of str
        Patterns of modules that are recomputed.
    layout : Layout, optional
        How ops are shared inside of stages. Absent: each stage is on one device.

    Raises
    ------
    InputError
        What the transforms and the schedule refuse.
    """
    if layout is not None:
        layout = replace(layout, stage=np.asarray(stage, dtype=np.int32))
    placed = micro_batched(problem, micro.n, modules, layout=layout)
    return run_in_stages(placed, stage, devices, micro)


def run_in_stages(
    placed: Problem,
    stage: NDArray[np.integer],
    devices: Sequence[int] | NDArray[np.integer],
    micro: Micro,
) -> Candidate:
    """A program of micro-batches, or of the whole batch, with each op in the stage of its origin,
    by a schedule, judged. The other arguments are those of :func:`piped`.
    """
    if micro.in_turn:
        return in_turn(placed, np.asarray(stage), devices, micro.in_turn)
    if micro.n > 1:
        return scheduled(Staged.of(MicroBatched(placed), stage, devices), schedule_of(micro))
    program, op_of = placed.program, placed.reduced.op_of
    table = np.asarray(devices, dtype=np.int32).reshape(len(devices), -1)
    rank = np.maximum(program.rank[op_of], 0)
    return in_best_order(placed, table[np.asarray(stage)[program.serves[op_of]], rank])


def with_recipe(
    candidate: Candidate,
    stage: NDArray[np.integer],
    devices: Sequence[int] | NDArray[np.integer],
    micro: Micro,
    modules: Sequence[str] = (),
    layout: Layout | None = None,
) -> Candidate:
    """The candidate of :func:`piped` from the same arguments, with their recipe in its program, and
    its degrees of parallelism.
    """
    problem = candidate.problem
    table = np.asarray(devices)
    on = table[: len(table) // micro.virtual]
    names = tuple(problem.cluster.devices[d].name for d in on.ravel().tolist())
    axes = (MeshAxis(STAGES, len(on)), *(() if layout is None else layout.mesh.axes))
    inside = {} if layout is None else _inside(layout)
    source = problem.program.source
    recipe = Recipe.of_stages(
        source, DeviceMesh(axes, names), stage, micro, recompute=tuple(modules), **inside
    )
    program = replace(problem.program, recipe=recipe)
    return replace(
        candidate,
        problem=replace(problem, program=program),
        parallelism=in_stages(source, layout, np.asarray(stage), micro, modules),
    )


def _inside(layout: Layout) -> dict[str, Any]:
    """Entries of the recipe of a layout, by attribute: those of ops and of tensors."""
    said = layout.recipe()
    names = ("labels", "parameters", "units", "batch_norm", "bucket_bytes", "expert_imbalance")
    return {name: getattr(said, name) for name in names}


def by_recipe(problem: Problem, recipe: Recipe) -> Candidate:
    """The pipeline of a recipe, judged as it is.

    Raises
    ------
    InputError
        The recipe means nothing in this graph, or names devices that the cluster lacks.
    """
    layout = None if recipe.inside is None else Layout.of(problem.model, recipe)
    return in_stages_of(problem, recipe, layout)


def in_stages_of(problem: Problem, recipe: Recipe, layout: Layout | None) -> Candidate:
    """The pipeline of a recipe, with ops shared inside of stages as a layout has them."""
    assert recipe.micro is not None
    stage = recipe.stage_of(problem.model)
    slices = recipe.mesh.on(problem.cluster).reshape(recipe.mesh.axes[0].size, -1)
    on = slices_of_stages(slices, recipe.micro)
    candidate = piped(problem, stage, on, recipe.micro, recipe.recompute, layout)
    program = replace(candidate.problem.program, recipe=recipe)
    candidate = replace(
        candidate,
        problem=replace(candidate.problem, program=program),
        parallelism=in_stages(problem.model, layout, stage, recipe.micro, recipe.recompute),
    )
    return candidate.noted(*program.notes)


def slices_of_stages(slices: NDArray[Any], micro: Micro) -> NDArray[Any]:
    """The devices of each stage, from those of the first ones.

    >>> slices_of_stages(np.array([[0], [1]]), Micro(4, "zb-v", 2)).ravel().tolist()
    [0, 1, 1, 0]
    """
    if micro.schedule == IN_V:
        return np.concatenate([slices, slices[::-1]])
    return np.tile(slices, (micro.virtual, 1))


def micro_of(m: int, schedule: Named | Windows, virtual: int = 1) -> Micro:
    """Micro-batches and a schedule, as a recipe says them."""
    if isinstance(schedule, str):
        return Micro(m, schedule, virtual)
    return Micro(m, WINDOWS, virtual, schedule.ahead, schedule.delay or (), schedule.in_order)


def schedule_of(micro: Micro) -> Named | Windows:
    """The schedule that a recipe says."""
    for name in NAMED:
        if micro.schedule == name:
            return name
    return Windows(micro.ahead, micro.delay or None, micro.in_order)
