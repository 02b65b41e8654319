"""Local search: how near the best known it comes, and how fast, on one core and on more.

    python benches/search.py coarse [--seconds 1 10 | --moves 700000] [--seeds 0 1 2] [--only TEXT]
    python benches/search.py models [--seconds 0.75 11.25 45] [--only TEXT]
    python benches/search.py speed [--moves 20000] [--only TEXT]
    python benches/search.py threads [--seconds 11.25] [--threads 1 2] [--only TEXT]
    python benches/search.py windows [--visits 30000000] [--only TEXT]

``coarse``: the 24 instances of ``tests/data/scheduling``, searched from HEFT's schedule; the gap
to the best known makespan is worked out from the instance's own transfer times. Seconds are of
CPU: a short run tells how many moves they buy; moves are the same on any machine. ``models``: the
eight graphs of the design's table at its costs by the method ``auto``, as fractions of one device,
with the bound; seconds are counted as ``auto`` counts its effort, with those of CPU beside each
figure. ``speed``: moves per CPU second of one chain on those graphs, from a refined HEFT, and on
random layers of 100 and 200 groups. ``threads``: seconds on the clock and of CPU that ``auto``
takes on those graphs with so many threads, which change no plan. ``windows``: from one and the same
refined HEFT of large graphs, what windows find and what moves of all ops do, within as many visits.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from data import DATA, of_these_at_hand, scheduling
from numpy.typing import NDArray
from quality import DESIGN, design_problem, model_problem

from loadmaster import fast
from loadmaster.base.errors import InfeasibleError
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.bounds import bound
from loadmaster.judge.problem import by_start, ranks
from loadmaster.strategies.auto import auto
from loadmaster.strategies.auto.v_cycle import polished
from loadmaster.strategies.candidate import judged
from loadmaster.strategies.lists import heft

Ids = NDArray[np.int32]

#: Graphs and clusters of the ledger where most of a search by ``auto`` is in windows.
LARGE = [
    (graph, cluster)
    for graph in ("nasneta_large_train_b32", "nmt_4x2048_train_b512", "mamba_130m_train_b4_s64")
    for cluster in ("4 PCIe", "8 PCIe", "8 NVLink")
]


@dataclass(frozen=True)
class Coarse:
    """An instance as the engine takes it."""

    raw: dict[str, Any]
    graph: fast.Graph
    cluster: fast.Cluster
    time: NDArray[np.float64]
    op_bytes: NDArray[np.uint64]
    capacity: NDArray[np.uint64]

    @classmethod
    def read(cls, name: str) -> Coarse:
        """Transfer times between two devices are a linear function of those of devices 0 and 1."""
        raw = scheduling(name)
        n, k, tensors = raw["n"], raw["K"], raw["tensors"]
        edges = [(t["src"], d, i) for i, t in enumerate(tensors) for d in t["dsts"]]
        src, dst, tensor = np.array(edges, dtype=np.int64).T
        base = np.array([t["c"][0][1] for t in tensors], dtype=np.float64)
        least = 0.0
        fits = {}
        for a in range(k):
            for b in (b for b in range(k) if b != a):
                of = np.array([t["c"][a][b] for t in tensors], dtype=np.float64)
                slope, offset = np.polyfit(base, of, 1) if (of != base).any() else (1.0, 0.0)
                fits[a, b] = slope, offset
                least = max(least, -offset / slope)
        # A byte is a microsecond from 0 to 1; bytes are fewer by what keeps latencies from being
        # negative.
        bytes_ = np.maximum(base - math.ceil(least), 0).astype(np.uint64)
        links = [
            (f"d{a}", f"d{b}", 1e6 / s, max(e + s * math.ceil(least), 0.0) * 1e-6, [])
            for (a, b), (s, e) in fits.items()
        ]
        devices = [(f"d{d}", f"t{d}", int(raw["cap"][d])) for d in range(k)]
        return cls(
            raw,
            fast.Graph(n, src, dst, tensor, tensor_bytes=bytes_),
            fast.Cluster(devices, links),
            np.array(raw["p"], dtype=np.float64) * 1e-6,
            np.array(raw["mem"], dtype=np.uint64),
            np.array(raw["cap"], dtype=np.uint64),
        )

    @classmethod
    def layered(cls, n: int, k: int, width: int = 10) -> Coarse:
        """Layers of random groups, each of which reads up to three of the layer before it."""
        rng = np.random.default_rng(0)
        dst = np.repeat(np.arange(width, n), 3)
        src = dst - dst % width - width + rng.integers(width, size=len(dst))
        src, dst = np.unique([src, dst], axis=1)
        pairs = [(a, b) for a in range(k) for b in range(k) if b != a]
        ample = np.full(k, 1 << 40, dtype=np.uint64)
        return cls(
            {},
            fast.Graph(n, src, dst, src, tensor_bytes=rng.integers(1, 1000, n, dtype=np.uint64)),
            fast.Cluster(
                [(f"d{d}", "t", 1 << 40) for d in range(k)],
                [(f"d{a}", f"d{b}", 1e6, 0.0, []) for a, b in pairs],
            ),
            rng.integers(100, 1000, (n, 1)) * 1e-6,
            np.zeros(n, dtype=np.uint64),
            ample,
        )

    @property
    def problem(self) -> fast.Problem:
        """The instance as the package has it."""
        problem = fast.Problem(self.graph, self.cluster, self.time)
        return problem.within(op_bytes=self.op_bytes, capacity=self.capacity)

    def start(self) -> tuple[Ids, Ids]:
        """HEFT's placement and order; where it finds no room, the first that fits in order."""
        rank = self.time.mean(axis=1)
        _, upward = fast.levels(fast.Weights(self.graph, rank, self.graph.tensor_bytes * 1e-6))
        order = fast.priority_order(self.graph, upward)
        try:
            devices, begin, finish = fast.schedule(self.problem, order)
        except InfeasibleError:
            return fast.fill_in_order(self.problem, order), order
        position = np.argsort(order)
        return devices, np.lexsort((position, finish, begin)).astype(np.int32)

    def makespan(self, devices: Ids, order: Ids) -> int:
        """Microseconds, first come first served, by the instance's own times."""
        raw = self.raw
        outputs: list[list[Any]] = [[] for _ in range(raw["n"])]
        for t in raw["tensors"]:
            outputs[t["src"]].append(t)
        ready = [0] * raw["n"]
        free = [0] * raw["K"]
        channel: dict[tuple[int, int], int] = {}
        for u in order:
            d = int(devices[u])
            free[d] = max(free[d], ready[u]) + raw["p"][u][d]
            for t in outputs[u]:
                there = {d: free[d]}
                for v in t["dsts"]:
                    to = int(devices[v])
                    if to not in there:
                        at = max(free[d], channel.get((d, to), 0)) + t["c"][d][to]
                        there[to] = channel[d, to] = at
                    ready[v] = max(ready[v], there[to])
        return max(free)

    def search(self, moves: int, seed: int) -> tuple[Ids, Ids]:
        """So many moves from the start."""
        devices, order = self.start()
        devices, order, *_ = fast.search(
            self.problem, (devices, order), fast.Stop(moves=moves), seed=seed
        )
        return devices, order

    def rate(self) -> float:
        """Moves per CPU second."""
        began = time.process_time()
        self.search(200_000, 0)
        return 200_000 / (time.process_time() - began)


