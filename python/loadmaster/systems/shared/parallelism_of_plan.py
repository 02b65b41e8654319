"""The parallelism of a plan of layers, with the device of each rank.

A plan that was made for a system says it. Of any other plan it is read off: stages are runs of
layers, and an axis of the recipe is one of tensor parallelism if every op has a label that planning
for such a system allows. Reasons say what is in the way of that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import FLAT
from loadmaster.model.graph import INPUT, PARAMETER
from loadmaster.model.micro import Micro
from loadmaster.model.parallelism import Parallelism
from loadmaster.model.patterns import innermost
from loadmaster.model.recomputed import RecomputedSegments, RecomputeLine
from loadmaster.plans.plan import Plan
from loadmaster.rules.layer_list import LayerList
from loadmaster.strategies.grids.expert_parallel import experts_apart, shared
from loadmaster.strategies.grids.modules import lines_of_modules
from loadmaster.strategies.grids.tensor_parallel import in_layers, norms_by_tokens
from loadmaster.strategies.sharding.structure import Structure
from loadmaster.strategies.sharding.uniform import Mask
from loadmaster.systems.shared.layers import (
    LayerSplit,
    layer_split,
    options_of,
    stage_split,
    with_ends,
)
from loadmaster.systems.shared.processes import devices_of, no_replicas
from loadmaster.systems.shared.refusal import Reason
from loadmaster.systems.shared.uniform_meshes import DATA, PARTS, REPLICAS
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.shares import batch_size, only_gradients

#: Name of an axis of tensor parallelism, by its treatment of routed experts.
_CUT, _APART = "tensor-parallel group has", "tensor-parallel group with experts apart has"


@dataclass(frozen=True)
class RankedDevices:
    """A parallelism, and the device of each rank, by index."""

    parallelism: Parallelism
    devices: tuple[int, ...]


def parallelism_of(
    plan: Plan, name: str, root: str, layers: str | None, reasons: list[Reason]
) -> RankedDevices | None:
    """The parallelism of a plan, for the writer of the system of a name.

    Returns
    -------
    RankedDevices or None
        None, or reasons: the plan has none that such a system knows.

    Raises
    ------
    InputError
        The model has no such list of layers.
    """
    is_own = plan.target == name and (root, layers) == options_of(plan, None, None)
    if is_own and plan.parallelism is not None:
        return RankedDevices(plan.parallelism, _devices(plan))
    if plan.recipe is not None:
        return _of_recipe(plan, LayerList.of(plan.graph, root, layers), reasons)
    if not plan.program.is_plain:
        return _of_replicas(plan, LayerList.of(plan.graph, root, layers), reasons)
    split = layer_split(plan, root, layers, reasons)
    if split is None:
        return None
    with_ends(split, reasons)
    return _of_runs(split, reasons)


def parallelism_by_axes(plan: Plan) -> Parallelism | None:
    """The parallelism of a plan by the names of the axes of its mesh: dp, replicate, shard, tp, pp.

    Returns
    -------
    Parallelism or None
        None: the recipe has axes of other names, unequal shares, stages without a schedule, or
        parameters that are whole beside others that are in parts.
    """
    recipe, graph = plan.recipe, plan.graph
    if recipe is None:
        return Parallelism()
    layout, sizes = plan.layout, dict.fromkeys(("replicate", "shard", "tp", "pp"), 1)
    for axis in recipe.mesh.axes:
        word = axis.name
        if word in (DATA, REPLICAS, PARTS):
            assert layout is not None, "the axis is inside of stages"
            flat = layout.labels[layout.mesh.names.index(word)] == FLAT
            is_whole = ~flat[graph.stands_for == PARAMETER]
            if word != PARTS and is_whole.any() and flat.any():
                return None
            word = "shard" if np.any(flat) else "replicate"
        is_stage = word == "pp"
        if sizes.get(word) != 1 or axis.shares is not None or (is_stage and recipe.micro is None):
            return None
        sizes[word] = axis.size
    words = recipe.words(graph)["tp"] if sizes["tp"] > 1 else []
    norms = [word for word, kind in zip(words, graph.kinds, strict=False) if "norm" in kind]
    micro, stages = recipe.micro or Micro(1), sizes["pp"]
    return Parallelism(
        replicate=sizes["replicate"],
        shard=sizes["shard"],
        shard_state="parameters" if sizes["shard"] > 1 else "none",
        tp=sizes["tp"],
        sequence="token" in norms,
        stages=stages,
        virtual=micro.virtual if stages > 1 else 1,
        micro_batches=micro.n,
        schedule=micro.schedule if stages > 1 else None,
    )


def _devices(plan: Plan) -> tuple[int, ...]:
    """The device of each rank of a plan that was made for a system."""
    if plan.recipe is not None:
        return tuple(plan.recipe.mesh.on(plan.cluster).tolist())
    used = plan.running_devices[plan.problem.reduced.op_of]
    return tuple(sorted(set(used.tolist())))


def _of_runs(split: LayerSplit, reasons: list[Reason]) -> RankedDevices | None:
    """The parallelism of whole ops, by layers."""
    of_runs = [device for device, _ in split.runs]
    ranks = list(dict.fromkeys(of_runs))
    virtual = max(1, len(of_runs) // len(ranks))
    if of_runs != ranks * virtual:
        order = [split.called[place] for place in of_runs]
        reasons.append(("runs of layers do not take turns among the devices", order))
        return None
    return RankedDevices(_pipeline(tuple(n for _, n in split.runs), virtual), tuple(ranks))


def _pipeline(layers: tuple[int, ...], virtual: int, micro: Micro | None = None) -> Parallelism:
    """Runs of layers on stages, by a schedule."""
    micro = micro or Micro(1)
    stages = len(layers) // virtual
    return Parallelism(
        stages=stages,
        virtual=virtual,
        layers=layers,
        micro_batches=micro.n,
        schedule=micro.schedule if stages > 1 else None,
    )


def _of_replicas(plan: Plan, listed: LayerList, reasons: list[Reason]) -> RankedDevices | None:
    """The parallelism of replicas of the whole model, with gradients summed by collectives."""
    in_the_way = list(no_replicas(plan))
    kinds = {label.partition("/")[0] for label in plan.program.graph.collectives if label}
    if not in_the_way and not kinds and plan.graph.updates.any():
        in_the_way.append("gradients are summed by parameter servers")
    reasons += in_the_way
    if in_the_way:
        return None
    devices = tuple(devices_of(plan))
    whole = _pipeline((len(listed),), 1)
    return RankedDevices(_replicated(whole, len(devices), "reduce_scatter" in kinds), devices)


def _replicated(one: Parallelism, dp: int, is_flat: bool) -> Parallelism:
    """The same on so many replicas, which may have a part each of the optimizer's state."""
    if is_flat and dp > 1:
        return replace(one, shard=dp, shard_state="optimizer")
    return replace(one, replicate=dp)


