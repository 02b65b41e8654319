"""The time that hosts take to launch ops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.roofline import Costs
from loadmaster.model.cluster import Cluster
from loadmaster.model.program import Program


def dispatch_seconds(
    program: Program, costs: Costs, cluster: Cluster
) -> NDArray[np.float64] | None:
    """Seconds that launching each op keeps its host; None where launches cost nothing.

    An op that takes time on some device type is as many launches as the user's graph has counted
    kernels of it, else one for each of its runs, and so is each part of it. A member of a
    collective is one a run. All others are free: views and placeholders run nowhere.

    Returns
    -------
    float64 [n_ops]

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph = lm.read("example:lenet")
    >>> eager = lm.Cluster.preset("2xV100-NVLink-eager")
    >>> plan = lm.place(graph, eager, "single")
    >>> round(float(plan.problem.dispatch.sum()) / 5e-6), graph.n_ops
    (51, 104)
    """
    if cluster.dispatch is None:
        return None
    graph, source = program.graph, program.source
    launched = (costs.time.any(axis=1) | graph.is_member) & ~graph.view & ~graph.placeholder
    kernels = source.launches[program.serves]
    kernels[program.own] = graph.runs[program.own]
    return np.where(launched, cluster.dispatch.launch * kernels, 0.0)
