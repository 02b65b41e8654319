"""PyTorch FX: a plan as annotations of nodes, and as a module with a submodule per segment."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

from loadmaster.base.errors import InputError, importing
from loadmaster.base.files import written
from loadmaster.plans.plan import Plan
from loadmaster.plans.segments import Segments
from loadmaster.systems.shared.names import check_names, device_names, refuse_parts, torch_device

#: Kinds of FX nodes that compute.
_CALLS = ("call_function", "call_method", "call_module")

#: Calls that torch.export adds to check inputs, and what ops make: they are no ops of the model.
_CHECKS = ("_guards_fn", "_assert_tensor_metadata", "_assert_scalar", "_assert_async")

#: Key of a node's ``meta`` under which :func:`fx_split` leaves its annotation.
META = "loadmaster"


def fx(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The plan as annotations by node name.

    Parameters
    ----------
    plan : Plan
        Of a graph whose ops have the names of FX nodes, as traced graphs do.
    path : optional
        Where to write it as JSON.
    names : mapping, optional
        Device names to PyTorch's; ``cuda:0``, ... if absent.

    Returns
    -------
    dict
        ``step``: its seconds as planned, as exported, and on one device
        (:class:`~loadmaster.plans.segments.Exported`); ``segments``: the device of each, in the
        order in which they run; ``nodes``: name to ``device``, ``segment`` and ``priority``.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "heft")
    >>> lm.writers.fx(plan)["nodes"]["convolution"]["device"]
    'cuda:0'
    """
    refuse_parts(plan, "an FX graph")
    spelled = device_names(plan, torch_device, names)
    cut, graph = Segments.cut(plan), plan.graph
    document = {
        "step": cut.exported.to_document(),
        "segments": [spelled[device] for device in cut.devices.tolist()],
        "nodes": {
            name: {
                "device": spelled[device],
                "segment": segment,
                "priority": priority,
            }
            for name, device, segment, priority in zip(
                graph.names,
                plan.devices.tolist(),
                cut.of.tolist(),
                plan.priority.tolist(),
                strict=True,
            )
            if segment >= 0
        },
    }
    return written(document, path)


def fx_split(plan: Plan, module: Any, *, names: Mapping[str, str] | None = None) -> Any:
    """A module that runs a traced one as planned: a submodule per segment, each on its device.

    The plan is cut where it sends or waits (:mod:`loadmaster.plans.segments`).
    Every submodule has the weights that it reads, on its device. A tensor is sent once to each
    device that reads it. ``meta["loadmaster"]`` has the annotation of each node of the result and
    of its submodules. The given module does not change.

    Parameters
    ----------
    plan : Plan
    module : torch.export.ExportedProgram or torch.fx.GraphModule
        Whose nodes are the plan's ops: what :func:`loadmaster.read` read.
    names
        As for :func:`fx`; ``{"gpu0": "cpu", "gpu1": "cpu"}`` tries it out without GPUs.

    Returns
    -------
    torch.fx.GraphModule
        With submodules ``segment_0``, ``segment_1``, ...

    Raises
    ------
    InputError
        A node that the plan's graph does not have, or neither a program nor a GraphModule.
    MissingExtraError
        PyTorch is not installed.

    Examples
    --------
    >>> placed = lm.writers.fx_split(plan, exported)               # doctest: +SKIP
    >>> placed.segment_1                                           # doctest: +SKIP
    """
    with importing("torch", "torch", "splitting an FX module"):
        import torch
        import torch.export
        from torch.fx.passes.split_utils import split_by_tags
    if isinstance(module, torch.export.ExportedProgram):
        module = module.module()
    if not isinstance(module, torch.fx.GraphModule):
        raise InputError(
            "wants a torch.export.ExportedProgram or a torch.fx.GraphModule, got "
            f"{type(module).__name__}"
        )
    tagged = copy.deepcopy(module)
    for node in list(tagged.graph.nodes):
        if not node.users and any(check in str(node.target) for check in _CHECKS):
            tagged.graph.erase_node(node)
    calls = [node for node in tagged.graph.nodes if node.op in _CALLS]
    check_names(plan, (node.name for node in calls), "the FX graph")
    placed = fx(plan, names=names)
    for node in calls:
        node.meta[META] = placed["nodes"][node.name]
        node.tag = f"segment_{placed['nodes'][node.name]['segment']}"
    used = {node.tag for node in calls}
    tags = [f"segment_{k}" for k in range(len(placed["segments"])) if f"segment_{k}" in used]
    split = split_by_tags(tagged, tags)
    # Copies, since segments share weights after the split.
    for tag in tags:
        device = placed["segments"][int(tag.removeprefix("segment_"))]
        setattr(split, tag, copy.deepcopy(getattr(split, tag)).to(device))
    _send(split, placed)
    return split


def send(value: Any, device: str) -> Any:
    """Inputs of a segment, on its device: tensors are moved, anything else is passed on."""
    return value.to(device) if hasattr(value, "to") else value


def _send(split: Any, placed: Mapping[str, Any]) -> None:
    """Inserts a node for each tensor and device that it is sent to."""
    graph = split.graph
    sent: dict[tuple[Any, str], Any] = {}
    for call in [node for node in graph.nodes if node.op == "call_module"]:
        device = placed["segments"][int(call.target.removeprefix("segment_"))]
        call.meta[META] = {"device": device}
        for source in call.all_input_nodes:
            if source.meta.get(META, {}).get("device") == device:
                continue
            if (source, device) not in sent:
                with graph.inserting_before(call):
                    sent[source, device] = graph.call_function(send, (source, device))
                sent[source, device].meta[META] = {"device": device}
            call.replace_input_with(source, sent[source, device])
    graph.lint()
    split.recompile()
