"""transformers' Trainer: a plan as its TrainingArguments, YAML."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import Code, comment, yaml, yaml_file
from loadmaster.plans.plan import Plan
from loadmaster.systems.registry import written_by
from loadmaster.systems.shared.class_units import class_units
from loadmaster.systems.shared.engine_of_plan import engine_of, in_the_way, ranked_devices
from loadmaster.systems.shared.engines import Engine
from loadmaster.systems.shared.figures import figures
from loadmaster.systems.shared.hugging_face_files import not_of_accelerate, unsaid, wrapping
from loadmaster.systems.shared.precision import mixed_with
from loadmaster.systems.shared.processes import command, family_of
from loadmaster.systems.shared.refusal import Reason, refusal
from loadmaster.systems.shared.replicated_plans import settings_of
from loadmaster.systems.shared.sharded_plans import mesh_of, parallelism_in
from loadmaster.systems.shared.uniform_meshes import REPLICAS
from loadmaster.systems.trainer.semantics import NAME
from loadmaster.transforms.shares import batch_size

_FILE = """\
{figures}
#
{run}
{read}
{settings}
"""

_CLIPPED = "Trainer clips gradients to max_grad_norm, 1.0 if nothing is said: the plan does not."

#: The script and its argument.
_SCRIPT = Code("train.py training_arguments.yaml")

#: Names of arguments for mixed precision, by dtype.
_PRECISIONS = {"f16": "fp16", "bf16": "bf16"}

#: Optimizers of Trainer, by PyTorch's classes that keep as much.
_OPTIMIZERS = {
    "SGD": "sgd",
    "Adam": "adamw_torch",
    "AdamW": "adamw_torch",
    "Adagrad": "adagrad",
    "RMSprop": "rmsprop",
}


def trainer(plan: Plan, path: str | os.PathLike[str] | None = None) -> str:
    """The plan as arguments of ``Trainer``: sizes of batches, precision, optimizer, and the engine.

    Parameters
    ----------
    plan : Plan
        Of equal shares of the batch that DistributedDataParallel, FSDP2 on all processes with the
        modules of some classes as units, or DeepSpeed runs.
    path : optional
        Where to write it.

    Returns
    -------
    str
        The file, with the plan's figures and the command that begins the processes in its head.
        ``HfArgumentParser(TrainingArguments).parse_yaml_file`` reads it.

    Raises
    ------
    InputError
        The plan shares its work otherwise; everything that is in the way is named, with the
        command that plans for it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:alexnet"), lm.Cluster.preset("4xV100-PCIe")
    >>> text = lm.writers.trainer(lm.place(graph, cluster, target="trainer", replicas=4))
    >>> [line for line in text.splitlines() if line.startswith("per_device")]
    ['per_device_train_batch_size: 64']
    """
    engine = engine_of(plan)
    if reasons := list(_in_the_way(plan, engine)):
        raise refusal(plan, NAME, reasons)
    devices = ranked_devices(plan)
    text = yaml_file(
        _FILE,
        figures=figures(plan, [_CLIPPED, *unsaid(plan, engine)]),
        run=comment(command(plan, devices, _SCRIPT)),
        read=comment("HfArgumentParser(TrainingArguments).parse_yaml_file(sys.argv[1])"),
        settings=yaml(_settings(plan, engine, devices)),
    )
    if path is not None:
        write_bytes(path, text.encode())
    return text


def _in_the_way(plan: Plan, engine: Engine) -> Iterator[Reason]:
    """Everything that the arguments of Trainer cannot say of the plan."""
    others = list(in_the_way(plan, engine, NAME))
    yield from others
    if others:
        return
    yield from not_of_accelerate(plan, engine)
    if engine == "fsdp" and REPLICAS in mesh_of(parallelism_in(plan, NAME)):
        yield "parameters are sharded on some processes and replicated over the others"


def _settings(plan: Plan, engine: Engine, devices: list[int]) -> dict[str, Any]:
    """The settings, under the names of TrainingArguments."""
    said: dict[str, Any] = {
        "per_device_train_batch_size": (batch_size(plan.graph) or len(devices)) // len(devices),
        "gradient_accumulation_steps": 1,
    }
    if family_of(plan, devices) == "cpu":
        said["use_cpu"] = True
    if optimizer := _OPTIMIZERS.get(str(plan.graph.meta.get("optimizer", ""))):
        said["optim"] = optimizer
    precision = _PRECISIONS.get(mixed_with(plan.graph))
    if precision and engine != "deepspeed":  # It has autocast among its own settings.
        said[precision] = True
    if engine == "ddp":
        return said | {"ddp_bucket_cap_mb": settings_of(plan)["bucket_cap_mb"]}
    if engine == "fsdp":
        return said | {"fsdp": True, "fsdp_config": {"version": 2} | wrapping(class_units(plan)[0])}
    settings = written_by("deepspeed", plan)
    del settings["loadmaster"]
    settings["gradient_clipping"] = "auto"  # Trainer has a word of its own for it.
    said |= {key: True for key in _PRECISIONS.values() if key in settings}
    return said | {"deepspeed": settings}