def coarse(seconds: list[float], moves: list[int], seeds: list[int], only: str) -> None:
    """Gaps to the best known after so many seconds, or moves if there are any."""
    unit, limits = ("moves", moves) if moves else ("CPU seconds", seconds)
    best = json.loads((DATA / "scheduling" / "best_known.json").read_text())
    gaps: dict[tuple[int, float], list[float]] = {}
    print(f"instance | moves/s | gap % to the best known after {unit} {limits}")
    for name in (name for name in sorted(best) if only in name):
        instance = Coarse.read(name)
        rate = instance.rate()
        row = []
        for limit in limits:
            for seed in seeds:
                budget = int(limit if moves else rate * limit)
                devices, order = instance.search(budget, seed)
                gap = instance.makespan(devices, order) / best[name]["makespan"] - 1
                gaps.setdefault((instance.raw["n"], limit), []).append(gap)
                row.append(f"{100 * gap:.2f}")
        print(f"{name:40} {rate / 1e6:.2f} M/s  {' '.join(row)}", flush=True)
    for (n, limit), values in sorted(gaps.items()):
        mean, worst = 100 * statistics.mean(values), 100 * max(values)
        print(f"{n} groups, {limit:g} {unit}: mean {mean:.2f} %, worst {worst:.2f} %")


def models(seconds: list[float], only: str) -> None:
    """The design's table, with its own figure for HEFT and for 15 s of search."""
    print("graph | design: HEFT, search 15 s | bound | fraction of one device after seconds, gap")
    fractions: dict[float, list[float]] = {}
    for name in (name for name in of_these_at_hand(DESIGN) if only in name):
        problem = design_problem(name, "")
        one = float(problem.time.sum(axis=0).min())
        least = bound(problem).seconds
        row = []
        for limit in seconds:
            began = time.process_time()
            found = auto.place(problem, effort=limit, threads=1)
            spent = time.process_time() - began
            fraction = found.schedule.makespan / one
            fractions.setdefault(limit, []).append(fraction)
            gap = 1 - least / found.schedule.makespan
            row.append(f"{fraction:.4f} (gap {gap:.0%}, {spent:.1f} s)")
        _, heft, *_, search = DESIGN[name]
        figures = f"{heft:.2f} {search:.2f} | {least / one:.3f}"
        print(f"{name:36} {figures} | {' '.join(row)}", flush=True)
    for limit, values in fractions.items():
        print(f"{limit:g} s: geometric mean {statistics.geometric_mean(values):.4f}")


