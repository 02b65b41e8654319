"""The msr-fiddle benchmark: JSON with the keys ``maxFPGAs`` and ``nodes``."""

from __future__ import annotations

from loadmaster.readers.registry import Later, reader

reader(
    "msr-fiddle",
    "the msr-fiddle benchmark",
    recognises=lambda file: file.has_keys("maxFPGAs", "nodes"),
)(Later("planners.msr:read"))
