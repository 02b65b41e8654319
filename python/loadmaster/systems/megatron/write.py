"""Megatron-LM: a plan as a shell script with the flags of its training scripts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import Code, comment, lines, shell_file
from loadmaster.base.quoting import command as words_of
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.model.parallelism import Parallelism
from loadmaster.plans.plan import Plan
from loadmaster.strategies.grids.expert_parallel import number_of_experts
from loadmaster.strategies.sharding.structure import Structure
from loadmaster.systems.megatron.semantics import NAME
from loadmaster.systems.shared.figures import figures
from loadmaster.systems.shared.layers import options_of
from loadmaster.systems.shared.names import device_names, torch_device
from loadmaster.systems.shared.parallelism_of_plan import parallelism_of
from loadmaster.systems.shared.precision import elements_in
from loadmaster.systems.shared.processes import command
from loadmaster.systems.shared.refusal import Reason, refusal
from loadmaster.transforms.shares import batch_size

#: A flag of Megatron's scripts, and what follows it.
Flag: TypeAlias = tuple[object, ...]

_SCRIPT = """\
#!/usr/bin/env bash
{figures}
#
# bash megatron.sh pretrain_gpt.py MODEL AND DATA ARGUMENTS
# runs Megatron-LM's script with these flags behind the model's own. Ranks are on
{ranks}
set -euo pipefail

