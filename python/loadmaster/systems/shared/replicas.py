"""Parts that systems share which run a process per device, each on an equal share of the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.units import counted
from loadmaster.judge.problem import Problem
from loadmaster.model.families import families
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.simple.data_parallel import usable
from loadmaster.systems.registry import refused
from loadmaster.transforms.samples import joined_samples
from loadmaster.transforms.shares import batch_size


def check_kind(problem: Problem, name: str) -> None:
    """Refuses what is no training step with a batch and an optimizer."""
    graph = problem.model
    if "b" not in graph.phases:
        raise refused(name, f"no op of {graph.name!r} is of a backward pass")
    if not graph.updates.any():
        raise refused(
            name, f"no op of {graph.name!r} updates a parameter: capture it with an optimizer"
        )
    if batch_size(graph) is None:
        raise refused(name, f"{graph.name!r} does not say how many samples its batch has")
    if reason := joined_samples(graph):
        raise refused(name, reason)


def numbers_of_devices(problem: Problem, name: str, n: int | None) -> list[list[int]]:
    """The devices for every number of processes that divides the batch, the most first.

    The fastest of the family of the fastest device, since one backend serves all processes.

    Raises
    ------
    InputError
        The number asked for is more than there are devices of use, or does not divide the batch.
    """
    family = [kind for kind, _ in families(problem.cluster)]
    fastest = usable(problem)
    fastest = [d for d in fastest if family[d] == family[fastest[0]]]
    batch = batch_size(problem.model) or 1
    if n is not None:
        checks.integer("replicas", n, 1, len(fastest))
        if batch % n:
            raise InputError(
                f"target {name!r}: replicas is {n}, and a batch of {counted(batch, 'sample')} is "
                f"not {n} equal shares"
            )
    wanted = range(len(fastest), 0, -1) if n is None else (n,)
    return [sorted(fastest[:k]) for k in wanted if batch % k == 0]


def check_all_there(
    placed: Problem, wanted: NDArray[np.int32], at: NDArray[np.int32], name: str
) -> None:
    """Refuses constraints that keep an op off its process's device."""
    stray = np.flatnonzero(wanted != at)
    if len(stray):
        op, device = placed.program.label(int(placed.reduced.op_of[stray[0]])), wanted[stray[0]]
        raise InputError(
            f"target {name!r}: a process runs all of its share, and constraints keep op {op} off "
            f"{placed.cluster.devices[int(device)].name!r}: leave them out"
        )


def is_hopeless(problem: Problem, best: Candidate, devices: Sequence[int]) -> bool:
    """True if the work of one replica alone takes longer than the best step."""
    types = np.array(problem.cluster.device_types)[list(devices)]
    work = problem.time[:, types].sum(axis=0).max() / len(devices)
    return bool(work >= best.verdict.step_time)
