"""DistributedDataParallel: a process per device, with the model and an equal share of the batch.

Li et al., VLDB 2020. Every process gets as many samples, so unequal devices wait for the slowest.
What is decided: how many devices take part, which may be one; how many bytes a bucket of gradients
has; whether the optimizer is replicated or sharded by whole parameters (ZeroRedundancyOptimizer,
which sums gradients whole all the same). Ops run in the program's own order, as autograd has it.
"""

from __future__ import annotations

from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate
from loadmaster.systems.ddp.semantics import NAME
from loadmaster.systems.shared.replicated import Optimizer, ReducerChoices, planned
from loadmaster.transforms.data_parallel import BatchNorm


def plan(
    problem: Problem,
    *,
    replicas: int | None = None,
    bucket_mb: int | None = None,
    optimizer: Optimizer | None = None,
    batch_norm: BatchNorm = "local",
    progress: Progress | None = None,
) -> Candidate:
    """Equal replicas on the fastest devices of one family, as DistributedDataParallel runs them.

    Parameters
    ----------
    problem : Problem
    replicas : int, optional
        How many devices take part; the best number if absent.
    bucket_mb : int, optional
        Megabytes of 2^20 bytes by which a bucket is full; the best of a few if absent.
    optimizer : "replicated" or "sharded", optional
        The better if absent.
    batch_norm : "local" (default) or "synchronised"
        Whether batch norms have the statistics of their process's samples, or, as SyncBatchNorm, of
        the whole batch.
    progress : callable, optional

    Raises
    ------
    InputError
        Not a training step with a batch and an optimizer; as many replicas as do not divide the
        batch; constraints that put an op elsewhere than on its replica's device.
    InfeasibleError
        A replica fits no device.
    """
    return planned(
        problem, NAME, replicas, ReducerChoices(bucket_mb, optimizer, batch_norm), progress
    )
