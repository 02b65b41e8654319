"""Loadmaster: decides on which device every op of a deep-learning graph runs, and in what order.

>>> import loadmaster as lm
>>> graph = lm.read("example:inception-v3")
>>> cluster = lm.Cluster.preset("4xV100-PCIe")
>>> plan = lm.place(graph, cluster)
>>> plan.lower_bound <= plan.makespan
True
"""

from importlib import metadata

from loadmaster import costs, errors, fast, readers, transforms, writers
from loadmaster.bounds import Bound, lower_bound
from loadmaster.checking import Check, check
from loadmaster.cluster import Cluster, Device, DeviceType, Link, Route, presets
from loadmaster.coarsening import Coarse, coarsen
from loadmaster.constraints import Constraints
from loadmaster.costs import Costs
from loadmaster.errors import (
    InfeasibleError,
    InputError,
    LoadmasterError,
    MissingExtraError,
    SolverError,
)
from loadmaster.fitting import Fit, fit
from loadmaster.graph import OpGraph
from loadmaster.ordering import optimise_order
from loadmaster.placing import Comparison, Incumbent, compare, place
from loadmaster.plan import Plan
from loadmaster.readers import read
from loadmaster.scenarios import WhatIf, what_if
from loadmaster.simulation import Simulation, simulate
from loadmaster.sweeping import Sweep, sweep

__version__ = metadata.version("loadmaster")

__all__ = [
    "Bound",
    "Check",
    "Cluster",
    "Coarse",
    "Comparison",
    "Constraints",
    "Costs",
    "Device",
    "DeviceType",
    "Fit",
    "Incumbent",
    "InfeasibleError",
    "InputError",
    "Link",
    "LoadmasterError",
    "MissingExtraError",
    "OpGraph",
    "Plan",
    "Route",
    "Simulation",
    "SolverError",
    "Sweep",
    "WhatIf",
    "check",
    "coarsen",
    "compare",
    "costs",
    "errors",
    "fast",
    "fit",
    "lower_bound",
    "optimise_order",
    "place",
    "presets",
    "read",
    "readers",
    "simulate",
    "sweep",
    "transforms",
    "what_if",
    "writers",
]
