"""Processes on equal devices, each with an equal share of the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.judge.problem import Problem
from loadmaster.model.families import families
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.simple.data_parallel import usable
from loadmaster.transforms.samples import samples_to_share


def of_one_family(problem: Problem) -> list[int]:
    """The fastest devices of the family of the fastest one, since one backend serves all processes;
    the fastest first.
    """
    family = [kind for kind, _ in families(problem.cluster)]
    fastest = usable(problem)
    return [d for d in fastest if family[d] == family[fastest[0]]]


def equal_groups(problem: Problem) -> list[list[int]]:
    """The devices for every number of processes that divides the batch, the most first."""
    fastest, batch = of_one_family(problem), samples_to_share(problem.model) or 1
    return [sorted(fastest[:k]) for k in range(len(fastest), 0, -1) if batch % k == 0]


def check_all_there(placed: Problem, wanted: NDArray[np.int32], at: NDArray[np.int32]) -> None:
    """Refuses constraints that keep an op off its process's device.

    Raises
    ------
    InputError
    """
    stray = np.flatnonzero(wanted != at)
    if len(stray):
        op, device = placed.program.label(int(placed.reduced.op_of[stray[0]])), wanted[stray[0]]
        raise InputError(
            f"a process runs all of its share, and constraints keep op {op} off "
            f"{placed.cluster.devices[int(device)].name!r}: leave them out"
        )


def is_hopeless(problem: Problem, best: Candidate, devices: Sequence[int]) -> bool:
    """True if the work of one replica alone takes longer than the best step."""
    types = np.array(problem.cluster.device_types)[list(devices)]
    work = problem.time[:, types].sum(axis=0).max() / len(devices)
    return bool(work >= best.verdict.step_time)
