"""torch.distributed.pipelining: a plan as split points.

A split point stands before or after a module's ``forward``, so a pipeline can be cut only where a
module begins or ends. Autograd runs the backward of a stage on the stage's own device.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.files import written
from loadmaster.plans.plan import Plan
from loadmaster.writers.targets.modules import Module, Modules
from loadmaster.writers.targets.names import (
    device_names,
    pattern,
    placed,
    refuse_parts,
    torch_device,
)


def pipelining(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    root: str = "",
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The plan as a ``split_spec`` for ``torch.distributed.pipelining.pipeline``.

    Stages are runs of forward ops on one device, in the order in which the model runs them; a
    device may have several. O(ops x depth of the module tree).

    Parameters
    ----------
    plan : Plan
        Of a graph whose module paths are the model's.
    path : optional
        Where to write it as JSON.
    root, names
        As for :func:`~loadmaster.writers.targets.huggingface.device_map`.

    Returns
    -------
    dict
        ``split_spec``: module to ``"BEGINNING"`` or ``"END"``, members of ``SplitPoint``;
        ``stages``: per stage its ``device`` and the number of ``ops``.

    Raises
    ------
    InputError
        A cut inside a module, a module called more than once at a cut, or a module whose backward
        is elsewhere than its forward; the ops are named, with the constraint that avoids it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink"), "single")
    >>> lm.writers.pipelining(plan)["split_spec"]
    {}

    For PyTorch::

        spec = {name: SplitPoint[point] for name, point in written["split_spec"].items()}
        pipe = torch.distributed.pipelining.pipeline(model, (example,), split_spec=spec)
    """
    refuse_parts(plan, "a pipeline of PyTorch")
    modules = Modules(plan, root)
    spelled = device_names(plan, torch_device, names)
    order = [op for op in modules.order if modules.is_forward(op)]
    cuts = [i for i in range(1, len(order)) if plan.devices[order[i]] != plan.devices[order[i - 1]]]
    begins, ends = _edges(modules, order)
    spec = dict(_point(modules, order, cut, begins, ends) for cut in cuts)
    bounds = [0, *cuts, len(order)]
    stage_of = {
        op: stage
        for stage, begin in enumerate(bounds[:-1])
        for op in order[begin : bounds[stage + 1]]
    }
    _refuse_apart(modules, stage_of)
    document = {
        "split_spec": spec,
        "stages": [
            {"device": spelled[plan.devices[order[begin]]], "ops": bounds[stage + 1] - begin}
            for stage, begin in enumerate(bounds[:-1])
        ],
    }
    return written(document, path)


def _edges(
    modules: Modules, order: list[int]
) -> tuple[dict[int, list[Module]], dict[int, list[Module]]]:
    """Modules whose ops are one run of the order, by the positions where the run begins and ends.

    Outer modules come first. The model and lists of modules, which have no ``forward``, are left
    out.
    """
    position = {op: i for i, op in enumerate(order)}
    begins: dict[int, list[Module]] = {}
    ends: dict[int, list[Module]] = {}
    spans: dict[str, tuple[int, int, int]] = {}
    walked = list(modules.top.walk())
    for module in reversed(walked):
        own = [position[op] for op in module.ops if op in position]
        parts = [spans[child] for child in module.children if child in spans]
        parts += [(min(own), max(own), len(own))] if own else []
        if parts:
            first, last = min(p[0] for p in parts), max(p[1] for p in parts)
            spans[module.path] = first, last, sum(p[2] for p in parts)
    for module in walked[1:]:
        first, last, count = spans.get(module.path, (0, -1, -1))
        if last - first + 1 == count and not module.is_list:
            begins.setdefault(first, []).append(module)
            ends.setdefault(last + 1, []).append(module)
    return begins, ends


def _point(
    modules: Modules,
    order: list[int],
    cut: int,
    begins: dict[int, list[Module]],
    ends: dict[int, list[Module]],
) -> tuple[str, str]:
    if cut in begins:
        return begins[cut][0].path, "BEGINNING"
    if cut in ends:
        return ends[cut][0].path, "END"
    before, after = order[cut - 1], order[cut]
    module = _common(modules.of[before] or "", modules.of[after] or "")
    raise InputError(
        "a pipeline cannot be cut between "
        f"{placed(modules.plan, [before, after])}: no module begins or ends there"
        + (f", it is inside {module!r}" if module else "")
        + ". Place it again with --contiguous"
        + (f" --no-split {pattern(modules.full(module))!r}" if module else "")
    )


def _common(a: str, b: str) -> str:
    parts = []
    for x, y in zip(a.split("."), b.split("."), strict=False):
        if x != y:
            break
        parts.append(x)
    return ".".join(parts)


def _refuse_apart(modules: Modules, stage_of: dict[int, int]) -> None:
    """Refuses parameters, backward and optimizer ops on another device than their stage."""
    plan, devices = modules.plan, modules.plan.devices
    for src, dst in modules.reads():
        # Stages get copies of a buffer that they share; copies of a parameter would drift apart.
        stored = plan.graph.kinds[src] == "parameter"
        if stored and dst in stage_of and devices[src] != devices[dst]:
            raise InputError(
                f"{modules.name(src)!r} is on {plan.device(src)}, but the stage on "
                f"{plan.device(dst)} reads it (op {plan.graph.names[dst]!r}): place it again with "
                f"{modules.together(src, dst)}"
            )
    for module in modules.top.walk():
        homes = {int(devices[op]) for op in module.ops if op in stage_of}
        stray = [op for op in module.ops if op not in stage_of and int(devices[op]) not in homes]
        if homes and stray:
            raise InputError(
                f"autograd runs the backward of {module.path or 'the model'!r} on the device of "
                f"its forward, but the plan has {placed(plan, stray)}: place it again with "
                f"--no-split {pattern(modules.full(module.path)) or '*'!r}"
            )
