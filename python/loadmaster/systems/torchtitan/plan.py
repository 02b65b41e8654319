"""torchtitan: degrees of parallelism of a decoder, as its configuration has them.

Fully sharded data parallelism in replicas (:mod:`.fsdp`), or tensor parallelism in replicas in a
pipeline of runs of layers, with replicas whole (:mod:`.grids`) or in parts
(:mod:`.sharded_grids`), and stages one after another or in a V (:mod:`.v_grids`): the best, with
layers recomputed, some of their ops (:mod:`.checkpointing`), or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Literal

from loadmaster.base import checks
from loadmaster.base.effort import Budget
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.model.micro import IN_V
from loadmaster.rules.layer_list import LayerList
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.grids.fastest import fastest
from loadmaster.strategies.grids.grids import ANY, Asked, Grids, JudgedGrids, Known
from loadmaster.strategies.grids.recomputation_levels import (
    NOTHING,
    RecomputationLevel,
    whole_layers,
)
from loadmaster.strategies.sharding.units import ShardSizes
from loadmaster.systems.registry import refused
from loadmaster.systems.shared.asked_sizes import check_sizes
from loadmaster.systems.shared.fully_sharded import planned
from loadmaster.systems.shared.layered import is_encoder, listed_layers
from loadmaster.systems.shared.replicas import check_kind, numbers_of_devices
from loadmaster.systems.torchtitan.checkpointing import SELECTIVE, selected
from loadmaster.systems.torchtitan.semantics import NAME
from loadmaster.systems.torchtitan.sharded_grids import ShardedGrids
from loadmaster.systems.torchtitan.v_grids import GridsInV, ShardedGridsInV
from loadmaster.transforms.shares import batch_size


def torchtitan(
    problem: Problem,
    *,
    root: str = "",
    layers: str | None = None,
    replicate: int | None = None,
    shard: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    micro_batches: int | None = None,
    recompute: bool | Literal["selective"] | None = None,
    schedule: Literal["auto", "1f1b", "zb-v"] = "auto",
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The best of data, tensor and pipeline parallelism, as degrees.

    Parameters
    ----------
    problem : Problem
        Of a training step.
    root : str
        What the model is called in the graph's module paths, where it was traced as part of a
        larger one.
    layers : str, optional
        The module list that holds the layers; the longest in the model if absent.
    replicate, shard : int, optional
        How many replicas of the state of a stage there are, and how many devices have a part each
        of one; 1: it is whole. Absent: several are tried.
    tp, pp : int, optional
        Sizes. Absent: several are tried.
    micro_batches : int, optional
        Of the batch. Absent: several numbers are tried.
    recompute : bool or "selective", optional
        Whether layers are recomputed; "selective": what torchtitan's selective checkpointing does
        not keep. If absent: as little of these as fits.
    schedule : "auto" (default), "1f1b" or "zb-v"
        Of stages. "auto": the best of these and of interleaved 1F1B.
    time_limit, progress
        As :func:`loadmaster.systems.megatron.plan.megatron` has them.

    Raises
    ------
    InputError
        An inference, a model without a list of layers with attention, or an encoder; sizes that
        devices, layers or heads do not go into.
    InfeasibleError
        Nothing of that fits.
    """
    check_kind(problem, NAME)
    sizes = {"replicate": replicate, "shard": shard, "micro_batches": micro_batches}
    for name, value in sizes.items():
        if value is not None:
            checks.integer(name, value, 1)
    checks.one_of("schedule", schedule, ("auto", "1f1b", IN_V))
    layer_list = listed_layers(NAME, problem, root, layers)
    if is_encoder(layer_list):
        raise refused(NAME, f"the attention in the layers {layer_list.name!r} is not causal")
    dp = replicate if shard == 1 else replicate * shard if replicate and shard else None
    check_sizes(problem, layer_list, problem.cluster.n_devices, tp=tp, pp=pp, dp=dp)
    levels = _levels(problem, layer_list, recompute)
    asked = Asked(tp, pp, dp, micro_batches, 1 if schedule == "1f1b" else None, ep=1)
    budget = Budget.make(None, time_limit) if time_limit is not None else Budget(1.0, None)
    candidates: list[Candidate] = []
    if max(tp or 1, pp or 1, micro_batches or 1) == 1 and shard != 1 and schedule != IN_V:
        with suppress(InfeasibleError, InputError):
            candidates.append(_sharded(problem, replicate, shard, levels, progress))
    candidates += _in_grids(
        _grids(problem, layer_list, levels, replicate, shard, schedule),
        asked,
        schedule,
        budget,
        progress,
        candidates,
    )
    if not candidates:
        raise InfeasibleError(
            f"no replicas of equal parts of the batch, and no runs of {len(layer_list)} layers "
            "that fit: give more memory, or capture a batch that more devices divide, that of all "
            "processes together"
        )
    best_of_all = problem.objective.best(candidates)
    return accepted(best_of_all.problem, Outcome(best_of_all, 1.0))


