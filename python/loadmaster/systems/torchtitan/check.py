"""torchtitan's own configuration, as what was written for it sets it."""

from __future__ import annotations

import os
import runpy
from types import SimpleNamespace
from typing import Any

from loadmaster.base.units import counted
from loadmaster.plans.plan import Plan
from loadmaster.systems.registry import Checked
from loadmaster.systems.shared.own_python import checked_apart
from loadmaster.systems.shared.processes import number_of_processes


def checked(plan: Plan, path: str | os.PathLike[str], model: str | None = None) -> Checked:
    """Sets a configuration as the file does, for the plan's processes. ``model`` is not needed.

    Raises
    ------
    InputError
        torchtitan refuses it.
    """
    return checked_apart("torchtitan", path, f"{__name__}:words", number_of_processes(plan))


def words(path: str, processes: int) -> dict[str, Any]:
    """Sets the configuration, and has torchtitan make meshes of so many processes of it."""
    from torchtitan.config.configs import ParallelismConfig, TrainingConfig
    from torchtitan.distributed.parallel_dims import ParallelDims

    config = SimpleNamespace(
        parallelism=ParallelismConfig(), training=TrainingConfig(), activation_checkpoint=None
    )
    runpy.run_path(path)["parallelize"](config)
    ParallelDims.from_config(config.parallelism, processes)
    n = counted(processes, "process", "processes")
    return {"words": f"torchtitan takes the degrees for {n}"}
