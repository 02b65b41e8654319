"""The functions of ``loadmaster.fast`` on arrays of any type, shape and value.

Most arrays have the right type and length, so that values reach the algorithms. Whatever is wrong
is a ``ValueError``; an integer beyond 64 bits is Python's own ``OverflowError``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from loadmaster import fast
from loadmaster.base.errors import LoadmasterError

from .frame import target

_SIZES = [0, 1, 3, 8, 2**20, 2**31, 2**32, 2**53, 2**62, 2**63 - 1]
_IDS = [-(2**63), -(2**31), -2, -1, 2**31 - 1, 2**31, 2**62, 2**63 - 1]
_TIMES = [0.0, -0.0, 1.0, 1e-9, 1e-18, 5e-324, 1e9, 1e300, 1.7e308, -1.0, np.inf, -np.inf, np.nan]
_TYPES = [
    "i1",
    "i4",
    "i8",
    "u1",
    "u4",
    "u8",
    "f4",
    "f8",
    ">f8",
    ">i8",
    "?",
    "c16",
    "U1",
    "O",
    "M8[s]",
]
_COUNTS = (0, 5, 2**16, 2**31, 2**40, 2**63 - 1, 2**64, -1)
_POLICIES = ["priority", "fixed", "fifo", "random"] * 4 + ["x"]


class _Draw:
    """Arguments of calls, for a graph of so many ops."""

    def __init__(self, random: Random) -> None:
        self.random, self.n = random, random.choice((1, 2, 3, 5, 9))

    def length(self) -> int:
        return self.random.choice([self.n] * 60 + [0, 1, self.n + 1])

    def odd(self, array: np.ndarray) -> Any:
        """The array; seldom of another type, shape or layout."""
        match self.random.randrange(200):
            case 0:
                with np.errstate(all="ignore"), contextlib.suppress(ValueError, TypeError):
                    return array.astype(self.random.choice(_TYPES))
                return array
            case 1:
                return array.reshape(-1, 1)
            case 2:
                return np.repeat(array, 2)[::2]
            case 3:
                return array[::-1]
            case 4:
                return np.array(7)
            case 5:
                array.flags.writeable = False
        return array

    def some(self, usual: Callable[[], Any], extreme: list[Any], kind: str) -> Any:
        """An array of usual values, some of which may be extreme."""
        values = [usual() for _ in range(self.length())]
        if values and self.random.random() < 0.1:
            for _ in range(self.random.randint(1, 3)):
                values[self.random.randrange(len(values))] = self.random.choice(extreme)
        return self.odd(np.array(values, dtype=kind))

    def ids(self, most: int | None = None) -> Any:
        top = self.n - 1 if most is None else most
        kind = self.random.choice(("i4", "i8", "i8"))
        extreme = _IDS if kind == "i8" else [v for v in _IDS if -(2**31) <= v < 2**31]
        return self.some(lambda: self.random.randint(0, max(top, 0)), extreme, kind)

    def order(self) -> Any:
        """Ops in the order of the graph, or anything."""
        if self.random.random() < 0.8:
            return np.arange(self.n)
        shuffled = self.random.sample(range(self.n), self.n)
        return self.odd(np.array(shuffled)) if self.random.random() < 0.5 else self.ids()

    def sizes(self) -> Any:
        kind = self.random.choice(("u8", "i8"))
        return self.some(lambda: self.random.choice((0, 1, 4, 100)), _SIZES, kind)

    def times(self) -> Any:
        return self.some(lambda: self.random.choice((0.0, 1.0, 0.5, 1e-3)), _TIMES, "f8")

    def shares(self) -> Any:
        return self.some(lambda: self.random.choice((1.0, 0.5)), _TIMES, "f8")

    def number(self) -> float:
        return self.random.choice(_TIMES)

    def count(self) -> int:
        return self.random.choice((1, 2, 2, 3) * 4 + _COUNTS)

    def maybe(self, draw: Callable[[], Any]) -> Any:
        return draw() if self.random.random() < 0.6 else None

    # -- what calls work on

    def graph(self) -> fast.Graph:
        """A graph, most often a good one with edges from smaller ops to larger ones."""
        n, random = self.n, self.random
        if random.random() < 0.05:
            src, dst = self.ids(), self.ids()
        else:
            pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
            pairs = [pair for pair in pairs if random.random() < 0.4]
            src = np.array([a for a, _ in pairs], dtype="i4")
            dst = np.array([b for _, b in pairs], dtype="i4")
        columns = {
            name: draw()
            for name, draw in {
                "tensor_bytes": self.sizes,
                "resident": self.sizes,
                "workspace": self.sizes,
                "output_bytes": self.sizes,
                "colocation": lambda: self.some(lambda: random.randint(-1, 2), _IDS, "i8"),
                "allowed": lambda: self.some(lambda: 3, [1, 2, 0, 2**63 - 1], "u8"),
            }.items()
            if random.random() < 0.15
        }
        return fast.Graph(n, src, dst, **columns)

    def cluster(self) -> fast.Cluster:
        random = self.random
        if random.random() < 0.9:
            return _TWO
        devices = [
            (
                random.choice("abc"),
                random.choice(("gpu", "cpu")),
                random.choice((0, 100, 2**63 - 1)),
            )
            for _ in range(random.randint(0, 3))
        ]
        links = [
            (a, b, self.number(), self.number(), random.choice(([], ["bus"])))
            for a in "abc"
            for b in "abc"
            if a != b
        ]
        return fast.Cluster(devices, links)

    def problem(self) -> fast.Problem:
        cluster = self.cluster()
        times = self.times()
        if len(cluster.types) > 1 and self.random.random() < 0.9:
            times = np.repeat(times.reshape(-1, 1), len(cluster.types), axis=1)
        problem = fast.Problem(self.graph(), cluster, times)
        random = self.random
        if random.random() < 0.4:
            capacity = np.array([random.choice((50, 2**40, *_SIZES)) for _ in range(2)], dtype="u8")
            problem = problem.within(
                capacity=self.maybe(lambda: capacity),
                op_bytes=self.maybe(self.sizes),
                best_effort=random.choice((None, True, False)),
            )
        if random.random() < 0.1:
            problem = problem.led_by(self.ids())
        if random.random() < 0.1:
            problem = problem.restricted(self.sizes())
        return problem.without_contention() if random.random() < 0.1 else problem

    def weights(self) -> fast.Weights:
        return fast.Weights(
            self.graph(),
            self.times(),
            self.maybe(self.times),
            control_time=self.random.choice((0.0,) * 9 + (self.number(),)),
            op_bytes=self.maybe(self.sizes),
        )

    def limits(self) -> dict[str, Any]:
        return {"max_time": self.maybe(self.number), "max_bytes": self.maybe(self.count)}

    def devices(self) -> Any:
        return self.ids(1)

    def stop(self, counts: str) -> fast.Stop:
        return fast.Stop(
            **{counts: self.random.choice((0, 1, 100))},
            patience=self.maybe(self.count),
            target=self.random.choice((0.0, 0.0, 1.0, self.number())),
        )

    def pairs(self) -> tuple[Any, Any]:
        """Ends of edges, no edge from a vertex to itself."""
        ends = [self.random.sample(range(self.n), 2) for _ in range(self.n if self.n > 1 else 0)]
        src, dst = np.array(ends, dtype="i8").reshape(-1, 2).T
        return self.odd(src.copy()), self.odd(dst.copy())

    def searched(self) -> dict[str, Any]:
        few = [1, 1, 2, 2, 0]
        return {
            "seed": self.maybe(self.count),
            "chains": self.random.choice(few),
            "threads": self.random.choice(few),
        }

    def simulated(self) -> dict[str, Any]:
        return {
            "policy": self.random.choice(_POLICIES),
            "link_order": self.random.choice(("fifo", "priority", "fifo", "priority", "x")),
            "seed": self.maybe(self.count),
        }


_LINKS = [("a", "b", 1e9, 1e-6, []), ("b", "a", 1e9, 1e-6, [])]
_TWO = fast.Cluster([("a", "gpu", 100), ("b", "gpu", 100)], _LINKS)

_CALLS: list[Callable[[_Draw], object]] = [
    lambda d: fast.levels(d.weights()),
    lambda d: fast.m_topo(d.graph()),
    lambda d: fast.dfs_topo(d.graph()),
    lambda d: fast.cpd_topo(d.weights()),
    lambda d: fast.priority_order(d.graph(), d.times()),
    lambda d: fast.critical_path(d.weights()),
    lambda d: fast.needed_control(d.graph()),
    lambda d: fast.peak_bytes(d.graph(), d.maybe(d.order)),
    lambda d: fast.breakpoints(d.weights(), d.order(), max_ops=d.maybe(d.count), **d.limits()),
    lambda d: fast.exact_breakpoints(d.weights(), d.order(), d.count(), **d.limits()),
    lambda d: fast.segments(d.order(), np.unique(d.ids())),
    lambda d: fast.batch_merge(d.weights(), d.count(), **d.limits()),
    lambda d: fast.multilevel_partition(d.weights(), d.count(), **d.limits()),
    lambda d: fast.parallel_merge(d.weights(), d.count(), **d.limits()),
    lambda d: fast.fuse(d.weights(), d.ids(), [[[0], [1]], [[d.count()]]], d.count(), **d.limits()),
    lambda d: fast.repeated_groups(d.weights(), d.count(), [d.number(), d.number()]),
    lambda d: fast.linear_clusters(d.weights()),
    lambda d: fast.dominant_sequences(d.weights()),
    lambda d: fast.contract(d.graph(), d.ids(), colocated=d.random.random() < 0.5),
    lambda d: fast.edges(d.graph()),
    lambda d: fast.partition(d.sizes(), *d.pairs(), d.sizes(), d.shares()),
    lambda d: fast.fill_in_order(d.problem(), d.order(), devices=d.maybe(d.devices)),
    lambda d: fast.round_robin(d.problem(), d.order()),
    lambda d: fast.follow_bytes(d.problem(), d.order()),
    lambda d: fast.schedule(
        d.problem(),
        d.order(),
        pinned=d.maybe(d.devices),
        bias=d.maybe(d.times),
        delay_weight=d.count(),
    ),
    lambda d: fast.schedule_below(d.problem(), d.number(), d.order(), pinned=d.maybe(d.devices)),
    lambda d: fast.schedule_earliest(d.problem(), d.order(), favourite=d.maybe(d.ids)),
    lambda d: fast.adjusting_placement(d.problem(), d.order()),
    lambda d: fast.schedule_placed(d.problem(), d.order(), d.devices()),
    lambda d: fast.placed_paths(d.problem(), d.devices()),
    lambda d: fast.optimistic_costs(d.problem(), d.times(), control_time=d.number()),
    lambda d: fast.search(d.problem(), (d.devices(), d.order()), d.stop("moves"), **d.searched()),
    lambda d: fast.search_windows(
        d.problem(), (d.devices(), d.order()), d.stop("visits"), **d.searched()
    ),
    lambda d: fast.refine_placement(
        d.problem(), d.order(), d.devices(), [d.ids(), d.ids()], budget=d.random.choice((0, 999))
    ),
    lambda d: fast.simulate(
        d.problem(), d.devices(), d.maybe(d.ids), record_memory=True, **d.simulated()
    ).memory(),
    lambda d: fast.simulate(d.problem(), d.devices(), d.maybe(d.ids), **d.simulated()).blame(),
    lambda d: fast.simulate_below(
        d.problem(), d.number(), d.devices(), d.maybe(d.ids), **d.simulated()
    ),
    lambda d: fast.bounds(d.problem()),
    lambda d: fast.heads_and_tails(d.problem()),
]


@target("arrays", in_ci=20000)
def one(random: Random) -> None:
    """A call of one of the functions."""
    call = random.choice(_CALLS)
    with contextlib.suppress(ValueError, OverflowError, LoadmasterError):
        call(_Draw(random))
