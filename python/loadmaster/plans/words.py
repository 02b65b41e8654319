"""Phrases that several descriptions of a plan have in common."""

from __future__ import annotations

from loadmaster.judge.bounds import WHOLE_OPS
from loadmaster.plans.plan import Plan


def title(plan: Plan) -> str:
    """``model on cluster``."""
    return f"{plan.graph.name or 'graph'} on {plan.cluster.name or 'cluster'}"


def no_placement(plan: Plan) -> str:
    """What the plan's bound speaks of, in the words "no placement of whole ops" or "no plan"."""
    if plan.space == WHOLE_OPS:
        return "no placement of whole ops"
    return "no plan, with ops whole, replicated or split,"
