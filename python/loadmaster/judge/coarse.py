"""Groups of ops, and what they come to: the one coarse problem that all who merge ops share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, ranks, summed


@dataclass(frozen=True)
class CoarseProblem:
    """A problem whose ops are merged into groups.

    Attributes
    ----------
    problem : Problem
        What was coarsened.
    group : int32 [n_reduced]
        Group per op of the reduced graph.

    Examples
    --------
    Two groups of LeNet's ops, the second of which runs first on device 1:

    >>> import loadmaster as lm, numpy as np
    >>> problem = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")).problem
    >>> halves = CoarseProblem(problem, (np.arange(problem.graph.n_ops) % 2).astype(np.int32))
    >>> bool(np.isclose(halves.sum(problem.op_time).sum(), problem.op_time.sum()))
    True
    >>> made = halves.expanded(np.array([0, 1], np.int32), np.array([1, 0], np.int32))
    >>> made.devices[:4].tolist(), bool(made.priority[1] < made.priority[0])
    ([0, 1, 0, 1], True)
    """

    problem: Problem
    group: NDArray[np.int32]

    @cached_property
    def n_groups(self) -> int:
        """The number of groups."""
        return int(self.group.max()) + 1

    @cached_property
    def contracted(self) -> fast.Graph:
        """The graph whose ops are the groups. The groups must be numbered in a topological order.

        O(V + E).
        """
        return fast.contract(self.problem.graph, self.group)

    @cached_property
    def time(self) -> NDArray[np.float64]:
        """Seconds of each group per device type, float64 [n_groups, n_types]."""
        return np.stack([self.sum(column) for column in self.problem.time.T], axis=1)

    @cached_property
    def core(self) -> fast.Problem:
        """The problem of placing the groups, as Rust sees it."""
        dispatch = self.problem.dispatch
        launches = None if dispatch is None else self.sum(dispatch)
        groups = fast.Problem(self.contracted, self.problem.links, self.time, launches)
        return groups.within(best_effort=self.problem.best_effort)

    @cached_property
    def weights(self) -> fast.Weights:
        """Weights of the groups for orders and levels: the mean times of their ops together, and
        transfers between an average pair of devices.
        """
        problem, groups = self.problem, self.contracted
        return fast.Weights(
            groups,
            self.sum(problem.op_time),
            problem.tensor_time(groups),
            control_time=problem.control_time,
        )

    def sum(self, per_op: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums a float64 column of the reduced graph over each group."""
        sums = np.bincount(self.group, weights=per_op, minlength=self.n_groups)
        return sums.astype(np.float64, copy=False)

    def charge(
        self, bytes_: NDArray[np.uint64], decides: NDArray[np.int32] | None = None
    ) -> NDArray[np.uint64]:
        """Bytes per group.

        Parameters
        ----------
        bytes_ : uint64 [n_reduced]
            What each op takes.
        decides : int32 [n_reduced], optional
            The group whose device each op takes, and which is charged for it; the op's own group if
            absent.
        """
        return summed(bytes_, self.group if decides is None else decides, self.n_groups)

    def first(self, per_op: NDArray[np.int32]) -> NDArray[np.int32]:
        """The value of the first op of each group, of an int32 column of the reduced graph."""
        first = np.empty(self.n_groups, dtype=np.int32)
        # Of several values for one group the last is kept.
        first[self.group[::-1]] = per_op[::-1]
        return first

    def expanded(self, devices: NDArray[np.int32], order: NDArray[np.int32]) -> Assignment:
        """A placement and an order of the groups as those of the ops.

        The groups follow each other in their order, the ops of a group topologically.

        Parameters
        ----------
        devices : int32 [n_groups]
        order : int32 [n_groups]
            Groups as they are to run.
        """
        topological = ranks(fast.m_topo(self.problem.graph))
        inner = np.lexsort((topological, ranks(order)[self.group])).astype(np.int32)
        return Assignment(devices[self.group], ranks(inner), "fixed")
