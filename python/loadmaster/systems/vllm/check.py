"""vLLM's own reader of arguments, on what was written for it."""

from __future__ import annotations

import os
from typing import Any

from loadmaster.plans.plan import Plan
from loadmaster.systems.registry import Checked
from loadmaster.systems.shared.own_python import checked_apart


def checked(plan: Plan, path: str | os.PathLike[str], model: str | None = None) -> Checked:
    """Reads the file as ``vllm serve --config`` does. ``plan`` and ``model`` are not needed.

    Raises
    ------
    InputError
        vLLM refuses it.
    """
    return checked_apart("vLLM", path, f"{__name__}:words")


def words(path: str) -> dict[str, Any]:
    """The sizes that vLLM's engine would have."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    read = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(["--config", path])
    sizes = f"tp {read.tensor_parallel_size}, pp {read.pipeline_parallel_size}"
    return {"words": f"vLLM reads {sizes}"}
