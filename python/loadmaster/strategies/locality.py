"""Each op where most of what it reads is: the last resort where memory is tight.

Filling devices in topological order puts the backward pass elsewhere than the forward pass, so that
every activation is held twice. This keeps them together (see ``rust/core/src/place/locality.rs``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster import fast
from loadmaster.problem import Problem, ranks
from loadmaster.strategies.base import SHARES, Candidate, Outcome, attempts, judged


def try_order(problem: Problem, order: NDArray[np.int32]) -> Outcome:
    """Attempts with ops taken in one order."""
    _, held = fast.peak_bytes(problem.graph, order)

    def attempt(bytes_: NDArray[np.uint64], capacity: NDArray[np.uint64]) -> Candidate:
        devices = fast.follow_bytes(
            problem.graph,
            problem.links,
            order,
            op_bytes=bytes_,
            capacity=capacity,
            best_effort=problem.best_effort,
        )
        return judged(problem, devices, ranks(order))

    return attempts(problem, attempt, held, SHARES)
