"""Dominant sequence clustering (Yang and Gerasoulis 1994), then load balancing."""

from __future__ import annotations

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.groups.mapping import by_load
from loadmaster.strategies.registry import strategy


@strategy("dsc", "dominant sequences as groups, mapped by load (DSC + GLB)")
def place(problem: Problem, *, memory: MemoryModel = "dynamic") -> Candidate:
    """Groups by :func:`loadmaster.fast.dominant_sequences`, mapped by guided load balancing."""
    group = fast.dominant_sequences(problem.weights)
    return by_load(problem, group, memory=memory)
