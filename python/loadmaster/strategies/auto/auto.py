"""The best plan that a few seconds can buy: many fast strategies, the best of them refined, then
local search from there.

Loadmaster's own. Its stages, each in a file of its own:

1. Plans whose ops are cut or sharded are judged (:mod:`.shards`), and replicas (:mod:`.replicas`),
   and pipelines where they could be shorter (:mod:`.pipelines`).
   The best of them is searched from (:mod:`.inside`). Where that is far from the bound, ops of
   replicas are placed one by one (:mod:`.loose`). The plan is the best of them and of whole ops,
   which all other stages place, unless none of whole ops can be as short.
2. Seeds are planted (:mod:`.planting`): fast strategies (:mod:`.seeds`) are tried whole, whatever
   the effort, before anything is refined. As far as a share of the effort goes, others follow, and
   the same on fewer devices where transfers are dear (:mod:`.parts`).
3. Seeds are refined by halves (:mod:`.refinement`): many of them a little, the better half of these
   more, and so on. One refinement is a V-cycle (:mod:`.v_cycle`): it moves groups of ops
   (:mod:`.passes`) on coarse graphs first. On a large graph the best of them is refined again and
   again, as long as that gains.
4. The best is searched from, on a small graph the best few (:mod:`.search`).
5. Before the search and at the end, ops that have no reason to be apart from their inputs go back
   to them (:mod:`.gathering`).

A search that ends early leaves the rest of the effort to searches from other seeds. What is found
is simulated before it counts, so the plan is never worse than the best strategy tried, nor than one
device; but one of several devices gains at least 0.05 % over one device, or gives way to it.

How far to go is *counted*, not measured: ``effort`` is seconds of a reference machine
(:mod:`loadmaster.base.effort`), shared out to the stages by what they visit or simulate
(:mod:`.pace`). So the same input gives the same plan on every machine. Only a time limit that the
user gave can cut the search; the plan then says so. The shares and rates are :mod:`.tuning`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal, get_args

from loadmaster.base import checks
from loadmaster.base.effort import Budget, Effort
from loadmaster.base.errors import InfeasibleError
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.base.units import format_bytes
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.bounds import SPLIT_OPS
from loadmaster.judge.objective import STEP, Objective
from loadmaster.judge.problem import Problem
from loadmaster.judge.verdict import Verdict
from loadmaster.strategies.auto import throughput
from loadmaster.strategies.auto.course import search_from
from loadmaster.strategies.auto.grids import grids
from loadmaster.strategies.auto.inside import searched_inside
from loadmaster.strategies.auto.left_out import left_out, where_whole, whole_offer
from loadmaster.strategies.auto.loose import loose_replicas
from loadmaster.strategies.auto.passes import MOST_DEVICES
from loadmaster.strategies.auto.pipelines import pipelines
from loadmaster.strategies.auto.planting import Planting
from loadmaster.strategies.auto.replicas import can_be_replicated, other_replicas, replicas
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.auto.shards import sharded_by_units, shards
from loadmaster.strategies.candidate import Best, Candidate
from loadmaster.strategies.kinds import Kind
from loadmaster.strategies.registry import strategy
from loadmaster.strategies.sharding.judging import without_rule
from loadmaster.strategies.sharding.space import can_be_sharded
from loadmaster.strategies.simple import single

#: Answers to whether ops may be replicated.
Split = Literal["auto", "none"]


@strategy(
    "auto",
    "the best of many, then local search for as long as there is time",
    # It ends with the search for the least overflow where nothing else fits.
    is_final=True,
    # Layers are contiguous by nature.
    rivals_in_stages=("layers",),
)
def place(
    problem: Problem,
    *,
    effort: Effort | float | None = None,
    gap: float = 0.0,
    chains: int = 1,
    threads: int | None = None,
    split: Split = "auto",
    time_limit: float | None = None,
    warm_start: Assignment | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The best of many strategies, improved by local search, and of replicas.

    Ends when its effort or its time is spent, when the plan is within the gap, or when nothing gets
    better. Ctrl-C ends the search, not the program: the best so far is returned.

    Parameters
    ----------
    effort : "fast", "normal", "max" or a number, optional
        Work that takes about 1, 15 or 60 seconds of the reference machine, or such seconds. Work is
        counted, so the plan is the same on any machine. Absent: "fast", or as far as the time limit
        goes. Fast strategies are tried whole beside it: a second or two at 10,000 ops, up to ten at
        50,000.
    gap : float
        A plan is good enough if (makespan - lower bound) / makespan is no more. Where replicas are
        considered, the bound is that of plans with replicas.
    chains : int
        Independent chains of moves, which learn from each other; each takes the effort.
    threads : int, optional
        How many of them run at a time, and how many seeds are refined at a time; as many as there
        are cores if absent. Changes no result.
    split : "auto" (default) or "none"
        Whether replicas and shards are considered. Replicas never are where the graph does not say
        that its batch has several samples, nor shards where it does not say what its ops were
        called with. "none": every op runs whole, on one device.
    time_limit : float, optional
        Seconds on the clock; a stage under way is finished first. Absent: no limit.
    warm_start : Assignment, optional
        What to begin with, besides the seeds; see :func:`.warm.as_candidates`.
    progress : callable, optional
        Called with the stage and the best makespan whenever there is a better one.

    Raises
    ------
    InfeasibleError
        No strategy tried fits.
    """
    checks.one_of("split", split, get_args(Split))
    is_stream = problem.objective.goal == "throughput" and not problem.waits_for_updates
    # Steps that wait for each other's updates hardly overlap: what counts is how long one takes.
    placed = problem if is_stream else replace(problem, objective=STEP)
    may_split = split != "none" and (
        is_stream or can_be_replicated(problem) or can_be_sharded(problem)
    )
    run = Run(
        placed,
        Budget.make(effort, time_limit),
        checks.number("gap", gap, "a number from 0 to 1, 1 excluded", lambda v: 0 <= v < 1),
        checks.integer("chains", chains),
        checks.integer("threads", os.cpu_count() or 1 if threads is None else threads),
        asked=problem.objective,
        may_split=may_split,
    )
    if progress is not None:
        run.progress = progress
    if is_stream:
        return throughput.place(run, warm_start=warm_start)
    if may_split:
        candidate = _of_all_spaces(run, warm_start)
    else:
        candidate, _ = _beside_one_device(placed, _of_whole_ops(run, warm_start), [])
        candidate = replace(candidate, left_out=where_whole(placed, split))
    if run.ended:
        candidate = candidate.interrupted() if run.is_interrupted else candidate.noted(run.ended)
    if problem.objective == STEP:
        return candidate
    return throughput.of_step(problem, candidate, run)


