"""A word per item as few lines of a recipe: what most items of a pattern have, then the exceptions.

Patterns come from coarse to fine: everything, then modules with ``*`` for all their numbers, then
with some numbers kept, then modules themselves. A module has a line for all its ops, then lines for
kinds of ops, then lines for single ones. A line is written where it sets more items right than
wrong. The last lines speak of single items, so all come out right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.patterns import (
    Places,
    Selector,
    escaped_pattern,
    family_of,
    numbered,
    written,
)

#: Of a module's numbers, so many of the last are kept in turn. Those before always become ``*``.
_NUMBERS = 4

Line = tuple[Selector, int]


def compressed(places: Places, wanted: NDArray[np.int64], start: int) -> list[Line]:
    """Lines that, one after another, turn ``start`` into what is wanted.

    ``wanted`` is a word per item, as a number from 0; -1: any. O(lines x items) at worst.
    """
    now = np.where(wanted < 0, wanted, start)
    everything = Selector("**"), int(np.bincount(wanted[wanted >= 0], minlength=1).argmax())
    lines: list[Line] = []
    if everything[1] != start:
        lines.append(everything)
        _apply(lines, places, now)
    for patterns, of_key in _levels(places):
        if (now == wanted).all():
            break
        added = _level(places, patterns, of_key[places.key], wanted, now)
        _apply(added, places, now)
        lines += added
    return lines


def nested(places: Places, wanted: NDArray[np.int64], start: int) -> list[Line]:
    """The same in terms of modules with all that is in them, from the outermost to the innermost:
    for words that change from one part of a model to the next.

    Examples
    --------
    >>> places = Places(["h.0.fc", "h.0.act", "h.1.fc", "h.1.act", "h.1.act"], list("abcde"))
    >>> for selector, word in nested(places, np.array([0, 0, 1, 1, 0]), 0):
    ...     print(selector, word)
    h.1.** 1
    h.1.act e 0
    """
    now = np.where(wanted < 0, wanted, start)
    lines: list[Line] = []
    paths = [key.split(".")[1:] for key in places.keys]
    for depth in range(max(map(len, paths), default=0) + 1):
        inside: dict[str, int] = {}
        of = [
            inside.setdefault("".join(f".{word}" for word in path[:depth]), len(inside))
            if len(path) >= depth
            else -1
            for path in paths
        ]
        outer = np.array(of, dtype=np.int64)[places.key]
        names = list(inside)
        for first, word in _gains((outer,), wanted, now):
            path = written(escaped_pattern(names[outer[first]]))
            line = Selector(f"{path}.**" if depth else "**"), word
            _apply([line], places, now)
            lines.append(line)
    exact = [escaped_pattern(key) for key in places.keys]
    lines += _level(places, exact, places.key, wanted, now)
    return lines


def _apply(lines: Iterable[Line], places: Places, now: NDArray[np.int64]) -> None:
    for selector, word in lines:
        meant = places.matching(selector)
        now[meant] = np.where(now[meant] < 0, -1, word)


@lru_cache(maxsize=2)
def _levels(places: Places) -> list[tuple[list[str], NDArray[np.int64]]]:
    """Patterns from coarse to fine, and the one of each key; -1: none. Columns share them."""
    return list(_patterns(places))


def _patterns(places: Places) -> Iterator[tuple[list[str], NDArray[np.int64]]]:
    pieces = list(map(numbered, places.keys))
    numbers = np.array([len(each) // 2 for each in pieces], dtype=np.int64)
    for n in range(_NUMBERS + 1):
        for kept in combinations(range(_NUMBERS), n):
            some = np.flatnonzero(numbers > max(kept, default=0)).tolist()
            patterns: dict[str, int] = {}
            of = np.full(len(pieces), -1, dtype=np.int64)
            for i in some:
                one = family_of(pieces[i], kept)
                of[i] = -1 if one is None else patterns.setdefault(one, len(patterns))
            if patterns:
                yield list(patterns), of
    yield [escaped_pattern(key) for key in places.keys], np.arange(len(places.keys))


def _level(
    places: Places,
    patterns: list[str],
    of: NDArray[np.int64],
    wanted: NDArray[np.int64],
    now: NDArray[np.int64],
) -> list[Line]:
    """The lines for patterns of one level, pattern by pattern."""
    now, lines = now.copy(), []
    for columns in ((of,), (of, places.kind), (of, places.kind, places.ordinal)):
        for first, word in _gains(columns, wanted, now):
            kind = escaped_pattern(places.kinds[places.kind[first]])
            selector = Selector(
                written(patterns[of[first]]),
                kind if len(columns) > 1 else None,
                int(places.ordinal[first]) if len(columns) > 2 else None,
            )
            _apply([(selector, word)], places, now)
            lines.append((int(of[first]), (selector, word)))
    return [line for _, line in sorted(lines, key=lambda row: row[0])]


def _gains(
    columns: tuple[NDArray[np.int64], ...], wanted: NDArray[np.int64], now: NDArray[np.int64]
) -> list[tuple[int, int]]:
    """Groups of equal columns in which one word sets more right than there is: their first items,
    ascending, and the words.
    """
    items = np.flatnonzero((wanted >= 0) & (columns[0] >= 0))
    if not len(items):
        return []
    key = np.zeros(len(items), dtype=np.int64)
    for column in columns:
        key = key * (int(column.max()) + 1) + column[items]
    _, group = np.unique(key, return_inverse=True)
    n, words = int(group.max()) + 1, int(wanted.max()) + 1
    counts = np.bincount(group * words + wanted[items], minlength=n * words).reshape(n, words)
    right = np.bincount(group, wanted[items] == now[items], n)
    word = counts.argmax(axis=1)
    better = np.flatnonzero(counts.max(axis=1) > right)
    first = np.full(n, len(wanted))
    np.minimum.at(first, group, items)
    return sorted(zip(first[better].tolist(), word[better].tolist(), strict=True))
