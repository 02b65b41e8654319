"""MaxText: a plan as a configuration with sizes of its mesh and logical axis rules, YAML.

Names of logical axes are those of MaxText 0.2. Rules of names that stand in one array are in the
order in which they have the axes of the mesh: a hidden layer is cut by features, not by tokens.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import Code, json_text, lines, yaml_file
from loadmaster.model.families import families
from loadmaster.model.parallelism import Parallelism
from loadmaster.plans.plan import Plan
from loadmaster.systems.maxtext.logical_axes import LogicalAxes, parallelism_of_axes
from loadmaster.systems.maxtext.semantics import NAME
from loadmaster.systems.shared.figures import figures
from loadmaster.systems.shared.sequence_length import sequence_length
from loadmaster.transforms.shares import batch_size

_FILE = """\
{figures}
#
# python -m maxtext.trainers.pre_train.train maxtext.yml model_name=MODEL run_name=RUN
# Take the model that was planned for.
base_config: base.yml
hardware: {hardware}
{sizes}
per_device_batch_size: {batch}
{tokens}remat_policy: {remat}
# Names that are not here are whole.
logical_axis_rules: [
{rules}
]
"""

#: Axes of MaxText's mesh for one stage; what a plan does not name has one device.
_AXES = ("data", "fsdp", "fsdp_transpose", "context", "tensor", "tensor_sequence", "expert")

#: MaxText's names of logical axes, by what cuts them.
_NAMES = {
    "batch": (
        "activation_batch",
        "activation_batch_attn",
        "activation_batch_moe",
        "activation_embed_and_logits_batch",
        "activation_embed_and_logits_batch_sequence",
        "activation_kv_batch",
        "segment_ids_batch",
    ),
    "tensor": (
        "activation_heads",
        "activation_kv_heads",
        "activation_mlp",
        "activation_mlp_moe",
        "activation_vocab",
        "heads",
        "q_heads",
        "kv_heads",
        "mlp",
        "mlp_moe",
        "vocab",
    ),
    "tokens": (
        "activation_norm_length",
        "activation_norm_length_moe",
        "activation_input_length_attn",
    ),
    "state": (
        "embed",
        "embed_attn",
        "embed_moe",
        "embed_router",
        "embed_vocab",
        "q_lora",
        "kv_lora",
        "norm",
    ),
}


def maxtext(plan: Plan, path: str | os.PathLike[str] | None = None) -> str:
    """The plan as a configuration of MaxText: sizes of the mesh, batch, recomputation, rules.

    Parameters
    ----------
    plan : Plan
        That :func:`loadmaster.place` made for the target ``"maxtext"`` or ``"flax"``, or of
        replicas with state whole or in parts.
    path : optional
        Where to write it.

    Returns
    -------
    str
        The file, with the plan's figures and the command that takes it in its head.

    Raises
    ------
    InputError
        All that is in the way, and what plans for it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink")
    >>> plan = lm.place(graph, cluster, target="maxtext", tp=8)
    >>> [line for line in lm.writers.maxtext(plan).splitlines() if line.endswith(": 8")]
    ['ici_tensor_sequence_parallelism: 8']
    """
    parallelism = parallelism_of_axes(plan, NAME)
    tensor = "tensor_sequence" if parallelism.sequence else "tensor"
    axes = LogicalAxes.of(parallelism, tensor)
    rules = [Code(f"  {json_text([name, list(by)])},") for name, by in axes.rules(_NAMES) if by]
    batch, tokens = batch_size(plan.graph) or 1, sequence_length(plan.graph)
    each = batch / parallelism.devices
    text = yaml_file(
        _FILE,
        figures=figures(plan, _unsaid(parallelism)),
        hardware=Code(_hardware(plan)),
        sizes=lines(Code(f"ici_{name}_parallelism: {axes.sizes.get(name, 1)}") for name in _AXES),
        batch=int(each) if each.is_integer() else each,
        tokens=Code(f"max_target_length: {tokens}\n" if tokens else ""),
        remat=Code("full" if parallelism.recompute == "full" else "none"),
        rules=lines(rules),
    )
    if path is not None:
        write_bytes(path, text.encode())
    return text


def _hardware(plan: Plan) -> str:
    """MaxText's word for the kind of the devices."""
    used = plan.running_devices[plan.problem.reduced.op_of]
    family = families(plan.cluster)[int(used[0])][0]
    return family if family in ("cpu", "gpu", "tpu") else "gpu"


def _unsaid(parallelism: Parallelism) -> Iterator[str]:
    """Lines on what MaxText does otherwise than the plan."""
    yield "XLA joins ops and chooses collectives; the plan has the ops of the graph."
    if parallelism.shard > 1:
        yield "XLA chooses where to gather parameters; the plan gathers those of a layer together."
