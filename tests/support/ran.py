"""Steps of a plan as if they had run: those of its simulation, changed as a test wants."""

from __future__ import annotations

import numpy as np

import loadmaster as lm
from loadmaster.running.measured import Measured, Steps


def steps_of(plan: lm.Plan, seconds: list[float], stretch: float = 1.0) -> Steps:
    """Steps that took so many seconds, everything in them in proportion to the simulation."""
    seen, factor = plan.schedule, stretch * np.array(seconds)[:, None] / plan.makespan
    sent, together = seen.transfers, seen.collectives
    columns = (seen.start, seen.finish, sent.start, sent.finish, together.start, together.finish)
    return Steps(
        *(factor * column for column in columns),
        seconds=stretch * np.array(seconds),
        delay=np.zeros(len(seconds)),
        peaks=seen.memory.peak,
    )


def measured(plan: lm.Plan, seconds: list[float], stretch: float = 1.0) -> Measured:
    """The plan with such steps."""
    on = ("emulated",) * plan.cluster.n_devices
    return Measured(plan, steps_of(plan, seconds, stretch), on, stretch)
