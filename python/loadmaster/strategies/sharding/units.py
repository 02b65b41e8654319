"""Data parallelism with all parameters in parts, by units that are gathered together (FSDP2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.progress import Incumbent, Progress
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.model.factorisations import factorisations
from loadmaster.model.graph import PARAMETER, OpGraph
from loadmaster.model.parallelism import Parallelism
from loadmaster.model.patterns import innermost
from loadmaster.model.program import Program
from loadmaster.model.recipe import DeviceMesh
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.sharding.degrees import recomputing
from loadmaster.strategies.sharding.own_share import own_share
from loadmaster.strategies.sharding.processes import check_all_there, is_hopeless
from loadmaster.strategies.sharding.recomputing import layers
from loadmaster.strategies.simple.homes import where_allowed
from loadmaster.transforms import shard
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.reducer import updated_last

#: The name of the recipes.
RECIPE = "fsdp"

#: Axes of a mesh: of devices that have whole replicas, and of those that have a part each of one.
REPLICAS, PARTS = "replicate", "shard"


@dataclass(frozen=True)
class ShardSizes:
    """Limits of a user or of a system: the number of devices that share a parameter, whether units
    are gathered again in the backward pass, patterns of the units beside the model, and the most
    axes of the mesh. None: no limit.
    """

    shard: int | None = None
    reshard: bool | None = None
    units: tuple[str, ...] | None = None
    axes: int = 2

    @property
    def name(self) -> str:
        """The name of the recipes."""
        return RECIPE

    def words(self, graph: OpGraph) -> Callable[[UnitWay], dict[str, str]]:
        """The units of each way, by pattern."""
        units = unit_patterns(graph) if self.units is None else self.units
        return lambda way: {**dict.fromkeys(units, way.word), ".": "kept"}

    def ordered(self, program: Program) -> Program:
        """The program as processes run it."""
        return updated_last(program)


@dataclass(frozen=True)
class UnitWay:
    """A way to run it: sizes of axes, the word of the layers, what is recomputed."""

    sizes: tuple[int, ...]
    word: str
    recompute: tuple[str, ...]


def fastest(
    problem: Problem,
    groups: Sequence[Sequence[int]],
    levels: Sequence[Sequence[str]],
    sizes: ShardSizes,
    tell: Progress,
) -> Candidate | None:
    """The best on one of some groups of devices, with its recipe; None: there is none of the sizes.
    Of levels of what is recomputed one is tried where nothing before it fits.
    """
    labels = own_share(problem.model)
    words = sizes.words(problem.model)
    best: Candidate | None = None
    chosen: tuple[Layout, UnitWay] | None = None
    for devices in groups:
        if best is not None and best.fits and is_hopeless(problem, best, devices):
            continue
        for way in _ways(devices, levels, sizes):
            if way.recompute != tuple(levels[0]) and best is not None and best.fits:
                continue
            layout = _layout(problem, devices, way, labels, words(way))
            one = by_processes(problem, devices, layout, way.recompute, sizes.ordered)
            if best is None or problem.objective.better(best, one) is one:
                best, chosen = one, (layout, way)
                tell(f"sharded on {way.sizes}", Incumbent(one.verdict.step_time))
    return None if best is None or chosen is None else _with_recipe(best, *chosen, sizes.name)


def _ways(
    devices: Sequence[int], levels: Sequence[Sequence[str]], asked: ShardSizes
) -> Iterator[UnitWay]:
    """Layouts to try on some devices: one axis and two, kept or gathered again; then the same with
    more recomputed.
    """
    n = len(devices)
    sizes = [(n,), *factorisations([n], 2, lambda sizes: sizes[-1] > 1)]
    sizes = [one for one in sizes if asked.shard in (None, one[-1]) and len(one) <= asked.axes]
    words = {False: ["kept"], True: ["again"], None: ["kept", "again"]}[asked.reshard]
    for modules in levels:
        for shape in sizes:
            for word in words:
                yield UnitWay(shape, word, tuple(modules))


def _layout(
    problem: Problem,
    devices: Sequence[int],
    way: UnitWay,
    labels: NDArray[np.int32],
    words: Mapping[str, str],
) -> Layout:
    """The layout on a mesh of one axis or of two: parameters in parts on the last."""
    graph, names = problem.model, (REPLICAS, PARTS)[-len(way.sizes) :]
    mesh = DeviceMesh.of(
        dict(zip(names, way.sizes, strict=True)),
        [problem.cluster.devices[d].name for d in devices],
    )
    layout = Layout(Dimensions.of(graph), mesh, np.stack([labels] * len(names)), units=words)
    return layout.with_sharded_state(["parameters"] * graph.n_ops, [len(names) - 1])


def by_processes(
    problem: Problem,
    devices: Sequence[int],
    layout: Layout,
    recompute: Sequence[str],
    ordered: Callable[[Program], Program] = updated_last,
) -> Candidate:
    """The program of a layout, each process on its device, in the program's own order."""
    program = ordered(shard(problem.model, layout, recompute))
    placed = problem.transformed(program)
    on = np.array(devices, dtype=np.int32)
    wanted = on[np.maximum(placed.program.rank[placed.reduced.op_of], 0)]
    at = where_allowed(placed, wanted)
    check_all_there(placed, wanted, at)
    order = np.arange(placed.graph.n_ops, dtype=np.int32)
    return judged(placed, Assignment(at, order), placed.program.notes)


def _with_recipe(candidate: Candidate, layout: Layout, way: UnitWay, name: str) -> Candidate:
    """The same with the recipe of its layout written down."""
    recipe = replace(layout.recipe(), recompute=way.recompute, name=name)
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


def wrapped(graph: OpGraph, units: Mapping[str, str]) -> dict[str, bool]:
    """The modules that are units beside the model, inner ones first, and whether each is gathered
    again; ``units``: words by pattern.

    >>> import loadmaster as lm
    >>> wrapped(lm.read("example:gpt3-330m"), {"h.*": "again", ".": "kept"})["h.3"]
    True
    """
    modules = [graph.modules[op] for op in np.flatnonzero(graph.stands_for == PARAMETER).tolist()]
    words = [*units.values(), "kept"]
    of = {
        path: words[at] == "again" for path, at in innermost(modules, list(units), "units") if path
    }
    return dict(sorted(of.items(), key=lambda row: -row[0].count(".")))


def modules_of(graph: OpGraph) -> list[str]:
    """Modules that have parameters, in their order."""
    of = np.flatnonzero(graph.stands_for == PARAMETER).tolist()
    return list(dict.fromkeys(graph.modules[op] for op in of))
