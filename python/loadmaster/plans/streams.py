"""Figures of plans that were made for throughput: lines for a person, data for JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.units import counted, format_bytes, format_ratio, format_seconds
from loadmaster.judge.bounds import WHOLE_OPS
from loadmaster.judge.loads import Loads
from loadmaster.plans.considered import head
from loadmaster.plans.kept_free import asked
from loadmaster.plans.plan import Plan
from loadmaster.plans.words import bound_in_words, parallelism_in_words, title
from loadmaster.transforms.shares import batch_size

#: Devices that have a line of their own, at most.
_DEVICE_LINES = 4


def rate_in_words(plan: Plan) -> str:
    """Samples per second, or batches where it is not known how many samples one has."""
    unit = "samples" if batch_size(plan.graph) else "batches"
    return f"{plan.rate:.3g} {unit}/s" if plan.rate < 1000 else f"{plan.rate:,.0f} {unit}/s"


def busy_shares(plan: Plan) -> NDArray[np.float64]:
    """Share of the time that each device is busy, in a stream if the plan was made for one."""
    schedule = plan.verdict.schedule
    if plan.verdict.steady is None or schedule is None or not plan.period:
        return plan.schedule.utilisation
    loads = Loads.of(plan.problem, plan.assignment.devices, schedule)
    return np.minimum(loads.device / (plan.period * plan.program.batches), 1.0)


def stream_facts(plan: Plan) -> list[tuple[str, str]]:
    """Period, latency, batches in flight and what limits the period, as names and values."""
    against = ""
    if plan.single and plan.period:
        against = (
            f", {format_ratio(plan.single / plan.period)} x as often as one device finishes one"
        )
    return [
        ("period", f"a batch every {format_seconds(plan.period)}: {rate_in_words(plan)}{against}"),
        ("latency", f"{format_seconds(plan.latency)} from a batch's first op to its last"),
        ("in flight", f"{counted(plan.in_flight, 'batch', 'batches')} at a time"),
        ("limited by", str(plan.limit)),
    ]


def shortest(plan: Plan) -> str:
    """The plan's bound, in words."""
    under = "" if asked(plan).is_empty else " under the constraints"
    which = WHOLE_OPS if plan.space == WHOLE_OPS else "whole, replicated or split ops"
    return f"no plan of {which}{under} has a period that is more than {plan.gap:.1%} shorter"


def stream_lines(plan: Plan) -> list[str]:
    """The summary of a plan made for throughput, without its notes."""
    (_, period), _, _, (_, limit) = stream_facts(plan)
    return [
        f"{title(plan)} by {plan.made_by}: {period}, planned in "
        f"{format_seconds(plan.planning_seconds)}",
        *head(plan),
        *([f"parallelism  {words}"] if (words := parallelism_in_words(plan)) else []),
        f"in flight    {counted(plan.in_flight, 'batch', 'batches')}, each "
        f"{format_seconds(plan.latency)} from its first op to its last; limited by {limit}",
        f"lower bound  {bound_in_words(plan)}: {shortest(plan)}",
        *_device_lines(plan),
        *_short(plan),
    ]


def _device_lines(plan: Plan) -> list[str]:
    cells = [
        f"{d.name} busy {busy:.0%}, peak {format_bytes(int(peak))} of {format_bytes(d.memory)}"
        for d, busy, peak in zip(
            plan.cluster.devices, busy_shares(plan).tolist(), plan.verdict.peak, strict=True
        )
    ]
    per_line = -(-len(cells) // _DEVICE_LINES)
    rows = [" | ".join(cells[i : i + per_line]) for i in range(0, len(cells), per_line)]
    return [f"  {row}" for row in rows]


def _short(plan: Plan) -> list[str]:
    short = plan.cluster.shortfall(plan.verdict.peak)
    if not short:
        return []
    devices = ", ".join(f"{device} by {format_bytes(size)}" for device, size in short.items())
    return [f"DOES NOT FIT: memory is exceeded on {devices}"]


def stream_document(plan: Plan) -> dict[str, Any]:
    """The same as plain data: seconds, bytes, shares.

    The period of a plan for a step is that of its busiest device or channel.
    """
    figures: dict[str, Any] = {"objective": plan.objective.goal, "period": plan.period}
    if plan.verdict.steady is None:
        return figures
    return figures | {
        "latency": plan.latency,
        "in_flight": plan.in_flight,
        "limit": plan.limit,
        "rate": plan.rate,
        "rate_of": "samples" if batch_size(plan.graph) else "batches",
        "stream_peak_bytes": plan.verdict.peak.tolist(),
        "stream_busy": busy_shares(plan).tolist(),
    }


def stream_cells(plan: Plan) -> tuple[str, str, str]:
    """Period, latency and batches in flight, for a table."""
    return format_seconds(plan.period), format_seconds(plan.latency), str(plan.in_flight)
