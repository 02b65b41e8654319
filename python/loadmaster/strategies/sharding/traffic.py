"""Traffic: the seconds that collectives take on one axis of a mesh.

A mesh has a group of devices on an axis for each place on its other axes. All groups do the same at
the same time: the slowest counts, as often as groups share a channel, since a channel carries one
collective at a time. Times are the judge's own (:meth:`loadmaster.fast.Cluster.collective`).

Traffic of many small tensors to the same end goes in *buckets*: the latency of a bucket is shared
by what is in it.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.strategies.sharding.joint import dense, firsts
from loadmaster.transforms.specs import FORBIDDEN

#: Bytes at which groups are compared: where latencies count, and where bandwidths do.
_PROBES = (1_000, 100_000_000)

#: The sum that parts of an op exchange while they run.
ALL_REDUCE = fast.COLLECTIVES.index("all_reduce")


class Traffic:
    """Times of collectives on one axis.

    Parameters
    ----------
    links : fast.Cluster
    groups : int64 [n_groups, k]
        The devices of each group, in the order of the axis.

    Examples
    --------
    >>> import loadmaster as lm
    >>> links = lm.Cluster.preset("4xV100-PCIe")._core
    >>> pairs = Traffic(links, np.array([[0, 1], [2, 3]]))
    >>> pairs.seconds(ALL_REDUCE, 2_000_000) > pairs.seconds(ALL_REDUCE, 1_000_000) > 0
    True
    """

    def __init__(self, links: fast.Cluster, groups: NDArray[np.int64]) -> None:
        self.links, self.groups = links, groups
        self.k = groups.shape[1]
        self._slow: dict[int, tuple[list[list[int]], int]] = {}
        #: Seconds by bytes, of each collective.
        self._known: list[dict[int, float]] = [{} for _ in fast.COLLECTIVES]

    def _slowest(self, code: int) -> tuple[list[list[int]], int]:
        """The groups that are the slowest at some probe, and how many share a channel."""
        if code not in self._slow:
            rows: list[list[int]] = self.groups.tolist()
            held: Counter[int] = Counter()
            slow: dict[int, None] = {}
            for size in _PROBES:
                ways = [self.links.collective(fast.COLLECTIVES[code], row, size) for row in rows]
                slow[int(np.argmax([seconds for _, seconds, _ in ways]))] = None
                held = Counter(channel for _, _, channels in ways for channel in set(channels))
            self._slow[code] = [rows[i] for i in slow], max(held.values(), default=1)
        return self._slow[code]

    def channels(self) -> set[int]:
        """Every channel that some group holds while it sums or exchanges."""
        ways = (
            self.links.collective(word, row, 1_000_000)
            for word in ("all_reduce", "all_to_all")
            for row in self.groups.tolist()
        )
        return {channel for _, _, channels in ways for channel in channels}

    def seconds(self, code: int, size: float) -> float:
        """Seconds of a conversion (:func:`loadmaster.transforms.specs.conversion`) of a tensor of
        so many bytes; infinite where it cannot be done.
        """
        if code < 0 or size <= 0:
            return float("inf") if code == FORBIDDEN else 0.0
        return self._timed(code, [round(size)])[0]

    def _timed(self, code: int, sizes: list[int]) -> list[float]:
        """Seconds of a collective of tensors of so many bytes."""
        known = self._known[code]
        for size in sizes:
            if size not in known:
                groups, sharing = self._slowest(code)
                ways = [self.links.collective(fast.COLLECTIVES[code], row, size) for row in groups]
                known[size] = sharing * max(seconds for _, seconds, _ in ways)
        return [known[size] for size in sizes]

    def neighbours(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds in which every device gets so many bytes from the next one of its group."""
        seconds = np.zeros(len(sizes))
        if (some := sizes > 0).any():
            seconds[some] = self._hop[0] + sizes[some] * self._hop[1]
        return seconds

    @cached_property
    def _hop(self) -> tuple[float, float]:
        """Latency and seconds per byte between the neighbours that are furthest apart."""
        pairs = [pair for row in self.groups.tolist() for pair in pairwise(row)]
        routes = [self.links.route(a, b) for a, b in pairs]
        return max(route[0] for route in routes), max(1 / route[1] for route in routes)

    def each(
        self, code: int, sizes: NDArray[np.float64], bucket: float = 0.0
    ) -> NDArray[np.float64]:
        """Seconds of a conversion of each of some tensors; of one that is smaller than a bucket of
        so many bytes its share of the bucket's.
        """
        seconds = np.zeros(len(sizes))
        if code < 0 or not len(sizes):
            seconds[:] = self.seconds(code, 0.0)
            return seconds
        alone = np.flatnonzero((sizes > 0) & (sizes >= bucket))
        rounded = np.rint(sizes[alone]).astype(np.int64)
        which = dense(rounded)
        times = self._timed(code, rounded[firsts(which)].tolist())
        seconds[alone] = np.array(times)[which] if times else 0.0
        if bucket > 0 and len(alone) < len(sizes):
            shares = np.flatnonzero(sizes < bucket)
            seconds[shares] = self.seconds(code, bucket) * sizes[shares] / bucket
        return seconds
