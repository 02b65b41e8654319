"""Lightning: a plan as a Python file with the strategy and the arguments of a Trainer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import Code, python_file
from loadmaster.plans.plan import Plan
from loadmaster.systems.lightning.semantics import NAME
from loadmaster.systems.registry import written_by
from loadmaster.systems.shared.engine_of_plan import engine_of, in_the_way, ranked_devices
from loadmaster.systems.shared.engines import Engine
from loadmaster.systems.shared.figures import figures
from loadmaster.systems.shared.precision import dtype_of, mixed_with
from loadmaster.systems.shared.processes import family_of, machines, visible_gpus
from loadmaster.systems.shared.refusal import Reason, refusal
from loadmaster.systems.shared.replicated_plans import settings_of
from loadmaster.transforms.shares import batch_size

_DDP = '''"""Data parallelism by Lightning's DDPStrategy: written by Loadmaster.

    trainer(max_epochs=1).fit(Model(), DataLoader(dataset, BATCH_OF_EACH))
"""

{figures}

from __future__ import annotations

#: Samples of a step: of all processes, and of each.
BATCH, BATCH_OF_EACH = {batch}, {each}

#: Arguments of DDPStrategy.
STRATEGY = {{"bucket_cap_mb": {bucket}, "gradient_as_bucket_view": True}}
'''

_FSDP = '''

# -- Lightning: wrap the model in the LightningModule that has it, and make its Trainer so:
#
#     def configure_model(self):
#         configure(self.model, self.trainer)
#
#     trainer(max_epochs=1).fit(module, DataLoader(dataset, BATCH_OF_EACH))


def configure(model, trainer):
    """Shards a model on its process's device, once."""
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule):
        parallelize(model, trainer.strategy.root_device)


#: Arguments of ModelParallelStrategy.
STRATEGY = {{"data_parallel_size": {n}, "tensor_parallel_size": 1}}
'''

_TRAINER = '''
#: Arguments of Trainer.
TRAINER = {arguments}


def trainer(**options):
    """Lightning's Trainer for the plan, with more arguments."""
    from lightning.pytorch import Trainer
    from lightning.pytorch.strategies import {strategy}

    return Trainer(**{{**TRAINER, "strategy": {strategy}(**STRATEGY), **options}})
'''

#: Lightning's numbers of bits, by dtype.
_BITS = {"f32": "32", "f16": "16", "bf16": "bf16", "f64": "64"}


def lightning(plan: Plan, path: str | os.PathLike[str] | None = None, *, root: str = "") -> str:
    """The plan as a Python file with ``trainer(**options)``, Lightning's Trainer with its strategy.

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
        The file. Of FSDP2 it has what :func:`~loadmaster.systems.fsdp.write.fsdp` writes, and
        ``configure`` for the module's ``configure_model``.

    Raises
    ------
    InputError
        The plan shares its work otherwise; everything that is in the way is named, with the
        command that plans for it. A module that is not below ``root``.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:alexnet"), lm.Cluster.preset("4xV100-PCIe")
    >>> text = lm.writers.lightning(lm.place(graph, cluster, target="lightning", engine="ddp"))
    >>> [line for line in text.splitlines() if line.startswith("BATCH")]
    ['BATCH, BATCH_OF_EACH = 256, 64']
    """
    engine = engine_of(plan)
    if reasons := list(_in_the_way(plan, engine)):
        raise refusal(plan, NAME, reasons)
    devices = ranked_devices(plan)
    batch = batch_size(plan.graph) or len(devices)
    if engine == "ddp":
        head = python_file(
            _DDP,
            figures=figures(plan),
            batch=batch,
            each=batch // len(devices),
            bucket=settings_of(plan)["bucket_cap_mb"],
        )
    else:
        head = Code(written_by("fsdp", plan, root=root) + python_file(_FSDP, n=len(devices)))
    strategy = Code("DDPStrategy" if engine == "ddp" else "ModelParallelStrategy")
    tail = python_file(_TRAINER, arguments=_arguments(plan, devices), strategy=strategy)
    text = head + tail
    if path is not None:
        write_bytes(path, text.encode())
    return text


def _in_the_way(plan: Plan, engine: Engine) -> Iterator[Reason]:
    """Everything that Lightning's strategies cannot do of the plan."""
    if engine == "deepspeed":
        yield "state is sharded by DeepSpeed, for which no strategy is written"
        return
    others = list(in_the_way(plan, engine, NAME))
    yield from others
    if engine == "ddp" and not others and settings_of(plan)["optimizer"] != "replicated":
        yield "the optimizer is sharded by whole parameters"


def _arguments(plan: Plan, devices: list[int]) -> dict[str, Any]:
    """The arguments of Trainer that the plan decides."""
    n = machines(plan, devices)
    dtype, mixed = dtype_of(plan.graph), mixed_with(plan.graph)
    precision = f"{_BITS[mixed]}-mixed" if mixed in _BITS else f"{_BITS.get(dtype, '32')}-true"
    said: dict[str, Any] = {
        "accelerator": {"gpu": "gpu", "cpu": "cpu"}.get(family_of(plan, devices), "auto"),
        "devices": visible_gpus(plan, devices) or len(devices) // n,
        "num_nodes": n,
        "precision": precision,
    }
    is_synchronised = plan.recipe is None and settings_of(plan)["batch_norm"] != "local"
    return said | ({"sync_batchnorm": True} if is_synchronised else {})
