"""Grids among the plans of ``auto``: tensor parallelism and replicas that take micro-batches one
after another, in one stage or in several.

Labels share a whole batch, and stages of pipelines are two or more. So where memory is short, and
only there, something is left for grids of whole layers (:mod:`loadmaster.strategies.grids`): parts
of the batch one after another on devices that share every layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from loadmaster.rules.layer_list import LayerList
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.candidate import Best, Candidate
from loadmaster.strategies.grids.fastest import fastest, levels, with_whole_state
from loadmaster.strategies.grids.grids import Asked, Grids, JudgedGrids
from loadmaster.transforms.samples import samples_to_share


def grids(run: Run, known: Sequence[Candidate]) -> Iterator[tuple[Candidate, Best]]:
    """The best grid, with what it offers, where memory is short and estimates tell of a step that
    is not much longer than the best of the plans that are known.

    Raises
    ------
    InputError
        The model has no list of layers.
    """
    problem, batch = run.problem, samples_to_share(run.problem.model)
    plain = problem.program.is_plain and not problem.model.is_member.any()
    if batch is None or not plain or "b" not in problem.model.phases or not run.is_short(known):
        return
    of = Grids(problem, LayerList.of(problem.model), batch)
    of = replace(of, levels=levels(of))
    seen = JudgedGrids()
    seen.below(min((problem.objective.limit(one.verdict) for one in known), default=float("inf")))
    quickest = fastest(of, Asked(), seen, run.budget, None)
    if quickest is None:
        return
    best = with_whole_state(of, *quickest)
    if best.fits:
        yield best, replace(Best.of(best.kind, str(best.parallelism), best), request=None)
    else:
        run.lack(best.kind, str(best.parallelism), problem.cluster.shortfall(best.verdict.peak))
