"""Targets that divide a model by layers: where layers come to lie, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from stacks import CPU_AND_GPUS, stack
from written import flags, settings

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.rules.layer_list import LayerList


def attending(n_layers, **options):
    """A stack whose layers have attention in them, by name."""
    rows = stack(n_layers, **options).to_document()
    kinds = ["aten.attention" if name.startswith("b") else kind for name, kind in
             zip(rows["ops"]["name"], rows["ops"]["kind"], strict=True)]  # fmt: skip
    rows["ops"]["kind"] = kinds
    return lm.OpGraph.from_document(rows)


def cluster(**memory):
    """A CPU and GPUs with so many bytes."""
    devices = [replace(d, memory=memory[d.name]) for d in CPU_AND_GPUS.devices if d.name in memory]
    links = [lm.Link(a.name, b.name, 1e10) for a in devices for b in devices if a != b]
    return lm.Cluster(devices, links)


def of_layers(plan):
    """The device of each layer, of the embedding and of the head, by name."""
    graph = plan.graph
    n = sum(name.startswith("add") for name in graph.names)
    return (
        [plan.device(f"add{i}") for i in range(n)],
        plan.device("embedding"),
        plan.device("logits"),
    )


def test_the_places_of_layers():
    found = LayerList.of(stack(3))
    assert (found.name, found.numbers, found.begins.tolist()) == ("layers", (0, 1, 2), [1, 4, 7])
    assert found.layer.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2]


def test_layers_apart_are_refused():
    graph = stack(3)
    rows = graph.to_document()
    rows["ops"]["module"][graph.index("a1")] = "layers.0.a"
    rows["ops"]["module"][graph.index("b0")] = "layers.1.b"
    with pytest.raises(InputError, match="do not run one after another: 0 is apart"):
        LayerList.of(lm.OpGraph.from_document(rows)).begins  # noqa: B018


@pytest.mark.parametrize("target", ["vllm", "llama-cpp"])
def test_what_is_planned_is_written(target):
    plan = lm.place(attending(6), CPU_AND_GPUS, target=target)
    if target == "vllm":
        keys, _ = settings(lm.writers.vllm(plan))
        assert keys["pipeline-parallel-size"] == len(set(plan.devices.tolist()))
    else:
        assert sum(row["layers"] for row in lm.writers.llama_cpp(plan)["stages"]) == 6


def test_llama_cpp_has_the_fewest_layers_on_the_cpu_that_gpus_have_no_room_for():
    # GPUs hold some layers and what these compute, not all; the last one the head too.
    plan = lm.place(
        attending(6), cluster(cpu=1 << 40, gpu0=700, gpu1=800),
        target="llama-cpp", gpus=2,
    )  # fmt: skip
    layers, embedding, head = of_layers(plan)
    assert embedding == "cpu"
    assert head == layers[-1] == "gpu1"
    on_cpu = layers.count("cpu")
    assert 0 < on_cpu < 6
    assert layers == sorted(layers)
    arguments = lm.writers.llama_cpp(plan)["arguments"]
    assert arguments[arguments.index("--n-gpu-layers") + 1] == str(6 - on_cpu + 1)


def test_what_nothing_holds_is_refused():
    with pytest.raises(InfeasibleError, match="do not hold"):
        lm.place(attending(6), cluster(gpu0=300, gpu1=300), target="llama-cpp")


def test_vllm_balances_runs_where_batches_follow_each_other():
    graph = attending(6)
    plan = lm.place(graph, lm.Cluster.mesh(3, memory="1GiB", bandwidth=1e12), target="vllm", pp=3)
    layers, *_ = of_layers(plan)
    assert [layers.count(f"gpu{i}") for i in range(3)] == [2, 2, 2]
    assert settings(lm.writers.vllm(plan))[0]["pipeline-parallel-size"] == 3


@pytest.mark.parametrize(
    ("target", "graph", "options", "says"),
    [
        ("vllm", stack(4), {}, "takes the inference of a transformer.*no attention in.*'layers'"),
        ("vllm", attending(4, train=True), {}, "of a training step"),
        ("vllm", attending(4), {"layers": "towers"}, "'towers' is no list of layers"),
        ("vllm", attending(4), {"expert_parallel": True}, "the model has no routed experts"),
        ("vllm", attending(4), {"tp": 2}, "does not say which tensors have heads"),
        ("vllm", attending(2), {"pp": 3}, "pp is 3, and a stage has one of the 2 layers or more"),
        ("vllm", attending(4), {"pp": 5}, "pp 5 takes 5 devices, and there are 4 to use"),
        ("llama-cpp", attending(4), {"gpus": 5}, "gpus is 5: wants an integer from 0 to 4"),
        ("llama-cpp", stack(4, train=True), {}, "takes the inference of a transformer"),
        ("megatron", attending(4), {}, "takes a training step of a transformer.*no backward"),
        ("onnx", stack(4, train=True), {}, "takes the inference of an ONNX model"),
        ("openvino", stack(4, train=True), {}, "takes the inference of an ONNX model"),
    ],
)
def test_other_kinds_are_refused(target, graph, options, says):
    with pytest.raises(InputError, match=says):
        lm.place(graph, lm.Cluster.mesh(4, memory="1GiB", bandwidth=1e10), target=target, **options)


def of_framework(framework, **options):
    """A stack that says where it is from."""
    rows = stack(4, **options).to_document()
    return lm.OpGraph.from_document({**rows, "meta": {"framework": framework}})


@pytest.mark.parametrize(
    "target",
    ["ddp", "deepspeed", "device-map", "dtensor", "eager", "fsdp", "graph", "pipelining"],
)
def test_pytorch_runs_models_of_pytorch(target):
    with pytest.raises(InputError, match=f"target '{target}' takes .*'stack' is of stablehlo"):
        lm.place(of_framework("stablehlo", train=True), CPU_AND_GPUS, target=target)


@pytest.mark.parametrize("target", ["onnx", "openvino"])
def test_runtimes_of_onnx_run_onnx(target):
    with pytest.raises(InputError, match=r"inference of an ONNX model.* is of torch"):
        lm.place(of_framework("torch 2.15.0"), CPU_AND_GPUS, target=target)
    assert lm.place(of_framework("onnx pytorch"), CPU_AND_GPUS, target=target).target == target


@pytest.mark.parametrize("target", ["vllm", "llama-cpp"])
def test_a_model_without_words_is_refused(target):
    rows = attending(4).to_document()
    rows["ops"]["output"] = ["f32[8,3,32,32]" if k == "input" else "" for k in rows["ops"]["kind"]]
    with pytest.raises(InputError, match="the model reads no words"):
        lm.place(lm.OpGraph.from_document(rows), CPU_AND_GPUS, target=target)


def words_of(plan, kind, module):
    """Labels on ``tp`` of the forward ops of a kind in the layers' modules of a name."""
    graph, words = plan.graph, plan.recipe.words(plan.graph)["tp"]
    rows = zip(words, graph.kinds, graph.modules, graph.phases, strict=True)
    return {w for w, k, m, p in rows if k.startswith(kind) and m.endswith(module) and p == "f"}


