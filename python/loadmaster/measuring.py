"""The placement to measure a step with: Order-Place on as few devices as hold the graph.

Celeritas, section 4.2: what a step costs is measured before it is placed well, so the placement for
that has to run, not to be fast; few devices mean that most tensors stay where they are made, and
that times are measured on few devices' terms.
"""

from __future__ import annotations

from loadmaster.cluster import Cluster
from loadmaster.constraints import Constraints
from loadmaster.errors import InfeasibleError
from loadmaster.fitting import fit
from loadmaster.graph import OpGraph
from loadmaster.placing import Progress
from loadmaster.plan import Plan
from loadmaster.simulation import CostsLike


def measuring_plan(
    graph: OpGraph,
    cluster: Cluster,
    costs: CostsLike | None = None,
    *,
    constraints: Constraints | None = None,
    progress: Progress | None = None,
) -> Plan:
    """A plan by Order-Place on the fewest devices for which it finds room.

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
        It fits on no number of devices; the message says what would help, a smaller batch included.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:inception-v3"), lm.Cluster.preset("4xV100-PCIe")
    >>> plan = lm.measuring_plan(graph, cluster)
    >>> len(set(plan.devices.tolist())), plan.fits
    (2, True)
    """
    found = fit(
        graph,
        cluster,
        costs,
        methods=("order-place",),
        constraints=constraints,
        progress=progress,
    )
    if found.fits:
        return found.plan
    short = zip(cluster.devices, found.plan.memory.peak.tolist(), strict=True)
    raise InfeasibleError(
        f"no placement to measure with: {found}",
        {device.name: peak - device.memory for device, peak in short if peak > device.memory},
    )
