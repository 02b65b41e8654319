"""The names of policies. What each does is written in ``rust/core/src/simulate/ready.rs``."""

from __future__ import annotations

from typing import Literal, get_args

#: Policies by which a free device takes a ready op; see :func:`loadmaster.simulate`.
Policy = Literal["priority", "fifo", "random", "fixed"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

#: Those that a plan may ask of its devices: a runtime can follow them.
PlanPolicy = Literal["priority", "fixed"]
PLAN_POLICIES: tuple[PlanPolicy, ...] = get_args(PlanPolicy)

#: In which order a channel serves its queue.
LinkOrder = Literal["fifo", "priority"]
LINK_ORDERS: tuple[LinkOrder, ...] = get_args(LinkOrder)
