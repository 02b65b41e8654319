"""Linear clustering (Kim and Browne 1988)."""

from __future__ import annotations

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.groups.mapping import by_load
from loadmaster.strategies.registry import strategy


@strategy("lc", "critical paths as groups, mapped by load (LC + GLB)")
def place(problem: Problem, *, memory: MemoryModel = "dynamic") -> Candidate:
    """Groups by :func:`loadmaster.fast.linear_clusters`, mapped by guided load balancing."""
    group = fast.linear_clusters(problem.weights)
    return by_load(problem, group, memory=memory)
