"""Sizes of parts of ops.

A part is known by its FLOPs and the bytes that it accesses, whatever cut it: replicas, shards,
micro-batches, splits. Which sizes were cut follows from these: a product whose rows are cut reads
the same weights, one whose inner dimension is cut writes the same result.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.kernels.families import FAMILIES

Floats = NDArray[np.float64]

#: Columns that can be cut, by family, those first that are cut most often.
_CUT = {
    "products": ("m", "n", "k", "batch"),
    "batched products": ("batch", "m", "n", "k"),
    "convolutions": ("batch", "out_channels", "in_channels"),
    "windows": ("m", "n", "k", "batch"),
}

#: Cuts whose bytes are this near to the nearest's (of the logarithm) are as good: the first counts.
_SAME = 1e-3

#: The most by which the first of two cut sizes is divided.
_MOST = 64


def cut(family: str, sizes: Floats, share: Floats, accessed: Floats) -> Floats:
    """Sizes of parts.

    Parameters
    ----------
    family : str
    sizes : float64 [n, columns]
        Of the whole ops.
    share : float64 [n]
        Of the FLOPs; above 1 where the batch is larger.
    accessed : float64 [n]
        Bytes of each part, as a multiple of the whole op's.
    """
    if family in ("pointwise", "norm", "softmax"):
        return np.stack([sizes[:, 0] * accessed, sizes[:, 1]], axis=1)
    if family in ("context", "encoder", "generation"):
        return _cut_attention(sizes, share)
    columns = FAMILIES[family].columns
    candidates = _candidates(sizes, share, [columns.index(c) for c in _CUT[family]])
    if family == "windows":
        candidates[:, :, 4] *= (candidates[:, :, [0, 1, 3]] / sizes[:, [0, 1, 3]]).prod(2)
    whole = _elements(family, sizes)
    ratio = np.maximum(_elements(family, np.maximum(candidates, 1.0)) / whole, 1e-9)
    apart = np.abs(np.log(ratio / np.maximum(accessed, 1e-9)))
    apart[(candidates < 1.0).any(axis=2)] = np.inf
    first = (apart <= apart.min(axis=0) + _SAME).argmax(axis=0)
    chosen: Floats = candidates[first, np.arange(len(sizes))]
    return np.maximum(chosen, 1.0)


def _candidates(sizes: Floats, share: Floats, columns: list[int]) -> Floats:
    """All that comes of cutting one column, or two by a power of 2 and the rest: float64
    [candidates, n, columns], with a size below 1 where there is none.
    """
    powers = 2.0 ** np.arange(1, int(np.log2(_MOST)) + 1)
    pairs = [(near, far) for pair in combinations(columns, 2) for near, far in (pair, pair[::-1])]
    times = np.ones((len(columns) + len(pairs) * len(powers), *sizes.shape))
    for place, column in enumerate(columns):
        times[place, :, column] = share
    rest = powers[:, None] * share
    rest[rest >= 1] = 0.0
    for place, (near, far) in enumerate(pairs):
        of_pair = times[len(columns) + place * len(powers) :][: len(powers)]
        of_pair[:, :, near] /= powers[:, None]
        of_pair[:, :, far] = rest
    return times * sizes


def _elements(family: str, sizes: Floats) -> Floats:
    """Elements that are read and written."""
    if family == "convolutions":
        batch, inputs, outputs, size = np.moveaxis(sizes, -1, 0)
        touched: Floats = batch * size * size * (inputs + outputs) + 9 * inputs * outputs
    elif family == "windows":
        b, m, n, k, read = np.moveaxis(sizes, -1, 0)
        touched = read + b * (k * n + m * n)
    else:
        b, m, n, k = np.moveaxis(sizes, -1, 0)
        touched = b * (m * k + k * n + m * n)
    return touched


def _cut_attention(sizes: Floats, share: Floats) -> Floats:
    """Attention is cut by sequences, and where there is one left by heads."""
    part = sizes.copy()
    by_batch = np.maximum(sizes[:, 0] * share, 1.0)
    rest = share * sizes[:, 0] / by_batch
    part[:, 0] = by_batch
    part[:, 1] = np.maximum(sizes[:, 1] * rest, 1.0)
    part[:, 2] = np.maximum(sizes[:, 2] * rest, 1.0)
    part[:, 2] = np.minimum(part[:, 2], part[:, 1])
    return part
