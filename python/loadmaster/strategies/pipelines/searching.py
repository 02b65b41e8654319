"""The schedule that is searched for: windows under which a pipeline's step is shortest.

A descent from the named schedules. A move gives one device, or a run of them, one forward pass more
or less ahead, or lets its gradients of weights come one backward pass sooner or later. The stages
alone are simulated. So unequal stages and slow links get the windows that hide them, and no device
more micro-batches than it has memory for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.strategies.pipelines.estimates import StageTimes, estimated
from loadmaster.strategies.pipelines.schedules import Windows, named_for, windows

#: Estimates that a search may ask for.
BUDGET = 1000

#: Changes of a device by a move: forward passes ahead, and the delay of gradients of weights.
_MOVES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, -1), (-1, 1))


def searched(
    times: StageTimes,
    m: int,
    virtual: int = 1,
    *,
    most_alive: Sequence[int] | NDArray[Any] | None = None,
    budget: int = BUDGET,
) -> Windows:
    """The windows of the shortest step that were found; of equals those with fewer alive.

    Parameters
    ----------
    times : StageTimes
        Of p x ``virtual`` stages.
    m : int
        Micro-batches.
    virtual : int
        Stages per device.
    most_alive : int [p], optional
        Micro-batches, of each virtual stage, that each device may hold. Any number if absent.
    budget : int
        Estimates that may be asked for.

    Returns
    -------
    Windows
        None of the named schedules that keep to ``most_alive`` has a shorter step, by the same
        estimate.

    Raises
    ------
    InputError
        Limits below 1, or not one per device.

    Notes
    -----
    At most ``budget`` estimates, counted: the same input gives the same windows.

    Examples
    --------
    >>> from loadmaster.strategies.pipelines.estimates import estimated
    >>> times = StageTimes.of([1.0] * 4, 1.0, 1.0)
    >>> [estimated(times, 8, s).seconds for s in ("1f1b", "zero-bubble", searched(times, 8))]
    [33.0, 27.0, 27.0]
    """
    p, most = len(times) // virtual, m * virtual
    limit = np.full(p, most) if most_alive is None else np.minimum(most_alive, most)
    if limit.shape != (p,) or limit.min() < 1:
        raise InputError(f"most_alive is {most_alive}: wants {p} numbers of at least 1")
    return _Descent(times, m, virtual, limit.astype(np.int64), budget).run()


class _Descent:
    """The best windows so far, and what may still be asked."""

    def __init__(
        self, times: StageTimes, m: int, virtual: int, limit: NDArray[np.int64], budget: int
    ) -> None:
        self.times, self.m, self.virtual = times, m, virtual
        self.limit, self.budget = limit, budget
        self.known: dict[Windows, tuple[float, int]] = {}

    def run(self) -> Windows:
        """Down from the best start, until no move is better."""
        best = min(self._starts(), key=self.rank)
        while True:
            better = next((w for w in self._near(best) if self.rank(w) < self.rank(best)), None)
            if better is None:
                return best
            best = better

    def rank(self, schedule: Windows) -> tuple[float, int]:
        """Seconds, then micro-batches alive in all."""
        if schedule not in self.known:
            if self.budget <= 0:
                return float("inf"), 0
            self.budget -= 1
            try:
                seen = estimated(self.times, self.m, schedule, self.virtual)
            except InputError:  # Stages would wait for each other.
                self.known[schedule] = float("inf"), 0
            else:
                self.known[schedule] = seen.seconds, int(seen.in_flight.sum())
        return self.known[schedule]

    def _starts(self) -> Iterator[Windows]:
        """The named schedules, as far as memory lets them, and each of them out of order, with
        gradients of weights apart, and with twice as many ahead, which hides transfers.
        """
        p = len(self.limit)
        for name in named_for(self.virtual):
            named = windows(name, p, self.m, self.virtual)
            ahead = np.array(named.ahead)
            for delay in dict.fromkeys([named.delay, named.delay or (0,) * p]):
                for some in (ahead, 2 * ahead - 1):
                    held = self._held(some, None if delay is None else np.array(delay))
                    yield from (held, replace(held, in_order=False))

    def _held(self, ahead: NDArray[np.int64], delay: NDArray[np.int64] | None) -> Windows:
        """Windows brought within the limits. However late gradients of weights come, no more
        micro-batches are alive than there are.
        """
        ahead = np.clip(ahead, 1, self.limit)
        if delay is None:
            return Windows(tuple(ahead.tolist()))
        most = self.m * self.virtual
        delay = np.clip(delay, 0, np.where(self.limit < most, self.limit - ahead, most))
        return Windows(tuple(ahead.tolist()), tuple(delay.tolist()))

    def _near(self, schedule: Windows) -> Iterator[Windows]:
        """Windows that differ by one move."""
        for more, later in _MOVES:
            if later and schedule.delay is None:
                continue
            for which in self._runs():
                ahead = np.array(schedule.ahead)
                delay = None if schedule.delay is None else np.array(schedule.delay)
                ahead[which] += more
                if delay is not None:
                    delay[which] += later
                held = replace(self._held(ahead, delay), in_order=schedule.in_order)
                if held != schedule:
                    yield held

    def _runs(self) -> list[slice]:
        """Devices that are changed together: all up to one, all from one on, one alone."""
        p = len(self.limit)
        until = [slice(0, s + 1) for s in reversed(range(p))]
        return until + [slice(s, p) for s in range(1, p)] + [slice(s, s + 1) for s in range(1, p)]
