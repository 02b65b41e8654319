"""Stages with the smallest largest load: the max-load problem.

Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino, "Efficient Algorithms for Device
Placement of DNN Graph Operators" (NeurIPS 2020). A pipeline with enough samples in flight finishes
one in the time that its busiest device takes. A device's load is the time of its nodes. On an
accelerator it is also the cost of every output that it sends, once, and of every output that it
reads from elsewhere, once.

Stages are contiguous: nothing leads from a stage to an earlier one. A backward pass runs through
the stages in reverse, and a backward node is where the forward node of its colour is. The authors'
own files list backward edges in the direction of the forward pass. So backward edges are read in
the one of both directions that leaves more freedom.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.units import format_bytes
from loadmaster.judge.problem import Problem
from loadmaster.model.orders import frugal_order, program_order
from loadmaster.readers.planners.max_load import MaxLoad
from loadmaster.rules.stages import knots
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.pipelines.baselines import advised, equal_layers, in_stages
from loadmaster.strategies.pipelines.phases import FORWARD, passes
from loadmaster.strategies.pipelines.space import PipelineSpace
from loadmaster.strategies.registry import strategy

#: The costliest output of a group, in the whole numbers in which orders count what is sent.
_WHOLE = 2.0**40

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]


@strategy("max-load", "stages with the smallest largest load, by 1F1B")
def place(problem: Problem, *, micro_batches: int | None = None) -> Candidate:
    """The stages of :func:`split` on a model's own costs, over all devices.

    Parameters
    ----------
    problem : Problem
    micro_batches : int, optional
        Parts of the batch. Absent: as many as the batch has samples, up to four per device.

    Raises
    ------
    InputError
        One device, or one sample.
    """
    space, n = PipelineSpace.of(problem), problem.cluster.n_devices
    m = advised(space, micro_batches, n)
    try:
        stage = split(of_space(space, m)).stage[space.groups]
    except InfeasibleError:
        return equal_layers(space, m)
    return in_stages(space, stage, m, "1f1b", problem.fastest_first.tolist())


def of_space(space: PipelineSpace, m: int) -> MaxLoad:
    """The max-load problem of one of m micro-batches, a node per part of the model that no cut
    divides, in the order of the space's first line.

    All devices count as the slowest one with the least memory. A node holds what its ops keep: for
    the whole step, and for as many micro-batches as there may be in flight.
    """
    problem = space.problem
    probe = space.probe(m)
    group = space.groups[probe.program.serves[probe.reduced.op_of]]
    n, kind = int(space.groups.max()) + 1, passes(probe.program)[probe.reduced.op_of]
    last = probe.program.micro[probe.reduced.op_of] == 1
    slowest = max(problem.cluster.device_types, key=lambda k: float(problem.time[:, k].sum()))
    busy = np.bincount(group[last], weights=probe.compute_time[last, slowest], minlength=n)
    src, dst, tensor, size, is_home = fast.edges(probe.graph)
    data = (tensor >= 0) & ~is_home
    kept = data & last[src] & last[dst] & (kind[src] == FORWARD) & (kind[dst] != FORWARD)
    stays = np.bincount(group, weights=probe.graph.resident.astype(np.float64), minlength=n)
    alive = min(m, problem.cluster.n_devices)
    held = stays + alive * _once(tensor[kept], group[src[kept]], size[kept], n)
    moved = data & last[src] & last[dst] & (group[src] != group[dst])
    latency, per_byte = problem.links.mean_link
    seconds = latency + size[moved].astype(np.float64) * per_byte
    # Gradients go back along the order.
    ends = np.sort(np.stack([group[src], group[dst]])[:, data], axis=0)
    ends = np.unique(ends[:, ends[0] < ends[1]], axis=1)
    return MaxLoad(
        ids=tuple(range(n)),
        times=np.stack([busy, busy], axis=1),
        bytes=np.ceil(held).astype(np.int64),
        backward=np.zeros(n, dtype=bool),
        colour=np.arange(n),
        src=ends[0],
        dst=ends[1],
        # A gradient goes back along the edge by which the activation came.
        cost=_once(tensor[moved], np.minimum(group[src], group[dst])[moved], seconds, n),
        accelerators=problem.cluster.n_devices,
        cpus=0,
        memory=min(problem.cluster.memory),
    )


def _once(
    tensor: NDArray[np.integer], group: NDArray[np.integer], value: NDArray[np.generic], n: int
) -> NDArray[np.float64]:
    """Sums of a value per group, each tensor once."""
    first = np.unique(tensor, return_index=True)[1]
    sums = np.zeros(n)
    np.add.at(sums, group[first], value[first].astype(np.float64))
    return sums


@dataclass(frozen=True)
class MaxLoadSplit:
    """Stages of a max-load problem.

    Attributes
    ----------
    stage : int32 [n]
        The stage of each node. Samples go through the stages in this order.
    on_cpu : bool [n_stages]
        Whether a CPU core runs the stage, else an accelerator. No two stages share a device.
    loads : float64 [n_stages]
        The load of each stage, in the file's unit of time.
    downsets : int, optional
        How many sets of nodes a pipeline may be cut after. None where they were too many to be
        listed: then ``period`` need not be the optimum.
    """

    stage: NDArray[np.int32]
    on_cpu: NDArray[np.bool_]
    loads: NDArray[np.float64]
    downsets: int | None

    @property
    def period(self) -> float:
        """The largest load: the time between two samples."""
        return float(self.loads.max())

    @property
    def is_optimal(self) -> bool:
        """True if no contiguous stages have a shorter period."""
        return self.downsets is not None


def split(problem: MaxLoad) -> MaxLoadSplit:
    """The contiguous stages with the smallest largest load.

    Where there are at most some 30,000 downsets, no stages have a smaller one. Else the stages are
    at least as good as the best contiguous cut of each of four orders: Kahn's by position and by
    who is ready first, depth first, least bytes.

    Raises
    ------
    InputError
        A backward node without a forward node of its colour; a forward node that reads a
        backward one; more nodes and devices than the table has room for.
    InfeasibleError
        No stages fit the devices.

    Examples
    --------
    >>> nodes = [{"id": i, "supportedOnFpga": 1, "fpgaLatency": 2, "cpuLatency": 9} for i in (0, 1)]
    >>> edges = [{"sourceId": 0, "destId": 1, "cost": 0.5}]
    >>> document = {"nodes": nodes, "edges": edges, "maxFPGAs": 2, "maxSizePerFPGA": 1}
    >>> split(MaxLoad.from_document(document)).loads.tolist()
    [2.5, 2.5]
    """
    group, edges = _groups(problem)
    n = int(group.max()) + 1
    times = np.zeros((n, 2))
    np.add.at(times, group, problem.times)
    bytes_ = np.zeros(n, dtype=np.int64)
    np.add.at(bytes_, group, problem.bytes)
    tensors = (*_pins(problem, group), problem.cost)
    devices = (problem.accelerators, problem.memory, problem.cpus)
    orders = _orders(problem, group, n, edges)
    cuts, downsets = fast.split_max_load(times, bytes_, edges, tensors, orders, devices)
    if cuts is None:
        raise InfeasibleError(_refusal(problem, downsets))
    stage = cuts[0][group]
    return MaxLoadSplit(stage, cuts[1], loads(problem, stage, cuts[1]), downsets)


def loads(
    problem: MaxLoad, stage: NDArray[np.int32], on_cpu: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The load of each stage, float64 [n_stages], from the nodes themselves. O(n + m log m)."""
    load = np.zeros(len(on_cpu))
    np.add.at(load, stage, problem.times[np.arange(len(stage)), on_cpu[stage].astype(int)])
    tensors = np.unique(np.stack([problem.src, stage[problem.dst].astype(np.int64)]), axis=1)
    away = tensors[:, stage[tensors[0]] != tensors[1]]
    senders = np.unique(away[0])
    for tensor, at in ((away[0], away[1]), (senders, stage[senders])):
        np.add.at(load, at, np.where(on_cpu[at], 0.0, problem.cost[tensor]))
    return load


