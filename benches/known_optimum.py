"""Instances whose optimum is known because a schedule without idle time was planted in them.

    python benches/known_optimum.py [--ops 1000] [--ccr 1]

Some timelines of equal length are filled with random ops, then edges are added that the schedule
already satisfies: the tensor of an op that ends at t, queued on its channel at t behind those of
earlier ops, must have arrived when its reader starts. The work fills every device, so no schedule
is shorter; and the planted one, simulated with contention, is exactly as long. Nothing in the graph
tells on which device an op was.

The command prints how far above the optimum list schedulers end, under both link models: each plans
and is simulated with channels without limit, as the papers do, and with channels that serve one
transfer at a time, first come, first served. What the engine itself expects with contention stands
beside: it leaves ops where they are scheduled, though a later one may delay what they read.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

import loadmaster as lm
from loadmaster.base.effort import Effort

#: Microseconds of a mean op, and of what every transfer takes at least; bytes per microsecond.
MEAN_OP, LATENCY, BYTES_PER_US = 1000, 10, 12_000

#: Standard deviation of the logarithms of op and transfer times.
TIME_SPREAD, SIZE_SPREAD = 1.0, 0.8

#: Readers of an op on average; share of them on other devices; how far ahead they are (the chance
#: that the next op of a device is passed over); mean ops that a tensor may wait for its channel.
READERS, ACROSS, PASSED, PATIENCE = 2.0, 0.5, 0.7, 20

#: How close to the wanted CCR an instance must come.
CLOSE = 0.02


@dataclass(frozen=True)
class Instance:
    """A graph and cluster with the shortest makespan there is (s), and a schedule that has it."""

    graph: lm.OpGraph
    cluster: lm.Cluster
    optimum: float
    devices: NDArray[np.int32]
    priority: NDArray[np.int32]


def instance(n_ops: int, devices: int, ccr: float, seed: int) -> Instance:
    """Plants one.

    Parameters
    ----------
    n_ops : int
        At least as many as devices.
    devices : int
        Equal, with a channel for each ordered pair and memory to spare.
    ccr : float
        Sum of transfer times of all edges / sum of op times, met within 2 %.
    seed : int

    Raises
    ------
    ValueError
        A CCR that latency alone exceeds.
    """
    mean = ccr * MEAN_OP / READERS
    for _ in range(40):
        if mean <= LATENCY:
            raise ValueError(f"a CCR of {ccr} is out of reach: latency alone takes {LATENCY} us")
        src, dst, sizes, start, time, home = _planted(n_ops, devices, mean, seed)
        reached = float((LATENCY + sizes[src]).sum() / time.sum())
        if abs(reached / ccr - 1) <= CLOSE:
            break
        mean *= ccr / reached
    else:
        raise ValueError(f"no instance of {n_ops} ops on {devices} devices has a CCR of {ccr}")
    # Numbered by start, so that edges ascend; ops that start together in random order.
    by_start = np.lexsort((np.random.default_rng(seed).random(n_ops), start))
    number = np.empty(n_ops, dtype=np.int64)
    number[by_start] = np.arange(n_ops)
    graph = lm.OpGraph(
        {"name": [f"op{i}" for i in range(n_ops)], "time": {"*": time[by_start] * 1e-6}},
        {"src": number[src], "dst": number[dst], "bytes": sizes[src] * BYTES_PER_US},
        name=f"planted-{n_ops}x{devices}-ccr{ccr:g}-{seed}",
    )
    cluster = lm.Cluster.mesh(
        devices, memory="1TiB", bandwidth=BYTES_PER_US * 1e6, latency=LATENCY * 1e-6
    )
    optimum = int(time.sum()) // devices * 1e-6
    priority = np.arange(n_ops, dtype=np.int32)
    return Instance(graph, cluster, optimum, home[by_start].astype(np.int32), priority)


def _planted(n_ops: int, devices: int, mean: float, seed: int) -> tuple[NDArray[np.int64], ...]:
    """Edges (source, destination), then per op: microseconds of its tensor past latency, start,
    time, device.
    """
    random = np.random.default_rng(seed)
    length = MEAN_OP * n_ops // devices
    home = np.sort(np.arange(n_ops) % devices)
    first = np.searchsorted(home, np.arange(devices + 1))
    time = np.concatenate([_filled(random, length, c) for c in np.diff(first).tolist()])
    end = np.concatenate([np.cumsum(time[a:b]) for a, b in pairwise(first)])
    start = end - time
    spread = np.exp(-(SIZE_SPREAD**2) / 2)
    wanted = (mean - LATENCY) * spread * random.lognormal(0, SIZE_SPREAD, n_ops)
    sizes = np.maximum(1, np.rint(wanted)).astype(np.int64)

    free = np.zeros((devices, devices), dtype=np.int64)
    edges: dict[tuple[int, int], None] = {}
    for op in np.argsort(end, kind="stable").tolist():
        here, arrived = int(home[op]), {int(home[op]): int(end[op])}
        for _ in range(int(random.poisson(READERS))):
            there = here
            if devices > 1 and random.random() < ACROSS:
                there = (here + 1 + int(random.integers(devices - 1))) % devices
            arrival = arrived.get(there)
            if arrival is None:
                queued = max(int(end[op]), int(free[here, there]))
                arrival = queued + LATENCY + int(sizes[op])
            ahead = int(random.geometric(1 - PASSED)) - 1
            reader = first[there] + np.searchsorted(start[first[there] : first[there + 1]], arrival)
            reader = min(int(reader) + ahead, int(first[there + 1]) - 1)
            if start[reader] < arrival or arrival - end[op] > PATIENCE * max(MEAN_OP, mean):
                continue
            if there not in arrived:
                arrived[there] = free[here, there] = arrival
            edges[op, reader] = None
    src, dst = np.array(list(edges), dtype=np.int64).reshape(-1, 2).T
    return src, dst, sizes, start, time, home


def _filled(random: np.random.Generator, length: int, count: int) -> NDArray[np.int64]:
    """Whole times of at least one that add up to a length."""
    weight = random.lognormal(0, TIME_SPREAD, count)
    time = 1 + np.floor(weight / weight.sum() * (length - count)).astype(np.int64)
    time[np.argmax(time)] += length - time.sum()
    return time


#: Methods that plan under either link model.
LISTED = ("heft", "etf", "dpos", "peft", "cpop")

#: What `auto` may take, as counted, and its rows.
EFFORTS: dict[Effort, str] = {"fast": "auto, 1 s", "normal": "auto, 15 s"}

#: Devices and seeds of the instances in the table.
DEVICES, SEEDS = (2, 4, 8), (0, 1, 2)


def over(made: Instance, method: str) -> dict[str, float]:
    """How far above the optimum a method ends, in percent: by link model, and as it expects."""
    plan = lm.place(made.graph, made.cluster, method)
    free = lm.place(made.graph, made.cluster, method, contention=False)
    # The sequence that was planned, kept to exactly, and whatever is ready taken at once.
    unlimited = min(
        lm.simulate(
            made.graph,
            made.cluster,
            free.devices,
            free.priority,
            policy=policy,
            contention=False,
        ).makespan
        for policy in ("fixed", "priority")
    )
    seconds = {"free": unlimited, "contention": plan.makespan, "expected": plan.estimate}
    return {name: (s / made.optimum - 1) * 100 for name, s in seconds.items() if s is not None}


def report(n_ops: int, ccr: float) -> None:
    """Prints a table: mean and worst of the seeds, per method and number of devices."""
    print(f"{n_ops} ops, CCR {ccr:g}: percent over the optimum, mean (worst) of {len(SEEDS)} seeds")
    print("devices  method        unlimited channels         contention    expected with it")
    for devices in DEVICES:
        planted = [instance(n_ops, devices, ccr, seed) for seed in SEEDS]
        for method in LISTED:
            found = [over(made, method) for made in planted]
            cells = []
            for column in ("free", "contention", "expected"):
                values = [one[column] for one in found if column in one]
                cells.append(
                    f"{statistics.mean(values):.2f} ({max(values):.2f})" if values else "-"
                )
            print(f"{devices:7}  {method:10}" + "".join(f"{cell:>20}" for cell in cells))
        for effort, method in EFFORTS.items():
            plans = [
                lm.place(one.graph, one.cluster, effort=effort, time_limit=60) for one in planted
            ]
            values = [
                (plan.makespan / one.optimum - 1) * 100
                for plan, one in zip(plans, planted, strict=True)
            ]
            cell = f"{statistics.mean(values):.2f} ({max(values):.2f})"
            print(f"{devices:7}  {method:10}{'':20}{cell:>20}")


def main() -> None:
    """Parses arguments and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ops", type=int, default=1000)
    parser.add_argument("--ccr", type=float, default=1.0)
    arguments = parser.parse_args()
    report(arguments.ops, arguments.ccr)


if __name__ == "__main__":
    main()
