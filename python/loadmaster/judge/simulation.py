"""Simulating a placement of a user's graph: what ran when, what was sent, what memory held.

The judge itself is Rust's (design section 6); this file speaks of the user's own ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.units import counted
from loadmaster.costs import CostModel, Costs, Regression, estimate
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph

#: What may be given as costs.
CostsLike = Costs | CostModel | Regression | ArrayLike

Policy = Literal["priority", "fifo", "random", "fixed"]
LinkOrder = Literal["fifo", "priority"]
POLICIES: tuple[Policy, ...] = ("priority", "fifo", "random", "fixed")
LINK_ORDERS: tuple[LinkOrder, ...] = ("fifo", "priority")


@dataclass(frozen=True)
class Transfers:
    """Every transfer, as columns of one length.

    Attributes
    ----------
    tensor : int32
        The user's tensor id; -1 for a message without data.
    op : int32
        The user's op that produced it (a placeholder's first reader stands for its home).
    src, dst : int32
        Devices.
    bytes : uint64
    queued, start, finish : float64
        Seconds.
    """

    tensor: NDArray[np.int32]
    op: NDArray[np.int32]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    bytes: NDArray[np.uint64]
    queued: NDArray[np.float64]
    start: NDArray[np.float64]
    finish: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.tensor)


@dataclass(frozen=True)
class Blame:
    """One link of the chain that explains the makespan.

    Attributes
    ----------
    op : int or None
        The user's op that ran, or
    transfer : int or None
        the transfer that was under way (its index in :class:`Transfers`).
    start, finish : float
        Seconds.
    waited : str
        Why it did not start earlier: for an "op" (its input), a "transfer" (its input), a busy
        "device", a busy "channel", or "nothing" (it started at 0).
    """

    op: int | None
    transfer: int | None
    start: float
    finish: float
    waited: str


@dataclass(frozen=True)
class Alive:
    """A tensor in memory: the ``op`` that made it, its ``bytes``, whether it is a ``copy``."""

    op: int
    bytes: int
    copy: bool


@dataclass(frozen=True)
class Overflow:
    """The first time a device held more than it can.

    Attributes
    ----------
    device : int
    time : float
        Seconds.
    op : int or None
        The op that started, or whose tensor began to arrive; None: resident bytes alone.
    over : int
        Bytes too many.
    alive : tuple of Alive
        All tensors there at that time, largest first.
    """

    device: int
    time: float
    op: int | None
    over: int
    alive: tuple[Alive, ...]


@dataclass(frozen=True)
class Memory:
    """Memory of every device over a step.

    Attributes
    ----------
    capacity, peak : uint64 [n_devices]
        Bytes a device has, and the most it held at any time.
    static : uint64 [n_devices]
        Resident bytes plus all outputs: what the papers take for the need.
    overflow : Overflow or None
    samples : tuple of float64, int32, uint64 columns
        Every change: time (s), device, bytes in use from then on.
    """

    capacity: NDArray[np.uint64]
    peak: NDArray[np.uint64]
    static: NDArray[np.uint64]
    overflow: Overflow | None
    samples: tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.uint64]]

    @property
    def fits(self) -> bool:
        """Whether no device ever holds more than it can."""
        return self.overflow is None

    def profile(self, device: int) -> tuple[NDArray[np.float64], NDArray[np.uint64]]:
        """Times (s) and bytes in use from each of them on, for one device."""
        times, devices, used = self.samples
        here = devices == device
        return times[here], used[here]


class Simulation:
    """What the simulator saw of one step.

    Attributes
    ----------
    makespan : float
        Seconds.
    devices, priority : int32 [n_ops]
        Of the user's ops; a view sits with the op whose data it shows, a placeholder at home.
    start, finish : float64 [n_ops]
        Seconds. A view starts and ends when its data is there, a placeholder at 0.
    memory : Memory
    device_busy : float64 [n_devices]
        Seconds of compute.
    channel_busy : float64 [n_channels]
        Seconds of transfer.
    bytes_moved : int
        Between devices.
    """

    def __init__(self, problem: Problem, schedule: fast.Schedule, assignment: Assignment) -> None:
        reduced = problem.reduced
        self._schedule = schedule
        self._op_of = reduced.op_of
        self.makespan: float = schedule.makespan
        self.devices: NDArray[np.int32] = assignment.devices[reduced.map]
        self.priority: NDArray[np.int32] = assignment.priority[reduced.map]
        self.devices.flags.writeable = self.priority.flags.writeable = False
        self.start, self.finish = _user_times(problem, schedule)
        self.device_busy: NDArray[np.float64] = schedule.device_busy
        self.channel_busy: NDArray[np.float64] = schedule.channel_busy
        self.bytes_moved: int = schedule.bytes_moved
        self.memory = Memory(
            problem.capacity,
            schedule.peak,
            schedule.static_bytes,
            self._overflow(),
            schedule.memory(),
        )

    def _overflow(self) -> Overflow | None:
        if self._schedule.overflow is None:
            return None
        device, time, op, over, alive = self._schedule.overflow
        of = self._op_of
        listed = tuple(Alive(int(of[a]), size, copy) for a, size, copy in alive)
        return Overflow(device, time, None if op < 0 else int(of[op]), over, listed)

    @cached_property
    def transfers(self) -> Transfers:
        """Every transfer."""
        columns = self._schedule.transfers()
        return Transfers(**{**columns, "op": self._op_of[columns["op"]]})

    @cached_property
    def blame(self) -> tuple[Blame, ...]:
        """Why the makespan is what it is: what each start waited for, last op first, back to 0."""
        return tuple(
            Blame(
                None if op < 0 else int(self._op_of[op]),
                None if transfer < 0 else transfer,
                start,
                finish,
                waited,
            )
            for op, transfer, start, finish, waited in self._schedule.blame()
        )

    def waited(self, reduced_op: int) -> tuple[str, int]:
        """What an op of the *reduced* graph waited for: "op", "device" (an op of the reduced
        graph), "transfer" (an index into :attr:`transfers`) or "nothing" (-1).
        """
        return self._schedule.waited(reduced_op)

    @property
    def utilisation(self) -> NDArray[np.float64]:
        """Share of the makespan that each device computes."""
        return self.device_busy / self.makespan if self.makespan else self.device_busy * 0.0

    @property
    def fits(self) -> bool:
        """Whether no device ever holds more than it can."""
        return self.memory.fits


def _user_times(
    problem: Problem, schedule: fast.Schedule
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    reduced = problem.reduced
    start = schedule.start[reduced.map]
    finish = schedule.finish[reduced.map]
    runs = np.zeros(problem.model.n_ops, dtype=bool)
    runs[reduced.op_of] = True
    views = ~runs & runs[reduced.shows]
    start[views] = finish[views]
    there_at_0 = ~runs[reduced.shows]
    start[there_at_0] = finish[there_at_0] = 0.0
    return start, finish


def simulate(
    graph: OpGraph,
    cluster: Cluster,
    devices: ArrayLike | Sequence[str],
    priority: ArrayLike | None = None,
    policy: Policy = "priority",
    contention: bool = True,
    *,
    link_order: LinkOrder = "fifo",
    costs: CostsLike | None = None,
    seed: int = 0,
) -> Simulation:
    """Simulates one step of a placed graph.

    Parameters
    ----------
    graph, cluster
    devices : int or str [n_ops]
        Device index (or name) per op. Views and placeholders follow the op whose data they show or
        that reads them first; what is given for them does not count.
    priority : int [n_ops], optional
        On a device, the ready op with the smallest priority runs first; the ops' order if absent.
    policy : "priority" (default), "fifo", "random" or "fixed"
        Which ready op a free device takes. "fixed" runs exactly the sequence of priorities.
    contention : bool
        False: unlimited channels, the classic model of the scheduling literature.
    link_order : "fifo" (default) or "priority"
        Whether a channel serves first come, first served, or by its consumers' priority.
    costs : as :func:`loadmaster.place` takes them, optional
        Seconds; measured times or the roofline if absent.
    seed : int
        For the random policy.

    Raises
    ------
    InputError
        Unknown devices, colocated ops on two devices, a device that an op does not allow, a fixed
        sequence that can never run (the ops that block each other are named).

    Notes
    -----
    O((V + E + T) log V) for T transfers.

    Examples
    --------
    >>> import loadmaster as lm, numpy as np
    >>> g = lm.read("example:lenet")
    >>> c = lm.Cluster.preset("2xV100-NVLink")
    >>> lm.simulate(g, c, np.zeros(g.n_ops, dtype=np.int32)).bytes_moved
    0
    """
    checks.one_of("policy", policy, POLICIES)
    checks.one_of("link_order", link_order, LINK_ORDERS)
    costs = as_costs(costs, graph, cluster)
    problem = Problem.make(graph, cluster, costs, seed=checks.seed(seed))
    assignment = reduced_assignment(problem, devices, priority)
    return run(problem, assignment, policy=policy, contention=contention, link_order=link_order)


def run(
    problem: Problem,
    assignment: Assignment,
    *,
    policy: str | None = None,
    contention: bool = True,
    link_order: str = "fifo",
) -> Simulation:
    """Simulates a placement of the reduced graph, by its own policy if none is given, and keeps
    every detail.
    """
    schedule = problem.simulate(
        assignment.devices,
        assignment.priority,
        policy=policy or assignment.policy,
        contention=contention,
        link_order=link_order,
        record_memory=True,
    )
    return Simulation(problem, schedule, assignment)


def as_costs(costs: CostsLike | None, graph: OpGraph, cluster: Cluster) -> Costs:
    """Costs as every function takes them: none, an array, :class:`Costs`, or what was learnt."""
    if costs is None:
        return estimate(graph, cluster)
    if isinstance(costs, (CostModel, Regression)):
        return costs.costs(graph, cluster)
    if not isinstance(costs, Costs):
        return Costs.given(costs, graph, cluster)
    types = tuple(t.name for t in cluster.types)
    if costs.types != types or len(costs.time) != graph.n_ops:
        raise InputError(
            f"costs are for {counted(len(costs.time), 'op')} on {', '.join(costs.types)}; "
            f"the graph has {graph.n_ops} and the cluster {', '.join(types)}"
        )
    return costs


def reduced_assignment(
    problem: Problem, devices: ArrayLike | Sequence[str], priority: ArrayLike | None
) -> Assignment:
    """A placement of the user's ops as one of the reduced graph's."""
    n = problem.model.n_ops
    chosen = np.asarray(devices)
    if chosen.dtype.kind in "US":
        chosen = np.array([problem.cluster.index(str(d)) for d in chosen], dtype=np.int32)
    if chosen.shape != (n,) or chosen.dtype.kind not in "iu":
        raise InputError(f"devices has shape {chosen.shape} ({chosen.dtype}), wants {n} indices")
    if n and not (chosen.min() >= 0 and chosen.max() < problem.cluster.n_devices):
        at = int(np.flatnonzero((chosen < 0) | (chosen >= problem.cluster.n_devices))[0])
        raise InputError(
            f"op {problem.model.names[at]!r} is on device {chosen[at]}, but the cluster has "
            f"devices 0 to {problem.cluster.n_devices - 1}"
        )
    op_of = problem.reduced.op_of
    if priority is None:
        return Assignment(chosen[op_of].astype(np.int32), np.arange(len(op_of), dtype=np.int32))
    wanted = np.asarray(priority)
    if wanted.shape != (n,) or wanted.dtype.kind not in "iu":
        raise InputError(f"priority has shape {wanted.shape} ({wanted.dtype}), wants {n} integers")
    if n and not (wanted.min() >= -(2**31) and wanted.max() < 2**31):
        raise InputError("priority: values must fit in 32 bits")
    return Assignment(chosen[op_of].astype(np.int32), wanted[op_of].astype(np.int32))
