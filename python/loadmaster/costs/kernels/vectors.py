"""Ops that are bound by the memory that they move: by bytes, and by rows where they reduce."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Sizes, a column each: bytes that are read and written in all, and elements of a row.
COLUMNS = ("bytes", "columns")


def least(sizes: Floats, peak: float, bandwidth: float, item: float) -> Floats:
    """Seconds by the data sheet; FLOPs count for nothing."""
    return sizes[:, 0] / bandwidth


def features_pointwise(sizes: Floats) -> Floats:
    """Coordinates of what works element by element."""
    return np.log2(np.maximum(sizes[:, :1], 1.0))


def features_rows(sizes: Floats) -> Floats:
    """Coordinates of what reduces rows: norms, softmax."""
    size, columns = np.log2(np.maximum(sizes, 1.0)).T
    return np.stack([size, 0.5 * columns], axis=1)
