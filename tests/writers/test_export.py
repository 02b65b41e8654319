"""What writers write, where no other system is needed to tell: refusals, hand-checked documents."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placed import by_module, with_devices
from stacks import CPU_AND_GPUS, stack
from written import constants, flags, settings

import loadmaster as lm
from loadmaster.base.errors import InputError, MissingExtraError
from loadmaster.cli import main
from loadmaster.plans.segments import Segments
from loadmaster.systems.registry import SYSTEMS, planned_for
from loadmaster.systems.shared.refusal import refusal
from loadmaster.writers.export import export, forms

HALVES = {"": 0, "layers.2": 1, "layers.3": 1, "head": 1}


# ---- by module --------------------------------------------------------------------------------


def test_a_device_map_takes_the_largest_modules():
    graph = stack()
    assert lm.writers.device_map(by_module(graph, {"": 0})) == {"": 0}
    halves = {key: device + 1 for key, device in HALVES.items()}
    found = lm.writers.device_map(by_module(graph, halves, CPU_AND_GPUS))
    assert list(found.items()) == [
        ("emb", 0), ("layers.0", 0), ("layers.1", 0), ("layers.2", 1), ("layers.3", 1), ("head", 1),
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"store the weights there.*ops run on: cpu\. What plans"):
        lm.writers.device_map(by_module(graph, HALVES, CPU_AND_GPUS))
    late = {"": 2, "emb": 0, "layers": 1}
    assert lm.writers.device_map(by_module(graph, late)) == {"emb": 0, "layers": 1, "head": 2}


def test_the_root_of_a_traced_model_is_left_out():
    graph = stack(prefix="m.")
    plan = by_module(graph, {f"m.{k}".rstrip("."): v for k, v in HALVES.items()} | {"": 0})
    assert lm.writers.device_map(plan, root="m")["layers.2"] == 1
    written = lm.writers.pipelining(plan, root="m")
    assert constants(written)["SPLIT_SPEC"] == {"layers.2": "BEGINNING"}
    with pytest.raises(InputError, match="no op of 'stack' is in a module below 'n'"):
        lm.writers.device_map(plan, root="n")


def test_a_split_module_is_refused_by_name_with_the_constraint():
    plan = by_module(stack(), HALVES | {"layers.1.b": 1})
    with pytest.raises(InputError, match=r"what is on another device: layers\.1\. .*--target"):
        lm.writers.device_map(plan)
    for target in ("vllm", "megatron", "llama-cpp"):
        says = rf"several devices each: layers\.1 \('a1' on gpu0, 'b1' on gpu1\).*--target {target}"
        with pytest.raises(InputError, match=says):
            export(plan, target)


def test_a_cut_where_no_module_begins_or_ends_is_refused():
    rows = stack().to_document()
    graph = lm.OpGraph.from_document(rows)
    rows["ops"]["module"][graph.index("b1")] = "layers.1"
    graph = lm.OpGraph.from_document(rows)
    where = [*by_module(graph, HALVES).devices]
    where[graph.index("add1")] = 1
    says = r"between: 'b1' and 'add1' in 'layers\.1'\..*--target pipelining"
    with pytest.raises(InputError, match=says):
        lm.writers.pipelining(with_devices(graph, where))


def test_a_backward_elsewhere_is_refused():
    graph = stack(train=True)
    devices = by_module(graph, HALVES).devices.copy()
    assert lm.writers.device_map(with_devices(graph, devices))["layers.2"] == 1
    devices[graph.index("grad_b2")] = 0
    plan = with_devices(graph, devices)
    with pytest.raises(InputError, match=r"or its backward, .*: layers\.2"):
        lm.writers.device_map(plan)
    with pytest.raises(InputError, match=r"elsewhere: 'grad_b2' on gpu0\..*--target pipelining"):
        lm.writers.pipelining(plan)


def test_tied_parameters_apart_are_refused():
    plan = by_module(stack(tied=True), HALVES)
    with pytest.raises(InputError, match=r"would untie them: 'emb\.weight' on gpu0, gpu1"):
        lm.writers.device_map(plan)
    with pytest.raises(InputError, match=r"copies would drift apart: emb\.weight"):
        lm.writers.pipelining(plan)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("method", ["round-robin", "random"])
def test_one_message_has_all_that_is_in_the_way_and_the_one_command(method, tied):
    graph, cluster = stack(6, tied=tied), lm.Cluster.mesh(3, memory="1GiB", bandwidth=1e10)
    with pytest.raises(InputError) as caught:
        lm.writers.device_map(lm.place(graph, cluster, method))
    said = str(caught.value)
    assert "modules are divided" in said
    assert tied or "would untie them" not in said
    target = re.search(r"--target ([\w-]+)$", said)[1]
    assert lm.writers.device_map(lm.place(graph, cluster, target=target)) == {"": 0}


def test_a_device_has_one_stage():
    plan = by_module(stack(), HALVES | {"head": 0})
    assert lm.writers.device_map(plan)["head"] == 0
    with pytest.raises(InputError, match=r"of 3 runs of modules: gpu0 2 runs\..*--target"):
        lm.writers.pipelining(plan)


def test_everything_in_the_way_of_a_pipeline_is_said_at_once():
    rows = stack(tied=True, train=True).to_document()
    graph = lm.OpGraph.from_document(rows)
    rows["ops"]["module"][graph.index("b1")] = "layers.1"
    graph = lm.OpGraph.from_document(rows)
    devices = by_module(graph, HALVES).devices.copy()
    devices[[graph.index("add1"), graph.index("grad_b2")]] = 1, 0
    with pytest.raises(InputError) as refused:
        lm.writers.pipelining(with_devices(graph, devices))
    for words in ("'b1' and 'add1' in 'layers.1'", "drift apart: emb.weight", "'grad_b2' on gpu0"):
        assert words in str(refused.value)
    assert str(refused.value).count("--target pipelining") == 1


def test_a_pipeline_may_end_a_module():
    graph = stack(2)
    # What the model itself does behind layer 0 is on the second device, and begins no module.
    plan = by_module(graph, {"": 0, "layers.1": 1, "head": 1})
    spec = constants(lm.writers.pipelining(plan))["SPLIT_SPEC"]
    assert spec == {"layers.1": "BEGINNING"}
    rows = graph.to_document()
    rows["ops"]["module"][graph.index("a1")] = ""
    moved = lm.OpGraph.from_document(rows)
    devices = plan.devices.copy()
    written = lm.writers.pipelining(with_devices(moved, devices))
    assert constants(written)["SPLIT_SPEC"] == {"layers.0": "END"}


# ---- by layer ---------------------------------------------------------------------------------


def llama_layers(arguments, n_layers):
    """Where llama.cpp puts layers and output: src/llama-model.cpp, load_tensors."""
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    on_gpu = int(given["--n-gpu-layers"])
    split = np.cumsum(
        [float(x) for x in given.get("--tensor-split", "1").split(",")], dtype=np.float32
    )
    split /= split[-1]
    names = given.get("--device", "").split(",")
    start, active = max(n_layers + 1 - on_gpu, 0), min(on_gpu, n_layers + 1)
    return [
        "CPU" if i < start or i - start >= active
        else names[int(np.searchsorted(split, np.float32(i - start) / np.float32(active), "right"))]
        for i in range(n_layers + 1)
    ]  # fmt: skip


@given(st.lists(st.integers(0, 6), min_size=4, max_size=4).filter(lambda c: sum(c) > 0))
def test_layers_go_where_the_plan_has_them(counts):
    order = [device for device, count in enumerate(counts) for _ in range(count)]
    where = {f"layers.{i}": device for i, device in enumerate(order)}
    plan = by_module(
        stack(len(order)), {"": 0, "emb": order[0], "head": order[-1]} | where, CPU_AND_GPUS
    )
    runs = [str(c) for c in counts if c]
    keys, variables = settings(lm.writers.vllm(plan))
    assert keys == {"tensor-parallel-size": 1, "pipeline-parallel-size": len(runs)}
    is_even = len(set(runs)) == 1
    assert variables == ({} if is_even else {"VLLM_PP_LAYER_PARTITION": ",".join(runs)})
    words = flags(lm.writers.megatron(plan))
    assert words[words.index("--pipeline-model-parallel-size") + 1] == str(len(runs))
    assert words[words.index("--num-layers") + 1] == str(len(order))
    assert is_even == ("--pipeline-model-parallel-layout" not in words)
    if not is_even:
        layout = words[words.index("--pipeline-model-parallel-layout") + 1]
        assert layout == "E" + "|".join(f"t*{c}" for c in runs) + "L"
    names = ["CPU", "CUDA0", "CUDA1", "CUDA2"]
    found = llama_layers(lm.writers.llama_cpp(plan)["arguments"], len(order))
    assert found == [names[d] for d in [*order, order[-1]]]


def test_a_device_that_comes_back():
    plan = by_module(stack(), {"": 0, "layers.1": 1, "layers.3": 1, "head": 1})
    words = flags(lm.writers.megatron(plan))
    assert words[words.index("--num-layers-per-virtual-pipeline-stage") + 1] == "1"
    assert words[words.index("--pipeline-model-parallel-size") + 1] == "2"
    for writer in (lm.writers.vllm, lm.writers.llama_cpp):
        with pytest.raises(InputError, match=r"one run of layers.*: gpu0 has 2, gpu1 has 2\."):
            writer(plan)
    uneven = by_module(
        stack(5), {"": 0, "layers.1": 1, "layers.2": 2, "layers.3": 1, "layers.4": 0}
    )
    with pytest.raises(InputError, match=r"do not take turns.*--target megatron"):
        lm.writers.megatron(uneven)


def test_the_head_with_the_last_layer():
    plan = by_module(stack(), HALVES | {"head": 0})
    with pytest.raises(
        InputError, match=r"behind the layers.*on gpu1: 'logits' on gpu0\..*--target vllm"
    ):
        lm.writers.vllm(plan)


def test_cpu_layers_behind_gpu_layers():
    plan = by_module(stack(), {"": 1, "layers.3": 0, "head": 0}, CPU_AND_GPUS)
    with pytest.raises(InputError, match=r"keeps the first layers on the CPU.*behind: cpu\."):
        lm.writers.llama_cpp(plan)


def test_more_gpus_than_llama_cpp_takes():
    for n in (15, 16):
        layers = {f"layers.{i}": i for i in range(n)}
        cluster = lm.Cluster.mesh(n, memory="1TiB", bandwidth=1e10)
        plan = by_module(stack(n), {"": 0, "head": n - 1} | layers, cluster)
        if n == 15:
            assert lm.writers.llama_cpp(plan)["arguments"][-1] == ",".join(["1"] * 14 + ["2"])
            continue
        with pytest.raises(InputError, match="15 GPUs at most, and the plan has layers on 16"):
            lm.writers.llama_cpp(plan)


def test_lists_of_layers_are_named():
    with pytest.raises(InputError, match="'towers' is no list of layers; there are 'layers'"):
        lm.writers.vllm(by_module(stack(), HALVES), layers="towers")
    flat = lm.OpGraph(
        {"name": ["a"], "module": ["only"], "time": {"*": [1.0]}}, {"src": [], "dst": []}
    )
    with pytest.raises(InputError, match="no list of layers"):
        lm.writers.vllm(with_devices(flat, [0]))
    bare = lm.OpGraph({"name": ["a"], "time": {"*": [1.0]}}, {"src": [], "dst": []})
    with pytest.raises(InputError, match="no list of layers"):
        lm.writers.vllm(with_devices(bare, [0]))


# ---- max_memory -------------------------------------------------------------------------------


def test_max_memory_is_the_memory():
    cluster = lm.writers.max_memory(
        CPU_AND_GPUS, {0: "10GiB", "2": "500MB", "cpu": "30GiB", 1: 0, "disk": 0}
    )
    assert [(d.name, d.memory) for d in cluster.devices] == [
        ("cpu", 30 << 30), ("gpu0", 10 << 30), ("gpu2", 500_000_000),
    ]  # fmt: skip
    assert lm.writers.max_memory(CPU_AND_GPUS, {0: "8Gb"}).memory == [10**9]


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({3: "1GiB"}, "speaks of 3"),
        ({0: "much"}, "max_memory of 0 is 'much'"),
        ({0: -1}, "is -1"),
        ({0: True}, "is True"),
        ({0: "1GiB", "disk": "1TB"}, "is '1TB'"),
        ({0: "1GiB", "disk": "1GB"}, "speaks of 'disk'"),
        ({0: 0}, "leaves no device"),
        ([1], "wants an object"),
    ],
)
def test_max_memory_refuses(limits, says):
    with pytest.raises(InputError, match=re.escape(says)):
        lm.writers.max_memory(CPU_AND_GPUS, limits)


# ---- drawings ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lenet_plan():
    return lm.place(lm.read("example:lenet"), lm.Cluster.preset("4xV100-PCIe"), "round-robin")


def test_networkx_reads_the_graphml(lenet_plan, tmp_path):
    networkx = pytest.importorskip("networkx", reason="needs the extra networkx")
    lm.writers.graphml(lenet_plan, tmp_path / "plan.graphml")
    read = networkx.read_graphml(tmp_path / "plan.graphml", force_multigraph=True)
    graph = lenet_plan.graph
    assert (len(read), read.number_of_edges()) == (graph.n_ops, graph.n_edges)
    for i, name in enumerate(graph.names):
        node = read.nodes[str(i)]
        assert (node["name"], node["device"]) == (name, lenet_plan.device(i))
        assert node["finish"] == lenet_plan.schedule.finish[i]
    moved = sorted(data["bytes"] for _, _, data in read.edges(data=True))
    assert moved == sorted(graph.bytes.tolist())


def test_graphviz_reads_the_dot(lenet_plan, tmp_path):
    pydot = pytest.importorskip("pydot", reason="needs pydot, a parser of DOT")
    text = lm.writers.dot(lenet_plan, tmp_path / "plan.dot")
    assert (tmp_path / "plan.dot").read_text() == text
    (read,) = pydot.graph_from_dot_data(text)
    assert len(read.get_edges()) == lenet_plan.graph.n_edges
    labels = {n.get_label() for n in read.get_nodes() if n.get_label()}
    assert len([n for n in read.get_nodes() if n.get_name().isdecimal()]) == lenet_plan.graph.n_ops
    assert any("convolution" in label and "gpu" in label for label in labels)


def test_the_overlay_fits_the_graph_of_model_explorer(lenet_plan, tmp_path):
    overlay = lm.writers.model_explorer(lenet_plan, tmp_path / "overlay.json")
    drawn = lm.writers.model_explorer_graph(lenet_plan, tmp_path / "graph.json")
    assert json.loads((tmp_path / "graph.json").read_text()) == drawn
    (graph,) = drawn["graphs"]
    ids = [node["id"] for node in graph["nodes"]]
    assert set(overlay["results"]) == set(ids)
    assert len(set(ids)) == len(ids)
    assert all(e["sourceNodeId"] in set(ids) for n in graph["nodes"] for e in n["incomingEdges"])
    colours = {(r["value"], r["bgColor"]) for r in overlay["results"].values()}
    assert len(colours) == len({value for value, _ in colours}) == 4


def test_model_explorer_takes_both(lenet_plan):
    builder = pytest.importorskip(
        "model_explorer.node_data_builder", reason="needs ai-edge-model-explorer"
    )
    from model_explorer import graph_builder

    written = lm.writers.model_explorer(lenet_plan)
    results = {k: builder.NodeDataResult(**v) for k, v in written["results"].items()}
    data = builder.GraphNodeData(results=results, name=written["name"])
    again = json.loads(data.to_json_string())
    assert again["results"] == written["results"]
    drawn = lm.writers.model_explorer_graph(lenet_plan)["graphs"][0]
    nodes = [
        graph_builder.GraphNode(
            **{k: v for k, v in node.items() if k not in ("attrs", "incomingEdges")},
            attrs=[graph_builder.KeyValue(**a) for a in node["attrs"]],
            incomingEdges=[graph_builder.IncomingEdge(**e) for e in node["incomingEdges"]],
        )
        for node in drawn["nodes"]
    ]
    assert len(graph_builder.Graph(id=drawn["id"], nodes=nodes).nodes) == lenet_plan.graph.n_ops


# ---- FX and TensorFlow documents --------------------------------------------------------------


def test_fx_annotations_follow_the_plan(lenet_plan, tmp_path):
    written = lm.writers.fx(lenet_plan, tmp_path / "fx.json", names={"gpu1": "cuda:5"})
    assert json.loads((tmp_path / "fx.json").read_text()) == written
    graph = lenet_plan.graph
    spelled = {"gpu0": "cuda:0", "gpu1": "cuda:5", "gpu2": "cuda:2", "gpu3": "cuda:3"}
    for name, node in written["nodes"].items():
        assert node["device"] == spelled[lenet_plan.device(name)]
        assert written["segments"][node["segment"]] == node["device"]
    for src, dst in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        a, b = written["nodes"].get(graph.names[src]), written["nodes"].get(graph.names[dst])
        assert a is None or b is None or a["segment"] <= b["segment"]


@pytest.fixture(scope="module")
def googlenet():
    """GoogLeNet on four equal GPUs, which is faster on one than by a random plan."""
    graph = lm.read("example:googlenet")
    cluster = lm.Cluster.mesh(4, memory="16GiB", bandwidth=4e9, latency=50e-6, type="d0")
    return {method: lm.place(graph, cluster, method) for method in ("heft", "random", "single")}


def test_the_step_as_exported_stands_beside_the_plans(googlenet):
    single = googlenet["single"].makespan
    for plan in googlenet.values():
        step = lm.writers.fx(plan)["step"]
        assert step == {
            "plan": plan.makespan,
            "exported": pytest.approx(plan.makespan),
            "single": single,
        }
    assert googlenet["heft"].makespan < single < googlenet["random"].makespan


def test_the_command_line_says_when_the_step_grows(googlenet, tmp_path, capsys, monkeypatch):
    def said(plan):
        plan.save(tmp_path / "plan.json")
        arguments = [str(tmp_path / "plan.json"), "--to", "fx", "-o", str(tmp_path / "fx.json")]
        assert main(["export", *arguments]) == 0
        return capsys.readouterr().err

    good = said(googlenet["heft"])
    assert "step: plan " in good
    assert "grows" not in good
    assert "slower" not in good
    bad = said(googlenet["random"])
    assert "as exported the plan is slower than one device: place it by method auto" in bad
    assert "grows" not in bad
    monkeypatch.setattr(Segments, "step", 1.72 * googlenet["heft"].makespan)
    assert "the step grows by 72% in being exported" in said(googlenet["heft"])


def test_devices_have_the_names_that_they_are_given(lenet_plan):
    with pytest.raises(InputError, match="no device 'gpu9'"):
        lm.writers.tensorflow(lenet_plan, names={"gpu9": "/device:GPU:0"})
    plan = by_module(stack(), HALVES, CPU_AND_GPUS)
    assert set(lm.writers.tensorflow(plan).values()) == {"/device:CPU:0", "/device:GPU:0"}


OF_WHOLE_OPS = {
    "device-map": lm.writers.device_map,
    "fx": lm.writers.fx,
    "tensorflow": lm.writers.tensorflow,
    "openvino": lambda plan: lm.writers.openvino(plan, model=object()),
    "tensorflow-graph": lambda plan: lm.writers.tensorflow_graph(plan, model=GraphDef()),
}


class GraphDef:
    """As much of one as a writer asks for."""

    node = ()

    def SerializeToString(self):  # noqa: N802
        return b""


@pytest.mark.parametrize("target", OF_WHOLE_OPS)
def test_ops_in_parts_are_refused_by_the_users_names(target):
    graph = lm.read("example:lenet")
    plan = lm.place(graph, lm.Cluster.preset("2xV100-NVLink"), "data-parallel")
    first = graph.names[int(np.flatnonzero(plan.devices < 0)[0])]
    message = rf"the plan has op '{first}' in 2 replicas on gpu0 and gpu1"
    with pytest.raises(InputError, match=message) as caught:
        OF_WHOLE_OPS[target](plan)
    assert "@" not in str(caught.value)
    way_out = ("--target device-map", "place whole ops, as auto does with split=none")
    assert str(caught.value).endswith(way_out)


def test_many_devices_of_replicas_are_counted_and_not_listed():
    graph = lm.read("example:lenet")
    plan = lm.place(graph, lm.Cluster.preset("8xH100-NVLink"), "data-parallel")
    with pytest.raises(InputError, match="in 8 replicas on 8 devices, and so"):
        lm.writers.device_map(plan)


def test_pictures_of_a_plan_in_parts_say_whose_parts_they_are():
    graph = lm.read("example:lenet")
    plan = lm.place(graph, lm.Cluster.preset("2xV100-NVLink"), "data-parallel")
    assert lm.writers.model_explorer(plan)["results"]["convolution"]["value"] == "gpu0, gpu1"
    nodes = lm.writers.model_explorer_graph(plan)["graphs"][0]["nodes"]
    assert [node["id"] for node in nodes] == graph.names
    text = lm.writers.graphml(plan)
    assert text.count("<node ") == plan.program.graph.n_ops
    assert '<data key="name">convolution@r1</data>' in text
    assert text.count('<data key="origin">convolution</data>') == 2
    assert "origin" not in lm.writers.graphml(lm.place(graph, plan.cluster, "heft"))


# ---- targets and the command line -------------------------------------------------------------


def test_every_target_has_a_writer_that_takes_its_options():
    for name, target in forms().items():
        taken = inspect.signature(target.write).parameters
        assert list(taken)[:2] == ["plan", "path"], name
        assert set(target.options) == set(taken) - {"plan", "path"}, name
        assert target.text


def test_targets_refuse_what_they_do_not_take(lenet_plan):
    with pytest.raises(InputError, match=r"nothing is written as 'tflite'; there are .*device-map"):
        export(lenet_plan, "tflite")
    with pytest.raises(InputError, match="dot takes no option 'root'"):
        export(lenet_plan, "dot", root="m")
    with pytest.raises(InputError, match="onnx needs a model: give --model FILE"):
        export(lenet_plan, "onnx", "parts")
    with pytest.raises(InputError, match="perfetto needs a path: give -o FILE"):
        export(lenet_plan, "perfetto")


#: Targets of plans that replicate or shard the model.
OF_RECIPES = (
    *("accelerate", "autoparallel", "ddp", "deepspeed", "dtensor", "flax", "fsdp", "jax"),
    *("lightning", "maxtext", "ray", "simplefsdp", "torchtitan", "trainer"),
)

#: Targets that write a file per device.
OF_RANKS = ("chakra",)

SELF_CONTAINED = [
    n
    for n, t in forms().items()
    if not t.options.get("model") and n not in (*OF_RECIPES, *OF_RANKS)
]


@pytest.mark.parametrize("name", SELF_CONTAINED)
def test_files_are_the_same_every_time(name, tmp_path):
    plan = by_module(stack(), HALVES)
    for file in ("one", "two"):
        export(plan, name, tmp_path / file, check=False)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(InputError, match="cannot write"):
        export(plan, name, tmp_path / "nowhere" / "file")


def test_export_on_the_command_line(tmp_path, capsys):
    by_module(stack(), HALVES).save(tmp_path / "plan.json")
    plan = str(tmp_path / "plan.json")
    assert main(["export", plan, "--to", "device-map", "--name", "gpu1=cuda:7"]) == 0
    assert json.loads(capsys.readouterr().out)["layers.3"] == "cuda:7"
    assert main(["export", plan, "--to", "vllm", "-o", str(tmp_path / "v.json")]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert f"vllm written to {tmp_path / 'v.json'}" in err
    assert settings((tmp_path / "v.json").read_text())[0]["pipeline-parallel-size"] == 2
    assert main(["export", plan, "--to", "dot"]) == 0
    assert capsys.readouterr().out.startswith("digraph")
    for wrong in (["--to", "onnx"], ["--to", "dot", "--check"], ["--to", "dot", "--name", "x"]):
        assert main(["export", plan, *wrong]) == 2
    assert main(["targets"]) == 0
    listed = capsys.readouterr().out
    assert "\ndevice-map " in listed
    assert "models whose ops know their modules" in listed


def test_a_screenful_is_printed_and_all_of_it_where_asked(tmp_path, capsys, lenet_plan):
    lenet_plan.save(tmp_path / "plan.json")
    plan, whole = str(tmp_path / "plan.json"), lm.writers.dot(lenet_plan)
    assert main(["export", plan, "--target", "dot"]) == 0
    out, err = capsys.readouterr()
    assert whole.startswith(out)
    assert len(out.splitlines()) + len(err.splitlines()) == 24
    assert f"and {len(whole.splitlines()) - 23} more lines: -o FILE" in err
    for all_of_it in (["-o", "-"], ["--json"]):
        assert main(["export", plan, "--target", "dot", *all_of_it]) == 0
        assert capsys.readouterr() == (whole, "")


def test_a_plan_for_no_target_must_be_told_what_to_write_it_as(tmp_path, capsys, lenet_plan):
    lenet_plan.save(tmp_path / "plan.json")
    assert main(["export", str(tmp_path / "plan.json")]) == 2
    assert "was made for no target of its own" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"nothing is written as 'fxx': did you mean 'fx'\?"):
        export(lenet_plan, "fxx")


def test_what_targets_make_of_a_plan_is_listed(capsys):
    assert main(["targets", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert set(listed) == {*forms(), *SYSTEMS}
    for name in planned_for():
        said = SYSTEMS[name].says
        assert listed[name]["semantics"]["unit"] == said.unit
        assert main(["targets", name]) == 0
        assert said.moves in capsys.readouterr().out
    assert main(["targets", "device-mapp"]) == 2
    assert "did you mean 'device-map'?" in capsys.readouterr().err


def test_a_refusal_names_the_first_few_of_each_sort(lenet_plan):
    reasons = ["no module holds the loss", ("modules are torn", ["a", "b", "c", "d", "e"])]
    said = str(refusal(lenet_plan, "dot", reasons))
    assert said.endswith("as dot: no module holds the loss; modules are torn: a, b, c and 2 more")


def test_max_memory_on_the_command_line(capsys):
    limits = json.dumps({"0": "1GiB", "1": "2GiB"})
    arguments = ["place", "example:lenet", "--max-memory", limits, "--json"]
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert [d["memory"] for d in document["devices"]] == [1 << 30, 2 << 30]
    assert main(["place", "example:lenet", "--max-memory", "{"]) == 2
    assert "--max-memory is not valid JSON" in capsys.readouterr().err


def test_a_missing_package_is_named(lenet_plan, monkeypatch, tmp_path):
    graph_pb2 = "tensorflow.core.framework.graph_pb2"
    for package in ("torch", "openvino", "tensorflow", graph_pb2, "onnxruntime"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"loadmaster\[torch\]"):
        lm.writers.fx_split(lenet_plan, object())
    with pytest.raises(MissingExtraError, match=r"loadmaster\[openvino\]"):
        lm.writers.openvino(lenet_plan, model="model.onnx")
    with pytest.raises(MissingExtraError, match=r"loadmaster\[tensorflow\]"):
        lm.writers.tensorflow_graph(lenet_plan, model="graph.pb")
    (tmp_path / "manifest.json").write_text(
        json.dumps({"format": "loadmaster-onnx", "version": 1, "segments": []})
    )
    with pytest.raises(MissingExtraError, match=r"loadmaster\[onnxruntime\]"):
        lm.writers.OnnxSegments(tmp_path)


def test_writers_are_found_whatever_was_imported_before():
    for module in pkgutil.iter_modules(lm.writers.__path__, "loadmaster.writers."):
        importlib.import_module(module.name)
    for name in lm.writers.__all__:
        assert callable(getattr(lm.writers, name)), name
        assert inspect.getdoc(getattr(lm.writers, name)), name
    assert dir(lm.writers) == lm.writers.__all__ == sorted(lm.writers.__all__)
    with pytest.raises(AttributeError, match="no attribute 'tflite'"):
        _ = lm.writers.tflite
