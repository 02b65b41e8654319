"""Mean and spread of one op's time on one device type, and how measurements merge.

T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing
sample variances" (1979), equations 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from loadmaster.model.profile import Profile


class Entry(NamedTuple):
    """Mean and spread of the time of an op on a device type.

    Attributes
    ----------
    mean : float
        Seconds.
    steps : int
        Number of measured steps; 0: the time is regressed.
    squares : float
        Sum of squared differences from the mean, s². Of a regressed time: its variance.
    """

    mean: float
    steps: int
    squares: float

    @classmethod
    def regressed(cls, seconds: float, deviation: float) -> Entry:
        """A time that was regressed, not measured, with its relative standard deviation."""
        return cls(seconds, 0, (seconds * deviation) ** 2)

    @property
    def variance(self) -> float:
        """Variance of single steps, s²; NaN if only one step was measured."""
        if self.steps == 0:
            return self.squares
        return self.squares / (self.steps - 1) if self.steps > 1 else math.nan

    def merged(self, other: Entry) -> Entry:
        """The entry of the steps of both (Chan, Golub, LeVeque 1979, eq. 2.1).

        A measurement replaces a regressed time.
        """
        if self.steps == 0 or other.steps == 0:
            return self if other.steps == 0 < self.steps else other
        steps = self.steps + other.steps
        apart = other.mean - self.mean
        mean = self.mean + apart * other.steps / steps
        squares = self.squares + other.squares + apart**2 * self.steps * other.steps / steps
        return Entry(mean, steps, squares)


def entries_of(profile: Profile) -> Iterable[Entry]:
    """An entry for each op of a profile, by name."""
    seconds = profile.seconds
    steps = (~np.isnan(seconds)).sum(axis=1)
    mean = np.nanmean(seconds, axis=1)
    squares = np.nansum((seconds - mean[:, None]) ** 2, axis=1)
    return map(Entry, mean.tolist(), steps.tolist(), squares.tolist())
