"""``auto`` where the objective is throughput: for training, plans for the step; for inference:

1. Contiguous stages of several orders, those of the max-load problem where devices are equal, and
   one device are starts. The best few of them are improved by moves of single ops
   (:mod:`loadmaster.strategies.pipelines.throughput`).
2. Whole models take batches in turn, where the method may split.
3. The best of each are confirmed: a stream is simulated, with as many batches under way as it
   takes and memory allows (:mod:`loadmaster.judge.streaming`).

The best has the shortest period. Of periods that are as good as equal it has the least latency.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from loadmaster.base.errors import InfeasibleError
from loadmaster.base.progress import Incumbent, Progress
from loadmaster.base.units import counted, format_seconds
from loadmaster.costs.roofline import PROVENANCES
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.bounds import SPLIT_OPS, bound, split_bound
from loadmaster.judge.problem import Problem
from loadmaster.judge.streaming import streamed
from loadmaster.judge.verdict import Resource
from loadmaster.strategies import least_overflow
from loadmaster.strategies.attempts import SHARES
from loadmaster.strategies.auto.left_out import whole_offer
from loadmaster.strategies.candidate import Best, Candidate
from loadmaster.strategies.kinds import Kind
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
_EQUAL = 0.005


def place(
    problem: Problem,
    *,
    may_split: bool,
    warm_start: Assignment | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The placement with the shortest period that was found.

    Raises
    ------
    InfeasibleError
        Nothing that was tried fits.
    """
    tell = progress or (lambda stage, best: None)
    best = _best(problem, _confirmed_in_turn(problem, _whole_ops(problem, warm_start)))
    if not best.fits or _is_short(best):
        best = _best(problem, [best, *_with_room(problem)])
    tell("stages", Incumbent(best.verdict.period, bound(problem).seconds))
    if not may_split:
        return replace(best, bound=bound(problem))
    dealt = _dealt(problem, best)
    candidate = _best(problem, [best, *dealt])
    tell("whole models in turn", Incumbent(candidate.verdict.period, split_bound(problem).seconds))
    offers = [_offer(one) for one in (candidate, best, *dealt)]
    return replace(
        candidate.noted(*_beside(best, dealt), *_larger(problem, best)),
        bound=split_bound(problem),
        space=SPLIT_OPS,
        offers=tuple(dict.fromkeys(offers)),
    )


def of_step(problem: Problem, candidate: Candidate) -> Candidate:
    """A plan that was made for the time of a step, judged by the objective of a problem. What
    other kinds offer are seconds of a step too, not of a period.
    """
    placed = replace(candidate.problem, objective=problem.objective)
    best = min(candidate.offers, key=lambda one: one.seconds, default=None)
    own = {Kind.ONE_DEVICE, None if best is None else best.kind}
    others = dict.fromkeys(one.kind for one in candidate.offers if one.kind not in own)
    seen = [(str(kind), "judged") for kind in others]
    return replace(
        candidate,
        problem=placed,
        verdict=placed.verdict(candidate.assignment),
        bound=(split_bound if candidate.space == SPLIT_OPS else bound)(problem),
        offers=(),
        left_out=tuple(
            (kind, f"{why}, by one step's time") for kind, why in seen + list(candidate.left_out)
        ),
    )


def _whole_ops(problem: Problem, warm_start: Assignment | None) -> list[Candidate]:
    """The best starts, and what moves of single ops make of them; of all something that fits."""
    starts = staged(problem)[:_STARTS]
    if len(set(problem.cluster.device_types)) == 1 and (one := of_downsets(problem)):
        starts.insert(0, one)
    with suppress(InfeasibleError):
        starts.append(single.place(problem))
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


def _confirmed_in_turn(problem: Problem, some: list[Candidate]) -> list[Candidate]:
    """Those that may be the best, confirmed: a stream's period is no shorter than its load."""
    candidates: list[Candidate] = []
    for one in sorted(some, key=lambda one: problem.objective.rank(one.verdict)):
        known = [c.verdict.period for c in candidates if c.fits]
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
    known = problem.costs.provenance == PROVENANCES.index("roofline")
    is_told = bool(problem.costs.time[~known].any())
    return [
        f"{n} whole models with batches {larger.times} times as large finish one of today's every "
        f"{format_seconds(larger.period)}, each in {format_seconds(larger.latency)}"
        + ", if measured times grow with the batch"
        * is_told
    ]
