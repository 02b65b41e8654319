"""GETF's groups (Su, Ren, Vardi, Wierman 2020, "Communication-Aware Scheduling of
Precedence-Constrained Tasks on Related Machines", section 3): which device types ETF may use for
each op.

The linear program of Chudak and Shmoys (1999) spreads each op over machines; equal machines, here
devices of a type, share a variable. With p_jk the time of op j on type k, of which there are m_k:

    minimise T      sum over k of x_jk = 1      C_j >= sum over k of p_jk x_jk
    C_j >= C_i + sum over k of p_jk x_jk for an edge (i, j)
    C_j <= T        sum over j of p_jk x_jk <= m_k T

Machines whose speeds lie within a factor of log m / log log m form a group; those m times slower
than the fastest are left out. An op goes to the group with the largest total speed of those from
the fastest down to the first that, with the faster ones, holds half of the op. Changed against the
paper:

* Machines are related there, their speeds are numbers. Here each op has its own times, measured or
  estimated; they stand in the program, and a type's speed is that of the mean op.
* Colocated ops share their fractions. An op may use a type that is left out if it has no other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.judge.allowed import allowed_devices
from loadmaster.judge.problem import Problem
from loadmaster.milp import Builder, Model, optimum
from loadmaster.strategies.simple.assigned import per_set

#: Seconds for the linear program.
TIME_LIMIT = 60.0

#: The sum of all op times in the linear program: solvers' tolerances are absolute.
_WORK = 1000.0


@dataclass(frozen=True)
class TypeMasks:
    """Types that each op may use, uint64 [n_reduced] (bit k: type k), and what the user should
    know.
    """

    masks: NDArray[np.uint64]
    notes: tuple[str, ...] = ()


def type_masks(problem: Problem, *, time_limit: float = TIME_LIMIT) -> TypeMasks:
    """The device types of the group that GETF gives each op; all it allows where they are equal.

    Where the linear program is not solved in time, or the solver fails, every type that an op
    allows stays open, which makes GETF plain ETF; a note says so.

    Parameters
    ----------
    problem : Problem
    time_limit : float
        Seconds for the linear program, in a worker process (HiGHS if installed, else CBC).

    Raises
    ------
    InfeasibleError
        An op that no type of the cluster may run; it is named.

    Notes
    -----
    The program has a row per edge and a column per op and type.

    Examples
    --------
    >>> import loadmaster as lm
    >>> from loadmaster.judge.problem import Problem
    >>> g, c = lm.read("example:lenet"), lm.Cluster.preset("4xV100-PCIe")
    >>> p = Problem.make(g, c, lm.costs.estimate(g, c))
    >>> bool((type_masks(p).masks == p.graph.allowed & 1).all())   # one type: nothing to choose
    True
    """
    known = np.uint64((1 << len(problem.cluster.types)) - 1)
    everything = problem.graph.allowed & known
    group = _groups(problem)
    usable = _usable(problem, group)
    if all(np.array_equal(column, problem.time[:, 0]) for column in problem.time.T):
        return TypeMasks(everything)
    values, why = optimum(_program(problem, usable), time_limit)
    if values is None:
        return TypeMasks(everything, (f"GETF's groups: {why}; every type is open, as in ETF",))
    fractions = values[: usable.size].reshape(usable.shape)
    return TypeMasks(_chosen(problem, fractions, group, usable)[problem.graph.colocation])


def _groups(problem: Problem) -> NDArray[np.int64]:
    """Group of each type, 0 for the fastest ones, int64 [n_types]; -1: too slow to be used."""
    m = problem.cluster.n_devices
    slowness: NDArray[np.float64] = np.maximum(problem.time.mean(axis=0), 1e-12)
    slowness = slowness / slowness.min()
    factor = math.log2(m) / math.log2(math.log2(m)) if m >= 4 else 2.0
    # Rounded, so that a type exactly a factor slower is in the next group everywhere.
    steps = np.floor(np.round(np.log(slowness) / math.log(factor), 9)).astype(np.int64)
    group: NDArray[np.int64] = np.where(slowness > m, -1, steps)
    return group


def _usable(problem: Problem, group: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mask of the types that each colocated set may use, bool [n_sets, n_types]."""
    by_device = allowed_devices(problem)
    first = [problem.cluster.device_types.index(k) for k in range(len(group))]
    allowed = by_device[:, first]
    quick = allowed & (group >= 0)
    has_quick = np.asarray(quick.any(axis=1))
    return np.where(has_quick[:, None], quick, allowed)


