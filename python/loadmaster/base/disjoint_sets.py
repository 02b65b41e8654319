"""Disjoint sets: items that belong together, by way of others too (union-find)."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class DisjointSets(dict[T, T]):
    """Items with the item that each stands below; an item is a set of its own until it is joined.

    >>> sets = DisjointSets()
    >>> sets[sets.find("a")] = sets.find("b")
    >>> sets.find("a"), sets.find("c")
    ('b', 'c')
    """

    def find(self, item: T) -> T:
        """The item that stands for the set of an item. Paths are halved: O(log n), amortized."""
        while (above := self.setdefault(item, item)) != item:
            self[item] = item = self[above]
        return item
