"""SAGA: problem instances and schedules, JSON with the keys ``task_graph`` and ``network``."""

from __future__ import annotations

from loadmaster.readers.registry import Later, reader

reader(
    "saga",
    "a problem instance of SAGA",
    recognises=lambda file: file.has_keys("task_graph", "tasks", "dependencies"),
)(Later("saga:read"))
