"""The ONNX reader: costs checked by hand, storage and edges, inputs left open, bad files."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
from folders import LARGE

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from loadmaster.base.errors import InputError  # noqa: E402
from loadmaster.model import arguments  # noqa: E402
from loadmaster.readers.onnx.model import read, to_columns  # noqa: E402

ARTIFACTS = LARGE / "artifacts" / "onnx"
F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


# ---- helpers ----------------------------------------------------------------------------------


def f32(*shape):
    """The name comes later: a function from name to typed value."""
    return lambda name: helper.make_tensor_value_info(name, F32, shape)


def i64(*shape):
    return lambda name: helper.make_tensor_value_info(name, I64, shape)


def weight(name, *shape):
    """An initializer of zeros."""
    return numpy_helper.from_array(np.zeros(shape, np.float32), name)


def const(name, values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def node(kind, inputs, outputs, name=None, **attributes):
    """A node from space-separated value names; '-' is an omitted one."""
    values = [[v.replace("-", "") for v in text.split()] for text in (inputs, outputs)]
    domain, _, op_type = kind.rpartition(".")
    return helper.make_node(
        op_type, *values, name=outputs.split()[0] if name is None else name, domain=domain,
        **attributes,
    )  # fmt: skip


def make_model(nodes, inputs, initializers=(), opset=21, outputs=None, **extra):
    last = [v for v in nodes[-1].output if v]
    graph = helper.make_graph(
        nodes,
        "net",
        [make(name) for name, make in inputs.items()],
        [helper.make_empty_tensor_value_info(v) for v in outputs or last],
        list(initializers),
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, producer_name="tests", **extra)


class Columns:
    """The document of a model, by op name."""

    def __init__(self, model, **options):
        self.document = to_columns(model, name="net", **options)
        self.ops, self.meta = self.document["ops"], self.document["meta"]
        self.index = {name: i for i, name in enumerate(self.ops["name"])}

    def __call__(self, name, column):
        return self.ops[column][self.index[name]]

    def edges(self):
        names, edges = self.ops["name"], self.document["edges"]
        rows = zip(*edges.values(), strict=True)
        return [(names[s], names[d], t, b) for s, d, t, b in rows]

    def sources(self, name):
        return sorted(s for s, d, _, _ in self.edges() if d == name)


def one(kind, inputs, outputs, shapes, initializers=(), **attributes):
    """FLOPs, bytes and outputs of a model of one node."""
    opset = attributes.pop("opset", 21)
    columns = Columns(
        make_model([node(kind, inputs, outputs, **attributes)], shapes, initializers, opset)
    )
    return tuple(columns.ops[c][-1] for c in ("flops", "bytes_accessed", "output"))


# ---- costs ------------------------------------------------------------------------------------


def test_convolution_counts_two_per_weight_and_output_without_the_bias():
    flops, moved, output = one(
        "Conv", "x w b", "y", {"x": f32(2, 8, 10, 10)},
        [weight("w", 16, 4, 3, 3), weight("b", 16)],
        group=2, strides=[2, 2], pads=[1, 1, 1, 1], kernel_shape=[3, 3],
    )  # fmt: skip
    assert output == "f32[2,16,5,5]"
    assert flops == 2 * (2 * 16 * 5 * 5) * (4 * 3 * 3)
    assert moved == 4 * (2 * 8 * 100 + 16 * 4 * 9 + 16 + 2 * 16 * 25)


def test_transposed_convolution_counts_by_its_input():
    flops, _, output = one(
        "ConvTranspose", "x w", "y", {"x": f32(1, 4, 5, 5)}, [weight("w", 4, 6, 2, 2)],
        strides=[2, 2],
    )  # fmt: skip
    assert (flops, output) == (2 * (4 * 25) * (6 * 4), "f32[1,6,10,10]")


def test_matrix_product_broadcasts_its_batch():
    flops, moved, output = one("MatMul", "a b", "y", {"a": f32(5, 1, 3, 4), "b": f32(2, 4, 6)})
    assert (flops, output) == (2 * 5 * 2 * 3 * 6 * 4, "f32[5,2,3,6]")
    assert moved == 4 * (60 + 48 + 180)


@pytest.mark.parametrize(("shape", "transposed"), [((7, 3), 0), ((3, 7), 1)])
def test_gemm_finds_its_inner_dimension(shape, transposed):
    flops, moved, output = one(
        "Gemm", "x w c", "y", {"x": f32(*shape)}, [weight("w", 5, 3), weight("c", 5)],
        transA=transposed, transB=1,
    )  # fmt: skip
    assert (flops, moved, output) == (2 * 7 * 5 * 3, 4 * (21 + 15 + 5 + 35), "f32[7,5]")


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize(("direction", "n"), [("forward", 1), ("reverse", 1), ("bidirectional", 2)])
def test_recurrent_cells_count_both_products_of_every_step(kind, gates, direction, n):
    steps, batch, width, hidden = 7, 3, 5, 4
    flops, moved, output = one(
        kind, "x w r", "y h", {"x": f32(steps, batch, width)},
        [weight("w", n, gates * hidden, width), weight("r", n, gates * hidden, hidden)],
        hidden_size=hidden, direction=direction,
    )  # fmt: skip
    assert flops == 2 * steps * batch * n * gates * hidden * (width + hidden)
    assert output == f"f32[7,{n},3,4];f32[{n},3,4]"
    weights = n * gates * hidden * (width + hidden)
    assert moved == 4 * (steps * batch * width + weights + n * batch * hidden * (steps + 1))


@pytest.mark.parametrize(
    ("kind", "per_output", "attributes"),
    [
        ("MaxPool", 9, {"kernel_shape": [3, 3]}),
        ("AveragePool", 9, {"kernel_shape": [3, 3]}),
        ("LpPool", 18, {"kernel_shape": [3, 3]}),
        ("GlobalAveragePool", 36, {}),
        ("Relu", 1, {}),
        ("Sigmoid", 4, {}),
        ("Softmax", 5, {}),
        ("Gelu", 5, {}),
        ("Transpose", 0, {}),
    ],
)
def test_flops_per_output_element(kind, per_output, attributes):
    flops, moved, output = one(kind, "x", "y", {"x": f32(2, 3, 6, 6)}, **attributes)
    size = math.prod(map(int, output[4:-1].split(",")))
    assert (flops, moved) == (per_output * size, 4 * (216 + size))


def test_norms_and_reductions():
    scale = [weight("s", 8), weight("b", 8)]
    x = {"x": f32(4, 8)}
    assert one("LayerNormalization", "x s b", "y", x, scale)[0] == 7 * 32
    stats = [weight("m", 8), weight("v", 8)]
    assert one("BatchNormalization", "x s b m v", "y", x, scale + stats)[0] == 2 * 32
    assert one("com.microsoft.SkipLayerNormalization", "x x s b", "y", x, scale)[0] == 8 * 32
    assert one("ReduceSum", "x", "y", x) == (32, 4 * 33, "f32[1,1]")
    assert one("RMSNormalization", "x s", "y", x, scale[:1], opset=23)[0] == 4 * 32


def test_gather_reads_only_what_it_gathers():
    flops, moved, output = one(
        "Gather", "table ids", "y", {"ids": i64(2, 5)}, [weight("table", 1000, 16)]
    )
    assert (flops, output) == (0, "f32[2,5,16]")
    assert moved == 2 * (10 * 16 * 4) + 10 * 8


def test_slice_reads_only_what_it_keeps():
    _, moved, output = one(
        "Slice", "x a b", "y", {"x": f32(100, 4)}, [const("a", [10]), const("b", [13])]
    )
    assert (moved, output) == (2 * 3 * 4 * 4 + 16, "f32[3,4]")


@pytest.mark.parametrize(
    ("equation", "shapes", "flops"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)], 2 * 24),
        ("ij, jk, kl -> il", [(2, 3), (3, 4), (4, 5)], 2 * 24 + 2 * 40),
        ("bhid,bhjd->bhij", [(2, 4, 8, 16), (2, 4, 8, 16)], 2 * 2 * 4 * 64 * 16),
        ("...ij,jk", [(7, 2, 3), (3, 4)], 2 * 7 * 24),
        ("i,j->ij", [(3,), (4,)], 12),
        ("ij->i", [(2, 3)], 6),
        ("ij->ji", [(2, 3)], 0),
    ],
)
def test_einsum_contracts_from_left_to_right(equation, shapes, flops):
    names = "abc"[: len(shapes)]
    inputs = {name: f32(*shape) for name, shape in zip(names, shapes, strict=True)}
    assert one("Einsum", " ".join(names), "y", inputs, equation=equation)[0] == flops


def test_attention_counts_scores_softmax_and_sum():
    # 2 samples, 4 heads of 8, 5 queries, 3 + 6 keys
    flops, _, output = one(
        "Attention", "q k v - pk pv", "y ok ov",
        {"q": f32(2, 4, 5, 8), "k": f32(2, 4, 6, 8), "v": f32(2, 4, 6, 8),
         "pk": f32(2, 4, 3, 8), "pv": f32(2, 4, 3, 8)},
        opset=23,
    )  # fmt: skip
    pairs = 2 * 4 * 5 * 9
    assert flops == pairs * (2 * 8 + 5 + 2 * 8)
    assert output == "f32[2,4,5,8];f32[2,4,9,8];f32[2,4,9,8]"


def test_packed_attention_adds_its_projection():
    flops, _, output = one(
        "com.microsoft.Attention", "x w", "y", {"x": f32(2, 5, 16)}, [weight("w", 16, 48)],
        num_heads=4,
    )  # fmt: skip
    assert flops == 2 * 10 * 16 * 48 + 2 * 25 * (2 * 16 + 2 * 16) + 5 * 2 * 25 * 4
    assert output == "f32[2,5,16]"


def test_integer_products_and_quantization():
    x = {"x": f32(3, 4)}
    zero = numpy_helper.from_array(np.zeros((4, 5), np.int8), "w")
    nodes = [
        node("DynamicQuantizeLinear", "x", "q scale zero"),
        node("MatMulInteger", "q w zero", "y"),
    ]
    columns = Columns(make_model(nodes, x, [zero]))
    assert columns("q", "output") == "u8[3,4];f32[];u8[]"
    assert columns("y", "flops") == 2 * 3 * 5 * 4
    assert columns("y", "bytes_accessed") == 12 + 20 + 1 + 60
    assert columns("y", "output") == "i32[3,5]"


def test_fused_convolution_has_the_shape_of_a_convolution():
    flops, _, output = one(
        "com.microsoft.FusedConv", "x w", "y", {"x": f32(1, 3, 8, 8)}, [weight("w", 4, 3, 3, 3)],
        activation="Relu", kernel_shape=[3, 3],
    )  # fmt: skip
    assert (flops, output) == (144 * (2 * 27 + 1), "f32[1,4,6,6]")


# ---- storage, edges, names --------------------------------------------------------------------


def test_views_share_the_storage_of_the_op_that_owns_it():
    nodes = [
        node("Relu", "x", "r"),
        node("Reshape", "r s", "v1"),
        node("Unsqueeze", "v1 zero", "v2"),
        node("Neg", "v2", "y"),
    ]
    columns = Columns(make_model(nodes, {"x": f32(2, 6)}, [const("s", [3, 4]), const("zero", [0])]))
    for view in ("v1", "v2"):
        assert columns(view, "view") == 1
        assert columns(view, "alias_of") == columns.index["r"]
        assert columns(view, "output_bytes") == columns(view, "bytes_accessed") == 0
    assert columns("v2", "output") == "f32[1,3,4]"
    assert columns.sources("v1") == ["r"], "a stored shape is no edge"
    assert columns.sources("v2") == ["v1"]
    assert columns("s", "kind") == "parameter"
    assert columns("s", "param_bytes") == 16


def calls(nodes, inputs, initializers=(), **options):
    """The calls of a model's nodes, with names for ops."""
    columns = to_columns(make_model(nodes, inputs, initializers, **options), name="net")["ops"]
    return {
        name: arguments.renumbered(call, columns["name"].__getitem__)
        for name, call in zip(columns["name"], columns["args"], strict=True)
        if call is not None
    }


