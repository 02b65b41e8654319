"""Instances whose optimum is known because a schedule without idle time was planted in them.

Some timelines of equal length are filled with random ops, then edges are added that the schedule
already satisfies: the tensor of an op that ends at t, queued on its channel at t behind those of
earlier ops, must have arrived when its reader starts. The work fills every device, so no schedule
is shorter; and the planted one, simulated with contention, is exactly as long. Nothing in the graph
tells on which device an op was.
"""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph
from loadmaster.readers.instances.instance import Instance

#: Microseconds of a mean op, and of what every transfer takes at least; bytes per microsecond.
MEAN_OP, LATENCY, BYTES_PER_US = 1000, 10, 12_000

#: Standard deviation of the logarithms of op and transfer times.
TIME_SPREAD, SIZE_SPREAD = 1.0, 0.8

#: Readers of an op on average; share of them on other devices; how far ahead they are (the chance
#: that the next op of a device is passed over); mean ops that a tensor may wait for its channel.
READERS, ACROSS, PASSED, PATIENCE = 2.0, 0.5, 0.7, 20

#: Share by which an instance may miss the wanted CCR.
CLOSE = 0.02

#: The largest that are made: beyond, a Python loop over the ops takes minutes.
MOST_OPS, MOST_DEVICES = 200_000, 256

#: Ops, devices and CCRs of those that are listed; the seed is 0.
_OPS, _DEVICES, _CCRS = (100, 1000), (2, 4, 8), (0.1, 1.0, 10.0)

_NAME = re.compile(r"(\d{1,9})x(\d{1,9})-ccr(\d{1,9}(?:\.\d{1,9})?)-(\d{1,18})")

#: Form of the name of one, for messages.
FORM = "planted/OPSxDEVICES-ccrCCR-SEED, such as planted/1000x4-ccr1-0"


def names() -> list[str]:
    """The names that are listed: 100 and 1000 ops on 2, 4 and 8 devices with CCRs 0.1, 1 and 10."""
    return [f"{n}x{k}-ccr{ccr:g}-0" for n in _OPS for k in _DEVICES for ccr in _CCRS]


def load(name: str) -> Instance:
    """The instance of a name such as ``"1000x4-ccr1-0"``: any numbers do, not the listed ones only.

    Raises
    ------
    InputError
        No such name, or numbers that no instance has.
    """
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise InputError(f"no instance is named 'planted/{name}': wants {FORM}")
    return planted(int(parts[1]), int(parts[2]), float(parts[3]), int(parts[4]))


def planted(n_ops: int, devices: int, ccr: float, seed: int) -> Instance:
    """Plants one: deterministic, about 30 us per op and attempt at the CCR.

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
    InputError
        More ops or devices than are made, fewer ops than devices, or a CCR that is out of reach:
        latency alone exceeds it, or a single device sends nothing.

    Examples
    --------
    >>> found = planted(100, 4, 1.0, seed=0)
    >>> found.graph.n_ops, found.optimum == found.best_known == found.lower_bound
    (100, True)
    """
    checks.integer("devices", devices, 1, MOST_DEVICES)
    least = f"an integer from {devices}, the number of devices, to {MOST_OPS}"
    checks.integer("n_ops", n_ops, devices, MOST_OPS, wants=least)
    ccr = checks.positive("ccr", ccr)
    seed = checks.seed(seed)
    src, dst, sizes, start, time, home = _planted(n_ops, devices, ccr, seed)
    # Numbered by start, so that edges ascend; ops that start together in random order.
    by_start = np.lexsort((np.random.default_rng(seed).random(n_ops), start))
    number = np.empty(n_ops, dtype=np.int64)
    number[by_start] = np.arange(n_ops)
    optimum = int(time.sum()) // devices / 1e6
    return Instance(
        name=f"planted/{n_ops}x{devices}-ccr{ccr:g}-{seed}",
        graph=OpGraph(
            {"name": [f"op{i}" for i in range(n_ops)], "time": {"*": time[by_start] * 1e-6}},
            {"src": number[src], "dst": number[dst], "bytes": sizes[src] * BYTES_PER_US},
            name=f"planted-{n_ops}x{devices}-ccr{ccr:g}-{seed}",
        ),
        cluster=Cluster.mesh(
            devices, memory="1TiB", bandwidth=BYTES_PER_US * 1e6, latency=LATENCY * 1e-6
        ),
        best_known=optimum,
        best_by="planted",
        lower_bound=optimum,
        bound_by="the work fills every device",
        devices=home[by_start].astype(np.int32),
        priority=np.arange(n_ops, dtype=np.int32),
        source="generated",
        licence="MIT OR Apache-2.0",
    )


def _planted(n_ops: int, devices: int, ccr: float, seed: int) -> tuple[NDArray[np.int64], ...]:
    """The result of :func:`_edges` for the transfer time that comes to the wanted CCR."""
    mean = ccr * MEAN_OP / READERS
    for _ in range(40):
        if mean <= LATENCY:
            raise InputError(f"a CCR of {ccr} is out of reach: latency alone takes {LATENCY} us")
        edges = _edges(n_ops, devices, mean, seed)
        src, _, sizes, _, time, _ = edges
        reached = float((LATENCY + sizes[src]).sum() / time.sum())
        if abs(reached / ccr - 1) <= CLOSE:
            return edges
        if not reached:
            break  # No edge was drawn.
        mean *= ccr / reached
    raise InputError(f"no instance of {n_ops} ops on {devices} devices has a CCR of {ccr}")


def _edges(n_ops: int, devices: int, mean: float, seed: int) -> tuple[NDArray[np.int64], ...]:
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
    shares = np.floor(weight / weight.sum() * (length - count))
    time: NDArray[np.int64] = 1 + shares.astype(np.int64)
    time[np.argmax(time)] += length - time.sum()
    return time
