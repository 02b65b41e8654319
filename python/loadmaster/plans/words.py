"""Phrases that several descriptions of a plan have in common."""

from __future__ import annotations

from loadmaster.base.units import format_seconds
from loadmaster.judge.bounds import WHOLE_OPS, launches_in_words
from loadmaster.plans.plan import Plan


def title(plan: Plan) -> str:
    """``model on cluster``."""
    return f"{plan.graph.name or 'graph'} on {plan.cluster.name or 'cluster'}"


def parallelism_in_words(plan: Plan) -> str:
    """The line that names a plan's parallelism; empty where it has none, or one device.

    >>> import loadmaster as lm
    >>> plan = lm.place("example:lenet", "2xV100-NVLink", "data-parallel")
    >>> parallelism_in_words(plan)
    'DDP over 2'
    """
    if plan.parallelism is None or plan.parallelism.devices == 1:
        return ""
    return str(plan.parallelism)


def bound_in_words(plan: Plan) -> str:
    """The plan's lower bound: seconds, the argument behind it, and the launches that it counts.

    >>> import loadmaster as lm
    >>> bound_in_words(lm.place("example:lenet", "2xV100-NVLink", target="graph"))
    '974 us (critical path with forced transfers, no launches)'
    """
    counted = launches_in_words(plan.cluster)
    return f"{format_seconds(plan.lower_bound)} ({plan.bound_source}, {counted})"


def no_placement(plan: Plan) -> str:
    """The space of the plan's bound, in the words "no placement of whole ops" or "no plan"."""
    if plan.space == WHOLE_OPS:
        return "no placement of whole ops"
    return "no plan, with ops whole, replicated or split,"
