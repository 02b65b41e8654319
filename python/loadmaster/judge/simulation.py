"""A step of a placed graph: what ran when, what was sent, what memory held.

The simulator itself is Rust's (``rust/core/src/simulate``); this file speaks of the ops of the
graph that runs.
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
from loadmaster.base.text import Printed, aligned, in_lines
from loadmaster.base.units import counted, format_bytes, format_seconds
from loadmaster.costs import CostModel, Costs, Regression, estimate
from loadmaster.costs.roofline import roofline_costs
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.causes import Causes
from loadmaster.judge.policies import LINK_ORDERS, POLICIES, LinkOrder, Policy
from loadmaster.judge.problem import Problem, ranks
from loadmaster.judge.timeline import Collectives, Timeline, Transfers
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph

#: The forms in which costs can be given; "roofline": by data sheets, without kernels.
CostsLike = Costs | CostModel | Regression | ArrayLike | Literal["roofline"]


@dataclass(frozen=True)
class Blame:
    """One link of the chain that explains the makespan.

    Attributes
    ----------
    op : int or None
        The op that ran, or the last that its host launched; None: the link is a transfer. A member
        stands for its collective, and of a "share" for what its device did of it.
    transfer : int or None
        The transfer that was under way or copied out, by index in :class:`Transfers`; None: the
        link is an op.
    start, finish : float
        Seconds.
    waited : str
        The reason why the link did not start earlier: an "op" or a "transfer" brought its input,
        its "device" or its "channel" was busy, its device was busy with a "copy" of what it sends
        or with its "share" of a collective, its host with the "launch", a "collective" held its
        channel, or "nothing" (it started at 0). A collective waits as its last member does. In a
        measured step, time may pass between the end of what was waited for and the start.
    doing : str
        What happened: "run", "transfer", "copy" (the sender copied the transfer out), "share" (a
        device did its share of a collective) or "launch" (a host launched ops up to this one).
    """

    op: int | None
    transfer: int | None
    start: float
    finish: float
    waited: str
    doing: str


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
    is_known : bool
        False: a run did not measure it, and peaks of 0 mean nothing.
    is_predicted : bool
        Whether it is what was predicted of a run that did not measure it.
    """

    capacity: NDArray[np.uint64]
    peak: NDArray[np.uint64]
    static: NDArray[np.uint64]
    overflow: Overflow | None
    samples: tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.uint64]]
    is_known: bool = True
    is_predicted: bool = False

    @property
    def fits(self) -> bool:
        """True if no device ever holds more than it can."""
        return self.overflow is None

    @classmethod
    def unknown(cls, capacity: NDArray[np.uint64]) -> Memory:
        """Memory of devices of which it was not measured."""
        nothing = np.zeros(len(capacity), dtype=np.uint64)
        samples = np.empty(0), np.empty(0, dtype=np.int32), np.empty(0, dtype=np.uint64)
        return cls(capacity, nothing, nothing, None, samples, is_known=False)

    def profile(self, device: int) -> tuple[NDArray[np.float64], NDArray[np.uint64]]:
        """The times (s) at which one device's memory changes, and the bytes in use from then on."""
        times, devices, used = self.samples
        here = devices == device
        return times[here], used[here]


