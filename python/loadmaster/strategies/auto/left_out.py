"""Kinds of plans of which ``auto`` has none to show, each with why."""

from __future__ import annotations

from collections.abc import Iterable

from loadmaster.base.units import counted, format_bytes
from loadmaster.judge.problem import Problem
from loadmaster.strategies.auto.replicas import can_be_replicated
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.candidate import Best, Candidate
from loadmaster.strategies.kinds import REQUESTS, Kind
from loadmaster.strategies.pipelines.space import lacks
from loadmaster.strategies.sharding.space import can_be_sharded
from loadmaster.transforms.samples import joined_samples

#: Kinds that share ops out.
_SPLITTING = (Kind.REPLICAS, Kind.SHARDS, Kind.PIPELINES)


def left_out(run: Run, offers: Iterable[Best]) -> tuple[tuple[str, str], ...]:
    """Kinds of plans that no offer is of. What one device offers is the plan's own to say."""
    seen = {one.kind for one in offers}
    rest = [kind for kind in REQUESTS if kind not in seen and kind is not Kind.ONE_DEVICE]
    return tuple((kind, _why(run, kind)) for kind in rest)


def where_whole(problem: Problem, split: str) -> tuple[tuple[str, str], ...]:
    """The kinds that share ops out, where every op is whole: since the user asked for that, since
    none of them can be had, or since none is searched for.
    """
    if problem.cluster.n_devices == 1:
        return ()
    never = "" if problem.objective.goal == "step" else "not searched for throughput"
    why = "every op was to be whole" if split == "none" else never
    return tuple((kind, why or _cannot(problem, kind)) for kind in _SPLITTING)


def whole_offer(candidate: Candidate) -> Best:
    """The best placement of whole ops, as an offer."""
    used = len(set(candidate.assignment.devices.tolist()))
    kind = Kind.ONE_DEVICE if used == 1 else Kind.WHOLE_OPS
    return Best.of(kind, f"on {counted(used, 'device')}", candidate)


def _why(run: Run, kind: Kind) -> str:
    if cannot := _cannot(run.problem, kind):
        return cannot
    if kind in run.lacking:
        words, lacking = run.lacking[kind]
        return f"do not fit: {words}, by {format_bytes(lacking)}"
    if why := run.refusals[kind].in_words:
        return f"refused: {why}"
    if kind is Kind.WHOLE_OPS:
        return "none can be as fast" if run.best is None else "none found that is faster"
    if run.ended:
        return f"none found; {run.ended}"
    return "none found that is faster"


def _cannot(problem: Problem, kind: Kind) -> str:
    """Why no plan of a kind can be made; empty: it can."""
    if kind is Kind.REPLICAS and not can_be_replicated(problem):
        return joined_samples(problem.model) or "no batch to share out, as far as the graph says"
    if kind is Kind.SHARDS and not can_be_sharded(problem):
        return "the graph does not say what its ops were called with"
    return lacks(problem) if kind is Kind.PIPELINES else ""
