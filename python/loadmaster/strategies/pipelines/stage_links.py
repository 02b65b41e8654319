"""Links of the devices of stages: transfers from stage to stage, collectives inside of one.

All devices of a stage do alike and at the same time, so where their transfers or collectives share
a channel, it carries one after another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem
from loadmaster.strategies.sharding.joint import firsts, joint
from loadmaster.strategies.sharding.traffic import Traffic


def link(links: fast.Cluster, here: Sequence[int], there: Sequence[int]) -> tuple[float, float]:
    """Seconds of a transfer, and per byte, where each device of a stage sends one to the device at
    its own place in another stage.

    >>> import loadmaster as lm
    >>> links = lm.Cluster.preset("4xV100-PCIe")._core
    >>> link(links, [0, 1], [2, 3]) == link(links, [0], [2])
    True
    """
    routes = [links.route(a, b) for a, b in zip(here, there, strict=True) if a != b]
    if not routes:
        return 0.0, 0.0
    held = Counter(channel for _, _, channels, _ in routes for channel in set(channels))
    per_byte = max(1 / bandwidth for _, bandwidth, _, _ in routes)
    return max(latency for latency, _, _, _ in routes), max(held.values(), default=1) * per_byte


@dataclass(frozen=True)
class Joins:
    """The links from each stage to the next one.

    Attributes
    ----------
    there, back : float64 [n_stages - 1, 2]
        As :func:`link`, to the next stage and from it.
    wires : tuple of (int, int, tuple of int)
        From which set of devices to which, and the channels that this takes.
    """

    there: NDArray[np.float64]
    back: NDArray[np.float64]
    wires: tuple[tuple[int, int, tuple[int, ...]], ...]


@lru_cache(maxsize=64)
def joins(links: fast.Cluster, devices: tuple[tuple[int, ...], ...]) -> Joins:
    """The links between stages on these devices.

    >>> import loadmaster as lm
    >>> found = joins(lm.Cluster.preset("4xV100-PCIe")._core, ((0,), (1,), (2,)))
    >>> [wire[:2] for wire in found.wires]
    [(0, 1), (1, 0), (1, 2), (2, 1)]
    """
    of = {some: at for at, some in enumerate(dict.fromkeys(devices))}
    there, back = [], []
    wires: dict[tuple[int, int], tuple[int, ...]] = {}
    for a, b in pairwise(devices):
        there.append(link(links, a, b))
        back.append(link(links, b, a))
        for here, to in ((a, b), (b, a)) if a != b else ():
            routes = (links.route(*ends)[2] for ends in zip(here, to, strict=True))
            wires[of[here], of[to]] = tuple(sorted({c for row in routes for c in row}))
    rows = tuple((*ends, channels) for ends, channels in wires.items())
    return Joins(np.array(there).reshape(-1, 2), np.array(back).reshape(-1, 2), rows)


def mean_link(links: fast.Cluster, sets: Sequence[Sequence[int]]) -> tuple[float, float]:
    """The mean of :func:`link` over stages that follow each other, there and back."""
    links_between = [link(links, *ends) for a, b in pairwise(sets) for ends in ((a, b), (b, a))]
    latency, per_byte = np.mean(links_between or [(0.0, 0.0)], axis=0).tolist()
    return latency, per_byte


def collective_seconds(problem: Problem, sets: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Seconds of the collective that each reduced op is a member of; 0: it is of none.

    Parameters
    ----------
    problem : Problem
        Of a program with ranks.
    sets : sequence of sequence of int
        Devices of stages, by rank. The slowest stage counts.

    Returns
    -------
    float64 [n_reduced]

    Notes
    -----
    O(V + E), and sorting.
    """
    op_of, program = problem.reduced.op_of, problem.program
    seconds = np.zeros(len(op_of))
    member = np.flatnonzero(program.graph.is_member[op_of])
    if not len(member):
        return seconds
    labels = program.graph.collectives
    group = program.graph._core.column("collective")[op_of[member]]
    read, written = _bytes(problem)
    table, times = np.array(sets), dict[tuple[int, ...], Traffic]()
    order = np.argsort(group, kind="stable")
    for some in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        ops = member[some]
        ranks = tuple(program.rank[op_of[ops]].tolist())
        if ranks not in times:
            times[ranks] = Traffic(problem.links, table[:, list(ranks)].astype(np.int64))
        kind = labels[int(op_of[ops[0]])].partition("/")[0]
        size = _whole(kind, read[ops], written[ops])
        seconds[ops] = times[ranks].seconds(fast.COLLECTIVES.index(kind), size)
    return seconds


def _bytes(problem: Problem) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bytes of the tensors that each reduced op reads, each once, and of those that it makes."""
    src, dst, tensor, size, is_home = fast.edges(problem.graph)
    data, n = tensor >= 0, problem.graph.n_ops
    code = joint(tensor, is_home)
    read, written = np.zeros(n), np.zeros(n)
    for into, op, some in ((read, dst, data), (written, src, data & ~is_home)):
        once = firsts(joint(np.where(some, op, -1), np.where(some, code, -1)))
        once = once[some[once]]
        np.add.at(into, op[once], size[once].astype(np.float64))
    return read, written


def _whole(kind: str, read: NDArray[np.float64], written: NDArray[np.float64]) -> float:
    """Bytes of the whole tensor of a collective, by those that its members read and make."""
    largest = max(read.max(), written.max())
    if kind == "all_gather":
        return float(max(largest, read.sum()))
    if kind == "reduce_scatter":
        return float(max(largest, written.sum()))
    return float(max(read.sum(), written.sum()) if kind == "all_to_all" else largest)
