"""Turns: how long ops wait where a scheduler takes the processor away and gives it back.

On a machine that others use, a process runs for a turn and then waits while others have theirs.
An op much shorter than a turn mostly gets through within one; a longer one waits again and again.
So its time grows faster than its work just where that reaches a turn's length, and no growth
fitted to shorter steps can tell. But how long turns and waits are is the scheduler's, the same for
all ops: steps that waited took one multiple or another of the same time longer than the fastest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Turns tried, as multiples of a wait.
_TURNS = np.geomspace(0.25, 8.0, 41)
#: Seconds: no scheduler gives shorter turns, or every switch would count.
_LEAST = 0.5e-3
#: A usual step that takes so many times as long as the fastest has waited.
_WAITED = 1.5
#: Steps that must have waited alike before that is taken for turns, and which share of all that
#: waited: what is only the busier the longer it takes waits any time.
_LEAST_WAITS, _LEAST_SHARE = 3, 1 / 3
#: Relative distance within which waits are alike.
_ALIKE = 0.1


class Turns(NamedTuple):
    """A processor's turns.

    Attributes
    ----------
    run, wait : float
        Seconds that a process runs, and that it then waits; infinite and none: it never waits.
    """

    run: float
    wait: float

    def usual(self, work: Floats) -> Floats:
        """Seconds that the usual step of ops takes, from the seconds that they run."""
        waits = np.where(work > self.run / 2, np.maximum(work / self.run, 1.0), 0.0)
        return np.asarray(work + self.wait * waits)

    def work(self, fastest: Floats) -> Floats:
        """Seconds that ops run, from their fastest step, which waited as seldom as can be."""
        waits = np.floor(fastest / (self.run + self.wait))
        return np.minimum(fastest - waits * self.wait, (waits + 1) * self.run)


def turns(fastest: Floats, usual: Floats) -> Turns:
    """The turns that explain best how much longer usual steps take than the fastest.

    The wait is the commonest by time; the turn leaves the least sum of log errors. O(n log n).

    Parameters
    ----------
    fastest, usual : float64 [n]
        Seconds of ops' fastest and median steps; positive.

    Examples
    --------
    >>> run = np.linspace(0.2e-3, 9e-3, 100)
    >>> found = turns(run, Turns(3.9e-3, 4e-3).usual(run))
    >>> [round(x, 4) for x in (found.wait, *found.usual(np.array([1e-3, 3e-3])).tolist())]
    [0.004, 0.001, 0.007]
    >>> turns(run, 1.1 * run)
    Turns(run=inf, wait=0.0)
    """
    endless = Turns(np.inf, 0.0)
    excess = np.sort((usual - fastest)[usual > _WAITED * fastest])
    excess = excess[excess >= _LEAST]
    alike = np.searchsorted(excess, excess * (1 + _ALIKE), "right") - np.arange(len(excess))
    common = (alike >= _LEAST_WAITS) & (alike >= _LEAST_SHARE * len(excess))
    if not common.any():
        return endless
    first = int((common * alike * excess).argmax())
    wait = float(np.median(excess[first : first + alike[first]]))

    def off(tried: Turns) -> float:
        return float(np.abs(np.log(tried.usual(tried.work(fastest)) / usual)).sum())

    return min((endless, *(Turns(wait * share, wait) for share in _TURNS)), key=off)
