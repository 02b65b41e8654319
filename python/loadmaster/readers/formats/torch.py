"""PyTorch: programs of torch.export in files, and programs in memory."""

from __future__ import annotations

from typing import Any

from loadmaster.base.files import ZIP_MAGIC
from loadmaster.readers.registry import GRAPHS, Reader


def _is_program(program: Any) -> bool:
    return any(base.__module__.startswith("torch.") for base in type(program).__mro__)


GRAPHS["torch-export"] = Reader(
    "a program of torch.export",
    "torch_export:read",
    recognises=lambda file: file.head.startswith(ZIP_MAGIC),
)
GRAPHS["torch"] = Reader(
    "a program of PyTorch (torch.fx.GraphModule, torch.export.ExportedProgram)",
    "torch_fx:read",
    accepts=_is_program,
)
