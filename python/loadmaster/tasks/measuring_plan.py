"""The placement to measure a step with: Order-Place on as few devices as hold the graph.

Celeritas, section 4.2: what a step costs is measured before it is placed well, so the placement for
that has to run, not to be fast; few devices mean that most tensors stay where they are made, and
that times are measured on few devices' terms.
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
    """A plan on the fewest devices that hold the graph, as :func:`loadmaster.fit` finds them: by
    Order-Place where that finds room on so many, else by the first of the methods of
    :data:`loadmaster.tasks.fit.METHODS` that does.

    Parameters
    ----------
    graph : OpGraph
        At the batch that is to be measured: for the large batch what
        :meth:`loadmaster.costs.Regression.graph` gives.
    cluster, costs, constraints, progress : see :func:`loadmaster.fit`

    Raises
    ------
    InputError
        As :func:`loadmaster.place`.
    InfeasibleError
        No placement that fits was found; the message says what would help, as a smaller batch.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:bert-large"), lm.Cluster.preset("4xV100-PCIe")
    >>> plan = lm.measuring_plan(graph, cluster)
    >>> plan.method, len(set(plan.devices.tolist())), plan.fits
    ('order-place', 1, True)
    """
    found = fit(graph, cluster, costs, constraints=constraints, progress=progress)
    if found.fits:
        return found.plan
    short = zip(cluster.devices, found.plan.memory.peak.tolist(), strict=True)
    raise InfeasibleError(
        f"no placement to measure with: {found}",
        {device.name: peak - device.memory for device, peak in short if peak > device.memory},
    )
