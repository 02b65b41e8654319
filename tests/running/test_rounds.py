"""Rounds: plans take turns, runs are joined, intervals hold what they should."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from ran import measured

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.running.measured.rounds import interleaved, interval, joined


@pytest.fixture(scope="module")
def plans() -> list[lm.Plan]:
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    return [lm.place(graph, cluster, method) for method in ("single", "etf", "round-robin")]


class Noted:
    """A runner that notes what happens; each step takes a second more than the one before."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.clock = 0.0

    @contextmanager
    def __call__(self, plan):
        self.seen.append(f"open {plan.method}")

        def session(steps):
            self.seen.append(plan.method)
            seconds = [self.clock + i + 1 for i in range(steps)]
            self.clock = seconds[-1]
            return measured(plan, seconds)

        try:
            yield session
        finally:
            self.seen.append(f"close {plan.method}")


def test_plans_take_turns_and_none_is_always_first(plans):
    runner, told = Noted(), []
    runs = interleaved(plans, runner, 3, 2, progress=lambda *said: told.append(said))
    names = [plan.method for plan in plans]
    assert runner.seen[:3] == [f"open {name}" for name in names]
    assert runner.seen[3:12] == [names[i] for i in (0, 1, 2, 1, 2, 0, 2, 0, 1)]
    assert runner.seen[12:] == [f"close {name}" for name in reversed(names)]
    assert [run.plan for run in runs] == plans
    assert runs[0].steps.seconds.tolist() == [1, 2, 11, 12, 15, 16]
    assert [stage for stage, _ in told] == [f"round {i} of 3" for i in (1, 2, 3)]
    assert told[0][1] is None
    assert told[2][1] == 1.0


def test_what_is_open_is_closed_where_a_run_fails(plans):
    class Failing(Noted):
        @contextmanager
        def __call__(self, plan):
            with Noted.__call__(self, plan):

                def session(steps):
                    raise InputError("no memory")

                yield session

    runner = Failing()
    with pytest.raises(InputError, match="no memory"):
        interleaved(plans, runner, 1)
    assert [one for one in runner.seen if one.startswith("close")][-1] == "close single"
    with pytest.raises(InputError, match="rounds"):
        interleaved(plans, runner, 0)


def test_runs_of_a_plan_are_joined(plans):
    first, second = measured(plans[0], [0.2, 0.3]), measured(plans[0], [0.1])
    peaks = second.steps.peaks + np.uint64(5)
    both = joined([first, replace(second, steps=replace(second.steps, peaks=peaks))])
    assert both.steps.seconds.tolist() == [0.2, 0.3, 0.1]
    assert both.steps.peaks.tolist() == peaks.tolist()
    assert both.steps.some(np.array([2, 0])).seconds.tolist() == [0.1, 0.2]
    unknown = replace(second, steps=replace(second.steps, peaks=None))
    assert joined([first, unknown]).steps.peaks is None


def test_an_interval_is_that_of_a_mean():
    """Of the mean of n values the bootstrap draws one with the variance of the values over n."""
    values = np.random.default_rng(1).normal(10.0, 2.0, 400)
    low, high = interval(lambda rows: float(values[rows].mean()), len(values))
    half = 1.645 * values.std() / np.sqrt(len(values))
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), rel=5e-3)
    assert interval(lambda rows: 3.0, 5) == (3.0, 3.0)