def test_calls_have_tensors_attributes_and_the_defaults_of_the_opset():
    nodes = [
        node("Conv", "x w", "c", strides=[2, 2]),
        node("Softmax", "c", "s"),
        node("Clip", "s - high", "y"),
    ]
    given = {"x": f32(1, 3, 8, 8), "high": f32()}
    found = calls(nodes, given, [weight("w", 4, 3, 1, 1)])
    assert found == {
        "c": [
            [{"op": "x"}, {"op": "w"}],
            {"auto_pad": "NOTSET", "group": 1, "strides": [2, 2]},
        ],
        "s": [[{"op": "c"}], {"axis": -1}],
        "y": [[{"op": "s"}, None, {"op": "high"}]],
    }
    older = calls(nodes, given, [weight("w", 4, 3, 1, 1)], opset=11)
    assert older["s"] == [[{"op": "c"}], {"axis": 1}]


@pytest.mark.parametrize("opset", [11, 13])
def test_axes_are_keywords_whether_attribute_or_input(opset):
    nodes, axes = [node("Unsqueeze", "x axes", "y")], [const("axes", [0, 2])]
    if opset < 13:
        nodes, axes = [node("Unsqueeze", "x", "y", axes=[0, 2])], []
    found = calls(nodes, {"x": f32(3, 4)}, axes, opset=opset)["y"]
    assert found[0] == [{"op": "x"}, {"op": "axes"}][: 1 + len(axes)]
    assert found[1] == {"axes": [0, 2]}


