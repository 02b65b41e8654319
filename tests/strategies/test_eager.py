"""Targets eager and graph: whole ops, and who pays for launches."""

from __future__ import annotations

import pytest

import loadmaster as lm
from loadmaster.base.errors import InputError

CLUSTER = lm.Cluster.preset("2xV100-NVLink")


@pytest.fixture(scope="module")
def plans(lenet):
    return {name: lm.place(lenet, CLUSTER, target=name, effort=0.02) for name in ("eager", "graph")}


@pytest.fixture(scope="module")
def lenet():
    return lm.read("example:lenet")


def test_eager_is_priced_as_the_preset_that_is_eager(lenet, plans):
    plan = plans["eager"]
    preset = lm.Cluster.preset("2xV100-NVLink-eager")
    assert plan.cluster.dispatch.launch == preset.dispatch.launch
    assert [t.launch for t in plan.cluster.types] == [0.0]
    on_preset = lm.place(lenet, preset, target="eager", effort=0.02)
    assert plan.makespan == pytest.approx(on_preset.makespan)
    assert plan.schedule.launching > 0
    assert plan.program.is_plain


def test_graphs_launch_nothing(lenet, plans):
    plan, launch = plans["graph"], CLUSTER.types[0].launch
    assert plan.cluster.dispatch is None
    before = lm.costs.estimate(lenet, CLUSTER).time[:, 0]
    after = plan.costs.time[:, 0]
    assert after[before > 0] == pytest.approx(before[before > 0] - launch, abs=1e-12)
    assert plan.makespan < plans["eager"].makespan


def test_constraints_leave_the_price(lenet):
    rules = lm.Constraints(reserve={"*": "1GiB"}, pin={"convolution": "gpu1"})
    plan = lm.place(lenet, CLUSTER, target="eager", constraints=rules, effort=0.02)
    assert plan.cluster.dispatch is not None
    assert plan.device("convolution") == "gpu1"
    assert plan.schedule.makespan == pytest.approx(plan.makespan)


def test_a_plan_is_priced_once_and_saved_with_its_price(plans, tmp_path):
    plans["eager"].save(tmp_path / "plan.json")
    again = lm.Plan.load(tmp_path / "plan.json")
    assert again.target == "eager"
    assert again.makespan == plans["eager"].makespan
    today = lm.what_if(again, scale_link=2.0, effort=0.02).prospects[0]
    assert today.plan.makespan <= again.makespan * (1 + 1e-9)


def test_launches_that_nobody_knows_are_refused(lenet):
    graphs = lm.Cluster.mesh(2, memory="16GiB", bandwidth=1e10)
    with pytest.raises(InputError, match="no device type has a launch time"):
        lm.place(lenet.with_columns({"time": {"*": [1e-3] * lenet.n_ops}}), graphs, target="eager")
