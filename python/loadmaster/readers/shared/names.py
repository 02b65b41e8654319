"""Names of ops: unique, and otherwise as their source has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def unique(names: Sequence[str]) -> list[str]:
    """The names with a number behind every repeated one; the first of a name keeps it.

    >>> unique(["relu", "relu", "relu_1"])
    ['relu', 'relu_2', 'relu_1']
    """
    taken = set(names)
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        unique = name
        if name in seen:
            while unique in taken:
                unique = f"{name}_{seen[name]}"
                seen[name] += 1
            taken.add(unique)
        else:
            seen[name] = 1
        result.append(unique)
    return result
