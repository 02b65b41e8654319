"""Where the search of :mod:`~loadmaster.strategies.auto.auto` may start: fast strategies, what each
costs, and a meter that holds them to it.

Where memory is short, strategies try again and again with less of it, so what one costs is not
known beforehand. Each attempt is simulated: the meter counts simulations, not seconds, so that what
is tried is the same on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.assignment import Assignment, PlanPolicy
from loadmaster.judge.problem import Problem
from loadmaster.judge.verdict import Verdict
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.groups import celeritas, dsc, glb, grouped, order_place
from loadmaster.strategies.lists import cpop, dpos, etf, getf, heft, m_etf, m_topo, noised, peft
from loadmaster.strategies.simple import expert, partitioned


class Seed(NamedTuple):
    """A strategy, and what it takes.

    Attributes
    ----------
    place : callable
        The strategy.
    each : float
        Microseconds per op that a simulation takes on eight devices, with all that leads up to it.
    simulations, per_way : int
        How many it asks for where the first attempt fits: in any case, and for each way to decide
        for colocated ops (:func:`.deciders.deciders`).
    rounds : int
        In how many pieces a way comes, each a plan.
    """

    place: Callable[[Problem], Candidate]
    each: float
    simulations: int
    per_way: int
    rounds: int = 1

    def cost(self, problem: Problem, ways: int) -> float:
        """Seconds that it takes where the first attempt fits."""
        return self.cost_of(problem, self.simulations + ways * self.per_way)

    def first(self, problem: Problem) -> float:
        """Seconds until it has a plan, there."""
        return self.cost_of(problem, self.simulations + -(-self.per_way // self.rounds))

    def cost_of(self, problem: Problem, simulations: int) -> float:
        """Seconds that so many simulations take."""
        return self.each * simulations * microseconds(problem)

    def simulations_in(self, problem: Problem, seconds: float) -> int:
        """How many it may ask for in some seconds."""
        return int(seconds / (self.each * microseconds(problem)))


def microseconds(problem: Problem) -> float:
    """Seconds of a microsecond per op on eight devices: of what an op takes a part stays, and a
    part grows with the devices.
    """
    return 1e-6 * problem.graph.n_ops * (16 + problem.cluster.n_devices) / 24


#: Where the search may start, with what a simulation takes on three models of four (as
#: ``benches/seeds.py`` measures it).
SEEDS: dict[str, Seed] = {
    "peft": Seed(peft.place, 0.9, 1, 2),
    "dpos": Seed(dpos.place, 0.9, 1, 2),
    "cpop": Seed(cpop.place, 0.9, 1, 2),
    "heft": Seed(heft.place, 0.96, 1, 12, heft.ROUNDS),
    "heft on groups": Seed(grouped.place, 1.6, 0, 5),
    "partition": Seed(partitioned.place, 0.5, 10, 0),
    "partitions": Seed(partitioned.renumbered, 0.5, 30, 0),
    "expert": Seed(expert.place, 2.2, 5, 0),
    "m-etf": Seed(m_etf.place, 1.8, 1, 2),
    "etf": Seed(etf.place, 2.0, 1, 2),
    "celeritas": Seed(celeritas.place, 1.2, 0, 1),
    "dsc": Seed(dsc.place, 2.5, 1, 5),
    # Cut short it adds nothing to heft, so it counts as one piece.
    "noised": Seed(noised.place, 0.9, 1, 2 * noised.ROUNDS + 2),
}

#: The order in which seeds are tried, those first that add most for their time: where transfers
#: are cheap list schedules are nearly always best; from the CCR of ``DEAR`` on, what sends little.
DEAR = 4.0
CHEAP_FIRST = (
    "heft",
    "dpos",
    "cpop",
    "etf",
    "peft",
    "partition",
    "heft on groups",
    "m-etf",
    "expert",
    "partitions",
    "dsc",
    "celeritas",
    "noised",
)
DEAR_FIRST = (
    "expert",
    "partition",
    "celeritas",
    "heft on groups",
    "dpos",
    "m-etf",
    "heft",
    "partitions",
    "peft",
    "cpop",
    "etf",
    "dsc",
    "noised",
)

#: Where memory forces a split, what knows nothing of bytes is left out; and where transfers
#: are dear besides, those that weigh bytes from the start come first.
UNBOUNDED = ("dsc",)
WEIGHING = ("partition", "partitions", "expert")


def is_dear(problem: Problem) -> bool:
    """Whether transfers take long, next to ops."""
    sent = float(problem.tensor_time(problem.graph).sum())
    return sent >= DEAR * float(problem.op_time.sum())


def worth_trying(problem: Problem, is_loose: bool) -> list[str]:
    """Seeds in the order in which they are tried; ``is_loose``: one device could hold all ops."""
    dear = is_dear(problem)
    names = DEAR_FIRST if dear else CHEAP_FIRST
    if is_loose:
        return [*names]
    first = WEIGHING if dear else ()
    return [*first, *(name for name in names if name not in (*first, *UNBOUNDED))]


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
        self, devices: NDArray[np.int32], priority: NDArray[np.int32], **options: Any
    ) -> fast.Schedule:
        """Counted; see :meth:`.Problem.simulate`."""
        self.meter.count()
        schedule = super().simulate(devices, priority, **options)
        if options.keys() <= {"policy"}:
            self._keep(devices, priority, schedule, options.get("policy", "priority"))
        return schedule

    def simulate_below(
        self,
        limit: float,
        devices: NDArray[np.int32],
        priority: NDArray[np.int32],
        *,
        policy: str = "priority",
    ) -> fast.Schedule | None:
        """Counted; see :meth:`.Problem.simulate_below`."""
        self.meter.count()
        schedule = super().simulate_below(limit, devices, priority, policy=policy)
        if schedule is not None:
            self._keep(devices, priority, schedule, policy)
        return schedule

    def _keep(
        self,
        devices: NDArray[np.int32],
        priority: NDArray[np.int32],
        schedule: fast.Schedule,
        policy: str,
    ) -> None:
        if policy in get_args(PlanPolicy):
            seen = Verdict.of(schedule, self.cluster.memory)
            self.meter.keep(
                Candidate(self, Assignment(devices, priority, cast(PlanPolicy, policy)), seen)
            )
