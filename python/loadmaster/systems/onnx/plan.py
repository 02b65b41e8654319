"""Plans of ONNX models as sub-models, one after another on each device.

A sub-model runs as a whole: it waits for all that it reads, hands out what others read when it
ends, and costs a session's run. So plans are compared by their step in segments
(:mod:`loadmaster.judge.segmented`), not by the step of their ops. Methods do not know what runs
cost: they plan for the cluster as it is, and for ones whose messages cost a run, or several.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from loadmaster.base.errors import InfeasibleError
from loadmaster.base.progress import Progress
from loadmaster.judge.problem import Problem
from loadmaster.judge.segmented import cut, sessions
from loadmaster.model.cluster import Cluster
from loadmaster.plans.as_run import facts_of
from loadmaster.strategies.attempts import Outcome, accepted
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.systems.onnx.semantics import NAME, SESSION
from loadmaster.systems.shared.whole_ops import refuse_others, whole_op_plans

#: Session's runs that a message costs where plans are made for dear messages.
_RUNS = (1, 4)


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
    each = None if time_limit is None else time_limit / (1 + len(_RUNS))
    candidates = [
        (cut(problem, one.assignment, SESSION).step, one) for one in _plans(problem, each, progress)
    ]
    if not candidates:
        raise InfeasibleError("no method placed the ops whole within the memory")
    _, best = min(candidates, key=lambda row: (not row[1].fits, row[0]))
    best = accepted(best.problem, Outcome(best, 1.0))
    return replace(best, for_writer=facts_of(SESSION))


def _plans(
    problem: Problem, time_limit: float | None, progress: Progress | None
) -> Iterator[Candidate]:
    """Plans of the problem, and of those where messages cost runs, judged without these costs."""
    yield from whole_op_plans(problem, time_limit, progress)
    dearest = max(cost.run for cost in sessions(problem.cluster, SESSION))
    for runs in _RUNS if dearest and problem.cluster.n_devices > 1 else ():
        for one in whole_op_plans(_dear(problem, runs * dearest), time_limit, progress):
            yield judged(problem, one.assignment, one.notes)


def _dear(problem: Problem, seconds: float) -> Problem:
    """The problem where every message takes so many seconds longer."""
    cluster = problem.cluster
    dear = Cluster(
        cluster.devices,
        [replace(row, latency=row.latency + seconds) for row in cluster.wiring],
        cluster.types,
        name=cluster.name,
        dispatch=cluster.dispatch,
    )
    return replace(problem, cluster=dear)
