"""PyTorch: programs of torch.export in files, and programs in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster.base.files import ZIP_MAGIC
from loadmaster.model.graph import OpGraph
from loadmaster.readers.registry import reader


def _is_program(program: Any) -> bool:
    return any(base.__module__.startswith("torch.") for base in type(program).__mro__)


@reader(
    "torch-export",
    "a program of torch.export",
    recognises=lambda file: file.head.startswith(ZIP_MAGIC),
)
def read_export(
    path: str | os.PathLike[str],
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> OpGraph:
    """As :func:`loadmaster.readers.torch_export.read`."""
    from loadmaster.readers import torch_export

    return torch_export.read(path, batch=batch, shapes=shapes, sizes=sizes)


@reader(
    "torch",
    "a program of PyTorch (torch.fx.GraphModule, torch.export.ExportedProgram)",
    accepts=_is_program,
)
def read(
    program: Any,
    example_inputs: Any = None,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    sizes: Mapping[str, int] | None = None,
    name: str | None = None,
) -> OpGraph:
    """As :func:`loadmaster.readers.torch_fx.read`."""
    from loadmaster.readers import torch_fx

    return torch_fx.read(
        program, example_inputs, batch=batch, shapes=shapes, sizes=sizes, name=name
    )