def test_megatron_cuts_columns_then_rows():
    graph = lm.read("example:gpt3-330m")
    plan = lm.place(graph, lm.Cluster.preset("8xH100-NVLink"), target="megatron", tp=8, pp=1)
    assert words_of(plan, "aten.addmm", ".fc") == {"column"}
    assert words_of(plan, "aten.addmm", ".proj") == {"contraction"}
    assert words_of(plan, "aten.addmm", ".c_attn") == {"head"}
    specs = dict(zip(graph.names, plan.recipe.words(graph)["tp"], strict=True))
    assert specs["h.3.c_proj.weight"] == specs["h.3.proj.weight"] == "Shard(1)"
    assert specs["h.3.fc.weight"] == "Shard(0)"
    words = flags(lm.writers.megatron(plan))
    assert words[words.index("--tensor-model-parallel-size") + 1] == "8"
    assert words[words.index("--micro-batch-size") + 1] == "8"


def test_a_size_that_does_not_divide_the_heads_has_no_plan():
    graph, some = lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink")
    with pytest.raises(InputError, match="the 16 heads of a layer"):
        lm.place(graph, some, target="megatron", tp=3, pp=1)


def test_sub_models_are_planned_for_their_own_step():
    """What is chosen is no slower in segments than what any of the methods gives."""
    from loadmaster.plans.segments import Segments

    graph = lm.read("example:googlenet")
    costs = next(iter(graph.time.values()))[:, None]
    some = lm.Cluster.preset("4xV100-PCIe")
    plan = lm.place(graph, some, target="onnx", costs=costs)
    step = Segments.cut(plan).step
    for method in ("single", "layers", "heft"):
        assert step <= Segments.cut(lm.place(graph, some, method, costs=costs)).step * (1 + 1e-9)
    assert step < plan.single
    in_turn = lm.place(graph, some, target="openvino", costs=costs)
    assert np.unique(in_turn.devices).size == 1
