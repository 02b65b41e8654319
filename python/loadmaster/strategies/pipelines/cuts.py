"""Cut candidates of a line: few, spread by work, each where little crosses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem
from loadmaster.strategies.pipelines.lines import Line

#: Most candidates for cuts.
MOST_CUTS = 240


def cuts(problem: Problem, line: Line, most: int = MOST_CUTS) -> NDArray[np.int64]:
    """Places before which a line may be cut: int64 [n_cuts], ascending, from 0 to its end.

    Where there are more than ``most`` besides the first, the work is divided into equal parts, and
    each part has the cut that the fewest bytes cross.

    Notes
    -----
    O((V + E) log E).

    Examples
    --------
    >>> import loadmaster as lm
    >>> from loadmaster.strategies.pipelines.lines import lines
    >>> graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("4xV100-PCIe")
    >>> problem = Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))
    >>> len(cuts(problem, lines(problem)[0], 24))
    25
    """
    n = len(line.is_open) - 1
    place = line.place[problem.reduced.op_of]
    work = np.cumsum(np.bincount(place, weights=problem.op_time, minlength=n))
    inner = np.flatnonzero(line.is_open[1:n]) + 1
    if len(inner) > most - 1:
        width = crossing_bytes(problem, place, n)[inner]
        parts = most - 1
        part = np.minimum(work[inner - 1] / work[-1] * parts, parts - 1).astype(np.int64)
        order = np.lexsort((inner, width, part))
        inner = inner[np.sort(order[np.unique(part[order], return_index=True)[1]])]
    return np.concatenate([[0], inner, [n]]).astype(np.int64)


def crossing_bytes(problem: Problem, place: NDArray[np.int64], n: int) -> NDArray[np.float64]:
    """Bytes of the tensors that cross each cut of a line of n places, in either direction, each
    tensor once: float64 [n + 1].
    """
    src, dst, tensor, bytes_, is_home = fast.edges(problem.graph)
    data = (tensor >= 0) & ~is_home
    tensor, size = tensor[data], bytes_[data].astype(np.float64)
    source, read = place[src[data]], place[dst[data]]
    step = np.zeros(n + 2)
    for first, last in ((source, np.maximum(source, read)), (np.minimum(source, read), source)):
        ids, at = np.unique(tensor, return_inverse=True)
        low, high = np.full(len(ids), n), np.full(len(ids), -1)
        np.minimum.at(low, at, first)
        np.maximum.at(high, at, last)
        of_tensor = np.zeros(len(ids))
        of_tensor[at] = size
        np.add.at(step, low + 1, of_tensor)
        np.add.at(step, high + 1, -of_tensor)
    return np.asarray(np.cumsum(step)[: n + 1])
