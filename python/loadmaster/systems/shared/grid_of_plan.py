"""A plan as a grid of tensor parallelism inside of replicas inside of stages of layers.

What is in the way of that is said, whatever made the plan: an axis of its recipe counts as one of
tensor parallelism if every op has a label that planning for such a system allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import FLAT
from loadmaster.model.graph import INPUT, PARAMETER
from loadmaster.model.micro import Micro
from loadmaster.model.patterns import innermost
from loadmaster.model.recomputed import RecomputedSegments, RecomputeLine
from loadmaster.plans.plan import Plan
from loadmaster.rules.layer_list import LayerList
from loadmaster.strategies.sharding.structure import Structure
from loadmaster.strategies.sharding.uniform import Mask
from loadmaster.systems.megatron.modules import lines_of_modules
from loadmaster.systems.shared.expert_parallel import (
    experts_apart,
    number_of_experts,
    shared,
)
from loadmaster.systems.shared.layers import (
    LayerSplit,
    layer_number,
    layer_split,
    stage_split,
    with_ends,
)
from loadmaster.systems.shared.processes import devices_of, no_replicas
from loadmaster.systems.shared.refusal import Reason
from loadmaster.systems.shared.tensor_parallel import in_layers
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.shares import batch_size, only_gradients

#: What an axis of tensor parallelism is called, by what it does with routed experts.
_CUT, _APART = "tensor-parallel group has", "tensor-parallel group with experts apart has"


@dataclass(frozen=True)
class Grid:
    """What a plan comes to.

    Attributes
    ----------
    devices : tuple of int
        By rank: tensor parallelism changes fastest, then replicas, then stages.
    tp, dp : int
        Devices that share each layer, and replicas.
    counts : tuple of int
        Layers of each run, in their order.
    virtual : int
        Runs of layers per stage.
    micro : int
        Micro-batches that a replica does.
    sequence : bool
        Whether norms in layers are cut by tokens.
    flat : bool
        Whether replicas have a part each of the optimizer's state.
    recomputed : tuple of int
        Of each run, how many of its layers are recomputed, from its first one on.
    selective : tuple of str
        What is recomputed of all layers alike, in Megatron-LM's words, where these are not
        recomputed as a whole.
    ep : int
        How many of the replicas have routed experts apart.
    apart : bool
        Whether each device of a tensor-parallel group has routed experts whole, others than the
        next one.
    experts : int
        Of every layer, where devices have experts apart.
    """

    devices: tuple[int, ...]
    tp: int
    dp: int
    counts: tuple[int, ...]
    virtual: int = 1
    micro: int = 1
    sequence: bool = False
    flat: bool = False
    recomputed: tuple[int, ...] = ()
    selective: tuple[str, ...] = ()
    ep: int = 1
    apart: bool = False
    experts: int = 0

    @property
    def pp(self) -> int:
        """Stages: sets of devices."""
        return len(self.counts) // self.virtual


def grid_of(plan: Plan, root: str, layers: str | None, reasons: list[Reason]) -> Grid | None:
    """The grid of a plan; None, or anything: the reasons say why there is none.

    Raises
    ------
    InputError
        The model has no such list of layers.
    """
    if plan.recipe is not None:
        return _of_recipe(plan, LayerList.of(plan.graph, root, layers), reasons)
    if not plan.program.is_plain:
        return _of_replicas(plan, LayerList.of(plan.graph, root, layers), reasons)
    split = layer_split(plan, root, layers, reasons)
    if split is None:
        return None
    with_ends(split, reasons)
    return _of_runs(split, reasons)


def _of_runs(split: LayerSplit, reasons: list[Reason]) -> Grid:
    """Whole ops, by layers."""
    of_runs = [device for device, _ in split.runs]
    ranks = list(dict.fromkeys(of_runs))
    virtual = max(1, len(of_runs) // len(ranks))
    if of_runs != ranks * virtual:
        order = [split.called[place] for place in of_runs]
        reasons.append(("runs of layers do not take turns among the devices", order))
    return Grid(tuple(ranks), 1, 1, tuple(n for _, n in split.runs), virtual)


def _of_replicas(plan: Plan, found: LayerList, reasons: list[Reason]) -> Grid | None:
    """Replicas of the whole model, with gradients summed by collectives."""
    in_the_way = list(no_replicas(plan))
    kinds = {label.partition("/")[0] for label in plan.program.graph.collectives if label}
    if not in_the_way and not kinds and plan.graph.updates.any():
        in_the_way.append("gradients are summed by parameter servers")
    reasons += in_the_way
    if in_the_way:
        return None
    devices = tuple(devices_of(plan))
    flat = "reduce_scatter" in kinds
    return Grid(devices, 1, len(devices), (len(found),), flat=flat)


def _of_recipe(plan: Plan, found: LayerList, reasons: list[Reason]) -> Grid | None:
    """Shards and stages of a recipe."""
    recipe, layout = plan.recipe, plan.layout
    assert recipe is not None
    counts: tuple[int, ...] = (len(found),)
    micro = recipe.micro or Micro(1)
    if recipe.micro is not None:
        split = stage_split(plan, found, reasons)
        counts = () if split is None else tuple(n for _, n in split.runs)
        if split is not None:
            with_ends(split, reasons)
            _check_stages(plan, split, micro, reasons)
    if recipe.overrides:
        reasons.append(("ops are put on devices by name", list(recipe.overrides)))
    if any(axis.shares is not None for axis in recipe.mesh.axes):
        reasons.append("devices have unequal shares")
    axes = _Axes.of(layout, found, reasons) if layout is not None else None
    dp = 1 if axes is None else axes.dp
    batch = batch_size(plan.graph) or 1
    if batch % (dp * micro.n):
        reasons.append(f"{dp} replicas do not do {batch} samples in {micro.n} equal micro-batches")
    again = _recomputed(plan, found, counts, reasons)
    selective = _selective(plan, found, reasons)
    on = recipe.mesh.on(plan.cluster)
    if not counts or axes is None:
        devices = on
    else:
        devices = np.transpose(on.reshape(-1, *axes.mesh), [0, *(1 + a for a in axes.order)])
    return Grid(
        tuple(devices.ravel().tolist()),
        1 if axes is None else axes.tp,
        dp,
        counts,
        micro.virtual,
        micro.n,
        axes is not None and axes.sequence,
        axes is not None and axes.flat,
        again,
        selective,
        1 if axes is None else axes.ep,
        axes is not None and axes.apart,
        0 if axes is None else axes.experts,
    )


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
    experts: int

    @classmethod
    def of(cls, layout: Layout, found: LayerList, reasons: list[Reason]) -> _Axes:
        """Each as what fewer ops speak against."""
        structure = Structure.of(layout.dimensions)
        graph, mesh = layout.graph, layout.mesh
        masks = {
            "replica has": shared(structure, ("whole", "flat")),
            "group of replicas with experts apart has": experts_apart(structure, ("whole", "flat")),
            _CUT: in_layers(structure, found, sequence=True),
            _APART: in_layers(structure, found, sequence=True, experts="apart"),
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
            any(_by_tokens(layout, found, axis) for axis in inner),
            bool((layout.labels[outer][:, updates] == FLAT).any()),
            math.prod(mesh.shape[axis] for axis in experts),
            is_apart,
            number_of_experts(structure) if is_apart or experts else 0,
        )


def _against(layout: Layout, structure: Structure, mask: Mask) -> list[list[int]]:
    """Per axis, the ops whose label is not among those of a mask; inputs lie anyhow, and what only
    adds gradients up is as these are.
    """
    ways, graph = structure.ways, layout.graph
    counts = (graph.stands_for != INPUT) & ~only_gradients(graph, graph.roles)
    known = np.arange(ways.label.shape[1]) < ways.n_labels[structure.way][:, None]
    found = []
    for labels in layout.labels:
        same = (ways.label[structure.way] == labels[structure.op][:, None]) & known & mask
        found.append(structure.op[~same.any(axis=1) & counts[structure.op]].tolist())
    return found


def _by_tokens(layout: Layout, found: LayerList, axis: int) -> bool:
    """Whether norms of layers are cut by tokens on an axis."""
    words = layout.recipe().words(layout.graph)[layout.mesh.names[axis]]
    graph = layout.graph
    return any(
        word == "token" and ("norm" in kind or "rsqrt" in kind) and layer_number(module, found) >= 0
        for word, kind, module in zip(words, graph.kinds, graph.modules, strict=True)
    )


def _recomputed(
    plan: Plan, found: LayerList, counts: Sequence[int], reasons: list[Reason]
) -> tuple[int, ...]:
    """How many layers of each run are recomputed, from its first one on."""
    assert plan.recipe is not None
    patterns = [line for line in plan.recipe.recompute if not RecomputeLine.parse(line).only]
    if not patterns:
        return ()
    paths = dict.fromkeys(plan.graph.modules)
    prefix = ".".join(word for word in (found.cuts.root, found.name) if word)
    of = [path for path, _ in innermost(list(paths), list(patterns), "recompute") if path]
    names = {f"{prefix}.{number}".lstrip("."): number for number in found.numbers}
    others = [path for path in dict.fromkeys(of) if path not in names]
    if others:
        reasons.append(("modules are recomputed that are no layers", others))
    again: NDArray[np.bool_] = np.isin(found.numbers, [names.get(path, -1) for path in of])
    numbers, first = [], 0
    for n in counts:
        run = again[first : first + n]
        numbers.append(int(run.sum()))
        if not run[: numbers[-1]].all():
            reasons.append("recomputed layers are not the first of each run")
            break
        first += n
    return tuple(numbers)


def _selective(plan: Plan, found: LayerList, reasons: list[Reason]) -> tuple[str, ...]:
    """What lines recompute of all layers, by the names of Megatron's modules."""
    assert plan.recipe is not None
    lines = [line for line in plan.recipe.recompute if RecomputeLine.parse(line).only]
    if not lines:
        return ()
    if len(lines) < len(plan.recipe.recompute):
        reasons.append("some layers are recomputed as a whole, and some ops of others")
    graph = plan.graph
    known = lines_of_modules(Structure.of(Dimensions.of(graph)), found)
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
