"""accelerate's own launcher, on what was written for it."""

from __future__ import annotations

import os
from typing import Any

from loadmaster.plans.plan import Plan
from loadmaster.systems.registry import Checked
from loadmaster.systems.shared.own_python import checked_apart


def checked(plan: Plan, path: str | os.PathLike[str], model: str | None = None) -> Checked:
    """Reads the file as ``accelerate launch`` does. ``plan`` and ``model`` are not needed.

    Raises
    ------
    InputError
        accelerate refuses it.
    """
    return checked_apart("accelerate", path, f"{__name__}:words")


def words(path: str) -> dict[str, Any]:
    """Processes and engine that the launcher reads in the file."""
    arguments = launched(path)
    engine = next((e for e in ("fsdp", "deepspeed") if getattr(arguments, f"use_{e}")), "ddp")
    return {
        "words": f"accelerate launch would start {arguments.num_processes} processes ({engine})"
    }


def launched(path: str) -> Any:
    """The arguments of ``accelerate launch`` with the file.

    Raises
    ------
    Exception
        accelerate's own.
    """
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    parser = launch_command_parser()
    arguments, _, _ = _validate_launch_command(
        parser.parse_args(["--config_file", path, "train.py"])
    )
    return arguments
