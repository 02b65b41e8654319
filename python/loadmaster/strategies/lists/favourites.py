"""Favourite children for m-SCT (Baechi, Jeon et al., SoCC 2020, section 3.2), by the LP relaxation
of Hanen and Munier's SCT (Discrete Applied Mathematics 108, 2001).

x_ij is 0 where j is i's favourite child: the two share a device and no time passes between them.
With p the times of ops, c those of transfers, s starts and w the makespan:

    minimise w        s_i + p_i <= w          s_j >= s_i + p_i + c_ij x_ij        0 <= x_ij <= 1
    sum over j of x_ij >= successors of i - 1          (at most one favourite child)
    sum over i of x_ij >= predecessors of j - 1        (at most one favourite parent)

An x_ij below 0.1 makes j the favourite. Stated in y = 1 - x below, which is a fractional matching.
Changed against the paper:

* An op and its only reader count as one op where that reader reads nothing else: x = 0 costs
  nothing there. Ops that must share a device send each other nothing, ops that cannot always send.
* The program has many optima. The one that saves most transfer time is taken (at a weight of 1e-4):
  else the solver's whim would choose the favourites off the critical path. It is solved faster,
  too.
* Rounding can leave an op with two favourites; the paper's code lets the last one win. Here the
  smallest x wins, then the smaller parent, then the smaller child.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem
from loadmaster.milp import Builder, Model, optimum

#: Largest x of a favourite (Baechi, section 3.2.2).
THRESHOLD = 0.1

#: Seconds for the linear program.
TIME_LIMIT = 20.0

#: Weight of transfer time saved against makespan.
_SAVING = 1e-4

#: The sum of all op times in the linear program: solvers' tolerances are absolute.
_WORK = 1000.0


@dataclass(frozen=True)
class Favourites:
    """Favourite child per op, int32 [n_reduced] (-1: none), and what the user should know."""

    child: NDArray[np.int32]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Flows:
    """Edges of the reduced graph that may have favourites, as columns, and chains of ops.

    ``chained`` edges join ops of one chain; ``choice`` are those with a variable.
    """

    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    seconds: NDArray[np.float64]
    chained: NDArray[np.bool_]
    choice: NDArray[np.bool_]
    chain: NDArray[np.int64]


def favourite_children(problem: Problem, *, time_limit: float = TIME_LIMIT) -> Favourites:
    """The favourite child of every reduced op: at most one each, and at most one parent each.

    Where the linear program is not solved in time, or the solver fails, the transfers that take
    longest choose first, and a note says so.

    Parameters
    ----------
    problem : Problem
    time_limit : float
        Seconds for the linear program, in a worker process (HiGHS if installed, else CBC).

    Notes
    -----
    The program has a row per edge; see ``benches/README.md`` for seconds on real graphs.

    Examples
    --------
    >>> import loadmaster as lm
    >>> from loadmaster.judge.problem import Problem
    >>> g, c = lm.read("example:lenet"), lm.Cluster.preset("4xV100-PCIe")
    >>> p = Problem.make(g, c, lm.costs.estimate(g, c))
    >>> f = favourite_children(p)
    >>> f.child.shape == (p.graph.n_ops,), f.notes
    (True, ())
    """
    flows = _flows(problem)
    if not flows.choice.any():
        return Favourites(_exclusive(problem, flows, np.zeros(len(flows.src)), flows.chained))
    values, why = optimum(_program(problem, flows), time_limit)
    if values is None:
        child = _longest_first(problem, flows)
        return Favourites(child, (f"favourite children: {why}; the longest transfers chose",))
    x = np.zeros(len(flows.src))
    # Rounded, so that what a solver's noise tells apart ties.
    x[flows.choice] = np.round(1.0 - values[: np.count_nonzero(flows.choice)], 6)
    return Favourites(
        _exclusive(problem, flows, x, flows.chained | (flows.choice & (x < THRESHOLD)))
    )


def without_program(problem: Problem) -> Favourites:
    """Favourite children without the linear program: the transfers that take longest choose first.

    Notes
    -----
    O(E log E), and the same on every machine, whatever solver is installed there.
    """
    return Favourites(_longest_first(problem, _flows(problem)))


def _longest_first(problem: Problem, flows: _Flows) -> NDArray[np.int32]:
    """The favourite child of each op, where those edges choose first that save most time."""
    key = np.where(flows.chained, -np.inf, -flows.seconds)
    return _exclusive(problem, flows, key, flows.chained | flows.choice)


def _flows(problem: Problem) -> _Flows:
    graph = problem.graph
    src, dst, tensors, sizes = graph.flows()
    latency, per_byte = problem.links.mean_link
    # A control edge is one message without data.
    seconds = np.maximum(tensors, 1) * latency + sizes.astype(np.float64) * per_byte
    known = np.uint64((1 << len(problem.cluster.types)) - 1)
    together = graph.colocation[src] == graph.colocation[dst]
    apart = (graph.allowed[src] & graph.allowed[dst] & known) == 0
    only_child = np.bincount(src, minlength=graph.n_ops)[src] == 1
    only_parent = np.bincount(dst, minlength=graph.n_ops)[dst] == 1
    chained = only_child & only_parent & ~apart
    seconds[together] = 0.0

    before = np.full(graph.n_ops, -1, dtype=np.int64)
    before[dst[chained]] = src[chained]
    first = np.arange(graph.n_ops)
    for op in fast.m_topo(graph):
        if before[op] >= 0:
            first[op] = first[before[op]]
    chain = np.unique(first, return_inverse=True)[1]
    return _Flows(src, dst, seconds, chained, ~(chained | together | apart), chain)


def _program(problem: Problem, flows: _Flows) -> Model:
    """In y = 1 - x, over chains: variables are y per choice, a start per chain, the makespan."""
    chain, scale = flows.chain, _WORK / max(float(problem.op_time.sum()), 1e-12)
    time = np.bincount(chain, weights=problem.op_time) * scale
    seconds = flows.seconds * scale
    outer = np.flatnonzero(~flows.chained)
    src, dst = chain[flows.src[outer]], chain[flows.dst[outer]]
    chosen = np.flatnonzero(flows.choice[outer])
    saved = seconds[outer][chosen]

    b = Builder()
    y = b.variables(len(chosen), upper=1.0, objective=-_SAVING * saved)
    start = b.variables(len(time))
    makespan = b.variables(1, objective=1.0)
    edge = np.arange(len(outer))
    b.rows(
        np.concatenate([edge, edge, chosen]),
        np.concatenate([start[dst], start[src], y]),
        np.concatenate([np.ones(len(edge)), -np.ones(len(edge)), saved]),
        lower=time[src] + seconds[outer],
    )
    # Only the last op of a path bounds the makespan.
    last = np.flatnonzero(np.bincount(src, minlength=len(time)) == 0)
    b.above(np.repeat(makespan, len(last)), start[last], time[last])
    for end in (src[chosen], dst[chosen]):
        count = np.bincount(end, minlength=len(time))
        several = count > 1
        rank = np.cumsum(several) - 1
        bound = several[end]
        b.rows(rank[end[bound]], y[bound], 1.0, upper=np.ones(int(several.sum())))
    return b.model()


def _exclusive(
    problem: Problem, flows: _Flows, key: NDArray[np.float64], wanted: NDArray[np.bool_]
) -> NDArray[np.int32]:
    """Wanted edges by smallest key, then parent, then child; none whose ends are taken."""
    child = np.full(problem.graph.n_ops, -1, dtype=np.int32)
    has_parent = np.zeros(problem.graph.n_ops, dtype=bool)
    candidates = np.flatnonzero(wanted)
    order = np.lexsort((flows.dst[candidates], flows.src[candidates], key[candidates]))
    for edge in candidates[order]:
        parent, favourite = flows.src[edge], flows.dst[edge]
        if child[parent] < 0 and not has_parent[favourite]:
            child[parent] = favourite
            has_parent[favourite] = True
    return child
