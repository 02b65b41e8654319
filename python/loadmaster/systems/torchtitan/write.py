"""torchtitan: a plan as a Python file that sets the degrees of a configuration.

For torchtitan 0.3, where a run is a function that returns a ``Trainer.Config``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from loadmaster.base.errors import InputError
from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import Code, lines, python, python_file
from loadmaster.model.parallelism import Parallelism
from loadmaster.plans.plan import Plan
from loadmaster.rules.layer_list import LayerList
from loadmaster.systems.shared.figures import figures
from loadmaster.systems.shared.layered import is_encoder
from loadmaster.systems.shared.layers import options_of
from loadmaster.systems.shared.parallelism_of_plan import parallelism_by_axes
from loadmaster.systems.shared.refusal import Reason, refusal
from loadmaster.systems.shared.sequence_length import sequence_length
from loadmaster.systems.shared.sharded_plans import one_by_one
from loadmaster.systems.torchtitan.checkpointing import level_of
from loadmaster.systems.torchtitan.precision import precision_settings, unsaid, without_words
from loadmaster.systems.torchtitan.semantics import NAME
from loadmaster.transforms.shares import batch_size

_FILE = '''"""{title:words}: parallelism for torchtitan 0.3, written by Loadmaster.

    # my_runs.py, beside this file: a function that returns the configuration of a run
    from torchtitan.models.llama3.config_registry import llama3_8b

    def planned():
        return parallelize(llama3_8b())

    # NGPU={devices} MODULE=my_runs CONFIG=planned ./run_train.sh

Take the configuration of the model that was planned for.
"""

{figures}
{imports}
#: Of config.parallelism.
PARALLELISM = {{
{parallelism}
}}

#: Of config.training.
TRAINING = {{
{training}
}}


def parallelize(config):
    """A Trainer.Config with the plan's parallelism, batch and activation checkpointing."""
    for name, value in PARALLELISM.items():
        setattr(config.parallelism, name, value)
    for name, value in TRAINING.items():
        setattr(config.training, name, value)
    config.activation_checkpoint = {checkpoint}
    return config
