"""PyTorch: traces of its profiler (Kineto), and execution traces (Chakra)."""

from __future__ import annotations

from loadmaster.readers.registry import File, Later, profile_reader, reader


def _is_kineto(file: File) -> bool:
    return file.has_keys("traceEvents")


reader("kineto", "a Kineto trace", recognises=_is_kineto)(Later("pytorch.kineto:read"))
reader("chakra", "an execution trace", recognises=lambda file: file.has_keys("schema", "nodes"))(
    Later("pytorch.execution_trace:read")
)
profile_reader("kineto", "a Kineto trace", recognises=_is_kineto)(Later("pytorch.kineto:profile"))
