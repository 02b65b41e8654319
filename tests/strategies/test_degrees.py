"""Degrees of parallelism of labels and of pipelines, by hand, and in what methods make."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.dimensions.form import OWNER
from loadmaster.model.micro import Micro
from loadmaster.model.parallelism import Parallelism
from loadmaster.model.recipe import DeviceMesh, MeshAxis
from loadmaster.strategies.sharding.degrees import degrees, in_stages
from loadmaster.transforms.layout import Layout

GRAPH = lm.read("example:gpt3-330m")
CLUSTER = lm.Cluster.preset("8xH100-NVLink")
BATCH = {"**": "batch"}


def named(sizes, labels, **rest):
    """The degrees of parallelism of a recipe, in words."""
    recipe = lm.Recipe(DeviceMesh.of(sizes), labels, **rest)
    found = degrees(Layout.of(GRAPH, recipe), rest.get("recompute", ()))
    return None if found is None else str(found)


@pytest.mark.parametrize(
    ("sizes", "labels", "rest", "words"),
    [
        ({"dp": 4}, {"dp": BATCH}, {}, "DDP over 4"),
        ({"dp": 4}, {"dp": BATCH}, {"shard_state": {"**": "optimizer"}}, "ZeRO-1 over 4"),
        ({"dp": 2, "x": 4}, {"dp": BATCH, "x": BATCH}, {}, "DDP over 8"),
        (
            {"dp": 4},
            {"dp": BATCH},
            {"recompute": ["h.*"]},
            "DDP over 4, full recomputation of 24 modules",
        ),
        # Layers are shared by the batch, and the rest is whole.
        ({"dp": 4}, {"dp": {"h.**": "batch"}}, {}, None),
        # Nothing is shared.
        ({"dp": 4}, {}, {}, None),
        # A product is cut by its columns among others that are cut by the batch.
        ({"dp": 4}, {"dp": {**BATCH, "h.0.fc aten.addmm.default": "column"}}, {}, None),
    ],
)
def test_labels_that_are_alike_have_a_name(sizes, labels, rest, words):
    assert named(sizes, labels, **rest) == words


def test_state_in_parts_on_the_inner_of_two_axes_is_hybrid():
    layout = Layout.of(GRAPH, lm.Recipe(DeviceMesh.of({"a": 2, "b": 4}), {"a": BATCH, "b": BATCH}))
    for axes, words in (([1], "HSDP 2 x 4"), ([0], "HSDP 4 x 2"), ([0, 1], "FSDP over 8")):
        sharded = layout.with_sharded_state(["parameters"] * GRAPH.n_ops, axes)
        assert str(degrees(sharded)) == words


def test_parameters_on_one_device_each_are_in_parts_and_some_alone_have_no_name():
    layout = Layout.of(GRAPH, lm.Recipe(DeviceMesh.of({"dp": 4}), {"dp": BATCH}))
    of_set = layout.set_of >= 0
    all_owned = replace(layout, labels=np.where(of_set, OWNER, layout.labels))
    assert str(degrees(all_owned)) == "FSDP over 4"
    some = of_set & np.array([module.startswith("h.0.") for module in GRAPH.modules])
    assert degrees(replace(layout, labels=np.where(some, OWNER, layout.labels))) is None


def test_unequal_shares_are_told():
    mesh = DeviceMesh((MeshAxis("a", 2, (1.0, 3.0)), MeshAxis("b", 2)))
    found = degrees(Layout.of(GRAPH, lm.Recipe(mesh, {"a": BATCH, "b": BATCH})))
    assert found.shares == (1.0, 1.0, 3.0, 3.0)
    assert str(found) == "DDP over 4, unequal shares"


def test_stages_keep_what_is_inside_of_them():
    stage = np.array([int("ln_f" in module) for module in GRAPH.modules])
    layout = Layout.of(GRAPH, lm.Recipe(DeviceMesh.of({"dp": 2}), {"dp": BATCH}))
    piped = in_stages(GRAPH, layout, stage, Micro(4))
    assert str(piped) == "PP 2 x DP 2, 1F1B, 4 micro-batches"
    assert in_stages(GRAPH, None, stage, Micro(4, in_turn=(1, 1))) is None
    one = in_stages(GRAPH, layout, 0 * stage, Micro(4))
    assert one == Parallelism(replicate=2, micro_batches=4)


def test_recomputed_layers_are_counted_by_stage():
    number = [module.split(".")[1] if module[:2] == "h." else "0" for module in GRAPH.modules]
    stage = np.array([int(int(word) >= 8) for word in number])
    micro = Micro(4)
    some = in_stages(GRAPH, None, stage, micro, ["h.1*"])
    assert (some.recompute, some.recompute_layers) == ("full", (1, 10))
    every = in_stages(GRAPH, None, stage, micro, ["h.*"])
    assert every.recompute_layers == (8, 16)
    ops = in_stages(GRAPH, None, stage, micro, ["h.* | h.*.attn"])
    assert (ops.recompute, ops.recompute_layers) == ("selective", ())


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("fsdp", {}, "FSDP over 8"),
        ("megatron", {"tp": 4}, "TP 4 x DP 2"),
        ("data-parallel", {}, "DDP over 8"),
        ("data-parallel", {"replicas": 2, "aggregation": "reduce-scatter"}, "ZeRO-2 over 2"),
        ("data-parallel", {"aggregation": "parameter-server"}, None),
        ("layers", {}, None),
    ],
)
def test_methods_say_what_they_make(method, options, words):
    plan = lm.place(GRAPH, CLUSTER, method, costs="roofline", **options)
    assert (plan.parallelism and str(plan.parallelism)) == words


def test_a_pipeline_says_its_stages_and_its_schedule():
    plan = lm.place(
        GRAPH, CLUSTER, "pipeline", stages=8, micro_batches=8, schedule="1f1b", time_limit=5
    )
    assert str(plan.parallelism).startswith("PP 8, 1F1B, 8 micro-batches")
    assert lm.place(GRAPH, CLUSTER, recipe=plan.recipe).parallelism == plan.parallelism


def test_replicas_on_unequal_devices_have_unequal_shares():
    fast, slow = (
        lm.DeviceType(name, {"f32": f32}, memory_bandwidth=9e11)
        for name, f32 in (("a", 1.4e13), ("b", 7e12))
    )
    devices = [lm.Device("gpu0", "a", "32GiB"), lm.Device("gpu1", "b", "32GiB")]
    cluster = lm.Cluster(devices, lm.Cluster.preset("2xV100-NVLink").links, types=[fast, slow])
    shares = lm.place(lm.read("example:vgg19"), cluster, "data-parallel").parallelism.shares
    assert len(shares) == 2
    assert shares[0] > shares[1]


def test_a_users_recipe_has_a_name_unless_it_moves_ops():
    recipe = lm.Recipe(DeviceMesh.of({"dp": 2}), {"dp": BATCH})
    assert str(lm.place(GRAPH, CLUSTER, recipe=recipe).parallelism) == "DDP over 2"
    whole = lm.Recipe(DeviceMesh.of({"dp": 1}), {"dp": BATCH}, overrides={"addmm": "gpu1"})
    assert lm.place(GRAPH, CLUSTER, recipe=whole).parallelism is None


def test_what_auto_makes_keeps_its_name():
    plan = lm.place(lm.read("example:inception-v3"), lm.Cluster.preset("4xV100-PCIe"))
    assert plan.parallelism is not None
    assert plan.parallelism.devices == 4
