"""Ops dealt out to the devices in turn: balance without a thought for what must be sent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, ranks
from loadmaster.strategies.attempts import MemoryModel, within_memory
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.registry import strategy


@strategy("round-robin", "deal ops out in turn")
def place(problem: Problem, *, memory: MemoryModel = "dynamic") -> Candidate:
    """The i-th op in Kahn order on device i mod k, or the next one that has room."""
    order = fast.m_topo(problem.graph)

    def attempt(bytes_: NDArray[np.uint64], capacity: NDArray[np.uint64]) -> Assignment:
        devices = fast.round_robin(problem.core.within(op_bytes=bytes_, capacity=capacity), order)
        return Assignment(devices, ranks(order))

    return within_memory(problem, attempt, memory)
