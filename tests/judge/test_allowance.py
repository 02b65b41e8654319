"""An allowance of verdicts: it ends a strategy at its last verdict, and keeps the best of them."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import graph_of, ms_mesh

import loadmaster as lm
from loadmaster.judge.allowance import AllowanceError
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem

ORDER = np.arange(2, dtype=np.int32)
TOGETHER, APART = Assignment(np.zeros(2, dtype=np.int32), ORDER), Assignment(ORDER, ORDER)


def problem_of(memory: int, **columns: list[int]) -> Problem:
    """Two ops that do not wait for each other, on two devices."""
    graph, cluster = graph_of({"a": 1, "b": 1}, **columns), ms_mesh(2, memory=memory)
    return Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))


def test_the_verdict_that_is_one_too_many_is_an_error_and_nothing_is_counted_outside():
    problem = problem_of(10**6)
    with problem.meter.allowing(1) as allowance:
        problem.verdict(APART)
        with pytest.raises(AllowanceError):
            problem.verdict(APART)
    assert allowance.used == 1
    problem.verdict(APART)
    assert allowance.used == 1


def test_the_best_is_kept_and_of_equals_the_first():
    problem = problem_of(10**6)
    again = Assignment(APART.devices[::-1].copy(), ORDER)
    with problem.meter.allowing(3) as allowance:
        for assignment in (TOGETHER, APART, again):
            problem.verdict(assignment)
    assert allowance.best.assignment is APART
    assert allowance.best.verdict.step_time == pytest.approx(1e-3)


def test_nothing_is_kept_that_does_not_fit():
    problem = problem_of(1000, param_bytes=[600, 600])
    with problem.meter.allowing(2) as allowance:
        problem.verdict(TOGETHER)
        assert allowance.best is None
        problem.verdict(APART)
    assert allowance.best.assignment is APART


def test_a_verdict_that_a_limit_cuts_short_counts_but_is_not_kept():
    problem = problem_of(10**6)
    with problem.meter.allowing(2) as allowance:
        assert problem.verdict_below(1e-3, TOGETHER) is None
    assert allowance.used == 1
    assert allowance.best is None


def test_an_allowance_within_another_hides_it_until_its_end():
    problem = problem_of(10**6)
    with problem.meter.allowing(2) as outer:
        with problem.meter.allowing(5) as inner:
            problem.verdict(APART)
        problem.verdict(APART)
    assert (outer.used, inner.used) == (1, 1)
