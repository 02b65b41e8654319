"""Plans side by side: those that cannot be told apart from the fastest, the simplest of them first.

Simple are, in this order: one device, replicas that keep all state (DDP), those that share it
(FSDP), whole ops on several devices, parts of ops (TP), pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from loadmaster.plans.as_run import rank
from loadmaster.plans.considered import kind_of
from loadmaster.plans.plan import Plan
from loadmaster.plans.ranges import errors_of, is_order_sure
from loadmaster.strategies.kinds import Kind

T = TypeVar("T")

#: Kinds of plans, the simplest first; replicas are the second, or with shared state the third.
_SIMPLEST = (Kind.ONE_DEVICE, Kind.REPLICAS, Kind.WHOLE_OPS, Kind.SHARDS, Kind.SPLIT_OPS)


def in_order(some: Sequence[T], plan_of: Callable[[T], Plan]) -> tuple[list[T], int]:
    """Plans of one graph, the best first, and how many of the first cannot be told apart.

    Those that fit and cannot be told apart from the fastest stand first, the simplest of them in
    front; the rest follows by time. Plans made for throughput are all told apart. O(n log n), and
    O(links) for each.

    >>> in_order([], lambda plan: plan)
    ([], 0)
    """
    ranked = sorted(some, key=lambda one: rank(plan_of(one)))
    if not ranked:
        return [], 0
    best = plan_of(ranked[0])
    if not best.fits or best.objective.goal != "step":
        return ranked, 1
    errors = errors_of(best)
    unsure, others = [ranked[0]], ranked[:0]
    for one in ranked[1:]:
        plan = plan_of(one)
        is_unsure = plan.fits and not is_order_sure(errors, errors_of(plan))
        (unsure if is_unsure else others).append(one)
    unsure.sort(key=lambda one: _complexity(plan_of(one)))
    return [*unsure, *others], len(unsure)


def _complexity(plan: Plan) -> tuple[int, bool]:
    kind = kind_of(plan)
    place = _SIMPLEST.index(kind) if kind in _SIMPLEST else len(_SIMPLEST)
    degrees = plan.parallelism
    return place, degrees is not None and degrees.shard > 1


def in_words(names: Sequence[str]) -> list[str]:
    """A line on plans that cannot be told apart; none where there is only one.

    >>> in_words(["ddp", "auto"])
    ['ddp, auto cannot be told apart: what is not known of their times is more than the difference']
    """
    if len(names) < 2:
        return []
    difference = "what is not known of their times is more than the difference"
    return [f"{', '.join(names)} cannot be told apart: {difference}"]
