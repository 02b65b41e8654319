"""Celeritas' coarse graph (section 5.1): CPD-TOPO order, cut where the least data crosses.

Shared by Order-Place and Adjusting Placement.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.judge.problem import Problem, ranks

#: The paper's R and M (section 5.1.3).
R = 200
M = 0.25


@dataclass(frozen=True)
class Fused:
    """A coarse graph with what places it.

    Attributes
    ----------
    order : int32 [n_reduced]
        CPD-TOPO order of the ops.
    group : int32 [n_reduced]
        Group per op.
    coarse : fast.Graph
        The groups.
    coarse_order : int32 [n_groups]
        CPD-TOPO order of the groups.
    time : float64 [n_groups, n_types]
    """

    order: NDArray[np.int32]
    group: NDArray[np.int32]
    coarse: fast.Graph
    coarse_order: NDArray[np.int32]
    time: NDArray[np.float64]

    @cached_property
    def priority(self) -> NDArray[np.int32]:
        """Position of every op in :attr:`order`."""
        return ranks(self.order)

    def sum(self, per_op: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums a column over each group."""
        return sum_groups(self.group, per_op, self.coarse.n_ops)

    def charge(self, decides: NDArray[np.int32], bytes_: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Bytes per group, given the group that decides for each op: an op counts there."""
        charge = np.zeros(self.coarse.n_ops, dtype=np.uint64)
        np.add.at(charge, decides, bytes_)
        return charge


def deciders(graph: fast.Graph) -> list[NDArray[np.int32]]:
    """Ways to say which op decides for each: the first of its colocated set, or the first reader of
    the parameter that its set updates. Which is better depends on where the backward pass goes, so
    both are tried where they differ.
    """
    sets, own = graph.colocation, np.arange(graph.n_ops, dtype=np.int32)
    n_sets = int(sets.max()) + 1
    if n_sets < graph.n_ops:
        first = np.empty(n_sets, dtype=np.int32)
        # Of several values for one set the last is kept.
        first[sets[::-1]] = own[::-1]
        own = first.take(sets)
    return [own] if np.array_equal(own, graph.lead) else [own, graph.lead]


def fuse(
    problem: Problem, *, max_ops: int = R, max_bytes: float = M, max_time: float | None = None
) -> Fused:
    """Orders, cuts and contracts.

    Parameters
    ----------
    max_ops : the paper's R, most ops in a group.
    max_bytes : the paper's M, most bytes of a group as a share of the smallest device's memory.
    max_time : most seconds of compute in a group; none: no limit, as in the paper.
    """
    wants = "an integer, at least one op in a group"
    checks.integer("max_ops (R)", max_ops, most=2**63 - 1, wants=wants)
    wants = "a share of the smallest memory"
    checks.number("max_bytes (M)", max_bytes, wants, lambda v: 0 < v <= 1)
    if max_time is not None:
        checks.number("max_time", max_time, "seconds > 0", lambda v: v > 0)
    graph, op_time = problem.graph, problem.op_time
    tensor_time, control = problem.tensor_time(graph), problem.control_time
    order = fast.cpd_topo(graph, op_time, tensor_time, control_time=control)
    cuts = fast.breakpoints(
        graph,
        order,
        tensor_time,
        control_time=control,
        op_time=op_time,
        max_ops=max_ops,
        max_bytes=int(max_bytes * min(problem.cluster.memory)),
        max_time=max_time,
    )
    group = fast.segments(order, cuts)
    coarse = fast.contract(graph, group)
    columns = [sum_groups(group, column, coarse.n_ops) for column in problem.time.T]
    coarse_order = fast.cpd_topo(
        coarse,
        sum_groups(group, op_time, coarse.n_ops),
        problem.tensor_time(coarse),
        control_time=control,
    )
    return Fused(order, group, coarse, coarse_order, np.stack(columns, axis=1))


def sum_groups(
    group: NDArray[np.int32], per_op: NDArray[np.float64], n_groups: int
) -> NDArray[np.float64]:
    """Sums a column over each group."""
    return np.bincount(group, weights=per_op, minlength=n_groups).astype(np.float64, copy=False)
