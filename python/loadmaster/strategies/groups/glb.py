"""Guided load balancing (Radulescu and van Gemund 1998) of Celeritas' fused groups.

The mapping is that of :mod:`~loadmaster.strategies.groups.lc` and
:mod:`~loadmaster.strategies.groups.dsc`. The groups here were made to cut few bytes.
"""

from __future__ import annotations

from typing import Unpack

from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.groups.mapping import by_load
from loadmaster.strategies.groups.segments import Cuts, segmented
from loadmaster.strategies.registry import strategy


@strategy("glb", "fused groups, mapped by load (GLB)")
def place(problem: Problem, *, memory: MemoryModel = "dynamic", **cuts: Unpack[Cuts]) -> Candidate:
    """Cuts segments, then maps by load.

    The options are those of :func:`~loadmaster.strategies.groups.segments.segmented`.
    """
    segments = segmented(problem, **cuts)
    return by_load(problem, segments.group, memory=memory)