def _of_all_spaces(run: Run, warm_start: Assignment | None) -> Candidate:
    """The best of replicas and of whole ops, with what each space had to offer."""
    objective = run.problem.objective
    best: Candidate | None = None
    offers: list[Best] = []
    try:
        for candidate, offer in _of_split_ops(run):
            is_best = best is None or objective.better(best, candidate) is candidate
            # Of plans of one kind and name the best counts. That of a space comes first.
            same = [one for one in offers if (one.kind, one.what) == (offer.kind, offer.what)]
            if is_best or not same or offer.seconds < same[0].seconds:
                offers = [one for one in offers if one not in same]
                offers.insert(0 if is_best else len(offers), offer)
            if candidate.fits:
                run.fitting.append(candidate)
            if is_best:
                run.progress(offer.what, Incumbent(offer.seconds, run.least))
                best = candidate
        if best is not None and best.fits and objective.reaches(best.verdict, run.bound):
            run.ended = _cut(run.budget)
        else:
            to_beat = math.inf
            if best is not None:
                run.progress = _telling_of_better(objective, best.verdict, run.progress)
                to_beat = objective.limit(best.verdict)
            whole = _of_whole_ops(run, warm_start, to_beat)
            best = whole if best is None else objective.better(whole, best)
            offers.append(whole_offer(whole))
    except InfeasibleError as error:
        if best is None:
            if not run.lacking:
                raise
            words, lacking = min(run.lacking.values(), key=lambda one: one[1])
            size = f"{format_bytes(lacking)} ({lacking} bytes)"
            also = (
                f"Replicas and shards do not fit either: {words}, lack {size} on the fullest "
                "device."
            )
            raise InfeasibleError(f"{error} {also}", error.shortfall) from error
    except KeyboardInterrupt:
        if best is None:
            raise
        run.interrupt()
    assert best is not None
    best, offers = _beside_one_device(run.problem, best, offers)
    best = run.writes(best)
    if best.problem.program.recipe is None and can_be_sharded(run.problem):
        best = best.noted(*without_rule(run.problem))
    return replace(
        best,
        bound=run.split_bound,
        space=SPLIT_OPS,
        offers=tuple(offers),
        left_out=left_out(run, offers),
    )


