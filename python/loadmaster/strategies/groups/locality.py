"""Each op where most of what it reads is: the last resort where memory is tight.

Filling devices in topological order puts the backward pass elsewhere than the forward pass, so that
every activation is held twice. This keeps them together (see ``rust/core/src/place/locality.rs``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, ranks
from loadmaster.strategies.attempts import SHARES, Outcome, attempts
from loadmaster.strategies.deciders import deciders


def outcomes(problem: Problem, order: NDArray[np.int32]) -> list[Outcome]:
    """Outcomes of taking ops in ``order`` and in Kahn order, with and without the advice to keep
    the update of a parameter where the parameter is read.
    """
    cores = (problem.core, problem.core.led_by(deciders(problem.graph)[0]))
    orders = (order, fast.m_topo(problem.graph))
    return [_outcome(problem, core, by) for by in orders for core in cores]


def _outcome(problem: Problem, core: fast.Problem, order: NDArray[np.int32]) -> Outcome:
    _, held = fast.peak_bytes(problem.graph, order)

    def attempt(capacity: NDArray[np.uint64]) -> Assignment:
        devices = fast.follow_bytes(core.within(op_bytes=held, capacity=capacity), order)
        return Assignment(devices, ranks(order))

    return attempts(problem, attempt, held, SHARES)
