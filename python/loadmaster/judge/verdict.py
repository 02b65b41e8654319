"""The verdict of the judge, or of a real run, on one assignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast


class Resource(Enum):
    """A kind of what may keep steps of a stream from following each other faster."""

    DEVICE = "device {name}"
    CHANNEL = "channel {name}"
    #: The host that launches the ops of all devices, or those that launch for a device each.
    HOST = "the host, which launches"
    HOSTS = "a device's host"
    MEMORY = "memory of {name}"
    UPDATE = "the update of parameters, which the next step waits for"


@dataclass(frozen=True)
class Limit:
    """The resource that keeps a stream's period from being shorter.

    Attributes
    ----------
    resource : Resource
    name : str
        Of the device or channel, if it is one.
    busy : float or None
        Share of the time that it is busy; None: all of it, or it is none that works.

    Examples
    --------
    >>> print(Limit(Resource.MEMORY, "gpu2"))
    memory of gpu2
    """

    resource: Resource
    name: str = ""
    busy: float | None = None

    def __str__(self) -> str:
        share = "" if self.busy is None else f", busy {self.busy:.0%} of the time"
        return self.resource.value.format(name=self.name) + share


@dataclass(frozen=True)
class Steady:
    """Figures of a stream of steps, between steady ones.

    Attributes
    ----------
    period : float
        Seconds between batches of the user's.
    latency : float
        Seconds from the start of a batch's first op to the end of its last.
    in_flight : int
        Batches that are under way at a time.
    limit : Limit
    """

    period: float
    latency: float
    in_flight: int
    limit: Limit


@dataclass(frozen=True)
class Verdict:
    """The length of a step, and the memory that it takes.

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
    load : float or None
        Seconds per batch of what limits a stream, as far as one simulated step tells; None: that
        was not asked for.
    steady : Steady or None
        What a simulated stream came to; ``peak`` and ``excess`` are then the stream's.
    """

    step_time: float
    peak: NDArray[np.uint64]
    excess: int
    schedule: fast.Schedule | None = None
    measured_period: float | None = None
    load: float | None = None
    steady: Steady | None = None

    @classmethod
    def of(
        cls, schedule: fast.Schedule, memory: Sequence[int], load: float | None = None
    ) -> Verdict:
        """The verdict of a simulation, on devices of so many bytes."""
        peak = schedule.peak
        return cls(schedule.makespan, peak, _excess(peak, memory), schedule, load=load)

    def within(self, memory: Sequence[int]) -> Verdict:
        """The same on devices of so many bytes."""
        return replace(self, excess=_excess(self.peak, memory))

    def streamed(self, steady: Steady, peak: NDArray[np.uint64], memory: Sequence[int]) -> Verdict:
        """The same with what a stream came to, and what devices held in it."""
        return replace(self, steady=steady, peak=peak, excess=_excess(peak, memory))

    @classmethod
    def measured(
        cls,
        step_time: float,
        peak: NDArray[np.uint64],
        memory: Sequence[int],
        *,
        period: float | None = None,
    ) -> Verdict:
        """The verdict of a run on real devices.

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

        Of a simulated stream: those that it came to. Of a simulated step: those of the busiest
        device or channel, since steps cannot come faster. Of a measured one: what was measured,
        else its step time.
        """
        if self.steady is not None:
            return self.steady.period
        if self.load is not None:
            return self.load
        if self.schedule is None:
            return self.step_time if self.measured_period is None else self.measured_period
        busy = (self.schedule.device_busy, self.schedule.channel_busy)
        return max(float(seconds.max(initial=0.0)) for seconds in busy)

    @property
    def fits(self) -> bool:
        """True if no device ever holds more than it can."""
        return self.excess == 0


def _excess(peak: NDArray[np.uint64], memory: Sequence[int]) -> int:
    return sum(max(p - m, 0) for p, m in zip(peak.tolist(), memory, strict=True))
