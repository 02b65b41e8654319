"""Plans of one graph by several methods."""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.plans.plan import Plan


@dataclass(frozen=True)
class Comparison:
    """What each method made of the same graph: ``plans`` by name, and why the others have none."""

    plans: dict[str, Plan]
    failures: dict[str, str]

    @property
    def best(self) -> Plan | None:
        """The fastest plan that fits."""
        fitting = [plan for plan in self.plans.values() if plan.fits]
        return min(fitting, key=lambda plan: plan.makespan, default=None)
