"""Plans of ONNX models as OpenVINO's HETERO plugin runs them: one sub-graph after another.

HETERO cuts the model where the affinity changes, and a request runs its sub-graphs one by one. So
devices do not work at the same time, and plans are compared by the sum of what their ops and
transfers take.
"""

from __future__ import annotations

import numpy as np

import loadmaster.fast as fast
from loadmaster.base.errors import InfeasibleError
from loadmaster.base.progress import Progress
from loadmaster.base.units import format_seconds
from loadmaster.judge.problem import Problem
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.systems.openvino.semantics import NAME
from loadmaster.systems.shared.whole_ops import refuse_others, whole_op_plans

#: The share by which a step may be longer than simulated without a word.
_NOTABLE = 0.01


def openvino(
    problem: Problem, *, time_limit: float | None = None, progress: Progress | None = None
) -> Candidate:
    """The plan of whole ops, of a few methods, that is shortest one sub-graph after another.

    Parameters, errors: those of :func:`loadmaster.systems.onnx.plan.onnx`.
    """
    refuse_others(NAME, problem)
    candidates = [(in_turn(one), one) for one in whole_op_plans(problem, time_limit, progress)]
    if not candidates:
        raise InfeasibleError("no method placed the ops whole within the memory")
    seconds, best = min(candidates, key=lambda row: (not row[1].fits, row[0]))
    if seconds > best.verdict.step_time * (1 + _NOTABLE):
        best = best.noted(
            f"one sub-graph after another, as HETERO runs them, it is {format_seconds(seconds)}"
        )
    return accepted(best.problem, Outcome(best, 1.0))


def in_turn(candidate: Candidate) -> float:
    """Seconds of all ops and transfers of a step, one after another."""
    problem, devices = candidate.problem, candidate.assignment.devices
    kind = np.array(problem.cluster.device_types)[devices]
    seconds = float(problem.time[np.arange(len(kind)), kind].sum())
    src, dst, tensor, size, is_home = fast.edges(problem.graph)
    sends = (devices[src] != devices[dst]) & (tensor >= 0) & ~is_home
    _, once = np.unique(np.stack([tensor[sends], devices[dst[sends]]]), axis=1, return_index=True)
    at = np.flatnonzero(sends)[once]
    ends = zip(devices[src[at]].tolist(), devices[dst[at]].tolist(), size[at].tolist(), strict=True)
    return seconds + sum(problem.links.transfer_time(a, b, int(n)) for a, b, n in ends)
