"""A lower bound on the step time of any placement, in milliseconds or with a solver's help."""

from __future__ import annotations

from typing import Literal, get_args

from loadmaster.base import checks
from loadmaster.judge.bounds import Bound, bound
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import CostsLike, as_costs
from loadmaster.strategies.exact.proving import raised
from loadmaster.tasks.given import ClusterLike, GraphLike, as_cluster, as_graph

Effort = Literal["fast", "thorough"]


def lower_bound(
    graph: GraphLike,
    cluster: ClusterLike,
    costs: CostsLike | None = None,
    *,
    effort: Effort = "fast",
    time_limit: float = 10.0,
) -> Bound:
    """A lower bound on the makespan of any placement of the full graph.

    The bound ignores memory, and the sum of all bytes that devices exchange. Where these bind, the
    bound is weak. ``rust/core/src/bounds`` has the arguments and their proofs.

    Parameters
    ----------
    graph, cluster, costs
        As for :func:`loadmaster.place`.
    effort : "fast" (default) or "thorough"
        "fast" takes milliseconds. "thorough" adds a solver's bound on graphs of up to 200 ops:
        CP-SAT's if the ``cpsat`` extra is installed, else that of the program ``ilp`` by CBC.
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
    graph, cluster = as_graph(graph), as_cluster(cluster)
    checks.one_of("effort", effort, get_args(Effort))
    seconds = checks.time_limit(time_limit)
    problem = Problem.make(graph, cluster, as_costs(costs, graph, cluster))
    whole = bound(problem)
    return whole if effort == "fast" else raised(problem, whole, seconds)
