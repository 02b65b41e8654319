"""Verdicts, what compares them, and the one form of a placement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import clusters, op_graphs, placements

import loadmaster as lm
import loadmaster.strategies
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.objective import Objective
from loadmaster.judge.problem import Problem
from loadmaster.judge.verdict import Verdict
from loadmaster.strategies.candidate import judged


@dataclass(frozen=True)
class Seen:
    verdict: Verdict


def seen(step_time, period=1.0, over=0):
    return Seen(Verdict.measured(step_time, np.array([4 + over], np.uint64), [4], period=period))


def test_a_bound_says_how_much_could_be_saved_and_when_nothing_can():
    step, steady = Objective("step"), Objective("throughput")
    verdict = seen(2.0, period=0.5).verdict
    assert (step.gap(verdict, 1.5), steady.gap(verdict, 0.25)) == (0.25, 0.5)
    assert step.gap(verdict, 2.5) == step.gap(seen(0.0).verdict, 0.0) == 0.0
    # Within the rounding of times to ticks.
    assert step.is_proved(verdict, 2.0 * (1 - 1e-6))
    assert not step.is_proved(verdict, 2.0 * (1 - 1e-5))
    assert steady.is_proved(verdict, 0.5)


def test_less_over_comes_first_then_fewer_seconds_then_the_first():
    quick, slow, over, far_over = seen(1.0), seen(2.0), seen(0.1, over=1), seen(0.1, over=2)
    step = Objective("step")
    assert step.better(over, slow) is slow
    assert step.better(far_over, over) is over
    assert step.better(slow, quick) is quick
    first, second = seen(1.0, over=1), seen(1.0, over=1)
    assert step.better(first, second) is first
    assert step.best([second, first]) is second
    assert step.best([far_over, slow, over, quick]) is quick


def test_the_quickest_of_those_that_fit_or_of_all_however_far_over():
    quick, slow, over, far_over = seen(1.0), seen(2.0), seen(0.3, over=1), seen(0.1, over=2)
    step = Objective("step")
    assert step.quickest([over, far_over, slow, quick]) is quick
    assert step.quickest([over, far_over]) is far_over
    first, second = seen(1.0), seen(1.0)
    assert step.quickest([second, first]) is second


def test_throughput_counts_seconds_between_steps():
    quick, steady = seen(1.0, period=1.0), seen(2.0, period=0.5)
    assert Objective("step").better(steady, quick) is quick
    assert Objective("throughput").better(quick, steady) is steady
    assert Objective("throughput").gain(quick.verdict, steady.verdict) == pytest.approx(0.5)
    # A step that is longer may still come to a shorter period.
    assert Objective("throughput").limit(quick.verdict) == float("inf")


def test_only_what_fits_limits_its_rivals():
    step = Objective("step")
    assert step.limit(seen(1.5).verdict) == 1.5
    assert step.limit(seen(1.5, over=1).verdict) == float("inf")
    assert step.reaches(seen(1.5).verdict, 1.5)
    assert not step.reaches(seen(1.5).verdict, 1.4)
    assert step.gain(seen(0.0).verdict, seen(0.0).verdict) == 0.0


@given(st.data())
def test_a_verdict_says_what_the_simulator_saw(data):
    graph, cluster = data.draw(op_graphs()), data.draw(clusters(memory=30))
    problem = Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))
    devices = data.draw(placements(graph, cluster))[problem.reduced.op_of]
    order = lm.fast.m_topo(problem.graph)
    priority = np.empty_like(order)
    priority[order] = np.arange(len(order))
    found = judged(problem, Assignment(devices, priority, "fixed"))
    schedule = problem.simulate(devices, priority, policy=found.assignment.policy)
    assert found.verdict.step_time == schedule.makespan
    assert found.fits == (schedule.overflow is None)
    assert found.verdict.excess == sum(max(int(p) - 30, 0) for p in schedule.peak)
    assert found.verdict.period <= found.verdict.step_time
    other = "priority" if found.assignment.policy == "fixed" else "fixed"
    rival = problem.verdict(Assignment(devices, priority, other))
    assert problem.objective.rank(found.verdict) <= problem.objective.rank(rival)
