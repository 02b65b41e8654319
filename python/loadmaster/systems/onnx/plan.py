"""Plans of ONNX models as sub-models, one after another on each device.

A sub-model runs as a whole: it waits for all that it reads, and hands out what others read when it
ends. So plans are compared by their step in segments (:mod:`loadmaster.judge.segmented`), not by
the step of their ops.
"""

from __future__ import annotations

from loadmaster.base.errors import InfeasibleError
from loadmaster.base.progress import Progress
from loadmaster.base.units import format_seconds
from loadmaster.judge.problem import Problem
from loadmaster.judge.segmented import in_segments, step_of
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate
from loadmaster.systems.onnx.semantics import NAME
from loadmaster.systems.shared.whole_ops import refuse_others, whole_op_plans

#: The share by which a step may grow in segments without a word.
_NOTABLE = 0.01


def onnx(
    problem: Problem, *, time_limit: float | None = None, progress: Progress | None = None
) -> Candidate:
    """The plan of whole ops, of a few methods, whose step in segments is the least.

    Parameters
    ----------
    problem : Problem
        Of an inference.
    time_limit, progress
        As ``auto`` has them.

    Raises
    ------
    InputError
        A training step, or a graph that was transformed.
    InfeasibleError
        No plan fits.
    """
    refuse_others(NAME, problem)
    candidates: list[tuple[float, Candidate]] = []
    for one in whole_op_plans(problem, time_limit, progress):
        of = in_segments(one.problem, one.assignment)
        candidates.append((step_of(one.problem, one.assignment, of), one))
    if not candidates:
        raise InfeasibleError("no method placed the ops whole within the memory")
    seconds, best = min(candidates, key=lambda row: (not row[1].fits, row[0]))
    if seconds > best.verdict.step_time * (1 + _NOTABLE):
        best = best.noted(f"as sub-models the step takes {format_seconds(seconds)}")
    return accepted(best.problem, Outcome(best, 1.0))
