"""Larger batches on whole models, held against a pipeline of stages by the same judge.

A batch b times as large does b times the FLOPs of what depends on the batch, and reads weights
once. So an op that waits for its weights takes little longer, and one that computes takes b times
as long. Seconds are of the roofline; measured and given times count b times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from loadmaster.base.errors import InfeasibleError
from loadmaster.judge.problem import Problem
from loadmaster.judge.streaming import streamed
from loadmaster.model.batch import scaled_batch
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.pipelines.batch_times import batch_times
from loadmaster.strategies.pipelines.throughput import dealt
from loadmaster.strategies.simple import single

#: Most times that a batch may be enlarged.
MOST_TIMES = 1024


@dataclass(frozen=True)
class Larger:
    """A batch that is so many times as large, and whole models on every device that take such
    batches in turn, judged by a stream.
    """

    times: int
    models: Candidate

    @property
    def period(self) -> float:
        """Seconds between batches as large as they were."""
        return self.models.verdict.period / self.times

    @property
    def latency(self) -> float:
        """Seconds from a large batch's first op to its last."""
        assert self.models.verdict.steady is not None, "a stream was simulated"
        return self.models.verdict.steady.latency


def larger_batch(problem: Problem, latency: float) -> Larger | None:
    """The largest batch, of powers of 2, that whole models finish within some seconds.

    Parameters
    ----------
    problem : Problem
        Of placing the user's ops whole, on devices of one type.
    latency : float
        Seconds.

    Returns
    -------
    Larger or None
        None: not even twice the batch is done within these seconds and the memory of a device.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:mixtral"), lm.Cluster.preset("8xMI300X"), "single")
    >>> larger_batch(plan.problem, 1.5 * plan.makespan) is None
    True
    """
    larger, times = None, 2
    while times <= MOST_TIMES:
        try:
            alone = single.place(with_batch(problem, times))
        except InfeasibleError:
            break
        if not alone.fits or alone.verdict.step_time > latency:
            break
        larger, times = (times, alone), 2 * times
    return None if larger is None else Larger(larger[0], _on_every_device(larger[1]))


def _on_every_device(alone: Candidate) -> Candidate:
    """A whole model on each device, placed there as one is on its own."""
    placed, at = alone.problem, alone.assignment
    lanes = [
        judged(placed, replace(at, devices=np.full_like(at.devices, device)))
        for device in range(placed.cluster.n_devices)
    ]
    candidate = dealt(placed, lanes)
    return replace(candidate, verdict=streamed(candidate.problem, candidate.assignment))


def with_batch(problem: Problem, times: int) -> Problem:
    """The problem with a batch that is so many times as large.

    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "single")
    >>> larger = with_batch(plan.problem, 4)
    >>> bool(1 < larger.op_time.sum() / plan.problem.op_time.sum() < 4)
    True
    """
    graph = scaled_batch(problem.model, Fraction(times))
    time = batch_times(problem, times)
    larger = Problem.make(
        graph,
        problem.cluster,
        replace(problem.costs, time=time),
        seed=problem.seed,
        best_effort=problem.best_effort,
        expert_imbalance=problem.expert_imbalance,
    )
    return replace(larger, objective=problem.objective)
