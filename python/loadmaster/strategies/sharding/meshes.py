"""Meshes worth trying on a cluster: its devices, or some of them, as one axis, two, or three.

Axes follow the hierarchy of links: devices that the fastest links join are neighbours on the
innermost axes. Where all links are alike, an order of the same sizes is tried once. Fewer devices
are the fastest ones, halved again and again. Devices of unequal speed get unequal parts of a
dimension, in proportion to their speed, if an axis has them at its places; a mesh whose places on an
axis differ within themselves has equal parts there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from loadmaster.judge.problem import Problem
from loadmaster.strategies.simple.data_parallel import usable

#: The most axes of a mesh.
MOST_AXES = 3


@dataclass(frozen=True)
class Grid:
    """Devices as a mesh.

    Attributes
    ----------
    devices : int64 [sizes of the axes]
        Index of the device at each place.
    shares : tuple of (None or tuple of float)
        Per axis, what the parts at its places go by; None: all are equal.
    """

    devices: NDArray[np.int64]
    shares: tuple[tuple[float, ...] | None, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of places on each axis."""
        return self.devices.shape

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return self.devices.size

    @cached_property
    def words(self) -> str:
        """The sizes as a person would write them.

        >>> Grid(np.arange(8).reshape(2, 4), (None, None)).words
        '2 x 4'
        """
        return " x ".join(map(str, self.sizes))

    def groups(self, axis: int) -> NDArray[np.int64]:
        """The devices of each group on an axis: int64 [n_groups, size].

        >>> Grid(np.arange(4).reshape(2, 2), (None, None)).groups(0).tolist()
        [[0, 2], [1, 3]]
        """
        return np.moveaxis(self.devices, axis, -1).reshape(-1, self.sizes[axis])


def grids(problem: Problem) -> Iterator[Grid]:
    """Meshes of all usable devices first, then of fewer; fewer axes first.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("4xV100-PCIe")
    >>> problem = Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))
    >>> [grid.words for grid in grids(problem)]
    ['4', '2 x 2', '2']
    """
    fastest = usable(problem)
    n = len(fastest)
    while n > 1:
        chosen = _near_each_other(problem, fastest[:n])
        is_uniform = len(set(_widths(problem, chosen))) == 1
        for sizes in _factorisations(n, is_uniform):
            yield _grid(problem, chosen, sizes)
        n //= 2


def _factorisations(n: int, is_uniform: bool) -> Iterator[tuple[int, ...]]:
    """Sizes of axes, 2 or more each, whose product is n: few axes first."""
    found: dict[tuple[int, ...], None] = {}

    def split(left: int, sizes: tuple[int, ...]) -> None:
        found.setdefault((*sizes, left))
        if len(sizes) + 1 < MOST_AXES:
            for size in range(2, left // 2 + 1):
                if left % size == 0:
                    split(left // size, (*sizes, size))

    split(n, ())
    for sizes in sorted(found, key=lambda sizes: (len(sizes), sizes)):
        if not is_uniform or list(sizes) == sorted(sizes):
            yield sizes


def _widths(problem: Problem, devices: list[int]) -> list[float]:
    """Bandwidths of the routes between devices, in bytes per second."""
    pairs = ((a, b) for a in devices for b in devices if a != b)
    return [problem.links.route(a, b)[1] for a, b in pairs]


def _near_each_other(problem: Problem, devices: list[int]) -> list[int]:
    """The devices in an order in which each is followed by the one that the widest route joins to
    those before, the last of them first; of equals the smallest.
    """
    left, order = sorted(devices), [min(devices)]
    left.remove(order[0])
    while left:
        last = order[-1]
        nearest = max(left, key=lambda d: (problem.links.route(last, d)[1], -d))
        order.append(nearest)
        left.remove(nearest)
    return order


def _grid(problem: Problem, devices: list[int], sizes: tuple[int, ...]) -> Grid:
    """Devices, row by row, with shares by speed where places of an axis differ."""
    at = np.array(devices, dtype=np.int64).reshape(sizes)
    busy = problem.time.sum(axis=0)
    speed = (busy.min() / busy)[np.array(problem.cluster.device_types)][at]
    shares: list[tuple[float, ...] | None] = []
    for axis in range(len(sizes)):
        places = np.moveaxis(speed, axis, 0).reshape(sizes[axis], -1)
        slowest = places.min(axis=1)
        differs = not np.allclose(slowest, slowest[0])
        shares.append(tuple((slowest / slowest.sum()).tolist()) if differs else None)
    assert prod(sizes) == len(devices)
    return Grid(at, tuple(shares))
