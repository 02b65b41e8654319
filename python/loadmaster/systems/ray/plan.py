"""Ray Train: the better of DistributedDataParallel and FSDP2, as its workers run them.

A worker runs what the file that is written has: units are any modules.
"""

from __future__ import annotations

from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.sharding.units import ShardSizes
from loadmaster.systems.ray.semantics import NAME
from loadmaster.systems.shared.engines import OfTorch, best_of_torch
from loadmaster.systems.shared.replicated import ReducerChoices


def plan(
    problem: Problem,
    *,
    engine: OfTorch | None = None,
    replicas: int | None = None,
    bucket_mb: int | None = None,
    shard_size: int | None = None,
    reshard: bool | None = None,
    recompute: bool | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """Equal shares of the batch on the fastest devices of one family, by the better engine.

    Parameters
    ----------
    problem : Problem
    engine : "ddp" or "fsdp", optional
        The better that has the options which are given, if absent.
    replicas : int, optional
        How many devices share the batch; the best number if absent.
    bucket_mb : int, optional
        Of DistributedDataParallel: megabytes of a bucket. The best of a few if absent.
    shard_size : int, optional
        Of FSDP2: how many devices share a parameter. The best if absent.
    reshard : bool, optional
        Of FSDP2: whether layers are gathered again in the backward pass. The better if absent.
    recompute : bool, optional
        Of FSDP2: whether layers are recomputed. If absent: if nothing fits otherwise.
    progress : callable, optional

    Raises
    ------
    InputError
        Not a training step with a batch and an optimizer; sizes that do not divide; options of
        both engines.
    InfeasibleError
        It does not fit.
    """
    choices = ReducerChoices(bucket_mb, "replicated")
    sizes = ShardSizes(shard_size, reshard)
    return best_of_torch(problem, NAME, engine, replicas, choices, (sizes, recompute), progress)
