"""What is written for JAX and torchtitan, and what is refused."""

from __future__ import annotations

import ast
from dataclasses import replace

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.strategies.sharding.structure import Structure
from loadmaster.systems.jax.constraints import constrained


def read(text):
    """What a written file sets, without what needs the other system."""
    names: dict[str, object] = {"P": lambda *axes: axes}
    for line in ast.parse(text).body:
        if isinstance(line, ast.Assign):
            exec(ast.unparse(line), names)
    return names


@pytest.fixture(scope="module")
def gpt():
    return lm.read("example:gpt3-330m")


@pytest.fixture(scope="module")
def cut(gpt):
    """On tensors alone."""
    return lm.place(gpt, lm.Cluster.preset("8xH100-NVLink"), target="jax", tp=8)


def test_columns_come_before_rows_and_a_fused_weight_is_whole(cut):
    file = read(lm.writers.jax(cut))
    specs = file["SPECS"]
    assert file["AXES"] == {"tp": 8}
    assert file["DEVICES"] == list(range(8))
    assert specs["h.*.fc.weight"] == ("tp", None)
    assert specs["h.*.proj.weight"] == (None, "tp")
    # A device's rows of q, k and v are no run of rows.
    assert specs["h.*.c_attn.weight"] != ("tp", None)


def test_every_parameter_and_input_has_a_spec_that_divides_it(cut, gpt):
    specs, sizes = read(lm.writers.jax(cut))["SPECS"], {"tp": 8}
    named = {name for name, kind in zip(gpt.names, gpt.kinds, strict=True)
             if kind in ("parameter", "input")}  # fmt: skip
    for name in named:
        pattern = ".".join("*" if word.isdecimal() else word for word in name.split("."))
        spec = specs.get(name, specs.get(pattern))
        shape = [int(n) for n in gpt.outputs[gpt.index(name)].partition("[")[2][:-1].split(",")]
        assert len(spec) in (0, len(shape)), name
        assert all(n % sizes.get(axis, 1) == 0 for n, axis in zip(shape, spec, strict=False)), name


def test_nothing_is_constrained_where_ops_follow_what_they_read():
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("4xV100-PCIe")
    plan = lm.place(graph, cluster, target="jax", tp=1)
    structure = Structure.of(Dimensions.of(graph))
    labels = plan.layout.labels
    assert read(lm.writers.jax(plan))["AXES"] == {"dp": 4}
    before = constrained(structure, labels)
    # An op that is whole where its input is cut does not follow.
    forward = [node for node in range(structure.n) if structure.stands_for[node] < 0]
    first = next(n for n in forward if labels[0, structure.op[n]] > 0 and n not in before)
    changed = labels.copy()
    changed[0, structure.op[first]] = 0
    assert first in constrained(structure, changed)
    assert constrained(structure, np.zeros_like(labels)) == []


@pytest.mark.parametrize("target", ["jax", "torchtitan"])
def test_a_plan_of_another_kind_is_refused_with_what_plans_for_it(target):
    cluster = lm.Cluster.preset("2xV100-NVLink")
    plan = lm.place(lm.read("example:lenet"), cluster, "round-robin")
    with pytest.raises(lm.InputError, match=rf"cannot be written as {target}: .*--target {target}"):
        getattr(lm.writers, target)(plan)


def test_parts_of_unequal_size_are_refused(gpt):
    uneven = lm.Cluster.preset("2xV100-NVLink").with_speed(0.5, "gpu1")
    plan = lm.place(gpt, uneven, "sharded")
    assert any(axis.shares for axis in plan.recipe.mesh.axes)
    with pytest.raises(lm.InputError, match="devices have unequal shares"):
        lm.writers.jax(plan)


def test_a_mesh_of_jax_has_devices_of_one_family(gpt):
    cluster = lm.Cluster.preset("cpu+gpu")
    with pytest.raises(lm.InputError, match="there is one device"):
        lm.place(gpt, cluster, target="jax")


