"""Meshes worth trying on a cluster: its devices, or some of them, as one axis, two, or three.

Axes follow the hierarchy of links: devices that the fastest links join are neighbours on the
innermost axes. Where all links are alike, an order of the same sizes is tried once. Fewer devices
are the fastest ones: a half, a quarter and so on, whole hosts, and numbers that divide the batch
better than more devices do. Devices of unequal speed get unequal parts of a dimension along an
axis, in proportion to the slowest device at each of its places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from loadmaster.judge.problem import Problem
from loadmaster.model.factorisations import factorisations, fewer_devices
from loadmaster.model.recipe import DeviceMesh, MeshAxis
from loadmaster.strategies.simple.data_parallel import usable
from loadmaster.transforms.shares import batch_size

#: Names of the axes, the outermost first.
AXES = ("x", "y", "z")


def meshes(problem: Problem) -> Iterator[DeviceMesh]:
    """Meshes of all usable devices first, then of fewer; fewer axes first.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("4xV100-PCIe")
    >>> problem = Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))
    >>> [mesh.shape for mesh in meshes(problem)]
    [(4,), (2, 2), (2,)]
    """
    fastest = usable(problem)
    for number in numbers_of_devices(problem, _near_each_other(problem, fastest)):
        chosen = _near_each_other(problem, fastest[:number])
        is_uniform = len(set(_widths(problem, chosen))) == 1
        for sizes in _sizes(number, is_uniform):
            yield _mesh(problem, chosen, sizes)


def numbers_of_devices(problem: Problem, devices: Sequence[int]) -> list[int]:
    """The numbers of devices to plan for, the most first; ``devices``: those near each other are
    neighbours.
    """
    widths = [problem.links.route(a, b)[1] for a, b in pairwise(devices)]
    ends = [i for i, width in enumerate(widths, 1) if width < max(widths)]
    return fewer_devices(len(devices), batch_size(problem.model) or 1, ends)


def _sizes(n: int, is_uniform: bool) -> Iterator[tuple[int, ...]]:
    """Sizes of axes, 2 or more each, whose product is n: few axes first. Sizes are in one order
    where links are alike.
    """

    def may(sizes: tuple[int, ...]) -> bool:
        return sizes[-1] > 1 and (not is_uniform or list(sizes) == sorted(sizes))

    for axes in range(1, len(AXES) + 1):
        yield from factorisations([n], axes, may)


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


def _mesh(problem: Problem, devices: list[int], sizes: tuple[int, ...]) -> DeviceMesh:
    """Devices, row by row, with shares by speed where places of an axis differ."""
    at = np.array(devices, dtype=np.int64).reshape(sizes)
    busy = problem.time.sum(axis=0)
    speed = (busy.min() / busy)[np.array(problem.cluster.device_types)][at]
    axes = []
    for axis, size in enumerate(sizes):
        slowest = np.moveaxis(speed, axis, 0).reshape(size, -1).min(axis=1)
        differs = not np.allclose(slowest, slowest[0])
        shares = tuple((slowest / slowest.sum()).tolist()) if differs else None
        axes.append(MeshAxis(AXES[axis], size, shares))
    return DeviceMesh(tuple(axes), tuple(problem.cluster.devices[d].name for d in devices))
