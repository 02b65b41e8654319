"""DistributedDataParallel: a plan of equal replicas as a Python file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import Code, python_file
from loadmaster.model.graph import BUFFER, OpGraph
from loadmaster.plans.plan import Plan
from loadmaster.systems.ddp.semantics import NAME
from loadmaster.systems.shared.backward import backward_of, kept
from loadmaster.systems.shared.figures import figures
from loadmaster.systems.shared.processes import (
    command,
    devices_of,
    optimizer_of,
)
from loadmaster.systems.shared.refusal import refusal
from loadmaster.systems.shared.replicated_plans import (
    SYNCHRONISED,
    in_the_way,
    is_for_ddp,
    settings_of,
)
from loadmaster.systems.shared.training_file import USAGE, ProcessShares, parts
from loadmaster.transforms.batch_norm import is_batch_norm

_HEAD = '''"""Data parallelism by torch.nn.parallel.DistributedDataParallel: written by Loadmaster.

'''

_REST = '''
The loss is a mean over the samples of a process; gradients are the mean over all processes.
"""

{figures}

{imports}

{constants}
#: A bucket of gradients is summed once it has so many megabytes.
BUCKET_CAP_MB = {bucket}


{start}

def parallelize(model, device):
    """The model as each process runs it, on its device."""
    model = model.to(device)
{kept}{norms}    torch.manual_seed(torch.initial_seed() + place())  # Each has a dropout of its own.
    return DistributedDataParallel(
        model,
        device_ids=None if device.type == "cpu" else [device],
        bucket_cap_mb=BUCKET_CAP_MB,
        gradient_as_bucket_view=True,  # Gradients lie in the buckets: their bytes are there once.
{buffers}    )


{backward}

{clip}

{optimizer_of}

{data}

{checkpoints}

{main}'''

_UNCHANGED = "        broadcast_buffers=False,  # No step changes any.\n"

_ZERO = "from torch.distributed.optim import ZeroRedundancyOptimizer"
_DDP = "from torch.nn.parallel import DistributedDataParallel"

_SHARDED = """\
def optimizer_of(model, optimizer, **options):
    \"\"\"An optimizer whose state is shared out: each process updates some parameters.\"\"\"
    return ZeroRedundancyOptimizer(
        [p for p in model.parameters() if p.requires_grad],
        optimizer,
        parameters_as_bucket_view=True,
        **options,
    )
"""

#: Optimizers, each with what is written otherwise than where all processes update alike.
_WAYS: Mapping[str, Mapping[str, Code]] = {
    "replicated": {},
    "sharded": {"optimizer_of": Code(_SHARDED)},
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
    ['BATCH, BATCH_OF_EACH, MICRO_BATCHES = 256, 64, 1']
    """
    reasons = list(in_the_way(plan))
    if reasons:
        raise refusal(plan, NAME, reasons)
    devices = devices_of(plan)
    said = settings_of(plan)
    if said["batch_norm"] == SYNCHRONISED:
        norms = "    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)\n"
    else:
        norms = ""
    is_sharded = said["optimizer"] == "sharded"
    file = python_file(
        _HEAD + USAGE + _REST,
        run=command(plan, devices),
        figures=figures(plan, _more(plan, said, len(devices))),
        bucket=said["bucket_cap_mb"],
        kept=kept(plan),
        norms=Code(norms),
        buffers=Code("" if _changes_buffers(plan.graph) else _UNCHANGED),
        optimizer=optimizer_of(plan),
        **{**backward_of(plan, parts=False), **_WAYS[said["optimizer"]]},
        **parts(
            plan,
            ProcessShares(devices, len(devices)),
            (_DDP, *[_ZERO] * is_sharded),
            state_of="optimizer.optim" if is_sharded else "optimizer",
        ),
    )
    if path is not None:
        write_bytes(path, file.encode())
    return file


def _more(plan: Plan, said: Mapping[str, Any], n: int) -> Sequence[str]:
    """Further lines of the head of the file."""
    lines = []
    if not is_for_ddp(plan) and n > 1:
        lines.append(
            "The plan was made for no target: buckets are DistributedDataParallel's usual ones, "
            "and gradients take room for the whole step, which its peaks leave out."
        )
    if said["optimizer"] == "sharded":
        lines.append(
            "ZeroRedundancyOptimizer chooses which process updates which parameter: by size, as "
            "planned."
        )
    if n > 1 and _changes_buffers(plan.graph):
        lines.append(
            "Before each forward pass buffers become those of process 0: a message that the plan "
            "leaves out."
        )
    return lines


def _changes_buffers(graph: OpGraph) -> bool:
    """True if a step changes a buffer of the model, as a batch norm in training does; or if the
    graph does not say how its ops were called.
    """
    buffers = {
        op
        for op in np.flatnonzero(graph.stands_for == BUFFER).tolist()
        if not graph.modules[op].startswith("optim.")
    }
    base: dict[int, int] = {}
    for op in np.flatnonzero(graph.alias_of >= 0).tolist():
        of = int(graph.alias_of[op])
        base[op] = base.get(of, of)
    written = {of for op, of in base.items() if not graph.view[op]}
    is_norm = "b" in graph.phases and bool(is_batch_norm(graph).any())
    return graph.args is None or (bool(buffers) and is_norm) or not buffers.isdisjoint(written)
