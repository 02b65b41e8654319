"""Turns: how long ops wait where a scheduler takes the processor away and gives it back.

On a shared machine, a process runs for a turn and then waits while other processes run. An op much
shorter than a turn mostly ends within one. A longer op waits again and again: where its work
reaches the length of a turn, its time grows faster than its work, which no fit to shorter steps can
foresee. But the scheduler sets the lengths of turns and waits, for all ops alike. So a step that
waited is longer than the fastest by a multiple of one and the same wait.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Lengths of turns to try, as multiples of a wait.
_TURNS = np.geomspace(0.25, 8.0, 41)
#: Seconds of the shortest turn: with shorter ones, switches would take most of the time.
_LEAST = 0.5e-3
#: A usual step has waited if it takes at least so many times as long as the fastest.
_WAITED = 1.5
#: So many steps, and so large a share of all that waited, must have waited alike to be evidence of
#: turns. On a machine that is merely busy, steps wait for any length of time.
_LEAST_WAITS, _LEAST_SHARE = 3, 1 / 3
#: Waits within this relative distance count as alike.
_ALIKE = 0.1


class Turns(NamedTuple):
    """A processor's turns.

    Attributes
    ----------
    run, wait : float
        Seconds that a process runs, and that it then waits. Infinity and 0: it never waits.
    """

    run: float
    wait: float

    def usual(self, work: Floats) -> Floats:
        """Seconds that the usual step of ops takes, from the seconds that they run."""
        waits = np.where(work > self.run / 2, np.maximum(work / self.run, 1.0), 0.0)
        return np.asarray(work + self.wait * waits)

    def work(self, fastest: Floats) -> Floats:
        """Seconds that ops run, from their fastest step, which waited the fewest times possible."""
        waits = np.floor(fastest / (self.run + self.wait))
        return np.minimum(fastest - waits * self.wait, (waits + 1) * self.run)


def turns(fastest: Floats, usual: Floats) -> Turns:
    """The turns that best explain by how much usual steps are longer than the fastest.

    The wait is the most frequent one, weighted by time. The turn leaves the least sum of log
    errors. O(n log n).

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