def _of_recipe(plan: Plan, listed: LayerList, reasons: list[Reason]) -> RankedDevices | None:
    """The parallelism of shards and stages of a recipe."""
    recipe, layout = plan.recipe, plan.layout
    assert recipe is not None
    counts: tuple[int, ...] = (len(listed),)
    micro = recipe.micro or Micro(1)
    if recipe.micro is not None:
        split = stage_split(plan, listed, reasons)
        counts = () if split is None else tuple(n for _, n in split.runs)
        if split is not None:
            with_ends(split, reasons)
            _check_stages(plan, split, micro, reasons)
    if recipe.overrides:
        reasons.append(("ops are put on devices by name", list(recipe.overrides)))
    if any(axis.shares is not None for axis in recipe.mesh.axes):
        reasons.append("devices have unequal shares")
    axes = _Axes.of(layout, listed, reasons) if layout is not None else None
    dp = 1 if axes is None else axes.dp
    batch = batch_size(plan.graph) or 1
    if batch % (dp * micro.n):
        reasons.append(f"{dp} replicas do not do {batch} samples in {micro.n} equal micro-batches")
    recomputed = _recomputed(plan, listed, counts, reasons)
    selective = _selective(plan, listed, reasons)
    if len(counts) % micro.virtual or not counts:
        return None
    parallelism = _pipeline(counts, micro.virtual, micro)
    if selective:
        parallelism = replace(parallelism, recompute="selective", recompute_modules=selective)
    elif any(recomputed):
        some = () if recomputed == counts else recomputed
        parallelism = replace(parallelism, recompute="full", recompute_layers=some)
    devices = recipe.mesh.on(plan.cluster)
    if axes is not None:
        parallelism = axes.inside(parallelism)
        order = [0, *(1 + axis for axis in axes.order)]
        devices = np.transpose(devices.reshape(-1, *axes.mesh), order)
    return RankedDevices(parallelism, tuple(devices.ravel().tolist()))


