"""``auto`` where the objective is throughput: for training, plans for the step; for inference:

1. Contiguous stages of several orders, those of the max-load problem where devices are equal, and
   one device are starts. The best few of them are improved by moves of single ops
   (:mod:`loadmaster.strategies.pipelines.throughput`).
2. Whole models take batches in turn, where the method may split.
3. Replicas, shards and pipelines are tried where no device holds a whole model: they hold less of
   it, and stages alone are seldom of equal work within the memory.
4. The best of each are confirmed: a stream is simulated, with as many batches under way as it
   takes and memory allows (:mod:`loadmaster.judge.streaming`).

The best has the shortest period. Of periods that are as good as equal it has the least latency.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import chain

from loadmaster.base.errors import InfeasibleError
from loadmaster.base.progress import Incumbent
from loadmaster.base.units import counted, format_seconds
from loadmaster.costs.roofline import is_estimated
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.bounds import SPLIT_OPS, bound, split_bound
from loadmaster.judge.loads import Loads
from loadmaster.judge.problem import Problem
from loadmaster.judge.streaming import streamed
from loadmaster.judge.verdict import Resource
from loadmaster.strategies import least_overflow
from loadmaster.strategies.attempts import SHARES
from loadmaster.strategies.auto.left_out import left_out, where_whole, whole_offer
from loadmaster.strategies.auto.pipelines import pipelines
from loadmaster.strategies.auto.replicas import can_be_replicated, replicas
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.auto.seeds import SEEDS
from loadmaster.strategies.auto.shards import shards, tensor_parallel
from loadmaster.strategies.candidate import Best, Candidate
from loadmaster.strategies.dropped import Refusals
from loadmaster.strategies.kinds import Kind, kind_of
from loadmaster.strategies.pipelines.larger_batches import larger_batch
from loadmaster.strategies.pipelines.throughput import (
    balanced,
    dealt_out,
    of_downsets,
    staged,
    turns_in_words,
)
from loadmaster.strategies.simple import single
from loadmaster.strategies.warm import as_candidates
from loadmaster.transforms.shares import batch_size

#: Stages that are improved and confirmed.
_STARTS = 3

#: Periods that differ by less than this share are as good as equal.
_EQUAL = 0.001


def place(run: Run, *, warm_start: Assignment | None = None) -> Candidate:
    """The placement with the shortest period found; of whole ops, unless the run may split.

    Raises
    ------
    InfeasibleError
        Nothing that was tried fits.
    """
    problem = run.problem
    if not run.may_split:
        stages = _stages(run, warm_start)
        return replace(stages, bound=bound(problem), left_out=where_whole(problem, "none"))
    best = run.tried(Kind.WHOLE_OPS, "stages", partial(_stages, run, warm_start))
    dealt, known = [], [] if best is None else [best]
    if best is not None:
        dealt = _dealt(problem, best)
        known += dealt
        if dealt:
            period = _best(problem, known).verdict.period
            run.progress("whole models in turn", Incumbent(period, run.least))
    parts = []
    if not any(_is_whole(one) for one in dealt):
        parts = _in_parts(run, known)
        known = [_beside_seeds(problem, one) for one in known[:1]] + known[1:]
    if not (known or parts):
        raise run.refusals[Kind.WHOLE_OPS].last or InfeasibleError("nothing was found that fits")
    candidate = _best(problem, [*known, *(one for one, _ in parts)])
    offers = [_offer(one) for one in known] + [offer for _, offer in parts]
    offers.sort(key=lambda offer: offer.seconds != candidate.verdict.period)
    notes = [] if best is None else [*_beside(best, dealt), *_larger(problem, best)]
    return replace(
        run.writes(candidate).noted(*notes),
        bound=run.split_bound,
        space=SPLIT_OPS,
        offers=tuple(dict.fromkeys(offers)),
        left_out=left_out(run, offers) if parts else where_whole(problem, "auto"),
    )


def _stages(run: Run, warm_start: Assignment | None) -> Candidate:
    """The best of whole ops, confirmed."""
    problem = run.problem
    best = _best(problem, _confirmed_in_turn(problem, _whole_ops(problem, warm_start)))
    if not best.fits or _is_short(best):
        best = _best(problem, [best, *_with_room(problem)])
    if not best.fits or _is_short(best):
        best = _beside_seeds(problem, best)
    run.progress("stages", Incumbent(best.verdict.period, run.bound))
    return best


def _in_parts(run: Run, known: list[Candidate]) -> list[tuple[Candidate, Best]]:
    """Replicas, shards and pipelines whose streams fit, each with what it offers."""
    problem = run.problem
    kinds = {
        Kind.SHARDS: chain(shards(run), tensor_parallel(run)),
        Kind.REPLICAS: replicas(run, None) if can_be_replicated(problem) else iter(()),
        Kind.PIPELINES: pipelines(run, known),
    }
    rows = []
    for kind, candidates in kinds.items():
        for candidate, offer in run.refusals[kind].each(kind, candidates):
            confirmed = _confirmed(candidate)
            if confirmed.fits:
                period = confirmed.verdict.period
                run.progress(offer.what, Incumbent(period, run.least))
                rows.append((confirmed, replace(offer, seconds=period)))
    return rows


def of_step(problem: Problem, candidate: Candidate, run: Run) -> Candidate:
    """The best by the objective of a problem of the plans that a run made for the time of a step:
    parts of the next step may begin before one has ended. What kinds offer are seconds of a step,
    not of a period.
    """
    chosen = _of_stream(problem, [candidate, *run.fitting]) if candidate.fits else candidate
    used = len(set(chosen.assignment.devices.tolist()))
    own = {Kind.ONE_DEVICE, kind_of(chosen.problem.program, used)}
    seen = [(str(kind), "judged") for kind in dict.fromkeys(one.kind for one in candidate.offers)]
    return replace(
        run.writes(chosen),
        space=candidate.space,
        bound=(split_bound if candidate.space == SPLIT_OPS else bound)(problem),
        offers=(),
        left_out=tuple(
            (kind, f"{why}, by one step's time")
            for kind, why in [*seen, *candidate.left_out]
            if kind not in own
        ),
    )


def _of_stream(problem: Problem, some: list[Candidate]) -> Candidate:
    """The one with the shortest period, confirmed, of those that may have it: no period is shorter
    than the busiest device or channel works for a step.
    """
    best: Candidate | None = None
    for one in sorted(some, key=lambda one: one.verdict.step_time):
        placed = replace(one.problem, objective=problem.objective)
        least = Loads.of(placed, one.assignment.devices, one.schedule).busiest
        if best is None or least < best.verdict.period * (1 - _EQUAL):
            confirmed = _confirmed(replace(one, problem=placed))
            best = confirmed if best is None else _best(problem, [best, confirmed])
    assert best is not None, "there is one at least"
    return best


def _whole_ops(problem: Problem, warm_start: Assignment | None) -> list[Candidate]:
    """The best starts, and what moves of single ops make of them; of all something that fits."""
    starts = staged(problem)[:_STARTS]
    if len(set(problem.cluster.device_types)) == 1 and (one := of_downsets(problem)):
        starts.insert(0, one)
    alone = Refusals().tried("one device", lambda: single.place(problem))
    starts += [alone] if alone is not None else []
    starts += as_candidates(problem, warm_start)
    # Moves of single ops may send batches to and fro, from which a stream suffers.
    candidates = starts + [balanced(one) for one in starts[:_STARTS]]
    if any(one.fits for one in candidates):
        return [one for one in candidates if one.fits]
    if candidates and problem.best_effort:
        return candidates
    return [
        least_overflow.place(problem, problem.objective.best(candidates) if candidates else None)
    ]


def _beside_seeds(problem: Problem, best: Candidate) -> Candidate:
    """The better of a candidate and the plans of fast strategies for a step, which leave room on
    other devices than stages do.
    """
    refusals = Refusals()
    tried = (refusals.tried(name, partial(seed.place, problem)) for name, seed in SEEDS.items())
    seeds = [one for one in tried if one is not None]
    return _best(problem, [best, *_confirmed_in_turn(problem, seeds, best)])


def _is_short(one: Candidate) -> bool:
    """True if memory keeps a confirmed candidate's period from being shorter."""
    assert one.verdict.steady is not None, "it is confirmed"
    return one.verdict.steady.limit.resource is Resource.MEMORY


