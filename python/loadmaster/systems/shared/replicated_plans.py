"""Plans of equal replicas, and limits of DistributedDataParallel on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.text import shown
from loadmaster.plans.plan import Plan
from loadmaster.systems.shared.processes import (
    no_replicas,
)
from loadmaster.systems.shared.refusal import Reason
from loadmaster.systems.shared.replicated import SAID, USUAL, Optimizer

#: The batch norms of all processes together.
SYNCHRONISED = "synchronised"


def settings_of(plan: Plan) -> Mapping[str, Any]:
    """The plan's buckets, optimizer and batch norms.

    Raises
    ------
    InputError
        The file that the plan is from says others than there are.
    """
    usual = {"bucket_cap_mb": USUAL, "optimizer": "replicated", "batch_norm": "local"}
    if any(label.startswith("all_reduce/statistics") for label in plan.program.graph.collectives):
        usual["batch_norm"] = SYNCHRONISED
    if not is_for_ddp(plan):
        return usual
    settings = plan.program.graph.meta[SAID]
    where = f"meta.{SAID} of graph {plan.graph.name!r}"
    if not isinstance(settings, Mapping) or set(settings) != set(usual):
        raise InputError(f"{where} is {shown(settings)}: wants {', '.join(usual)}")
    checks.positive(f"{where}: bucket_cap_mb", settings["bucket_cap_mb"])
    checks.one_of(f"{where}: optimizer", settings["optimizer"], get_args(Optimizer))
    checks.one_of(f"{where}: batch_norm", settings["batch_norm"], ("local", SYNCHRONISED))
    return settings


def is_for_ddp(plan: Plan) -> bool:
    """True if the plan was made for a system that has DistributedDataParallel, and says how."""
    return plan.target is not None and SAID in plan.program.graph.meta


def in_the_way(plan: Plan) -> Iterator[Reason]:
    """Everything that DistributedDataParallel cannot do of the plan."""
    yield from no_replicas(plan)
    if plan.program.is_plain or plan.recipe is not None:
        return
    kinds = {label.partition("/")[0] for label in plan.program.graph.collectives if label}
    if "reduce_scatter" in kinds:
        yield "gradients are scattered to a sharded optimizer"
    if not kinds and plan.graph.updates.any():
        yield "gradients are summed by parameter servers"
