"""Streams: how often a placed program finishes a batch when one step follows another.

A stream is a graph (:mod:`loadmaster.transforms.streams`), and the ordinary judge simulates it.
Each step has the placement of the one step, and steps before others go first. What counts is seen
between steady steps, when as many are under way as may be. That number, the *window*, is the
smallest with which a batch comes as often as the busiest device, host or channel allows, within
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.loads import Loads
from loadmaster.judge.problem import Problem
from loadmaster.judge.verdict import Limit, Resource, Steady, Verdict
from loadmaster.transforms.streams import stream

#: A period that is longer than the shortest there can be by no more than this share of it is it.
REACHED = 0.005

#: Ops in a stream that is simulated, at most, unless three windows of steps have more.
MOST_OPS = 1_000_000

#: Steps under way at a time, at most.
MOST_IN_FLIGHT = 128

#: Steps in a row that are watched at least.
_WATCHED = 4

#: A period that is longer than another by no more than this share of it is as good.
_AS_GOOD = 0.001


def streamed(
    problem: Problem,
    assignment: Assignment,
    *,
    window: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Verdict:
    """The verdict on a stream of steps of an assignment.

    Parameters
    ----------
    problem : Problem
    assignment : Assignment
        Of one step.
    window : int, optional
        Steps under way at a time. Absent: the fewest that reach the shortest period, within memory.
    progress : callable, optional
        Told which window is tried.

    Notes
    -----
    O(steps (V + E) log V) per window that is tried. Steps are three windows, and at least four in
    the middle where that is not too many.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "single")
    >>> streamed(plan.problem, plan.assignment).steady.in_flight
    1
    """
    trial = _StreamTrial(problem, assignment, progress or (lambda stage: None))
    run = trial.best() if window is None else trial.run(window)
    return trial.verdict.streamed(trial.steady(run), run.peak, problem.memory)


def judge(problem: Problem, assignment: Assignment, *, window: int | None = None) -> Verdict:
    """The verdict that the problem's objective asks for: on a step, or on a stream of steps."""
    if problem.objective.goal == "step":
        return problem.verdict(assignment)
    return streamed(problem, assignment, window=window)


@dataclass(frozen=True)
class _StreamRun:
    """A stream that was simulated: seconds between batches, those that a batch takes, bytes."""

    window: int
    period: float
    latency: float
    peak: NDArray[np.uint64]
    is_over: bool


