"""Megatron-LM: a plan as the sizes of its parallelism, and its pipeline layout."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from loadmaster.base.files import written
from loadmaster.plans.plan import Plan
from loadmaster.rules.layer_list import LayerList
from loadmaster.strategies.targets.megatron import NAME
from loadmaster.transforms.shares import batch_size
from loadmaster.writers.targets.layers import layer_split, options_of, stages, with_ends
from loadmaster.writers.targets.names import device_names, torch_device
from loadmaster.writers.targets.refusal import Reason, refusal


def megatron(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    root: str | None = None,
    layers: str | None = None,
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The plan as flags of Megatron's training scripts.

    In ``--pipeline-model-parallel-layout`` ``E`` is the embedding, ``t`` a layer, ``L`` the loss.
    Where devices have several runs of layers, the layout is a virtual pipeline: all devices have
    the same number of runs, and take turns in one order.

    Parameters and the document are those of :func:`~loadmaster.writers.targets.vllm_layers.vllm`,
    with ``arguments`` for Megatron's scripts and no ``environment``.

    Raises
    ------
    InputError
        Everything that Megatron cannot run of the plan, with the command that plans for it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink"), "single")
    >>> lm.writers.megatron(plan)["arguments"][-1]
    'Et*24L'
    """
    spelled = device_names(plan, torch_device, names)
    root, layers = options_of(plan, root, layers)
    if plan.target == NAME and plan.recipe is not None:
        found = LayerList.of(plan.graph, root, layers)
        devices = [spelled[d] for d in plan.recipe.mesh.on(plan.cluster).tolist()]
        made = _piped if plan.recipe.micro is not None else _sharded
        return written({"arguments": made(plan, found), "devices": devices}, path)
    reasons: list[Reason] = []
    split = layer_split(plan, root, layers, reasons)
    if split is not None:
        with_ends(split, reasons)
        of_runs = [device for device, _ in split.runs]
        ranks = len(set(of_runs))
        if of_runs != of_runs[:ranks] * (len(of_runs) // ranks):
            order = [plan.cluster.devices[d].name for d in of_runs]
            reasons.append(("runs of layers do not take turns among the devices", order))
    if split is None or reasons:
        raise refusal(plan, NAME, reasons)
    document = {
        "arguments": _layout([n for _, n in split.runs], ranks),
        "stages": stages(split, spelled),
    }
    return written(document, path)


def _layout(counts: Sequence[int], ranks: int) -> list[str]:
    """The flags for runs of so many layers."""
    return [
        "--num-layers", str(sum(counts)),
        "--pipeline-model-parallel-size", str(ranks),
        "--pipeline-model-parallel-layout", f"E{'|'.join(f't*{n}' for n in counts)}L",
    ]  # fmt: skip


def _piped(plan: Plan, found: LayerList) -> list[str]:
    """The flags of a pipeline."""
    recipe = plan.recipe
    assert recipe is not None
    assert recipe.micro is not None
    stage = recipe.stage_of(plan.graph)[found.cuts.order[found.begins]]
    counts = [len(list(same)) for _, same in groupby(stage.tolist())]
    batch = batch_size(plan.graph) or recipe.micro.n
    of_batch = ["--tensor-model-parallel-size", "1", *_batches(batch // recipe.micro.n, batch)]
    return [*of_batch, *_layout(counts, recipe.mesh.size)]


def _sharded(plan: Plan, found: LayerList) -> list[str]:
    """The flags of tensor parallelism in replicas."""
    recipe = plan.recipe
    assert recipe is not None
    sizes = dict(zip(recipe.mesh.names, recipe.mesh.shape, strict=True))
    batch = batch_size(plan.graph) or 1
    flags = ["--tensor-model-parallel-size", str(sizes.get("tp", 1))]
    flags += ["--pipeline-model-parallel-size", "1", "--num-layers", str(len(found))]
    if "tp" in sizes and _by_tokens(plan):
        flags.append("--sequence-parallel")
    return flags + _batches(batch // sizes.get("dp", 1), batch)


def _batches(micro: int, batch: int) -> list[str]:
    return ["--micro-batch-size", str(micro), "--global-batch-size", str(batch)]


def _by_tokens(plan: Plan) -> bool:
    """Whether what lies between the products is cut by tokens: norms of layers are."""
    assert plan.recipe is not None
    words = plan.recipe.words(plan.graph)["tp"]
    kinds = plan.graph.kinds
    return bool(np.any([w == "token" for w, k in zip(words, kinds, strict=True) if "norm" in k]))
