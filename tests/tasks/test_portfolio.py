"""``auto`` where memory is short: it is behind no other planner that it tries."""

from __future__ import annotations

import pytest
from folders import DATA

import loadmaster as lm
from loadmaster.costs.roofline import roofline_costs
from loadmaster.judge.problem import Problem
from loadmaster.strategies.registry import METHODS
from loadmaster.tasks import portfolio


def problem_of(name, preset, memory):
    graph = lm.read(DATA / "models" / f"{name}.json.gz")
    cluster = lm.Cluster.preset(preset).with_memory(memory)
    return Problem.make(graph, cluster, roofline_costs(graph, cluster))


@pytest.mark.parametrize(
    ("name", "preset", "memory"),
    [
        ("mlp_train", "moirai-inter", 248134053),
        pytest.param("llama_infer_b8", "8xH100-NVLink", 11345393, marks=pytest.mark.nightly),
    ],
)
def test_auto_is_behind_no_other_planner_where_memory_is_short(name, preset, memory):
    problem = problem_of(name, preset, memory)
    assert portfolio.is_short(problem)
    plan = lm.place(problem.model, problem.cluster, costs=problem.costs)
    assert plan.fits
    assert plan.notes[-1].startswith("by ")
    others = [c for _, c in portfolio.others(problem, lambda name: None, lambda: True)]
    assert plan.makespan <= min(one.verdict.step_time for one in others)
    best = min(plan.offers, key=lambda one: one.seconds)
    assert best.seconds == pytest.approx(plan.makespan)


def test_memory_is_not_short_where_one_device_holds_all():
    assert not portfolio.is_short(problem_of("mlp_train", "moirai-inter", 2**34))


def test_no_other_planner_is_tried_where_a_plan_is_near_the_bound():
    graph, cluster = lm.read("example:inception-v3"), lm.Cluster.preset("4xV100-PCIe")
    problem = Problem.make(graph, cluster, roofline_costs(graph, cluster))
    assert portfolio.is_short(problem)
    assert not portfolio.may_gain(problem, METHODS["auto"][0](problem))


def test_no_other_planner_is_tried_where_no_plan_can_fit():
    assert not portfolio.is_short(problem_of("mlp_train", "moirai-inter", 2**16))


def test_no_other_planner_is_tried_where_the_user_narrows_the_plans_down():
    problem = problem_of("mlp_train", "moirai-inter", 248134053)
    whole = lm.place(problem.model, problem.cluster, costs=problem.costs, split="none")
    pinned = lm.place(
        problem.model,
        problem.cluster,
        costs=problem.costs,
        constraints=lm.Constraints(contiguous=True),
    )
    assert not any("were tried, too" in note for plan in (whole, pinned) for note in plan.notes)
