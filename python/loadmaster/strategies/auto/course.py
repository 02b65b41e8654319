"""The course of a search: seeds are refined, and the best that came of them is searched from."""

from __future__ import annotations

from loadmaster.strategies.auto.refinement import Entrant, Refinement, ranking
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.auto.search import Search
from loadmaster.strategies.candidate import Candidate


def search_from(run: Run, seeds: list[Candidate]) -> None:
    """Refines seeds, searches from several for a while, then from the best of what came of them,
    then from others as long as there is effort left.
    """
    tuning, objective = run.tuning, run.problem.objective
    refinement, search = Refinement(run), Search(run)
    ranked = ranking(objective, [Entrant(seed) for seed in seeds if seed.fits])
    trials = [entrant.candidate for entrant in ranked]
    if run.is_refinable:
        trials = refinement.halved(trials)
    most = tuning.trials if run.is_small else 1
    trials, others = trials[:most], trials[most:] if run.is_small else []
    if len(trials) > 1:
        each = tuning.trial_share * run.budget.left / len(trials)
        trials = [search.begun(trial, each) for trial in trials]
    start = objective.best(trials)
    if not run.is_small:
        start = refinement.cycled(start)
    start = search.gathered(start)
    if not run.is_done:
        search.exhausted(start, tuning.gather_share * run.budget.left)
    while others and not run.is_done and run.budget.left > tuning.restart_share * run.budget.whole:
        share = 1 / len(others)
        start = search.gathered(others.pop(0))
        search.exhausted(start, (1 - share) * run.budget.left)
    if not run.is_done:
        assert run.best is not None
        search.gathered(run.best)
