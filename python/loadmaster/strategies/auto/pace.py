"""The speed of the reference machine at the work that ``auto`` counts, on one problem."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from loadmaster.judge.problem import Problem
from loadmaster.strategies.auto.tuning import Tuning


@dataclass(frozen=True)
class Pace:
    """Seconds of work, and work in a second.

    Attributes
    ----------
    simulation : float
        Seconds of a simulation.
    moves, windows, refinement : float
        Visits per second of a search by moves of all ops, of one by windows, and of a refinement.
    near, repeats : float
        Seconds to build the groups of ops near each other, and those of ops that play the same
        part.
    """

    simulation: float
    moves: float
    windows: float
    refinement: float
    near: float
    repeats: float

    @classmethod
    def of(cls, problem: Problem, tuning: Tuning) -> Pace:
        """The pace on a problem. A graph that is too large for the caches makes moves of all ops
        wait for memory, and refinement for a part of that time.
        """
        n_ops = problem.graph.n_ops
        waits = sqrt(n_ops * problem.cluster.n_devices / tuning.cached_size)
        return cls(
            tuning.simulation_microseconds * microsecond_per_op(problem),
            tuning.search_rate / (1 + waits),
            tuning.window_rate,
            tuning.refine_rate / (1 + tuning.refine_waits * waits),
            tuning.near_seconds * n_ops,
            tuning.repeats_seconds * n_ops,
        )


def microsecond_per_op(problem: Problem) -> float:
    """Seconds that a microsecond per op comes to on a problem, where the microsecond is stated for
    eight devices: two thirds of it are the same on any number of devices, and the other third is
    proportional to the number.
    """
    return 1e-6 * problem.graph.n_ops * (16 + problem.cluster.n_devices) / 24