def test_data_is_not_told():
    weights = [weight("w", 9), const("rows", list(range(65)))]
    nodes = [
        node("Gather", "w rows", "y"),
        node("com.example.Op", "y", "z", text=b"a", t=weights[0]),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = calls(nodes, {}, weights)
    assert found["y"] == [[{"op": "w"}, {"op": "rows"}], {"axis": 0, "indices": None}]
    assert found["z"] == [[{"op": "y"}], {"text": "a", "t": None}]


def test_computed_shapes_are_control_edges_and_resolve():
    """How TorchScript writes x.view(x.size(0), -1) and an expand to a computed size."""
    nodes = [
        node("Relu", "x", "r"),
        node("Shape", "r", "shape"),
        node("Gather", "shape zero", "n", axis=0),
        node("Unsqueeze", "n axes", "n1"),
        node("Concat", "n1 minus", "target", axis=0),
        node("Reshape", "r target", "flat"),
        node("ConstantOfShape", "two", "ones", value=const("", [1])),
        node("Equal", "target ones", "mask"),
        node("Where", "mask ones target", "size"),
        node("Expand", "flat size", "y"),
    ]
    constants = [const("zero", 0), const("axes", [0]), const("minus", [60]), const("two", [2])]
    columns = Columns(make_model(nodes, {"x": f32("n", 3, 4, 5)}, constants), batch=8)
    assert columns("flat", "output") == columns("y", "output") == "f32[8,60]"
    assert ("target", "flat", -1, 0) in columns.edges()
    assert ("r", "shape", -1, 0) in columns.edges(), "a shape needs no data"
    assert columns("shape", "bytes_accessed") == columns("shape", "flops") == 0
    assert columns.meta["batch"] == 8
    assert columns.meta["assumed"] == ["n = 8"]


def test_one_tensor_however_many_consumers():
    nodes = [
        node("Split", "x", "a b", axis=0, num_outputs=2),
        node("Mul", "a a", "sq"),
        node("Add", "a sq", "s"),
        node("Sub", "b s", "y"),
    ]
    columns = Columns(make_model(nodes, {"x": f32(2, 8)}))
    carried = {(s, d): (t, b) for s, d, t, b in columns.edges()}
    assert len(carried) == len(columns.edges()) == 6, "a value read twice is one edge"
    assert carried["a", "sq"] == carried["a", "s"] != carried["a", "y"]
    assert {size for _, size in list(carried.values())[1:]} == {32}
    tensors = {t for t, _ in carried.values()}
    assert tensors == set(range(5))
    assert columns("a", "output") == "f32[1,8];f32[1,8]"
    assert columns("a", "output_bytes") == 64
    assert columns("sq", "bytes_accessed") == 64


def test_names_are_unique_and_modules_follow_paths():
    nodes = [
        node("Relu", "x", "1", name=""),
        node("Relu", "1", "hidden", name=""),
        node("MatMul", "hidden enc.0.fc.weight", "m", name="/enc/enc.0/fc/MatMul"),
        node("Relu", "m", "a", name="same"),
        node("Relu", "a", "b", name="same"),
        node("Relu", "b", "c", name="same_1"),
        node("Relu", "c", "y", name="enc.0.fc.weight"),
    ]
    nodes[3].metadata_props.add(
        key="pkg.torch.onnx.name_scopes", value="['', 'enc', 'enc.0', 'relu']"
    )
    columns = Columns(make_model(nodes, {"x": f32(1, 4)}, [weight("enc.0.fc.weight", 4, 4)]))
    assert columns.ops["name"] == [
        "enc.0.fc.weight", "x", "Relu_0", "hidden", "/enc/enc.0/fc/MatMul", "same", "same_2",
        "same_1", "enc.0.fc.weight_1",
    ]  # fmt: skip
    assert columns("/enc/enc.0/fc/MatMul", "module") == "enc.0.fc"
    assert columns("enc.0.fc.weight", "module") == "enc.0.fc"
    assert columns("same", "module") == "enc.0"
    assert columns("x", "module") == ""


def test_placeholders_and_the_size_of_the_model():
    model = make_model(
        [node("Constant", "", "c", value=weight("", 3)), node("Add", "x c", "y")],
        {"x": f32(2, 3)},
        [weight("unused", 10, 10)],
    )
    sparse = model.graph.sparse_initializer.add(dims=[50, 50])
    sparse.values.CopyFrom(weight("sparse", 7))
    sparse.indices.CopyFrom(const("", range(7)))
    columns = Columns(model)
    kinds = dict(zip(columns.ops["name"], columns.ops["kind"], strict=True))
    assert kinds == {
        "unused": "parameter", "sparse": "parameter", "x": "input", "c": "constant", "y": "Add",
    }  # fmt: skip
    assert sum(columns.ops["param_bytes"]) == 400 + 7 * (4 + 8)
    assert columns("sparse", "output") == "f32[50,50]"
    assert columns("c", "output_bytes") == 12
    assert columns("c", "bytes_accessed") == 0
    assert columns("x", "output_bytes") == 24
    assert columns.meta["framework"].startswith("onnx tests")
    assert columns.meta["dtype"] == "float32"
    assert columns.meta["mode"] == "infer"
    assert set(columns.ops["phase"]) == {"f"}


def test_an_initializer_among_the_inputs_is_a_parameter():
    model = make_model([node("Add", "x w", "y")], {"x": f32(2), "w": f32(2)}, [weight("w", 2)])
    columns = Columns(model)
    assert columns.ops["kind"] == ["parameter", "input", "Add"]


def test_dropout_is_a_view_in_inference_unless_its_mask_is_used():
    x = {"x": f32(4)}
    assert Columns(make_model([node("Dropout", "x", "y")], x))("y", "view") == 1
    masked = Columns(make_model([node("Dropout", "x", "y m")], x))
    assert masked("y", "view") == 0
    assert masked("y", "output") == "f32[4];b8[4]"


def test_nodes_out_of_order_are_sorted_and_cycles_named():
    nodes = [node("Neg", "a", "b"), node("Relu", "x", "a"), node("Abs", "b", "c")]
    columns = Columns(make_model(nodes, {"x": f32(2)}))
    assert columns.ops["name"] == ["x", "a", "b", "c"]
    looped = [node("Add", "x c", "b"), node("Relu", "b", "c")]
    with pytest.raises(InputError, match=r"cycle: .*b.*c"):
        Columns(make_model(looped, {"x": f32(2)}))


def test_the_model_is_left_as_it_is_and_reads_the_same_twice():
    model = make_model([node("Relu", "x", "y")], {"x": f32("n", 3)})
    before = model.SerializeToString(deterministic=True)
    assert to_columns(model, name="a", batch=2) == to_columns(model, name="a", batch=2)
    assert model.SerializeToString(deterministic=True) == before


def test_functions_are_inlined():
    body = [node("Relu", "a", "t"), node("Neg", "t", "b")]
    function = helper.make_function(
        "mine", "Block", ["a"], ["b"], body, [helper.make_opsetid("", 21)]
    )
    model = make_model([node("mine.Block", "x", "y")], {"x": f32(4)}, [weight("w", 2000)])
    model.opset_import.append(helper.make_opsetid("mine", 1))
    model.functions.append(function)
    columns = Columns(model)
    assert columns.ops["kind"] == ["parameter", "input", "Relu", "Neg"]
    assert columns("w", "param_bytes") == 8000


# ---- control flow -----------------------------------------------------------------------------


def subgraph(nodes, inputs=(), outputs=(), initializers=()):
    return helper.make_graph(
        nodes, "body", list(inputs),
        [helper.make_empty_tensor_value_info(v) for v in outputs], list(initializers),
    )  # fmt: skip


def test_if_counts_its_larger_branch_and_draws_edges_to_what_it_captures():
    small = subgraph([node("Relu", "x", "t")], outputs=["t"])
    large = subgraph([node("MatMul", "x w", "u")], outputs=["u"], initializers=[weight("w", 4, 4)])
    nodes = [node("If", "c", "y", then_branch=small, else_branch=large)]
    model = make_model(
        nodes, {"c": lambda n: helper.make_tensor_value_info(n, BOOL, ()), "x": f32(2, 4)}
    )
    with pytest.warns(UserWarning, match=r"If, its larger branch \(1\)"):
        columns = Columns(model)
    assert columns("y", "flops") == 2 * 2 * 4 * 4
    assert columns("y", "output") == "f32[2,4]"
    assert columns.sources("y") == ["c", "w", "x"]
    assert columns("w", "param_bytes") == 64


def test_weights_inside_branches_of_the_same_names_stay_apart():
    def branch():
        product = node("MatMul", "x w", "t")
        return subgraph([product], outputs=["t"], initializers=[weight("w", 4, 4)])

    nodes = [
        node("If", "c", y, name="if", then_branch=branch(), else_branch=branch())
        for y in ("y1", "y2")
    ]
    inputs = {"c": lambda n: helper.make_tensor_value_info(n, BOOL, ()), "x": f32(2, 4)}
    with pytest.warns(UserWarning, match=r"If, its larger branch \(2\)"):
        columns = Columns(make_model(nodes, inputs))
    assert sum(columns.ops["param_bytes"]) == 4 * 64
    assert columns.sources("if") == ["c", "w", "w_1", "x"]
    assert columns.sources("if_1") == ["c", "w_2", "w_3", "x"]


def test_if_with_a_known_condition_takes_its_branch_silently():
    taken = subgraph([node("Squeeze", "x", "t")], outputs=["t"])
    never = subgraph([node("Squeeze", "x axes", "u")], outputs=["u"])
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s one", "d"),
        node("Equal", "d one", "is1"),
        node("If", "is1", "y", then_branch=never, else_branch=taken),
    ]
    model = make_model(nodes, {"x": f32(1, 4)}, [const("one", 1), const("axes", [1])])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Columns(model)("y", "output") == "f32[4]"


