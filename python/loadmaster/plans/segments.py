"""A plan as segments that each run on one device (:mod:`loadmaster.judge.segmented`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.units import format_seconds
from loadmaster.judge.segmented import cut, sessions, step_of
from loadmaster.judge.simulation import run
from loadmaster.model.runtime import SessionCost
from loadmaster.plans.plan import Plan
from loadmaster.plans.rejudged import on_one_device


@dataclass(frozen=True)
class Exported:
    """Seconds of a step, as simulated.

    Attributes
    ----------
    plan : float
        Seconds as the plan has it.
    exported : float
        Seconds as its segments have it.
    single : float or None
        Seconds on the fastest single device that holds the model, as one segment; None: none does.

    Examples
    --------
    >>> print(Exported(0.95e-3, 1.72e-3, 1.2e-3))
    plan 950 us, as exported 1.72 ms, one device 1.2 ms
    """

    plan: float
    exported: float
    single: float | None

    @property
    def growth(self) -> float:
        """The share by which the step grows in being exported."""
        return self.exported / self.plan - 1 if self.plan else 0.0

    @property
    def advice(self) -> str:
        """Advice where one device is faster than the exported segments; empty where it is not."""
        if self.single is None or self.exported <= self.single:
            return ""
        return (
            "as exported the plan is slower than one device: place it by method auto, for the "
            "system that runs it (--target), or by single for one device"
        )

    def to_document(self) -> dict[str, Any]:
        """As JSON has it, in seconds."""
        return asdict(self)

    def __str__(self) -> str:
        figures = {"plan": self.plan, "as exported": self.exported, "one device": self.single}
        return ", ".join(
            f"{name} {format_seconds(seconds)}"
            for name, seconds in figures.items()
            if seconds is not None
        )


@dataclass(frozen=True)
class Segments:
    """A plan cut into segments.

    Attributes
    ----------
    plan : Plan
        Of whole ops.
    of : int32 [n_ops]
        Segment of each op of the user's graph, numbered in an order in which segments can run; -1:
        a placeholder, which every segment has that reads it.
    session : SessionCost or None
        The cost of running a segment on device types that do not say theirs; None: nothing.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "single")
    >>> Segments.cut(plan).devices.tolist()
    [0]
    """

    plan: Plan
    of: NDArray[np.int32]
    session: SessionCost | None = None

    @classmethod
    def cut(cls, plan: Plan, session: SessionCost | None = None) -> Segments:
        """Cuts a plan of whole ops where it sends or waits, and where that pays for one more run
        (:func:`loadmaster.judge.segmented.cut`).
        """
        return cls(plan, cut(plan.problem, plan.assignment, session).of, session)

    @cached_property
    def devices(self) -> NDArray[np.int32]:
        """Device per segment."""
        devices = np.zeros(int(self.of.max(initial=-1)) + 1, dtype=np.int32)
        runs = self.of >= 0
        devices[self.of[runs]] = self.plan.devices[runs]
        return devices

    @cached_property
    def exported(self) -> Exported:
        """Its step beside the plan's and one device's."""
        alone = on_one_device(self.plan)
        single = None if alone is None else cut(alone.problem, alone.assignment, self.session).step
        return Exported(run(self.plan.problem, self.plan.assignment).makespan, self.step, single)

    @cached_property
    def step(self) -> float:
        """Seconds per step where segments run as they are, as simulated: each starts when all is
        there that one of its ops reads, and sends when its last op has ended.
        """
        problem, session = self.plan.problem, self.session
        costs = () if session is None else sessions(problem.cluster, session)
        return step_of(problem, self.plan.assignment, self.of, costs)
