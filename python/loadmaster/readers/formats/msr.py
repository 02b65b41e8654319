"""The msr-fiddle benchmark: JSON with the keys ``maxFPGAs`` and ``nodes``."""

from __future__ import annotations

import os

from loadmaster.model.graph import OpGraph
from loadmaster.readers.registry import reader


@reader(
    "msr-fiddle",
    "the msr-fiddle benchmark",
    recognises=lambda file: file.has_keys("maxFPGAs", "nodes"),
)
def read(
    path: str | os.PathLike[str],
    *,
    time_unit: str | None = None,
    size_unit: str | None = None,
    cost_unit: str | None = None,
) -> OpGraph:
    """As :func:`loadmaster.readers.msr.read`."""
    from loadmaster.readers import msr

    return msr.read(path, time_unit=time_unit, size_unit=size_unit, cost_unit=cost_unit)
