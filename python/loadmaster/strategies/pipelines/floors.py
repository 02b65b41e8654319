"""Seconds below which no pipeline's step can be, known before any stage is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.roofline import is_of_kernels
from loadmaster.judge.problem import Problem
from loadmaster.strategies.pipelines.batch_times import batch_times

#: Stages per device of the interleaved schedule.
CHUNKS = 2


def floors(
    problem: Problem, counts: Sequence[int], width: int = 1, sets: int | None = None
) -> list[float]:
    """Seconds that a step of each number of micro-batches takes at best through stages of equal
    work on so many sets of the fastest devices, ``width`` of them in each; on all if absent.

    Each device does its part of the work, and a launch more for each op and micro-batch. The last
    stage begins when a micro-batch has been through all stages before it; several stages per
    device divide that.
    """
    phases = [problem.model.phases[op] for op in problem.reduced.op_of.tolist()]
    once = np.array([phase == "o" for phase in phases])
    forward = np.array([phase in ("", "f") for phase in phases])
    p, seconds = sets or problem.cluster.n_devices // width, []
    fastest = problem.fastest_first[: None if sets is None else sets * width].tolist()
    kinds = Counter(problem.cluster.device_types[device] for device in fastest)
    for m in counts:
        speed = fill = 0.0
        of_batch = _of_batch(problem, m)
        for kind, n in kinds.items():
            time, launch = problem.compute_time[:, kind], problem.cluster.types[kind].launch
            part = np.maximum(launch + np.maximum(time - launch, 0.0) / m, of_batch[:, kind])
            each = np.minimum(time, launch + np.maximum(part - launch, 0.0) / width)
            work = float(time[once].sum()) / width + m * float(each[~once].sum())
            speed += n / width / max(work, 1e-30)
            fill = max(fill, 1 / max(float(each[forward].sum()), 1e-30))
        seconds.append(1 / speed + (p - 1) / p / CHUNKS / fill)
    return seconds


def _of_batch(problem: Problem, m: int) -> NDArray[np.float64]:
    """Seconds of a micro-batch of each reduced op, where they are those of kernels: small ones take
    longer than their share. Else 0.
    """
    is_known = is_of_kernels(problem.costs.provenance)
    if not is_known.any():
        return np.zeros_like(problem.compute_time)
    return problem.reduced.sum(np.where(is_known[:, None], batch_times(problem, 1 / m), 0.0))
