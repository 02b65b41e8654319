"""The cheapest labels of all: every op whole, or cut in one of its ways, on every axis of a mesh.

Labels for meshes of the cluster are ranked by their estimates (:mod:`.ranking`). The best few
become programs, which the judge decides between (:mod:`.judging`). One device is among them. Where
none fits, layers are recomputed (:mod:`.recomputing`). A recipe may fix some of the labels
(:mod:`.fixed`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import inf

from loadmaster.base.effort import Budget
from loadmaster.base.errors import InfeasibleError
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.judge.problem import Problem
from loadmaster.model.recipe import Recipe
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.registry import strategy
from loadmaster.strategies.sharding.judging import expanded, notes, with_recipe
from loadmaster.strategies.sharding.ranking import Ranked, best_of, ranked
from loadmaster.strategies.sharding.recomputing import recomputed
from loadmaster.strategies.sharding.space import Space
from loadmaster.strategies.simple import single

#: Numbers of ranked labels that are looked at more closely, and of these that are judged.
LOOKED_AT, JUDGED = 8, 3

#: From so many parts on, fewer are.
MANY_PARTS, LOOKED_AT_OF_MANY, JUDGED_OF_MANY = 200_000, 4, 2

#: Up to so many parts, judging takes next to nothing, and more are.
FEW_PARTS, JUDGED_OF_FEW = 5_000, 8

#: Labels whose estimate is slower than the best one's by more than this share are not judged,
#: unless nothing fits so far.
WITHIN = 0.25

#: Up to so many ops, those of layers that are alike may differ, if that gains.
UNTIED = 5_000

#: Number of further ones that are judged while nothing fits, or while estimates are below the best
#: step; and by what share of the memory the estimate may be over it, for labels to be judged beside
#: others.
_MORE, _OVER = 3, 0.1

#: Number of times that labels are sought for less of the memory, and the share left free then.
_ATTEMPTS, _SPARE = 3, 0.98


@strategy("sharded", "every op whole, replicated or cut, by one labelling", is_final=True)
def place(
    problem: Problem,
    *,
    recipe: Recipe | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The best of the labels that cost least, of every mesh of the cluster.

    Parameters
    ----------
    problem : Problem
    recipe : Recipe, optional
        What it says stays as it is, and labels are found for what it leaves ``"auto"``, on its mesh
        alone.
    time_limit : float, optional
        Seconds on the clock; labels under way are finished first. Absent: no limit.
    progress : callable, optional
        Called with the mesh and the best step time whenever there is a better plan.

    Raises
    ------
    InputError
        The graph does not say what its ops were called with; what :func:`.fixed.fixed` refuses.
    InfeasibleError
        Nothing that was judged fits; no labels go with those that the recipe fixes.
    """
    space = Space.of(problem, recipe.recompute if recipe else (), recipe)
    # Without a limit the clock never ends.
    budget = Budget.make(None, time_limit) if time_limit is not None else Budget(1.0, None)
    tell = progress or (lambda stage, best: None)
    best: Candidate | None = None
    labels: Ranked | None = None
    is_cut = False
    try:
        for candidate, of, where in in_all_spaces(space, budget):
            if best is None or problem.objective.better(best, candidate) is candidate:
                best, labels, space = candidate, of, where
                words = "one device" if of is None else f"sharded on {of.words}"
                tell(words, Incumbent(candidate.verdict.step_time))
    except InfeasibleError as error:
        if recipe is None:
            raise
        raise InfeasibleError(
            "no labels were found for what the recipe leaves open that go with those that it "
            f"fixes: leave more open ({error})"
        ) from error
    except KeyboardInterrupt:
        if best is None:
            raise
        is_cut = True
    if best is None:
        raise InfeasibleError("nothing can be sharded, and no device holds the graph")
    if labels is not None:
        best = with_recipe(space, labels, best)
    if is_cut:
        best = best.interrupted()
    if budget.is_cut or (time_limit is not None and budget.lacks(0.0)):
        best = best.noted(f"the time limit of {time_limit:g} s cut the search: more may be found")
    return accepted(best.problem, Outcome(best, 1.0))


def in_all_spaces(space: Space, budget: Budget) -> Iterator[tuple[Candidate, Ranked | None, Space]]:
    """Candidates of :func:`sharded`, and where none of them fits, those with layers
    recomputed; each with the space that it is of.
    """
    fits = False
    for candidate, labels in sharded(space, budget):
        fits = fits or candidate.fits
        yield candidate, labels, space
    if fits or budget.lacks(0.0) or space.recipe is not None:
        return
    for again in recomputed(space):
        for candidate, labels in sharded(again, budget):
            if labels is not None:
                yield candidate, labels, again


def sharded(space: Space, budget: Budget) -> Iterator[tuple[Candidate, Ranked | None]]:
    """One device, if it holds the graph, and the best of the ranked labels, each with these.

    Where the judge finds the first of them over the memory that its estimate is within, since what
    is owned is never even, there are others for less of it.
    """
    if space.recipe is None:
        with suppress(InfeasibleError):
            yield single.place(space.problem), None
        if space.problem.cluster.n_devices == 1:
            return
    for _ in range(_ATTEMPTS):
        over = 1.0
        for candidate, labels in _judged(space, budget):
            if over == 1.0 and labels.fits and not candidate.fits:
                over = candidate.overfull
            yield candidate, labels
        if over == 1.0 or budget.lacks(0.0):
            return
        space = replace(space, share=_SPARE * space.share / over)


def _judged(space: Space, budget: Budget) -> Iterator[tuple[Candidate, Ranked]]:
    """The best of the ranked labels, judged."""
    n_parts = space.problem.graph.n_ops * space.problem.cluster.n_devices
    looked_at, most = LOOKED_AT, JUDGED_OF_FEW if n_parts <= FEW_PARTS else JUDGED
    if n_parts >= MANY_PARTS:
        looked_at, most = LOOKED_AT_OF_MANY, JUDGED_OF_MANY
    rows, n, fits = best_of(ranked(space, budget), looked_at), 0, False
    quickest = inf
    if rows and space.problem.graph.n_ops <= UNTIED:
        rows = best_of([rows[0].untied(space.memory(rows[0].mesh)), *rows], 0)
    for row in rows:
        is_far = row.key > (rows[0].key[0], rows[0].key[1] * (1 + WITHIN))
        is_over = row.labels.estimate.peak > (1 + _OVER) * space.memory(row.mesh)
        # What is shorter by its estimate than all that was judged may be the best all the same.
        is_last = n >= most and row.labels.estimate.step_time >= quickest
        if n >= most + _MORE or (fits and (is_last or is_far)) or (n > 0 and is_over):
            return
        candidate = expanded(space, row)
        n, fits = n + 1, fits or candidate.fits
        quickest = min(quickest, candidate.verdict.step_time if candidate.fits else inf)
        yield candidate.noted(*notes(row, candidate)), row
