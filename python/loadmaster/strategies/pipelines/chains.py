"""The best contiguous stages along a line, by what stages cost alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem
from loadmaster.strategies.pipelines.estimates import StageTimes
from loadmaster.strategies.pipelines.stage_costs import StageCosts
from loadmaster.strategies.pipelines.stage_links import joins
from loadmaster.strategies.sharding.meshes import meshes


@dataclass(frozen=True)
class Pool:
    """Devices of one type and memory, neighbours next to each other.

    A stage takes ``width`` of them, which follow each other.
    """

    device_type: int
    memory: int
    devices: tuple[int, ...]
    width: int = 1

    @property
    def sets(self) -> list[tuple[int, ...]]:
        """The devices of each stage that the pool may have."""
        ends = range(self.width, len(self.devices) + 1, self.width)
        return [self.devices[end - self.width : end] for end in ends]


def pools(problem: Problem) -> list[Pool]:
    """The devices of a cluster by type and memory.

    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("4xV100-PCIe")
    >>> found = pools(Problem.make(graph, cluster, lm.costs.estimate(graph, cluster)))
    >>> [pool.devices for pool in found]
    [(0, 1, 2, 3)]
    """
    cluster = problem.cluster
    devices = range(cluster.n_devices)
    near = next(
        (m.on(cluster).tolist() for m in meshes(problem) if m.size == len(devices)), devices
    )
    kinds: dict[tuple[int, int], list[int]] = {}
    for d in near:
        kinds.setdefault((cluster.device_types[d], cluster.memory[d]), []).append(d)
    return [Pool(kind, memory, tuple(members)) for (kind, memory), members in kinds.items()]


def in_sets(of: Sequence[Pool], width: int) -> list[Pool]:
    """The pools whose stages have so many devices each; none where some pool cannot be divided.

    >>> [pool.sets for pool in in_sets([Pool(0, 1, (3, 1, 2, 0))], 2)]
    [[(3, 1), (2, 0)]]
    """
    if any(len(pool.devices) % width for pool in of):
        return []
    return [replace(pool, width=width) for pool in of]


@dataclass(frozen=True, eq=False)
class StageWay:
    """A way to run stages: at these costs, on a device of this pool.

    ``in_flight`` has how many micro-batches are alive in a stage, by the number of stages before
    it.
    """

    costs: StageCosts
    pool: int
    in_flight: tuple[int, ...]


@dataclass(frozen=True)
class Chain:
    """Stages along a line: the cut at the end of each, its way, and its devices."""

    ends: tuple[int, ...]
    ways: tuple[int, ...]
    devices: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The cuts at both ends of each stage."""
        return list(zip((0, *self.ends[:-1]), self.ends, strict=True))

    def stage(self, place: NDArray[np.int64], cuts: NDArray[np.int64]) -> NDArray[np.int32]:
        """The stage of what stands at each place of the line."""
        inner = cuts[list(self.ends[:-1])]
        return np.searchsorted(inner, place, "right").astype(np.int32)


def best_chain(
    of: Sequence[Pool],
    ways: Sequence[StageWay],
    n_stages: int,
    weight: float,
    *,
    share: float = 1.0,
) -> Chain | None:
    """The stages with the least sum of paths plus ``weight`` times the largest load.

    With m micro-batches, ``weight`` is m - 1, and the sum is about what a step takes. Every stage
    has devices of its own, of any pool; a stage may be run in any way. None: no such stages fit
    within ``share`` of the memory.

    Notes
    -----
    Exact; :func:`loadmaster.fast.best_stages`.
    """
    costs = [(way.costs, of[way.pool].device_type) for way in ways]
    n = costs[0][0].n_cuts
    if n_stages > sum(len(pool.sets) for pool in of) or n_stages >= n:
        return None
    chain = fast.best_stages(
        np.concatenate([one.loads[kind] for one, kind in costs]),
        np.concatenate([one.path(kind) for one, kind in costs]),
        (
            np.concatenate([one.fixed.ravel() for one, _ in costs]),
            np.concatenate([one.held.ravel() for one, _ in costs]),
        ),
        (
            np.array([way.pool for way in ways]),
            np.ones(len(ways), dtype=np.int64),
            np.array([int(share * of[way.pool].memory) for way in ways], dtype=np.uint64),
            np.array([way.in_flight for way in ways], dtype=np.uint64).ravel(),
        ),
        ([min(len(pool.sets), n_stages) for pool in of], n_stages),
        weight,
    )
    if chain is None:
        return None
    ends, way = (column.tolist() for column in chain)
    left = [pool.sets for pool in of]
    devices = [left[ways[w].pool].pop(0) for w in way]
    return Chain(tuple(ends), tuple(way), tuple(devices))


def times(
    of: Sequence[Pool], ways: Sequence[StageWay], chain: Chain, links: fast.Cluster
) -> StageTimes:
    """Seconds of each stage of a chain, for one micro-batch, over the links between its devices."""
    way, (first, last) = np.array(chain.ways), np.array(chain.ranges).T
    seconds, out = np.empty((4, len(chain))), np.empty((len(chain), 2, 2))
    for w in set(chain.ways):
        costs, kind, at = ways[w].costs, of[ways[w].pool].device_type, way == w
        until = costs.until[:, :, kind]
        seconds[:, at] = np.maximum(until[:, last[at]] - until[:, first[at]], 0.0)
        out[at] = np.moveaxis(costs.out[:, :, first[at], last[at]], -1, 0)
    joined = joins(links, chain.devices)
    send = (joined.there * out[:-1, 0]).sum(axis=1)
    send_back = (joined.back * out[1:, 1]).sum(axis=1)
    forward, backward, weight, update = seconds
    return StageTimes(forward, backward, weight, update, send, send_back, joined.wires)


def most_alive(
    of: Sequence[Pool], ways: Sequence[StageWay], chain: Chain, m: int, share: float = 1.0
) -> list[int]:
    """The number of micro-batches that each stage's memory holds, at least 1 and at most m."""
    counts = []
    for (i, j), w in zip(chain.ranges, chain.ways, strict=True):
        costs, memory = ways[w].costs, int(share * of[ways[w].pool].memory)
        free, each = memory - int(costs.fixed[i, j]), int(costs.held[i, j])
        counts.append(max(1, min(m, free // each)) if each else m)
    return counts
