"""The msr-fiddle benchmark: JSON with the keys ``maxFPGAs`` and ``nodes``."""

from __future__ import annotations

from loadmaster.readers.registry import GRAPHS, Reader

GRAPHS["msr-fiddle"] = Reader(
    "the msr-fiddle benchmark",
    "msr:read",
    recognises=lambda file: file.has_keys("maxFPGAs", "nodes"),
)
