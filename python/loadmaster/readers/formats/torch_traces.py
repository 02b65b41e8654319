"""PyTorch: traces of its profiler (Kineto), and execution traces (Chakra)."""

from __future__ import annotations

from loadmaster.readers.registry import GRAPHS, PROFILES, File, Reader


def _is_kineto(file: File) -> bool:
    return file.has_keys("traceEvents")


GRAPHS["kineto"] = Reader("a Kineto trace", "kineto:read", recognises=_is_kineto)
GRAPHS["chakra"] = Reader(
    "an execution trace",
    "chakra:read",
    recognises=lambda file: file.has_keys("schema", "nodes"),
)
PROFILES["kineto"] = Reader("a Kineto trace", "kineto:profile", recognises=_is_kineto)
