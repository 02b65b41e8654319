"""Lower bounds on the makespan of any placement (design section 7; computed in Rust)."""

from __future__ import annotations

from dataclasses import dataclass

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem


@dataclass(frozen=True)
class Bound:
    """A lower bound on the makespan of any placement.

    Attributes
    ----------
    seconds : float
        The largest of ``parts``.
    source : str
        Name of that part.
    parts : dict of str to float
        "critical path" (fastest allowed types, free transfers), "work over capacity" (a linear
        program over device types), "critical path with forced transfers" (at joins and forks),
        "work between heads and tails".
    """

    seconds: float
    source: str
    parts: dict[str, float]


def bound(problem: Problem) -> Bound:
    """The bound of a problem."""
    found = fast.bounds(problem.core)
    parts = {
        "critical path": found["critical_path"],
        "work over capacity": found["work"],
        "critical path with forced transfers": found["forced_transfers"],
        "work between heads and tails": found["heads_and_tails"],
    }
    return Bound(found["best"], found["source"], parts)
