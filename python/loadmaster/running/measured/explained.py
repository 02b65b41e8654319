"""Why an op of a plan that ran is where it is, and when it ran: predicted and measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loadmaster.base.text import in_lines
from loadmaster.base.units import format_seconds
from loadmaster.plans.explain import Explanation, When, explain, when

if TYPE_CHECKING:
    from loadmaster.running.measured.measured import Measured


@dataclass(frozen=True)
class Explained:
    """The plan's explanation of an op, and when the op or each of its parts ran."""

    predicted: Explanation
    measured: tuple[When, ...]

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON: the plan's explanation, and what was measured."""
        seen = [one._asdict() for one in self.measured]
        return {**self.predicted.to_document(), "measured": seen}

    def __str__(self) -> str:
        parts = self.predicted.parts or (self.predicted,)
        lines = []
        for expected, seen in zip(parts, self.measured, strict=True):
            took, wanted = seen.finish - seen.start, expected.finish - expected.start
            ratio = f", predicted / measured {wanted / took:.3f}" if took else ""
            which = f"{seen.op} " if len(parts) > 1 else ""
            lines += [
                f"measured: {which}from {format_seconds(seen.start)} to "
                f"{format_seconds(seen.finish)}, took {format_seconds(took)}{ratio}",
                f"it waited for {seen.waited}",
            ]
        return f"{self.predicted}\n{in_lines(lines)}"


def explained(measured: Measured, op: str | int) -> Explained:
    """Explains one op of a plan that ran; see :meth:`Measured.explain`."""
    return Explained(explain(measured.plan, op), when(measured.seen, op))
