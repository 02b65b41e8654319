"""Ray Train's own TorchTrainer, made by what was written for it."""

from __future__ import annotations

import os
import runpy
from typing import Any

from loadmaster.base.units import counted
from loadmaster.plans.plan import Plan
from loadmaster.systems.registry import Checked
from loadmaster.systems.shared.own_python import checked_apart


def checked(plan: Plan, path: str | os.PathLike[str], model: str | None = None) -> Checked:
    """Makes the TorchTrainer of the file. ``plan`` and ``model`` are not needed.

    Raises
    ------
    InputError
        Ray refuses its arguments.
    """
    return checked_apart("Ray", path, f"{__name__}:words")


def words(path: str) -> dict[str, Any]:
    """Makes the TorchTrainer, which begins no worker."""
    trainer = runpy.run_path(path)["trainer"](print)
    workers = counted(trainer.scaling_config.num_workers, "worker")
    return {"words": f"Ray makes a TorchTrainer of {workers}"}
