"""Guided load balancing (Radulescu and van Gemund 1998) of Celeritas' fused groups.

The mapping is that of :mod:`~loadmaster.strategies.groups.lc` and
:mod:`~loadmaster.strategies.groups.dsc`. The groups here were made to cut few bytes.
"""

from __future__ import annotations

from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.groups.mapping import by_load
from loadmaster.strategies.groups.segments import M, R, segmented
from loadmaster.strategies.registry import strategy


@strategy("glb", "fused groups, mapped by load (GLB)")
def place(
    problem: Problem,
    *,
    max_ops: int = R,
    max_bytes: float = M,
    max_time: float | None = None,
    memory: MemoryModel = "dynamic",
) -> Candidate:
    """Cuts segments, then maps by load.

    The options are those of :func:`~loadmaster.strategies.groups.segments.segmented`.
    """
    segments = segmented(problem, max_ops=max_ops, max_bytes=max_bytes, max_time=max_time)
    return by_load(problem, segments.group, memory=memory)
