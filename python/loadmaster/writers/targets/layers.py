"""How a plan divides the layers of a model, for systems that split a model by layers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from loadmaster.base.errors import InputError
from loadmaster.plans.plan import Plan
from loadmaster.writers.targets.modules import Module, Modules
from loadmaster.writers.targets.names import listed, pattern, placed, refuse_parts


@dataclass(frozen=True)
class LayerSplit:
    """A plan by layers.

    Attributes
    ----------
    modules : Modules
        The plan's modules.
    layers : str
        The module list that holds the layers, such as ``model.layers``.
    devices : tuple of int
        Device of each layer.
    runs : tuple of (int, int)
        Device and number of layers of each run, in order.
    """

    modules: Modules
    layers: str
    devices: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]


def layer_split(
    plan: Plan, system: str, *, root: str = "", layers: str | None = None
) -> LayerSplit:
    """How a plan divides its model's layers.

    Parameters
    ----------
    plan : Plan
    system : str
        For messages.
    root : str
        As for :class:`~loadmaster.writers.targets.modules.Modules`.
    layers : str, optional
        The module list that holds the layers; the longest in the model if absent.

    Raises
    ------
    InputError
        No such list, several of the same length, or a layer on several devices, with the
        constraint that avoids it.
    """
    refuse_parts(plan, system)
    modules = Modules(plan, root)
    found = _layers(modules, layers)
    torn = [layer for layer in found.values() if len(layer.devices) != 1]
    if torn:
        others = f", nor {listed([layer.path for layer in torn[1:]])}" if torn[1:] else ""
        raise InputError(
            f"{system} cannot split layer {torn[0].path!r}: it has "
            f"{placed(plan, _one_each(plan, torn[0].under()))}{others}. Keep layers whole: place "
            f"it again with --no-split {pattern(modules.full(torn[0].path))!r}"
        )
    devices = [next(iter(found[i].devices)) for i in sorted(found)]
    name = next(iter(found.values())).path.rpartition(".")[0]
    runs = tuple((device, len(list(same))) for device, same in groupby(devices))
    return LayerSplit(modules, name, tuple(devices), runs)


def once_each(split: LayerSplit, system: str) -> None:
    """Refuses a plan that gives a device several runs of layers."""
    plan = split.modules.plan
    devices = [device for device, _ in split.runs]
    for device in devices:
        if devices.count(device) > 1:
            first = sum(n for _, n in split.runs[: devices.index(device) + 1])
            again = first + split.devices[first:].index(device)
            raise InputError(
                f"{system} gives each device one run of layers, but the plan has "
                f"{plan.cluster.devices[device].name} again from '{split.layers}.{again}' on: "
                "place it again with --contiguous"
            )


def with_ends(split: LayerSplit, system: str) -> None:
    """Refuses ops before the first layer, or behind the last, that are on another device than it.

    Only ops that read parameters count. For the others, such as masks and position ids, each of
    these systems has its own code.
    """
    modules, order = split.modules, split.modules.order
    plan, kinds = modules.plan, modules.plan.graph.kinds
    head = f"{split.layers}."
    forward = [modules.is_forward(op) for op in order]
    inside = [
        i for i, op in enumerate(order) if forward[i] and f"{modules.of[op]}.".startswith(head)
    ]
    readers = {dst for src, dst in modules.reads() if kinds[src] in ("parameter", "buffer")}
    for i, op in enumerate(order):
        if op not in readers or not forward[i] or inside[0] <= i <= inside[-1]:
            continue
        side, end, layer = ("before", "first", 0) if i < inside[0] else ("behind", "last", -1)
        if plan.devices[op] != split.devices[layer]:
            home = plan.cluster.devices[split.devices[layer]].name
            stem = modules.full(modules.of[op] or "") or plan.graph.names[op]
            raise InputError(
                f"{system} runs what stands {side} the layers with the {end} of them, on {home}, "
                f"but the plan has {placed(plan, [op])}: place it again with --pin {stem!r}={home}"
            )


def stages(split: LayerSplit, names: Sequence[str]) -> list[dict[str, object]]:
    """A row per run for a document: device, first layer and number of layers."""
    rows, first = [], 0
    for device, count in split.runs:
        rows.append({"device": names[device], "first_layer": first, "layers": count})
        first += count
    return rows


def _layers(modules: Modules, wanted: str | None) -> dict[int, Module]:
    lists: dict[str, dict[int, Module]] = {}
    for module in modules.top.walk():
        head, _, last = module.path.rpartition(".")
        if last.isdecimal() and module.under():
            lists.setdefault(head, {})[int(last)] = module
    if wanted is not None:
        if wanted not in lists:
            raise InputError(f"{wanted!r} is no list of layers; there are {listed(list(lists))}")
        return lists[wanted]
    longest = max(map(len, lists.values()), default=0)
    best = [name for name, found in lists.items() if len(found) == longest]
    if len(best) != 1:
        raise InputError(
            f"the layers of the model could be {listed(best)}: name the one with --layers"
            if best
            else "the model has no list of layers: no module path has a number in it"
        )
    return lists[best[0]]


def _one_each(plan: Plan, ops: list[int]) -> list[int]:
    """The first of the ops on each device."""
    return sorted({int(plan.devices[op]): op for op in reversed(ops)}.values())