def _check_stages(plan: Plan, split: LayerSplit, micro: Micro, reasons: list[Reason]) -> None:
    """That each stage has a run of layers, and the schedule is one of runs of layers."""
    assert plan.recipe is not None
    stages, of_runs = len(split.called), [stage for stage, _ in split.runs]
    p = plan.recipe.mesh.axes[0].size
    if of_runs != list(range(p * micro.virtual)) or stages > len(of_runs):
        reasons.append(
            ("stages are not runs of layers, one after another", [split.called[s] for s in of_runs])
        )
    if micro.schedule not in ("1f1b", "interleaved-1f1b") and p > 1 and micro.n > 1:
        reasons.append(f"the schedule is {micro.schedule}, and there are 1f1b and interleaved-1f1b")
    if micro.virtual > 1 and micro.n % p:
        reasons.append(
            f"{micro.n} micro-batches are no multiple of {p} stages that are interleaved"
        )


@dataclass(frozen=True)
class _Axes:
    """The axes inside of a stage."""

    mesh: tuple[int, ...]
    order: tuple[int, ...]
    tp: int
    dp: int
    sequence: bool
    flat: bool
    ep: int
    apart: bool

    def inside(self, stages: Parallelism) -> Parallelism:
        """The parallelism of stages with these axes inside of each."""
        return replace(
            _replicated(stages, self.dp, self.flat),
            tp=self.tp,
            sequence=self.sequence and self.tp > 1,
            ep=self.ep * (self.tp if self.apart else 1),
            experts="apart" if self.apart and self.tp > 1 else "cut",
        )

    @classmethod
    def of(cls, layout: Layout, listed: LayerList, reasons: list[Reason]) -> _Axes:
        """Each as what fewer ops speak against."""
        structure = Structure.of(layout.dimensions)
        graph, mesh = layout.graph, layout.mesh
        masks = {
            "replica has": shared(structure, ("whole", "flat")),
            "group of replicas with experts apart has": experts_apart(structure, ("whole", "flat")),
            _CUT: in_layers(structure, listed, sequence=True),
            _APART: in_layers(structure, listed, sequence=True, experts="apart"),
        }
        against = {kind: _against(layout, structure, mask) for kind, mask in masks.items()}
        # Of kinds that say as much the first counts.
        kinds = [min(masks, key=lambda kind: len(against[kind][i])) for i in range(len(mesh.names))]
        for axis, (name, kind) in enumerate(zip(mesh.names, kinds, strict=True)):
            if ops := against[kind][axis]:
                named = [repr(graph.names[op]) for op in ops]
                reasons.append((f"on axis {name!r} ops are shared otherwise than a {kind}", named))
        parameters = np.flatnonzero(graph.stands_for == PARAMETER)
        whole = [graph.names[op] for op in parameters if (layout.labels[:, op] == FLAT).any()]
        if whole:
            reasons.append(("parameters are in parts among replicas", list(map(repr, whole))))
        replicas, experts, inner = (
            [axis for axis, kind in enumerate(kinds) if kind in said]
            for said in ([*masks][:1], [*masks][1:2], (_CUT, _APART))
        )
        if len(inner) > 1:
            names = [repr(mesh.names[axis]) for axis in inner]
            reasons.append(("several axes cut weights", names))
        updates = (layout.set_of >= 0) & (graph.stands_for != PARAMETER)
        outer = [*replicas, *experts]
        is_apart = any(kinds[axis] == _APART for axis in inner)
        return cls(
            mesh.shape,
            (*outer, *inner),
            math.prod(mesh.shape[axis] for axis in inner),
            math.prod(mesh.shape[axis] for axis in outer),
            any(norms_by_tokens(layout, listed, mesh.names[axis]) for axis in inner),
            bool((layout.labels[outer][:, updates] == FLAT).any()),
            math.prod(mesh.shape[axis] for axis in experts),
            is_apart,
        )


