"""Loose replicas: the ops of replicas, placed one by one instead of one replica per device.

Slow links hold back both plain replicas, which wait for their gradients, and whole ops, which wait
for one another. Some plans lie between the two. Layers with many weights stand on one device, or
on a few, and take one part of the batch after another, as the stages of a pipeline do. All other
layers have a replica on every device.

Each such plan is a placement of the graph of replicas with parameter servers
(:func:`loadmaster.transforms.replicate`), in which no op is bound to a device. That graph is placed
as a user's graph is: by seeds, refinement and search.
"""

from __future__ import annotations

from dataclasses import replace

from loadmaster.base.effort import Budget
from loadmaster.judge.problem import Problem
from loadmaster.strategies.auto.course import search_from
from loadmaster.strategies.auto.passes import MOST_DEVICES
from loadmaster.strategies.auto.planting import Planting
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.auto.seeds import LENGTHY, worth_trying
from loadmaster.strategies.candidate import Best, Candidate
from loadmaster.strategies.kinds import Kind
from loadmaster.strategies.simple import single
from loadmaster.transforms import replicate
from loadmaster.transforms.shares import batch_size

#: Seeds that weigh transfers and take next to no time: enough where there is no time for all.
_SEEDS = ["layers", "partition"]


def loose_replicas(run: Run, best: Candidate, budget: Budget) -> tuple[Candidate, Best] | None:
    """The best loose replicas that a budget buys, as an offer. None: plain replicas are near their
    bound already, or none were better.

    Seeds say how many replicas are searched.

    Parameters
    ----------
    run : Run
    best : Candidate
        The best replicas that are bound to devices.
    budget : Budget
        What placing them may take.
    """
    problem, objective = run.problem, run.problem.objective
    n_devices, near = problem.cluster.n_devices, 1 + run.tuning.loose_near
    samples = batch_size(problem.model) or n_devices
    if n_devices > MOST_DEVICES or objective.reaches(best.verdict, run.split_bound.seconds * near):
        return None
    planted: list[Planting] = []
    k = 2
    while k <= min(n_devices, samples) and not budget.is_spent:
        planted += _planted(run, k, best, budget)
        k *= 2
    hope = run.tuning.loose_hope * objective.seconds(best.verdict)
    planted = [one for one in planted if objective.reaches(_found(one).verdict, hope)]
    if not planted:
        return None
    promising = objective.best(_found(one) for one in planted)
    chosen = next(one for one in planted if one.run.best is promising)
    if not chosen.run.is_done:
        search_from(chosen.run, chosen.seeds)
    loose = _found(chosen)
    program = loose.problem.program
    words = f"{int(program.replica.max()) + 1} replicas, op by op"
    offer = replace(Best.of(Kind.REPLICAS, words, loose), request=None)
    return replace(loose, notes=program.notes), offer


def _planted(run: Run, k: int, best: Candidate, budget: Budget) -> list[Planting]:
    """Seeds of ``k`` replicas: all that are cheap if a quarter of what is left of a budget pays for
    them, else a few if half of it does. None where none fits, or no placement can be better than
    the best.
    """
    problem = run.problem
    placed = run.tried(Kind.REPLICAS, f"{k} replicas, op by op", lambda: _apart(problem, k))
    if placed is None:
        return []
    inner = Run(placed, budget, chains=run.chains, threads=run.threads, tuning=run.tuning)
    planting = Planting(inner)
    every = [name for name in worth_trying(placed, True, run.tuning) if name not in LENGTHY]
    for names, share in ((every, 0.25), (_SEEDS, 0.5)):
        cost = sum(planting.whole(name, placed) for name in names)
        is_paid = cost <= share * budget.left
        if is_paid and not problem.objective.reaches(best.verdict, inner.bound):
            planting.try_whole("single", single.place)
            budget.spend(planting.sow_whole(names)[0])
            break
    return [planting] if inner.has_plan else []


def _apart(problem: Problem, k: int) -> Problem:
    """The problem of placing ``k`` replicas with parameter servers."""
    return problem.transformed(replicate(problem.model, k, aggregation="parameter-server"))


def _found(planting: Planting) -> Candidate:
    """The best of a run that has a plan."""
    assert planting.run.best is not None
    return planting.run.best
