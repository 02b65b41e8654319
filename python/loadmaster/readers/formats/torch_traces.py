"""PyTorch: traces of its profiler (Kineto), and execution traces (Chakra)."""

from __future__ import annotations

import os

from loadmaster.model.graph import OpGraph
from loadmaster.model.profile import Profile
from loadmaster.readers.registry import File, profile_reader, reader


def _is_kineto(file: File) -> bool:
    return file.has_keys("traceEvents")


@reader("kineto", "a Kineto trace", recognises=_is_kineto)
def read_kineto(
    path: str | os.PathLike[str], *, step: int | None = None, device_type: str | None = None
) -> OpGraph:
    """As :func:`loadmaster.readers.kineto.read`."""
    from loadmaster.readers import kineto

    return kineto.read(path, step=step, device_type=device_type)


@reader("chakra", "an execution trace", recognises=lambda file: file.has_keys("schema", "nodes"))
def read_chakra(
    path: str | os.PathLike[str],
    *,
    profile: str | os.PathLike[str] | None = None,
    step: int | None = None,
    device_type: str | None = None,
) -> OpGraph:
    """As :func:`loadmaster.readers.chakra.read`."""
    from loadmaster.readers import chakra

    return chakra.read(path, profile=profile, step=step, device_type=device_type)


@profile_reader("kineto", "a Kineto trace", recognises=_is_kineto)
def read_profile(
    path: str | os.PathLike[str],
    *,
    graph: str | os.PathLike[str] | None = None,
    step: int | None = None,
    device_type: str | None = None,
    batch: int | None = None,
) -> Profile:
    """As :func:`loadmaster.readers.kineto.profile`; with the execution trace of the same step as
    ``graph``, as :func:`loadmaster.readers.chakra.profile`.
    """
    if graph is None:
        from loadmaster.readers import kineto

        return kineto.profile(path, step=step, device_type=device_type, batch=batch)
    from loadmaster.readers import chakra

    return chakra.profile(path, graph=graph, step=step, device_type=device_type, batch=batch)
