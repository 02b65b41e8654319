"""DistributedDataParallel: a plan of equal replicas as a Python file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import Code, python_file
from loadmaster.base.text import shown
from loadmaster.model.graph import BUFFER
from loadmaster.plans.plan import Plan
from loadmaster.systems.ddp.semantics import NAME
from loadmaster.systems.shared.figures import figures
from loadmaster.systems.shared.processes import (
    command,
    devices_of,
    no_replicas,
    optimizer_of,
    start,
)
from loadmaster.systems.shared.refusal import Reason, refusal
from loadmaster.systems.shared.replicated import SAID, USUAL
from loadmaster.transforms.shares import batch_size

_FILE = '''"""Data parallelism by torch.nn.parallel.DistributedDataParallel: written by Loadmaster.

{run:words}

    device = start()
    model = parallelize(Model(), device)
    optimizer = optimizer_of(model, torch.optim.{optimizer}, lr=1e-3)
    loader = DataLoader(dataset, BATCH_OF_EACH, sampler=sampler_of(dataset))

The loss is a mean over the samples of a process; gradients are the mean over all processes.
"""

{figures}

from __future__ import annotations

import os

import torch
import torch.distributed as dist
{imports}from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

{processes}

#: Samples of a step: of all processes, and of each.
BATCH, BATCH_OF_EACH = {batch}, {each}

#: A bucket of gradients is summed once it has so many megabytes.
BUCKET_CAP_MB = {bucket}


def parallelize(model, device):
    """The model as each process runs it, on its device."""
    model = model.to(device)
{norms}    return DistributedDataParallel(
        model,
        device_ids=None if device.type == "cpu" else [device],
        bucket_cap_mb=BUCKET_CAP_MB,
        gradient_as_bucket_view=True,  # Gradients lie in the buckets: their bytes are there once.
    )


def optimizer_of(model, optimizer, **options):
    """{optimizer_text:words}"""
{optimizer_code}

def sampler_of(dataset, **options):
    """Gives each process samples of its own, as many as the others have."""
    return DistributedSampler(dataset, drop_last=True, **options)
'''

#: The batch norms of all processes together.
_SYNCHRONISED = "synchronised"

_WAYS = {
    "replicated": (
        "An optimizer of all parameters, which every process updates alike.",
        Code("    return optimizer(model.parameters(), **options)\n"),
        "",
    ),
    "sharded": (
        "An optimizer whose state is shared out: each process updates some parameters.",
        Code(
            "    return ZeroRedundancyOptimizer(\n"
            "        model.parameters(), optimizer, parameters_as_bucket_view=True, **options\n"
            "    )\n"
        ),
        "from torch.distributed.optim import ZeroRedundancyOptimizer\n",
    ),
}


def ddp(plan: Plan, path: str | os.PathLike[str] | None = None) -> str:
    """The plan as a Python file that wraps a model in ``DistributedDataParallel``.

    Parameters
    ----------
    plan : Plan
        Of equal replicas, each on a device of its own; or of a model on one device.
    path : optional
        Where to write it.

    Returns
    -------
    str
        The file: ``start()`` joins the processes that ``torchrun`` began, ``parallelize(model,
        device)`` wraps the model, ``optimizer_of`` and ``sampler_of`` make what goes with it.

    Raises
    ------
    InputError
        The plan shares its work otherwise; everything that is in the way is named, with the
        command that plans for it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:alexnet"), lm.Cluster.preset("4xV100-PCIe")
    >>> plan = lm.place(graph, cluster, target="ddp", replicas=4)
    >>> [line for line in lm.writers.ddp(plan).splitlines() if line.startswith("BATCH")]
    ['BATCH, BATCH_OF_EACH = 256, 64']
    """
    reasons = list(in_the_way(plan))
    if reasons:
        raise refusal(plan, NAME, reasons)
    devices = devices_of(plan)
    said = settings_of(plan)
    text, code, imports = _WAYS[said["optimizer"]]
    if said["batch_norm"] == _SYNCHRONISED:
        norms = "    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)\n"
        imports = f"from torch import nn\n{imports}"
    else:
        norms = ""
    batch = batch_size(plan.graph) or len(devices)
    file = python_file(
        _FILE,
        run=command(plan, devices),
        figures=figures(plan, _more(plan, said, len(devices))),
        processes=start(plan, devices),
        imports=Code(imports),
        batch=batch,
        each=batch // len(devices),
        bucket=said["bucket_cap_mb"],
        norms=Code(norms),
        optimizer=optimizer_of(plan),
        optimizer_text=text,
        optimizer_code=code,
    )
    if path is not None:
        write_bytes(path, file.encode())
    return file


def settings_of(plan: Plan) -> Mapping[str, Any]:
    """The plan's buckets, optimizer and batch norms.

    Raises
    ------
    InputError
        The file that the plan is from says others than there are.
    """
    usual = {"bucket_cap_mb": USUAL, "optimizer": "replicated", "batch_norm": "local"}
    if any(label.startswith("all_reduce/statistics") for label in plan.program.graph.collectives):
        usual["batch_norm"] = _SYNCHRONISED
    if not _is_own(plan):
        return usual
    settings = plan.program.graph.meta[SAID]
    where = f"meta.{SAID} of graph {plan.graph.name!r}"
    if not isinstance(settings, Mapping) or set(settings) != set(usual):
        raise InputError(f"{where} is {shown(settings)}: wants {', '.join(usual)}")
    checks.positive(f"{where}: bucket_cap_mb", settings["bucket_cap_mb"])
    checks.one_of(f"{where}: optimizer", settings["optimizer"], _WAYS)
    checks.one_of(f"{where}: batch_norm", settings["batch_norm"], ("local", _SYNCHRONISED))
    return settings


def _is_own(plan: Plan) -> bool:
    """True if the plan was made for a system that has DistributedDataParallel, and says how."""
    return plan.target is not None and SAID in plan.program.graph.meta


def _more(plan: Plan, said: Mapping[str, Any], n: int) -> Sequence[str]:
    """Further lines of the head of the file."""
    lines = []
    if not _is_own(plan) and n > 1:
        lines.append(
            "The plan was made for no target: buckets are DistributedDataParallel's usual ones, "
            "and gradients take room for the whole step, which its peaks leave out."
        )
    if said["optimizer"] == "sharded":
        lines.append(
            "ZeroRedundancyOptimizer chooses which process updates which parameter: by size, as "
            "planned."
        )
    stored = np.flatnonzero(plan.graph.stands_for == BUFFER).tolist()
    if n > 1 and any(not plan.graph.modules[op].startswith("optim.") for op in stored):
        lines.append(
            "Before each forward pass buffers become those of process 0: a message that the plan "
            "leaves out."
        )
    return lines


def in_the_way(plan: Plan) -> Iterator[Reason]:
    """Everything that DistributedDataParallel cannot do of the plan."""
    yield from no_replicas(plan)
    if plan.program.is_plain or plan.recipe is not None:
        return
    kinds = {label.partition("/")[0] for label in plan.program.graph.collectives if label}
    if "reduce_scatter" in kinds:
        yield "gradients are scattered to a sharded optimizer"
    if not kinds and plan.graph.updates.any():
        yield "gradients are summed by parameter servers"
