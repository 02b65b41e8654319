"""Celeritas' coarse graph (section 5.1): CPD-TOPO order, cut where the least data crosses.

The paper calls this fusion. Order-Place and Adjusting Placement share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.judge.coarse import CoarseProblem
from loadmaster.judge.problem import Problem, ranks

#: The paper's R and M (section 5.1.3).
R = 200
M = 0.25


class Cuts(TypedDict, total=False):
    """Options of all methods that cut segments; see :func:`segmented`.

    Attributes
    ----------
    max_ops : int
        Ops of a group, at most: the paper's R, 200 if absent.
    max_bytes : float
        Bytes of a group, at most, as a share of the smallest memory: the paper's M, 0.25 if absent.
    max_time : float or None
        Seconds of compute of a group, at most; no limit if absent.
    """

    max_ops: int
    max_bytes: float
    max_time: float | None


@dataclass(frozen=True)
class OrderSegments(CoarseProblem):
    """Groups that are segments of an order.

    Attributes
    ----------
    order : int32 [n_reduced]
        CPD-TOPO order of the ops.
    """

    order: NDArray[np.int32]

    @cached_property
    def group_order(self) -> NDArray[np.int32]:
        """CPD-TOPO order of the groups, int32 [n_groups]."""
        return fast.cpd_topo(self.weights)

    @cached_property
    def priority(self) -> NDArray[np.int32]:
        """Position of every op in :attr:`order`."""
        return ranks(self.order)


def segmented(
    problem: Problem, *, max_ops: int = R, max_bytes: float = M, max_time: float | None = None
) -> OrderSegments:
    """Puts ops in CPD-TOPO order and cuts the order where the least data crosses.

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
    order = fast.cpd_topo(problem.weights)
    cuts = fast.breakpoints(
        problem.weights,
        order,
        max_ops=max_ops,
        max_bytes=int(max_bytes * min(problem.cluster.memory)),
        max_time=max_time,
    )
    return OrderSegments(problem, fast.segments(order, cuts), order)
