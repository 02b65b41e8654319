"""Baechi's m-TOPO (Jeon et al., SoCC 2020): Kahn order, devices filled to an equal share.

A device takes ops until it holds total bytes / k + the largest op, so that k devices are enough.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, ranks
from loadmaster.strategies.attempts import MemoryModel, within_memory
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.registry import strategy


@strategy("m-topo", "fill devices to an equal share in Kahn order (Baechi)")
def place(problem: Problem, *, memory: MemoryModel = "dynamic") -> Candidate:
    """Fills devices in turn up to total bytes / k + largest op."""
    order = fast.m_topo(problem.graph)
    k = problem.cluster.n_devices

    def attempt(bytes_: NDArray[np.uint64], capacity: NDArray[np.uint64]) -> Assignment:
        # What goes together counts together: the largest op is the largest set of them.
        together = np.zeros(len(bytes_), dtype=np.uint64)
        np.add.at(together, problem.graph.lead, bytes_)
        cap = int(bytes_.sum()) // k + int(together.max())
        fill = partial(fast.fill_in_order, order=order, devices=problem.fastest_first)
        core = problem.core.within(op_bytes=bytes_, capacity=np.minimum(capacity, np.uint64(cap)))
        try:
            devices = fill(core)
        except InfeasibleError:
            # Rules may leave an op fewer devices than share the bytes: a share is no limit.
            devices = fill(core.within(capacity=capacity))
        return Assignment(devices, ranks(order))

    return within_memory(problem, attempt, memory)
