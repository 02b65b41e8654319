"""One number per row of several columns, equal for equal rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Numbers below so many per row are ranked by a table, larger ones by sorting.
_SPREAD = 8


def joint(*columns: ArrayLike) -> NDArray[np.int64]:
    """A number from 0 for each row, by the order of the rows.

    O(n) per column of small numbers, O(n log n) per other column.

    >>> joint([7, 7, 3, 7], [1, 2, 1, 1]).tolist()
    [1, 2, 0, 1]
    """
    code: NDArray[np.int64] | None = None
    for column in columns:
        of_column = dense(np.asarray(column))
        if code is None:
            code = of_column
        else:
            code = dense(code * (int(of_column.max(initial=0)) + 1) + of_column)
    assert code is not None, "wants a column"
    return code


def dense(values: NDArray[Any]) -> NDArray[np.int64]:
    """The place of each value among the distinct ones, in their order.

    >>> dense(np.array([30, 10, 30])).tolist(), dense(np.array([0.5, -1.0])).tolist()
    ([1, 0, 1], [1, 0])
    """
    if values.dtype.kind in "ib" and values.size:
        values = values.astype(np.int64, copy=False)
        least, most = int(values.min()), int(values.max())
        if most - least < _SPREAD * len(values):
            there = np.zeros(most - least + 1, dtype=np.int64)
            there[values - least] = 1
            ranks: NDArray[np.int64] = (np.cumsum(there) - 1)[values - least]
            return ranks
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def of_flags(rows: NDArray[np.bool_]) -> NDArray[np.int64]:
    """A number from 0 for each row of several flags, equal for equal rows. O(n log n).

    >>> of_flags(np.array([[True, False], [False, True], [True, False]])).tolist()
    [0, 1, 0]
    """
    packed = np.packbits(rows, axis=1, bitorder="little")
    words = np.zeros((len(rows), -(-packed.shape[1] // 8) * 8), dtype=np.uint8)
    words[:, : packed.shape[1]] = packed
    return joint(*words.view(np.int64).T)


def firsts(code: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first row of each number, from 0; of those that there are, ascending. O(n + the largest).

    >>> firsts(np.array([1, 2, 0, 1])).tolist()
    [2, 0, 1]
    """
    rows = np.full(int(code.max(initial=-1)) + 1, -1, dtype=np.int64)
    # Of rows of one number, the one that is written last stays.
    rows[code[::-1]] = np.arange(len(code))[::-1]
    return rows[rows >= 0]