'''

#: Names of schedules in torchtitan.
_SCHEDULES = {
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "gpipe": "GPipe",
    "zero-bubble": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
}

#: Its classes of activation checkpointing, by how much is recomputed.
_CHECKPOINTS = {"full": "FullAC", "selective": "SelectiveAC"}


def torchtitan(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    root: str | None = None,
    layers: str | None = None,
) -> str:
    """The plan as Python: ``parallelize(config)`` sets degrees, batch and recomputation.

    Parameters
    ----------
    plan : Plan
        That :func:`loadmaster.place` made for the target ``"torchtitan"``, or that degrees say.
    path : optional
        Where to write it.
    root : str, optional
        What the model is called in the graph's module paths; as the plan was made if absent.
    layers : str, optional
        The module list that holds the layers; as the plan was made if absent.

    Returns
    -------
    str
        The text of the file.

    Raises
    ------
    InputError
        All that is in the way, and what plans for it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink")
    >>> plan = lm.place(graph, cluster, target="torchtitan", tp=8)
    >>> "'tensor_parallel_degree': 8" in lm.writers.torchtitan(plan)
    True
    """
    root, layers = options_of(plan, root, layers)
    is_own = plan.target == NAME and plan.parallelism is not None
    parallelism = plan.parallelism if is_own else parallelism_by_axes(plan)
    if reasons := list(_in_the_way(plan, parallelism, root, layers)):
        raise refusal(plan, NAME, reasons)
    assert parallelism is not None, "it was refused"
    layer_list = LayerList.of(plan.graph, root, layers)
    recomputed = plan.recipe.recompute if plan.recipe is not None else ()
    level = parallelism.recompute if is_own else level_of(plan.graph, layer_list, recomputed)
    if level is None:
        raise refusal(
            plan,
            NAME,
            ["what is recomputed are neither all layers nor what selective checkpointing selects"],
        )
    checkpoint = _CHECKPOINTS.get(level)
    text = python_file(
        _FILE,
        title=plan.graph.name,
        devices=parallelism.devices,
        figures=figures(plan, _unsaid(plan, parallelism)),
        imports=Code(
            f"\nfrom torchtitan.distributed.activation_checkpoint import {checkpoint}\n"
            if checkpoint
            else ""
        ),
        parallelism=_rows(_parallelism(plan, parallelism, layer_list)),
        training=_rows(_training(plan, parallelism)),
        checkpoint=Code(f"{checkpoint}.Config()" if checkpoint else "None"),
    )
    if path is not None:
        write_bytes(path, text.encode())
    return text


def _in_the_way(
    plan: Plan, parallelism: Parallelism | None, root: str, layers: str | None
) -> Iterator[Reason]:
    recipe = plan.recipe
    if reason := without_words(plan.graph):
        yield reason
    with suppress(InputError):
        if is_encoder(LayerList.of(plan.graph, root, layers)):
            yield "torchtitan's models are decoders, and attention in the layers is not causal"
    if recipe is None:
        devices = sorted(set(plan.running_devices[plan.problem.reduced.op_of].tolist()))
        if len(devices) > 1:
            names = [plan.cluster.devices[d].name for d in devices]
            yield "no recipe says what its devices do", names
        return
    yield from one_by_one(plan)
    if parallelism is None:
        axes = [f"{axis.name} {axis.size}" for axis in recipe.mesh.axes]
        yield "no degrees say what lies how on its mesh", axes
    if recipe.micro is not None and recipe.micro.schedule not in _SCHEDULES:
        yield f"torchtitan has no class for the schedule {recipe.micro.schedule!r}"


def _parallelism(plan: Plan, parallelism: Parallelism, layer_list: LayerList) -> dict[str, Any]:
    """Settings that differ from one device that does all, under the names of ParallelismConfig."""
    recipe, graph = plan.recipe, plan.graph
    said: dict[str, Any] = {
        "data_parallel_replicate_degree": parallelism.replicate,
        "data_parallel_shard_degree": parallelism.shard,
        "tensor_parallel_degree": parallelism.tp,
        "context_parallel_degree": parallelism.cp,
        "expert_parallel_degree": parallelism.ep,
        "pipeline_parallel_degree": parallelism.stages,
    }
    if recipe is None:
        return said
    if parallelism.tp > 1:
        said["enable_sequence_parallel"] = parallelism.sequence
    if parallelism.shard > 1 and recipe.units:
        again = [word == "again" for pattern, word in recipe.units.items() if pattern != "."]
        said["fsdp_reshard_after_forward"] = "always" if all(again) else "never"
    if parallelism.schedule is not None:
        each = (batch_size(graph) or 1) // parallelism.dp
        said["pipeline_parallel_schedule"] = _SCHEDULES[parallelism.schedule]
        said["pipeline_parallel_microbatch_size"] = each // parallelism.micro_batches
        said["module_fqns_per_model_part"] = _parts(recipe.stage_of(graph), layer_list)
    return said


def _parts(stage: np.ndarray, layer_list: LayerList) -> list[list[str]]:
    """The modules of each stage, by torchtitan's names for them."""
    of_layer = stage[layer_list.cuts.order[layer_list.begins]].tolist()
    parts: list[list[str]] = [[] for _ in range(max(of_layer) + 1)]
    for number, at in enumerate(of_layer):
        parts[at].append(f"layers.{number}")
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts


def _training(plan: Plan, parallelism: Parallelism) -> dict[str, int | str]:
    """Sizes of the batch and precision, under the names of TrainingConfig."""
    batch = batch_size(plan.graph) or 1
    each = batch // parallelism.dp
    if parallelism.stages == 1:
        each //= parallelism.micro_batches  # Gradients are accumulated.
    said: dict[str, int | str] = {
        "local_batch_size": each,
        "global_batch_size": batch,
    }
    if tokens := sequence_length(plan.graph):
        said["seq_len"] = tokens
    return said | precision_settings(plan.graph)


def _unsaid(plan: Plan, parallelism: Parallelism) -> Iterator[str]:
    yield "Gradients are clipped to config.training.max_norm: the plan does not."
    yield from unsaid(plan.graph)
    if parallelism.tp > 1:
        yield "What torchtitan cuts of each layer is in its own plan of the model."


def _rows(said: dict[str, Any]) -> Code:
    return lines(Code(f"    {python(name)}: {python(value)},") for name, value in said.items())
