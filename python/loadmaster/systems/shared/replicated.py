"""Equal replicas as DistributedDataParallel runs them, for the systems that have it.

Li et al., VLDB 2020. Ops run in the program's own order, as autograd has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from loadmaster.systems.shared.replicas import check_kind, numbers_of_devices
from loadmaster.transforms.batch_labels import Replication, replicated
from loadmaster.transforms.data_parallel import BatchNorm
from loadmaster.transforms.gradients import reached
from loadmaster.transforms.reducer import updated_last, with_standing_buckets
from loadmaster.transforms.shares import batch_size

#: Where the program of a plan says how its gradients are summed.
SAID = "ddp"

#: Processes that update parameters: each all of them, or each some of them.
Optimizer = Literal["replicated", "sharded"]

#: Bytes of a megabyte as DistributedDataParallel counts them.
MEGABYTE = 2**20

#: Default size of DistributedDataParallel's buckets, and other sizes that are tried.
USUAL, BUCKETS = 25, (5, 100, 400)


@dataclass(frozen=True)
class ReducerChoices:
    """Choices of a user of DistributedDataParallel, or of a system that calls it.

    Attributes
    ----------
    bucket_mb : int or None
        Megabytes of 2^20 bytes by which a bucket is full; None: the best of a few.
    optimizer : "replicated", "sharded" or None
        None: the better.
    batch_norm : "local" or "synchronised"
        The statistics of a batch norm: of its process's samples, or of the whole batch.
    are_views : bool
        True if gradients are views of the buckets; False: they lie beside them.
    """

    bucket_mb: int | None = None
    optimizer: Optimizer | None = None
    batch_norm: BatchNorm = "local"
    are_views: bool = True


def planned(
    problem: Problem,
    name: str,
    replicas: int | None,
    reducer: ReducerChoices,
    progress: Progress | None,
) -> Candidate:
    """Equal replicas on the fastest devices of one family, for the system of a name; else as the
    system ``ddp`` has it.
    """
    check_kind(problem, name)
    counts = numbers_of_devices(problem, name, replicas)
    if reducer.optimizer is not None:
        checks.one_of("optimizer", reducer.optimizer, get_args(Optimizer))
    ways = get_args(Optimizer) if reducer.optimizer is None else (reducer.optimizer,)
    asked = reducer.bucket_mb
    size = USUAL if asked is None else checks.integer("bucket_mb", asked, 1, 2**20)
    tell = progress or (lambda stage, best: None)
    best: Candidate | None = None
    chosen: tuple[list[int], str, int] | None = None

    def tried(devices: list[int], way: str, megabytes: int) -> None:
        nonlocal best, chosen
        candidate = on_replicas(problem, devices, way, megabytes, reducer)
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
    if asked is None and len(chosen[0]) > 1:
        devices, way, _ = chosen
        for megabytes in BUCKETS:
            tried(devices, way, megabytes)
    return accepted(best.problem, Outcome(best, 1.0))


def on_replicas(
    problem: Problem,
    devices: Sequence[int],
    optimizer: str,
    megabytes: int,
    reducer: ReducerChoices,
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
            is_synchronised=reducer.batch_norm == "synchronised",
            is_summed_whole=True,
            fill=reached,
        )
        said = {
            "bucket_cap_mb": megabytes,
            "optimizer": optimizer,
            "batch_norm": reducer.batch_norm,
        }
        program = with_standing_buckets(replicated(problem.model, how), reducer.are_views)
        placed = problem.transformed(updated_last(program, {SAID: said}))
        replica = placed.program.replica[placed.reduced.op_of]
    wanted = np.array(devices, dtype=np.int32)[replica]
    at = where_allowed(placed, wanted)
    check_all_there(placed, wanted, at)
    order = np.arange(placed.graph.n_ops, dtype=np.int32)
    candidate = judged(placed, Assignment(at, order), placed.program.notes if k > 1 else ())
    if k > 1 and optimizer == "sharded":
        return replace(candidate, parallelism=Parallelism(shard=k, shard_state="optimizer"))
    return replace(candidate, parallelism=Parallelism(replicate=k))
