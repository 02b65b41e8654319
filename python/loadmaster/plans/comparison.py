"""Plans of one graph by several methods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from loadmaster.base.text import Printed, aligned, in_lines
from loadmaster.base.units import format_bytes, format_ratio, format_seconds
from loadmaster.plans.apart import in_order, in_words
from loadmaster.plans.plan import Plan
from loadmaster.plans.streams import stream_cells


@dataclass(frozen=True)
class Comparison(Printed):
    """Plans of one graph: ``plans`` by method, and why the other methods have none."""

    plans: dict[str, Plan]
    failures: dict[str, str]

    def __str__(self) -> str:
        return comparison_table(self)

    def __repr__(self) -> str:
        return f"Comparison({', '.join([*self.plans, *self.failures])})"

    @property
    def best(self) -> Plan | None:
        """The fastest plan that fits."""
        plans = self.best_first
        return plans[0][1] if plans and plans[0][1].fits else None

    @property
    def best_first(self) -> list[tuple[str, Plan]]:
        """Methods and their plans, the best first by what they were made for; the simplest of those
        that cannot be told apart stand first.
        """
        return self._in_order[0]

    @property
    def not_told_apart(self) -> list[str]:
        """Methods of the first plans, whose times do not tell them apart; one, if they do."""
        rows, unsure = self._in_order
        return [method for method, _ in rows[:unsure]]

    @cached_property
    def _in_order(self) -> tuple[list[tuple[str, Plan]], int]:
        return in_order(list(self.plans.items()), lambda row: row[1])


def one_device(plans: Iterable[Plan]) -> float | None:
    """Seconds of the graph on one device, which plans side by side are held against.

    None: no device holds it. Targets have prices of their own: a plan of a method says it, if there
    is one.
    """
    first = min(plans, key=lambda plan: plan.target is not None, default=None)
    return None if first is None else first.single


def _step_cells(plan: Plan, single: float | None) -> tuple[str, str]:
    """The step time, and how many times as fast that is as the graph on one device."""
    ratio = f"{format_ratio(single / plan.as_run)} x" if single and plan.as_run else "none fits"
    return format_seconds(plan.as_run), ratio


def comparison_table(comparison: Comparison) -> str:
    """Methods side by side, fastest first, then those that found nothing.

    "moved" is what transfers and collectives send between devices: an all-reduce of n bytes on k
    devices sends 2 (k - 1) n in all.
    """
    is_stream = any(plan.verdict.steady is not None for plan in comparison.plans.values())
    seen = ("period", "latency", "in flight") if is_stream else ("step time", "over one device")
    single = None if is_stream else one_device(comparison.plans.values())
    rows = [("method", *seen, "gap", "to", "moved", "largest peak", "planned in")]
    for method, plan in comparison.best_first:
        fullest = max(
            zip(plan.memory.peak.tolist(), plan.cluster.memory, strict=True),
            key=lambda pair: pair[0] / max(pair[1], 1),
        )
        rows.append(
            (
                method,
                *(stream_cells(plan) if is_stream else _step_cells(plan, single)),
                f"{plan.gap:.1%}",
                f"bound of {plan.space}",
                format_bytes(plan.schedule.bytes_moved),
                f"{fullest[0] / max(fullest[1], 1):.0%}{'' if plan.fits else ' OVER'}",
                format_seconds(plan.planning_seconds),
            )
        )
    lines = [*aligned(rows), *in_words(comparison.not_told_apart)]
    lines += [f"{method}: {why}" for method, why in comparison.failures.items()]
    return in_lines(lines)
