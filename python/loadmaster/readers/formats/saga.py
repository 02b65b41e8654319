"""SAGA: problem instances and schedules, JSON with the keys ``task_graph`` and ``tasks``."""

from __future__ import annotations

from loadmaster.readers.registry import File, Later, reader


def is_saga(file: File) -> bool:
    """True if a file begins like a problem instance or a schedule, which have a network, too."""
    return file.has_keys("task_graph", "tasks")


reader("saga", "a problem instance of SAGA", recognises=is_saga)(Later("planners.saga:read"))
