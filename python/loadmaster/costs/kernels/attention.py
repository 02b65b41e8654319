"""Attention as one fused kernel: softmax(Q K^T) V, without the matrix of pairs in memory.

``context``: causal, many queries; ``encoder``: every query with every key; ``generation``: one
query of each sequence with all keys before it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Sizes of attention, a column each. ``keys`` are those before and with the queries; ``window`` is
#: how many of them a query attends to, 0: all.
COLUMNS = ("batch", "heads", "kv_heads", "queries", "keys", "head_dim", "window")

#: How far attention with a window lies from that without, which has other kernels, even where all
#: keys are within the window; and from that of keys beyond it.
_WINDOWED, _CUT = 4.0, 0.5


def context_pairs(sizes: Floats) -> Floats:
    """Pairs of query and key of one head, each query attending to what is before it."""
    _, _, _, queries, keys, _, window = sizes.T
    past = keys - queries
    cut = np.where((window > 0) & (window < keys), window, keys)
    short = np.minimum(queries, cut)
    causal = queries * (queries + 1) / 2 + queries * past
    windowed = short * (short + 1) / 2 + np.maximum(queries - cut, 0) * cut
    pairs: Floats = np.where(cut < keys, windowed, causal)
    return pairs


def attended(sizes: Floats) -> Floats:
    """Keys that one query attends to at most."""
    keys, window = sizes[:, 4], sizes[:, 6]
    return np.where(window > 0, np.minimum(window, keys), keys)


def _least(
    sizes: Floats, pairs: Floats, read: Floats, figures: tuple[float, float, float]
) -> Floats:
    """Seconds by the data sheet of so many pairs, with so many keys read."""
    batch, heads, kv_heads, queries, _, dim, _ = sizes.T
    peak, bandwidth, item = figures
    moved = item * batch * dim * (2 * queries * heads + 2 * read * kv_heads)
    seconds: Floats = np.maximum(4 * batch * heads * pairs * dim / peak, moved / bandwidth)
    return seconds


def least_context(sizes: Floats, peak: float, bandwidth: float, item: float) -> Floats:
    """Seconds by the data sheet of causal attention of many queries."""
    return _least(sizes, context_pairs(sizes), sizes[:, 4], (peak, bandwidth, item))


def least_encoder(sizes: Floats, peak: float, bandwidth: float, item: float) -> Floats:
    """Seconds by the data sheet of attention of every query to every key."""
    return _least(sizes, sizes[:, 3] * sizes[:, 4], sizes[:, 4], (peak, bandwidth, item))


def least_generation(sizes: Floats, peak: float, bandwidth: float, item: float) -> Floats:
    """Seconds by the data sheet of one query of each sequence."""
    keys = attended(sizes)
    return _least(sizes, keys, keys, (peak, bandwidth, item))


def features_context(sizes: Floats) -> Floats:
    """Coordinates of causal attention on its surface."""
    return _features(sizes, context_pairs(sizes))


def features_encoder(sizes: Floats) -> Floats:
    """Coordinates of attention of every query to every key on its surface."""
    return _features(sizes, sizes[:, 3] * sizes[:, 4])


def _features(sizes: Floats, pairs: Floats) -> Floats:
    batch, heads, kv_heads, queries, _, dim, window = sizes.T
    log = np.log2
    return np.stack(
        [
            log(batch),
            log(heads),
            log(pairs / queries),
            log(queries),
            log(heads / kv_heads),
            2 * log(dim),
            _WINDOWED * (window > 0) + _CUT * (attended(sizes) < sizes[:, 4]),
        ],
        axis=1,
    )


def features_generation(sizes: Floats) -> Floats:
    """Coordinates of attention of one query on its surface."""
    batch, heads, kv_heads, _, keys, dim, window = sizes.T
    read = attended(sizes)
    log = np.log2
    return np.stack(
        [
            log(batch),
            log(heads),
            log(read),
            log(heads / kv_heads),
            2 * log(dim),
            _WINDOWED * (window > 0) + _CUT * (read < keys),
            log(batch * kv_heads * read * dim),
        ],
        axis=1,
    )
