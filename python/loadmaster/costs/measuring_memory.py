"""Measuring how fast a CPU's cores together read and write its memory."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks

#: Bytes that each thread copies at a time: more than its share of any cache.
SIZE = 1 << 26

#: Times that all copy; the fastest counts, since what disturbs only makes it slower.
_TIMES = 5


def measure_memory(threads: int, size: int = SIZE) -> float:
    """B/s that so many threads read and write together, each from and to memory of its own.

    Parameters
    ----------
    threads : int
        One per core fills the memory's channels.
    size : int
        Bytes that each copies; it takes twice that.

    Examples
    --------
    >>> measure_memory(1, 1 << 20) > 0
    True
    """
    threads = checks.integer("threads", threads, 1, 1024)
    size = checks.integer("size", size, 1, 2**31)
    blocks = [(np.ones(size, np.uint8), np.zeros(size, np.uint8)) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = []
        for _ in range(_TIMES):
            began = time.perf_counter()
            list(pool.map(_copy, blocks))
            seconds.append(time.perf_counter() - began)
    return 2 * size * threads / max(min(seconds), 1e-9)


def _copy(block: tuple[NDArray[np.uint8], NDArray[np.uint8]]) -> None:
    np.copyto(block[1], block[0])
