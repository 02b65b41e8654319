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
    import loadmaster.fast as fast
    from loadmaster import costs, readers, transforms, writers
    from loadmaster.base import errors
    from loadmaster.base.errors import (
        InfeasibleError,
        InputError,
        LoadmasterError,
        MissingExtraError,
        RunError,
        SolverError,
    )
    from loadmaster.base.progress import Incumbent
    from loadmaster.costs import Costs
    from loadmaster.costs.measuring_collectives import measure_collectives
    from loadmaster.costs.measuring_device import DeviceCosts, measure_device
    from loadmaster.costs.measuring_links import measure_links
    from loadmaster.costs.observed import Observed
    from loadmaster.judge.bounds import Bound
    from loadmaster.judge.coarsening import Coarse, coarsen
    from loadmaster.judge.simulation import Simulation, simulate
    from loadmaster.model.cluster import Cluster
    from loadmaster.model.clusters.devices import Device, DeviceType
    from loadmaster.model.clusters.links import CollectiveTimes, Link, Mesh, Route
    from loadmaster.model.clusters.presets import presets
    from loadmaster.model.graph import OpGraph
    from loadmaster.model.machine.detected import Detected
    from loadmaster.model.parallelism import Parallelism
    from loadmaster.model.profile import Profile
    from loadmaster.model.recipe import Recipe
    from loadmaster.model.runtime import Dispatch, SendCost, SessionCost
    from loadmaster.plans.advice import Advice, Choice
    from loadmaster.plans.comparison import Comparison
    from loadmaster.plans.plan import Plan
    from loadmaster.readers import instances, read, reader
    from loadmaster.readers.profiles import read_profiles
    from loadmaster.readers.pytorch.capture import capture
    from loadmaster.rules.constraints import Constraints
    from loadmaster.rules.reserves import kept_by_default
    from loadmaster.running.devices.emulated import emulate
    from loadmaster.running.measured.adapt import Adapted, adapt
    from loadmaster.running.measured.measured import Measured
    from loadmaster.running.measured.together import measure_ops
    from loadmaster.running.onnx.measuring import measure_sessions
    from loadmaster.running.run import run
    from loadmaster.running.tape.record import record
    from loadmaster.running.tape.tape import Tape
    from loadmaster.strategies import strategy
    from loadmaster.systems.listing import systems
    from loadmaster.tasks.advise import advise
    from loadmaster.tasks.bound import lower_bound
    from loadmaster.tasks.calibrate import Calibration, calibrate
    from loadmaster.tasks.check import Check, check
    from loadmaster.tasks.compare import compare
    from loadmaster.tasks.detect import detect
    from loadmaster.tasks.fit import Fit, fit
    from loadmaster.tasks.leaderboard import Leaderboard, leaderboard
    from loadmaster.tasks.measuring_plan import measuring_plan
    from loadmaster.tasks.observe import observe
    from loadmaster.tasks.order import optimise_order
    from loadmaster.tasks.place import place
    from loadmaster.tasks.sweep import Sweep, sweep
    from loadmaster.tasks.what_if import WhatIf, what_if
    from loadmaster.writers.export import export

    __version__: str

__all__ = [
    "Adapted",
    "Advice",
    "Bound",
    "Calibration",
    "Check",
    "Choice",
    "Cluster",
    "Coarse",
    "CollectiveTimes",
    "Comparison",
    "Constraints",
    "Costs",
    "Detected",
    "Device",
    "DeviceCosts",
    "DeviceType",
    "Dispatch",
    "Fit",
    "Incumbent",
    "InfeasibleError",
    "InputError",
    "Leaderboard",
    "Link",
    "LoadmasterError",
    "Measured",
    "Mesh",
    "MissingExtraError",
    "Observed",
    "OpGraph",
    "Parallelism",
    "Plan",
    "Profile",
    "Recipe",
    "Route",
    "RunError",
    "SendCost",
    "SessionCost",
    "Simulation",
    "SolverError",
    "Sweep",
    "Tape",
    "WhatIf",
    "adapt",
    "advise",
    "calibrate",
    "capture",
    "check",
    "coarsen",
    "compare",
    "costs",
    "detect",
    "emulate",
    "errors",
    "export",
    "fast",
    "fit",
    "instances",
    "kept_by_default",
    "leaderboard",
    "lower_bound",
    "measure_collectives",
    "measure_device",
    "measure_links",
    "measure_ops",
    "measure_sessions",
    "measuring_plan",
    "observe",
    "optimise_order",
    "place",
    "presets",
    "read",
    "read_profiles",
    "reader",
    "readers",
    "record",
    "run",
    "simulate",
    "strategy",
    "sweep",
    "systems",
    "transforms",
    "what_if",
    "writers",
]

