"""Sharing of memory by values that segments hand to each other.

A buffer that was just read is in the cache of its core; one of its own for each value is not, and
segments took up to 10 % longer with that. A device writes over a value once it knows that all who
read it have ended: those before on the device itself, and those on which it waited, if only in
turn. The same holds in every step, since no step begins before all devices have ended the last.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def buffers(
    rows: Sequence[Mapping[str, Any]], sizes: Mapping[str, int], kept: Collection[str]
) -> dict[str, int]:
    """The buffer of each value that a segment makes. O(S (S + V)) for S segments and V values.

    Parameters
    ----------
    rows
        Segments of a manifest: ``device``, ``inputs`` and ``outputs``.
    sizes
        Bytes per value.
    kept
        Values that stay until the end of the step.

    Examples
    --------
    >>> chain = [("a", [], ["u"]), ("a", ["u"], ["v"]), ("b", ["v"], ["w"]), ("a", ["w"], ["x"])]
    >>> rows = [{"device": d, "inputs": i, "outputs": o} for d, i, o in chain]
    >>> buffers(rows, dict.fromkeys("uvwx", 4), ["x"])
    {'u': 0, 'v': 1, 'w': 2, 'x': 1}
    """
    readers: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        for value in row["inputs"]:
            readers.setdefault(value, []).append(i)
    assigned: dict[str, int] = {}
    room: list[int] = []
    alive: dict[str, list[str]] = {row["device"]: [] for row in rows}
    free: dict[str, list[int]] = {device: [] for device in alive}
    for row, over in zip(rows, _over(rows), strict=True):
        mine = alive[row["device"]]
        ended = [v for v in mine if v not in kept and all(over[r] for r in readers.get(v, ()))]
        for value in ended:
            mine.remove(value)
            free[row["device"]].append(assigned[value])
        for value in row["outputs"]:
            assigned[value] = _taken(free[row["device"]], room, sizes[value])
            mine.append(value)
    return assigned


def _over(rows: Sequence[Mapping[str, Any]]) -> NDArray[np.bool_]:
    """Mask of the pairs of which segment j is certain to have ended when segment i starts: bool [i,
    j].
    """
    over = np.zeros((len(rows), len(rows)), dtype=bool)
    maker: dict[str, int] = {}
    last: dict[str, int] = {}
    for i, row in enumerate(rows):
        before = {maker[value] for value in row["inputs"] if value in maker}
        if row["device"] in last:
            before.add(last[row["device"]])
        for j in before:
            over[i] |= over[j]
            over[i, j] = True
        maker |= dict.fromkeys(row["outputs"], i)
        last[row["device"]] = i
    return over


def _taken(free: list[int], room: list[int], size: int) -> int:
    """A free buffer that has room: of the smallest the one that was freed last; else a new one."""
    fit = [(room[buffer], -k) for k, buffer in enumerate(free) if room[buffer] >= size]
    if fit:
        return free.pop(-min(fit)[1])
    room.append(size)
    return len(room) - 1
