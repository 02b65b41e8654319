"""Parts of a graph, weighed by time first, then by bytes, until they fit their devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, ranks
from loadmaster.strategies.attempts import MemoryModel, Outcome, better_outcome, charged
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.refusal import refuse_overfull
from loadmaster.strategies.simple.assigned import in_a_better_order

#: Shares of bytes in a vertex's weight, tried in turn; the rest of the weight is time.
BLENDS = (0.0, 0.5, 1.0)

#: A device per reduced op, given bytes per reduced op and the share of bytes in the weights.
Parts = Callable[[NDArray[np.uint64], float], NDArray[np.int32]]


def blended(problem: Problem, parts: Parts, memory: MemoryModel, *, part: str) -> Candidate:
    """The parts of the first blend that fits, then ordered. Parts know of no capacity: less of it
    would change nothing.

    Parameters
    ----------
    part : str
        What an error calls a part.

    Raises
    ------
    InfeasibleError
        No blend of time and bytes gives parts that fit.
    """
    bytes_, priority = charged(problem, memory), ranks(fast.m_topo(problem.graph))
    best = Outcome(None, 1.0)
    for blend in BLENDS:
        devices = parts(bytes_, blend)
        try:
            refuse_overfull(problem, part, devices, bytes_, problem.capacity)
        except InfeasibleError as error:
            best = replace(best, refused=error)
            if not (problem.best_effort and blend == BLENDS[-1]):
                continue
        candidate = judged(problem, Assignment(devices, priority))
        best = better_outcome(problem, best, Outcome(candidate, 1.0))
        if best.fits:
            break
    return in_a_better_order(problem, best)
