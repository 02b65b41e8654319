"""Parts that cut little, one per device, on all devices or on fewer: a start for the search where
transfers are dear.

As METIS does (:mod:`loadmaster.strategies.simple.metis`), by Loadmaster's own multilevel partition
(:func:`loadmaster.fast.partition`), so that it needs no extra. Where links are slow, half of the
devices are often better than all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError
from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.simple.assigned import on_allowed, per_set
from loadmaster.strategies.simple.blends import blended
from loadmaster.strategies.simple.metis import shares, weighted_edges

#: Sum of the weights of all vertices, and of all edges.
_TOTAL = 1 << 40

#: Partitions that :func:`renumbered` tries.
_NUMBERINGS = 6

#: A number for each of so many vertices: int [n_vertices].
Numbering = Callable[[int], NDArray[np.int64]]


def place(problem: Problem) -> Candidate:
    """The best of partitions for all devices, half of them, and so on down to two.

    Raises
    ------
    InfeasibleError
        None fits.
    """
    return _best(problem, (partial(_on, problem, some, np.arange) for some in _halves(problem)))


def renumbered(problem: Problem) -> Candidate:
    """The best of partitions for all devices with vertices taken in other orders.

    Of vertices as good as one another the first is matched or moved, so another order gives another
    partition; its cut may be no smaller, and its schedule much shorter.

    Raises
    ------
    InfeasibleError
        None fits.
    """
    numbering = np.random.default_rng(problem.seed).permutation
    once = partial(_on, problem, problem.fastest_first, numbering)
    return _best(problem, (once for _ in range(_NUMBERINGS)))


def _halves(problem: Problem) -> Iterator[NDArray[np.int32]]:
    """All devices, the fastest half of them, and so on."""
    count = problem.cluster.n_devices
    while True:
        yield problem.fastest_first[:count]
        count //= 2
        if count < 2:
            return


def _best(problem: Problem, attempts: Iterable[Callable[[], Candidate]]) -> Candidate:
    """The best of what fits.

    Raises
    ------
    InfeasibleError
        Nothing does; that of the first.
    """
    best: Candidate | None = None
    refused: InfeasibleError | None = None
    for attempt in attempts:
        try:
            candidate = attempt()
        except InfeasibleError as error:
            refused = refused or error
            continue
        best = candidate if best is None else problem.objective.better(best, candidate)
    if best is None:
        assert refused is not None
        raise refused
    return best


def _on(problem: Problem, some: NDArray[np.int32], numbering: Numbering) -> Candidate:
    """A part for each of some devices: weighed by time, by both, by bytes, until it fits."""
    return blended(
        problem,
        partial(_parts, problem, some, numbering),
        "dynamic",
        part="a part",
    )


def _parts(
    problem: Problem,
    some: NDArray[np.int32],
    numbering: Numbering,
    bytes_: NDArray[np.uint64],
    blend: float,
) -> NDArray[np.int32]:
    sets = problem.graph.colocation
    low, high, seconds = weighted_edges(problem)
    weight = (1 - blend) * shares(per_set(problem, problem.op_time))
    weight = weight + blend * shares(per_set(problem, bytes_))
    types = np.array(problem.cluster.device_types)[some]
    alone = np.maximum(problem.time.sum(axis=0)[types], 1e-12)
    target = (1 - blend) * shares(1.0 / alone)
    target = target + blend * shares(problem.capacity[some].astype(np.float64))
    number = numbering(len(weight))
    part = fast.partition(
        np.rint(weight[np.argsort(number)] * _TOTAL).astype(np.uint64),
        number[low],
        number[high],
        np.maximum(1, np.rint(shares(seconds) * _TOTAL)).astype(np.uint64),
        np.maximum(target, 1e-12),
    )
    return on_allowed(problem, some[part[number]])[sets]
