"""Larger batches on whole models, held against a pipeline of stages: an estimate.

A batch b times as large does b times the FLOPs of what depends on the batch, and reads weights
once. So an op that waits for its weights takes little longer, and one that computes takes b times
as long. Seconds are of the roofline; measured and given times count b times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.roofline import PROVENANCES, busy_seconds, peaks
from loadmaster.judge.problem import Problem
from loadmaster.transforms.shares import own_weights, whole_bytes

#: How many times as large a batch may be, at most.
MOST_TIMES = 1024


@dataclass(frozen=True)
class Larger:
    """A batch that is so many times as large, on one device: the seconds that it takes."""

    times: int
    seconds: float


def larger_batch(problem: Problem, device: int, latency: float, peak: int) -> Larger | None:
    """The largest batch, of powers of 2, that one device finishes within some seconds and bytes.

    Parameters
    ----------
    problem : Problem
        Of placing the user's ops whole.
    device : int
    latency : float
        Seconds.
    peak : int
        Bytes that the device holds with the batch as it is.

    Returns
    -------
    Larger or None
        None: not even twice the batch; or the device's type has no roofline.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:mixtral"), lm.Cluster.preset("8xMI300X"), "single")
    >>> larger_batch(plan.problem, 0, 1.5 * plan.makespan, int(plan.memory.peak[0])) is None
    True
    """
    kind = problem.cluster.device_types[device]
    if not problem.cluster.types[kind].has_roofline:
        return None
    resident = int(problem.graph.resident.sum())
    room = problem.memory[device] - resident
    found, times = None, 2
    while times <= MOST_TIMES and times * (peak - resident) <= room:
        seconds = float(_seconds(problem, kind, times).sum())
        if seconds > latency:
            break
        found, times = Larger(times, seconds), 2 * times
    return found


def _seconds(problem: Problem, kind: int, times: int) -> NDArray[np.float64]:
    """Seconds of each op of the user's graph with so many times the batch."""
    graph, costs, device_type = problem.model, problem.costs, problem.cluster.types[kind]
    roles, factor = graph.roles, np.uint64(times)
    whole, _ = whole_bytes(graph, roles, own_weights(graph))
    whole = np.minimum(whole, graph.bytes_accessed)
    accessed = whole + (graph.bytes_accessed - whole) * factor
    many = roles.many & ~graph.placeholder
    roofline = busy_seconds(
        np.where(many, graph.flops * factor, graph.flops),
        np.where(many, accessed, graph.bytes_accessed),
        peaks(graph.outputs, device_type),
        device_type,
        graph.view | graph.placeholder,
    )
    known = np.where(many, costs.time[:, kind] * times, costs.time[:, kind])
    return np.where(costs.provenance == PROVENANCES.index("roofline"), roofline, known)
