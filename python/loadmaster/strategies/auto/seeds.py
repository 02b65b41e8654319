"""Fast strategies that the search of ``auto`` may start from, and what each of them costs.

Where memory is short, a strategy tries again with less of it, so what it costs is not known
beforehand. Each attempt asks for verdicts of the simulator. So a seed's cost is stated per verdict,
and its verdicts are counted (:mod:`loadmaster.judge.allowance`).

Every method that places whole ops and costs little is a seed, with the options that it has by
itself, and is tried as far as it goes. So ``auto`` is never behind any of them. None needs an
optional package, so that plans are the same wherever they are made: in the stead of METIS stands
Loadmaster's own partition, m-SCT has its favourite children without the linear program, and GETF,
which is ETF but for a linear program, is left to where nothing else fits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

from loadmaster.judge.problem import Problem
from loadmaster.strategies import least_overflow
from loadmaster.strategies.auto.pace import microsecond_per_op
from loadmaster.strategies.auto.tuning import TUNING, Tuning
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.groups import celeritas, dsc, glb, grouped, lc, order_place
from loadmaster.strategies.lists import (
    cpop,
    dpos,
    etf,
    getf,
    heft,
    m_etf,
    m_sct,
    m_topo,
    noised,
    peft,
)
from loadmaster.strategies.simple import layers, partitioned, random, round_robin


class Seed(NamedTuple):
    """A strategy, and what it takes.

    Attributes
    ----------
    place : callable
        The strategy.
    each : float
        Microseconds per op and verdict on eight devices: the simulation with all that leads up to
        it.
    verdicts : int
        Verdicts that it asks for where its first attempt fits, whatever the graph.
    per_way : int
        Verdicts that it asks for beside these, for each way to decide for colocated ops
        (:func:`~loadmaster.strategies.deciders.deciders`).
    rounds : int
        Rounds that the verdicts of a way come in. Each round makes a plan.
    """

    place: Callable[[Problem], Candidate]
    each: float
    verdicts: int
    per_way: int
    rounds: int = 1

    def cost(self, problem: Problem, ways: int) -> float:
        """Seconds that it takes where its first attempt fits."""
        return self.cost_of(problem, self.verdicts + ways * self.per_way)

    def first(self, problem: Problem) -> float:
        """Seconds until it has its first plan, where its first attempt fits."""
        return self.cost_of(problem, self.verdicts + -(-self.per_way // self.rounds))

    def cost_of(self, problem: Problem, verdicts: int) -> float:
        """Seconds that so many verdicts take."""
        return self.each * verdicts * microsecond_per_op(problem)

    def verdicts_in(self, problem: Problem, seconds: float) -> int:
        """Verdicts that it may ask for in some seconds, of which there may be any number."""
        return int(min(seconds / (self.each * microsecond_per_op(problem)), sys.maxsize))


#: The microseconds are the third quartile over the models on two and eight devices, as
#: ``benches/seeds.py`` prints it.
SEEDS: dict[str, Seed] = {
    "peft": Seed(peft.place, 0.9, 1, 2),
    "dpos": Seed(dpos.place, 0.9, 1, 2),
    "cpop": Seed(cpop.place, 0.9, 1, 2),
    "heft": Seed(heft.place, 0.96, 1, 12, heft.ROUNDS),
    "heft on groups": Seed(grouped.place, 1.6, 0, 5),
    "partition": Seed(partitioned.place, 0.5, 10, 0),
    "partitions": Seed(partitioned.renumbered, 0.5, 30, 0),
    "layers": Seed(layers.place, 2.2, 5, 0),
    "m-etf": Seed(m_etf.place, 1.8, 1, 2),
    "etf": Seed(etf.place, 2.0, 1, 2),
    "celeritas": Seed(celeritas.place, 1.2, 0, 1),
    "dsc": Seed(dsc.place, 2.5, 1, 5),
    "lc": Seed(lc.place, 1.4, 1, 5),
    "glb": Seed(glb.place, 0.4, 1, 5),
    "m-sct": Seed(m_sct.without_program, 1.4, 1, 2),
    "m-topo": Seed(m_topo.place, 0.2, 1, 0),
    "round-robin": Seed(round_robin.place, 0.3, 1, 0),
    "random": Seed(random.place, 2.5, 3, 0),
    "order-place": Seed(order_place.place, 0.2, 0, 1),
    "least overflow": Seed(least_overflow.searched, 0.5, 12, 0),
    # A part of its rounds adds nothing to heft, so its rounds count as one.
    "noised": Seed(noised.place, 0.9, 1, 2 * noised.ROUNDS + 2),
}

#: Seeds that are no method of their own and take long: only as far as there are seconds for them.
#: All others are cheap, and tried whole.
LENGTHY = ("noised",)

#: The order in which seeds are tried where transfers are cheap, and where they are dear: first the
#: seed that adds most to the best plan for its time. List schedules are nearly always best where
#: transfers are cheap; where they are dear, what sends little is.
CHEAP_FIRST = (
    "layers",
    "heft",
    "dpos",
    "cpop",
    "etf",
    "peft",
    "partition",
    "heft on groups",
    "m-etf",
    "partitions",
    "dsc",
    "celeritas",
    "m-sct",
    "lc",
    "glb",
    "order-place",
    "m-topo",
    "round-robin",
    "random",
    "least overflow",
    "noised",
)
DEAR_FIRST = (
    "layers",
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
    "m-sct",
    "lc",
    "glb",
    "order-place",
    "m-topo",
    "round-robin",
    "random",
    "least overflow",
    "noised",
)

#: Seeds that weigh bytes from the start. They come first where one device cannot hold all ops and
#: transfers are dear.
WEIGHING = ("partition", "partitions", "layers")

#: Seeds that make nothing but one device where one device holds all ops.
FOR_LITTLE = ("least overflow",)


def is_dear(problem: Problem, tuning: Tuning = TUNING) -> bool:
    """True if transfers take long, in comparison with ops."""
    sent = float(problem.tensor_time(problem.graph).sum())
    return sent >= tuning.dear_ccr * float(problem.op_time.sum())


def worth_trying(problem: Problem, is_loose: bool, tuning: Tuning = TUNING) -> list[str]:
    """Seeds in the order in which they are tried; ``is_loose``: one device could hold all ops."""
    dear = is_dear(problem, tuning)
    names = DEAR_FIRST if dear else CHEAP_FIRST
    if is_loose:
        return [name for name in names if name not in FOR_LITTLE]
    first = WEIGHING if dear else ()
    return [*first, *(name for name in names if name not in first)]


#: Strategies that are tried one after another while nothing fits, however long they take: those
#: that had to end before they were done, and those that are no seeds.
LAST_RESORTS: dict[str, Callable[[Problem], Candidate]] = {
    "partition": partitioned.place,
    **{
        name: seed.place
        for name, seed in SEEDS.items()
        if name not in ("heft on groups", *FOR_LITTLE)
    },
    "getf": getf.place,
    "least overflow": least_overflow.place,
}