def loop_model(trip_count):
    body = subgraph(
        [node("Identity", "go", "on"), node("MatMul", "h w", "h2"), node("Relu", "h2", "row")],
        [helper.make_tensor_value_info("i", I64, ()), helper.make_tensor_value_info("go", BOOL, ()),
         helper.make_tensor_value_info("h", F32, None)],
        ["on", "h2", "row"],
    )  # fmt: skip
    inputs = {"h0": f32(2, 4)} | ({} if trip_count else {"trips": i64()})
    constants = [const("trips", trip_count)] if trip_count else []
    nodes = [node("Loop", "trips - h0", "last rows", body=body)]
    return make_model(nodes, inputs, [weight("w", 4, 4), *constants])


def test_loop_counts_its_body_as_often_as_it_runs():
    with pytest.warns(UserWarning, match=r"Loop, its body 10 times \(1\)"):
        columns = Columns(loop_model(10))
    assert columns("last", "flops") == 10 * (2 * 2 * 4 * 4 + 8)
    assert columns("last", "output") == "f32[2,4];f32[10,2,4]"
    assert columns.sources("last") == ["h0", "trips", "w"]


def test_loop_of_unknown_length_counts_once_and_says_so():
    with pytest.warns(UserWarning, match="run time|such sizes|control flow") as caught:
        columns = Columns(loop_model(None))
    assert columns("last", "flops") == 2 * 2 * 4 * 4 + 8
    said = [str(w.message) for w in caught]
    assert any("Loop, its body once (1)" in text for text in said)
    assert any("from op 'last' on (Loop)" in text for text in said)
    assert columns.meta["assumed"] == said
    assert caught[0].filename == __file__