class Simulation(Printed):
    """One step: what the simulator saw of it, or what was measured.

    Parameters
    ----------
    problem : Problem
        What ran.
    timeline : Timeline
    memory : Memory, optional
        Of the step; that nothing was held, if absent.
    schedule : fast.Schedule, optional
        Every detail of a simulation; None: the step was measured.
    priority : int32 [n_ops], optional
        Of the ops of the graph that runs; their order by start if absent.

    Attributes
    ----------
    makespan : float
        Seconds.
    devices, priority : int32 [n_ops]
        Of the ops of the graph that runs; a view sits with the op whose data it shows, a
        placeholder at home.
    start, finish : float64 [n_ops]
        Seconds. A view starts and ends when its data is there, a placeholder at 0.
    transfers : Transfers
    collectives : Collectives
    memory : Memory
    device_busy : float64 [n_devices]
        Seconds of compute.
    channel_busy : float64 [n_channels]
        Seconds of transfers and collectives.
    copying : float64 [n_devices]
        Seconds for which each device copies out what it sends, and does its shares of collectives.
    launching : float
        Seconds for which the host that launches most is busy with that.
    bytes_moved : int
        Between devices: those of transfers, and :attr:`Collectives.bytes_sent`.

    Raises
    ------
    InputError
        The timeline has an op on a device that the cluster does not have.

    Examples
    --------
    A step that was measured:

    >>> import loadmaster as lm
    >>> from loadmaster.judge.timeline import Timeline
    >>> graph = lm.OpGraph({"name": ["a", "b"]}, {"src": [0], "dst": [1]})
    >>> plan = lm.place(graph, lm.Cluster.preset("2xV100-NVLink"), "single", costs=[1.0, 2.0])
    >>> seen = lm.Simulation(plan.problem, Timeline.measured(graph, [0, 0], [0, 1.5], [1.5, 3.5]))
    >>> seen.makespan, seen.device_busy.tolist(), seen.is_measured
    (3.5, [3.5, 0.0], True)
    """

    def __init__(
        self,
        problem: Problem,
        timeline: Timeline,
        memory: Memory | None = None,
        *,
        schedule: fast.Schedule | None = None,
        priority: NDArray[np.int32] | None = None,
    ) -> None:
        self._schedule, self._problem = schedule, problem
        self.timeline = timeline
        self.devices = timeline.device
        if int(self.devices.max(initial=0)) >= problem.cluster.n_devices:
            raise InputError(
                f"an op ran on device {self.devices.max()}, but the cluster has "
                f"{counted(problem.cluster.n_devices, 'device')}"
            )
        self.start, self.finish = timeline.start, timeline.finish
        self.transfers: Transfers = timeline.transfers
        self.collectives: Collectives = timeline.collectives
        if priority is None:
            priority = ranks(np.argsort(self.start, kind="stable").astype(np.int32))
        self.priority = priority
        self.devices.flags.writeable = self.priority.flags.writeable = False
        self.memory = memory or Memory.unknown(problem.capacity)
        if schedule is None:
            self.makespan = timeline.makespan
            self.device_busy = _device_busy(problem, timeline)
            self.channel_busy = _channel_busy(problem, timeline)
        else:
            self.makespan = schedule.makespan
            self.device_busy = schedule.device_busy
            self.channel_busy = schedule.channel_busy
        senders, seconds = self.transfers.src, self.transfers.copying
        n_devices = problem.cluster.n_devices
        copying = np.bincount(senders, seconds, n_devices)
        self.copying = copying + timeline.shares.per_device(self.devices, n_devices)
        self.launching = 0.0 if timeline.launched is None else float(timeline.launched.max())
        sent = int(self.transfers.bytes.sum()) if schedule is None else schedule.bytes_moved
        self.bytes_moved = sent + self.collectives.bytes_sent

    def __str__(self) -> str:
        seen, memory = "measured" if self.is_measured else "simulated", self.memory
        rows = [("device", "busy", "peak", "capacity")]
        for i, device in enumerate(self._problem.cluster.devices):
            peak = format_bytes(int(memory.peak[i])) if memory.is_known else "not known"
            busy = format_seconds(float(self.device_busy[i]))
            rows.append((device.name, busy, peak, format_bytes(int(memory.capacity[i]))))
        moved = f"{format_bytes(self.bytes_moved)} between devices"
        head = f"a step of {format_seconds(self.makespan)}, {seen}, {moved}"
        return in_lines([head if memory.fits else f"{head}: DOES NOT FIT", *aligned(rows)])

    @property
    def is_measured(self) -> bool:
        """True if the step was measured, not simulated."""
        return self._schedule is None

    @cached_property
    def blame(self) -> tuple[Blame, ...]:
        """The chain of causes behind the makespan: the last op first, then what each start waited
        for, back to 0.
        """
        chain = self._causes.chain() if self._schedule is None else self._schedule.blame()
        op_of = self._problem.reduced.op_of
        return tuple(
            Blame(
                int(op_of[index]) if doing in ("run", "share", "launch") else None,
                index if doing in ("transfer", "copy") else None,
                start,
                finish,
                waited,
                doing,
            )
            for doing, index, start, finish, waited in chain
        )

    @cached_property
    def _causes(self) -> Causes:
        """Of a measured step."""
        return Causes(self._problem, self.timeline)

    def waited(self, reduced_op: int) -> tuple[str, int]:
        """The reason why an op of the *reduced* graph started no earlier, and its index.

        "op", "device", "share" and "launch" come with an op of the reduced graph, "transfer" and
        "copy" with an index into :attr:`transfers`, "nothing" with -1. A member of a collective can
        also have waited for a "channel", with the transfer that held it, or for a "collective" that
        did, with a member of that. In a measured step it is what ended last of all that had to end
        before.
        """
        return (self._schedule or self._causes).waited(reduced_op)

    @property
    def sent_from_home(self) -> NDArray[np.bool_]:
        """Mask of the transfers of placeholders' tensors, bool [n_transfers]: they leave before the
        op that stands for their home has ended.
        """
        copied, ended = self.transfers.copied, self.finish[self.transfers.op]
        return np.asarray((copied == 0) | (copied < ended))

    @property
    def utilisation(self) -> NDArray[np.float64]:
        """Share of the makespan that each device computes."""
        return self.device_busy / self.makespan if self.makespan else self.device_busy * 0.0

    @property
    def fits(self) -> bool:
        """True if no device ever holds more than it can."""
        return self.memory.fits