def _groups(problem: MaxLoad) -> tuple[NDArray[np.int64], Pairs]:
    """The group of each node, numbered by their first nodes, and the edges between groups."""
    _check(problem)
    colour, backward = problem.colour, problem.backward
    passes = backward[problem.src].astype(int) + backward[problem.dst]
    n = int(colour.max()) + 1
    best: tuple[NDArray[np.int64], Pairs] | None = None
    for is_reversed in (True, False):
        before, after = colour[problem.src], colour[problem.dst]
        if is_reversed:
            before, after = (
                np.where(passes == 2, after, before),
                np.where(passes == 2, before, after),
            )
        ordering = passes != 1
        knot = knots(n, before[ordering], after[ordering])
        if best is None or knot.max() > best[0].max():
            best = knot, (before[ordering], after[ordering])
    assert best is not None
    _, first, knot = np.unique(best[0][colour], return_index=True, return_inverse=True)
    group = np.argsort(np.argsort(first))[knot]
    of_colour = np.empty(n, dtype=np.int64)
    of_colour[colour] = group
    before, after = np.unique(of_colour[np.stack(best[1])], axis=1)
    return group, (before[before != after], after[before != after])


def _check(problem: MaxLoad) -> None:
    forward = np.zeros(int(problem.colour.max()) + 1, dtype=bool)
    forward[problem.colour[~problem.backward]] = True
    alone = np.flatnonzero(problem.backward & ~forward[problem.colour])
    if len(alone):
        raise InputError(
            f"node {problem.ids[alone[0]]} is a backward node, and no forward node has its "
            "colorClass: give it that of the forward node whose stage it belongs to"
        )
    late = np.flatnonzero(problem.backward[problem.src] & ~problem.backward[problem.dst])
    if len(late):
        src, dst = problem.ids[problem.src[late[0]]], problem.ids[problem.dst[late[0]]]
        raise InputError(
            f"edge {late[0]} leads from the backward node {src} to the forward node {dst}: "
            "the backward pass comes after the forward pass"
        )


