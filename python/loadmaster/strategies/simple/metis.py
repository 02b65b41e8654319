"""METIS (Karypis and Kumar 1998): parts of equal weight that cut as little as possible, one per
device; Celeritas' first baseline (section 6.2.2).

METIS knows no directions and no order: the ops are ordered once the parts are made. A vertex is a
colocated set. pymetis hands METIS one weight per vertex, so memory is no constraint of its own. The
weight is time; if those parts do not fit, it is time and bytes in equal shares, and then bytes
alone.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import importing
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.registry import strategy
from loadmaster.strategies.simple.assigned import on_allowed, per_set
from loadmaster.strategies.simple.blends import blended

#: Sum of the weights of all vertices, and of all edges: METIS counts in 32 bits.
_TOTAL = 1 << 28

#: The least share of the weight that a part is given: METIS refuses shares that are 0 or 1 as
#: 32-bit floats.
_LEAST = 1e-6


@strategy("metis", "parts of equal weight that cut least, one per device (METIS)")
def place(problem: Problem, *, memory: MemoryModel = "dynamic") -> Candidate:
    """As many parts as devices, of weights in proportion to speed and memory, then ordered.

    Raises
    ------
    MissingExtraError
        pymetis is not installed.
    InfeasibleError
        No blend of time and bytes gives parts that fit.
    """
    return blended(
        problem,
        partial(parts, problem),
        memory,
        part="METIS' part",
    )


def parts(
    problem: Problem, bytes_: NDArray[np.uint64] | None = None, blend: float = 0.0
) -> NDArray[np.int32]:
    """METIS' part per reduced op, which is its device.

    Parameters
    ----------
    problem : Problem
        Its seed is METIS' seed.
    bytes_ : uint64 [n_reduced], optional
        What each op holds; the peak of a sequential run if absent.
    blend : float
        Share of bytes, against time, in the weights.

    Raises
    ------
    MissingExtraError
        pymetis is not installed.

    Notes
    -----
    O(V + E log k). An edge weighs what its tensors take between an average pair of devices.

    Examples
    --------
    >>> import pymetis  # of the extra "metis"
    >>> import loadmaster as lm
    >>> from loadmaster.judge.problem import Problem
    >>> g, c = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    >>> sorted(set(parts(Problem.make(g, c, lm.costs.estimate(g, c))).tolist()))
    [0, 1]
    """
    with importing("pymetis", "metis", "the method 'metis'"):
        import pymetis
    sets = problem.graph.colocation
    n_sets, k = int(sets.max()) + 1, problem.cluster.n_devices
    if k == 1 or n_sets <= k:
        # Nothing to partition; METIS would complain on standard output.
        each = np.arange(n_sets, dtype=np.int32) % np.int32(k)
        return on_allowed(problem, each)[sets]
    held = problem.reduced.held_at_peak if bytes_ is None else bytes_
    seconds = shares(per_set(problem, problem.op_time))
    weight = (1 - blend) * seconds + blend * shares(per_set(problem, held))
    target = (1 - blend) * shares(1.0 / _seconds_alone(problem))
    target = target + blend * shares(problem.capacity.astype(np.float64))
    if target.min() < _LEAST:
        target = shares(np.maximum(target, _LEAST))
    start, neighbour, edge = _adjacency(problem)
    _, part = pymetis.part_graph(
        k,
        pymetis.CSRAdjacency(start.tolist(), neighbour.tolist()),
        vweights=np.rint(weight * _TOTAL).astype(np.int64).tolist(),
        eweights=edge.tolist(),
        tpwgts=target.tolist(),
        options=pymetis.Options(seed=problem.seed % (1 << 31)),
    )
    return on_allowed(problem, np.array(part, dtype=np.int32))[sets]


def shares(column: NDArray[np.float64]) -> NDArray[np.float64]:
    """A column as shares of its sum; equal ones where that is nothing."""
    total = float(column.sum())
    if total <= 0:
        return np.full(len(column), 1 / max(len(column), 1))
    shares: NDArray[np.float64] = column / total
    return shares


def _seconds_alone(problem: Problem) -> NDArray[np.float64]:
    """Seconds that each device would take for all ops."""
    total: NDArray[np.float64] = problem.time.sum(axis=0)[problem.cluster.device_types]
    return np.maximum(total, 1e-12)


def weighted_edges(
    problem: Problem,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Undirected edges between the colocated sets, each once: its ends, and the seconds that its
    tensors take between an average pair of devices.
    """
    src, dst, tensors, sizes = problem.graph.flows()
    latency, per_byte = problem.links.mean_link
    seconds = np.maximum(tensors, 1) * latency + sizes.astype(np.float64) * per_byte
    sets = problem.graph.colocation.astype(np.int64)
    n = int(sets.max()) + 1
    low, high = np.minimum(sets[src], sets[dst]), np.maximum(sets[src], sets[dst])
    across = low != high
    pairs, which = np.unique(low[across] * n + high[across], return_inverse=True)
    summed = np.bincount(which, weights=seconds[across], minlength=len(pairs)).astype(np.float64)
    return pairs // n, pairs % n, summed


def _adjacency(problem: Problem) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Undirected graph of the sets: row starts, neighbours, whole weights of at least one."""
    low, high, seconds = weighted_edges(problem)
    n = int(problem.graph.colocation.max()) + 1
    whole = np.maximum(1, np.rint(shares(seconds) * _TOTAL)).astype(np.int64)
    ends = np.concatenate([low, high]), np.concatenate([high, low])
    by_end = np.argsort(ends[0], kind="stable")
    start = np.searchsorted(ends[0][by_end], np.arange(n + 1))
    return start, ends[1][by_end], np.concatenate([whole, whole])[by_end]
