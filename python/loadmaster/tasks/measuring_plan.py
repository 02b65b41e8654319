"""The placement to measure a step with: Order-Place on as few devices as hold the graph.

Celeritas (section 4.2) measures a step before it places the step well. The placement to measure
with has to run, but need not be fast. On few devices most tensors stay where they are made, so
transfers disturb few measurements.
"""

from __future__ import annotations

from loadmaster.base.errors import InfeasibleError
from loadmaster.base.progress import Progress
from loadmaster.judge.simulation import CostsLike
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph
from loadmaster.plans.plan import Plan
from loadmaster.rules.constraints import Constraints
from loadmaster.tasks.fit import fit


def measuring_plan(
    graph: OpGraph,
    cluster: Cluster,
    costs: CostsLike | None = None,
    *,
    constraints: Constraints | None = None,
    progress: Progress | None = None,
) -> Plan:
    """A plan on the fewest devices that hold the graph, as :func:`loadmaster.fit` finds them.

    Order-Place makes the plan if it finds room on that number of devices. Else the first of
    :data:`loadmaster.tasks.fit.METHODS` that finds room makes it.

    Parameters
    ----------
    graph : OpGraph
        The graph with the batch size that is to be measured. For the large batch,
        :meth:`loadmaster.costs.Regression.graph` makes it.
    cluster, costs, constraints, progress : see :func:`loadmaster.fit`

    Raises
    ------
    InputError
        As :func:`loadmaster.place`.
    InfeasibleError
        No placement that fits was found. The message says what would help, such as a smaller
        batch.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:bert-large"), lm.Cluster.preset("4xV100-PCIe")
    >>> plan = lm.measuring_plan(graph, cluster)
    >>> plan.method, len(set(plan.devices.tolist())), plan.fits
    ('order-place', 1, True)
    """
    fitted = fit(graph, cluster, costs, constraints=constraints, progress=progress)
    if fitted.fits:
        return fitted.plan
    short = cluster.shortfall(fitted.plan.memory.peak)
    raise InfeasibleError(f"no placement to measure with: {fitted}", short)
