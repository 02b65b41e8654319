"""Hugging Face: a plan as the ``device_map`` of transformers and accelerate, and ``max_memory``.

A device map sends every module below a prefix to one device. accelerate moves a module's inputs to
its device before its ``forward`` runs, and nothing else: code between the modules runs where its
operands happen to be, and fails where they differ. So a module with code of its own (an attention
block, a residual connection) can be divided only where that code finds all it reads on its device.

``cpu`` and ``disk`` in a map are where weights are stored. Their modules run on the main GPU, to
which their weights are copied each time. A map has these words where a plan streams the weights
(:mod:`loadmaster.systems.accelerate.plan`), or where there is no GPU at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from loadmaster.base.checks import is_integer
from loadmaster.base.errors import InputError
from loadmaster.base.files import written
from loadmaster.model.cluster import Cluster
from loadmaster.model.families import families
from loadmaster.plans.plan import Plan
from loadmaster.systems.accelerate.modules import Module, Modules
from loadmaster.systems.shared.names import device_names, divided
from loadmaster.systems.shared.refusal import Reason, refusal

_NAME = "device-map"


def device_map(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    root: str | None = None,
    names: Mapping[str, str] | None = None,
) -> dict[str, int | str]:
    """The plan as a ``device_map``: module prefix to GPU index, ``"cpu"``, ``"disk"``, ``"npu:0"``.

    An entry is a module as large as possible with everything below it on one device, in the model's
    order. Parameters that a divided module holds itself have entries of their own. O(ops x depth of
    the tree).

    Parameters
    ----------
    plan : Plan
        Of a graph whose module paths are the model's, best made with ``target="device-map"``.
    path : optional
        Where to write it as JSON.
    root : str, optional
        What the model is called in the graph's module paths; see
        :class:`~loadmaster.systems.accelerate.modules.Modules`. If absent: as the plan was made.
    names : mapping, optional
        Device names to values, such as ``{"gpu0": "cuda:3"}``.

    Raises
    ------
    InputError
        All that accelerate cannot do: modules whose own code would meet tensors of two devices,
        backward or optimizer ops elsewhere than what they belong to, tied parameters apart, ops on
        a CPU beside GPUs.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink")
    >>> found = lm.writers.device_map(lm.place(graph, cluster, target="device-map"))
    >>> found["h.0"], found["wte"] == found["lm_head"]
    (0, True)
    """
    if in_parts := divided(plan):
        raise refusal(plan, _NAME, [in_parts])
    modules = Modules(plan, str(plan.options.get("root", "")) if root is None else root)
    map_ = _Map(modules, device_names(plan, _key, names))
    reasons = list(map_.reasons())
    if reasons:
        raise refusal(plan, _NAME, reasons)
    entries: dict[str, int | str] = {}
    map_.fill(modules.top, entries)
    return written(entries, path)


def _key(family: str, number: int) -> str:
    if family in ("cpu", "disk"):
        return family
    return str(number) if family == "gpu" else f"{family}:{number}"


@dataclass(frozen=True)
class _Map:
    """A device map of a plan's modules, and the reasons that stand in its way.

    Attributes
    ----------
    modules : Modules
    spelled : list of str
        The name of each device.
    """

    modules: Modules
    spelled: list[str]

    def value(self, device: int) -> int | str:
        """A device as the map has it."""
        name = self.spelled[device]
        return int(name) if name.isdecimal() else name

    def fill(self, module: Module, device_map: dict[str, int | str]) -> None:
        """Entries for a module and all below it."""
        whole = self.whole(module)
        if whole is not None:
            device_map[module.path] = self.value(whole)
            return
        for op in module.stored:
            if not self.modules.is_of_optimizer(op):
                device_map[self.modules.name(op)] = self.value(int(self.modules.plan.devices[op]))
        for child in module.children.values():
            self.fill(child, device_map)

    def whole(self, module: Module) -> int | None:
        """The device that a module's entry has; None: it has entries for what is in it."""
        devices = self.modules.plan.devices
        stored = [op for one in module.walk() for op in one.stored]
        loaded = {int(devices[op]) for op in stored if op in self.modules.streamed}
        if not loaded:
            runs = module.devices or {int(devices[op]) for op in stored[:1]}
            return next(iter(runs)) if len(runs) == 1 else None
        # Buffers stay on the GPU beside weights that are streamed.
        kinds, read = self.modules.plan.graph.kinds, self.modules.weights - self.modules.streamed
        stays = any(op in read and kinds[op] == "parameter" for op in stored)
        # An entry for the model itself would name no GPU.
        is_one = len(loaded) == 1 and module.path and not stays
        return next(iter(loaded)) if is_one else None

    # -- what is in the way ------------------------------------------------------------------

    def reasons(self) -> Iterator[Reason]:
        """All of it, a sort at a time."""
        modules = self.modules
        plan = modules.plan
        reads = [(a, b) for a, b in modules.reads() if a not in modules.streamed]
        torn = [f"{path or 'the model itself'}" for path in self._torn(reads)]
        if torn:
            yield (
                "modules are divided whose own code, or its backward, reads what is on another "
                "device",
                torn,
            )
        if untied := list(self._untied(reads)):
            yield "parameters are read on several devices, where a map would untie them", untied
        yield from self._away(reads)
        family = [name for name, _ in families(plan.cluster)]
        used = sorted({int(plan.devices[op]) for op in modules.order})
        kinds = {family[d] for d in used}
        if "disk" in kinds or ("cpu" in kinds and len(kinds) > 1):
            on = [plan.cluster.devices[d].name for d in used if family[d] in ("cpu", "disk")]
            yield "accelerate would store the weights there, and run on a GPU, but ops run on", on
        stays = any(
            int(plan.devices[op]) in used for op in modules.weights if op not in modules.streamed
        )
        if modules.streamed and not stays:
            yield "all weights are streamed, so that the map names no GPU to run on"

    def _away(self, reads: list[tuple[int, int]]) -> Iterator[Reason]:
        """Tensors that the model itself holds away from the main device, the first that the map
        has.
        """
        modules = self.modules
        if len(modules.top.devices) < 2:
            return
        devices, main = modules.plan.devices, min(modules.top.devices)
        own = set(modules.top.stored) & modules.weights
        read = {src for src, dst in reads if src in own and devices[dst] != main}
        away = [
            modules.name(op)
            for op in sorted(read)
            if not modules.is_of_optimizer(op)
            and not all(modules.passed(src, dst) for src, dst in reads if src == op)
        ]
        if away:
            on = modules.plan.cluster.devices[main].name
            yield f"what the model itself holds is on {on}, but is read elsewhere", away

    def _torn(self, reads: list[tuple[int, int]]) -> Iterator[str]:
        """Divided modules whose own ops read from another device than their own."""
        modules = self.modules
        devices = modules.plan.devices
        foreign = {dst for src, dst in reads if devices[src] != devices[dst]}
        near: dict[int, set[int]] = {}
        for src, dst in reads:
            near.setdefault(src, set()).add(int(devices[dst]))
            near.setdefault(dst, set()).add(int(devices[src]))
        for module in modules.top.walk():
            if len(module.devices) == 1:
                continue
            forward = [op for op in module.ops if modules.is_forward(op)]
            others = [op for op in module.ops if not modules.is_forward(op)]
            # Autograd runs the backward of an op on the op's device.
            stray = any(int(devices[op]) not in near.get(op, set()) for op in others)
            leaf = not any(child.ops or child.children for child in module.children.values())
            if stray or leaf or any(op in foreign for op in forward):
                yield module.path

    def _untied(self, reads: list[tuple[int, int]]) -> Iterator[str]:
        """Parameters that modules on several devices share."""
        modules = self.modules
        plan = modules.plan
        where: dict[int, dict[int, int]] = {}
        for src, dst in reads:
            if src in modules.weights and not modules.passed(src, dst):
                where.setdefault(src, {}).setdefault(int(plan.devices[dst]), dst)
        for src, readers in where.items():
            apart = {modules.of[op] for op in readers.values()}
            if len(readers) > 1 and len(apart) > 1:
                on = ", ".join(plan.cluster.devices[device].name for device in readers)
                yield f"{modules.name(src)!r} on {on}"


