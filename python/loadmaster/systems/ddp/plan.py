"""DistributedDataParallel: a process per device, with the model and an equal share of the batch.

Li et al., VLDB 2020. Every process gets as many samples, so unequal devices wait for the slowest.
What is decided: how many devices take part, which may be one; how many bytes a bucket of gradients
has; whether the optimizer is replicated or sharded by whole parameters (ZeroRedundancyOptimizer,
which sums gradients whole all the same). Ops run in the program's own order, as autograd has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from loadmaster.base import checks
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.base.units import counted
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.model.parallelism import Parallelism
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.sharding.processes import check_all_there, is_hopeless
from loadmaster.strategies.simple.homes import where_allowed
from loadmaster.systems.ddp.semantics import NAME
from loadmaster.systems.shared.replicas import (
    check_kind,
    numbers_of_devices,
)
from loadmaster.transforms.batch_labels import Replication, replicated
from loadmaster.transforms.data_parallel import BatchNorm
from loadmaster.transforms.gradients import reached
from loadmaster.transforms.reducer import updated_last, with_standing_buckets
from loadmaster.transforms.shares import batch_size

#: Processes that update parameters: each all of them, or each some of them.
Optimizer = Literal["replicated", "sharded"]

#: Bytes of a megabyte as DistributedDataParallel counts them.
MEGABYTE = 2**20

#: Default size of DistributedDataParallel's buckets, and other sizes that are tried.
USUAL, BUCKETS = 25, (5, 100, 400)


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
    check_kind(problem, NAME)
    counts = numbers_of_devices(problem, NAME, replicas)
    if optimizer is not None:
        checks.one_of("optimizer", optimizer, get_args(Optimizer))
    ways = get_args(Optimizer) if optimizer is None else (optimizer,)
    size = USUAL if bucket_mb is None else checks.integer("bucket_mb", bucket_mb, 1, 2**20)
    tell = progress or (lambda stage, best: None)
    best: Candidate | None = None
    chosen: tuple[list[int], str, int] | None = None

    def tried(devices: list[int], way: str, megabytes: int) -> None:
        nonlocal best, chosen
        candidate = on_replicas(problem, devices, way, megabytes, batch_norm)
        if best is None or problem.objective.better(best, candidate) is candidate:
            best, chosen = candidate, (devices, way, megabytes)
            words = f"{counted(len(devices), 'replica')}, buckets of {megabytes} MB"
            tell(words, Incumbent(candidate.verdict.step_time))

    for devices in counts:
        if best is not None and best.fits and is_hopeless(problem, best, devices):
            continue
        for way in ways if len(devices) > 1 else ways[:1]:
            tried(devices, way, size)
    assert best is not None
    assert chosen is not None
    if bucket_mb is None and len(chosen[0]) > 1:
        devices, way, _ = chosen
        for megabytes in BUCKETS:
            tried(devices, way, megabytes)
    return accepted(best.problem, Outcome(best, 1.0))


def on_replicas(
    problem: Problem, devices: Sequence[int], optimizer: str, megabytes: int, norm: BatchNorm
) -> Candidate:
    """Replicas on devices, judged in the program's own order; one is the graph as it is."""
    k, batch = len(devices), batch_size(problem.model) or 1
    placed = problem
    replica = np.zeros(problem.graph.n_ops, dtype=np.int32)
    if k > 1:
        how = Replication(
            rows=(batch // k,) * k,
            optimizer="parameters" if optimizer == "sharded" else "whole",
            bucket_bytes=megabytes * MEGABYTE,
            is_synchronised=norm == "synchronised",
            is_summed_whole=True,
            fill=reached,
        )
        said = {"bucket_cap_mb": megabytes, "optimizer": optimizer, "batch_norm": norm}
        program = with_standing_buckets(replicated(problem.model, how))
        placed = problem.transformed(updated_last(program, {NAME: said}))
        replica = placed.program.replica[placed.reduced.op_of]
    wanted = np.array(devices, dtype=np.int32)[replica]
    at = where_allowed(placed, wanted)
    check_all_there(placed, wanted, at)
    order = np.arange(placed.graph.n_ops, dtype=np.int32)
    candidate = judged(placed, Assignment(at, order), placed.program.notes if k > 1 else ())
    if k > 1 and optimizer == "sharded":
        return replace(candidate, parallelism=Parallelism(shard=k, shard_state="optimizer"))
    return replace(candidate, parallelism=Parallelism(replicate=k))
