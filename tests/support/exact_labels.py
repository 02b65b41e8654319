"""The labelling as an integer program: the reference that TRW-S is held against.

This is the intra-operator program of Alpa (Zheng et al., "Alpa: Automating Inter- and
Intra-Operator Parallelism for Distributed Deep Learning", OSDI 2022, section 4.2). Node v has a
binary ``s_v[i]`` per label, edge vu an ``e_vu[i, j]`` per pair of labels, which stands for the
product of ``s_v[i]`` and ``s_u[j]``:

    min  sum over nodes of c_v . s_v  +  sum over edges of R_vu . e_vu
    s.t. sum over i of s_v[i] = 1
         sum over j of e_vu[i, j] = s_v[i],  sum over i of e_vu[i, j] = s_u[j]

The products need not be declared whole: they are once the labels are. What differs: a forbidden
choice has no variable that may be 1, tied nodes share their variables, and edges between the same
two are one. Costs are scaled, because solvers' tolerances are absolute.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.milp import Builder, Solver, Status, Watch, solve
from loadmaster.strategies.sharding.labels import LabelCosts

#: Energy of the start in units of the program.
SPAN = 1000.0


@dataclass(frozen=True)
class ExactLabels:
    """What the solver found.

    Attributes
    ----------
    labels : int32 [n] or None
        None: the time was up before any were found.
    energy : float
        Weighted sum of their costs; ``inf`` without labels.
    bound : float
        No labels that obey the ties have less energy, as the solver proved; ``-inf``: it proved
        nothing.
    status : str
        As of :class:`loadmaster.milp.Solution`.
    cpu : float
        CPU seconds of the solver.
    """

    labels: NDArray[np.int32] | None
    energy: float
    bound: float
    status: Status
    cpu: float


def exact_labels(
    costs: LabelCosts,
    weights: NDArray[np.float64],
    *,
    tied: NDArray[np.int32] | None = None,
    start: NDArray[np.int32] | None = None,
    time_limit: float = 60.0,
    solver: Solver = "auto",
    progress: Watch | None = None,
) -> ExactLabels:
    """The labels of least energy, or the best that a solver finds in time.

    Parameters
    ----------
    costs : LabelCosts
    weights : float64 [C]
        Finite, not negative.
    tied : int32 [n], optional
        Nodes of one number take one label. A negative number: tied to none.
    start : int32 [n], optional
        Labels to start from, such as those of TRW-S. The answer is never worse.
    time_limit : float
        Seconds.
    solver : "auto" (default), "cbc", "highs" or "gurobi"
    progress : callable, optional
        Told the best energy, the bound and the solver's CPU seconds.

    Raises
    ------
    InfeasibleError
        No labels are without a forbidden choice.
    InputError
        The costs do not fit each other; tied nodes have different numbers of labels; the start has
        a forbidden choice, or breaks a tie.
    MissingExtraError, SolverError
        The solver is not installed; it failed.

    Examples
    --------
    >>> import numpy as np
    >>> one = np.array([0], dtype=np.int32)
    >>> apart = np.array([[9.0], [0.0], [0.0], [9.0]])
    >>> costs = LabelCosts(
    ...     np.array([0, 0]), np.array([0, 2]), np.array([[3.0], [1.0]]),
    ...     one, one + 1, one, np.array([0, 4]), one + 2, apart,
    ... )
    >>> found = exact_labels(costs, np.ones(1))
    >>> sorted(found.labels.tolist()), found.energy
    ([0, 1], 4.0)
    """
    any_labels = np.zeros(costs.problem.n_nodes, dtype=np.int32) if start is None else start
    known = costs.problem.energy(any_labels, weights)
    if start is not None and known == np.inf:
        raise InputError("start has a forbidden choice: wants labels without one")
    program = _Program(costs, weights, tied)
    scale = SPAN / (abs(known) if start is not None and known else program.largest)
    model = program.builder(scale).model(None if start is None else program.values(start))
    told = None if progress is None else _unscaled(progress, scale)
    found = solve(model, solver=solver, time_limit=time_limit, progress=told)
    if found.status == "infeasible":
        raise InfeasibleError("no labelling is without a forbidden choice, the solver proved")
    labels = start if found.values is None else program.labels(found.values)
    energy = np.inf if labels is None else costs.problem.energy(labels, weights)
    if start is not None and known <= energy:
        labels, energy = start, known
    bound = -np.inf if found.bound is None else min(found.bound / scale, energy)
    return ExactLabels(labels, float(energy), float(bound), found.status, found.cpu)


class _Program:
    """Variables and rows: ``s`` of each set of tied nodes, then ``e`` of each joined pair."""

    def __init__(
        self,
        costs: LabelCosts,
        weights: NDArray[np.float64],
        tied: NDArray[np.int32] | None,
    ) -> None:
        self.set_of = _sets(len(costs.node_table), tied)
        n_labels = np.diff(costs.unary_start)[costs.node_table]
        self.first_member = np.unique(self.set_of, return_index=True)[1]
        self.sizes = n_labels[self.first_member]
        if (self.sizes[self.set_of] != n_labels).any():
            raise InputError("tied has nodes of one number with different numbers of labels")
        #: The first variable of each set.
        self.first = np.concatenate([[0], np.cumsum(self.sizes)])
        self.own = np.zeros(self.first[-1])
        unary, pair = _weighted(costs.unary, weights), _weighted(costs.pair, weights)
        for table, at in zip(costs.node_table, self.set_of, strict=True):
            rows = unary[costs.unary_start[table] : costs.unary_start[table + 1]]
            self.own[self.first[at] : self.first[at + 1]] += rows
        self.joint = self._joint(costs, pair)

    def _joint(
        self, costs: LabelCosts, pair: NDArray[np.float64]
    ) -> dict[tuple[int, int], NDArray[np.float64]]:
        """Costs per pair of sets that edges join; those of edges inside a set become its own."""
        joint: dict[tuple[int, int], NDArray[np.float64]] = defaultdict(lambda: np.zeros(()))
        ends = zip(self.set_of[costs.src], self.set_of[costs.dst], costs.edge_table, strict=True)
        for a, b, p in ((int(a), int(b), int(p)) for a, b, p in ends):
            rows = pair[costs.pair_start[p] : costs.pair_start[p + 1]]
            table = rows.reshape(self.sizes[a], self.sizes[b])
            if a == b:
                self.own[self.first[a] : self.first[a + 1]] += table.diagonal()
            elif a < b:
                joint[a, b] = joint[a, b] + table
            else:
                joint[b, a] = joint[b, a] + table.T
        return joint

    @property
    def largest(self) -> float:
        """The largest cost that is allowed, or 1 where all are 0."""
        tables = (self.own, *self.joint.values())
        allowed = (float(np.abs(t[np.isfinite(t)]).max(initial=0.0)) for t in tables)
        return max(allowed) or 1.0

    def builder(self, scale: float) -> Builder:
        """The program."""
        b = Builder()
        s = b.variables(
            len(self.own),
            upper=np.isfinite(self.own),
            objective=scale * np.where(np.isfinite(self.own), self.own, 0.0),
            integer=True,
        )
        b.rows(np.repeat(np.arange(len(self.sizes)), self.sizes), s, 1.0, lower=1.0, upper=1.0)
        for (at, to), table in self.joint.items():
            flat = table.ravel()
            allowed = np.isfinite(flat)
            e = b.variables(
                flat.size, upper=allowed, objective=scale * np.where(allowed, flat, 0.0)
            )
            labels = np.indices(table.shape).reshape(2, flat.size)
            for end, label in zip((at, to), labels, strict=True):
                own = np.arange(self.sizes[end])
                row = np.concatenate([label, own])
                column = np.concatenate([e, s[self.first[end] + own]])
                value = np.repeat([1.0, -1.0], [flat.size, own.size])
                b.rows(row, column, value, lower=0.0, upper=0.0, count=own.size)
        return b

    def values(self, labels: NDArray[np.int32]) -> NDArray[np.float64]:
        """The point of labels."""
        of_set = labels[self.first_member]
        if (of_set[self.set_of] != labels).any():
            raise InputError("start has tied nodes with different labels")
        s = np.zeros(len(self.own))
        s[self.first[:-1] + of_set] = 1.0
        products = [s]
        for (a, b), table in self.joint.items():
            e = np.zeros(table.shape)
            e[of_set[a], of_set[b]] = 1.0
            products.append(e.ravel())
        return np.concatenate(products)

    def labels(self, values: NDArray[np.float64]) -> NDArray[np.int32]:
        """Labels per node of a point."""
        of_set = [values[a:b].argmax() for a, b in itertools.pairwise(self.first)]
        return np.array(of_set, dtype=np.int32)[self.set_of]


def _sets(n: int, tied: NDArray[np.int32] | None) -> NDArray[np.int64]:
    """The set of tied nodes that each node is in."""
    alone = -1 - np.arange(n)
    number = alone if tied is None else np.where(tied < 0, alone, tied)
    return np.unique(number, return_inverse=True)[1].reshape(n)


def _weighted(costs: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """A number per cost, ``inf`` where a component is."""
    forbidden = np.logical_or.reduce(np.isinf(costs), axis=1)
    return np.where(forbidden, np.inf, np.where(forbidden[:, None], 0.0, costs) @ weights)


def _unscaled(progress: Watch, scale: float) -> Watch:
    def told(best: float | None, bound: float | None, cpu: float) -> None:
        progress(
            None if best is None else best / scale, None if bound is None else bound / scale, cpu
        )

    return told
