"""Parts: the problem on fewer devices, where more seeds come from.

A plan for some of the devices is a plan for all of them. Where transfers are dear, a strategy that
may use eight devices often makes a longer plan than it does for two. So seeds are made for half of
the devices, too, for half of those, and so on. Refinement and search have all devices again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.judge.problem import Problem
from loadmaster.strategies.candidate import Candidate

#: The fewest devices of a part. One device is a strategy of its own.
FEWEST = 2


@dataclass(frozen=True)
class DevicePart:
    """A problem on some of its devices.

    Attributes
    ----------
    problem : Problem
        With those devices only.
    whole : Problem
        With all devices.
    devices : int32 [n_devices of the part]
        Their indices in the whole, ascending.
    """

    problem: Problem
    whole: Problem
    devices: NDArray[np.int32]

    def opened(self, candidate: Candidate) -> Candidate:
        """A candidate for the part, as one for the whole."""
        inside = candidate.assignment
        assignment = replace(inside, devices=self.devices[inside.devices])
        verdict = self.whole.verdict(assignment)
        return replace(candidate, problem=self.whole, assignment=assignment, verdict=verdict)


def parts(problem: Problem) -> list[DevicePart]:
    """The problem on ever fewer devices: each part has half of each kind of the devices before it.

    A kind is a type with so many bytes of memory. The devices of a part are those best joined. The
    row ends before a part of one device, a part with less memory than the ops hold, and a part
    whose devices are joined only by way of devices outside.

    Notes
    -----
    O(devices^2).

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("8xV100-NVLink"), "random")
    >>> [part.devices.tolist() for part in parts(plan.problem)]
    [[0, 3, 4, 7], [0, 3]]
    """
    some = np.arange(problem.cluster.n_devices, dtype=np.int32)
    held = int(problem.reduced.held_at_peak.sum())
    pieces: list[DevicePart] = []
    while True:
        half = _half(problem, some)
        if not FEWEST <= len(half) < len(some) or int(problem.capacity[half].sum()) < held:
            return pieces
        try:
            cluster = problem.cluster.subset(half.tolist())
        except InputError:
            return pieces
        pieces.append(DevicePart(replace(problem, cluster=cluster), problem, half))
        some = half


def _half(problem: Problem, some: NDArray[np.int32]) -> NDArray[np.int32]:
    """Half of each kind of these devices: the first device of each kind, then again and again the
    one that is best joined to those already taken. The first device of each kind stays, so that
    types stay in their order.
    """
    devices = [problem.cluster.devices[d] for d in some]
    kinds = [(device.type, device.memory) for device in devices]
    kind = np.array([kinds.index(one) for one in kinds])
    left = (np.bincount(kind) + 1) // 2
    n_bytes = int(problem.graph.tensor_bytes.mean()) if len(problem.graph.tensor_bytes) else 0
    apart = np.array([[_seconds(problem, a, b, n_bytes) for b in some] for a in some])
    is_taken: NDArray[np.bool_] = kind == np.arange(len(some))
    left[kind[is_taken]] -= 1
    seconds = apart[:, is_taken].sum(axis=1)
    while (is_free := ~is_taken & (left[kind] > 0)).any():
        best = int(np.where(is_free, seconds, np.inf).argmin())
        is_taken[best] = True
        left[kind[best]] -= 1
        seconds += apart[:, best]
    kept: NDArray[np.int32] = some[is_taken]
    return kept


def _seconds(problem: Problem, a: int, b: int, n_bytes: int) -> float:
    """Seconds that so many bytes take from one device to another and back."""
    if a == b:
        return 0.0
    links = problem.links
    return links.transfer_time(a, b, n_bytes) + links.transfer_time(b, a, n_bytes)
