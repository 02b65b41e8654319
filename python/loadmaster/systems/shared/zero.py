"""DeepSpeed's ZeRO by stages (Rajbhandari et al., SC 2020), for the systems that have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.base.units import counted
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.model.parallelism import Parallelism, ShardState
from loadmaster.model.recipe import DeviceMesh, Recipe
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.sharding.processes import check_all_there, is_hopeless
from loadmaster.strategies.sharding.space import has_shapes
from loadmaster.strategies.simple.homes import where_allowed
from loadmaster.systems.registry import refused
from loadmaster.systems.shared.replicas import (
    check_kind,
    numbers_of_several,
)
from loadmaster.systems.shared.zero_precision import kept_otherwise
from loadmaster.transforms import replicate, shard
from loadmaster.transforms.reducer import gathered_last, updated_last

#: Where the program of a plan says its stage and the size of its buckets.
SAID = "deepspeed"

#: Millions of bytes of buckets that are tried: about DeepSpeed's own for stage 3 and above, and
#: smaller ones.
BUCKETS = (200, 50, 1000)

#: The state that lies in parts in each stage.
STAGES: dict[int, ShardState] = {0: "none", 1: "optimizer", 2: "gradients", 3: "parameters"}


def planned(
    problem: Problem,
    name: str,
    replicas: int | None,
    stage: int | None,
    bucket_mb: int | None,
    progress: Progress | None,
) -> Candidate:
    """Equal shares of the batch on the fastest devices of one family, for the system of a name;
    else as the system ``deepspeed`` has it.
    """
    check_kind(problem, name)
    groups = numbers_of_several(problem, name, replicas)
    if stage is not None:
        checks.integer("stage", stage, 1, 3)
    if stage == 3 and not has_shapes(problem.model):
        raise InputError(f"target {name!r}: stage 3 wants a graph that says the shapes of tensors")
    if reason := kept_otherwise(problem.model, 2):
        raise refused(name, reason)
    stages = ((2, 3) if has_shapes(problem.model) else (2,)) if stage is None else (stage,)
    first = BUCKETS[0] if bucket_mb is None else checks.integer("bucket_mb", bucket_mb, 1, 2**20)
    tell = progress or (lambda stage, best: None)
    best: Candidate | None = None
    chosen: tuple[Sequence[int], int] | None = None

    def ways() -> Iterator[tuple[Sequence[int], int, int]]:
        for devices in groups:
            for one in stages:
                yield devices, one, first
        for megabytes in BUCKETS[1:] if bucket_mb is None else ():
            assert chosen is not None
            yield *chosen, megabytes

    for devices, number, megabytes in ways():
        if best is not None and best.fits and is_hopeless(problem, best, devices):
            continue
        one = _judged(problem, devices, number, megabytes)
        if best is None or problem.objective.better(best, one) is one:
            best, chosen = one, (devices, number)
            words = f"{counted(len(devices), 'process', 'processes')}, stage {number}"
            tell(words, Incumbent(one.verdict.step_time))
    assert best is not None
    return accepted(best.problem, Outcome(best, 1.0))


def _judged(problem: Problem, devices: Sequence[int], stage: int, megabytes: int) -> Candidate:
    """The program of a stage, each process on its device, in the program's own order."""
    graph, size = problem.model, megabytes * 1_000_000
    if stage == 3:
        mesh = DeviceMesh.of(
            {"shard": len(devices)}, [problem.cluster.devices[d].name for d in devices]
        )
        recipe = Recipe(
            mesh,
            {"shard": {"**": "batch"}},
            shard_state={"**": "parameters"},
            bucket_bytes=size,
            name=SAID,
        )
        program = shard(graph, recipe)
        place = program.rank
    else:
        program = gathered_last(
            replicate(graph, len(devices), aggregation="reduce-scatter", bucket_bytes=size)
        )
        place = program.replica
    placed = problem.transformed(
        updated_last(program, {SAID: {"stage": stage, "bucket_bytes": size}})
    )
    on = np.array(devices, dtype=np.int32)
    wanted = on[np.maximum(place[placed.reduced.op_of], 0)]
    at = where_allowed(placed, wanted)
    check_all_there(placed, wanted, at)
    order = np.arange(placed.graph.n_ops, dtype=np.int32)
    candidate = judged(placed, Assignment(at, order), placed.program.notes)
    parallelism = Parallelism(shard=len(devices), shard_state=STAGES[stage])
    return replace(candidate, parallelism=parallelism)