class _StreamTrial:
    """Streams of one assignment, by window."""

    def __init__(
        self, problem: Problem, assignment: Assignment, progress: Callable[[str], None]
    ) -> None:
        self.problem, self.assignment, self.progress = problem, assignment, progress
        self.verdict = problem.verdict(assignment)
        self.runs: dict[int, _StreamRun] = {}

    @cached_property
    def loads(self) -> Loads:
        """Busy seconds of each resource, per step."""
        schedule = self.verdict.schedule
        assert schedule is not None, "a step was simulated"
        return Loads.of(self.problem, self.assignment.devices, schedule)

    @cached_property
    def least(self) -> float:
        """Seconds below which no stream's period is."""
        return self.loads.busiest / self.problem.program.batches

    @cached_property
    def last(self) -> int:
        """The op of the graph that runs which ends last in a step."""
        schedule = self.verdict.schedule
        assert schedule is not None, "a step was simulated"
        return int(self.problem.reduced.op_of[int(schedule.finish.argmax())])

    def best(self) -> _StreamRun:
        """The run of the smallest window that reaches the shortest period within memory; else of
        the shortest period seen, of windows up to twice the first.
        """
        run = self.run(self._first_window())
        while run.is_over and run.window > 1:
            run = self.run(max(run.window * 3 // 4, 1) if run.window > 4 else run.window - 1)
        if run.is_over or run.window < self._first_window():
            return self._widened(run, most=self._first_window() - 1)
        return self._widened(run, most=min(2 * run.window, MOST_IN_FLIGHT))

    def _first_window(self) -> int:
        """By Little's law, as many as the time of a step alone has shortest periods."""
        span = self.verdict.step_time
        steps = span / self.loads.busiest * (1 - REACHED) if self.loads.busiest else 1.0
        if self.problem.waits_for_updates:
            return 1
        return int(np.clip(np.ceil(steps), 1, MOST_IN_FLIGHT))

    def _widened(self, run: _StreamRun, most: int) -> _StreamRun:
        """The run of the smallest window, of ``most`` or less, that reaches the shortest period or
        is as good as the widest that fits; O(log most) runs.
        """
        if self._reaches(run) or run.is_over or most <= run.window:
            return run
        fits, over = run.window, most + 1
        while over - fits > 1:
            # The widest window first: mostly it fits.
            window = most if over > most else (fits + over) // 2
            if self.run(window).is_over:
                over = window
            else:
                fits = window
        widest = self.run(fits)
        if widest.period >= run.period * (1 - _AS_GOOD):
            return run
        enough = max(self.least * (1 + REACHED), widest.period * (1 + _AS_GOOD))
        low, high = run.window, fits
        while high - low > 1:
            middle = (low + high) // 2
            if self.run(middle).period <= enough:
                high = middle
            else:
                low = middle
        return self.run(high)

    def _reaches(self, run: _StreamRun) -> bool:
        return run.period <= self.least * (1 + REACHED)

    def run(self, window: int) -> _StreamRun:
        """The stream with a window."""
        if window not in self.runs:
            self.progress(f"stream with {window} under way")
            self.runs[window] = self._run(window)
        return self.runs[window]

    def _run(self, window: int) -> _StreamRun:
        problem, reduced = self.problem, self.problem.reduced
        # A window of steps comes before those that are watched, and one after them.
        watched = -(-_WATCHED // window) * window
        if (2 * window + watched) * problem.graph.n_ops > MOST_OPS:
            watched = window
        n = 2 * window + watched
        steps = stream(problem.model, n, window, self.last)
        placed = problem.transformed(steps.program)
        serves = steps.program.serves[placed.reduced.op_of]
        step = steps.step[placed.reduced.op_of]
        of = reduced.map[serves]
        stride = int(self.assignment.priority.max(initial=0)) + 1
        priority = (step * stride + self.assignment.priority[of]).astype(np.int32)
        schedule = placed.simulate(self.assignment.devices[of], priority)
        sample = problem.program.replica[serves] if problem.program.batches > 1 else step * 0
        seen = slice(window, window + watched)
        period, latency = self._between(schedule, step, sample, serves, seen)
        is_over = bool((schedule.peak > problem.capacity).any())
        return _StreamRun(window, max(period, self.least), latency, schedule.peak, is_over)

    def _between(
        self,
        schedule: fast.Schedule,
        step: NDArray[np.int64],
        sample: NDArray[np.integer[Any]],
        serves: NDArray[np.int32],
        seen: slice,
    ) -> tuple[float, float]:
        """Seconds between batches of the steps that are watched, and those that one takes."""
        ends = np.zeros(int(step.max()) + 1)
        np.maximum.at(ends, step, schedule.finish)
        steps = seen.stop - seen.start
        period = (ends[seen.stop - 1] - ends[seen.start - 1]) / steps
        takes = (schedule.finish > schedule.start) | self.problem.model.is_member[serves]
        late = takes & (step >= seen.start) & (step < seen.stop)
        key = step[late] * (int(sample.max(initial=0)) + 1) + sample[late]
        _, which = np.unique(key, return_inverse=True)
        batches = int(which.max(initial=0)) + 1
        begun, ended = np.full(batches, np.inf), np.zeros(batches)
        np.minimum.at(begun, which, schedule.start[late])
        np.maximum.at(ended, which, schedule.finish[late])
        latency = float((ended - begun).mean()) if late.any() else 0.0
        return float(period) / self.problem.program.batches, latency

    def steady(self, run: _StreamRun) -> Steady:
        """The stream's figures, read off a run."""
        in_flight = run.window * self.problem.program.batches
        return Steady(run.period, run.latency, in_flight, self._limit(run))

    def _limit(self, run: _StreamRun) -> Limit:
        """The resource that keeps the period from being shorter."""
        problem = self.problem
        if self._reaches(run):
            return self.loads.limit(problem)
        full = [one for one in self.runs.values() if one.is_over]
        if full:
            most = min(full, key=lambda one: one.window).peak.astype(np.float64)
            fullest = int((most / np.maximum(problem.capacity, 1)).argmax())
            return Limit(Resource.MEMORY, problem.cluster.devices[fullest].name)
        if problem.waits_for_updates:
            return Limit(Resource.UPDATE)
        return replace(self.loads.limit(problem), busy=self.least / run.period)
