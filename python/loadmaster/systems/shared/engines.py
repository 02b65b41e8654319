"""Engines that several systems start: DistributedDataParallel, FSDP2 and DeepSpeed's ZeRO.

A system that starts them says which of their settings it can make. The best engine is planned for,
or the one that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from loadmaster.base import checks
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.sharding.units import ShardSizes
from loadmaster.systems.shared import replicated
from loadmaster.systems.shared.fully_sharded import planned, recomputed_layers
from loadmaster.systems.shared.replicas import check_kind
from loadmaster.systems.shared.replicated import ReducerChoices

#: Those that come with PyTorch, and all of them.
OfTorch = Literal["ddp", "fsdp"]
Engine = Literal["ddp", "fsdp", "deepspeed"]


@dataclass(frozen=True)
class EnginePlanner:
    """The way that a system plans for an engine.

    Attributes
    ----------
    plan : callable
        Gives the candidate.
    options : mapping
        Options that the engine has, with the user's values; None: the user says nothing.
    """

    plan: Callable[[], Candidate]
    options: Mapping[str, object]


def best_engine(
    problem: Problem, name: str, planners: Mapping[str, EnginePlanner], asked: str | None
) -> Candidate:
    """The candidate of the best engine for the system of a name, or of the one that is asked for.

    An engine takes part that has all options which are given. Of equals the first is taken. A note
    says which engine could not take part.

    Raises
    ------
    InputError
        No training step with a batch and an optimizer; no such engine, or none has all options that
        are given; an error of the only ones that have.
    InfeasibleError
        Nothing fits.
    """
    check_kind(problem, name)
    if asked is not None:
        checks.one_of("engine", asked, tuple(planners))
    engines = {asked: planners[asked]} if asked is not None else planners
    said = dict.fromkeys(
        option
        for planner in planners.values()
        for option, value in planner.options.items()
        if value is not None
    )
    taking = {key: one for key, one in engines.items() if set(said) <= set(one.options)}
    if not taking:
        of = f"engine {asked}" if asked is not None else "no engine"
        raise InputError(f"target {name!r}: {of} has the options {', '.join(said)} together")
    candidates, errors = list[Candidate](), dict[str, InputError | InfeasibleError]()
    for key, planner in taking.items():
        try:
            candidates.append(planner.plan())
        except (InputError, InfeasibleError) as error:
            errors[key] = error
    if not candidates:
        raise min(errors.values(), key=lambda error: not isinstance(error, InfeasibleError))
    best = problem.objective.best(candidates)
    said_before = f"target {name!r}: "
    return best.noted(
        *(f"no plan by {key}: {str(errors[key]).removeprefix(said_before)}" for key in errors)
    )


def best_of_torch(
    problem: Problem,
    name: str,
    asked: OfTorch | None,
    replicas: int | None,
    choices: ReducerChoices,
    sharded: tuple[ShardSizes, bool | None],
    progress: Progress | None,
) -> Candidate:
    """The better of DistributedDataParallel and FSDP2 for the system of a name, as
    :func:`best_engine` has it. Of FSDP2 are given its sizes, and whether layers are recomputed.
    """
    sizes, recompute = sharded

    def ddp() -> Candidate:
        return replicated.planned(problem, name, replicas, choices, progress)

    def fsdp() -> Candidate:
        levels = recomputed_layers(problem, name, recompute)
        return planned(problem, name, levels, replicas, sizes, progress)

    of_fsdp = {"shard_size": sizes.shard, "reshard": sizes.reshard, "recompute": recompute}
    planners = {
        "ddp": EnginePlanner(ddp, {"bucket_mb": choices.bucket_mb}),
        "fsdp": EnginePlanner(fsdp, of_fsdp),
    }
    return best_engine(problem, name, planners, asked)
