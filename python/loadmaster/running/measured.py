"""Measured: the steps of a plan that ran, beside what was predicted of them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.base.units import counted
from loadmaster.plans.plan import Plan

Floats = NDArray[np.float64]

#: From so many steps on, the 10th percentile stands for them; of fewer, the least does.
ENOUGH_STEPS = 24

#: The share of a step that workers may wait for a core; beyond it, the machine is too busy.
MOST_DELAY = 0.02


@dataclass(frozen=True, eq=False)
class Steps:
    """When everything began and ended in each step that was measured, by the clock.

    Times are seconds since the step began, as they passed on the machine: of a run that was
    stretched, they are longer than the plan's.

    Attributes
    ----------
    start, finish : float64 [n_steps, n_ops]
        Of the ops of the graph that runs. A placeholder is there at 0, a view where its data is.
    sent_start, sent_finish : float64 [n_steps, n_transfers]
        Of the transfers, in the order of those that the plan's simulation has
        (``plan.schedule.transfers``).
    gathered_start, gathered_finish : float64 [n_steps, n_collectives]
        Of the collectives, in the order of ``plan.schedule.collectives``.
    seconds : float64 [n_steps]
        Of the whole step.
    delay : float64 [n_steps]
        Seconds for which workers were ready and had no core, the longest of all workers.
    peaks : uint64 [n_devices] or None
        Most bytes that each device held; None: not measured.

    Raises
    ------
    InputError
        Columns of different lengths, a time that is negative, infinite or no number, an end before
        its begin; the column and the step are named.
    """

    start: Floats
    finish: Floats
    sent_start: Floats
    sent_finish: Floats
    gathered_start: Floats
    gathered_finish: Floats
    seconds: Floats
    delay: Floats
    peaks: NDArray[np.uint64] | None = None

    def __post_init__(self) -> None:
        n = len(self.seconds)
        if not n:
            raise InputError("no step was measured: run at least one")
        for column in _TIMES:
            values = getattr(self, column)
            wanted = 1 if column in ("seconds", "delay") else 2
            if values.ndim != wanted or len(values) != n or values.dtype != np.float64:
                raise InputError(
                    f"{column} has shape {values.shape} ({values.dtype}): wants seconds of "
                    f"{counted(n, 'step')}, as float64"
                )
            bad = np.argwhere(~((values >= 0) & (values < np.inf)))
            if len(bad):
                at = tuple(bad[0].tolist())
                raise InputError(f"{column} of step {at[0]} has {values[at]}: wants seconds >= 0")
        for begin, end in _PAIRS:
            first, last = getattr(self, begin), getattr(self, end)
            if first.shape != last.shape:
                raise InputError(f"{begin} has shape {first.shape}, {end} {last.shape}")
            bad = np.argwhere(last < first)
            if len(bad):
                step, at = bad[0].tolist()
                raise InputError(
                    f"{end}[{at}] of step {step} is {last[step, at]} s, before {begin}: "
                    f"{first[step, at]} s"
                )

    def __len__(self) -> int:
        return len(self.seconds)


_PAIRS = (
    ("start", "finish"),
    ("sent_start", "sent_finish"),
    ("gathered_start", "gathered_finish"),
)
_TIMES = tuple(column.name for column in fields(Steps) if column.name != "peaks")


@dataclass(frozen=True, eq=False)
class Measured:
    """A plan, and the steps of it that ran.

    Attributes
    ----------
    plan : Plan
        As it was predicted.
    steps : Steps
        As they passed on the machine.
    on : tuple of str
        What each device of the plan's cluster was: ``"emulated"``, ``"cpu:0"``, ...
    stretch : float
        How many times longer than the plan's times everything was made to take, so that it can be
        told from what the machine adds. All that is said of a run is in the plan's seconds.

    Raises
    ------
    InputError
        Steps of another number of ops, transfers, collectives or devices than the plan's.
    """

    plan: Plan = field(repr=False)
    steps: Steps = field(repr=False)
    on: tuple[str, ...]
    stretch: float = 1.0

    def __post_init__(self) -> None:
        schedule, n_devices = self.plan.schedule, self.plan.cluster.n_devices
        for what, column, wanted in (
            ("op", self.steps.start, len(schedule.start)),
            ("transfer", self.steps.sent_start, len(schedule.transfers)),
            ("collective", self.steps.gathered_start, len(schedule.collectives)),
        ):
            if column.shape[1] != wanted:
                raise InputError(
                    f"the steps are of {counted(column.shape[1], what)}, the plan has {wanted}"
                )
        if len(self.on) != n_devices:
            raise InputError(
                f"{counted(len(self.on), 'device')} measured: the plan's cluster has {n_devices}"
            )
        if self.steps.peaks is not None and self.steps.peaks.shape != (n_devices,):
            raise InputError(f"peaks has shape {self.steps.peaks.shape}, wants ({n_devices},)")
        if not 0 < self.stretch < float("inf"):
            raise InputError(f"stretch is {self.stretch}: wants a number above 0")

    @cached_property
    def step(self) -> float:
        """Seconds per step: the 10th percentile of 24 steps and more, the least of fewer.

        :attr:`step_is` says which.
        """
        return step_time(self.steps.seconds) / self.stretch

    @property
    def step_is(self) -> str:
        """The words "10th percentile" or "least"."""
        return "10th percentile" if len(self.steps) >= ENOUGH_STEPS else "least"

    @property
    def error(self) -> float:
        """Predicted over measured step time, minus 1."""
        return self.plan.makespan / self.step - 1 if self.step else 0.0


def step_time(seconds: Floats) -> float:
    """What stands for these steps: their 10th percentile, of fewer than 24 the least.

    Noise only adds: the low end repeats, and with many steps a percentile is steadier than the
    minimum.
    """
    if len(seconds) >= ENOUGH_STEPS:
        return float(np.quantile(seconds, 0.1))
    return float(seconds.min())
