"""Files that are malformed in one place: each was a traceback, or worse, before it was refused."""

from __future__ import annotations

import json

import pytest

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.readers.planners.msr import cluster as msr_cluster


def refused(path, match, **options):
    with pytest.raises(InputError, match=match) as caught:
        lm.read(path, **options)
    assert path.name in str(caught.value)


def written(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


# ---- ONNX -------------------------------------------------------------------------------------


@pytest.fixture
def model():
    """An If whose branches read a weight, and a Slice of another."""
    onnx = pytest.importorskip("onnx")
    helper, floats, ints = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    node, info = helper.make_node, helper.make_tensor_value_info
    branches = [
        helper.make_graph([node("Relu", ["x"], [out], out)], out, [], [info(out, floats, [4])])
        for out in ("yes", "no")
    ]
    nodes = [
        node("If", ["flag"], ["y"], "chosen", then_branch=branches[0], else_branch=branches[1]),
        node("Slice", ["w", "zero", "two", "zero", "back"], ["v"], "part"),
        node("LeakyRelu", ["y"], ["z"], "leaky", alpha=0.5),
    ]
    numbers = [
        helper.make_tensor(name, ints, [1], [value])
        for name, value in (("zero", 0), ("two", 2), ("back", -1))
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", floats, [4]), info("flag", onnx.TensorProto.BOOL, [])],
        [info("z", floats, None), info("v", floats, None)],
        [helper.make_tensor("w", floats, [2, 2], [0.0] * 4), *numbers],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def unnamed_output(model):
    for attribute in model.graph.node[0].attribute:
        attribute.g.output[0].name = ""


def no_branch(model):
    for attribute in model.graph.node[0].attribute:
        attribute.type = 0


def branch_of_another_type(model):
    for attribute in model.graph.node[0].attribute:
        attribute.ClearField("g")
        attribute.type, attribute.i = 2, 3


def referred_attribute(model):
    model.graph.node[2].attribute[0].ref_attr_name = "outside"


def strange_opset(model):
    model.opset_import[0].version = 2**40


def negative_weight(model):
    model.graph.initializer[0].dims[0] = -1


def empty_weight(model):
    model.graph.initializer[0].dims[0] = 0
    model.graph.initializer[0].ClearField("float_data")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (unnamed_output, "has an unnamed output"),
        (no_branch, r"op 'chosen' \(If\) is damaged"),
        (branch_of_another_type, r"op 'chosen' \(If\) is damaged"),
        (referred_attribute, r"op 'leaky' \(LeakyRelu\) is damaged"),
        (strange_opset, r"opset 'ai\.onnx' has the version 1099511627776"),
        (negative_weight, r"stored tensor 'w' has the dimensions \[-1, 2\]"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_onnx(tmp_path, model, change, match):
    change(model)
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    refused(path, match)


def test_a_part_of_nothing_does_not_end_the_process(tmp_path, model):
    """ONNX's shape inference aborts at a Slice backwards through no elements."""
    empty_weight(model)
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    graph = lm.read(path)
    assert graph.output_bytes[graph.names.index("part")] == 0


def test_a_name_of_external_data_that_no_file_can_have(tmp_path, model):
    number = model.graph.initializer[1]
    number.data_location = number.EXTERNAL
    number.external_data.add(key="location", value="x" * 5000)
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.warns(UserWarning, match="known only at run time"):
        assert "part" in lm.read(path).names


@pytest.mark.parametrize("kind", ["com.microsoft.Attention", "com.microsoft.MultiHeadAttention"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_attention_without_heads(tmp_path, kind):
    onnx = pytest.importorskip("onnx")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    domain, _, name = kind.rpartition(".")
    node = helper.make_node(name, ["x", "w"], ["y", "p"], "att", domain=domain, num_heads=0)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", floats, [2, 4, 8])],
        [helper.make_tensor_value_info("y", floats, None)],
        [helper.make_tensor("w", floats, [8, 24], [0.0] * 192)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    path = tmp_path / "net.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=opsets).SerializeToString())
    assert "att" in lm.read(path).names


@pytest.mark.parametrize(("kind", "inputs"), [("Range", [0, 2**40, 1]), ("Expand", [2**34])])
def test_constants_that_would_fill_the_memory_are_not_computed(tmp_path, kind, inputs):
    onnx = pytest.importorskip("onnx")
    helper, ints = onnx.helper, onnx.TensorProto.INT64
    if kind == "Range":
        stored = [helper.make_tensor(f"i{i}", ints, [], [v]) for i, v in enumerate(inputs)]
    else:
        stored = [
            helper.make_tensor("i0", ints, [1], [7]),
            helper.make_tensor("i1", ints, [1], inputs),
        ]
    node = helper.make_node(kind, [tensor.name for tensor in stored], ["y"], "large")
    out = [helper.make_tensor_value_info("y", ints, None)]
    graph = helper.make_graph([node], "g", [], out, stored)
    path = tmp_path / "net.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    assert "large" in lm.read(path).names


# ---- text of JAX ------------------------------------------------------------------------------

CASE = """module @m {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %c = stablehlo.constant dense<-1e999> : tensor<i32>
    %0 = "stablehlo.case"(%c) ({
      %1 = stablehlo.negate %arg0 : tensor<4xf32>
      stablehlo.return %1 : tensor<4xf32>
    }, {
      stablehlo.return %arg0 : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""


@pytest.mark.parametrize("number", ["-1e999", "1e999", "nan", "9" * 400])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_branch_chosen_by_no_number_is_the_dearest(tmp_path, number):
    path = written(tmp_path / "net.mlir", CASE.replace("-1e999", number))
    graph = lm.read(path)
    assert any("negate" in kind for kind in graph.kinds)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("conditional(%p, %x, %x), true_computation=%f", "line 8: "),
        ("conditional(%p), true_computation=%f, false_computation=%f", "line 8: "),
        ("conditional(), branch_computations={%f}", "line 8: "),
    ],
)
def test_hlo(tmp_path, line, match):
    text = (
        "HloModule m\n\n%f (a: f32[4]) -> f32[4] {\n  ROOT %a = f32[4] parameter(0)\n}\n"
        "ENTRY %main (x: f32[4], p: pred[]) -> f32[4] {\n  %x = f32[4] parameter(0), "
        f"sharding={{replicated}}\n  ROOT %r = f32[4] {line}\n  %p = pred[] parameter(1)\n}}\n"
    )
    refused(written(tmp_path / "net.txt", text), match)


def test_a_window_of_any_size_is_counted_at_once(tmp_path):
    text = (
        "HloModule m\n\nENTRY %main (x: f32[1,8,8,1], k: f32[9000000000,3,1,1]) -> f32[1,8,8,1] {\n"
        "  %x = f32[1,8,8,1] parameter(0)\n  %k = f32[9000000000,3,1,1] parameter(1)\n"
        "  ROOT %c = f32[1,8,8,1] convolution(%x, %k), window={size=9000000000x3 pad=1_1x1_1 "
        "lhs_dilate=1x1}, dim_labels=b01f_01io->b01f\n}\n"
    )
    assert lm.read(written(tmp_path / "net.txt", text)).names[-1] == "c"


# ---- numbers that are too large -----------------------------------------------------------------


def benchmark(**changes):
    nodes = [
        {"id": i, "size": 1, "cpuLatency": 1, "fpgaLatency": 1, "supportedOnFpga": 1}
        for i in (1, 2)
    ]
    nodes[0] |= {key: value for key, value in changes.items() if key != "cost"}
    costs = (1, 1, changes.get("cost", 1))
    edges = [{"sourceId": 1, "destId": 2, "size": 8, "cost": cost} for cost in costs]
    return {"maxFPGAs": 1, "maxCPUs": 1, "maxSizePerFPGA": 9, "nodes": nodes, "edges": edges}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"cost": 1.7e308}, r"edge 2 has \S+ bytes: wants fewer than 2\^62"),
        ({"cost": 10**400}, "edge 2: cost is"),
        ({"size": 1e300}, "node 1 has 1e\\+300 bytes"),
        ({"size": 10**400}, "node 1: size is"),
        ({"cpuLatency": 10**400}, "node 1: cpuLatency is"),
    ],
)
def test_msr_fiddle(tmp_path, changes, match):
    path = written(tmp_path / "net.json", benchmark(**changes))
    units = {"time_unit": "ms", "size_unit": "B"}
    refused(path, match, **units)
    if "cpuLatency" not in changes:
        with pytest.raises(InputError):
            msr_cluster(path, **units)


def test_sizes_of_a_run_of_tensorflow(tmp_path):
    pytest.importorskip("google.protobuf")
    from loadmaster.readers.tensorflow import protos

    classes = protos._classes()
    graph, run = classes["GraphDef"](), classes["RunMetadata"]()
    graph.node.add(name="a", op="Relu")
    stats = run.step_stats.dev_stats.add(device="/device:CPU:0").node_stats.add(node_name="a")
    stats.op_end_rel_nanos = 5
    described = stats.output.add().tensor_description
    described.dtype = 1
    for _ in range(3):
        described.shape.dim.add(size=2**62)
    (tmp_path / "g.pb").write_bytes(graph.SerializeToString())
    (tmp_path / "run.pb").write_bytes(run.SerializeToString())
    with pytest.raises(InputError, match=r"op 'a': the product of .* is out of range"):
        lm.read(tmp_path / "g.pb", profile=tmp_path / "run.pb")


def test_a_duration_of_onnx_runtime(tmp_path):
    pytest.importorskip("onnx")
    from onnx_models import saved

    event = {"cat": "Node", "name": "left_kernel_time", "dur": 10**400, "args": {}}
    profile = written(tmp_path / "profile.json", [event])
    with pytest.raises(InputError, match=r"profile\.json: event 0 \('left'\): dur is"):
        lm.read(saved("branchy", tmp_path), batch=2, profile=profile)


def test_a_bandwidth_of_a_cluster():
    devices = '[[device]]\nname = "a"\nmemory = "1B"\n[[device]]\nname = "b"\nmemory = "1B"\n'
    link = f'[[link]]\nfrom = "a"\nto = "b"\nbandwidth = 0x1{"0" * 400}\n'
    with pytest.raises(InputError, match=r"link 0 \(from 'a' to 'b'\): bandwidth"):
        lm.Cluster.from_toml(devices + link)
    with pytest.raises(InputError, match=r"integer of \d+ bits"):
        lm.Cluster.from_toml(devices.replace('memory = "1B"', f"memory = 0x1{'0' * 4000}", 1))


@pytest.mark.parametrize("key", ["devices", "machines"])
@pytest.mark.parametrize("count", [-1, 0, 2**40])
def test_counts_of_collectives(key, count):
    counts = {"devices": 2, "machines": 1, key: count}
    with pytest.raises(InputError, match=f"times of all_reduce .*: {key} is {count}"):
        lm.CollectiveTimes("all_reduce", bytes=(8,), seconds=(1.0,), **counts)


# ---- traces -------------------------------------------------------------------------------------


def test_a_trace_of_kernels_and_launches_without_calls(tmp_path):
    from kineto_traces import kernel, launch, write_trace

    path = write_trace(tmp_path / "t.json", [launch(7, 0), kernel("gemm", 1, 5, 7)])
    refused(path, "no ")


def test_half_a_character_in_a_name(tmp_path):
    document = lm.read("example:lenet").to_document()
    document["ops"]["name"][3] = "\ud800"
    refused(written(tmp_path / "net.json", document), "half of a surrogate pair")
