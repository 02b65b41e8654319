"""DeepSpeed: a plan of ZeRO as its configuration, JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from loadmaster.base.files import written
from loadmaster.dimensions.form import FLAT
from loadmaster.model.graph import PARAMETER
from loadmaster.plans.plan import Plan
from loadmaster.plans.specs import recipe_in_words
from loadmaster.systems.deepspeed.semantics import NAME
from loadmaster.systems.shared.figures import sentences
from loadmaster.systems.shared.precision import dtype_of, elements_in
from loadmaster.systems.shared.processes import command, devices_of, no_replicas
from loadmaster.systems.shared.refusal import Reason, refusal
from loadmaster.systems.shared.zero import SAID
from loadmaster.transforms.shares import batch_size

#: The words for what DeepSpeed turns on, by dtype.
_PRECISIONS = {"f16": "fp16", "bf16": "bf16"}


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
    dtype, elements = dtype_of(plan), elements_in(plan, size)
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
        "zero_optimization": zero,
    }
    if dtype in _PRECISIONS:
        document[_PRECISIONS[dtype]] = {"enabled": True}
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


def in_the_way(plan: Plan) -> Iterator[Reason]:
    """Everything that ZeRO cannot do of the plan."""
    recipe, layout = plan.recipe, plan.layout
    if recipe is None:
        yield from no_replicas(plan)
        kinds = {label.partition("/")[0] for label in plan.program.graph.collectives if label}
        if not plan.program.is_plain and not kinds and plan.graph.updates.any():
            yield "gradients are summed by parameter servers"
        return
    if recipe.micro is not None:
        yield "it is a pipeline of stages"
    if layout is None:
        return
    known = (layout.labels == 0) | layout.is_batch | (layout.labels == FLAT)
    other = np.flatnonzero(~(known | plan.graph.view).all(axis=0))
    if other.size:
        reason = f"ops are shared otherwise than by the batch ({recipe_in_words(plan)})"
        yield reason, [repr(plan.graph.names[op]) for op in other]
    if len(recipe.mesh.axes) > 1:
        yield "the mesh has several axes, and ZeRO has one", list(recipe.mesh.names)
    if any(axis.shares is not None for axis in recipe.mesh.axes):
        yield "processes have unequal shares of the batch"
    of = plan.graph.stands_for == PARAMETER
    if not (layout.labels[:, of] == FLAT).any():
        yield "no parameter is sharded: what has all of them whole is written as ddp"
    if recipe.recompute:
        yield (
            "modules are recomputed, which is said in the model's own code",
            list(recipe.recompute),
        )
    if recipe.units:
        yield "parameters are gathered by modules, which is written as fsdp", list(recipe.units)
