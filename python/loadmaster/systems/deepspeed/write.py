"""DeepSpeed: a plan of ZeRO as its configuration, JSON."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from loadmaster.base.files import written
from loadmaster.plans.plan import Plan
from loadmaster.systems.deepspeed.semantics import NAME
from loadmaster.systems.shared.figures import sentences
from loadmaster.systems.shared.precision import elements_in
from loadmaster.systems.shared.processes import command, devices_of
from loadmaster.systems.shared.refusal import refusal
from loadmaster.systems.shared.zero import SAID
from loadmaster.systems.shared.zero_plans import in_the_way
from loadmaster.systems.shared.zero_precision import kept_otherwise, precision_settings
from loadmaster.transforms.shares import batch_size

#: Optimizers of PyTorch that ZeRO takes without a word; others want one.
_TESTED = ("Adam", "AdamW", "Adagrad")


def deepspeed(plan: Plan, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """The plan as a configuration of DeepSpeed: sizes of batches, stage of ZeRO, buckets.

    Parameters
    ----------
    plan : Plan
        That shares the batch equally among devices, with the optimizer's state or all state
        sharded flat, or neither (stage 0).
    path : optional
        Where to write it as JSON.

    Returns
    -------
    dict
        For ``deepspeed.initialize(config=...)``. ``loadmaster``, which DeepSpeed passes over, has
        the plan's figures and the command that begins the processes.

    Raises
    ------
    InputError
        The plan shares its work otherwise; everything that is in the way is named, with the
        command that plans for it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:alexnet"), lm.Cluster.preset("4xV100-PCIe")
    >>> found = lm.writers.deepspeed(lm.place(graph, cluster, target="deepspeed", stage=2))
    >>> found["train_batch_size"], found["zero_optimization"]["stage"]
    (256, 2)
    """
    if reasons := list(in_the_way(plan)):
        raise refusal(plan, NAME, reasons)
    stage, size, devices = _stage(plan)
    if reason := kept_otherwise(plan.graph, stage):
        raise refusal(plan, NAME, [reason])
    elements = elements_in(plan.graph, size)
    batch = batch_size(plan.graph) or len(devices)
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": elements,
    }
    if stage in (1, 2):
        zero |= {"reduce_scatter": True, "allgather_bucket_size": elements}
    if stage == 3:
        zero |= {"stage3_prefetch_bucket_size": elements, "stage3_param_persistence_threshold": 0}
    document: dict[str, Any] = {
        "train_batch_size": batch,
        "train_micro_batch_size_per_gpu": batch // len(devices),
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
        "zero_optimization": zero,
    }
    if stage and str(plan.graph.meta.get("optimizer", "")) not in _TESTED:
        document["zero_allow_untested_optimizer"] = True
    document |= precision_settings(plan.graph)
    document["loadmaster"] = {
        "command": command(plan, devices),
        "figures": sentences(plan),
    }
    return written(document, path)


def _stage(plan: Plan) -> tuple[int, int, list[int]]:
    """The stage of a plan, bytes of its buckets, and its devices."""
    said = plan.program.graph.meta.get(SAID)
    if plan.recipe is not None:
        devices = plan.recipe.mesh.on(plan.cluster).tolist()
        size = plan.recipe.bucket_bytes
        return (
            (3, size, devices) if said is None else (said["stage"], said["bucket_bytes"], devices)
        )
    devices = devices_of(plan)
    if said is not None:
        return said["stage"], said["bucket_bytes"], devices
    graph = plan.program.graph
    kinds = {label.partition("/")[0] for label in graph.collectives}
    size = _largest(plan)
    return 2 if "reduce_scatter" in kinds else 0, size, devices


def _largest(plan: Plan) -> int:
    """Bytes of the largest bucket of gradients."""
    graph = plan.program.graph
    into = np.array(
        [label.partition("/")[2].startswith("gradients") for label in graph.collectives]
    )
    size = np.bincount(graph.dst, graph.bytes * into[graph.dst], graph.n_ops)
    return int(size.max(initial=1.0))
