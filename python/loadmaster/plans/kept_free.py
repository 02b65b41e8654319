"""Memory that a plan keeps free by default, and the constraints that a user gave, in words."""

from __future__ import annotations

from dataclasses import replace

from loadmaster.plans.plan import Plan
from loadmaster.rules.constraints import Constraints
from loadmaster.rules.reserves import Reserve, default_reserve


def kept_free(plan: Plan) -> dict[str, Reserve]:
    """The default reserves that a plan keeps free, by the name of the device type."""
    reserves = default_reserve(plan.cluster, plan.runtime)
    kept = plan.constraints.reserve
    return {name: one for name, one in reserves.items() if kept.get(name) == one.bytes}


def kept_in_words(plan: Plan) -> str:
    """The default reserves in words; empty: there are none."""
    kept = kept_free(plan)
    of = {name: f" of each {name}" if len(kept) > 1 else "" for name in kept}
    return "; ".join(
        str(one).replace(":", f"{of[name]}, --reserve 0 for none:", 1) for name, one in kept.items()
    )


def asked(plan: Plan) -> Constraints:
    """The constraints that a user gave: a plan's own, less the default reserves."""
    kept = kept_free(plan)
    if not kept:
        return plan.constraints
    own = {name: size for name, size in plan.constraints.reserve.items() if name not in kept}
    return replace(plan.constraints, reserve=own)
