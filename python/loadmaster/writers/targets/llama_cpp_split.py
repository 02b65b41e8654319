"""llama.cpp: a plan as its tensor split and the number of layers on GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.files import written
from loadmaster.model.families import families
from loadmaster.plans.plan import Plan
from loadmaster.writers.targets.layers import layer_split, once_each, stages, with_ends
from loadmaster.writers.targets.names import device_names

#: Entries that ``--tensor-split`` takes: one less than ``llama_max_devices()``.
MAX_GPUS = 15


def llama_cpp(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    root: str = "",
    layers: str | None = None,
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The plan as ``--n-gpu-layers``, ``--device`` and ``--tensor-split`` of llama.cpp.

    llama.cpp keeps the first layers on the CPU and gives each GPU one run of the others. The output
    counts as one more layer of the last run. The input embedding is always on the CPU.

    Parameters, errors and the document are those of
    :func:`~loadmaster.writers.targets.vllm_layers.vllm`, with ``arguments`` for ``llama-server``
    and no ``environment``; GPUs are ``CUDA0``, ``CUDA1``, ... unless ``names`` says so.

    Raises
    ------
    InputError
        The plan is not by layers, has layers on a CPU behind some on a GPU, or on more than 15
        GPUs.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink"), "single")
    >>> " ".join(lm.writers.llama_cpp(plan)["arguments"])
    '--n-gpu-layers 25 --device CUDA0 --split-mode layer --tensor-split 25'
    """
    split = layer_split(plan, "llama.cpp", root=root, layers=layers)
    once_each(split, "llama.cpp")
    with_ends(split, "llama.cpp")
    family = [name for name, _ in families(plan.cluster)]
    spelled = device_names(plan, lambda f, n: "CPU" if f == "cpu" else f"CUDA{n}", names)
    late = [d for d, _ in split.runs[1:] if family[d] == "cpu"]
    if late:
        raise InputError(
            "llama.cpp keeps the first layers on the CPU, but the plan has layers on "
            f"{plan.cluster.devices[late[0]].name} behind others: place it again with --pin "
            f"'{split.layers}.0*'={plan.cluster.devices[late[0]].name} --contiguous"
        )
    gpus = [(d, n) for d, n in split.runs if family[d] != "cpu"]
    if len(gpus) > MAX_GPUS:
        raise InputError(
            f"llama.cpp takes a tensor split over {MAX_GPUS} GPUs at most, but the plan has layers "
            f"on {len(gpus)}: place it again on a cluster of fewer"
        )
    # The output counts as one more layer of the last run.
    counts = [n + (i == len(gpus) - 1) for i, (_, n) in enumerate(gpus)]
    arguments = ["--n-gpu-layers", str(sum(counts))]
    if gpus:
        arguments += ["--device", ",".join(spelled[d] for d, _ in gpus)]
        arguments += ["--split-mode", "layer", "--tensor-split", ",".join(map(str, counts))]
    document = {"arguments": arguments, "stages": stages(split, spelled)}
    return written(document, path)
