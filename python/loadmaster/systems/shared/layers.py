"""Division of the layers of a model by a plan, for systems that split a model by layers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from loadmaster.plans.plan import Plan
from loadmaster.rules.layer_list import LayerList, layer_number
from loadmaster.systems.shared.refusal import Reason


@dataclass(frozen=True)
class LayerSplit:
    """A plan by layers.

    Attributes
    ----------
    plan : Plan
    listed : LayerList
        The layers.
    where : int32 [n_ops]
        Where each op is: a device, or a stage.
    called : sequence of str
        What these are called.
    devices : tuple of int
        Where each layer is.
    """

    plan: Plan
    listed: LayerList
    where: NDArray[np.int32]
    called: Sequence[str]
    devices: tuple[int, ...]

    @property
    def layers(self) -> str:
        """The module list that holds the layers, such as ``model.layers``."""
        return self.listed.name

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Device, or stage, and number of layers of each run, in order."""
        return tuple((device, len(list(same))) for device, same in groupby(self.devices))


def options_of(plan: Plan, root: str | None, layers: str | None) -> tuple[str, str | None]:
    """The root and the list of layers: as given, else what the plan was made with."""
    said = plan.options
    root = str(said.get("root", "")) if root is None else root
    return root, said.get("layers") if layers is None else layers


def layer_split(
    plan: Plan, root: str, layers: str | None, reasons: list[Reason]
) -> LayerSplit | None:
    """The division of layers by a plan of whole ops; None: the reasons say why there is none.

    Raises
    ------
    InputError
        The model has no such list of layers.
    """
    layer_list, graph = LayerList.of(plan.graph, root, layers), plan.graph
    divided = np.flatnonzero(plan.devices < 0).tolist()
    if divided:
        kind = "replicas" if plan.parts(divided[0])[0].replica >= 0 else "parts"
        reasons.append((f"ops are in {kind}", [repr(graph.names[op]) for op in divided]))
        return None
    names = [device.name for device in plan.cluster.devices]
    return split_by(plan, layer_list, plan.devices, names, reasons)


def stage_split(plan: Plan, layer_list: LayerList, reasons: list[Reason]) -> LayerSplit | None:
    """The division of layers by the stages of a plan's recipe; None: as above."""
    assert plan.recipe is not None
    where = plan.recipe.stage_of(plan.graph)
    called = [f"stage {stage}" for stage in range(int(where.max(initial=0)) + 1)]
    return split_by(plan, layer_list, where, called, reasons)


def split_by(
    plan: Plan,
    layer_list: LayerList,
    where: NDArray[np.int32],
    called: Sequence[str],
    reasons: list[Reason],
) -> LayerSplit | None:
    """The division of layers where every op is somewhere; None: as above."""
    graph = plan.graph
    devices: dict[int, dict[int, int]] = {number: {} for number in layer_list.numbers}
    for op in np.flatnonzero(graph.reduced.runs).tolist():
        number = layer_number(graph.modules[op], layer_list)
        if number in devices:
            devices[number].setdefault(int(where[op]), op)
    torn = [
        f"{layer_list.name}.{number} ("
        + ", ".join(f"{graph.names[op]!r} on {called[place]}" for place, op in on.items())
        + ")"
        for number, on in devices.items()
        if len(on) > 1
    ]
    if torn:
        kind = "devices" if where is plan.devices else "stages"
        reasons.append((f"layers are on several {kind} each", torn))
        return None
    return LayerSplit(
        plan, layer_list, where, called, tuple(next(iter(on)) for on in devices.values())
    )


def once_each(split: LayerSplit, reasons: list[Reason]) -> None:
    """That devices have several runs of layers, where some do."""
    of_runs = [device for device, _ in split.runs]
    again = [
        f"{split.called[device]} has {of_runs.count(device)}"
        for device in dict.fromkeys(of_runs)
        if of_runs.count(device) > 1
    ]
    if again:
        reasons.append(("each device has one run of layers, and in the plan", again))


def with_ends(split: LayerSplit, reasons: list[Reason], first: Sequence[int] = ()) -> None:
    """That ops before the first layer, or behind the last, are on another device than it.

    Only ops that read parameters count. For the others, such as masks and position ids, each of
    these systems has its own code. What comes before may also be on the devices ``first``.
    """
    plan, cuts = split.plan, split.listed.cuts
    last = cuts.spans[f"{split.layers}.{split.listed.numbers[-1]}".lstrip(".")][1]
    stored = [s for s in cuts.read_on if plan.graph.kinds[s.op] in ("parameter", "buffer")]
    places = sorted({place for span in stored for place in span.places})
    for words, end, outside, allowed in (
        ("before the layers", "first", [p for p in places if p < split.listed.first], [*first]),
        ("behind the layers", "last", [p for p in places if p > last], []),
    ):
        home = split.devices[0 if end == "first" else -1]
        ops = [int(cuts.order[p]) for p in outside]
        away = [op for op in ops if int(split.where[op]) not in (home, *allowed)]
        if away:
            name = split.called[home]
            said = [f"{plan.graph.names[op]!r} on {split.called[split.where[op]]}" for op in away]
            reasons.append((f"what stands {words} runs with the {end} of them, on {name}", said))


def stages(split: LayerSplit, names: Sequence[str]) -> list[dict[str, object]]:
    """A row per run for a document: device, first layer and number of layers."""
    rows, first = [], 0
    for device, count in split.runs:
        rows.append({"device": names[device], "first_layer": first, "layers": count})
        first += count
    return rows
