"""What hosts pay to launch ops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.roofline import Costs
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph


def dispatch_seconds(graph: OpGraph, costs: Costs, cluster: Cluster) -> NDArray[np.float64] | None:
    """Seconds that the launch of each op keeps its host; None where launches cost nothing.

    An op that takes time on some device type is one launch, and so is a member of a collective.
    All others are free: views and placeholders run nowhere.

    Returns
    -------
    float64 [n_ops]

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph = lm.read("example:lenet")
    >>> eager = lm.Cluster.preset("2xV100-NVLink").with_dispatch(lm.Dispatch(5e-6))
    >>> seconds = dispatch_seconds(graph, lm.costs.estimate(graph, eager), eager)
    >>> round(float(seconds.sum()) / 5e-6), graph.n_ops
    (51, 104)
    """
    if cluster.dispatch is None:
        return None
    launched = (costs.time.any(axis=1) | graph.is_member) & ~graph.view & ~graph.placeholder
    return np.where(launched, cluster.dispatch.launch, 0.0)
