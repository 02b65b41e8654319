"""vLLM: a plan as the sizes of its tensor and pipeline parallelism, and its layer partition."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from loadmaster.base.files import written
from loadmaster.plans.plan import Plan
from loadmaster.strategies.targets.vllm import NAME
from loadmaster.writers.targets.layers import (
    layer_split,
    once_each,
    options_of,
    stages,
    with_ends,
)
from loadmaster.writers.targets.names import device_names, torch_device
from loadmaster.writers.targets.refusal import Reason, refusal


def vllm(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    root: str | None = None,
    layers: str | None = None,
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The plan for vLLM, which takes the number of layers per stage from an environment variable.

    Parameters
    ----------
    plan : Plan
        By whole layers, each device having one run of them; or made for vLLM.
    path : optional
        Where to write it as JSON.
    root, layers : optional
        As for :class:`~loadmaster.rules.layer_list.LayerList`; what the plan was made with if
        absent.
    names : mapping, optional
        As for :func:`~loadmaster.writers.targets.huggingface.device_map`.

    Returns
    -------
    dict
        ``environment`` and ``arguments`` for ``vllm serve``, and ``stages``: device, first layer
        and number of layers of each rank.

    Raises
    ------
    InputError
        Everything that vLLM cannot run of the plan, with the command that plans for it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink"), "single")
    >>> lm.writers.vllm(plan)["environment"]
    {'VLLM_PP_LAYER_PARTITION': '24'}
    """
    spelled = device_names(plan, torch_device, names)
    root, layers = options_of(plan, root, layers)
    if plan.target == NAME and plan.recipe is not None:
        on = [spelled[d] for d in plan.recipe.mesh.on(plan.cluster).tolist()]
        sizes = ["--tensor-parallel-size", str(len(on)), "--pipeline-parallel-size", "1"]
        return written({"environment": {}, "arguments": sizes, "devices": on}, path)
    reasons: list[Reason] = []
    split = layer_split(plan, root, layers, reasons)
    if split is not None:
        once_each(split, reasons)
        with_ends(split, reasons)
    if split is None or reasons:
        raise refusal(plan, NAME, reasons)
    document = {
        "environment": {"VLLM_PP_LAYER_PARTITION": ",".join(str(n) for _, n in split.runs)},
        "arguments": ["--pipeline-parallel-size", str(len(split.runs))],
        "stages": stages(split, spelled),
    }
    return written(document, path)
