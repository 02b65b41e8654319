"""vLLM: a plan as the layer partition of its pipeline parallelism."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from loadmaster.base.files import written
from loadmaster.plans.plan import Plan
from loadmaster.writers.targets.layers import layer_split, once_each, stages, with_ends
from loadmaster.writers.targets.names import device_names, torch_device


def vllm(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    root: str = "",
    layers: str | None = None,
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The plan for vLLM, which takes the number of layers per stage from an environment variable.

    Parameters
    ----------
    plan : Plan
        By whole layers, each device having one run of them.
    path : optional
        Where to write it as JSON.
    root, layers, names
        As for :func:`~loadmaster.writers.targets.layers.layer_split` and
        :func:`~loadmaster.writers.targets.huggingface.device_map`.

    Returns
    -------
    dict
        ``environment`` and ``arguments`` for ``vllm serve``, and ``stages``: device, first layer
        and number of layers of each rank.

    Raises
    ------
    InputError
        The plan is not by layers; see :func:`~loadmaster.writers.targets.layers.layer_split`.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink"), "single")
    >>> lm.writers.vllm(plan)["environment"]
    {'VLLM_PP_LAYER_PARTITION': '24'}
    """
    split = layer_split(plan, "vLLM", root=root, layers=layers)
    once_each(split, "vLLM")
    with_ends(split, "vLLM")
    document = {
        "environment": {"VLLM_PP_LAYER_PARTITION": ",".join(str(n) for _, n in split.runs)},
        "arguments": ["--pipeline-parallel-size", str(len(split.runs))],
        "stages": stages(split, device_names(plan, torch_device, names)),
    }
    return written(document, path)
