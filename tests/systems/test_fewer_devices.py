"""Numbers of devices that divide a model badly: fewer of them are planned for, too."""

from __future__ import annotations

import random
from itertools import pairwise

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


#: Hosts are drawn of these, and what joins them.
HOSTS = [("4xH100", "nvlink"), ("2xA100", "pcie4"), ("4xV100", "pcie3"), ("6xL40S", "pcie4")]
NETWORKS = ["25GbE", "200Gb-IB"]


@pytest.mark.parametrize("how", ["sharded", "target jax", "target dtensor", "target fsdp"])
def test_more_devices_of_a_drawn_cluster_make_no_step_longer(how):
    graph = lm.read("example:lenet")
    for seed in range(2):
        drawn = random.Random(f"{how} {seed}")
        gpus, link = drawn.choice(HOSTS)
        cluster = lm.Cluster.new(gpus, link, hosts=2, network=drawn.choice(NETWORKS))
        steps = []
        for n in sorted({*drawn.sample(range(2, cluster.n_devices), 2), cluster.n_devices}):
            some = cluster.subset(list(range(n)))
            target = how.removeprefix("target ") if how.startswith("target") else None
            plan = lm.place(graph, some, **({"target": target} if target else {"method": how}))
            steps.append(plan.makespan)
        for fewer, more in pairwise(steps):
            assert more <= fewer * (1 + 1e-6), (how, seed, steps)


def test_an_idle_device_is_no_part_of_the_mesh(graph):
    plan = on(graph, 3, "jax")
    assert plan.recipe.mesh.devices == ("gpu0", "gpu1")
    assert "DEVICES = [0, 1]" in lm.writers.jax(plan)


def test_axes_of_a_mesh_of_jax_have_the_names_that_are_asked_for(graph):
    plan = lm.place(graph, EIGHT, target="jax", tp=2, axis_names="data,model")
    text = lm.writers.jax(plan)
    assert "AXES = {'data': 4, 'model': 2}" in text
    assert "'dp'" not in text
    assert "'tp'" not in text
    with pytest.raises(lm.InputError, match="wants two names of axes"):
        lm.place(graph, EIGHT, target="jax", axis_names="data")


def test_a_pipeline_may_have_any_number_of_stages():
    """Of seven devices not only seven and three have stages."""
    graph, seven = lm.read("example:lenet"), EIGHT.subset(list(range(7)))
    options = {"devices_per_stage": 1, "costs": "roofline"}
    plan = lm.place(graph, seven, "pipeline", **options)
    for stages in range(2, 8):
        asked = lm.place(graph, seven, "pipeline", stages=stages, **options)
        assert plan.makespan <= asked.makespan, stages
