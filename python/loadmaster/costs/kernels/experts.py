"""Routed experts: a router, and two products of each token with each expert that it is sent to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Sizes, a column each. ``rows`` are pairs of token and expert on the device, ``experts`` those
#: that it holds, ``inner`` the width of its part of each, ``skew`` how unevenly tokens are sent.
COLUMNS = ("rows", "hidden", "inner", "top_k", "experts", "skew")

#: Rows below which fewer make no difference.
_FEWEST = 1 / 64


def least(sizes: Floats, peak: float, bandwidth: float, item: float) -> Floats:
    """Seconds by the data sheet; experts that no token is sent to are not read."""
    rows, hidden, inner, _, experts, _ = sizes.T
    read = experts * (1 - np.exp(-rows / experts))
    moved = item * (read * 3 * hidden * inner + rows * (2 * hidden + 3 * inner))
    seconds: Floats = np.maximum(6 * rows * hidden * inner / peak, moved / bandwidth)
    return seconds


def features(sizes: Floats) -> Floats:
    """Coordinates on the surface."""
    rows, hidden, inner, top_k, experts, skew = sizes.T
    log = np.log2
    return np.stack(
        [
            log(np.maximum(rows, _FEWEST)),
            log(hidden),
            log(inner),
            0.5 * log(top_k),
            log(experts),
            skew,
        ],
        axis=1,
    )
