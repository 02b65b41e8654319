"""Shapes drawn from Hypothesis, values from a seed."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st


class Drawn:
    """Draws shapes from Hypothesis, values from a seed."""

    def __init__(self, data):
        self.data = data
        self.random = np.random.default_rng(data.draw(st.integers(0, 2**16)))

    def int(self, least, most):
        return self.data.draw(st.integers(least, most))

    def one(self, *values):
        return self.data.draw(st.sampled_from(values))

    def sizes(self, least, most, longest=5):
        return tuple(self.int(1, longest) for _ in range(self.int(least, most)))

    def floats(self, *sizes):
        return np.asarray(self.random.uniform(0.1, 0.9, sizes))

    def ints(self, below, *sizes):
        return np.asarray(self.random.integers(0, below, sizes))

    def bools(self, *sizes):
        return np.asarray(self.random.random(sizes) < 0.5)

    def broadcast(self, sizes):
        """Sizes that broadcast to others."""
        mine = [1 if self.int(0, 3) == 0 else size for size in sizes]
        return tuple(mine[self.int(0, len(mine)) if self.int(0, 2) == 0 else 0 :])
