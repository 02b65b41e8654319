"""DeepSpeed's own configuration, of what was written for it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from loadmaster.base.units import counted
from loadmaster.plans.plan import Plan
from loadmaster.systems.registry import Checked
from loadmaster.systems.shared.own_python import checked_apart
from loadmaster.systems.shared.processes import number_of_processes


def checked(plan: Plan, path: str | os.PathLike[str], model: str | None = None) -> Checked:
    """Reads the file as each of the plan's processes does. ``model`` is not needed.

    Raises
    ------
    InputError
        DeepSpeed refuses it.
    """
    return checked_apart("DeepSpeed", path, f"{__name__}:words", number_of_processes(plan))


def words(path: str, processes: int) -> dict[str, Any]:
    """Stage and batch that DeepSpeed reads in the file, for so many processes."""
    read = configuration(json.loads(Path(path).read_text(encoding="utf-8")), processes)
    of = f"stage {read.zero_optimization_stage} of ZeRO, batch of {read.train_batch_size}"
    return {"words": f"DeepSpeed reads {of} on {counted(processes, 'process', 'processes')}"}


class _Processes:
    """Stands for so many processes."""

    def __init__(self, n: int) -> None:
        self.n = n

    def get_data_parallel_world_size(self) -> int:
        return self.n


def configuration(document: dict[str, Any], processes: int) -> Any:
    """The configuration as DeepSpeed has it for so many processes.

    Raises
    ------
    Exception
        DeepSpeed's own.
    """
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed import comm
    from deepspeed.runtime.config import DeepSpeedConfig

    before = comm.get_rank
    comm.get_rank = lambda *_: 0
    try:
        return DeepSpeedConfig(document, mpu=_Processes(processes))
    finally:
        comm.get_rank = before