def _chosen(
    problem: Problem,
    fractions: NDArray[np.float64],
    group: NDArray[np.int64],
    usable: NDArray[np.bool_],
) -> NDArray[np.uint64]:
    """The group rule: a mask of types per colocated set, from its fractions on the types."""
    # What is too slow comes last.
    _, rank = np.unique(np.where(group < 0, group.max() + 1, group), return_inverse=True)
    member: NDArray[np.bool_] = np.equal.outer(np.arange(rank.max() + 1), rank)
    # A fraction on a group or faster ones; rounded, so that a solver's noise decides nothing.
    reached = np.round(np.cumsum(fractions @ member.T, axis=1), 6) >= 0.5
    slowest = np.argmax(reached, axis=1)
    count = np.bincount(problem.cluster.device_types, minlength=len(group))
    speed = member @ (count / np.maximum(problem.time.mean(axis=0), 1e-12))
    has_type = (usable @ member.T) > 0
    open_ = has_type & (np.arange(len(member))[None, :] <= slowest[:, None])
    best = np.argmax(np.where(open_, speed[None, :], -1.0), axis=1)
    bits = np.uint64(1) << np.arange(len(group), dtype=np.uint64)
    masks: NDArray[np.uint64] = np.where(member[best] & usable, bits[None, :], np.uint64(0)).sum(
        axis=1, dtype=np.uint64
    )
    return masks


def _program(problem: Problem, usable: NDArray[np.bool_]) -> Model:
    """Variables are the fractions of set s on type k (at ``s * n_types + k``), then completions,
    then T.
    """
    graph, n_types = problem.graph, len(problem.cluster.types)
    scale = _WORK / max(float(problem.op_time.sum()), 1e-12)
    time = problem.time * scale
    src, dst, _, _ = graph.flows()
    n_sets = len(usable)
    b = Builder()
    x = b.variables(usable.size, upper=np.where(usable, 1.0, 0.0).ravel()).reshape(-1, n_types)
    done = b.variables(graph.n_ops)
    horizon = b.variables(1, objective=1.0)

    everyone = np.arange(n_sets)
    b.rows(np.repeat(everyone, n_types), x.ravel(), 1.0, lower=np.ones(n_sets), upper=1.0)

    def after(ops: NDArray[np.int64], before: NDArray[np.int64] | None) -> None:
        """Completion of ops, no sooner than their time after that of others."""
        row = np.arange(len(ops))
        parts = [
            (row, done[ops], np.ones(len(ops))),
            (np.repeat(row, n_types), x[graph.colocation[ops]].ravel(), -time[ops].ravel()),
        ]
        if before is not None:
            parts.append((row, done[before], -np.ones(len(ops))))
        joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
        b.rows(joined[0], joined[1], joined[2], lower=np.zeros(len(ops)))

    after(dst.astype(np.int64), src.astype(np.int64))
    after(np.flatnonzero(np.bincount(dst, minlength=graph.n_ops) == 0), None)
    last = np.flatnonzero(np.bincount(src, minlength=graph.n_ops) == 0)
    b.above(np.repeat(horizon, len(last)), done[last], np.zeros(len(last)))
    load = per_set(problem, time)
    count = np.bincount(problem.cluster.device_types, minlength=n_types).astype(np.float64)
    kinds = np.arange(n_types)
    b.rows(
        np.concatenate([np.tile(kinds, n_sets), kinds]),
        np.concatenate([x.ravel(), np.repeat(horizon, n_types)]),
        np.concatenate([load.ravel(), -count]),
        upper=np.zeros(n_types),
    )
    return b.model()
