"""Loadmaster: decides on which device every op of a deep-learning graph runs, and in what order.

>>> import loadmaster as lm
>>> graph = lm.read("example:inception-v3")
>>> cluster = lm.Cluster.preset("4xV100-PCIe")
>>> plan = lm.place(graph, cluster)
>>> plan.lower_bound <= plan.makespan
True
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadmaster import costs, errors, fast, readers, transforms, writers
    from loadmaster.bounds import Bound, lower_bound
    from loadmaster.calibration import Calibration, calibrate
    from loadmaster.checking import Check, check
    from loadmaster.cluster import Cluster, Device, DeviceType, Link, Route, presets
    from loadmaster.coarsening import Coarse, coarsen
    from loadmaster.constraints import Constraints
    from loadmaster.costs import Costs
    from loadmaster.costs.measuring_links import measure_links
    from loadmaster.errors import (
        InfeasibleError,
        InputError,
        LoadmasterError,
        MissingExtraError,
        SolverError,
    )
    from loadmaster.fitting import Fit, fit
    from loadmaster.graph import OpGraph
    from loadmaster.measuring import measuring_plan
    from loadmaster.ordering import optimise_order
    from loadmaster.placing import Comparison, Incumbent, compare, place
    from loadmaster.plan import Plan
    from loadmaster.profile import Profile
    from loadmaster.readers import read
    from loadmaster.readers.profiles import read_profiles
    from loadmaster.readers.torch_capture import capture
    from loadmaster.scenarios import WhatIf, what_if
    from loadmaster.simulation import Simulation, simulate
    from loadmaster.strategies import strategy
    from loadmaster.sweeping import Sweep, sweep

    __version__: str

__all__ = [
    "Bound",
    "Calibration",
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
    "Profile",
    "Route",
    "Simulation",
    "SolverError",
    "Sweep",
    "WhatIf",
    "calibrate",
    "capture",
    "check",
    "coarsen",
    "compare",
    "costs",
    "errors",
    "fast",
    "fit",
    "lower_bound",
    "measure_links",
    "measuring_plan",
    "optimise_order",
    "place",
    "presets",
    "read",
    "read_profiles",
    "readers",
    "simulate",
    "strategy",
    "sweep",
    "transforms",
    "what_if",
    "writers",
]

#: Where names of the face are defined; the rest are modules. Nothing is imported before it is asked
#: for, so that the command line can answer without numpy.
_HOMES = {
    "bounds": ("Bound", "lower_bound"),
    "calibration": ("Calibration", "calibrate"),
    "checking": ("Check", "check"),
    "cluster": ("Cluster", "Device", "DeviceType", "Link", "Route", "presets"),
    "coarsening": ("Coarse", "coarsen"),
    "constraints": ("Constraints",),
    "costs": ("Costs",),
    "costs.measuring_links": ("measure_links",),
    "errors": (
        "InfeasibleError",
        "InputError",
        "LoadmasterError",
        "MissingExtraError",
        "SolverError",
    ),
    "fitting": ("Fit", "fit"),
    "graph": ("OpGraph",),
    "measuring": ("measuring_plan",),
    "ordering": ("optimise_order",),
    "placing": ("Comparison", "Incumbent", "compare", "place"),
    "plan": ("Plan",),
    "profile": ("Profile",),
    "readers": ("read",),
    "readers.torch_capture": ("capture",),
    "readers.profiles": ("read_profiles",),
    "scenarios": ("WhatIf", "what_if"),
    "simulation": ("Simulation", "simulate"),
    "strategies": ("strategy",),
    "sweeping": ("Sweep", "sweep"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:

    def __getattr__(name):
        from importlib import import_module, metadata

        if name == "__version__":
            value = metadata.version("loadmaster")
        elif name in _HOME:
            value = getattr(import_module(f"loadmaster.{_HOME[name]}"), name)
        elif name in __all__:
            return import_module(f"loadmaster.{name}")
        else:
            raise AttributeError(f"module 'loadmaster' has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__, "__version__"})
