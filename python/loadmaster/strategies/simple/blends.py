"""Parts of a graph, weighed by time first, then by bytes, until they fit their devices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InfeasibleError
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.refusal import refuse_overfull
from loadmaster.strategies.simple.assigned import assigned

#: Shares of bytes in a vertex's weight, tried in turn; the rest of the weight is time.
BLENDS = (0.0, 0.5, 1.0)

#: A device per reduced op, given bytes per reduced op and the share of bytes in the weights.
Parts = Callable[[NDArray[np.uint64], float], NDArray[np.int32]]


def blended(
    problem: Problem, parts: Parts, memory: MemoryModel, *, part: str, none_fits: str
) -> Candidate:
    """The parts of the first blend that fits, then ordered.

    Parameters
    ----------
    part, none_fits : str
        What an error calls a part, and that none fits.

    Raises
    ------
    InfeasibleError
        No blend of time and bytes gives parts that fit.
    """
    blends = list(BLENDS)

    def assign(bytes_: NDArray[np.uint64], capacity: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The next blend. Parts know of no capacity: less of it would change nothing else."""
        if not blends:
            raise InfeasibleError(f"{none_fits}, weighed by bytes alone")
        devices = parts(bytes_, blends.pop(0))
        try:
            refuse_overfull(problem, part, devices, bytes_, problem.capacity)
        except InfeasibleError:
            if blends:
                return assign(bytes_, capacity)
            if not problem.best_effort:
                raise
        return devices

    return assigned(problem, assign, memory)
