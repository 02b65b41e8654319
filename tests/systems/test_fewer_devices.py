"""Numbers of devices that divide a model badly: fewer of them are planned for, too."""

from __future__ import annotations

import pytest

import loadmaster as lm

EIGHT = lm.Cluster.preset("8xH100-NVLink")


@pytest.fixture(scope="module")
def graph():
    """A training step of 8 samples."""
    return lm.read("example:gpt3-330m")


def on(graph, n, target):
    return lm.place(graph, EIGHT.subset(list(range(n))), target=target)


@pytest.mark.parametrize(("target", "n", "fewer"), [("jax", 3, 2), ("megatron", 5, 4)])
def test_one_device_more_makes_no_step_longer(graph, target, n, fewer):
    more, less = on(graph, n, target), on(graph, fewer, target)
    assert more.makespan <= less.makespan


def test_an_idle_device_is_no_part_of_the_mesh(graph):
    plan = on(graph, 3, "jax")
    assert plan.recipe.mesh.devices == ("gpu0", "gpu1")
    assert "DEVICES = [0, 1]" in lm.writers.jax(plan)


def test_a_pipeline_may_have_any_number_of_stages():
    """Of seven devices not only seven and three have stages."""
    graph, seven = lm.read("example:lenet"), EIGHT.subset(list(range(7)))
    plan = lm.place(graph, seven, "pipeline", devices_per_stage=1)
    for stages in range(2, 8):
        asked = lm.place(graph, seven, "pipeline", devices_per_stage=1, stages=stages)
        assert plan.makespan <= asked.makespan, stages
