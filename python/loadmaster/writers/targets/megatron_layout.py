"""Megatron-LM: a plan as its pipeline layout."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.files import written
from loadmaster.plans.plan import Plan
from loadmaster.writers.targets.layers import layer_split, stages, with_ends
from loadmaster.writers.targets.names import device_names, torch_device


def megatron(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    root: str = "",
    layers: str | None = None,
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The plan as ``--pipeline-model-parallel-layout``: ``E`` embedding, ``t`` layer, ``L`` loss.

    Where devices have several runs of layers, the layout is a virtual pipeline. Megatron then asks
    that all devices have the same number of runs and take turns in one order.

    Parameters, errors and the document are those of
    :func:`~loadmaster.writers.targets.vllm_layers.vllm`, with ``arguments`` for Megatron's training
    scripts and no ``environment``.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink"), "single")
    >>> lm.writers.megatron(plan)["arguments"][-1]
    'Et*24L'
    """
    split = layer_split(plan, "Megatron", root=root, layers=layers)
    devices = [device for device, _ in split.runs]
    ranks = len(set(devices))
    if devices != devices[:ranks] * (len(devices) // ranks):
        order = ", ".join(plan.cluster.devices[d].name for d in devices)
        raise InputError(
            "Megatron's stages take turns among the devices in one order, but the plan's runs of "
            f"layers are on {order}: place it again with --contiguous"
        )
    with_ends(split, "Megatron")
    runs = [f"t*{n}" for _, n in split.runs]
    document = {
        "arguments": [
            "--num-layers",
            str(len(split.devices)),
            "--pipeline-model-parallel-size",
            str(ranks),
            "--pipeline-model-parallel-layout",
            f"E{'|'.join(runs)}L",
        ],
        "stages": stages(split, device_names(plan, torch_device, names)),
    }
    return written(document, path)
