"""PyTorch: programs of torch.export in files, and programs in memory."""

from __future__ import annotations

from typing import Any

from loadmaster.base.files import ZIP_MAGIC
from loadmaster.readers.registry import Later, reader


def _is_program(program: Any) -> bool:
    return any(base.__module__.startswith("torch.") for base in type(program).__mro__)


reader(
    "torch-export",
    "a program of torch.export",
    recognises=lambda file: file.head.startswith(ZIP_MAGIC),
)(Later("pytorch.export:read"))
reader(
    "torch",
    "a program of PyTorch (torch.fx.GraphModule, torch.export.ExportedProgram)",
    accepts=_is_program,
)(Later("pytorch.fx:read"))
