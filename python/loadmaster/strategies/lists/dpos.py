"""FastT's DPOS (Yi et al., CoNEXT 2020, Algorithm 1): critical-path ops on critical-path devices,
the rest where they finish earliest.

Ranks count the largest time over device types and the slowest link. Where the paper leaves it open:
FT is the earliest *finish* (its line 20 says start); critical-path ops are booked like others; ops
of equal rank go topologically; an op that fits nowhere is an error. The critical-path device is
chosen by the path's compute time over the prefix that the smallest device can hold, then by memory;
when it is full the next one takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError
from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.lists.listing import Scheduled, at_first, list_scheduled, ways
from loadmaster.strategies.registry import strategy

#: Told now and then which share of the ops is scheduled, and the work since it was last told. What
#: it raises ends the scheduling.
Heed = Callable[[float, int], None]

#: Work of scheduling an op, where to push back a transfer is 1: both take some 60 ns.
_WORK_OF_OP = 16


@strategy("dpos", "critical-path ops on critical-path devices, the rest as HEFT (FastT)")
def place(
    problem: Problem,
    *,
    memory: MemoryModel = "dynamic",
    contention: bool = True,
    progress: Progress | None = None,
) -> Candidate:
    """``contention=False, memory="static"`` is the paper's model. ``progress`` is told which share
    of the ops is scheduled.
    """
    tell = progress or (lambda stage, best: None)

    def heed(share: float, work: int) -> None:
        tell(f"dpos: {share:.0%} of ops", None)

    return Listed(problem, memory, contention, heed).place()


class Listed:
    """DPOS on one problem: the order, the critical path, and the ways to decide for colocated ops.

    Parameters
    ----------
    problem, memory, contention
        As for :func:`place`.
    heed : callable
        Told how far it is, way by way.
    """

    def __init__(self, problem: Problem, memory: MemoryModel, contention: bool, heed: Heed) -> None:
        weights = slowest_times(problem)
        _, rank = fast.levels(weights)
        self.problem, self.memory, self.contention, self.heed = problem, memory, contention, heed
        self.order = fast.priority_order(problem.graph, rank)
        self.critical = fast.critical_path(weights)

    def place(self) -> Candidate:
        """The best of what is found under each way."""
        return list_scheduled(
            self.problem, self._rounds, memory=self.memory, contention=self.contention
        )

    def _rounds(self, core: fast.Problem) -> Iterator[Scheduled]:
        pinned = critical_devices(self.problem, self.critical, core)
        yield fast.schedule(core, self.order, pinned=pinned, progress=self._heeding())

    def _heeding(self) -> Callable[[int, int], None]:
        """The advice that one schedule gives."""
        before, n = 0, self.problem.graph.n_ops

        def told(done: int, pushed: int) -> None:
            nonlocal before
            work = _WORK_OF_OP * done + pushed
            self.heed(done / n, work - before)
            before = work

        return told

    def may_finish_before(self, limit: float) -> bool:
        """True if some way to decide for colocated ops ends before a limit in seconds.

        Memory counts as it does at first. Where an op finds no room so, nothing is said: true.
        """
        for core in ways(self.problem, contention=self.contention):
            within = at_first(self.problem, core, self.memory)
            pinned = critical_devices(self.problem, self.critical, within)
            try:
                finishes = fast.schedule_below(
                    within, limit, self.order, pinned=pinned, progress=self._heeding()
                )
            except InfeasibleError:
                return True
            if finishes is not None:
                return True
        return False


def slowest_times(problem: Problem) -> fast.Weights:
    """Largest seconds per op over the types it may use, per tensor over links, and of a message."""
    allowed = problem.allowed_types
    op_time = np.where(allowed, problem.time, 0.0).max(axis=1)
    latency, per_byte = problem.links.slowest_link
    tensor_time = latency + problem.graph.tensor_bytes.astype(np.float64) * per_byte
    return fast.Weights(problem.graph, op_time, tensor_time, control_time=latency)


def critical_devices(
    problem: Problem, critical: NDArray[np.int32], core: fast.Problem
) -> NDArray[np.int32]:
    """A device for each op of the critical path, -1 for others.

    Devices take the path in turn, fastest for the common prefix first, each as much as it holds of
    what the ops keep for the whole step (or are charged).
    """
    charge = problem.graph.resident if core.op_bytes is None else core.op_bytes
    capacity = core.capacity
    held = np.cumsum(charge[critical].astype(np.float64))
    prefix = max(int(np.searchsorted(held, float(capacity.min()), side="right")), 1)
    path_time = problem.time[critical[:prefix]].sum(axis=0)
    devices = sorted(
        range(problem.cluster.n_devices),
        key=lambda d: (path_time[problem.cluster.device_types[d]], -int(capacity[d]), d),
    )
    pinned = np.full(problem.graph.n_ops, -1, dtype=np.int32)
    begin = 0
    for device in devices:
        before = held[begin - 1] if begin else 0.0
        end = int(np.searchsorted(held, before + float(capacity[device]), side="right"))
        pinned[critical[begin:end]] = device
        begin = max(begin, end)
        if begin == len(critical):
            break
    return pinned
