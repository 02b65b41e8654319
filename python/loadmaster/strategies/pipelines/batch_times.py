"""Seconds of ops with more or fewer samples in the batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.program import ProgramWork, costs_of
from loadmaster.costs.roofline import is_estimated
from loadmaster.judge.problem import Problem
from loadmaster.model.program import COMPUTE
from loadmaster.transforms.shares import own_weights, whole_bytes


def batch_times(problem: Problem, times: float) -> NDArray[np.float64]:
    """Seconds of each op of the user's graph with so many times the batch.

    What depends on the batch does ``times`` the FLOPs, and reads weights once. Measured and given
    times count ``times`` times, and so do those on a type without a roofline.

    Returns
    -------
    float64 [n_ops, n_types]

    Notes
    -----
    O(n_ops + n_edges).
    """
    graph, costs, roles = problem.model, problem.costs, problem.model.roles
    many = roles.many & ~graph.placeholder
    known = np.where(many[:, None], costs.time * times, costs.time)
    whole, _ = whole_bytes(graph, roles, own_weights(graph))
    whole = np.minimum(whole, graph.bytes_accessed)
    accessed = whole + _times(graph.bytes_accessed - whole, times)
    work = ProgramWork(
        graph,
        np.arange(graph.n_ops, dtype=np.int32),
        np.where(many, times, 1.0),
        np.full(graph.n_ops, COMPUTE, dtype=np.uint8),
        np.where(many, _times(graph.flops, times), graph.flops),
        np.where(many, accessed, graph.bytes_accessed),
        graph.view | graph.placeholder,
        graph.runs,
        graph.outputs,
    )
    if not all(of_type.has_roofline for of_type in problem.cluster.types):
        return known
    own = costs_of(work, costs, problem.cluster).time
    return np.where(is_estimated(costs.provenance)[:, None], own, known)


def _times(amount: NDArray[np.uint64], times: float) -> NDArray[np.uint64]:
    product = amount * np.uint64(times) if float(times).is_integer() else np.rint(amount * times)
    return np.asarray(product, dtype=np.uint64)
