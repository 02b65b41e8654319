"""Hugging Face: a plan as the ``device_map`` of transformers and accelerate, and ``max_memory``.

A device map sends every module below a prefix to one device. accelerate moves a module's inputs to
its device before its ``forward`` runs, and nothing else: code between the modules runs where its
operands happen to be, and fails where they differ. So a module with code of its own (an attention
block, a residual connection) can be divided only where that code finds all it reads on its device.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from loadmaster.base.checks import is_integer
from loadmaster.base.errors import InputError
from loadmaster.base.files import written
from loadmaster.model.cluster import Cluster
from loadmaster.model.families import families
from loadmaster.plans.plan import Plan
from loadmaster.writers.targets.modules import Module, Modules
from loadmaster.writers.targets.names import (
    device_names,
    listed,
    pattern,
    placed,
    refuse_parts,
)


def device_map(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    root: str = "",
    names: Mapping[str, str] | None = None,
) -> dict[str, int | str]:
    """The plan as a ``device_map``: module prefix to GPU index, ``"cpu"`` or ``"npu:0"``.

    An entry is a module as large as possible with everything below it on one device, in the model's
    order. Parameters that a divided module holds itself have entries of their own. O(ops x depth of
    the tree).

    Parameters
    ----------
    plan : Plan
        Of a graph whose module paths are the model's.
    path : optional
        Where to write it as JSON.
    root : str
        What the model is called in the graph's module paths; see
        :class:`~loadmaster.writers.targets.modules.Modules`.
    names : mapping, optional
        Device names to values, such as ``{"gpu0": "cuda:3"}``.

    Raises
    ------
    InputError
        A module was split whose own code would meet tensors of two devices, a module's backward
        or optimizer ops are elsewhere than its forward, or tied parameters are apart; the modules
        and ops are named, with the constraint that keeps them together.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink"), "single")
    >>> lm.writers.device_map(plan)
    {'': 0}
    """
    refuse_parts(plan, "a device_map")
    modules = Modules(plan, root)
    reads = modules.reads()
    spelled = device_names(plan, _key, names)
    values = [int(name) if name.isdecimal() else name for name in spelled]
    found: dict[str, int | str] = {}
    _refuse_untied(modules, reads)
    _refuse_split(modules, reads)
    _fill(modules, modules.top, values, found)
    return written(found, path)


def _key(family: str, number: int) -> str:
    return "cpu" if family == "cpu" else str(number) if family == "gpu" else f"{family}:{number}"


def _fill(
    modules: Modules, module: Module, values: list[int | str], found: dict[str, int | str]
) -> None:
    if len(module.devices) == 1:
        found[module.path] = values[next(iter(module.devices))]
        return
    for op in module.stored:
        found[modules.name(op)] = values[modules.plan.devices[op]]
    for child in module.children.values():
        _fill(modules, child, values, found)


def _refuse_split(modules: Modules, reads: list[tuple[int, int]]) -> None:
    """Refuses a divided module whose own code, or autograd, would run on another device."""
    plan, devices = modules.plan, modules.plan.devices
    # Ops that read from another device than their own, and the ops that they read from.
    foreign: dict[int, list[int]] = {}
    for src, dst in reads:
        if devices[src] != devices[dst]:
            foreign.setdefault(dst, []).append(src)
    split: dict[str, list[int]] = {}
    for module in modules.top.walk():
        if len(module.devices) == 1:
            continue
        forward = [op for op in module.ops if modules.is_forward(op)]
        where = {int(devices[op]) for op in forward}
        torn = [op for op in forward if op in foreign]
        stray = [op for op in module.ops if not modules.is_forward(op) and devices[op] not in where]
        if torn or (where and stray) or not module.children:
            split[module.path] = torn or stray or module.ops
    if split:
        name, ops = next(iter(split.items()))
        whole = [pattern(path) for path in split if path]
        way = f"--no-split {modules.full(whole[0])!r}" if whole else "--contiguous"
        raise InputError(
            f"a device_map cannot split {'the model itself' if not name else f'module {name!r}'}: "
            f"its own code runs {placed(plan, ops)}, where it reads what is on another device"
            + (f"; nor {listed(list(split)[1:])}" if len(split) > 1 else "")
            + f". Keep such modules whole: place it again with {way}"
        )


def _refuse_untied(modules: Modules, reads: list[tuple[int, int]]) -> None:
    """Refuses parameters that modules on several devices share: a map cannot keep them tied."""
    plan, kinds, devices = modules.plan, modules.plan.graph.kinds, modules.plan.devices
    first: dict[int, int] = {}
    for src, dst in reads:
        if kinds[src] not in ("parameter", "buffer") or modules.passed(src, dst):
            continue
        other = first.setdefault(src, dst)
        if devices[other] != devices[dst] and modules.of[other] != modules.of[dst]:
            here, there = (modules.of[op] or "the model itself" for op in (other, dst))
            raise InputError(
                f"{modules.name(src)!r} is read by {here!r} on {plan.device(other)} and by "
                f"{there!r} on {plan.device(dst)} (op {plan.graph.names[dst]!r}): a device_map "
                "would untie them. Keep both on one device: place it again with "
                f"{modules.together(other, dst)}"
            )


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
        A device that the cluster does not have, disk, or no size.

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
        if name == "disk" and size:
            raise InputError("max_memory: Loadmaster places nothing on disk; leave 'disk' out")
        if name not in index and name != "disk":
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