def _beside_one_device(
    problem: Problem, best: Candidate, offers: list[Best]
) -> tuple[Candidate, list[Best]]:
    """The best plan, and what is offered, that of one device among it. A plan of several devices
    that gains next to nothing over one gives way to it, and is offered no longer.
    """
    try:
        alone = best if best.kind is Kind.ONE_DEVICE else single.place(problem)
    except InfeasibleError:
        return best, offers
    own, others = whole_offer(alone), [one for one in offers if one.kind is not Kind.ONE_DEVICE]
    if problem.objective.plainer(alone, best) is not alone:
        return best, [*others, own]
    return alone, [own, *(one for one in others if one.seconds >= own.seconds)]


def _of_split_ops(run: Run) -> Iterator[tuple[Candidate, Best]]:
    """Plans with replicas and shards, and pipelines where these could be shorter, each with what it
    offers.
    """
    known: list[Candidate] = []
    for offer in _of_replicas_and_shards(run):
        known.append(offer[0])
        yield offer
    if not (known and run.budget.lacks(0.0)):
        for kind, plans in (
            (Kind.SHARDS, sharded_by_units),
            (Kind.PIPELINES, pipelines),
            (Kind.PIPELINES, grids),
        ):
            for offer in run.refusals[kind].each(kind, plans(run, known)):
                known.append(offer[0])
                yield offer


def _of_replicas_and_shards(run: Run) -> Iterator[tuple[Candidate, Best]]:
    """Plans with replicas and shards, each with what it offers. The search goes on from the best of
    either that is near the best of all.
    """
    may_replicate = can_be_replicated(run.problem)
    objective, tuning = run.problem.objective, run.tuning
    of_space: dict[Kind, tuple[Candidate, Best]] = {}
    spaces: list[tuple[Kind, Callable[[Candidate | None], Iterator[tuple[Candidate, Best]]]]] = [
        (Kind.SHARDS, lambda _: shards(run)),
        (Kind.REPLICAS, lambda best: replicas(run, best)),
        (Kind.REPLICAS, lambda best: other_replicas(run, best)),
    ]
    for space, plans in spaces if may_replicate else spaces[:1]:
        best = objective.best(one for one, _ in of_space.values()) if of_space else None
        if best is not None and run.budget.lacks(0.0):
            break
        for pair in run.refusals[space].each(space, plans(best)):
            before = of_space.setdefault(space, pair)
            of_space[space] = min(before, pair, key=lambda one: objective.rank(one[0].verdict))
            yield pair
    if not of_space:
        return
    bests = [*of_space.values()]
    searched = objective.best(candidate for candidate, _ in bests)
    least, reach = searched.verdict, 1 + tuning.inside_near
    near = [one for one in bests if not objective.reaches(least, one[0].verdict.step_time / reach)]
    parts = [run.budget.part(tuning.inside_share / len(near)) for _ in near]
    for (candidate, offer), part in zip(near, parts, strict=True):
        found_inside = searched_inside(run, candidate, part)
        if found_inside is not candidate:
            yield found_inside, Best.of(found_inside.kind, offer.what, found_inside, offer.request)
            searched = objective.better(searched, found_inside)
    parts.append(run.budget.part(tuning.loose_share))
    if may_replicate and (loose := loose_replicas(run, searched, parts[-1])):
        yield loose
    if any(part.is_cut for part in parts):
        run.budget.cut()


def _telling_of_better(objective: Objective, known: Verdict, tell: Progress) -> Progress:
    """Tells of no plan that takes as long as one that is there already."""

    def told(stage: str, best: Incumbent | None) -> None:
        if best is None or not objective.reaches(known, best):
            tell(stage, best)

    return told


def _of_whole_ops(run: Run, warm_start: Assignment | None, to_beat: float = math.inf) -> Candidate:
    """The best placement of whole ops within the effort; the run notes how the search ended.

    Seeds that all take much longer than ``to_beat`` seconds end early: fewer are tried, and no
    search starts from them.
    """
    problem = run.problem
    is_searchable = problem.cluster.n_devices <= MOST_DEVICES
    try:
        seeds = Planting(run, to_beat).plant(warm_start)
        if is_searchable and not run.is_done and run.reaches(run.tuning.whole_hope * to_beat):
            search_from(run, seeds)
    except KeyboardInterrupt:
        if run.best is None:
            raise
        run.interrupt()
        return run.best
    assert run.best is not None
    if not (is_searchable or run.is_sole or run.is_good):
        n = problem.cluster.n_devices
        run.ended = f"not searched: {n} devices, at most {MOST_DEVICES} can be"
    elif not run.is_good:
        run.ended = _cut(run.budget)
    return run.best


def _cut(budget: Budget) -> str:
    """A note for the user, where the clock ended a search that the count would have allowed."""
    if not budget.is_cut:
        return ""
    return f"the time limit of {budget.seconds:g} s cut the search: more may be found"
