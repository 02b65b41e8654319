"""What the judge, or a real run, saw of one assignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast


@dataclass(frozen=True)
class Verdict:
    """How long a step takes and what it holds.

    Verdicts are compared by an :class:`~loadmaster.judge.objective.Objective` and by nothing else.

    Attributes
    ----------
    step_time : float
        Seconds from the start of a step to the end of its last op.
    peak : uint64 [n_devices]
        Most bytes that each device held at any time.
    excess : int
        Bytes over the devices' memory, summed over devices.
    schedule : fast.Schedule or None
        Every detail of a simulation; None where the step was measured.
    measured_period : float or None
        Seconds between measured steps that follow each other without a pause.
    """

    step_time: float
    peak: NDArray[np.uint64]
    excess: int
    schedule: fast.Schedule | None = None
    measured_period: float | None = None

    @classmethod
    def of(cls, schedule: fast.Schedule, memory: Sequence[int]) -> Verdict:
        """What a simulation saw, on devices of so many bytes."""
        peak = schedule.peak
        return cls(schedule.makespan, peak, _excess(peak, memory), schedule)

    @classmethod
    def measured(
        cls,
        step_time: float,
        peak: NDArray[np.uint64],
        memory: Sequence[int],
        *,
        period: float | None = None,
    ) -> Verdict:
        """What was seen on real devices.

        Parameters
        ----------
        step_time : float
            Seconds.
        peak : uint64 [n_devices]
        memory : int per device
            Bytes that there are.
        period : float, optional
            Seconds between steps that follow each other without a pause; the step time if absent.

        Examples
        --------
        >>> import numpy as np
        >>> seen = Verdict.measured(0.2, np.array([6, 3], dtype=np.uint64), [4, 4])
        >>> seen.excess, seen.fits, seen.period
        (2, False, 0.2)
        """
        return cls(step_time, peak, _excess(peak, memory), measured_period=period)

    @property
    def period(self) -> float:
        """Seconds between steps that follow each other without a pause.

        Of a simulated step: those of the busiest device or channel, since steps cannot come faster.
        Of a measured one: what was measured, else its step time.
        """
        if self.schedule is None:
            return self.step_time if self.measured_period is None else self.measured_period
        busy = (self.schedule.device_busy, self.schedule.channel_busy)
        return max(float(seconds.max(initial=0.0)) for seconds in busy)

    @property
    def fits(self) -> bool:
        """Whether no device ever holds more than it can."""
        return self.excess == 0


def _excess(peak: NDArray[np.uint64], memory: Sequence[int]) -> int:
    return sum(max(p - m, 0) for p, m in zip(peak.tolist(), memory, strict=True))
