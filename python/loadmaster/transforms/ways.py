"""Columns that an expansion takes: ways to share amounts, places of ops, added edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast

#: The way in which every device has all of it.
WHOLE = 0


class WayColumns(TypedDict):
    """The columns of ways that :func:`loadmaster.fast.expand` takes."""

    way_size: NDArray[np.uint64]
    way_start: NDArray[np.uint64]
    way_end: NDArray[np.uint64]


class SharingWays:
    """Ways in which ``k`` devices share an amount, each once. The first is :data:`WHOLE`."""

    def __init__(self, k: int) -> None:
        self._index: dict[tuple[int, tuple[int, ...], tuple[int, ...]], int] = {}
        self.of_bounds(1, [0] * k, [1] * k)

    def of_bounds(self, size: int, start: Sequence[int], end: Sequence[int]) -> int:
        """Device d has what lies between ``start[d]`` and ``end[d]`` of ``size``."""
        return self._index.setdefault((size, tuple(start), tuple(end)), len(self._index))

    def of_rows(self, rows: Sequence[int]) -> int:
        """Each device has a part in proportion to its rows."""
        ends = np.cumsum(rows).tolist()
        return self.of_bounds(ends[-1], [0, *ends[:-1]], ends)

    def bounds(self, way: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """The size of a way, and where the part of each device begins and ends."""
        return list(self._index)[way]

    def __len__(self) -> int:
        return len(self._index)

    @property
    def fractions(self) -> NDArray[np.float64]:
        """Part of an amount that each device has in each way, float64 [n_ways, k]."""
        rows = [(np.array(end) - np.array(start)) / size for size, start, end in self._index]
        return np.array(rows, dtype=np.float64)

    def amounts(self, way: NDArray[np.int64], total: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The part that each device has of amounts, as an expansion shares them: uint64 [k, n]."""
        columns = self.columns()
        size = columns["way_size"][way]
        start, end = (
            columns[name].reshape(len(self), -1)[way].T for name in ("way_start", "way_end")
        )
        whole, rest = np.divmod(total, size)

        def up_to(bound: NDArray[np.uint64]) -> NDArray[np.uint64]:
            return whole * bound + (rest * bound + size - np.uint64(1)) // size

        return up_to(end) - up_to(start)

    def columns(self) -> WayColumns:
        """As :func:`loadmaster.fast.expand` takes them."""
        size, start, end = zip(*self._index, strict=True)
        return {
            "way_size": np.array(size, dtype=np.uint64),
            "way_start": np.array(start, dtype=np.uint64).ravel(),
            "way_end": np.array(end, dtype=np.uint64).ravel(),
        }


class HomeColumns(TypedDict):
    """Places of ops, as :func:`loadmaster.fast.expand` takes it."""

    homes: NDArray[np.int64]
    home: NDArray[np.int64]
    together: NDArray[np.int64]


def homes_of_copies(only: NDArray[np.int64], k: int) -> HomeColumns:
    """Places of ops that one device has, or each: -1; or that are on no device: -2. Colocation sets
    are of each device.
    """
    device = np.arange(k)
    homes = np.concatenate([device, np.repeat(device, k)])
    home = np.where(only == -2, -1, only + 1)
    return {"homes": homes, "home": home, "together": np.full(len(only), -1)}


class ReadEdges:
    """Edges that are no copies, as they are found.

    An end is ``op * k + device`` for the copy of an op that a device reads, and ``n_ops * k + i``
    for the added op ``i``.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[NDArray[Any], ...]] = []

    def add(self, *row: NDArray[Any]) -> None:
        """The place of each edge among the model's, its ends, its tensor and bytes."""
        self._rows.append(row)

    def columns(self, first: int) -> fast._Links:
        """In the order of the model's edges, by which an op tells its arguments apart. Tensors from
        ``first`` on are new: they are numbered from there without gaps.
        """
        empty = [(np.empty(0, dtype=np.int64),) * 5]
        place, src, dst, tensor, size = map(
            np.concatenate, zip(*(self._rows or empty), strict=True)
        )
        order = np.argsort(place, kind="stable")
        is_new = tensor >= first
        tensor = np.where(
            is_new, first + without_gaps(np.where(is_new, tensor - first, -1)), tensor
        )
        return {
            "place": place[order],
            "src": src[order],
            "dst": dst[order],
            "tensor": tensor[order],
            "bytes": size.astype(np.uint64)[order],
        }


def without_gaps(tensor: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ids of tensors, numbered from 0 in their order. O(edges + largest id)."""
    used = np.zeros(int(tensor.max(initial=-1)) + 2, dtype=bool)
    used[tensor] = True
    used[-1] = False  # Where messages without data are.
    return np.append(np.cumsum(used[:-1]) - 1, -1)[tensor]
