"""Seconds below which no pipeline's step can be, known before any stage is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from loadmaster.judge.problem import Problem

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
        for kind, n in kinds.items():
            time, launch = problem.compute_time[:, kind], problem.cluster.types[kind].launch
            each = np.minimum(time, launch + np.maximum(time - launch, 0.0) / (m * width))
            work = float(time[once].sum()) / width + m * float(each[~once].sum())
            speed += n / width / max(work, 1e-30)
            fill = max(fill, 1 / max(float(each[forward].sum()), 1e-30))
        seconds.append(1 / speed + (p - 1) / p / CHUNKS / fill)
    return seconds
