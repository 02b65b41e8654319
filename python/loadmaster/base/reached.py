"""Nodes that can be reached from others in a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def reached(starts: Iterable[T], after: Callable[[T], Iterable[T]]) -> set[T]:
    """The nodes that ways from some nodes lead to, these included. O(V + E).

    >>> sorted(reached([1], {1: [2, 3], 2: [], 3: [1], 4: [1]}.__getitem__))
    [1, 2, 3]
    """
    seen = set(starts)
    stack = list(seen)
    while stack:
        new = set(after(stack.pop())) - seen
        seen |= new
        stack += new
    return seen
