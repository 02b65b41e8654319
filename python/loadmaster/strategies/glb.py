"""Guided load balancing (Radulescu and van Gemund 1998) of Celeritas' fused groups.

What the mapping of :mod:`~loadmaster.strategies.lc` and :mod:`~loadmaster.strategies.dsc` does with
groups that were made to cut few bytes.
"""

from __future__ import annotations

from loadmaster.problem import Problem
from loadmaster.strategies.base import Candidate, MemoryModel
from loadmaster.strategies.fused import M, R, fuse
from loadmaster.strategies.mapping import mapped


def place(
    problem: Problem,
    *,
    max_ops: int = R,
    max_bytes: float = M,
    max_time: float | None = None,
    memory: MemoryModel = "dynamic",
) -> Candidate:
    """Fuses (see :func:`~loadmaster.strategies.fused.fuse` for the knobs), then maps by load."""
    fused = fuse(problem, max_ops=max_ops, max_bytes=max_bytes, max_time=max_time)
    return mapped(problem, fused.group, memory=memory)
