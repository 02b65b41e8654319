"""Old names of modules: each works for one minor version, with a warning that says the new one."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

#: Old name to new name, both within the package. The old names go with version 0.3.
MODULES = {
    "binding": "rules.binding",
    "bounds": "tasks.bound",
    "calibration": "tasks.calibrate",
    "checking": "tasks.check",
    "cluster": "model.cluster",
    "coarsening": "judge.coarsening",
    "constraints": "rules.constraints",
    "difference": "plans.difference",
    "errors": "base.errors",
    "examples": "readers.examples",
    "explain": "plans.explain",
    "files": "base.files",
    "fitting": "tasks.fit",
    "footprint": "plans.footprint",
    "graph": "model.graph",
    "info": "plans.info",
    "measuring": "tasks.measuring_plan",
    "ordering": "tasks.order",
    "placing": "tasks.place",
    "plan": "plans.plan",
    "problem": "judge.problem",
    "profile": "model.profile",
    "scenarios": "tasks.what_if",
    "simulation": "judge.simulation",
    "summary": "plans.summary",
    "sweeping": "tasks.sweep",
    "transforms.batch": "model.batch",
    "units": "base.units",
    "writers.deviations": "costs.deviations",
}


class _Loader:
    """Makes an old name stand for the module of the new name."""

    def __init__(self, new: str) -> None:
        self.new = new

    def create_module(self, spec: ModuleSpec) -> None:
        """None: Python makes an empty module, which :meth:`exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        # Python does not count frames of its import machinery, so level 2 is the importing line.
        warnings.warn(f"{old} is now {self.new}", DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(self.new)


def renamed_module(name: str) -> ModuleSpec | None:
    """How to import a module by its old full name; None: it never had that name."""
    new = MODULES.get(name.partition(".")[2])
    return ModuleSpec(name, _Loader(f"loadmaster.{new}")) if new else None  # type: ignore[arg-type]
