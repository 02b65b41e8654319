"""AutoParallel: placements of parameters and inputs, and a partitioner for what lies between.

The solver takes the cheapest labels of those that placements can say
(:mod:`loadmaster.systems.shared.meshes_of_specs`).
"""

from __future__ import annotations

from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate
from loadmaster.systems.autoparallel.semantics import NAME
from loadmaster.systems.shared.meshes_of_specs import by_specs


def autoparallel(
    problem: Problem,
    *,
    tp: int | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Candidate:
    """The best mesh of data and tensor parallelism, and placements on it.

    Parameters
    ----------
    problem : Problem
    tp : int, optional
        Size of the inner axis, which must divide the number of devices in use; absent: the best.
    time_limit : float, optional
        Seconds on the clock; what is under way is finished first.
    progress : callable, optional
        Called with the mesh and the best step time whenever there is a better plan.

    Raises
    ------
    InputError
        The graph says no shapes; a size that does not divide; nothing can be shared evenly.
    InfeasibleError
        It does not fit.
    """
    return by_specs(problem, NAME, tp, time_limit, progress)