def _pins(problem: MaxLoad, group: NDArray[np.int64]) -> Pairs:
    """Outputs with the groups that make or read them, of outputs that leave their group."""
    away = group[problem.src] != group[problem.dst]
    src, dst = problem.src[away], group[problem.dst[away]]
    return np.concatenate([src, src]), np.concatenate([group[src], dst])


def _orders(
    problem: MaxLoad, group: NDArray[np.int64], n: int, edges: Pairs
) -> list[NDArray[np.int32]]:
    """Orders: Kahn's by position, Kahn's first in first out, depth first, least bytes."""
    tensors, _ = _pins(problem, group)
    sent = np.unique(tensors)
    load = np.zeros(n)
    np.add.at(load, group[sent], problem.cost[sent])
    most = float(load.max(initial=0.0))
    size = np.round(load / most * _WHOLE if most > 0 else load).astype(np.int64)
    graph = fast.Graph(n, edges[0], edges[1], tensor_bytes=size)
    return [program_order(graph), fast.m_topo(graph), fast.dfs_topo(graph), frugal_order(graph)]


def _refusal(problem: MaxLoad, downsets: int | None) -> str:
    where = "no contiguous stages fit"
    if downsets is None:
        where = "no contiguous stages were found that fit"
    total = int(problem.bytes.sum())
    return (
        f"{where} {problem.accelerators} accelerators of {format_bytes(problem.memory)} and "
        f"{problem.cpus} CPU cores: the nodes hold {format_bytes(total)} in all. Give more devices "
        "(maxFPGAs, maxCPUs) or more memory (maxSizePerFPGA)"
    )
