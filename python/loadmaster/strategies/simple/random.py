"""Devices by the dice: what a placement is worth that knows nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InfeasibleError
from loadmaster.base.units import format_bytes
from loadmaster.judge.allowed import allowed_devices
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import MemoryModel
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.registry import strategy
from loadmaster.strategies.simple.assigned import assigned, per_set


@strategy("random", "devices drawn at random")
def place(problem: Problem, *, memory: MemoryModel = "dynamic") -> Candidate:
    """A device for each colocated set by ``problem.seed``, where there is room, then ordered."""

    def assign(bytes_: NDArray[np.uint64], capacity: NDArray[np.uint64]) -> NDArray[np.int32]:
        return devices(problem, problem.seed, bytes_, capacity)

    return assigned(problem, assign, memory)


def devices(
    problem: Problem,
    seed: int,
    bytes_: NDArray[np.uint64] | None = None,
    capacity: NDArray[np.uint64] | None = None,
) -> NDArray[np.int32]:
    """A device per reduced op, uniform over those its colocated set allows and that have room.

    Parameters
    ----------
    problem : Problem
    seed : int
    bytes_ : uint64 [n_reduced], optional
        What each op holds; nothing if absent.
    capacity : uint64 [n_devices], optional
        Bytes per device; all there are if absent.

    Raises
    ------
    InfeasibleError
        A set found no room (with best effort it goes where most is left).

    Notes
    -----
    O(sets x devices).

    Examples
    --------
    >>> import loadmaster as lm
    >>> from loadmaster.judge.problem import Problem
    >>> g, c = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    >>> p = Problem.make(g, c, lm.costs.estimate(g, c))
    >>> bool((devices(p, 1) == devices(p, 1)).all())
    True
    """
    graph = problem.graph
    allowed = allowed_devices(problem)
    held = np.zeros(graph.n_ops, dtype=np.uint64) if bytes_ is None else bytes_
    need = per_set(problem, held)
    left = (problem.capacity if capacity is None else capacity).astype(np.float64)
    wish = np.random.default_rng(seed).random(allowed.shape)
    wish[~allowed] = np.inf
    chosen = np.empty(len(need), dtype=np.int32)
    for s, row in enumerate(wish):
        with_room = np.where(left >= need[s], row, np.inf)
        device = int(np.argmin(with_room))
        if with_room[device] == np.inf:
            device = int(np.argmax(np.where(allowed[s], left, -np.inf)))
            if not problem.best_effort:
                raise _no_room(problem, s, device, int(need[s] - left[device]))
        chosen[s] = device
        left[device] -= need[s]
    return chosen[graph.colocation]


def _no_room(problem: Problem, s: int, device: int, short: int) -> InfeasibleError:
    op = int(problem.reduced.op_of[np.flatnonzero(problem.graph.colocation == s)[0]])
    name = problem.cluster.devices[device].name
    return InfeasibleError(
        f"no device has room for {problem.model.names[op]!r} and what is colocated with it: "
        f"{name} comes closest, short by {format_bytes(short)} ({short} bytes)",
        {name: short},
    )
