"""Engines as Hugging Face's accelerate starts them, which transformers' Trainer stands on.

Its DistributedDataParallel has gradients beside its buckets, and its FSDP2 wraps modules by the
names of their classes. FSDP2 and DeepSpeed it starts on accelerators alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.base.errors import InputError
from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.model.families import families
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.sharding.processes import of_one_family
from loadmaster.strategies.sharding.units import ShardSizes
from loadmaster.systems.shared import replicated, zero
from loadmaster.systems.shared.class_units import planned_by_classes
from loadmaster.systems.shared.engines import Engine, EnginePlanner, best_engine
from loadmaster.systems.shared.replicated import USUAL, ReducerChoices


@dataclass(frozen=True)
class EngineOptions:
    """Options of a user for the engines; None: the best.

    Attributes
    ----------
    engine : "ddp", "fsdp", "deepspeed" or None
    replicas : int or None
    sizes : ShardSizes
    recompute : bool or None
    stage : int or None
    bucket_mb : int or None
    """

    engine: Engine | None
    replicas: int | None
    sizes: ShardSizes
    recompute: bool | None
    stage: int | None
    bucket_mb: int | None


def planned(
    problem: Problem,
    name: str,
    options: EngineOptions,
    has_buckets: bool,
    progress: Progress | None,
) -> Candidate:
    """The best engine for the system of a name, which may say the size of the buckets of
    DistributedDataParallel.
    """
    replicas, sizes = options.replicas, options.sizes

    def ddp() -> Candidate:
        megabytes = options.bucket_mb if has_buckets else USUAL
        choices = ReducerChoices(megabytes, "replicated", are_views=False)
        return replicated.planned(problem, name, replicas, choices, progress)

    def fsdp() -> Candidate:
        _check_accelerators(problem, name, "FSDP2")
        return planned_by_classes(problem, name, replicas, sizes, options.recompute, progress)

    def deepspeed() -> Candidate:
        _check_accelerators(problem, name, "DeepSpeed")
        return zero.planned(problem, name, replicas, options.stage, options.bucket_mb, progress)

    buckets = {"bucket_mb": options.bucket_mb}
    of_fsdp = {
        "shard_size": sizes.shard,
        "reshard": sizes.reshard,
        "recompute": options.recompute,
    }
    planners = {
        "ddp": EnginePlanner(ddp, buckets if has_buckets else {}),
        "fsdp": EnginePlanner(fsdp, of_fsdp),
        "deepspeed": EnginePlanner(deepspeed, {"stage": options.stage, **buckets}),
    }
    return best_engine(problem, name, planners, options.engine)


def _check_accelerators(problem: Problem, name: str, engine: str) -> None:
    """Refuses an engine where processes run on CPUs."""
    if families(problem.cluster)[of_one_family(problem)[0]][0] == "cpu":
        raise InputError(
            f"target {name!r}: accelerate starts {engine} on accelerators alone, and the fastest "
            "devices are CPUs"
        )
