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

#: A cut whose bytes are nearer by less than this (of the logarithm) is no better.
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
    columns = FAMILIES[family].columns
    if family in ("pointwise", "norm", "softmax"):
        return np.stack([sizes[:, 0] * accessed, sizes[:, 1]], axis=1)
    if family in ("context", "encoder", "generation"):
        return _cut_attention(sizes, share)
    best, part = np.full(len(sizes), np.inf), sizes.copy()
    whole = _elements(family, sizes)
    for candidate in _candidates(sizes, share, [columns.index(c) for c in _CUT[family]]):
        if family == "windows":
            read = candidate[:, [0, 1, 3]] / sizes[:, [0, 1, 3]]
            candidate[:, 4] = sizes[:, 4] * read.prod(1)
        there = np.where((candidate >= 1.0).all(1), 0.0, np.inf)
        ratio = np.maximum(_elements(family, np.maximum(candidate, 1.0)) / whole, 1e-9)
        apart = np.abs(np.log(ratio / np.maximum(accessed, 1e-9))) + there
        better = apart < best - _SAME
        best[better], part[better] = apart[better], candidate[better]
    lost = np.isinf(best)
    part[lost, columns.index(_CUT[family][0])] *= share[lost]
    return np.maximum(part, 1.0)


def _candidates(sizes: Floats, share: Floats, columns: list[int]) -> list[Floats]:
    """All that comes of cutting one column, or two by a power of 2 and the rest."""
    cuts = []
    for column in columns:
        one = sizes.copy()
        one[:, column] *= share
        cuts.append(one)
    for first, second in combinations(columns, 2):
        for by in 2 ** np.arange(1, int(np.log2(_MOST)) + 1):
            if (share * by < 1).any():
                for near, far in ((first, second), (second, first)):
                    both = sizes.copy()
                    both[:, near] /= by
                    both[:, far] *= np.where(share * by < 1, share * by, np.nan)
                    cuts.append(np.nan_to_num(both))
    return cuts


def _elements(family: str, sizes: Floats) -> Floats:
    """Elements that are read and written."""
    if family == "convolutions":
        batch, inputs, outputs, size = sizes.T
        touched: Floats = batch * size * size * (inputs + outputs) + 9 * inputs * outputs
    elif family == "windows":
        b, m, n, k, read = sizes.T
        touched = read + b * (k * n + m * n)
    else:
        b, m, n, k = sizes.T
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
