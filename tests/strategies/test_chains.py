"""Contiguous stages along a line against every way to cut it."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loadmaster.fast as fast


def brute(
    seconds: np.ndarray,
    path: np.ndarray,
    fixed: np.ndarray,
    held: np.ndarray,
    ways: list[tuple[int, int, int, list[int]]],
    pools: list[int],
    used: int,
    weight: float,
) -> float:
    """The least sum of paths plus weight times the largest load, by trying everything."""
    n = seconds.shape[1]
    best = np.inf
    for k in range(1, n):
        for inner in combinations(range(1, n - 1), k - 1):
            ends = (0, *inner, n - 1)
            for chosen in product(range(len(ways)), repeat=k):
                left, before, total, load = list(pools), 0, 0.0, 0.0
                for s, w in enumerate(chosen):
                    pool, width, memory, in_flight = ways[w]
                    i, j = ends[s], ends[s + 1]
                    if left[pool] < width or before + width > used:
                        break
                    if fixed[w, i, j] + held[w, i, j] * in_flight[before] > memory:
                        break
                    left[pool] -= width
                    before += width
                    total, load = total + path[w, i, j], max(load, seconds[w, i, j])
                else:
                    if before == used:
                        best = min(best, total + weight * load)
    return best


@given(st.data())
def test_no_other_stages_are_better(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 6))
    pools = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=2))
    used = data.draw(st.integers(1, min(sum(pools), 3)))
    n_ways = data.draw(st.integers(1, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    load = rng.integers(1, 9, (n_ways, n, n)).astype(float)
    load[rng.random(load.shape) < 0.1] = np.inf
    path = rng.integers(0, 9, (n_ways, n, n)).astype(float)
    fixed = rng.integers(0, 9, (n_ways, n, n)).astype(np.uint64)
    held = rng.integers(0, 4, (n_ways, n, n)).astype(np.uint64)
    weight = float(data.draw(st.integers(0, 9)))
    ways = [
        (
            int(rng.integers(len(pools))),
            int(rng.integers(1, used + 1)),
            int(rng.integers(6, 20)),
            rng.integers(1, 4, used).tolist(),
        )
        for _ in range(n_ways)
    ]
    pool, width, memory, in_flight = zip(*ways, strict=True)
    found = fast.best_stages(
        load.reshape(-1, n),
        path.reshape(-1, n),
        (fixed.ravel(), held.ravel()),
        (
            np.array(pool),
            np.array(width),
            np.array(memory, dtype=np.uint64),
            np.array(in_flight, dtype=np.uint64).ravel(),
        ),
        (pools, used),
        weight,
    )
    least = brute(load, path, fixed, held, ways, pools, used, weight)
    if found is None:
        assert least == np.inf
        return
    ends, way = (column.tolist() for column in found)
    starts = [0, *ends[:-1]]
    rows = list(zip(way, starts, ends, strict=True))
    total = sum(path[w, i, j] for w, i, j in rows)
    assert total + weight * max(load[w, i, j] for w, i, j in rows) == pytest.approx(least)
    assert sum(ways[w][1] for w in way) == used


def test_what_is_no_matrix_of_cuts_is_refused() -> None:
    one = np.ones(1, dtype=np.uint64)
    ways = np.array([0]), np.array([1]), one, one
    with pytest.raises(ValueError, match="a matrix of all cuts per way"):
        fast.best_stages(np.zeros((2, 3)), np.zeros((2, 3)), (one, one), ways, ([1], 1), 1.0)
    square = np.zeros((2, 2))
    none = np.zeros(4, dtype=np.uint64)
    with pytest.raises(ValueError, match="a weight >= 0"):
        fast.best_stages(square, square, (none, none), ways, ([1], 1), -1.0)
