"""Plans that methods make, in the words of targets that they were not made for."""

from __future__ import annotations

from functools import cache

import pytest
from written import constants

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.writers.export import export


@cache
def plan_by(method):
    """A plan for GPT-330M on eight H100s."""
    options = {"pipeline": {"stages": 4, "micro_batches": 8, "schedule": "1f1b"}}
    graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink")
    return lm.place(graph, cluster, method, **options.get(method, {}))


@pytest.mark.parametrize(
    ("method", "target", "says"),
    [
        ("fsdp", "fsdp", None),
        ("fsdp", "dtensor", None),
        ("fsdp", "simplefsdp", "it does not gather parameters one by one"),
        ("fsdp", "megatron", "parameters are in parts among replicas: 'wpe', .* and 289 more"),
        ("data-parallel", "ddp", None),
        ("data-parallel", "megatron", None),
        ("data-parallel", "vllm", "8 replicas share one batch.*--data-parallel-size"),
        ("data-parallel", "sglang", "8 replicas share one batch.*--dp-size"),
        ("data-parallel", "tensorrt-llm", "8 replicas share one batch.*a server each"),
        ("pipeline", "megatron", "several stages each: h.6 .*on stage 0.* on stage 1"),
        ("pipeline", "dtensor", "it is a pipeline of stages"),
        ("pipeline", "fsdp", "it is a pipeline of stages"),
        ("pipeline", "deepspeed", "it is a pipeline of stages"),
        ("sharded", "dtensor", "updates are shared among replicas, and parameters are whole"),
        ("sharded", "megatron", "ops are shared otherwise than a replica has: .* more"),
    ],
)
def test_what_comes_to_the_same_is_written_and_else_all_that_is_in_the_way(method, target, says):
    plan = plan_by(method)
    if says is None:
        assert export(plan, target)
        return
    with pytest.raises(InputError, match=says) as caught:
        export(plan, target)
    assert str(caught.value).startswith(f"the plan by {method} cannot be written as {target}: ")
    assert str(caught.value).endswith(f"--target {target}")


@pytest.mark.parametrize("target", ["accelerate", "dtensor", "fsdp", "torchtitan"])
def test_units_of_modules_are_not_single_parameters(target):
    graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink")
    plan = lm.place(graph, cluster, target="simplefsdp", replicas=2)
    with pytest.raises(InputError, match="parameters are gathered one by one"):
        export(plan, target)


def test_units_are_gathered_ahead_in_the_order_in_which_they_run():
    graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink")
    file = export(lm.place(graph, cluster, target="fsdp", replicas=2))
    assert [*constants(file)["UNITS"]] == [f"h.{layer}" for layer in range(24)]
    assert "unit.set_modules_to_forward_prefetch(units[at + 1 : at + 3])" in file


@pytest.mark.parametrize("target", ["deepspeed", "fsdp"])
def test_one_stage_that_accumulates_is_no_pipeline(target):
    sizes = {"tp": 1, "dp": 2, "pp": 1, "micro_batches": 2}
    cluster = lm.Cluster.preset("8xH100-NVLink").subset(range(2))
    plan = lm.place(lm.read("example:gpt3-330m"), cluster, target="megatron", **sizes)
    with pytest.raises(InputError, match="accumulates gradients over 2 micro-batches"):
        export(plan, target)


@pytest.mark.parametrize("target", ["ddp", "deepspeed", "dtensor", "fsdp"])
def test_stages_of_several_devices_are_no_replicas(target):
    """Their layout is that inside of a stage, which alone would be taken."""
    cluster = lm.Cluster.preset("4xV100-PCIe").with_memory("80GiB")
    sizes = {"tp": 1, "dp": 2, "pp": 2, "micro_batches": 2, "virtual": 1}
    plan = lm.place(lm.read("example:gpt3-330m"), cluster, target="megatron", **sizes)
    assert plan.layout is not None
    with pytest.raises(InputError, match="stage"):
        export(plan, target)
