"""Factors of axes: every axis as the product of what reshapes make of it, all over the graph.

Each axis of each tensor begins as one factor. Two runs of axes that have the same elements in the
same order, the sides of a reshape or the axes that are one dimension of an op, get their common
refinement: both are taken apart wherever one of them is, and the parts are one from then on. So
what a view does to an activation reaches the weight that made it. Where the places do not divide each
other (6 x 4 against 8 x 3), nothing is taken apart. Union-find over factors that are leaves of
trees: near O(axes). Axes of size 1 have no factors.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

#: Axes from one to before another, and which of their strides count: from one to below another.
Run = tuple[int, int, int, int]


class Axes:
    """Axes of known sizes, and what they are taken apart into.

    >>> axes = Axes([6, 4, 24])
    >>> axes.join((0, 2, 1, 24), (2, 3, 1, 24))
    >>> axes.factors(2) == axes.factors(0) + axes.factors(1)
    True
    >>> [axes.size[factor] for factor in axes.factors(2)]
    [6, 4]
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        #: Sizes of axes, and of the parts that they were taken apart into.
        self.size = list(sizes)
        self._above = list(range(len(self.size)))
        self._parts: dict[int, tuple[int, int]] = {}

    def _find(self, axis: int) -> int:
        above = self._above
        while (up := above[axis]) != axis:
            above[axis] = above[up]
            axis = up
        return axis

    def factors(self, axis: int) -> list[int]:
        """The factors of an axis, major to minor. The same number is the same factor."""
        axis = self._find(axis)
        if axis in self._parts:
            major, minor = self._parts[axis]
            return self.factors(major) + self.factors(minor)
        return [axis] if self.size[axis] > 1 else []

    def _strides(self, run: Run) -> dict[int, int]:
        """The factors of a run by how many elements lie between two neighbours, major to minor."""
        first, end, low, high = run
        factors = [factor for axis in range(first, end) for factor in self.factors(axis)]
        sizes = [self.size[factor] for factor in factors]
        strides = list(itertools.accumulate(sizes[:0:-1], int.__mul__, initial=1))[::-1]
        return {
            stride // low: factor
            for stride, factor in zip(strides, factors, strict=False)
            if low <= stride < high
        }

    def take_apart(self, run: Run, stride: int) -> None:
        """Takes a run of axes apart before its last ``stride`` elements, if that divides."""
        for below, factor in self._strides((run[0], run[1], 1, run[3])).items():
            above = below * self.size[factor]
            if below < stride < above and stride % below == 0 and above % stride == 0:
                self._split(factor, stride // below)

    def _split(self, factor: int, minor: int) -> None:
        at = len(self.size)
        self.size += [self.size[factor] // minor, minor]
        self._above += [at, at + 1]
        self._parts[factor] = (at, at + 1)

    def join(self, one: Run, other: Run) -> None:
        """Makes two runs of axes one, as far as they divide each other."""
        a, b = self._find(one[0]), self._find(other[0])
        is_axis = one[1] - one[0] == other[1] - other[0] == one[2] == other[2] == 1
        is_axis = is_axis and self.size[a] == self.size[b] == one[3] == other[3]
        if is_axis and a == b:
            return
        if is_axis and b not in self._parts:
            self._above[b] = a
        elif is_axis and a not in self._parts:
            self._above[a] = b
        elif self._refine(one, other) and is_axis:
            self._above[self._find(b)] = self._find(a)

    def _refine(self, one: Run, other: Run) -> bool:
        """Takes both apart wherever one is; whether they are then the same throughout."""
        for run in (one, other):
            self.take_apart(run, run[2])
            self.take_apart(run, run[3])
        while True:
            a, b = self._strides(one), self._strides(other)
            total = {max((s * self.size[f] for s, f in x.items()), default=1) for x in (a, b)}
            if len(total) > 1:
                return False
            chains = _chains({*a, *b, *total}, {*(a.keys() & b.keys()), *total})
            if not any(self._split_within(strides, chains) for strides in (a, b)):
                break
        for low, _ in chains:
            self._above[self._find(b[low])] = self._find(a[low])
        return a.keys() == b.keys()

    def _split_within(self, strides: dict[int, int], chains: list[tuple[int, int]]) -> bool:
        """Takes one factor apart at a place within it; whether there was one."""
        for stride, factor in strides.items():
            for low, _ in chains:
                if stride < low < stride * self.size[factor]:
                    self._split(factor, low // stride)
                    return True
        return False


def _chains(places: set[int], common: set[int]) -> list[tuple[int, int]]:
    """Neighbouring places, but for stretches between common ones where they do not divide."""
    kept: list[tuple[int, int]] = []
    stretch: list[tuple[int, int]] = []
    for low, high in itertools.pairwise(sorted(places)):
        stretch.append((low, high))
        if high in common:
            if all(high % low == 0 for low, high in stretch):
                kept += stretch
            stretch = []
    return kept
