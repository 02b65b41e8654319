"""Ways to share things on a mesh: what each device of it has, axis by axis."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.recipe import DeviceMesh
from loadmaster.transforms.specs import part_weights
from loadmaster.transforms.ways import SharingWays

#: Classes of how something is shared along one axis: every device has all of it; equal parts; from
#: here on a size that is cut. After the sizes come the places of what one device of an axis has.
ALL, EVEN, FIRST_SIZE = range(3)


class Load(NamedTuple):
    """The load of experts: ``thousandths`` of its fair share that the first place of an axis
    gets, which has ``first`` of ``all`` experts. The others get as much less.
    """

    thousandths: int
    first: int
    all: int

    @property
    def parts(self) -> tuple[tuple[int, int], int]:
        """The part of its share that the first place does, and that every other one does.

        >>> Load(1250, 2, 8).parts, Load(9000, 1, 4).parts
        (((7500, 5500), 6000), ((12000, 0), 3000))
        """
        most = min(self.thousandths, 1000 * self.all // self.first)
        others = self.all - self.first
        return (most * others, 1000 * self.all - most * self.first), 1000 * others


class MeshWays:
    """Ways to share something among the devices of a mesh, each once.

    Parameters
    ----------
    mesh : Mesh
    sizes : sequence of int
        Sizes that may be cut. That of class ``FIRST_SIZE + i`` is ``sizes[i]``.
    """

    def __init__(self, mesh: DeviceMesh, sizes: Sequence[int]) -> None:
        self.mesh, self.k = mesh, mesh.size
        self._sizes = sizes
        #: The class of what the first device of an axis has alone.
        self.owned = FIRST_SIZE + len(sizes)
        self._base = self.owned + max(mesh.shape)
        self.ways = SharingWays(self.k)
        self._known: dict[int, int] = {0: 0}
        #: The place of each device on each axis, int64 [n_axes, k].
        self.places = np.array(np.unravel_index(np.arange(self.k), mesh.shape))

    def groups(self, axis: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of each device's group in collectives on axes: [n, k]."""
        table = []
        for of in range(len(self.places)):
            group = np.zeros(self.k, dtype=np.int64)
            for i, size in enumerate(self.mesh.shape):
                if i != of:
                    group = group * size + self.places[i]
            table.append(group)
        return np.array(table)[axis]

    def of(self, classes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ways [n] of classes [n_axes, n]."""
        code = np.zeros(classes.shape[1], dtype=np.int64)
        for of_axis in classes:
            code = code * self._base + of_axis
        some, which = np.unique(code, return_inverse=True)
        ways = [self._way(one) for one in some.tolist()]
        return np.array(ways, dtype=np.int64)[which]

    def loaded(self, way: int, axis: int, load: Load) -> int:
        """A way in which the first place of an axis has more of its share, the others less."""
        size, start, end = self.ways.bounds(way)
        parts, of = load.parts
        of_place = np.where(self.places[axis] == 0, *parts)
        length = [(b - a) * int(part) for a, b, part in zip(start, end, of_place, strict=True)]
        begin = [a * of for a in start]
        return self.ways.of_bounds(
            size * of, begin, [a + n for a, n in zip(begin, length, strict=True)]
        )

    def _way(self, code: int) -> int:
        known = self._known.get(code)
        if known is None:
            known = self._known[code] = self._made(code)
        return known

    def _made(self, code: int) -> int:
        classes = []
        for _ in self.mesh.axes:
            code, of_axis = divmod(code, self._base)
            classes.append(of_axis)
        size, start, length = 1, np.zeros(self.k, dtype=object), np.ones(self.k, dtype=object)
        for axis, of_axis in enumerate(reversed(classes)):
            ends = self._bounds(axis, of_axis)
            if ends is None:
                continue
            low, high = ends[0][self.places[axis]], ends[1][self.places[axis]]
            start = start * ends[2] + length * low
            length, size = length * (high - low), size * ends[2]
        return self.ways.of_bounds(size, start.tolist(), (start + length).tolist())

    def _bounds(self, axis: int, of_axis: int) -> tuple[NDArray[Any], NDArray[Any], int] | None:
        """The begin and end of the part of each place of an axis, and the size of all."""
        k = self.mesh.shape[axis]
        if of_axis == ALL:
            return None
        if of_axis >= self.owned:
            weights = (np.arange(k) == of_axis - self.owned).astype(int).tolist()
        elif of_axis == EVEN:
            weights = [1] * k
        else:
            shares = self.mesh.axes[axis].shares or (1.0,) * k
            weights = part_weights(self._sizes[of_axis - FIRST_SIZE], shares).tolist()
        # Python's integers, which do not overflow where axes are multiplied.
        parts = np.array(weights, dtype=object) // gcd(*weights)
        ends = np.cumsum(parts)
        return ends - parts, ends, int(ends[-1])

    @property
    def fractions(self) -> NDArray[np.float64]:
        """The part that each device has in each way, float64 [n_ways, k]."""
        return self.ways.fractions
