"""Fully sharded data parallelism by units (FSDP2), for the systems that have it."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.sharding.judging import without_rule
from loadmaster.strategies.sharding.recomputing import layers
from loadmaster.strategies.sharding.space import has_shapes
from loadmaster.strategies.sharding.units import ShardSizes, fastest, modules_of
from loadmaster.systems.registry import refused
from loadmaster.systems.shared.replicas import check_kind, numbers_of_several


def recomputed_layers(
    problem: Problem, name: str, recompute: bool | None
) -> tuple[tuple[str, ...], ...]:
    """Levels of what is recomputed, for the system of a name: nothing or all numbered layers; None:
    the one, then the other.

    Raises
    ------
    InputError
        Layers are to be recomputed, and there are none.
    """
    graph = problem.model
    again = layers(modules_of(graph), 1)
    if recompute and not again:
        raise InputError(
            f"target {name!r}: no module of {graph.name!r} is a numbered layer to recompute"
        )
    return {True: (again,), False: ((),), None: ((), again) if again else ((),)}[recompute]


def planned(
    problem: Problem,
    name: str,
    levels: Sequence[Sequence[str]],
    replicas: int | None,
    sizes: ShardSizes,
    progress: Progress | None,
) -> Candidate:
    """Fully sharded data parallelism, for the system of a name. Of levels of what is recomputed one
    is tried where nothing before it fits; else as the system ``fsdp`` has it.
    """
    graph = problem.model
    check_kind(problem, name)
    if not has_shapes(graph) or not any(graph.modules):
        raise refused(name, f"{graph.name!r} does not say its modules and the shapes of tensors")
    groups = numbers_of_several(problem, name, replicas)
    if sizes.shard is not None:
        checks.integer("shard_size", sizes.shard, 2)
    best = fastest(problem, groups, levels, sizes, progress or (lambda stage, best: None))
    if best is None:
        raise InputError(
            f"target {name!r}: no number of devices that the batch divides by is a multiple of "
            f"shard_size, {sizes.shard}"
        )
    return accepted(best.problem, Outcome(best.noted(*without_rule(problem)), 1.0))
