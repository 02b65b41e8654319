"""Servers of language models: one plan, in the words of each."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placed import by_module
from stacks import CPU_AND_GPUS, stack

import loadmaster as lm
from loadmaster.base.errors import InputError

#: Of each server: its keys for tensor, pipeline and expert parallelism, and the variable or the key
#: that has the layers of each stage. SGLang's are of 0.5.23, TensorRT-LLM's of 1.2.
SERVERS = {
    "vllm": ("tensor-parallel-size", "pipeline-parallel-size", None, "VLLM_PP_LAYER_PARTITION"),
    "sglang": ("tp-size", "pp-size", "ep-size", "SGLANG_PP_LAYER_PARTITION"),
    "tensorrt-llm": (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "moe_expert_parallel_size",
        "pp_partition",
    ),
}
COMMANDS = {
    "vllm": "vllm serve MODEL --config vllm.yaml",
    "sglang": "python -m sglang.launch_server --model-path MODEL --config sglang.yaml",
    "tensorrt-llm": "trtllm-serve MODEL --config trtllm.yaml",
}


def read(server, text):
    """The keys of a file, and the layers of each stage where it says them."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    keys = {name: json.loads(value) for name, value in (line.split(": ") for line in lines)}
    command = next(line for line in text.splitlines() if line.endswith(COMMANDS[server]))
    before = command.removeprefix("# ").removesuffix(COMMANDS[server]).strip()
    layers = keys.pop(SERVERS[server][3], None)
    if before:
        variable, _, counts = before.partition("=")
        assert variable == SERVERS[server][3]
        layers = [int(count) for count in counts.split(",")]
    return keys, layers


def write(server, plan, **options):
    return getattr(lm.writers, server.replace("-", "_"))(plan, **options)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=4, max_size=4).filter(lambda counts: sum(counts) > 0))
def test_all_have_the_layers_of_each_stage(counts):
    order = [device for device, count in enumerate(counts) for _ in range(count)]
    where = {"": 0, "emb": order[0], "head": order[-1]}
    where |= {f"layers.{i}": device for i, device in enumerate(order)}
    plan = by_module(stack(len(order)), where, CPU_AND_GPUS)
    runs = [count for count in counts if count]
    for server, (tp, pp, _, _) in SERVERS.items():
        keys, layers = read(server, write(server, plan))
        assert keys[tp] == 1
        assert keys[pp] == len(runs)
        assert layers == (None if len(set(runs)) == 1 else runs)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("apart", [False, True])
def test_experts_are_in_parts_or_apart(server, apart):
    graph, cluster = lm.read("example:mixtral"), lm.Cluster.preset("8xH100-NVLink")
    plan = lm.place(graph, cluster, target=server, tp=2, pp=3, expert_parallel=apart)
    keys, layers = read(server, write(server, plan))
    tp, pp, ep, _ = SERVERS[server]
    assert (keys[tp], keys[pp], sum(layers), max(layers) - min(layers)) == (2, 3, 32, 1)
    if ep is None:
        assert keys.get("enable-expert-parallel", False) == apart
    else:
        assert keys.get(ep, 1) == (2 if apart else 1)


@pytest.mark.parametrize("server", SERVERS)
def test_a_device_has_one_run_of_layers(server):
    twice = by_module(stack(), {"": 0, "layers.1": 1, "layers.3": 1, "head": 1})
    with pytest.raises(InputError, match=r"one run of layers.*: gpu0 has 2, gpu1 has 2\. What"):
        write(server, twice)
