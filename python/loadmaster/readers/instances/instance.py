"""An instance: a graph on a cluster, and what is known of its shortest step."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.units import counted, format_seconds

if TYPE_CHECKING:
    from loadmaster.costs import Costs
    from loadmaster.model.cluster import Cluster
    from loadmaster.model.graph import OpGraph

#: Share of a makespan by which a bound may miss it and be its proof: both are sums of floats.
SAME = 1e-9

#: The command that lists those that come along: too many for a message.
LISTED_BY = "loadmaster instances"


@dataclass(frozen=True, eq=False)
class Instance:
    """A graph on a cluster, and the shortest makespan that is known, as the simulator judges it.

    Attributes
    ----------
    name : str
        What :func:`loadmaster.instances.load` takes.
    graph : OpGraph
    cluster : Cluster
    best_known : float or None
        Seconds: the shortest makespan known of a plan that places every op whole on one device.
    best_by : str
        Who found it, and how it is found again.
    best_split : float or None
        The same where ops may be split or replicated; None: nobody looked.
    split_by : str
    lower_bound : float or None
        Seconds that no plan of whole ops can go below; None: ``loadmaster.lower_bound`` has one.
    bound_by : str
        Who proved it.
    devices, priority : int32 [n_ops] or None
        A schedule that takes ``best_known``, if one came with it: run it by the policy "fixed".
    source, licence : str
        Where graph and times are from, and under which licence they are passed on.
    """

    name: str
    graph: OpGraph
    cluster: Cluster
    best_known: float | None = None
    best_by: str = ""
    best_split: float | None = None
    split_by: str = ""
    lower_bound: float | None = None
    bound_by: str = ""
    devices: NDArray[np.int32] | None = field(default=None, repr=False)
    priority: NDArray[np.int32] | None = field(default=None, repr=False)
    source: str = ""
    licence: str = ""

    @property
    def optimum(self) -> float | None:
        """Seconds: the best known makespan where it is proved that none is shorter, else None."""
        best, least = self.best_known, self.lower_bound
        proved = best is not None and least is not None and best <= least * (1 + SAME)
        return best if proved else None

    @cached_property
    def costs(self) -> Costs:
        """Seconds per op and device type: measured or given times, else the roofline's."""
        from loadmaster.costs import estimate

        return estimate(self.graph, self.cluster)

    def to_document(self) -> dict[str, Any]:
        """Known facts about it, for JSON: seconds, names and numbers, not the graph itself."""
        return {
            "name": self.name,
            "ops": self.graph.n_ops,
            "devices": self.cluster.n_devices,
            "cluster": self.cluster.name,
            "best_known": self.best_known,
            "best_by": self.best_by,
            "best_split": self.best_split,
            "split_by": self.split_by,
            "lower_bound": self.lower_bound,
            "bound_by": self.bound_by,
            "is_optimal": self.optimum is not None,
            "source": self.source,
            "licence": self.licence,
        }

    def __str__(self) -> str:
        ops = counted(self.graph.n_ops, "op")
        size = f"{ops}, {counted(self.cluster.n_devices, 'device')}"
        if self.best_known is None:
            return f"{self.name}: {size}"
        word = "optimum" if self.optimum is not None else "best known"
        return f"{self.name}: {size}, {word} {format_seconds(self.best_known)}"