def _with_room(problem: Problem) -> list[Candidate]:
    """Stages that leave more and more of the memory to batches under way, until none are short."""
    candidates: list[Candidate] = []
    for share in SHARES[1:]:
        stages = staged(problem, share=share)
        if not stages:
            break
        candidates.append(_confirmed(stages[0]))
        if not _is_short(candidates[-1]):
            break
    return candidates


def _dealt(problem: Problem, best: Candidate) -> list[Candidate]:
    """Whole models that take batches in turn, down to as few as are needed to come near."""
    candidates: list[Candidate] = []
    for one in dealt_out(problem):
        if not one.fits:
            continue
        candidates.append(_confirmed(one))
        if candidates[-1].fits and candidates[-1].verdict.period <= best.verdict.period * (
            1 + _EQUAL
        ):
            break
    return [one for one in candidates if one.fits]


def _confirmed_in_turn(
    problem: Problem, some: list[Candidate], *others: Candidate
) -> list[Candidate]:
    """Those that may be the best, beside others too, confirmed: a stream's period is no shorter
    than its load.
    """
    candidates: list[Candidate] = []
    for one in sorted(some, key=lambda one: problem.objective.rank(one.verdict)):
        known = [c.verdict.period for c in (*others, *candidates) if c.fits]
        if not known or one.verdict.period < min(known) * (1 - 1e-6):
            candidates.append(_confirmed(one))
    return candidates


