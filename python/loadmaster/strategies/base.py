"""What every strategy returns, and how strategies that count memory statically are held to the
simulator's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.units import format_bytes
from loadmaster.judge.bounds import Bound
from loadmaster.judge.problem import PlanPolicy, Problem
from loadmaster.transforms.base import Split, Transformed

WAYS_OUT = (
    "More or larger devices, a smaller batch, or on_oom='best_effort' (--on-oom best_effort) would "
    "help."
)

MemoryModel = Literal["dynamic", "static"]

#: Shares of each device's memory that dynamic attempts may fill, one after another.
SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)


@dataclass(frozen=True)
class Candidate:
    """A placement of the reduced ops, judged.

    Attributes
    ----------
    devices, priority : int32 [n_reduced]
    schedule : fast.Schedule
        What the simulator saw.
    notes : tuple of str
        What the user should know about how it came about.
    estimate : float or None
        Makespan that the strategy itself expected, in seconds.
    policy : "priority" or "fixed"
        How devices follow the priorities.
    problem : Problem or None
        What was placed, if not the problem given: that of a transformed graph.
    splits : tuple of Split
        Ops that were split to make it, in this order.
    bound : Bound or None
        A lower bound on every placement that came with it.
    """

    devices: NDArray[np.int32]
    priority: NDArray[np.int32]
    schedule: fast.Schedule
    notes: tuple[str, ...] = ()
    estimate: float | None = None
    policy: PlanPolicy = "priority"
    problem: Problem | None = None
    splits: tuple[Split, ...] = ()
    bound: Bound | None = None

    @property
    def fits(self) -> bool:
        """Whether no device ever holds more than it can."""
        return self.schedule.overflow is None


class Placement(NamedTuple):
    """What a strategy decides for the reduced ops, before it is judged.

    Attributes
    ----------
    devices, priority : int32 [n_reduced]
    estimate : float or None
        Makespan that the strategy itself expects, in seconds.
    is_sequence : bool
        Whether the priorities are a schedule's own sequence, which devices may also keep to
        exactly: taking whatever is ready can be slower than waiting for what was planned.
    """

    devices: NDArray[np.int32]
    priority: NDArray[np.int32]
    estimate: float | None = None
    is_sequence: bool = False


#: Places ops within a capacity per device.
Within = Callable[[NDArray[np.uint64]], Placement]

#: The same, given bytes that each reduced op takes.
Attempt = Callable[[NDArray[np.uint64], NDArray[np.uint64]], Placement]


def judged(problem: Problem, placement: Placement, notes: tuple[str, ...] = ()) -> Candidate:
    """Simulates a placement; one with a sequence by both policies, of which the better counts."""
    devices, priority, estimate, is_sequence = placement
    schedule = problem.simulate(devices, priority)
    dispatched = Candidate(devices, priority, schedule, notes, estimate)
    if not is_sequence:
        return dispatched
    limit = schedule.makespan if dispatched.fits else float("inf")
    below = problem.simulate_below(limit, devices, priority, policy="fixed")
    if below is None:
        return dispatched
    return better(
        problem, dispatched, Candidate(devices, priority, below, notes, estimate, "fixed")
    )


def of_transformed(problem: Problem, done: Transformed) -> Problem:
    """The problem of placing a transformed graph: same cluster, costs from those of its ops."""
    return Problem.make(
        done.graph,
        problem.cluster,
        done.costs(problem.costs, problem.cluster),
        seed=problem.seed,
        best_effort=problem.best_effort,
    )


def better(problem: Problem, a: Candidate, b: Candidate) -> Candidate:
    """The one that fits, or is less far over; of two that fit the faster, of equals the first."""
    rank_a, rank_b = ((excess(problem, c), c.schedule.makespan) for c in (a, b))
    return b if rank_b < rank_a else a


@dataclass(frozen=True)
class Outcome:
    """What a row of attempts came to.

    Attributes
    ----------
    candidate : Candidate or None
        The first that fits; else the one least over; None: none could even be placed, or none can
        be faster than what is there already.
    share : float
        Share of the memory that the last attempt was allowed to fill.
    refused : InfeasibleError or None
        Why the last attempt could not be placed.
    """

    candidate: Candidate | None
    share: float
    refused: InfeasibleError | None = None

    @property
    def fits(self) -> bool:
        """Whether the candidate fits."""
        return self.candidate is not None and self.candidate.fits

    @property
    def at_ease(self) -> bool:
        """Whether the first attempt, with the whole memory, would do."""
        return self.share == 1.0 and self.refused is None and (self.candidate is None or self.fits)


def attempts(
    problem: Problem,
    attempt: Within,
    shares: Sequence[float],
    to_beat: Candidate | None = None,
) -> Outcome:
    """Tries shrinking shares of the memory until the simulated peak fits.

    A placement whose busiest device computes as long as ``to_beat`` takes, which fits, is not
    simulated: it cannot win.
    """
    limit = to_beat.schedule.makespan if to_beat is not None and to_beat.fits else float("inf")
    closest: Candidate | None = None
    share = 0.0
    for share in shares:
        try:
            placement = attempt((problem.capacity * share).astype(np.uint64))
        except InfeasibleError as error:
            return Outcome(closest, share, error)
        if limit < float("inf") and problem.busiest(placement.devices) >= limit:
            return Outcome(None, share)
        candidate = judged(problem, placement)
        if candidate.fits:
            return Outcome(candidate, share)
        if closest is None or excess(problem, candidate) < excess(problem, closest):
            closest = candidate
    return Outcome(closest, share)


def try_memory(
    problem: Problem, attempt: Attempt, memory: MemoryModel, to_beat: Candidate | None = None
) -> Outcome:
    """Attempts under a memory model.

    ``"static"`` is the papers' constraint: resident bytes and outputs of all ops on a device, for
    the whole step, within its memory. ``"dynamic"`` charges what each op holds at the peak of a
    sequential run (:func:`loadmaster.fast.peak_bytes`) against shrinking shares of the memory,
    until the simulated peak, copies from other devices included, fits.
    """
    if memory == "static":
        return attempts(problem, partial(attempt, problem.graph.static_bytes), (1.0,), to_beat)
    if memory == "dynamic":
        return attempts(problem, partial(attempt, problem.reduced.held_at_peak), SHARES, to_beat)
    raise InputError(f"memory is {memory!r}: wants 'dynamic' or 'static'")


def better_outcome(problem: Problem, a: Outcome, b: Outcome) -> Outcome:
    """The one with the better candidate, of equals the first; if neither has one, the one that says
    why.
    """
    if a.candidate is None and b.candidate is None:
        return b if a.refused is None else a
    if a.candidate is None or b.candidate is None:
        return b if a.candidate is None else a
    return a if better(problem, a.candidate, b.candidate) is a.candidate else b


def settled(problem: Problem, outcome: Outcome) -> Candidate:
    """The candidate, if it fits or best effort will do.

    Raises
    ------
    InfeasibleError
        It does not fit, or there is none.
    """
    if outcome.candidate is None:
        assert outcome.refused is not None
        raise nowhere_error(problem, outcome.refused)
    if outcome.fits or problem.best_effort:
        return outcome.candidate
    raise overflow_error(problem, outcome.candidate)


def within_memory(problem: Problem, attempt: Attempt, memory: MemoryModel) -> Candidate:
    """A placement that the simulator finds to fit; see :func:`try_memory`."""
    return settled(problem, try_memory(problem, attempt, memory))


def excess(problem: Problem, candidate: Candidate) -> int:
    """Bytes over capacity, summed over devices."""
    peaks = candidate.schedule.peak.tolist()
    return sum(max(p - c, 0) for p, c in zip(peaks, problem.cluster.memory, strict=True))


def nowhere_error(problem: Problem, refused: InfeasibleError) -> InfeasibleError:
    """The error of an op that found no room, with what the whole graph needs beside it."""
    peak, _ = fast.peak_bytes(problem.graph)
    return InfeasibleError(
        f"does not fit: {refused}. One device alone would need {format_bytes(peak)} ({peak} bytes) "
        f"at the peak; the cluster has {format_bytes(sum(problem.cluster.memory))} in all. "
        + WAYS_OUT,
        refused.shortfall,
    )


def overflow_error(problem: Problem, candidate: Candidate) -> InfeasibleError:
    """An error that says how many bytes are short on which device, and what takes them."""
    overflow = candidate.schedule.overflow
    assert overflow is not None
    names = problem.model.names
    of = problem.reduced.op_of
    shortfall = {
        d.name: int(peak) - d.memory
        for d, peak in zip(problem.cluster.devices, candidate.schedule.peak, strict=True)
        if peak > d.memory
    }
    device, time, op, over, alive = overflow
    worst = ", ".join(f"{d} by {format_bytes(b)} ({b} bytes)" for d, b in shortfall.items())
    when = "resident bytes alone" if op < 0 else f"first at {time:.6g} s, op {names[of[op]]!r}"
    tensors = [(int(of[a]), size, " (copy)" if copy else "") for a, size, copy in alive]
    tensors += [(op, size, "") for op, size in _residents(problem, candidate.devices, device)]
    tensors.sort(key=lambda row: -row[1])
    largest = ", ".join(
        f"{names[op]!r} {format_bytes(size)}{copy}" for op, size, copy in tensors[:5]
    )
    return InfeasibleError(
        f"does not fit: short on {worst}; {when}, {format_bytes(over)} over on "
        f"{problem.cluster.devices[device].name}"
        + (f"; largest tensors alive there: {largest}" if largest else "")
        + f". {WAYS_OUT}",
        shortfall,
    )


def _residents(problem: Problem, devices: NDArray[np.int32], device: int) -> list[tuple[int, int]]:
    """The user's ops that keep most bytes on a device for the whole step, with those bytes."""
    kept = problem.model.resident
    here = np.flatnonzero((devices[problem.reduced.map] == device) & (kept > 0))
    largest = here[np.argsort(kept[here], kind="stable")[::-1][:5]]
    return [(int(op), int(kept[op])) for op in largest]