def _against(layout: Layout, structure: Structure, mask: Mask) -> list[list[int]]:
    """Per axis, the ops whose label is not among those of a mask; inputs lie anyhow, and what only
    adds gradients up is as these are.
    """
    ways, graph = structure.ways, layout.graph
    counts = (graph.stands_for != INPUT) & ~only_gradients(graph, graph.roles)
    known = np.arange(ways.label.shape[1]) < ways.n_labels[structure.way][:, None]
    of_axes = []
    for labels in layout.labels:
        same = (ways.label[structure.way] == labels[structure.op][:, None]) & known & mask
        of_axes.append(structure.op[~same.any(axis=1) & counts[structure.op]].tolist())
    return of_axes


def _recomputed(
    plan: Plan, layer_list: LayerList, counts: Sequence[int], reasons: list[Reason]
) -> tuple[int, ...]:
    """The number of layers of each run that are recomputed, from its first one on."""
    assert plan.recipe is not None
    patterns = [line for line in plan.recipe.recompute if not RecomputeLine.parse(line).only]
    if not patterns:
        return ()
    paths = dict.fromkeys(plan.graph.modules)
    prefix = ".".join(word for word in (layer_list.cuts.root, layer_list.name) if word)
    of = [path for path, _ in innermost(list(paths), list(patterns), "recompute") if path]
    names = {f"{prefix}.{number}".lstrip("."): number for number in layer_list.numbers}
    others = [path for path in dict.fromkeys(of) if path not in names]
    if others:
        reasons.append(("modules are recomputed that are no layers", others))
    again: NDArray[np.bool_] = np.isin(layer_list.numbers, [names.get(path, -1) for path in of])
    numbers, first = [], 0
    for n in counts:
        run = again[first : first + n]
        numbers.append(int(run.sum()))
        if not run[: numbers[-1]].all():
            reasons.append("recomputed layers are not the first of each run")
            break
        first += n
    return tuple(numbers)


def _selective(plan: Plan, layer_list: LayerList, reasons: list[Reason]) -> tuple[str, ...]:
    """Modules of all layers that lines recompute, by the names of Megatron's modules."""
    assert plan.recipe is not None
    lines = [line for line in plan.recipe.recompute if RecomputeLine.parse(line).only]
    if not lines:
        return ()
    if len(lines) < len(plan.recipe.recompute):
        reasons.append("some layers are recomputed as a whole, and some ops of others")
    graph = plan.graph
    known = lines_of_modules(Structure.of(Dimensions.of(graph)), layer_list)
    # Views go with what they show, and parameters are kept, whether they are meant or not.
    runs = np.array([phase == "f" for phase in graph.phases]) & ~graph.view & ~graph.placeholder
    meant = {
        name: RecomputedSegments.of_lines(graph, [line]).of[runs] for name, line in known.items()
    }
    names, others = list[str](), list[str]()
    for line in lines:
        of = RecomputedSegments.of_lines(graph, [line]).of[runs]
        same = [name for name, one in meant.items() if np.array_equal(one, of)]
        names, others = names + same[:1], others + [line] * (not same)
    if others:
        reasons.append(("ops are recomputed that are no module of --recompute-modules", others))
    return tuple(names)
