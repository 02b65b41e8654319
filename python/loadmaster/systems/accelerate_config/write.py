"""accelerate: a plan as the file of ``accelerate launch --config_file``, YAML."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import yaml, yaml_file
from loadmaster.plans.plan import Plan
from loadmaster.systems.accelerate_config.semantics import NAME
from loadmaster.systems.registry import written_by
from loadmaster.systems.shared.class_units import class_units
from loadmaster.systems.shared.engine_of_plan import engine_of, in_the_way, ranked_devices
from loadmaster.systems.shared.engines import Engine
from loadmaster.systems.shared.figures import figures
from loadmaster.systems.shared.hugging_face_files import (
    command,
    not_of_accelerate,
    unsaid,
    wrapping,
)
from loadmaster.systems.shared.precision import mixed_with
from loadmaster.systems.shared.processes import family_of, machines, visible_gpus
from loadmaster.systems.shared.refusal import Reason, refusal
from loadmaster.systems.shared.replicated import USUAL
from loadmaster.systems.shared.replicated_plans import settings_of
from loadmaster.systems.shared.sharded_plans import mesh_of, parallelism_in
from loadmaster.systems.shared.uniform_meshes import PARTS, REPLICAS
from loadmaster.transforms.shares import batch_size

#: Ending of the name of the file beside it, which has DeepSpeed's own settings.
DEEPSPEED = ".deepspeed.json"

_FILE = """\
{figures}
#
{run:words}
{loader:words}
{settings}
"""

#: Words for mixed precision, by dtype.
_PRECISIONS = {"f16": "fp16", "bf16": "bf16"}


def accelerate(plan: Plan, path: str | os.PathLike[str] | None = None) -> str:
    """The plan as a configuration of ``accelerate launch``.

    Parameters
    ----------
    plan : Plan
        Of equal shares of the batch that DistributedDataParallel, FSDP2 with the modules of some
        classes as units, or DeepSpeed runs.
    path : optional
        Where to write it. Of DeepSpeed, ``<path>.deepspeed.json`` beside it has its own settings.

    Returns
    -------
    str
        The file, with the plan's figures and the command that takes it in its head.

    Raises
    ------
    InputError
        The plan shares its work otherwise; everything that is in the way is named, with the
        command that plans for it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:alexnet"), lm.Cluster.preset("4xV100-PCIe")
    >>> text = lm.writers.accelerate(lm.place(graph, cluster, target="accelerate", replicas=4))
    >>> [line for line in text.splitlines() if line.startswith("num_processes")]
    ['num_processes: 4']
    """
    engine = engine_of(plan)
    if reasons := list(_in_the_way(plan, engine)):
        raise refusal(plan, NAME, reasons)
    devices = ranked_devices(plan)
    beside = f"{'accelerate.yaml' if path is None else os.fspath(path)}{DEEPSPEED}"
    if engine == "deepspeed" and path is not None:
        written_by("deepspeed", plan, beside)
    each = (batch_size(plan.graph) or len(devices)) // len(devices)
    text = yaml_file(
        _FILE,
        figures=figures(plan, unsaid(plan, engine)),
        run=f"{command(plan, devices)}accelerate launch --config_file accelerate.yaml train.py",
        loader=f"The script's own: accelerator.prepare(DataLoader(dataset, batch_size={each}))",
        settings=yaml(_settings(plan, engine, devices, beside)),
    )
    if path is not None:
        write_bytes(path, text.encode())
    return text


def _in_the_way(plan: Plan, engine: Engine) -> Iterator[Reason]:
    """Everything that a configuration of accelerate cannot say of the plan."""
    others = list(in_the_way(plan, engine, NAME))
    yield from others
    if others:
        return
    yield from not_of_accelerate(plan, engine)
    if engine == "ddp" and (size := settings_of(plan)["bucket_cap_mb"]) != USUAL:
        yield f"buckets have {size} MB, and a configuration has no word for their size"


def _settings(plan: Plan, engine: Engine, devices: list[int], beside: str) -> dict[str, Any]:
    """The settings, under the names of accelerate."""
    family, n = family_of(plan, devices), machines(plan, devices)
    kind = "NO" if len(devices) == 1 else f"MULTI_{'NPU' if family == 'npu' else 'GPU'}"
    said: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": {"ddp": kind, "fsdp": "FSDP", "deepspeed": "DEEPSPEED"}[engine],
        "num_machines": n,
        "machine_rank": 0,
        "num_processes": len(devices),
        "use_cpu": family == "cpu",
        "main_training_function": "main",
    }
    if n == 1 and (numbers := visible_gpus(plan, devices)):
        said["gpu_ids"] = ",".join(map(str, numbers))
    if engine == "deepspeed":
        return said | {
            "deepspeed_config": {"deepspeed_config_file": beside, "zero3_init_flag": False}
        }
    said["mixed_precision"] = _PRECISIONS.get(mixed_with(plan.graph), "no")
    if engine == "fsdp":
        sizes = mesh_of(parallelism_in(plan, NAME))
        said["fsdp_config"] = {
            "fsdp_version": 2,
            **{f"fsdp_{key}": value for key, value in wrapping(class_units(plan)[0]).items()},
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            # It unties weights of models that are not of transformers, and fails where the model
            # has a parameter outside of its modules.
            "fsdp_cpu_ram_efficient_loading": False,
        }
        if REPLICAS in sizes:
            said["parallelism_config"] = {
                "parallelism_config_dp_replicate_size": sizes[REPLICAS],
                "parallelism_config_dp_shard_size": sizes[PARTS],
                "parallelism_config_tp_size": 1,
                "parallelism_config_cp_size": 1,
            }
    return said
