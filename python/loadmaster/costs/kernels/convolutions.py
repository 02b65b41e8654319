"""Convolutions: those of 3 x 3 over images, dense, with stride 1, as they were measured; all others
as the products that they are, one for each group of channels.

Libraries take Winograd's algorithm where they like, so FLOPs counted directly can pass the peak. As
a product each pixel is a row, and its window the inner dimension. Windows overlap, and what they
have in common is read once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.kernels.products import features as features_of_products
from loadmaster.costs.kernels.products import saturating

Floats = NDArray[np.float64]

#: Sizes, a column each; ``size`` is that of a square image, the square root of its pixels.
COLUMNS = ("batch", "in_channels", "out_channels", "size")


def least(sizes: Floats, peak: float, bandwidth: float, item: float) -> Floats:
    """Seconds by the data sheet."""
    batch, inputs, outputs, size = sizes.T
    pixels = batch * size * size
    moved = item * (pixels * (inputs + outputs) + 9 * inputs * outputs)
    seconds: Floats = np.maximum(18 * pixels * inputs * outputs / peak, moved / bandwidth)
    return seconds


#: Sizes of the products, a column each: groups, pixels, channels out and elements of a window, of
#: one group; ``read`` are the elements of all inputs.
WINDOWS = ("batch", "m", "n", "k", "read")


def least_windows(sizes: Floats, peak: float, bandwidth: float, item: float) -> Floats:
    """Seconds by the data sheet of products over windows."""
    b, m, n, k, read = sizes.T
    seconds: Floats = np.maximum(
        2.0 * b * m * n * k / peak, item * (read + b * (k * n + m * n)) / bandwidth
    )
    return seconds


def features_windows(sizes: Floats) -> Floats:
    """Coordinates on the surface of products."""
    return features_of_products(sizes[:, :4])


def features(sizes: Floats) -> Floats:
    """Coordinates on the surface."""
    batch, inputs, outputs, size = np.log2(np.maximum(sizes, 1.0)).T
    return np.stack([saturating(batch + 2 * size), inputs, outputs, size], axis=1)
