"""Factors of axes: every axis as the product of what reshapes make of it, all over the graph.

Each axis of each tensor begins as one factor. Two runs of axes that have the same elements in the
same order, the sides of a reshape or the axes that are one dimension of an op, get their common
refinement: both are taken apart wherever one of them is, and the parts are one from then on. So
what a view does to an activation reaches the weight that made it. Where the places do not divide
each other (6 x 4 against 8 x 3), nothing is taken apart: what comes first stays. Union-find over
factors that are leaves of trees: near O(axes). Axes of size 1 have no factors.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

#: Axes from one to before another, and which of their strides count: from one to below another.
Run = tuple[int, int, int, int]

#: The smallest factor that two runs are taken apart into where each has places of its own. What is
#: smaller could hardly be cut, and spreads: images of 64 in windows of 16 that are halved for the
#: next resolution, in windows of 16 again, would end as factors of 2 everywhere.
FINEST = 4


class Axes:
    """Axes of known sizes, and what they are taken apart into.

    >>> axes = Axes([6, 4, 24])
    >>> axes.join((0, 2, 1, 24), (2, 3, 1, 24))
    True
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

    def find(self, axis: int) -> int:
        """The axis that stands for an axis: two that are one have the same."""
        above = self._above
        while (up := above[axis]) != axis:
            above[axis] = above[up]
            axis = up
        return axis

    def factors(self, axis: int) -> list[int]:
        """The factors of an axis, major to minor. The same number is the same factor."""
        axis = self.find(axis)
        if axis in self._parts:
            major, minor = self._parts[axis]
            return self.factors(major) + self.factors(minor)
        return [axis] if self.size[axis] > 1 else []

    def _strides(self, run: Run) -> dict[int, int]:
        """The factors of a run by how many elements lie between two neighbours, from the last."""
        first, end, low, high = run
        by_stride = {}
        stride = 1
        for axis in range(end - 1, first - 1, -1):
            for factor in reversed(self.factors(axis)):
                if low <= stride < high:
                    by_stride[stride // low] = factor
                stride *= self.size[factor]
        return by_stride

    def take_apart(self, axis: int, stride: int) -> None:
        """Takes an axis apart before its last ``stride`` elements, if that divides."""
        if stride in (1, self.size[axis]):
            return
        for below, factor in self._strides((axis, axis + 1, 1, self.size[axis])).items():
            above = below * self.size[factor]
            if below < stride < above and stride % below == 0 and above % stride == 0:
                self._split(factor, stride // below)

    def _split(self, factor: int, minor: int) -> None:
        at = len(self.size)
        self.size += [self.size[factor] // minor, minor]
        self._above += [at, at + 1]
        self._parts[factor] = (at, at + 1)

    def unite(self, one: int, other: int) -> None:
        """Makes two axes of one size one, as far as they divide each other."""
        a, b = self.find(one), self.find(other)
        if a == b:
            return
        if b not in self._parts:
            self._above[b] = a
        elif a not in self._parts:
            self._above[a] = b
        else:
            size = self.size[a]
            if self.join((one, one + 1, 1, size), (other, other + 1, 1, size)):
                self._above[self.find(b)] = self.find(a)

    def join(self, one: Run, other: Run) -> bool:
        """Makes two runs one, as far as they divide each other; whether they are then the same."""
        for first, end, *strides in (one, other):
            for stride in strides if end == first + 1 else ():
                self.take_apart(first, stride)
        while True:
            a, b = self._strides(one), self._strides(other)
            if a == b:
                return True
            total = {max((s * self.size[f] for s, f in x.items()), default=1) for x in (a, b)}
            if len(total) > 1:
                return False
            chains = _chains({*a, *total}, {*b, *total})
            if not any(self._split_within(strides, chains) for strides in (a, b)):
                break
        for low, _ in chains:
            self._above[self.find(b[low])] = self.find(a[low])
        return a.keys() == b.keys()

    def _split_within(self, strides: dict[int, int], chains: list[tuple[int, int]]) -> bool:
        """Takes one factor apart at a place within it; whether there was one."""
        for stride, factor in strides.items():
            for low, _ in chains:
                if stride < low < stride * self.size[factor]:
                    self._split(factor, low // stride)
                    return True
        return False


def _chains(one: set[int], other: set[int]) -> list[tuple[int, int]]:
    """Neighbouring places of two runs, but for stretches between common ones that stay as they are:
    where places do not divide, or where each run has some of its own and pieces would be small.
    """
    kept: list[tuple[int, int]] = []
    stretch: list[tuple[int, int]] = []
    for low, high in itertools.pairwise(sorted(one | other)):
        stretch.append((low, high))
        if high in one and high in other:
            own = {low for low, _ in stretch[1:]}
            least = 1 if own <= one or own <= other else FINEST
            if all(high % low == 0 and high // low >= least for low, high in stretch):
                kept += stretch
            stretch = []
    return kept
