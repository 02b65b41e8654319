"""Ray Train: a plan as a Python file with the ScalingConfig and the TorchTrainer."""

from __future__ import annotations

import os
from typing import Any

from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import python_file
from loadmaster.plans.plan import Plan
from loadmaster.systems.ray.semantics import NAME
from loadmaster.systems.registry import written_by
from loadmaster.systems.shared.engine_of_plan import engine_of, in_the_way, ranked_devices
from loadmaster.systems.shared.processes import BACKENDS, family_of, machines
from loadmaster.systems.shared.refusal import Reason, refusal

_FILE = '''

# -- Ray Train: what a worker does is above; train(config) calls start, parallelize and the rest.
#
#     trainer(train).fit()

#: Arguments of ScalingConfig: a worker for each process of the plan.
SCALING = {scaling}

#: Arguments of TorchConfig.
TORCH = {torch}


def trainer(train, **options):
    """A TorchTrainer that runs ``train`` on each worker of the plan, with more arguments."""
    from ray.train import ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    scaling, torch_config = ScalingConfig(**SCALING), TorchConfig(**TORCH)
    return TorchTrainer(train, scaling_config=scaling, torch_config=torch_config, **options)
'''


def ray(plan: Plan, path: str | os.PathLike[str] | None = None, *, root: str = "") -> str:
    """The plan as a Python file with ``trainer(train)``, Ray's TorchTrainer on the plan's workers.

    Parameters
    ----------
    plan : Plan
        Of equal shares of the batch that DistributedDataParallel or FSDP2 runs.
    path : optional
        Where to write it.
    root : str
        What the model is called in the graph's module paths, where it was traced as part of a
        larger one.

    Returns
    -------
    str
        What :func:`~loadmaster.systems.ddp.write.ddp` or
        :func:`~loadmaster.systems.fsdp.write.fsdp` writes, for the workers; and below it the
        ``ScalingConfig``.

    Raises
    ------
    InputError
        The plan shares its work otherwise; everything that is in the way is named, with the
        command that plans for it. A module that is not below ``root``.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:alexnet"), lm.Cluster.preset("4xV100-PCIe")
    >>> text = lm.writers.ray(lm.place(graph, cluster, target="ray", replicas=4))
    >>> [line for line in text.splitlines() if line.startswith("SCALING")][0][:27]
    "SCALING = {'num_workers': 4"
    """
    engine = engine_of(plan)
    reasons: list[Reason] = ["state is sharded by DeepSpeed, for which no worker is written"]
    if engine != "deepspeed":
        reasons = list(in_the_way(plan, engine, NAME))
    if reasons:
        raise refusal(plan, NAME, reasons)
    devices = ranked_devices(plan)
    workers: str = written_by(engine, plan, **({} if engine == "ddp" else {"root": root}))
    more = python_file(
        _FILE,
        scaling=_scaling(plan, devices),
        torch={"backend": BACKENDS[family_of(plan, devices)]},
    )
    text = workers + more
    if path is not None:
        write_bytes(path, text.encode())
    return text


def _scaling(plan: Plan, devices: list[int]) -> dict[str, Any]:
    """The arguments of ScalingConfig. Ranks of a machine follow one another."""
    family = family_of(plan, devices)
    resource = {"gpu": "GPU", "cpu": "CPU", "npu": "NPU"}[family]
    return {
        "num_workers": len(devices),
        "use_gpu": family == "gpu",
        "resources_per_worker": {resource: 1},
        "placement_strategy": "PACK" if machines(plan, devices) > 1 else "STRICT_PACK",
    }
