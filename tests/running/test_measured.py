"""What is measured of a plan: steps are checked, and their figures are those worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ran import measured, steps_of

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.running.measured import Measured


@pytest.fixture(scope="module")
def plan() -> lm.Plan:
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    return lm.place(graph, cluster, "round-robin")


def test_the_least_of_few_steps_and_the_tenth_percentile_of_many(plan):
    few = measured(plan, [0.3, 0.2, 0.25])
    assert (few.step, few.step_is) == (pytest.approx(0.2), "least")
    many = measured(plan, [0.1 + 0.01 * i for i in range(31)])
    assert (many.step, many.step_is) == (pytest.approx(0.13), "10th percentile")


def test_the_error_is_predicted_over_measured(plan):
    assert measured(plan, [2 * plan.makespan]).error == pytest.approx(-0.5)


def test_a_stretched_run_is_told_in_the_plans_seconds(plan):
    seen = measured(plan, [plan.makespan], stretch=50.0)
    assert seen.steps.seconds[0] == pytest.approx(50 * plan.makespan)
    assert seen.error == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("seconds", np.array([1.0, 1.0, 1.0]), "start has shape"),
        ("delay", np.array([0.0, np.nan]), "delay of step 1"),
        ("start", np.zeros((2, 3), dtype=np.int64), "wants seconds of 2 steps, as float64"),
        ("finish", np.zeros((2, 1)), "shape"),
    ],
)
def test_steps_that_cannot_be_are_refused(plan, column, values, says):
    with pytest.raises(InputError, match=says):
        replace(steps_of(plan, [1.0, 1.0]), **{column: values})


def test_an_end_before_its_begin_is_refused(plan):
    steps = steps_of(plan, [1.0])
    start = np.full_like(steps.start, 0.5)
    finish = np.ones_like(start)
    finish[0, 5] = 0.25
    with pytest.raises(InputError, match=r"finish\[5\] of step 0 is 0.25 s, before start: 0.5 s"):
        replace(steps, start=start, finish=finish)


def test_steps_of_another_plan_are_refused(plan):
    other = lm.place(plan.graph, plan.cluster, "single")
    with pytest.raises(InputError, match="transfers, the plan has 0"):
        Measured(other, steps_of(plan, [1.0]), ("cpu:0", "cpu:1"))
    with pytest.raises(InputError, match="1 device measured"):
        Measured(plan, steps_of(plan, [1.0]), ("cpu:0",))
