"""llama.cpp: a plan as its tensor split and the number of layers on GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from loadmaster.base.files import written
from loadmaster.model.families import families
from loadmaster.plans.plan import Plan
from loadmaster.systems.llama_cpp.plan import MAX_GPUS
from loadmaster.systems.llama_cpp.semantics import NAME
from loadmaster.systems.shared.layers import (
    layer_split,
    once_each,
    options_of,
    stages,
    with_ends,
)
from loadmaster.systems.shared.names import device_names
from loadmaster.systems.shared.refusal import Reason, refusal


def llama_cpp(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    root: str | None = None,
    layers: str | None = None,
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The plan as ``--n-gpu-layers``, ``--device`` and ``--tensor-split`` of llama.cpp.

    llama.cpp keeps the first layers on the CPU and gives each GPU one run of the others. The output
    counts as one more layer of the last run. The input embedding is always on the CPU.

    Parameters, errors and the document are those of
    :func:`~loadmaster.systems.vllm.write.vllm`, with ``arguments`` for ``llama-server``
    and no ``environment``; GPUs are ``CUDA0``, ``CUDA1``, ... unless ``names`` says so.

    Raises
    ------
    InputError
        Everything that llama.cpp cannot run of the plan, such as layers on a CPU behind some on a
        GPU, or on more than 15 GPUs, with the command that plans for it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink"), "single")
    >>> " ".join(lm.writers.llama_cpp(plan)["arguments"])
    '--n-gpu-layers 25 --device CUDA0 --split-mode layer --tensor-split 25'
    """
    reasons: list[Reason] = []
    root, layers = options_of(plan, root, layers)
    family = [name for name, _ in families(plan.cluster)]
    spelled = device_names(plan, lambda f, n: "CPU" if f == "cpu" else f"CUDA{n}", names)
    split = layer_split(plan, root, layers, reasons)
    if split is None:
        raise refusal(plan, NAME, reasons)
    once_each(split, reasons)
    with_ends(split, reasons, [d for d, name in enumerate(family) if name == "cpu"])
    if late := [d for d, _ in split.runs[1:] if family[d] == "cpu"]:
        on = [plan.cluster.devices[d].name for d in late]
        reasons.append(("it keeps the first layers on the CPU, and the plan has some behind", on))
    gpus = [(d, n) for d, n in split.runs if family[d] != "cpu"]
    if len(gpus) > MAX_GPUS:
        reasons.append(f"it takes {MAX_GPUS} GPUs at most, and the plan has layers on {len(gpus)}")
    if reasons:
        raise refusal(plan, NAME, reasons)
    # The output counts as one more layer of the last run.
    counts = [n + (i == len(gpus) - 1) for i, (_, n) in enumerate(gpus)]
    arguments = ["--n-gpu-layers", str(sum(counts))]
    if gpus:
        arguments += ["--device", ",".join(spelled[d] for d, _ in gpus)]
        arguments += ["--split-mode", "layer", "--tensor-split", ",".join(map(str, counts))]
    document = {"arguments": arguments, "stages": stages(split, spelled)}
    return written(document, path)