def _confirmed(one: Candidate) -> Candidate:
    return replace(one, verdict=streamed(one.problem, one.assignment))


def _best(problem: Problem, some: Iterable[Candidate]) -> Candidate:
    """The shortest period; of those as good as equal the least latency."""
    ranked = sorted(some, key=lambda one: problem.objective.rank(one.verdict))
    first = ranked[0].verdict
    equal = [
        one
        for one in ranked
        if one.verdict.excess == first.excess and one.verdict.period <= first.period * (1 + _EQUAL)
    ]
    return min(equal, key=_latency)


def _latency(one: Candidate) -> float:
    assert one.verdict.steady is not None, "it is confirmed"
    return one.verdict.steady.latency


def _is_whole(one: Candidate) -> bool:
    """True if every device has a whole model: no more can be had of them."""
    return one.problem.program.batches >= one.problem.cluster.n_devices


def _offer(one: Candidate) -> Best:
    if not one.problem.program.is_plain:
        return Best.of(Kind.IN_TURN, _words(one), one)
    return whole_offer(one)


def _words(one: Candidate) -> str:
    if one.problem.program.is_plain:
        return f"on {counted(len(set(one.assignment.devices.tolist())), 'device')}"
    return turns_in_words(one)


def _beside(stages: Candidate, dealt: list[Candidate]) -> list[str]:
    """Stages beside whole models: period and latency of each."""
    if not dealt:
        return ["whole models that take batches in turn do not fit, or are for one device alone"]
    rival = min(dealt, key=lambda one: one.verdict.period)
    return [
        f"{_words(stages)}: a batch every {format_seconds(stages.verdict.period)}, each in "
        f"{format_seconds(_latency(stages))}; {_words(rival)}: every "
        f"{format_seconds(rival.verdict.period)}, each in {format_seconds(_latency(rival))}"
    ]


def _larger(problem: Problem, stages: Candidate) -> list[str]:
    """Larger batches beside stages, at the latency of these: on one whole model per device."""
    one_type = len(set(problem.cluster.device_types)) == 1
    if not problem.program.is_plain or not one_type or batch_size(problem.model) is None:
        return []
    larger = larger_batch(problem, _latency(stages))
    if larger is None:
        return ["no larger batch is done on one device in the time that one takes in stages"]
    n = problem.cluster.n_devices
    known = is_estimated(problem.costs.provenance)
    is_told = bool(problem.costs.time[~known].any())
    return [
        f"{n} whole models with batches {larger.times} times as large finish one of today's every "
        f"{format_seconds(larger.period)}, each in {format_seconds(larger.latency)}"
        + ", if measured times grow with the batch"
        * is_told
    ]
