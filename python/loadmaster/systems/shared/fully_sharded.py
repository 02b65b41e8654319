"""Data parallelism with all parameters in parts, by units that are gathered together (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.words import labels_of
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.model.factorisations import factorisations
from loadmaster.model.graph import PARAMETER, OpGraph
from loadmaster.model.parallelism import Parallelism
from loadmaster.model.patterns import innermost
from loadmaster.model.recipe import DeviceMesh, Recipe
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.sharding.degrees import recomputing
from loadmaster.strategies.sharding.judging import without_rule
from loadmaster.strategies.sharding.recomputing import layers
from loadmaster.strategies.sharding.space import has_shapes
from loadmaster.strategies.simple.homes import where_allowed
from loadmaster.systems.registry import refused
from loadmaster.systems.shared.replicas import (
    check_all_there,
    check_kind,
    is_hopeless,
    numbers_of_devices,
)
from loadmaster.systems.shared.uniform_meshes import PARTS, REPLICAS
from loadmaster.transforms import shard
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.reducer import updated_last

#: The name of the recipes.
RECIPE = "fsdp"


@dataclass(frozen=True)
class _Way:
    """A way to run it: sizes of axes, the word of the layers, what is recomputed."""

    sizes: tuple[int, ...]
    word: str
    recompute: tuple[str, ...]


def planned(
    problem: Problem,
    name: str,
    levels: Sequence[Sequence[str]],
    replicas: int | None = None,
    shard_size: int | None = None,
    reshard: bool | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """Fully sharded data parallelism, for the system of a name. Of levels of what is recomputed one
    is tried where nothing before it fits; else as the system ``fsdp`` has it.
    """
    graph = problem.model
    check_kind(problem, name)
    if not has_shapes(graph) or not any(graph.modules):
        raise refused(name, f"{graph.name!r} does not say its modules and the shapes of tensors")
    groups = [
        devices for devices in numbers_of_devices(problem, name, replicas) if len(devices) > 1
    ]
    if not groups:
        raise InputError(f"target {name!r}: there is one process, and nothing to share")
    if shard_size is not None:
        checks.integer("shard_size", shard_size, 2)
    tell = progress or (lambda stage, best: None)
    labels, units = _labels(graph), unit_patterns(graph)
    best: Candidate | None = None
    chosen: tuple[Layout, _Way] | None = None
    for devices in groups:
        if best is not None and best.fits and is_hopeless(problem, best, devices):
            continue
        for way in _ways(devices, levels, shard_size, reshard):
            if way.recompute != tuple(levels[0]) and best is not None and best.fits:
                continue
            layout = _layout(problem, devices, way, labels, units)
            one = _judged(problem, name, devices, layout, way.recompute)
            if best is None or problem.objective.better(best, one) is one:
                best, chosen = one, (layout, way)
                tell(f"sharded on {way.sizes}", Incumbent(one.verdict.step_time))
    if best is None or chosen is None:
        raise InputError(
            f"target {name!r}: no number of devices that the batch divides by is a multiple of "
            f"shard_size, {shard_size}"
        )
    best = _with_recipe(best, *chosen)
    return accepted(best.problem, Outcome(best.noted(*without_rule(problem)), 1.0))


def _ways(
    devices: Sequence[int], levels: Sequence[Sequence[str]], size: int | None, reshard: bool | None
) -> Iterator[_Way]:
    """Layouts to try on some devices: one axis and two, kept or gathered again; then the same with
    more recomputed.
    """
    n = len(devices)
    sizes = [(n,), *factorisations([n], 2, lambda sizes: sizes[-1] > 1)]
    sizes = [one for one in sizes if size in (None, one[-1])]
    words = [word for word, says in (("kept", False), ("again", True)) if reshard in (None, says)]
    for modules in levels:
        for shape in sizes:
            for word in words:
                yield _Way(shape, word, tuple(modules))


def _labels(graph: OpGraph) -> NDArray[np.int32]:
    """The labels of the ops along an axis that shares the batch, int32 [n_ops]."""
    by_batch = Recipe(DeviceMesh.of({PARTS: 2}), {PARTS: {"**": "batch"}})
    labels: NDArray[np.int32] = labels_of(Dimensions.of(graph), by_batch)[0]
    return labels


def _layout(
    problem: Problem,
    devices: Sequence[int],
    way: _Way,
    labels: NDArray[np.int32],
    units: Sequence[str],
) -> Layout:
    """The layout on a mesh of one axis or of two: parameters in parts on the last."""
    graph, names = problem.model, (REPLICAS, PARTS)[-len(way.sizes) :]
    mesh = DeviceMesh.of(
        dict(zip(names, way.sizes, strict=True)),
        [problem.cluster.devices[d].name for d in devices],
    )
    words = {**dict.fromkeys(units, way.word), ".": "kept"}
    layout = Layout(Dimensions.of(graph), mesh, np.stack([labels] * len(names)), units=words)
    return layout.with_sharded_state(["parameters"] * graph.n_ops, [len(names) - 1])


def _judged(
    problem: Problem, name: str, devices: Sequence[int], layout: Layout, recompute: Sequence[str]
) -> Candidate:
    """The program of a layout, each process on its device, in the program's own order."""
    program = updated_last(shard(problem.model, layout, recompute))
    placed = problem.transformed(program)
    on = np.array(devices, dtype=np.int32)
    wanted = on[np.maximum(placed.program.rank[placed.reduced.op_of], 0)]
    at = where_allowed(placed, wanted)
    check_all_there(placed, wanted, at, name)
    order = np.arange(placed.graph.n_ops, dtype=np.int32)
    return judged(placed, Assignment(at, order), placed.program.notes)


def _with_recipe(candidate: Candidate, layout: Layout, way: _Way) -> Candidate:
    """The same with the recipe of its layout written down."""
    recipe = replace(layout.recipe(), recompute=way.recompute, name=RECIPE)
    program = replace(candidate.problem.program, recipe=recipe)
    replicate, shard_size = (1, *way.sizes)[-2:]
    parallelism = Parallelism(replicate=replicate, shard=shard_size, shard_state="parameters")
    return replace(
        candidate,
        problem=replace(candidate.problem, program=program),
        parallelism=recomputing(parallelism, layout.graph, way.recompute),
    )


def unit_patterns(graph: OpGraph) -> tuple[str, ...]:
    """Patterns of the units beside the model: its numbered layers, or where it has none the modules
    right below it. Those are left out of which another module reads a parameter.

    >>> import loadmaster as lm
    >>> unit_patterns(lm.read("example:gpt3-330m"))
    ('h.*',)
    """
    modules = modules_of(graph)
    patterns = layers(modules, 1) or tuple(
        dict.fromkeys(module.partition(".")[0] for module in modules if module)
    )
    of = np.flatnonzero(graph.stands_for == PARAMETER)
    paths = innermost([graph.modules[op] for op in of.tolist()], patterns, "units")
    home = dict(zip(of.tolist(), paths, strict=True))
    shared = set[int]()
    phases = graph.phases
    for src, dst in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        path, at = home.get(src, ("", -1))
        module = graph.modules[dst]
        if at >= 0 and phases[dst] == "f" and not f"{module}.".startswith(f"{path}."):
            shared.add(at)
    return tuple(pattern for at, pattern in enumerate(patterns) if at not in shared)


def modules_of(graph: OpGraph) -> list[str]:
    """Modules that have parameters, in their order."""
    of = np.flatnonzero(graph.stands_for == PARAMETER).tolist()
    return list(dict.fromkeys(graph.modules[op] for op in of))