def test_scan_runs_along_its_inputs():
    body = subgraph(
        [node("Add", "s x", "s2"), node("Relu", "s2", "y")],
        [helper.make_tensor_value_info(n, F32, None) for n in ("s", "x")],
        ["s2", "y"],
    )
    model = make_model(
        [node("Scan", "s0 xs", "end ys", body=body, num_scan_inputs=1)],
        {"s0": f32(3), "xs": f32(7, 3)},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        columns = Columns(model)
    assert columns("end", "flops") == 7 * 6
    assert columns("end", "output") == "f32[3];f32[7,3]"


# ---- what cannot be known ---------------------------------------------------------------------


def test_unknown_kinds_are_warned_about_once_with_counts():
    nodes = [node("com.acme.Magic", "x", "a"), node("com.acme.Magic", "a", "y")]
    model = make_model(nodes, {"x": f32(4)})
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    model.graph.value_info.append(helper.make_tensor_value_info("a", F32, (4,)))
    with pytest.warns(UserWarning, match="no FLOPs|run time|such sizes") as caught:
        columns = Columns(model)
    assert sum("com.acme.Magic (2)" in str(w.message) for w in caught) == 1
    assert columns("a", "kind") == "com.acme.Magic"
    assert columns("a", "bytes_accessed") == 32, "the file declares its shape"
    assert columns("y", "bytes_accessed") == 16, "what is known of it: its input"


def test_sizes_known_only_at_run_time_are_never_silent():
    nodes = [node("NonZero", "x", "where"), node("Transpose", "where", "y")]
    with pytest.warns(UserWarning, match="run time|such sizes|control flow") as caught:
        columns = Columns(make_model(nodes, {"x": f32(3, 4)}))
    (said,) = [str(w.message) for w in caught]
    assert "from op 'where' on (NonZero): they depend on what it reads; 2 of 2 ops" in said
    assert "100% of all bytes that are known, cost less here than they will" in said
    assert columns("where", "output") == "i64[2,?]"
    assert columns("where", "output_bytes") == 0


@pytest.mark.parametrize("opset", range(7, 22))
def test_sizes_made_of_others_are_known_in_every_opset(opset):
    """``x.view(x.size(0), -1) @ w``, as each opset writes it."""
    axes = {"axes": [0]} if opset < 13 else {}
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n" if axes else "n axis", "n1", **axes),
        node("Concat", "n1 rest", "target", axis=0),
        node("Reshape", "x target", "flat"),
        node("MatMul", "flat w", "y"),
    ]
    stored = [const("zero", 0), const("axis", [0]), const("rest", [-1]), weight("w", 60, 7)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        columns = Columns(make_model(nodes, {"x": f32(2, 3, 4, 5)}, stored, opset=opset))
    assert columns("y", "flops") == 2 * 2 * 60 * 7
    assert columns("y", "output") == "f32[2,7]"


def test_inferred_sizes_hold_where_numbers_are_computed_to_others():
    """ONNX's evaluator gives a pool of three dimensions two."""
    stored = [numpy_helper.from_array(np.ones((1, 2, 3), np.float32), "numbers")]
    columns = Columns(make_model([node("GlobalMaxPool", "numbers", "y")], {"x": f32(1)}, stored))
    assert columns("y", "output") == "f32[1,2,1]"


def test_numbers_that_cannot_be_computed_are_named_with_what_lacks_for_it():
    """The axes of a Gather are out of range: ONNX's inference does not look, and what is behind has
    no size.
    """
    nodes = [
        node("Gather", "numbers nine", "n", "picked"),
        node("Reshape", "x n", "flat"),
        node("MatMul", "flat w", "y"),
    ]
    stored = [const("numbers", [6, 10]), const("nine", [9]), weight("w", 60, 7)]
    with pytest.warns(UserWarning, match="run time") as caught:
        columns = Columns(make_model(nodes, {"x": f32(60)}, stored))
    assert "op 'picked' on (Gather), which cannot be computed: index 9" in str(caught[0].message)
    assert "2 of 3 ops" in str(caught[0].message)
    assert columns.meta["unsized"]["ops"] == 2


def test_declared_shapes_of_zero_are_not_believed():
    """ONNX Runtime leaves zeros in the files it optimises where a dimension was open."""
    model = make_model([node("com.acme.Magic", "x", "y")], {"x": f32(4)})
    model.graph.value_info.append(helper.make_tensor_value_info("y", F32, (0, 3)))
    with pytest.warns(UserWarning, match="com.acme.Magic"):
        assert Columns(model)("y", "output") == "f32[?,3]"


# ---- inputs left open -------------------------------------------------------------------------

OPEN = {"x": f32("batch", 3, "h", "w"), "mask": f32("batch", 7)}


def two_inputs(inputs=OPEN):
    return make_model([node("Relu", "x", "a"), node("Relu", "mask", "b")], inputs)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"'x' is \[batch, 3, h, w\]; input 'mask' is \[batch, 7\].*--shape x=N,3,N,N"),
        ({"batch": 4}, r"'x' is \[batch, 3, h, w\]. Give --shape x=4,3,N,N"),
        ({"shapes": {"y": (1,)}}, "'y', which is not an input.*'x', 'mask'"),
        ({"shapes": {"mask": (1, 2, 3)}}, r"mask=1,2,3 has 3 dimensions.*\[batch, 7\] has 2"),
        ({"shapes": {"mask": (1, 8)}}, r"mask=1,8 contradicts.*\[batch, 7\]"),
        ({"shapes": {"x": (4, 3, 8, 8), "mask": (5, 7)}}, "'batch' 5.*4"),
        ({"shapes": {"x": (4, 3, 8, 8)}, "batch": 5}, "batch 5 contradicts.*4"),
        ({"shapes": {"x": (4, 3, 8, 1.5)}}, "1.5 is not an integer"),
        ({"batch": 0}, "batch: 0 is not an integer of at least 1"),
    ],
)
def test_open_or_contradictory_inputs_are_named(options, said):
    with pytest.raises(InputError, match=said):
        Columns(two_inputs(), **options)