def _device_busy(problem: Problem, timeline: Timeline) -> NDArray[np.float64]:
    """Seconds of compute per device; members of collectives do not compute."""
    ran = np.flatnonzero(~problem.model.is_member)
    seconds = timeline.finish[ran] - timeline.start[ran]
    busy = np.bincount(timeline.device[ran], seconds, problem.cluster.n_devices)
    return busy.astype(np.float64)


def _channel_busy(problem: Problem, timeline: Timeline) -> NDArray[np.float64]:
    """Seconds for which transfers and collectives hold each channel."""
    sent, together = timeline.transfers, timeline.collectives
    busy = np.zeros(problem.cluster.n_channels)
    pairs = zip(sent.src.tolist(), sent.dst.tolist(), strict=True)
    for pair, seconds in zip(pairs, (sent.finish - sent.start).tolist(), strict=True):
        for channel in problem.links.route(*pair)[2]:
            busy[channel] += seconds
    for channels, seconds in zip(
        together.channels, (together.finish - together.start).tolist(), strict=True
    ):
        busy[list(channels)] += seconds
    return busy


def bytes_moved(problem: Problem, schedule: fast.Schedule, devices: NDArray[np.int32]) -> int:
    """Bytes that transfers and collectives of a simulation of reduced ops send between devices."""
    return schedule.bytes_moved + Collectives.simulated(problem, schedule, devices).bytes_sent


def _overflow(problem: Problem, schedule: fast.Schedule) -> Overflow | None:
    if schedule.overflow is None:
        return None
    device, time, op, over, alive = schedule.overflow
    of = problem.reduced.op_of
    listed = tuple(Alive(int(of[a]), size, copy) for a, size, copy in alive)
    return Overflow(device, time, None if op < 0 else int(of[op]), over, listed)


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
    """Simulates an assignment in every detail; its own policy holds if none is given."""
    schedule = problem.simulate(
        assignment.devices,
        assignment.priority,
        policy=policy or assignment.policy,
        contention=contention,
        link_order=link_order,
        record_memory=True,
    )
    memory = Memory(
        problem.capacity,
        schedule.peak,
        schedule.static_bytes,
        _overflow(problem, schedule),
        schedule.memory(),
    )
    timeline = Timeline.simulated(problem, schedule, assignment.devices)
    priority = assignment.priority[problem.reduced.map]
    return Simulation(problem, timeline, memory, schedule=schedule, priority=priority)


def as_costs(costs: CostsLike | None, graph: OpGraph, cluster: Cluster) -> Costs:
    """Costs from any of the forms in which functions take them; None: an estimate."""
    if costs is None:
        return estimate(graph, cluster)
    if isinstance(costs, str):
        if costs != "roofline":
            raise InputError(f"costs is {costs!r}: the one name of costs is 'roofline'")
        return roofline_costs(graph, cluster)
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
    """An assignment of the reduced ops, from devices and priorities of the graph's ops."""
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
