"""Trainer: the best of DistributedDataParallel, FSDP2 and DeepSpeed, by its arguments.

Its arguments say the size of buckets, and shard parameters on all processes.
"""

from __future__ import annotations

from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.sharding.units import ShardSizes
from loadmaster.systems.shared.engines import Engine
from loadmaster.systems.shared.hugging_face import EngineOptions, planned
from loadmaster.systems.trainer.semantics import NAME


def plan(
    problem: Problem,
    *,
    engine: Engine | None = None,
    replicas: int | None = None,
    reshard: bool | None = None,
    recompute: bool | None = None,
    stage: int | None = None,
    bucket_mb: int | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """Equal shares of the batch on the fastest devices of one family, by the best engine.

    Parameters
    ----------
    problem : Problem
    engine : "ddp", "fsdp" or "deepspeed", optional
        The best that has the options which are given, if absent.
    replicas : int, optional
        How many devices share the batch; the best number if absent.
    reshard : bool, optional
        Of FSDP2: whether layers are gathered again in the backward pass. The better if absent.
    recompute : bool, optional
        Of FSDP2: whether layers are recomputed. If absent: if nothing fits otherwise.
    stage : 1, 2 or 3, optional
        Of DeepSpeed; the better of 2 and 3 if absent.
    bucket_mb : int, optional
        Of DistributedDataParallel in units of 2^20 bytes, of DeepSpeed of 10^6. The best if absent.
    progress : callable, optional

    Raises
    ------
    InputError
        Not a training step with a batch and an optimizer; sizes that do not divide; options of
        several engines; FSDP2 or DeepSpeed on CPUs, where accelerate has neither.
    InfeasibleError
        It does not fit.
    """
    sizes = ShardSizes(reshard=reshard, axes=1)
    options = EngineOptions(engine, replicas, sizes, recompute, stage, bucket_mb)
    return planned(problem, NAME, options, has_buckets=True, progress=progress)
