"""Degrees of parallelism of a decoder that is trained, for systems that are told degrees alone.

Fully sharded data parallelism in replicas (:mod:`.fully_sharded`), or tensor parallelism in
replicas in a pipeline of runs of layers, with replicas whole
(:mod:`loadmaster.strategies.grids.grids`) or in parts (:mod:`.sharded_grids`), and stages one after
another or in a V (:mod:`.v_grids`): the best, with as little recomputed as fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
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
from loadmaster.strategies.grids.recomputation_levels import NOTHING, RecomputationLevel
from loadmaster.strategies.sharding.units import ShardSizes
from loadmaster.systems.shared.asked_sizes import check_sizes
from loadmaster.systems.shared.fully_sharded import planned
from loadmaster.systems.shared.replicas import numbers_of_devices
from loadmaster.systems.shared.sharded_grids import ShardedGrids
from loadmaster.systems.shared.v_grids import GridsInV, ShardedGridsInV
from loadmaster.transforms.shares import batch_size


@dataclass(frozen=True)
class Degrees:
    """The degrees that a user asks for; None: several are tried.

    Attributes
    ----------
    replicate, shard : int or None
        How many replicas of the state of a stage there are, and how many devices have a part each
        of one; 1: it is whole.
    tp, pp, micro_batches : int or None
    schedule : "auto", "1f1b" or "zb-v"
        Of stages. "auto": the best of these and of interleaved 1F1B.

    Raises
    ------
    InputError
        A degree is no integer of 1 or more.
    """

    replicate: int | None
    shard: int | None
    tp: int | None
    pp: int | None
    micro_batches: int | None
    schedule: Literal["auto", "1f1b", "zb-v"]

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None and one.name != "schedule":
                checks.integer(one.name, value, 1)

    @property
    def dp(self) -> int | None:
        """Devices that share the batch, if that is said."""
        if self.shard == 1:
            return self.replicate
        return self.replicate * self.shard if self.replicate and self.shard else None


def best_degrees(
    problem: Problem,
    name: str,
    layer_list: LayerList,
    levels: Sequence[tuple[str, ...]],
    sizes: Degrees,
    time_limit: float | None,
    progress: Progress | None,
) -> Candidate:
    """The best of data, tensor and pipeline parallelism for the system of a name, as degrees.

    Parameters
    ----------
    problem : Problem
        Of a training step with a batch.
    name : str
    layer_list : LayerList
        Of a decoder.
    levels : sequence of tuple of str
        What is recomputed, by lines of a recipe, the least first.
    sizes : Degrees
    time_limit, progress
        As :func:`loadmaster.systems.megatron.plan.megatron` has them.

    Raises
    ------
    InputError
        Sizes that devices, layers or heads do not go into.
    InfeasibleError
        Nothing of that fits.
    """
    n = problem.cluster.n_devices
    check_sizes(problem, layer_list, n, tp=sizes.tp, pp=sizes.pp, dp=sizes.dp)
    runs = 1 if sizes.schedule == "1f1b" else None
    asked = Asked(sizes.tp, sizes.pp, sizes.dp, sizes.micro_batches, runs, ep=1)
    budget = Budget.make(None, time_limit) if time_limit is not None else Budget(1.0, None)
    candidates: list[Candidate] = []
    is_flat = max(sizes.tp or 1, sizes.pp or 1, sizes.micro_batches or 1) == 1
    if is_flat and sizes.shard != 1 and sizes.schedule != IN_V:
        with suppress(InfeasibleError, InputError):
            candidates.append(_sharded(problem, name, sizes, levels, progress))
    sorts = _grids(problem, layer_list, levels, sizes)
    candidates += _in_grids(sorts, asked, sizes.schedule, budget, progress, candidates)
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
    sizes: Degrees,
) -> Iterator[Grids]:
    """Grids with state whole, and in parts, kept or gathered again; and these in a V."""
    batch = batch_size(problem.model) or 1
    kind = Grids(problem, layer_list, batch).kind
    recomputed = tuple(
        RecomputationLevel.of(problem, lines, kind) if lines else NOTHING for lines in levels
    )
    known = Known()
    ways: list[tuple[type[Grids], type[ShardedGrids]]] = []
    ways += [(Grids, ShardedGrids)] * (sizes.schedule != IN_V)
    ways += [(GridsInV, ShardedGridsInV)] * (sizes.schedule != "1f1b")
    for whole, parts in ways:
        if sizes.shard in (None, 1):
            yield whole(problem, layer_list, batch, flat=False, levels=recomputed, known=known)
        if sizes.shard != 1:
            for word in ("kept", "again"):
                yield parts(
                    problem,
                    layer_list,
                    batch,
                    levels=recomputed,
                    known=known,
                    replicate=sizes.replicate,
                    shard=sizes.shard,
                    word=word,
                )


def _sharded(
    problem: Problem,
    name: str,
    sizes: Degrees,
    levels: Sequence[tuple[str, ...]],
    progress: Progress | None,
) -> Candidate:
    """State in parts on devices that share nothing but the batch."""
    n = max(map(len, numbers_of_devices(problem, name, None)))
    parts = n // sizes.replicate if sizes.replicate and sizes.shard is None else sizes.shard
    replicas = sizes.replicate * parts if sizes.replicate and parts else None
    return planned(problem, name, levels, replicas, ShardSizes(parts), progress)
