"""Products of matrices: batch x [m, k] x [k, n]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Sizes of a product, a column each.
COLUMNS = ("batch", "m", "n", "k")


def least(sizes: Floats, peak: float, bandwidth: float, item: float) -> Floats:
    """Seconds by the data sheet: the longer of FLOPs and bytes."""
    b, m, n, k = sizes.T
    seconds: Floats = np.maximum(
        2.0 * b * m * n * k / peak, item * b * (m * k + k * n + m * n) / bandwidth
    )
    return seconds


#: Rows, as a logarithm of base 2, from which on a device is full: more of them change the
#: efficiency so much less.
_FULL, _BEYOND_FULL = 12.0, 0.25


def features(sizes: Floats) -> Floats:
    """Coordinates of a product on its surface; a batch counts as so many times the rows."""
    b, m, n, k = np.log2(np.maximum(sizes, 1.0)).T
    return np.stack([saturating(b + m), n, k], axis=1)


def saturating(rows: Floats) -> Floats:
    """The coordinate of so many rows, given as a logarithm of base 2."""
    return np.where(rows > _FULL, _FULL + (rows - _FULL) * _BEYOND_FULL, rows)


def features_batched(sizes: Floats) -> Floats:
    """Coordinates of a batch of products, where batches were measured as such."""
    return np.log2(np.maximum(sizes, 1.0))
