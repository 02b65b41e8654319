"""Plans for systems say their parallelism: sizes that were asked for, devices, layers."""

from __future__ import annotations

import pytest

import loadmaster as lm
from loadmaster.model.parallelism import Parallelism

TRAINED = ("example:gpt3-330m", "8xH100-NVLink")
SERVED = ("example:mixtral", "8xMI300X")
nightly = pytest.mark.nightly
GRID = {"tp": 2, "pp": 2, "dp": 2, "micro_batches": 4}


@pytest.mark.parametrize(
    ("of", "target", "options", "words"),
    [
        (TRAINED, "ddp", {"replicas": 4, "optimizer": "replicated"}, "DDP over 4"),
        (TRAINED, "ddp", {"optimizer": "sharded"}, "ZeRO-1 over 8"),
        (TRAINED, "fsdp", {"shard_size": 4}, "HSDP 2 x 4"),
        pytest.param(TRAINED, "fsdp", {"recompute": True, "shard_size": 8},
                     "FSDP over 8, full recomputation of 24 modules", marks=nightly),
        pytest.param(TRAINED, "deepspeed", {"stage": 1}, "ZeRO-1 over 8", marks=nightly),
        (TRAINED, "deepspeed", {"stage": 2}, "ZeRO-2 over 8"),
        (TRAINED, "dtensor", {"tp": 2, "shard": 4}, "TP 2 x FSDP 4"),
        (TRAINED, "megatron", {**GRID, "virtual": 1, "recompute": "core_attn,layernorm"},
         "TP 2 x PP 2 x DP 2, ZeRO-1, 1F1B, 4 micro-batches, "
         "selective recomputation (core_attn, layernorm)"),
        (TRAINED, "megatron", {**GRID, "virtual": 2, "distributed_optimizer": False},
         "TP 2 x PP 2 x DP 2, interleaved 1F1B, 2 virtual stages per device, 4 micro-batches"),
        (TRAINED, "torchtitan", {"tp": 2, "shard": 2, "replicate": 2, "recompute": "selective"},
         "TP 2 x HSDP (2 x 2), selective recomputation"),
        (TRAINED, "torchtitan", {"pp": 4, "shard": 1, "schedule": "zb-v", "micro_batches": 4},
         "PP 4 x DP 2, zero bubble in a V, 2 virtual stages per device, 4 micro-batches"),
        (SERVED, "vllm", {"tp": 4, "expert_parallel": True}, "TP 4, EP 4 within TP"),
        pytest.param(SERVED, "vllm", {"tp": 2, "pp": 4}, "TP 2 x PP 4", marks=nightly),
        (SERVED, "vllm", {"tp": 1, "pp": 4}, "PP 4"),
        (SERVED, "sglang", {"tp": 4, "pp": 2, "expert_parallel": False}, "TP 4 x PP 2"),
        (SERVED, "tensorrt-llm", {"tp": 2, "expert_parallel": True}, "TP 2, EP 2 within TP"),
    ],
)  # fmt: skip
def test_a_plan_says_what_was_chosen(of, target, options, words):
    graph, cluster = lm.read(of[0]), lm.Cluster.preset(of[1])
    plan = lm.place(graph, cluster, target=target, costs="roofline", **options)
    parallelism = plan.parallelism
    assert str(parallelism) == words
    if plan.recipe is not None:
        assert plan.recipe.mesh.size == parallelism.devices
    else:
        assert len(set(plan.running_devices.tolist())) == parallelism.devices
    if target in ("megatron", "torchtitan", "vllm") and parallelism.layers:
        layers = {module.split(".")[1] for module in graph.modules if module[:2] == "h."}
        assert sum(parallelism.layers) == len(layers or [*range(32)])
    again = lm.Plan.from_document(plan.to_document())
    assert again.parallelism == parallelism


def test_one_device_is_told_as_such():
    plan = lm.place("example:lenet", "2xV100-NVLink", target="ddp", replicas=1)
    assert plan.parallelism == Parallelism()