def test_batch_is_offered_where_it_is_enough():
    model = two_inputs({"x": f32("batch", 3), "mask": f32("batch", 7)})
    with pytest.raises(InputError, match="--batch N, or --shape"):
        Columns(model)


def test_shapes_settle_the_symbols_of_other_inputs():
    columns = Columns(two_inputs(), shapes={"x": (4, 3, 8, 9)})
    assert columns("mask", "output") == "f32[4,7]"
    assert columns.meta["assumed"] == ["batch = 4", "h = 8", "w = 9"]


@pytest.mark.parametrize("first", [-1, 0, None])
def test_first_dimensions_exporters_leave_open(first):
    model = two_inputs({"x": f32(first, 3), "mask": f32(2, 7)})
    assert Columns(model, batch=5)("x", "output") == "f32[5,3]"


def test_a_batch_the_file_fixes_cannot_change():
    model = two_inputs({"x": f32(2, 3), "mask": f32(2, 7)})
    assert Columns(model, batch=2).meta["batch"] == Columns(model).meta["batch"] == 2
    with pytest.raises(InputError, match=r"batch 4 asked for, but the file fixes 'x' to \[2, 3\]"):
        Columns(model, batch=4)


def test_shapes_the_model_cannot_take_are_named_with_the_op():
    model = make_model([node("MatMul", "x w", "fc")], {"x": f32("n", "k")}, [weight("w", 4, 5)])
    with pytest.raises(InputError, match=r"'fc' \(MatMul\) cannot take f32\[2,3\], f32\[4,5\]"):
        Columns(model, shapes={"x": (2, 3)})


