"""Errors where nothing could be placed: they name the op, the device and the bytes short."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError
from loadmaster.base.units import format_bytes
from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate

WAYS_OUT = (
    "More or larger devices, a smaller batch, or on_oom='best_effort' (--on-oom best_effort) would "
    "help."
)


def proof(problem: Problem) -> str | None:
    """Why no placement can fit, in whatever order; None: that is not known. O(V devices)."""
    graph, capacity = problem.graph, problem.capacity
    types = problem.cluster.device_types
    may = problem.allowed_types[:, types]
    different = np.unique(problem.allowed_types, axis=0)[:, types]
    for some in np.vstack([np.ones_like(may[:1]), different]):
        kept = int(graph.resident[~may[:, ~some].any(axis=1)].sum())
        if kept > sum(np.array(problem.memory, dtype=object)[some]):
            which = ", ".join(np.array([d.name for d in problem.cluster.devices])[some])
            of = "" if some.all() else f" of ops that only {which} may run"
            return f"{format_bytes(kept)}{of} stay in memory for the whole step"
    together = np.zeros(graph.n_ops, dtype=np.uint64)
    np.add.at(together, graph.colocation, graph.resident)
    alone = together[graph.colocation] + (graph.static_bytes - graph.resident) + graph.workspace
    most = np.where(may, capacity, np.uint64(0)).max(axis=1)
    short = np.flatnonzero(alone > most)
    if not len(short):
        return None
    op = int(short[0])
    name = problem.model.names[problem.reduced.op_of[op]]
    return (
        f"op {name!r} with what it is colocated with needs {format_bytes(int(alone[op]))} at once"
    )


def finding(problem: Problem) -> str:
    """That nothing fits, and whether that is proved."""
    why = proof(problem)
    return "no placement that fits was found" if why is None else f"does not fit (proved: {why})"


def nowhere_error(problem: Problem, refused: InfeasibleError) -> InfeasibleError:
    """The error of an op that found no room, with what the whole graph needs beside it."""
    peak, _ = fast.peak_bytes(problem.graph)
    return InfeasibleError(
        f"{finding(problem)}: {refused}. In Kahn's order one device alone would need "
        f"{format_bytes(peak)} ({peak} bytes) at the peak; the cluster has "
        f"{format_bytes(sum(problem.cluster.memory))} in all. {WAYS_OUT}",
        refused.shortfall,
    )


def overflow_error(problem: Problem, candidate: Candidate) -> InfeasibleError:
    """An error that says how many bytes are short on which device, and what takes them."""
    overflow = candidate.schedule.overflow
    shortfall = problem.cluster.shortfall(candidate.verdict.peak)
    worst = ", ".join(f"{d} by {format_bytes(b)} ({b} bytes)" for d, b in shortfall.items())
    if overflow is None:
        return InfeasibleError(
            f"a step fits, but steps one after another do not: short on {worst}. Give more memory, "
            "or place with objective='step'",
            shortfall,
        )
    names = problem.model.names
    of = problem.reduced.op_of
    device, time, op, over, alive = overflow
    when = "resident bytes alone" if op < 0 else f"first at {time:.6g} s, op {names[of[op]]!r}"
    tensors = [(int(of[a]), size, " (copy)" if copy else "") for a, size, copy in alive]
    tensors += [
        (op, size, "") for op, size in _residents(problem, candidate.assignment.devices, device)
    ]
    tensors.sort(key=lambda row: -row[1])
    largest = ", ".join(
        f"{names[op]!r} {format_bytes(size)}{copy}" for op, size, copy in tensors[:5]
    )
    return InfeasibleError(
        f"{finding(problem)}: short on {worst}; {when}, {format_bytes(over)} over on "
        f"{problem.cluster.devices[device].name}"
        + (f"; largest tensors alive there: {largest}" if largest else "")
        + f". {WAYS_OUT}",
        shortfall,
    )


def refuse_overfull(
    problem: Problem,
    noun: str,
    devices: NDArray[np.int32],
    bytes_: NDArray[np.uint64],
    capacity: NDArray[np.uint64],
) -> None:
    """Raises where a device is given more bytes than its capacity.

    Raises
    ------
    InfeasibleError
        The devices and the bytes short of each are named.
    """
    held = np.zeros(len(capacity), dtype=np.uint64)
    np.add.at(held, devices, bytes_)
    short = {
        problem.cluster.devices[d].name: int(held[d] - capacity[d])
        for d in np.flatnonzero(held > capacity)
    }
    if short:
        listed = ", ".join(f"{d} by {format_bytes(b)} ({b} bytes)" for d, b in short.items())
        raise InfeasibleError(f"{noun} is short on {listed}", short)


def _residents(problem: Problem, devices: NDArray[np.int32], device: int) -> list[tuple[int, int]]:
    """The user's ops that keep most bytes on a device for the whole step, with those bytes."""
    kept = problem.model.resident
    here = np.flatnonzero((devices[problem.reduced.map] == device) & (kept > 0))
    largest = here[np.argsort(kept[here], kind="stable")[::-1][:5]]
    return [(int(op), int(kept[op])) for op in largest]