# -- max_memory --------------------------------------------------------------------------------

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG])(I?)B", re.IGNORECASE)


def max_memory(cluster: Cluster, limits: Mapping[int | str, int | str]) -> Cluster:
    """The cluster within a ``max_memory`` as transformers and accelerate take it.

    A device that is not named, or has 0, is not used. GPUs go by index, all CPUs are ``"cpu"``.
    Sizes are bytes, or text such as ``"10GiB"`` and ``"500MB"``, where a small b (``"8Gb"``) means
    bits.

    Parameters
    ----------
    cluster : Cluster
    limits : mapping
        Device to size; keys from JSON (``"0"``) will do.

    Raises
    ------
    InputError
        A device that the cluster does not have, or no size.

    Examples
    --------
    >>> import loadmaster as lm
    >>> cluster = lm.writers.max_memory(lm.Cluster.preset("4xV100-PCIe"), {0: "10GiB", "1": "8GB"})
    >>> [(d.name, d.memory) for d in cluster.devices]
    [('gpu0', 10737418240), ('gpu1', 8000000000)]
    """
    if not isinstance(limits, Mapping):
        raise InputError('max_memory: wants an object such as {"0": "10GiB", "cpu": "30GiB"}')
    index: dict[str, list[int]] = {}
    for i, family in enumerate(families(cluster)):
        index.setdefault(_key(*family), []).append(i)
    kept: dict[int, int] = {}
    for key, value in limits.items():
        size, name = _size(key, value), str(key)
        if name not in index and (size or name != "disk"):
            raise InputError(
                f"max_memory speaks of {key!r}, but {cluster!r} has {', '.join(map(repr, index))}"
            )
        kept |= {i: size for i in index.get(name, []) if size}
    if not kept:
        raise InputError("max_memory leaves no device with any memory")
    for device, size in kept.items():
        cluster = cluster.with_memory(size, device)
    return cluster.subset(sorted(kept))


def _size(key: object, value: object) -> int:
    if is_integer(value) and 0 <= value < 2**63:
        return int(value)
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise InputError(
            f"max_memory of {key!r} is {value!r}: give bytes, or text such as '10GiB' or '500MB'"
        )
    unit = (1024 if match[3] else 1000) ** " KMG".index(match[2].upper())
    bits = isinstance(value, str) and value.strip().endswith("b") and not match[3]
    return min(int(float(match[1]) * unit) // (8 if bits else 1), 2**63 - 1)