# ---- files ------------------------------------------------------------------------------------


def test_read_gives_a_graph_named_after_its_file(tmp_path):
    path = tmp_path / "tiny.onnx"
    onnx.save(make_model([node("Relu", "x", "y")], {"x": f32("n", 3)}), path)
    assert read(path, batch=2).n_ops == read(str(path), batch=2).n_ops == 2
    with pytest.raises(InputError, match=r"tiny\.onnx: dimensions are left open: input 'x'"):
        read(path)


def test_bad_files_are_input_errors_that_name_them(tmp_path):
    whole = make_model([node("Relu", "x", "y")], {"x": f32(3)}).SerializeToString()
    for content in (b"", b"not a model at all", whole[: len(whole) // 2], bytes(range(256))):
        path = tmp_path / "bad.onnx"
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"bad\.onnx: "):
            read(path)
    for path in (tmp_path / "absent.onnx", tmp_path):
        with pytest.raises(InputError, match="cannot read"):
            read(path)


def test_broken_models_are_input_errors():
    x, stored = {"x": f32(3)}, [weight("w", 3)]
    for nodes, said in (
        ([node("Relu", "nothing", "y")], "'y' reads 'nothing', which nothing produces"),
        ([node("Relu", "x", "y"), node("Neg", "x", "y")], "two nodes produce the value 'y'"),
        ([node("Relu", "x", "w")], "the value 'w' is defined twice"),
        ([node("Loop", "x", "y")], "has no attribute 'body'"),
    ):
        with pytest.raises(InputError, match=said):
            Columns(make_model(nodes, x, stored))


def test_weights_kept_outside_need_not_be_there(tmp_path):
    model = make_model(
        [node("Relu", "x", "r"), node("Reshape", "r s", "v"), node("MatMul", "v w", "y")],
        {"x": f32(2, 6)},
        [weight("w", 4, 500), const("s", [3, 4])],
    )
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(path).n_ops == 6, "with the data there, the target of the Reshape is read"
    (tmp_path / "m.data").unlink()
    with pytest.warns(UserWarning, match="run time|such sizes|control flow") as caught:
        assert read(path).n_ops == 6
    assert "from op 'v' on (Reshape)" in str(caught[0].message)


def test_importing_the_package_does_not_import_onnx():
    code = "import sys, loadmaster; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_missing_onnx_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"loadmaster\[onnx\]"):
        read("model.onnx")


# ---- real files -------------------------------------------------------------------------------


def artifact(stem, batch=None):
    model = onnx.load(ARTIFACTS / f"{stem}.onnx", load_external_data=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return Columns(model, batch=batch)


def total(columns, kind, column="flops"):
    pairs = zip(columns.ops["kind"], columns.ops[column], strict=True)
    return sum(value for k, value in pairs if k == kind)


@pytest.mark.large_data
@pytest.mark.parametrize(
    ("stem", "fixed"),
    [
        ("bert_large_noweights", True),
        ("inception_v3_noweights", True),
        ("bertmini_d64", False),
        ("bertmini_d64.ort_optimized", False),
        ("lstm_d64", False),
        ("lstm_d64.ort_optimized", False),
        ("resnet18_w8", False),
        ("resnet18_w8.ort_optimized", False),
        ("resnet18_w8_noopt.ort_optimized", False),
    ],
)
def test_real_files_read_in_full(stem, fixed):
    columns = artifact(stem, None if fixed else 4)
    ops, edges = columns.ops, columns.document["edges"]
    assert not any("?" in text or "..." in text for text in ops["output"])
    assert len(set(ops["name"])) == len(ops["name"])
    assert all(s < d for s, d in zip(edges["src"], edges["dst"], strict=True))
    views = [i for i, view in enumerate(ops["view"]) if view]
    assert all(ops["view"][ops["alias_of"][i]] == 0 for i in views)
    sizes = dict(zip(edges["tensor"], edges["bytes"], strict=True))
    assert all(sizes[t] == b for t, b in zip(edges["tensor"], edges["bytes"], strict=True))
    if not fixed:
        assert columns.meta["batch"] == 4


@pytest.mark.large_data
def test_inception_at_batch_1_is_11_4_gflop():
    columns = artifact("inception_v3_noweights")
    assert total(columns, "Conv") == pytest.approx(11.4e9, rel=0.01)
    assert sum(columns.ops["param_bytes"]) == pytest.approx(4 * 23.8e6, rel=0.01)


@pytest.mark.large_data
def test_bert_large_is_twice_its_weights_per_token_and_attention():
    columns = artifact("bert_large_noweights")
    layers, tokens, length, width = 24, 2 * 64, 64, 1024
    weights = layers * 12 * width * width
    attention = layers * 4 * tokens * length * width
    assert total(columns, "MatMul") == 2 * weights * tokens + attention
    assert columns.meta["batch"] == 2


@pytest.mark.large_data
def test_optimised_files_cost_what_the_plain_ones_do():
    """Fusion changes which op does the work, not the work; channel padding adds some."""
    plain, fused = artifact("bertmini_d64", 2), artifact("bertmini_d64.ort_optimized", 2)
    products = total(fused, "MatMul") + total(fused, "com.microsoft.FusedMatMul")
    assert products + total(fused, "Gemm") == total(plain, "MatMul") + total(plain, "Gemm")
    blocked = total(artifact("resnet18_w8.ort_optimized", 2), "com.microsoft.nchwc.Conv")
    assert blocked > total(artifact("resnet18_w8", 2), "Conv")


@pytest.mark.large_data
def test_cost_is_linear_in_the_batch():
    one_sample, eight = (total(artifact("lstm_d64", b), "LSTM") for b in (1, 8))
    assert eight == 8 * one_sample