PLAN=(
{flags}
)
{command}
"""


def megatron(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    root: str | None = None,
    layers: str | None = None,
    names: Mapping[str, str] | None = None,
) -> str:
    """The plan as a script that runs Megatron's training scripts with its flags.

    Parameters
    ----------
    plan : Plan
        Made for Megatron; or of shards, replicas and stages that Megatron has: runs of layers, cut
        by columns and then by rows.
    path : optional
        Where to write it.
    root, layers : optional
        As for :class:`~loadmaster.rules.layer_list.LayerList`; what the plan was made with if
        absent.
    names : mapping, optional
        As for :func:`~loadmaster.systems.accelerate.write.device_map`.

    Returns
    -------
    str
        The script, with the plan's figures in its head. In ``--pipeline-model-parallel-layout``
        ``E`` is the embedding, ``t`` a layer, ``L`` the loss, and ``|`` ends a run of layers.

    Raises
    ------
    InputError
        Everything that Megatron cannot run of the plan, with the command that plans for it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink"), "single")
    >>> [line for line in lm.writers.megatron(plan).splitlines() if "model-parallel" in line]
    ['    --tensor-model-parallel-size 1', '    --pipeline-model-parallel-size 1']
    """
    spelled = device_names(plan, torch_device, names)
    root, layers = options_of(plan, root, layers)
    reasons: list[Reason] = []
    ranked = parallelism_of(plan, NAME, root, layers, reasons)
    recomputed = [] if ranked is None else _recomputed(ranked.parallelism, reasons)
    if ranked is None or reasons:
        raise refusal(plan, NAME, reasons)
    parallelism, apart = ranked.parallelism, ranked.parallelism.expert_replicas
    flags = [
        *_sizes(parallelism),
        *_experts(plan, parallelism),
        *_batches(plan, parallelism),
        *_optimizer(plan, parallelism),
        *recomputed,
    ]
    ranks = " ".join(spelled[device] for device in ranked.devices)
    neighbours = f" (experts are apart on {apart} next to each other)" if apart > 1 else ""
    order = f"tp {parallelism.tp} changes fastest, then dp {parallelism.dp}{neighbours}, then pp"
    text = shell_file(
        _SCRIPT,
        figures=figures(plan, _more(plan, parallelism)),
        ranks=comment(f"{ranks}: {order} {parallelism.stages}.", "#   "),
        flags=lines(Code(f"    {words_of(*words)}") for words in flags),
        command=command(plan, ranked.devices, Code('"$@" "${PLAN[@]}"')),
    )
    if path is not None:
        write_bytes(path, text.encode())
    return text


def _sizes(parallelism: Parallelism) -> Iterator[Flag]:
    """Layers, and how many devices share what."""
    yield "--num-layers", sum(parallelism.layers)
    yield "--tensor-model-parallel-size", parallelism.tp
    if parallelism.sequence:
        yield ("--sequence-parallel",)
    yield "--pipeline-model-parallel-size", parallelism.stages
    if len(set(parallelism.layers)) > 1:
        runs = "|".join(f"t*{n}" for n in parallelism.layers)
        yield "--pipeline-model-parallel-layout", f"E{runs}L"
    elif parallelism.virtual > 1:
        yield "--num-layers-per-virtual-pipeline-stage", parallelism.layers[0]


def _experts(plan: Plan, parallelism: Parallelism) -> Iterator[Flag]:
    """Routed experts that devices have apart."""
    if parallelism.ep > 1:
        structure = Structure.of(Dimensions.of(plan.graph))
        yield "--num-experts", number_of_experts(structure)
        yield "--expert-model-parallel-size", parallelism.ep
        if parallelism.experts == "apart":
            yield "--expert-tensor-parallel-size", 1
        kinds = {label.partition("/")[0] for label in plan.program.graph.collectives}
        dispatcher = "alltoall" if "all_to_all" in kinds else "allgather"
        yield "--moe-token-dispatcher-type", dispatcher


def _batches(plan: Plan, parallelism: Parallelism) -> Iterator[Flag]:
    batch = batch_size(plan.graph)
    if batch is not None:
        yield "--micro-batch-size", batch // (parallelism.dp * parallelism.micro_batches)
        yield "--global-batch-size", batch


def _optimizer(plan: Plan, parallelism: Parallelism) -> Iterator[Flag]:
    """Flags of the sum of gradients over replicas, and of the update."""
    if parallelism.dp == 1:
        return
    yield ("--overlap-grad-reduce",)
    if plan.recipe is not None:
        yield "--ddp-bucket-size", elements_in(plan.graph, plan.recipe.bucket_bytes)
    if parallelism.shard_state == "optimizer":
        yield ("--use-distributed-optimizer",)
        yield ("--overlap-param-gather",)


def _recomputed(parallelism: Parallelism, reasons: list[Reason]) -> list[Flag]:
    """The flags of recomputed layers: some modules of all, or all, or the first few of each run."""
    if parallelism.recompute == "none":
        return []
    if parallelism.recompute == "selective":
        modules: Flag = ("--recompute-modules", *parallelism.recompute_modules)
        grouped = [("--moe-grouped-gemm",)] if "moe_act" in parallelism.recompute_modules else []
        return [("--recompute-granularity", "selective"), modules, *grouped]
    if not parallelism.recompute_layers:
        method, n = "uniform", 1
    else:
        method, n = "block", max(parallelism.recompute_layers)
        others = [min(n, count) for count in parallelism.layers]
        if list(parallelism.recompute_layers) != others:
            said = ", ".join(map(str, parallelism.recompute_layers))
            reasons.append(f"runs have unequal numbers of recomputed layers ({said})")
    return [
        ("--recompute-granularity", "full"),
        ("--recompute-method", method),
        ("--recompute-num-layers", n),
    ]


def _more(plan: Plan, parallelism: Parallelism) -> Iterator[str]:
    """Lines on what Megatron-LM does otherwise than the plan."""
    if parallelism.dp > 1:
        yield (
            "The plan sums gradients in the precision of the graph; --grad-reduce-in-bf16, or not, "
            "says that to Megatron-LM."
        )
    if parallelism.expert_replicas > 1 and parallelism.tp > 1:
        yield (
            "In the plan devices of a tensor-parallel group send all tokens to experts each; those "
            "of Megatron-LM send a part each."
        )
    if "core_attn" in parallelism.recompute_modules:
        yield (
            "The graph has attention op by op. Fused attention keeps no scores, and needs no "
            "core_attn."
        )
    if "moe_act" in parallelism.recompute_modules:
        yield "Megatron-LM has moe_act with --moe-grouped-gemm only."
    if plan.target != NAME and parallelism.dp > 1:
        yield "Megatron-LM updates when all gradients are summed; the plan may begin before."