def test_stages_have_the_layers_that_the_plan_gives_them(gpt):
    plan = lm.place(gpt, lm.Cluster.preset("8xH100-NVLink"), target="torchtitan", pp=2)
    file = read(lm.writers.torchtitan(plan))
    said, parts = file["PARALLELISM"], file["PARALLELISM"]["module_fqns_per_model_part"]
    assert said["pipeline_parallel_degree"] == 2
    assert len(parts) % 2 == 0
    assert parts[0][0] == "tok_embeddings"
    assert parts[-1][-2:] == ["norm", "lm_head"]
    stage = plan.recipe.stage_of(gpt)
    for number, part in enumerate(parts):
        for layer in (word.partition(".")[2] for word in part if word.startswith("layers.")):
            assert stage[gpt.index(f"h.{layer}.fc.weight")] == number
    micro = file["TRAINING"]["local_batch_size"] / said["pipeline_parallel_microbatch_size"]
    assert micro == plan.recipe.micro.n


@pytest.mark.parametrize(
    "asked",
    [{"shard": 4, "tp": 2}, {"replicate": 2, "shard": 2, "pp": 2}, {"replicate": 4, "tp": 2}],
)
def test_state_lies_in_parts_beside_tensor_parallelism_and_stages(gpt, asked):
    plan = lm.place(gpt, lm.Cluster.preset("8xH100-NVLink"), target="torchtitan", **asked)
    said = read(lm.writers.torchtitan(plan))["PARALLELISM"]
    of = {"replicate": "data_parallel_replicate", "shard": "data_parallel_shard",
          "tp": "tensor_parallel", "pp": "pipeline_parallel"}  # fmt: skip
    assert {name: said[f"{word}_degree"] for name, word in of.items()} == dict.fromkeys(
        of, 1
    ) | asked
    assert ("fsdp_reshard_after_forward" in said) == ("shard" in asked)
    # All devices together have as many replicas of all state: norms alone are not cut.
    held, once = int(plan.program.graph.param_bytes.sum()), int(gpt.param_bytes.sum())
    assert 1 <= held / once / asked.get("replicate", 1) < 1.02


def test_stages_in_a_v_are_given_by_torchtitans_name(gpt):
    cluster = lm.Cluster.preset("8xH100-NVLink")
    plan = lm.place(gpt, cluster, target="torchtitan", pp=2, shard=2, schedule="zb-v")
    said = read(lm.writers.torchtitan(plan))["PARALLELISM"]
    assert said["pipeline_parallel_schedule"] == "ZBVZeroBubble"
    assert len(said["module_fqns_per_model_part"]) == 4
    stage, on = plan.recipe.stage_of(gpt)[plan.program.serves], plan.running_devices
    devices = [set(on[(stage == k) & (plan.program.micro >= 0)].tolist()) for k in range(4)]
    assert devices[0] == devices[3]
    assert devices[1] == devices[2]
    assert not devices[0] & devices[1]
    with pytest.raises(lm.InfeasibleError):
        lm.place(gpt, cluster, target="torchtitan", pp=1, schedule="zb-v")


def test_selective_checkpointing_keeps_what_products_and_attention_give(gpt):
    cluster = lm.Cluster.preset("8xH100-NVLink")
    plans = {
        again: lm.place(gpt, cluster, target="torchtitan", shard=8, recompute=again)
        for again in (False, "selective", True)
    }
    classes = {False: "= None", "selective": "= SelectiveAC.Config()", True: "= FullAC.Config()"}
    for again, plan in plans.items():
        assert f"activation_checkpoint {classes[again]}" in lm.writers.torchtitan(plan)
    peaks, steps = zip(*((p.memory.peak.max(), p.makespan) for p in plans.values()), strict=True)
    assert peaks[0] > peaks[1] > peaks[2]
    assert steps[0] < steps[1] < steps[2]
    made = {gpt.kinds[plans["selective"].program.serves[op]] for op, name in
            enumerate(plans["selective"].program.graph.names) if "@again" in name}  # fmt: skip
    assert any("gelu" in kind for kind in made)
    assert not any(word in kind for kind in made for word in ("addmm", "bmm", "attention"))


def test_other_recomputation_is_refused(gpt):
    plan = lm.place(gpt, lm.Cluster.preset("8xH100-NVLink"), target="fsdp", recompute=True)
    recipe = replace(plan.recipe, recompute=("h.0",))
    other = lm.place(gpt, plan.cluster, recipe=recipe)
    assert "FullAC.Config()" in lm.writers.torchtitan(plan)
    with pytest.raises(lm.InputError, match="neither all layers nor what selective"):
        lm.writers.torchtitan(other)