def speed(moves: int, only: str) -> None:
    """Moves per CPU second, the most of three runs; random layers from HEFT itself."""
    print(f"graph | reduced ops | moves/s of {moves} moves")
    for name in (name for name in of_these_at_hand(DESIGN) if only in name):
        problem = design_problem(name, "")
        found = polished(problem, heft.place(problem))
        order = by_start(problem.graph, found.schedule.start, found.schedule.finish)
        taken = []
        for _ in range(3):
            began = time.process_time()
            fast.search(
                problem.core,
                (found.assignment.devices, order),
                fast.Stop(moves=moves),
            )
            taken.append(time.process_time() - began)
        print(f"{name:36} {problem.graph.n_ops:5} {moves / min(taken):10.0f}", flush=True)
    for n in (100, 200):
        instance = Coarse.layered(n, 4)
        rate = max(instance.rate() for _ in range(3))
        print(f"{f'layers of {n} groups':36} {n:5} {rate:10.0f}", flush=True)


def threads(seconds: float, counts: list[int], only: str) -> None:
    """What ``auto`` takes by threads; exits where they change a plan."""
    print(
        f"graph | reduced ops | seconds on the clock (CPU) of {seconds:g} counted, threads {counts}"
    )
    shares: dict[int, list[float]] = {}
    for name in (name for name in of_these_at_hand(DESIGN) if only in name):
        problem = design_problem(name, "")
        takes, plans = [], set()
        for count in counts:
            began, cpu = time.perf_counter(), time.process_time()
            found = auto.place(problem, effort=seconds, threads=count)
            takes.append((time.perf_counter() - began, time.process_time() - cpu))
            shares.setdefault(count, []).append(takes[-1][0] / takes[0][0])
            plans.add(found.assignment.devices.tobytes() + found.assignment.priority.tobytes())
        row = " ".join(f"{clock:.1f} ({cpu:.1f})" for clock, cpu in takes)
        print(f"{name:36} {problem.graph.n_ops:5} {row}", flush=True)
        if len(plans) > 1:
            raise SystemExit(f"{name}: {len(plans)} plans")
    for count, values in shares.items():
        mean = statistics.geometric_mean(values)
        print(f"{count} threads: {mean:.2f} of the time that {counts[0]} take, geometric mean")


def windows(visits: int, only: str) -> None:
    """Fractions of one device by either search, from the same plan."""
    print(f"graph, cluster | reduced ops | start | CPU seconds, fraction after {visits} visits of")
    for name, cluster in (place for place in LARGE if only in place[0]):
        problem = model_problem(name, cluster)
        one = float(problem.time.sum(axis=0)[problem.cluster.device_types].min())
        start = polished(problem, heft.place(problem))
        order = by_start(problem.graph, start.schedule.start, start.schedule.finish)
        row = []
        for kind, search in (("windows", fast.search_windows), ("all ops", fast.search)):
            began = time.process_time()
            devices, ordered, *_ = search(
                problem.graph,
                problem.links,
                problem.time,
                start.assignment.devices,
                order,
                op_bytes=problem.reduced.held_at_peak,
                capacity=problem.capacity,
                visits=visits,
            )
            spent = time.process_time() - began
            found = judged(problem, Assignment(devices, ranks(ordered), "fixed"))
            row.append(f"{kind} {found.schedule.makespan / one:.3f} ({spent:.1f} s)")
        head = f"{name}, {cluster}"
        begun = start.schedule.makespan / one
        print(f"{head:36} {problem.graph.n_ops:5} {begun:.3f} {' '.join(row)}", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=["coarse", "models", "speed", "threads", "windows"])
    parser.add_argument("--seconds", type=float, nargs="+", default=[1.0])
    parser.add_argument("--moves", type=int, nargs="+", default=[], help="instead of seconds")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--visits", type=int, default=30_000_000)
    parser.add_argument("--only", default="", help="names that contain this")
    arguments = parser.parse_args()
    if arguments.what == "coarse":
        coarse(arguments.seconds, arguments.moves, arguments.seeds, arguments.only)
    elif arguments.what == "speed":
        speed((arguments.moves or [20_000])[0], arguments.only)
    elif arguments.what == "threads":
        threads(arguments.seconds[0], arguments.threads, arguments.only)
    elif arguments.what == "windows":
        windows(arguments.visits, arguments.only)
    else:
        models(arguments.seconds, arguments.only)


if __name__ == "__main__":
    main()
