"""Ops whose times moved: Welch's test of two means, for all ops at once.

B. L. Welch, "The generalization of Student's problem when several different population variances
are involved", Biometrika 34 (1947); degrees of freedom after Satterthwaite (1946).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from loadmaster.base.units import format_seconds
from loadmaster.costs.entry import Entry
from loadmaster.costs.student import two_sided

#: Probability that some op is called moved although none moved.
LEVEL = 0.01
#: Smallest change that counts as a move, as a share of the time before.
FLOOR = 0.05

#: Degrees of freedom of a variance that is estimated from many ops.
_MANY = 1000


@dataclass(frozen=True)
class Move:
    """An op whose time moved: mean seconds before, and in the new steps."""

    name: str
    before: float
    after: float

    def __str__(self) -> str:
        change = f" ({self.after / self.before - 1:+.0%})" if self.before else ""
        return f"{self.name}: {format_seconds(self.before)} -> {format_seconds(self.after)}{change}"


def moved(pairs: list[tuple[str, Entry, Entry]]) -> tuple[list[Move], int]:
    """Ops that moved, the largest change in seconds first, and the number of untested ops."""
    spread = [
        math.sqrt(e.variance) / e.mean
        for pair in pairs
        for e in pair[1:]
        if e.mean > 0 and not math.isnan(e.variance)
    ]
    usual = float(np.median(spread)) if spread else math.nan
    moves, untested = [], 0
    for name, before, after in pairs:
        apart = abs(after.mean - before.mean)
        parts = [_variance_of_mean(e, usual) for e in (before, after)]
        if any(math.isnan(variance) for variance, _ in parts):
            untested += 1
            continue
        error = sum(variance for variance, _ in parts)
        # Welch and Satterthwaite's degrees of freedom.
        shares = sum(variance**2 / freedom for variance, freedom in parts)
        freedom = max(1, min(_MANY, int(error**2 / shares))) if shares > 0 else _MANY
        limit = two_sided(LEVEL / len(pairs), freedom) * math.sqrt(error)
        if apart > max(limit, FLOOR * before.mean):
            moves.append(Move(name, before.mean, after.mean))
    moves.sort(key=lambda m: (-abs(m.after - m.before), m.name))
    return moves, untested


def _variance_of_mean(entry: Entry, usual: float) -> tuple[float, int]:
    """Variance of an entry's mean, and its degrees of freedom."""
    if entry.steps == 1:
        return (usual * entry.mean) ** 2, _MANY
    return entry.variance / max(entry.steps, 1), entry.steps - 1 if entry.steps else _MANY