#: Modules that define the names of the face; the rest are modules. Nothing is imported before it is
#: asked for, so that the command line can answer without numpy.
_HOMES = {
    "base.errors": (
        "InfeasibleError",
        "InputError",
        "LoadmasterError",
        "MissingExtraError",
        "RunError",
        "SolverError",
    ),
    "base.progress": ("Incumbent",),
    "costs": ("Costs",),
    "costs.measuring_collectives": ("measure_collectives",),
    "costs.measuring_device": ("DeviceCosts", "measure_device"),
    "costs.measuring_links": ("measure_links",),
    "costs.observed": ("Observed",),
    "judge.bounds": ("Bound",),
    "judge.coarsening": ("Coarse", "coarsen"),
    "judge.simulation": ("Simulation", "simulate"),
    "model.cluster": ("Cluster",),
    "model.clusters.devices": ("Device", "DeviceType"),
    "model.clusters.links": ("CollectiveTimes", "Link", "Mesh", "Route"),
    "model.clusters.presets": ("presets",),
    "model.graph": ("OpGraph",),
    "model.machine.detected": ("Detected",),
    "model.profile": ("Profile",),
    "model.parallelism": ("Parallelism",),
    "model.recipe": ("Recipe",),
    "model.runtime": ("Dispatch", "SendCost", "SessionCost"),
    "plans.advice": ("Advice", "Choice"),
    "plans.comparison": ("Comparison",),
    "plans.plan": ("Plan",),
    "readers": ("read", "reader"),
    "readers.profiles": ("read_profiles",),
    "readers.pytorch.capture": ("capture",),
    "rules.constraints": ("Constraints",),
    "rules.reserves": ("kept_by_default",),
    "running.measured.adapt": ("Adapted", "adapt"),
    "running.measured.measured": ("Measured",),
    "running.devices.emulated": ("emulate",),
    "running.tape.record": ("record",),
    "running.run": ("run",),
    "running.tape.tape": ("Tape",),
    "running.measured.together": ("measure_ops",),
    "running.onnx.measuring": ("measure_sessions",),
    "strategies": ("strategy",),
    "tasks.advise": ("advise",),
    "tasks.bound": ("lower_bound",),
    "tasks.calibrate": ("Calibration", "calibrate"),
    "tasks.check": ("Check", "check"),
    "tasks.detect": ("detect",),
    "tasks.fit": ("Fit", "fit"),
    "tasks.leaderboard": ("Leaderboard", "leaderboard"),
    "tasks.measuring_plan": ("measuring_plan",),
    "tasks.observe": ("observe",),
    "tasks.order": ("optimise_order",),
    "tasks.compare": ("compare",),
    "tasks.place": ("place",),
    "tasks.sweep": ("Sweep", "sweep"),
    "tasks.what_if": ("WhatIf", "what_if"),
    "writers.export": ("export",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

#: Modules of the face that stand elsewhere.
_MODULES = {"errors": "base.errors", "instances": "readers.instances"}

if not TYPE_CHECKING:

    def __getattr__(name):
        from importlib import import_module, metadata

        if name == "__version__":
            value = metadata.version("loadmaster")
        elif name in _HOME:
            value = getattr(import_module(f"loadmaster.{_HOME[name]}"), name)
        elif name in _MODULES:
            value = import_module(f"loadmaster.{_MODULES[name]}")
        elif name in __all__:
            return import_module(f"loadmaster.{name}")
        else:
            raise AttributeError(f"module 'loadmaster' has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__, "__version__"})
