"""Local linear regression over the nearest measured points (Cleveland, Devlin 1988).

The value at a point is that of a plane laid through the nearest sites, near ones weighing more.
It is kept within the values of these sites, so that a plane never runs away outside of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Sites that a plane is laid through.
NEAREST = 16

#: Steps of a coordinate in one unit. Distances of whole numbers are exact on every machine.
_STEPS = 64

#: Distance that is added to all, so that a site that is hit does not weigh infinitely.
_SOFTENED = 0.05

#: Weight of a plane that is level, as a part of the median weight of the sites.
_RIDGE = 0.1

#: How far beyond the values of the nearest sites the plane may go.
_BEYOND = 0.05

#: Points that are worked on at a time.
_BLOCK = 32


class Surface:
    """Values at sites, and between them.

    Parameters
    ----------
    sites : float64 [n, d]
        Coordinates.
    values : float64 [n]

    Notes
    -----
    O(n d) per point.

    Examples
    --------
    >>> surface = Surface(np.arange(20.0)[:, None], np.arange(20.0) * 3)
    >>> bool(abs(surface.at(np.array([[7.5]]))[0] - 22.5) < 0.1)
    True
    """

    def __init__(self, sites: Floats, values: Floats) -> None:
        self._sites = np.rint(np.asarray(sites) * _STEPS)
        self._values = np.asarray(values, dtype=np.float64)
        n = len(self._sites)
        # A site's squared distance less what is the same for all, times n, plus its own number.
        self._across = -2.0 * n * self._sites.T
        self._own = (self._sites**2).sum(1) * n + np.arange(n)
        self._known: dict[bytes, float] = {}

    def at(self, points: Floats) -> Floats:
        """The value at each point: float64 [n] for points of float64 [n, d].

        It is that of the nearest whole step of every coordinate, and is worked out once.
        """
        steps = np.rint(np.asarray(points, dtype=np.float64) * _STEPS) + 0.0
        keys = [row.tobytes() for row in steps]
        place = {key: i for i, key in enumerate(keys) if key not in self._known}
        rows = steps[list(place.values())]
        for begin in range(0, len(rows), _BLOCK):
            values = self._block(rows[begin : begin + _BLOCK])
            some = list(place)[begin : begin + _BLOCK]
            self._known.update(zip(some, values.tolist(), strict=True))
        return np.array([self._known[key] for key in keys])

    def _block(self, steps: Floats) -> Floats:
        near, distance = self._nearest(steps)
        points = steps / _STEPS
        weight = 1.0 / (distance / _STEPS + _SOFTENED) ** 2
        values = self._values[near]
        offset = self._sites[near] / _STEPS - points[:, None, :]
        plane = np.concatenate([np.ones((*offset.shape[:2], 1)), offset], axis=2)
        weighed = plane * weight[:, :, None]
        level = np.zeros((len(points), plane.shape[2]))
        level[:, 0] = 1e-9
        level[:, 1:] = _RIDGE * np.median(weight, axis=1)[:, None]
        system = plane.transpose(0, 2, 1) @ weighed
        system[:, np.arange(plane.shape[2]), np.arange(plane.shape[2])] += level
        wanted = (weighed * values[:, :, None]).sum(1)
        height: Floats = np.linalg.solve(system, wanted[:, :, None])[:, 0, 0]
        return np.clip(height, values.min(1) - _BEYOND, values.max(1) + _BEYOND).round(6)

    def _nearest(self, points: Floats) -> tuple[NDArray[np.int64], Floats]:
        """The nearest sites of each point and their distances; of equally near ones the first."""
        n = len(self._sites)
        # Sums by hand: a product of matrices would wake threads of BLAS for less than it costs.
        key = np.repeat(self._own[None, :], len(points), axis=0)
        for column, across in zip(points.T, self._across, strict=True):
            key += column[:, None] * across
        count = min(NEAREST, n)
        key.partition(count - 1, axis=1)
        key = np.sort(key[:, :count], axis=1)
        squared, near = np.divmod(key, n)
        return near.astype(np.int64), np.sqrt(squared + (points**2).sum(1)[:, None])
