"""Seeded layered graphs that look like deep-learning models: thin most of the time, wide at times.

Layer widths are log-normal; every op reads one op of the layer before, further edges reach one to
four layers back, a few skip far. Each op has one output. Needs numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Standard deviation of the logarithm of layer widths, op times and tensor sizes.
WIDTH_SPREAD, TIME_SPREAD, SIZE_SPREAD = 0.8, 1.3, 1.6

#: Share of a mean transfer that is latency.
LATENCY_SHARE = 0.1


@dataclass(frozen=True)
class Layered:
    """Columns of a graph: ``src``, ``dst`` per edge; seconds and bytes per op or its output."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    op_seconds: NDArray[np.float64]
    tensor_seconds: NDArray[np.float64]
    tensor_bytes: NDArray[np.uint64]
    resident: NDArray[np.uint64]

    @property
    def n_ops(self) -> int:
        """Number of ops."""
        return len(self.op_seconds)

    @property
    def static_bytes(self) -> NDArray[np.uint64]:
        """Resident and output bytes per op."""
        return self.resident + self.tensor_bytes


def layered(
    n_ops: int,
    *,
    ccr: float = 1.0,
    seed: int = 0,
    width: float = 8.0,
    skip: float = 0.03,
    degree: float = 2.0,
    shuffle: bool = False,
) -> Layered:
    """Makes one; ``ccr`` is mean transfer time / mean op time, ``shuffle`` permutes the ids."""
    random = np.random.default_rng(seed)
    mean_log = np.log(width) - WIDTH_SPREAD**2 / 2
    widths = np.rint(random.lognormal(mean_log, WIDTH_SPREAD, 3 * int(n_ops / width) + 8))
    ends = np.minimum(np.cumsum(np.maximum(widths, 1).astype(np.int64)), n_ops)
    n_layers = int(np.searchsorted(ends, n_ops)) + 1
    first = np.concatenate([[0], ends[:n_layers]])
    layer = np.repeat(np.arange(n_layers), np.diff(first))

    def member_of(layers: NDArray[np.int64]) -> NDArray[np.int64]:
        sizes = first[layers + 1] - first[layers]
        return first[layers] + (random.random(len(layers)) * sizes).astype(np.int64)

    inner = np.flatnonzero(layer > 0)
    wanted = int(degree * n_ops)
    n_far = int(skip * wanted)
    near = random.choice(inner, max(int(1.02 * (wanted - n_far - len(inner))), 0) + 16)
    back = np.minimum(np.minimum(random.geometric(0.6, len(near)), 4), layer[near])
    deep = np.flatnonzero(layer > 8)
    far = random.choice(deep if len(deep) else inner, n_far)
    reach = (random.random(n_far) * np.maximum(layer[far] - 5, 1)).astype(np.int64)
    dst = np.concatenate([inner, near, far])
    src = np.concatenate(
        [member_of(layer[inner] - 1), member_of(layer[near] - back), member_of(reach)]
    )
    pairs = np.unique(src * n_ops + dst)
    src, dst = pairs // n_ops, pairs % n_ops

    op_us = np.clip(random.lognormal(np.log(60), TIME_SPREAD, n_ops), 1, 10_000)
    size = np.clip(random.lognormal(np.log(256e3), SIZE_SPREAD, n_ops), 1e3, 256e6)
    target = ccr * op_us.mean()
    mean_size = size[src].mean()
    tensor_us = target * (LATENCY_SHARE + (1 - LATENCY_SHARE) * size / mean_size)
    weights = random.lognormal(np.log(4e6), 1.0, n_ops) * (random.random(n_ops) < 0.2)

    place = random.permutation(n_ops) if shuffle else np.arange(n_ops)

    def by_new_id(column: NDArray[np.float64]) -> NDArray[np.float64]:
        moved = np.empty_like(column)
        moved[place] = column
        return moved

    return Layered(
        place[src],
        place[dst],
        np.maximum(1, np.rint(by_new_id(op_us))) * 1e-6,
        np.maximum(1, np.rint(by_new_id(tensor_us))) * 1e-6,
        by_new_id(size).astype(np.uint64),
        by_new_id(weights).astype(np.uint64),
    )
