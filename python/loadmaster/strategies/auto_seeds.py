"""Where the search of :mod:`~loadmaster.strategies.auto` may start: fast strategies, what each
costs, and a meter that holds them to it.

Where memory is short, strategies try again and again with less of it, so what one costs is not
known beforehand. Each attempt is simulated: the meter counts simulations, not seconds, so that what
is tried is the same on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from loadmaster import fast
from loadmaster.problem import PlanPolicy, Problem
from loadmaster.strategies import (
    celeritas,
    cpop,
    dpos,
    dsc,
    etf,
    expert,
    getf,
    glb,
    grouped,
    heft,
    lc,
    m_etf,
    m_topo,
    order_place,
    partitioned,
    peft,
)
from loadmaster.strategies.base import Candidate


class Seed(NamedTuple):
    """A strategy, and microseconds per op that it takes on eight devices: at least, and for each
    simulation that it asks for, what leads up to it included.
    """

    place: Callable[[Problem], Candidate]
    least: float
    each: float

    def cost(self, problem: Problem) -> float:
        """Seconds that it takes where the first attempt fits."""
        return self.least * microseconds(problem)

    def cost_of(self, problem: Problem, simulations: int) -> float:
        """Seconds that so many simulations took."""
        return max(self.least, self.each * simulations) * microseconds(problem)

    def simulations(self, problem: Problem, seconds: float) -> int:
        """How many it may ask for in some seconds."""
        return int(seconds / (self.each * microseconds(problem)))


def microseconds(problem: Problem) -> float:
    """Seconds of a microsecond per op on eight devices: of what an op takes a part stays, and a
    part grows with the devices.
    """
    return 1e-6 * problem.graph.n_ops * (4 + problem.cluster.n_devices) / 12


#: Where the search may start, those that add most for their time first.
SEEDS: dict[str, Seed] = {
    "partition": Seed(partitioned.place, 5.0, 0.4),
    "dpos": Seed(dpos.place, 5.5, 0.9),
    "etf": Seed(etf.place, 8.0, 1.6),
    "cpop": Seed(cpop.place, 5.5, 0.8),
    "peft": Seed(peft.place, 5.0, 0.9),
    "m-etf": Seed(m_etf.place, 7.5, 1.4),
    "celeritas": Seed(celeritas.place, 3.0, 0.6),
    "heft": Seed(heft.place, 22.0, 0.8),
    "heft on groups": Seed(grouped.place, 30.0, 1.3),
    "partitions": Seed(partitioned.renumbered, 14.0, 0.5),
    "expert": Seed(expert.place, 8.0, 1.8),
    "lc": Seed(lc.place, 20.0, 1.5),
    "dsc": Seed(dsc.place, 15.0, 1.2),
}

#: The same where memory forces a split: what weighs bytes from the start comes first, and groups
#: that know nothing of them are left out.
SPLITTING = (
    "partition",
    "partitions",
    "expert",
    "peft",
    "heft on groups",
    "dpos",
    "etf",
    "cpop",
    "m-etf",
    "heft",
    "celeritas",
)

#: Tried one after another where nothing fits yet, however long they take.
LAST_RESORTS: dict[str, Callable[[Problem], Candidate]] = {
    "partition": partitioned.place,
    "order-place": order_place.place,
    "m-topo": m_topo.place,
    "glb": glb.place,
    **{name: seed.place for name, seed in SEEDS.items() if name != "heft on groups"},
    "getf": getf.place,
}


class OverdrawnError(Exception):
    """A strategy asked for more simulations than it was granted."""


@dataclass
class Meter:
    """Simulations asked for, how many are granted (None: any number), and the best that was seen,
    of those that fit.
    """

    used: int = 0
    granted: int | None = None
    best: Candidate | None = None

    def reset(self, granted: int | None = None) -> None:
        """Counts anew."""
        self.used, self.granted, self.best = 0, granted, None

    def count(self) -> None:
        """Counts one more.

        Raises
        ------
        OverdrawnError
            It is one too many.
        """
        if self.used == self.granted:
            raise OverdrawnError
        self.used += 1

    def keep(self, seen: Candidate) -> None:
        """Keeps a candidate if it is the best."""
        best = self.best
        if seen.fits and (best is None or seen.schedule.makespan < best.schedule.makespan):
            self.best = seen


@dataclass(frozen=True)
class Metered(Problem):
    """A problem whose simulations are counted."""

    meter: Meter = field(default_factory=Meter, compare=False)

    @classmethod
    def of(cls, problem: Problem) -> Metered:
        """The same problem, with a meter of its own."""
        return cls(**{f.name: getattr(problem, f.name) for f in fields(Problem)})

    def simulate(
        self,
        devices: NDArray[np.int32],
        priority: NDArray[np.int32],
        *,
        policy: str = "priority",
        contention: bool = True,
        link_order: str = "fifo",
        record_memory: bool = False,
    ) -> fast.Schedule:
        """Counted; see :meth:`.Problem.simulate`."""
        self.meter.count()
        schedule = super().simulate(
            devices,
            priority,
            policy=policy,
            contention=contention,
            link_order=link_order,
            record_memory=record_memory,
        )
        if contention and link_order == "fifo" and policy in get_args(PlanPolicy):
            kept = cast(PlanPolicy, policy)
            self.meter.keep(Candidate(devices, priority, schedule, policy=kept))
        return schedule
