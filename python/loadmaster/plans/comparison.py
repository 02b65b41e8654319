"""Plans of one graph by several methods."""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.base.text import Printed
from loadmaster.plans.plan import Plan


@dataclass(frozen=True)
class Comparison(Printed):
    """What each method made of the same graph: ``plans`` by name, and why the others have none."""

    plans: dict[str, Plan]
    failures: dict[str, str]

    def __str__(self) -> str:
        from loadmaster.plans.summary import comparison_table

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
        """Methods and their plans, the best first by what they were made for."""
        return sorted(self.plans.items(), key=lambda row: row[1].objective.rank(row[1].verdict))
