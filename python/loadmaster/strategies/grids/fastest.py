"""The fastest of the grids of devices, by the judge, and what they may recompute."""

from __future__ import annotations

from loadmaster.base.effort import Budget
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.grids.grids import Asked, GridOfLayers, Grids, JudgedGrids
from loadmaster.strategies.grids.modules import APART, lines_of_modules
from loadmaster.strategies.grids.recomputation_levels import NOTHING, RecomputationLevel, worthwhile

#: Most grids that are judged and fit, and most at all; so many more where routed
#: experts may be apart, on more or fewer replicas of grids that are else the same.
_JUDGED, _TRIED, _OF_EXPERTS = 3, 12, 2

#: Number of times that stages are sought for less of the memory, and the share left free then.
_ATTEMPTS, _SPARE = 4, 0.97


def fastest(
    grids: Grids,
    asked: Asked,
    seen: JudgedGrids,
    budget: Budget,
    progress: Progress | None,
    share: float = 1.0,
) -> tuple[Candidate, GridOfLayers] | None:
    """The best of the grids that were judged; None: the layers of no grid fit. What the judge says
    is noted in ``seen``.
    """
    objective = grids.problem.objective
    best: tuple[Candidate, GridOfLayers] | None = None
    most = _JUDGED * (_OF_EXPERTS if grids.n_experts else 1)
    for _ in range(_ATTEMPTS):
        judged = fitting = 0
        for cut in grids.best_first(asked, seen, share):
            if best is not None and best[0].fits and (fitting >= most or budget.lacks(0.0)):
                break
            if judged >= _TRIED:
                break
            one = grids.judged(cut, flat=grids.flat)
            judged, fitting = judged + 1, fitting + one.fits
            if not one.fits:
                seen.over.add(cut.grid)
            if best is None or objective.better(best[0], one) is one:
                best = one, cut
                if one.fits:
                    seen.below(one.verdict.step_time)
                if progress is not None:
                    progress(str(one.parallelism), Incumbent(one.verdict.step_time))
        if best is None or best[0].fits:
            return best
        share *= _SPARE / best[0].overfull
    return best


def with_whole_state(grids: Grids, one: Candidate, cut: GridOfLayers) -> Candidate:
    """A judged grid, or the same with the optimizer's state whole on each replica if that is
    better.
    """
    if cut.grid.dp == 1:
        return one
    return grids.problem.objective.better(one, grids.judged(cut, flat=False))


def levels(grids: Grids) -> tuple[RecomputationLevel, ...]:
    """Nothing, some modules of each layer, all of it: levels of recomputation, the least first."""
    some = worthwhile(parts_of_layers(grids), APART)
    return (NOTHING, *(one for one in some if one.spared < grids.full.spared), grids.full)


def parts_of_layers(grids: Grids) -> dict[str, RecomputationLevel]:
    """The level at which each module of the layers is recomputed alone, by its name."""
    structure = None if grids.space is None else grids.space.structure
    lines = {} if structure is None else lines_of_modules(structure, grids.listed)
    return {
        name: RecomputationLevel.of(grids.problem, (line,), grids.kind, (name,))
        for name, line in lines.items()
    }
