"""Lightning's own Trainer, made by what was written for it."""

from __future__ import annotations

import os
import runpy
from typing import Any

from loadmaster.base.units import counted
from loadmaster.plans.plan import Plan
from loadmaster.systems.registry import Checked
from loadmaster.systems.shared.own_python import checked_apart


def checked(plan: Plan, path: str | os.PathLike[str], model: str | None = None) -> Checked:
    """Makes the Trainer of the file. ``plan`` and ``model`` are not needed.

    Raises
    ------
    InputError
        Lightning refuses its arguments.
    """
    return checked_apart("Lightning", path, f"{__name__}:words")


def words(path: str) -> dict[str, Any]:
    """Makes the Trainer, on as many CPUs as there are devices of each machine."""
    file = runpy.run_path(path)
    devices = file["TRAINER"]["devices"]
    n = devices if isinstance(devices, int) else len(devices)
    trainer = file["trainer"](accelerator="cpu", devices=n, logger=False)
    of = counted(trainer.world_size, "process", "processes")
    return {"words": f"Lightning makes a Trainer of {of} ({type(trainer.strategy).__name__})"}