def _in_grids(
    sorts: Iterable[Grids],
    asked: Asked,
    schedule: str,
    budget: Budget,
    progress: Progress | None,
    others: Sequence[Candidate],
) -> list[Candidate]:
    """The best grid of each sort that may be better than what was found before it."""
    searched: list[Candidate | None] = []
    for grids in sorts:
        if _gains_nothing(grids, searched, schedule):
            continue
        candidates, seen = [one for one in (*others, *searched) if one is not None], JudgedGrids()
        for one in candidates:
            if one.fits:
                seen.below(one.verdict.step_time)
        best = fastest(grids, asked, seen, budget, progress)
        if best is None and grids.problem.best_effort and not any(one.fits for one in candidates):
            best = fastest(grids, asked, seen, budget, progress, ANY)
        searched.append(None if best is None else best[0])
    return [one for one in searched if one is not None]


def _gains_nothing(grids: Grids, searched: Sequence[Candidate | None], schedule: str) -> bool:
    """True if others like these were found already that need no such grids: to gather again holds
    less, where all fits with nothing recomputed; and a V shortens a pipeline.
    """
    if isinstance(grids, ShardedGrids) and grids.word == "again" and searched:
        last = searched[-1]
        recipe = None if last is None else last.problem.program.recipe
        return last is not None and last.fits and (recipe is None or not recipe.recompute)
    if isinstance(grids, GridsInV) and schedule != IN_V:
        recipes = [None if one is None else one.problem.program.recipe for one in searched]
        is_piped = [recipe is not None and recipe.micro is not None for recipe in recipes]
        return None not in searched and not any(is_piped)
    return False


def _grids(
    problem: Problem,
    layer_list: LayerList,
    levels: Sequence[tuple[str, ...]],
    replicate: int | None,
    shard: int | None,
    schedule: str,
) -> Iterator[Grids]:
    """Grids with state whole, and in parts, kept or gathered again; and these in a V."""
    batch = batch_size(problem.model) or 1
    kind = Grids(problem, layer_list, batch).kind
    recomputed = tuple(
        RecomputationLevel.of(problem, lines, kind) if lines else NOTHING for lines in levels
    )
    known = Known()
    ways: list[tuple[type[Grids], type[ShardedGrids]]] = []
    ways += [(Grids, ShardedGrids)] * (schedule != IN_V)
    ways += [(GridsInV, ShardedGridsInV)] * (schedule != "1f1b")
    for whole, parts in ways:
        if shard in (None, 1):
            yield whole(problem, layer_list, batch, flat=False, levels=recomputed, known=known)
        if shard != 1:
            for word in ("kept", "again"):
                yield parts(
                    problem,
                    layer_list,
                    batch,
                    levels=recomputed,
                    known=known,
                    replicate=replicate,
                    shard=shard,
                    word=word,
                )


def _levels(
    problem: Problem, layer_list: LayerList, recompute: bool | str | None
) -> list[tuple[str, ...]]:
    """Levels of recomputation, the least first, by lines of a recipe."""
    if not isinstance(recompute, bool | None):
        checks.one_of("recompute", recompute, (SELECTIVE,))
    line = selected(problem.model, layer_list) if recompute in (None, SELECTIVE) else None
    if recompute == SELECTIVE and line is None:
        raise refused(NAME, "ops of its layers are not PyTorch's, or layers differ in them")
    levels: list[tuple[str, ...]] = [()] if recompute in (None, False) else []
    levels += [(line,)] if line is not None else []
    levels += [(whole_layers(layer_list),)] if recompute in (None, True) else []
    return levels


def _sharded(
    problem: Problem,
    replicate: int | None,
    shard: int | None,
    levels: list[tuple[str, ...]],
    progress: Progress | None,
) -> Candidate:
    """State in parts on devices that share nothing but the batch."""
    n = max(map(len, numbers_of_devices(problem, NAME, None)))
    parts = n // replicate if replicate and shard is None else shard
    replicas = replicate * parts if replicate and parts else None
    return planned(problem, NAME, levels, replicas, ShardSizes(parts), progress)
