"""Lower bounds on the makespan of any placement (design section 7; computed in Rust)."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

import loadmaster.fast as fast
from loadmaster.base.errors import InputError
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import CostsLike, as_costs
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph

Effort = Literal["fast", "thorough"]


@dataclass(frozen=True)
class Bound:
    """A lower bound on the makespan of any placement.

    Attributes
    ----------
    seconds : float
        The largest of ``parts``.
    source : str
        Which of them that is.
    parts : dict of str to float
        "critical path" (fastest allowed types, free transfers), "work over capacity" (a linear
        program over device types), "critical path with forced transfers" (at joins and forks),
        "work between heads and tails".
    """

    seconds: float
    source: str
    parts: dict[str, float]


def lower_bound(
    graph: OpGraph,
    cluster: Cluster,
    costs: CostsLike | None = None,
    *,
    effort: Effort = "fast",
    time_limit: float = 10.0,
) -> Bound:
    """A lower bound on the makespan of any placement of the full graph.

    It knows nothing of memory or of the cut between devices as a whole, and is weak where those
    bind. The arguments, and why they hold, stand in ``rust/core/src/bounds``.

    Parameters
    ----------
    graph, cluster, costs
        As for :func:`loadmaster.place`.
    effort : "fast" (default) or "thorough"
        Milliseconds in Rust; or a solver's bound as well, on graphs of up to 200 ops: CP-SAT's if
        the ``cpsat`` extra is installed, else that of the program ``ilp`` by CBC.
    time_limit : float
        Seconds for the solver.

    Raises
    ------
    InputError
        An unknown effort, a bad limit.

    Examples
    --------
    >>> import loadmaster as lm
    >>> b = lm.lower_bound(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"))
    >>> b.seconds == max(b.parts.values())
    True
    """
    if effort not in get_args(Effort):
        raise InputError(f"effort is {effort!r}: wants one of {', '.join(get_args(Effort))}")
    if not isinstance(time_limit, Real) or not 0 <= time_limit < float("inf"):
        raise InputError(f"time_limit is {time_limit!r}: wants seconds >= 0")
    problem = Problem.make(graph, cluster, as_costs(costs, graph, cluster))
    found = bound(problem)
    if effort == "fast":
        return found
    from loadmaster.strategies.exact.proving import raised

    return raised(problem, found, float(time_limit))


def bound(problem: Problem) -> Bound:
    """The bound of a problem at hand."""
    found = fast.bounds(problem.graph, problem.links, problem.time)
    parts = {
        "critical path": found["critical_path"],
        "work over capacity": found["work"],
        "critical path with forced transfers": found["forced_transfers"],
        "work between heads and tails": found["heads_and_tails"],
    }
    return Bound(found["best"], found["source"], parts)
