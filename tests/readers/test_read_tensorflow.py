"""The TensorFlow reader: real graphs and runs, small ones checked by hand, bad files."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from damage import damaged
from folders import DATA, LARGE
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("google.protobuf")

import loadmaster as lm
from loadmaster.base.errors import InputError, LoadmasterError
from loadmaster.cli import main
from loadmaster.model import arguments
from loadmaster.readers.shared.ops import Op, Tensor
from loadmaster.readers.tensorflow import protos
from loadmaster.readers.tensorflow.costs import FLOPS, cost, is_update
from loadmaster.readers.tensorflow.graph_def import profile, read
from loadmaster.readers.tensorflow.nodes import MOST_BRIDGED
from loadmaster.readers.tensorflow.run import SessionRun, device_kind

ARTIFACTS = DATA / "artifacts" / "tf"
F32, I32, BOOL, RESOURCE, STRING = 1, 3, 10, 20, 7
CPU, GPU = "/job:localhost/replica:0/task:0/device:CPU:0", "/device:GPU:0"


# ---- graphs and runs by hand ------------------------------------------------------------------


def shape_of(message, sizes):
    if sizes is None:
        message.unknown_rank = True
    else:
        for size in sizes:
            message.dim.add(size=size)


class Made:
    """A GraphDef and the RunMetadata of a run of it, as they are made."""

    def __init__(self):
        classes = protos._classes()
        self.graph, self.run = classes["GraphDef"](), classes["RunMetadata"]()
        self.devices = {}

    def node(self, name, op, inputs="", shapes=((2, 4),), device="", loc=None, **attributes):
        node = self.graph.node.add(name=name, op=op, input=inputs.split(), device=device)
        for key, value in {"T": F32, **attributes}.items():
            attr = node.attr[key]
            if isinstance(value, int):
                attr.type = value
            elif isinstance(value, str):
                attr.s = value.encode()
            elif key == "shape":
                shape_of(attr.shape, value)
            else:
                attr.list.i.extend(value)
        if loc:
            node.attr["_class"].list.s.append(f"loc:@{loc}".encode())
        for sizes in shapes:
            shape_of(node.attr["_output_shapes"].list.shape.add(), sizes)
        return self

    def variable(self, name, sizes, loc=None):
        return self.node(name, "VariableV2", shapes=(sizes,), dtype=F32, shape=sizes, loc=loc)

    def ran(self, name, nanos, *, kind="", outputs=((2, 4),), device=CPU, times=1, temp=0):
        for _ in range(times):
            stats = self.device(device).node_stats.add(node_name=name)
            stats.op_start_rel_nanos, stats.op_end_rel_nanos = 100, 100 + nanos
            stats.memory_stats.temp_memory_size = temp
            stats.timeline_label = f"{name} = {kind}(x, y)" if kind else ""
            for slot, sizes in enumerate(outputs):
                described = stats.output.add(slot=slot).tensor_description
                described.dtype = F32
                shape_of(described.shape, sizes)
                described.allocation_description.requested_bytes = 4 * int(np.prod(sizes))
        return self

    def device(self, name):
        if name not in self.devices:
            self.devices[name] = self.run.step_stats.dev_stats.add(device=name)
        return self.devices[name]

    def read(self, folder, *, with_run=True, silent=True, **options):
        graph, run = folder / "g.pb", folder / "r.pb"
        graph.write_bytes(self.graph.SerializeToString())
        if with_run and self.devices:
            run.write_bytes(self.run.SerializeToString())
            options["profile"] = run
        with warnings.catch_warnings():
            if silent:
                warnings.simplefilter("ignore")
            return lm.read(graph, **options)


def varint_of(number):
    """A number below 2**14 as protobuf writes it."""
    return bytes([number & 127 | 128, number >> 7])


def constant(made, name, values, packed=True, dtype=I32):
    """A constant of integers, packed or as a list."""
    array = np.array(values, "<i4" if dtype == I32 else "<i8")
    made.node(name, "Const", shapes=(array.shape,), dtype=dtype)
    tensor = made.graph.node[-1].attr["value"].tensor
    tensor.dtype = dtype
    shape_of(tensor.tensor_shape, array.shape)
    if packed:
        tensor.tensor_content = array.tobytes()
    else:
        (tensor.int_val if dtype == I32 else tensor.int64_val).extend(array.ravel().tolist())
    return made


def call(graph, name):
    """What an op is called with, by names."""
    return arguments.renumbered(graph.args[graph.index(name)], graph.names.__getitem__)


@pytest.mark.parametrize(("packed", "dtype"), [(True, I32), (False, I32), (True, 9), (False, 9)])
def test_axes_and_shapes_that_are_constants_are_keywords(tmp_path, packed, dtype):
    made = Made().node("x", "Placeholder", dtype=F32)
    for name, values in {
        "axes": [0, -1],
        "rows": [[1, 2], [0, 0]],
        "last": 1,
        "many": [0] * 65,
    }.items():
        constant(made, name, values, packed, dtype)
    made.node("sum", "Sum", "x axes").node("pad", "Pad", "x rows").node("view", "Reshape", "x many")
    made.node("joined", "ConcatV2", "x pad last", shapes=((2, 8),))
    graph = made.read(tmp_path)
    assert call(graph, "sum") == [[{"op": "x"}, {"op": "axes"}], {"T": "DT_FLOAT", "axis": [0, -1]}]
    assert call(graph, "pad")[1]["paddings"] == [[1, 2], [0, 0]]
    assert call(graph, "view")[1]["shape"] is None, "data is not told"
    assert call(graph, "joined")[0] == [{"op": "x"}, {"op": "pad"}, {"op": "last"}]
    assert call(graph, "joined")[1]["axis"] == 1
    assert graph.args[graph.index("axes")] is None


def test_the_last_number_of_a_constant_stands_for_those_that_follow(tmp_path):
    made = constant(Made().node("x", "Placeholder", dtype=F32), "begin", [3, 5, 5], packed=False)
    del made.graph.node[-1].attr["value"].tensor.int_val[2:]
    made.node("size", "Placeholder", dtype=I32).node("part", "Slice", "x begin size")
    assert call(made.read(tmp_path), "part")[1] == {"T": "DT_FLOAT", "begin": [3, 5, 5]}


def test_a_constant_that_is_damaged_says_nothing(tmp_path):
    made = constant(Made().node("x", "Placeholder", dtype=F32), "perm", [1, 0])
    made.graph.node[-1].attr["value"].tensor.tensor_content = b"abc"
    made.node("t", "Transpose", "x perm")
    assert call(made.read(tmp_path), "t")[1]["perm"] is None


def test_attributes_of_every_type_are_keywords(tmp_path):
    made = Made().node("x", "Placeholder", dtype=F32)
    made.node("y", "Op", "x", padding="SAME", strides=[1, 2], shape=[-1, 3])
    attributes = made.graph.node[-1].attr
    attributes["epsilon"].f, attributes["training"].b, attributes["zero"].i = 0.5, False, 0
    attributes["unknown"].shape.unknown_rank = True
    attributes["types"].list.type.extend([F32, I32])
    attributes["scales"].list.f.extend([0.25, 4])
    attributes["flags"].list.b.append(True)
    attributes["weights"].tensor.dtype = F32
    attributes["shapes"].list.shape.add().dim.add(size=4)
    attributes["nothing"].SetInParent()
    assert call(made.read(tmp_path), "y") == [
        [{"op": "x"}],
        {
            "T": "DT_FLOAT", "epsilon": 0.5, "flags": [True], "nothing": None, "padding": "SAME",
            "scales": [0.25, 4.0], "shape": [-1, 3], "shapes": [[4]], "strides": [1, 2],
            "training": False, "types": ["DT_FLOAT", "DT_INT32"], "unknown": None,
            "weights": None, "zero": 0,
        },
    ]  # fmt: skip


def edges(graph, control=None):
    """Names of the ends of edges; of control edges, or of those with data, alone."""
    return {
        (graph.names[s], graph.names[d])
        for s, d, t in zip(graph.src, graph.dst, graph.tensor, strict=True)
        if control is None or control == (t < 0)
    }


def step(made=None):
    """x -> product with w -> bias -> relu, and w's gradient applied."""
    made = made or Made()
    made.node("x", "Placeholder", dtype=F32).variable("net/w", (4, 8))
    made.node("net/w/read", "Identity", "net/w", ((4, 8),), loc="net/w")
    made.node("net/product", "MatMul", "x net/w/read", ((2, 8),))
    made.node("net/relu", "Relu", "net/product", ((2, 8),))
    made.node("gradients/net/product_grad/MatMul", "MatMul", "x net/relu", ((4, 8),))
    made.node("sgd/rate", "Const", shapes=((),), dtype=F32)
    return made.node(
        "sgd/update_net/w/ApplyGradientDescent",
        "ApplyGradientDescent",
        "net/w sgd/rate gradients/net/product_grad/MatMul",
        ((4, 8),),
        loc="net/w",
    )


# ---- real files -------------------------------------------------------------------------------


def artifact(name, batch=None):
    path = ARTIFACTS / f"{name}.graphdef.pb.gz"
    run = ARTIFACTS / f"{name}_b{batch}.runmetadata.pb.gz"
    return (path, run) if batch else path


def loaded(name, batch):
    path, run = artifact(name, batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lm.read(path, profile=run), protos.load_run(run), protos.load_graph(path)


@pytest.mark.parametrize(
    ("name", "batch", "ran", "absent", "ops"),
    [
        ("tf_resnet8", 2, 348, 21, 329),
        ("tf_resnet8", 32, 348, 21, 329),
        ("tf_lstm_static", 4, 891, 16, 877),
        ("tf_lstm_while", 8, 231, 6, 227),
        ("tf_2dev", 8, 114, 15, 101),
    ],
)
def test_what_ran_is_read_with_its_times(name, batch, ran, absent, ops):
    path, run = artifact(name, batch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = lm.read(path, profile=run)
    told = [str(w.message) for w in caught]
    assert all(w.filename == __file__ for w in caught)
    # What ran, less what is not in the GraphDef, and the inputs: x and y.
    assert graph.n_ops == ops
    assert any(re.match(rf"{absent} measured ops \('_SOURCE', ", text) for text in told), told
    assert graph.meta["assumed"] == told
    assert graph.meta["batch"] == batch
    stats = [s for d in protos.load_run(run).step_stats.dev_stats for s in d.node_stats]
    assert len({s.node_name for s in stats}) == ran
    nanos = sum(
        s.op_end_rel_nanos - s.op_start_rel_nanos for s in stats if s.node_name in set(graph.names)
    )
    assert graph.time["cpu"].sum() == pytest.approx(nanos * 1e-9, rel=1e-12)
    assert graph.meta["mode"] == "train"
    fed = [n for n, kind in zip(graph.names, graph.kinds, strict=True) if kind == "input"]
    assert fed == ["x", "y"]


def test_loops_are_counted_and_cut():
    graph, run, message = loaded("tf_lstm_while", 8)
    runs = [s.node_name for d in run.step_stats.dev_stats for s in d.node_stats]
    assert (len(runs), len(set(runs))) == (1516, 231)
    assert graph.meta["loops"] == [
        {"loop": "while/while_context", "ops": 66, "rounds": 12},
        {"loop": "gradients/while/while_context", "ops": 87, "rounds": 12},
    ]
    assert "12 back edges are cut" in graph.meta["assumed"][0]
    assert sum(node.op == "NextIteration" for node in message.node) == 12
    # The body's product: 12 times 2 * 8 * 256 * 512, and one FLOP for each bias.
    at = graph.index("while/BiasAdd")
    assert graph.kinds[at] == "_FusedMatMul"
    assert graph.flops[at] == 12 * (2 * 8 * 512 * 256 + 8 * 512)
    # The gradient's loop comes after the forward loop's body.
    found = closure(graph)
    body, after = graph.index("while/BiasAdd"), graph.index("gradients/while/split_grad/concat")
    assert found[body] >> after & 1
    assert found[graph.index("while/NextIteration_3")] >> graph.index("while/Exit_3") & 1


def test_roles_of_a_training_step():
    graph, _, message = loaded("tf_resnet8", 4)
    kinds = dict(zip(graph.names, graph.kinds, strict=True))
    phases = dict(zip(graph.names, graph.phases, strict=True))
    modules = dict(zip(graph.names, graph.modules, strict=True))
    assert (kinds["stem/w"], kinds["stem/w/Momentum"]) == ("parameter", "buffer")
    assert (phases["stem/w"], phases["stem/w/Momentum"]) == ("f", "o")
    assert modules["stem/w/Momentum"] == modules["Momentum/update_stem/w/ApplyMomentum"]
    assert modules["stem/w/Momentum"] == "optim.stem"
    assert phases["gradients/blk0_a/Conv2D_grad/Conv2DBackpropInput"] == "b"
    assert phases["Momentum/learning_rate"] == "o"
    # The variables that are trained, and as many bytes of momentum.
    trained = [n.input[0] for n in message.node if n.op == "ApplyMomentum"]
    sizes = dict(zip(graph.names, graph.param_bytes.tolist(), strict=True))
    assert sum(sizes[n] for n in trained) == sum(sizes[f"{n}/Momentum"] for n in trained)
    assert {n for n, kind in kinds.items() if kind == "parameter"} == set(trained)
    # A variable, its slot and its update stay together; the update changes it in place.
    update = graph.index("Momentum/update_stem/w/ApplyMomentum")
    together = {graph.colocation[graph.index(n)] for n in ("stem/w", "stem/w/Momentum")}
    assert together == {graph.colocation[update]} == {"stem/w"}
    assert graph.names[graph.alias_of[update]] == "stem/w"
    assert (graph.output_bytes[update], bool(graph.view[update])) == (0, False)
    assert graph.view[graph.index("stem/w/read")]


def test_convolutions_by_hand():
    graph, _, _ = loaded("tf_resnet8", 4)
    assert graph.outputs[graph.index("x")] == "f32[4,32,32,3]"
    flops = 2 * (4 * 32 * 32 * 16) * (3 * 3 * 3)
    assert graph.outputs[graph.index("stem/Conv2D")] == "f32[4,32,32,16]"
    assert graph.flops[graph.index("stem/Conv2D")] == flops
    assert graph.flops[graph.index("gradients/stem/Conv2D_grad/Conv2DBackpropFilter")] == flops
    moved = 4 * (4 * 32 * 32 * 3 + 3 * 3 * 3 * 16 + 4 * 32 * 32 * 16)
    assert graph.bytes_accessed[graph.index("stem/Conv2D")] == moved


def test_a_batch_sweep_is_a_profile_each():
    path = artifact("tf_resnet8")
    sweep = [
        profile(artifact("tf_resnet8", b)[1], graph=path, device_type="host")
        for b in (2, 4, 8, 16, 32)
    ]
    assert [p.batch for p in sweep] == [2, 4, 8, 16, 32]
    assert {p.device_type for p in sweep} == {"host"}
    graph, _, _ = loaded("tf_resnet8", 2)
    assert all(set(p.names) == set(sweep[0].names) <= set(graph.names) for p in sweep)
    assert sweep[0].kinds == tuple(graph.kinds[graph.index(n)] for n in sweep[0].names)
    at = [p.names.index("stem/Conv2D") for p in sweep]
    sizes = [int(p.output_bytes[i]) for p, i in zip(sweep, at, strict=True)]
    assert sizes == [4 * b * 32 * 32 * 16 for b in (2, 4, 8, 16, 32)]
    whole = profile(artifact("tf_resnet8", 2)[1])
    assert whole.n_ops == 348
    two = profile([artifact("tf_resnet8", 2)[1]] * 2, graph=path)
    assert two.n_steps == 2


def test_devices_are_kept():
    graph, _, _ = loaded("tf_2dev", 8)
    devices = graph.meta["devices"]
    head = "/job:localhost/replica:0/task:0/device:CPU:"
    assert {f"{head}0", f"{head}1"} <= set(devices)
    assert "b/Conv2D" in devices[f"{head}1"]
    assert "stem/Conv2D" in devices[f"{head}0"]
    assert sum(map(len, devices.values())) == graph.n_ops


def test_the_command_line_places_it(capsys, tmp_path):
    cluster = tmp_path / "c.toml"
    cluster.write_text(
        '[[device]]\nname="a"\ntype="cpu"\nmemory="1GiB"\n'
        '[[device]]\nname="b"\ntype="cpu"\nmemory="1GiB"\n'
        '[[link]]\nfrom="a"\nto="b"\nbandwidth=1e10\n[[link]]\nfrom="b"\nto="a"\nbandwidth=1e10\n'
    )
    path, run = map(str, artifact("tf_lstm_while", 8))
    words = ["place", path, "--profile", run, "--cluster", str(cluster), "--method", "heft"]
    assert main([*words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert 0 < json.loads(out)["makespan"] <= 20.9e-3
    assert "warning: 2 loops: 'while/while_context' (66 ops, 12 rounds)" in err
    assert main([*words[:2], "--fetch", "nonesuch"]) == 2
    assert "no node is called 'nonesuch'" in capsys.readouterr().err


@pytest.mark.large_data
def test_a_meta_graph_is_its_graph():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        meta = lm.read(LARGE / "artifacts" / "tf" / "tf_resnet8.metagraph.pb")
        plain = lm.read(artifact("tf_resnet8"))
    assert meta.digest == plain.digest
    assert plain.n_ops == 939


@pytest.mark.large_data
def test_a_storm_of_control_edges_passes_without_a_trace():
    path = LARGE / "artifacts" / "tf" / "tf_inception_v3_train_b512_ctlstorm.graphdef.pb.gz"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = lm.read(path)
    assert graph.n_ops == 7891
    # Those of the file, and three to reshapes from constants that say how.
    assert graph.meta["control_edges"] == {"read": 163298 + 3, "needed": 124569 + 3}
    names = {name: at for at, name in enumerate(graph.names)}
    pairs = [
        (names[text.removeprefix("^").partition(":")[0]], at)
        for at, node in enumerate(protos.load_graph(path).node)
        for text in node.input
    ]
    assert len(pairs) == 163298 + 10028
    assert closure(graph) == reached(graph.n_ops, pairs)


def test_fetches_leave_the_rest_out():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = lm.read(artifact("tf_inception_v3_train_b512"), fetches=["Mean"])
    assert not set(graph.phases) - {"f"}
    # Inception v3: 5.7 G multiply-adds per image.
    convolutions = sum(
        int(f) for f, kind in zip(graph.flops, graph.kinds, strict=True) if kind == "Conv2D"
    )
    assert convolutions / 512 == pytest.approx(2 * 5.71e9, rel=0.01)
    with pytest.warns(UserWarning, match=r"initialise or save .* give fetches= or profile="):
        lm.read(artifact("tf_inception_v3_train_b512"))


def closure(graph):
    return reached(graph.n_ops, zip(graph.src.tolist(), graph.dst.tolist(), strict=True))


def reached(n, pairs):
    """What each op reaches, as the bits of a number."""
    readers, missing = [set() for _ in range(n)], [0] * n
    for s, d in pairs:
        if d not in readers[s]:
            readers[s].add(d)
            missing[d] += 1
    order = [i for i in range(n) if not missing[i]]
    for i in order:
        for d in readers[i]:
            missing[d] -= 1
            if not missing[d]:
                order.append(d)
    assert len(order) == n
    found = [0] * n
    for i in reversed(order):
        for d in readers[i]:
            found[i] |= found[d] | 1 << d
    return found


def test_tensorflow_is_not_imported():
    code = (
        "import sys; import loadmaster.readers.tensorflow.protos as protos;"
        "protos._classes(); print('tensorflow' in sys.modules, 'onnx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


# ---- graphs by hand ---------------------------------------------------------------------------


def test_a_step_by_hand(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = step().read(tmp_path, silent=False)
    assert graph.names[3] == "net/product"
    assert graph.kinds[:3] == ["input", "parameter", "Identity"]
    assert graph.flops[graph.index("net/product")] == 2 * 2 * 4 * 8
    assert graph.bytes_accessed[graph.index("net/product")] == 4 * (8 + 32 + 16)
    assert graph.flops[graph.index("net/relu")] == 16
    assert graph.phases == ["f", "f", "f", "f", "f", "b", "o", "o"]
    assert graph.modules[3] == "net"
    assert graph.modules[7] == "optim.net"
    assert graph.param_bytes.tolist() == [0, 128, 0, 0, 0, 0, 0, 0]
    assert graph.alias_of.tolist() == [-1, -1, 1, -1, -1, -1, -1, 1]
    assert graph.colocation == ["", "net/w", "net/w", "", "", "", "", "net/w"]
    assert ("net/w/read", "net/product") in edges(graph, control=False)
    assert graph.meta["loops"] == []


def test_what_onednn_ran_is_what_it_stands_for(tmp_path):
    made = Made().node("x", "Placeholder", dtype=F32).variable("w", (4, 8))
    made.node("rewritten", "_MklMatMul", "x w", ((2, 8),))
    made.node("product", "MatMul", "x w", ((2, 8),))
    made.ran("rewritten", 1000, kind="_MklMatMul", outputs=((2, 8),))
    made.ran("product", 2000, kind="_MklFusedMatMul", outputs=((2, 8),))
    graph = made.read(tmp_path)
    at = [graph.index("rewritten"), graph.index("product")]
    assert [graph.kinds[i] for i in at] == ["MatMul", "_FusedMatMul"]
    assert graph.flops[at].tolist() == [2 * 2 * 4 * 8, 2 * 2 * 4 * 8 + 16]


def test_outputs_and_control_inputs(tmp_path):
    made = Made().node("x", "Placeholder").node("dim", "Const", shapes=((),), dtype=I32)
    made.node("split", "Split", "dim x", ((2, 2), (2, 2)))
    made.node("a", "Relu", "split", ((2, 2),)).node("b", "Relu", "split:1", ((2, 2),))
    made.node("end", "NoOp", "^a ^b", ()).node("c", "Relu", "split:1 ^end", ((2, 2),))
    graph = made.read(tmp_path)
    tensor_of = {
        (graph.names[s], graph.names[d]): t
        for s, d, t in zip(graph.src, graph.dst, graph.tensor.tolist(), strict=True)
    }
    assert tensor_of["split", "b"] == tensor_of["split", "c"] != tensor_of["split", "a"]
    assert tensor_of["a", "end"] == tensor_of["end", "c"] == -1
    assert graph.output_bytes[graph.index("split")] == 32
    assert set(graph.bytes[graph.src == graph.index("split")].tolist()) == {16}


def test_implied_control_edges_go(tmp_path):
    made = Made().node("a", "Placeholder").node("b", "Relu", "a").node("c", "Relu", "b ^a")
    made.node("d", "Relu", "a ^b ^c")
    graph = made.read(tmp_path)
    assert edges(graph, control=True) == {("c", "d")}
    assert graph.meta["control_edges"] == {"read": 3, "needed": 1}


def test_nodes_that_were_merged_or_forwarded_are_bridged(tmp_path):
    """The product ran inside of the bias, what tells shapes was folded, identities were dropped."""
    made = Made().node("x", "Placeholder", dtype=F32).variable("w", (4, 8)).variable("v", (8,))
    made.node("first", "Relu", "x").node("same", "Identity", "first ^late")
    made.node("late", "Relu", "x").node("product", "MatMul", "same w", ((9, 9),))
    made.node("bias", "BiasAdd", "product v", ((9, 9),))
    made.node("shape", "Shape", "first", ((2,),)).node("fill", "Fill", "shape x")
    made.node("folded", "AddN", "first x").node("group", "NoOp", "^bias ^first", ())
    made.node("end", "Relu", "bias ^group", ((9, 9),))
    made.ran("_arg_x_0_0", 10, outputs=((2, 4),)).ran("first", 1000).ran("late", 500)
    made.ran("w", 10, outputs=((4, 8),)).ran("v", 10, outputs=((8,),))
    made.ran("bias", 2000, kind="_FusedMatMul", outputs=((2, 8),))
    made.ran("fill", 300).ran("folded", 50, kind="Const").ran("end", 100, outputs=((2, 8),))
    graph = made.read(tmp_path)
    assert graph.names == ["x", "w", "v", "first", "late", "bias", "fill", "folded", "end"]
    assert edges(graph, control=False) == {
        *(("x", "first"), ("x", "late"), ("first", "bias"), ("w", "bias"), ("v", "bias")),
        *(("x", "fill"), ("bias", "end")),
    }
    assert edges(graph, control=True) == {("late", "bias"), ("first", "fill")}
    assert graph.kinds[graph.index("bias")] == "_FusedMatMul"
    assert graph.flops[graph.index("bias")] == 2 * 2 * 8 * 4 + 2 * 8
    assert graph.kinds[graph.index("folded")] == "constant"
    assert graph.time["cpu"][graph.index("bias")] == pytest.approx(2e-6)


def test_a_node_that_joins_many_stays_at_no_cost(tmp_path):
    made = Made().node("x", "Placeholder", dtype=F32)
    names = [f"n{i}" for i in range(MOST_BRIDGED + 1)]
    for name in names:
        made.node(name, "Relu", "x").ran(name, 1000)
    made.node("join", "NoOp", " ".join(f"^{n}" for n in names), ())
    made.node("a", "Relu", "x ^join").node("b", "Relu", "x ^join").ran("a", 500).ran("b", 500)
    made.ran("_arg_x_0_0", 1)
    graph = made.read(tmp_path)
    assert graph.time["cpu"][graph.index("join")] == 0
    assert len(edges(graph, control=True)) == len(names) + 2


def loop(rounds=None):
    """``for _ in range(rounds): v = relu(v)``, and what comes after it."""
    made = Made().node("x", "Placeholder", dtype=F32)
    made.node("enter", "Enter", "x", frame_name="while").node("merge", "Merge", "enter next")
    made.node("more", "LoopCond", "merge", ((),))
    made.node("switch", "Switch", "merge more", ((2, 4), (2, 4)))
    made.node("body", "Relu", "switch:1").node("next", "NextIteration", "body")
    made.node("exit", "Exit", "switch").node("after", "Relu", "exit")
    if rounds:
        made.ran("enter", 10).ran("merge", 10, times=rounds + 1)
        made.ran("more", 10, times=rounds + 1, outputs=((),))
        made.ran("switch", 10, times=rounds + 1, outputs=((2, 4), (2, 4)))
        made.ran("body", 1000, times=rounds).ran("next", 10, times=rounds)
        made.ran("exit", 10).ran("after", 1000).ran("_arg_x_0_0", 5)
    return made


def test_a_loop_by_hand(tmp_path):
    with pytest.warns(UserWarning, match=r"'while' \(7 ops, 5 rounds\).*1 back edges are cut"):
        graph = loop(rounds=5).read(tmp_path, silent=False)
    assert ("next", "merge") not in edges(graph)
    assert ("next", "exit") in edges(graph, control=False)
    assert graph.time["cpu"][graph.index("body")] == pytest.approx(5e-6)
    assert graph.flops[graph.index("body")] == 5 * 8
    assert graph.flops[graph.index("after")] == 8
    found = closure(graph)
    assert found[graph.index("body")] >> graph.index("after") & 1


def test_a_loop_that_nobody_ran_counts_once(tmp_path):
    with pytest.warns(UserWarning, match=r"unknown rounds\).*takes once, since no run says"):
        graph = loop().read(tmp_path, silent=False)
    assert graph.flops[graph.index("body")] == 8
    assert graph.meta["loops"] == [{"loop": "while", "ops": 7, "rounds": None}]


def test_a_cycle_that_is_no_loop_is_named(tmp_path):
    made = Made().node("a", "Relu", "b").node("b", "Relu", "a")
    with pytest.raises(InputError, match=r'g\.pb: .*cycle: "[ab]" -> "[ab]"'):
        made.read(tmp_path)
    made = Made().node("a", "AddN", "b").node("b", "AddN", "a").node("c", "Relu", "a")
    made.ran("c", 10)
    with pytest.raises(InputError, match=r"cycle through '[ab]'"):
        made.read(tmp_path)


def test_pools_and_norms(tmp_path):
    made = Made().node("x", "Placeholder", shapes=((1, 8, 8, 4),), dtype=F32)
    made.node("pool", "MaxPool", "x", ((1, 4, 4, 4),), ksize=(1, 2, 2, 1))
    made.node("back", "MaxPoolGrad", "x pool pool", ((1, 8, 8, 4),), ksize=(1, 2, 2, 1))
    made.node("mean", "Mean", "x pool", ((1, 4),)).node("odd", "MyOwnOp", "x", ((1, 8, 8, 4),))
    with pytest.warns(UserWarning, match=r"no FLOPs are known for MyOwnOp \(1\): these ops are"):
        graph = made.read(tmp_path, silent=False)
    assert graph.flops.tolist() == [0, 64 * 4, 64 * 4, 256, 0]
    assert graph.bytes_accessed[graph.index("odd")] == 2 * 4 * 256


def test_what_has_no_shape_is_counted(tmp_path):
    made = Made().node("x", "Placeholder", shapes=(None,)).node("y", "Relu", "x", ((-1, 4),))
    with pytest.warns(UserWarning, match=r"for want of shapes: Relu \(1\)"):
        graph = made.read(tmp_path, silent=False)
    assert graph.outputs == ["f32[...]", "f32[?,4]"]
    # A run tells.
    made.ran("_arg_x_0_0", 1, outputs=((7, 4),)).ran("y", 300, outputs=((7, 4),))
    graph = made.read(tmp_path)
    assert graph.outputs == ["f32[7,4]", "f32[7,4]"]
    assert graph.meta["batch"] == 7


@settings(max_examples=15)
@given(st.lists(st.sampled_from(("Relu", "MatMul", "Identity")), min_size=1), st.data())
def test_most_ops_without_shapes_are_refused_with_the_way(tmp_path_factory, kinds, data):
    """More than half of the ops that work; any fewer are read with a warning that says the same."""
    made, missing, working = Made().node("x", "Placeholder"), 0, 0
    for i, kind in enumerate(kinds):
        known = data.draw(st.booleans())
        made.node(f"n{i}", kind, "x x" if kind == "MatMul" else "x", ((2, 4),) if known else ())
        working += kind != "Identity"
        missing += kind != "Identity" and not known
    way = "add_shapes=True"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        graph = made.read(tmp_path_factory.mktemp("g"), silent=False)
    assert any(way in str(warning.message) for warning in said) == (missing > 0)
    if 2 * missing > working:
        with pytest.raises(InputError, match=rf"sizes of {missing} of {working} op.*{way}"):
            lm.place(graph, "2xV100-NVLink", "heft")
    elif working:
        lm.place(graph, "2xV100-NVLink", "heft")


def test_workspace_and_kinds_of_costs(tmp_path):
    made = step()
    made.ran("net/product", 900, outputs=((2, 8),), temp=4096).ran("net/relu", 100, temp=1)
    graph = made.read(tmp_path)
    assert graph.workspace.tolist()[graph.index("net/product")] == 4096
    assert graph.names == ["x", "net/w", "net/product", "net/relu"]


def test_an_einsum_costs_what_its_equation_says(tmp_path):
    made = Made().node("x", "Placeholder", dtype=F32)
    made.node("y", "Einsum", "x x", ((2, 2),), equation="ij,kj->ik")
    graph = made.read(tmp_path)
    assert graph.flops[graph.index("y")] == 2 * 2 * 2 * 4


@pytest.mark.parametrize("kind", sorted(FLOPS))
def test_every_rule_takes_what_it_gets(kind):
    """No inputs, inputs without shapes, scalars, matrices: a cost, perhaps incomplete."""
    for tensor in (None, Tensor(), Tensor("f32", ()), Tensor("f32", (3, 3)), Tensor("f32", (0, 2))):
        for n in (0, 1, 3):
            ins = [tensor or Tensor()] * n
            found = cost(Op(kind, ins, ins[:1], {"ksize": [2, 2]}))
            assert found.flops >= 0
            assert found.bytes >= 0


def test_products_by_hand():
    def flops(kind, *shapes, **attrs):
        *ins, out = [Tensor("f32", s) for s in shapes]
        return cost(Op(kind, ins, [out], attrs)).flops

    assert flops("BatchMatMulV2", (5, 3, 4), (5, 4, 6), (5, 3, 6)) == 2 * 5 * 3 * 4 * 6
    assert flops("MatMul", (4, 3), (4, 6), (3, 6)) == 2 * 3 * 4 * 6  # transpose_a
    assert flops("Conv2D", (1, 8, 8, 4), (3, 3, 2, 8), (1, 8, 8, 8)) == 2 * 512 * 18  # 2 groups
    back = flops("Conv2DBackpropInput", (4,), (3, 3, 4, 8), (1, 4, 4, 8), (1, 8, 8, 4))
    assert back == 2 * 128 * 36
    depth = flops("DepthwiseConv2dNative", (1, 8, 8, 4), (3, 3, 4, 2), (1, 8, 8, 8))
    assert depth == 2 * 512 * 9
    attention = {"equation": "aecd,abcd->acbe"}
    assert flops("Einsum", (2, 7, 4, 8), (2, 5, 4, 8), (2, 4, 5, 7), **attention) == 2 * 280 * 8
    assert flops("AddN", (3,), (3,), (3,), (3,)) == 6
    assert is_update("ResourceScatterAdd")
    assert not is_update("ScatterNd")


def test_device_strings():
    assert device_kind("/job:ps/replica:0/task:0") == ""
    assert device_kind("/device:XLA_GPU:3") == "xla_gpu"


# ---- runs -------------------------------------------------------------------------------------


def test_kernels_of_a_gpu_take_the_place_of_the_hosts_time(tmp_path):
    made = step()
    for name, nanos in (("net/product", 3000), ("net/relu", 2000)):
        made.ran(name, nanos, device=GPU, outputs=((2, 8),))
    made.ran("net/product:MatMul", 40000, device="/device:GPU:0/stream:all")
    made.ran("net/product:MatMul", 2000, device="/device:GPU:0/stream:all")
    made.ran("net/product:MatMul", 42000, device="/device:GPU:0/stream:7")
    graph = made.read(tmp_path)
    assert graph.time["gpu"][graph.index("net/product")] == pytest.approx(42e-6)
    assert graph.time["gpu"][graph.index("net/relu")] == pytest.approx(2e-6)


def test_several_kinds_of_devices_want_a_word(tmp_path):
    made = step().ran("net/product", 10).ran("net/relu", 10, device=GPU)
    with pytest.raises(InputError, match=r"\(1 on cpu, 1 on gpu\): give device_type="):
        made.read(tmp_path)
    assert set(made.read(tmp_path, device_type="V100").time) == {"V100"}


def test_times_in_microseconds_are_not_cut_to_nothing(tmp_path):
    made = step().ran("net/product", 0)
    stats = made.device(CPU).node_stats[0]
    stats.ClearField("op_start_rel_nanos")
    stats.ClearField("op_end_rel_nanos")
    stats.op_start_rel_micros, stats.op_end_rel_micros = 1, 1
    graph = made.read(tmp_path)
    assert graph.time["cpu"][graph.index("net/product")] == pytest.approx(0.5e-6)


def test_the_cost_graph_stands_in_for_step_stats(tmp_path):
    made = step()
    for name, micros in (("net/product", 7), ("net/relu", 3), ("_SINK", 0)):
        node = made.run.cost_graph.node.add(name=name, device=CPU, compute_cost=micros)
        output = node.output_info.add(size=64, dtype=F32)
        shape_of(output.shape, (2, 8))
    made.devices["none"] = None
    with pytest.warns(UserWarning, match="times are the cost graph's estimates"):
        graph = made.read(tmp_path, silent=False)
    assert graph.time["cpu"][graph.index("net/product")] == pytest.approx(7e-6)
    made.run.cost_graph.node[0].compute_cost = -1
    with pytest.raises(InputError, match="'net/product' has the compute_cost -1"):
        made.read(tmp_path)


def test_medians_of_several_runs(tmp_path):
    paths = []
    for i, nanos in enumerate((9000, 1000, 2000)):
        paths.append(tmp_path / f"r{i}.pb")
        run = Made().ran("net/product", nanos).ran("net/relu", 10).run
        paths[-1].write_bytes(run.SerializeToString())
    graph = step().read(tmp_path, with_run=False, profile=paths)
    assert graph.time["cpu"][graph.index("net/product")] == pytest.approx(2e-6)


# ---- bad files --------------------------------------------------------------------------------


def test_runs_of_another_graph(tmp_path):
    made = step().ran("elsewhere", 10).ran("else", 10).ran("net/relu", 10)
    with pytest.raises(InputError, match=r"of another graph: 1 of the 3 ops that ran"):
        made.read(tmp_path)
    with pytest.raises(InputError, match="none of the nodes that the fetches need ran"):
        step().ran("net/relu", 10).read(tmp_path, fetches=["sgd/rate"])


def test_negative_times_and_sizes(tmp_path):
    with pytest.raises(InputError, match=r"op 'net/relu' ends 0\.000005000 s before it starts"):
        step().ran("net/relu", -5000).read(tmp_path)
    made = step().ran("net/relu", 5)
    described = made.device(CPU).node_stats[0].output[0].tensor_description
    described.allocation_description.requested_bytes = -3
    with pytest.raises(InputError, match="output 0 of -3 bytes"):
        made.read(tmp_path)


def test_bad_graphs(tmp_path):
    with pytest.raises(InputError, match="two nodes are called 'x'"):
        step(Made().node("x", "Relu")).read(tmp_path)
    with pytest.raises(InputError, match="'a' reads 'gone:1', which no node produces"):
        Made().node("a", "Relu", "gone:1").read(tmp_path)
    with pytest.raises(InputError, match=r"no node is called 'net/rel'; did you mean 'net/relu'"):
        step().read(tmp_path, fetches=["net/rel"])
    with pytest.raises(
        InputError, match=r"a TensorFlow graph takes no option 'batch': it takes profil"
    ):
        step().read(tmp_path, batch=3)


def test_kinds_of_files_are_told_apart(tmp_path):
    path = tmp_path / "f"
    step().ran("net/relu", 5).read(tmp_path)
    with pytest.raises(InputError, match=r"is RunMetadata: .* give the GraphDef, and this as prof"):
        lm.read(tmp_path / "r.pb")
    with pytest.raises(InputError, match="is no RunMetadata, a truncated one, or one without"):
        lm.read(tmp_path / "g.pb", profile=tmp_path / "g.pb")
    path.write_bytes((tmp_path / "g.pb").read_bytes()[:-7])
    with pytest.raises(InputError, match="is no TensorFlow GraphDef, or a truncated one"):
        lm.read(path)
    path.write_bytes(gzip.compress((tmp_path / "g.pb").read_bytes())[:-7])
    with pytest.raises(InputError, match="damaged or truncated gzip"):
        lm.read(path)
    with pytest.raises(InputError, match="is empty"):
        read(Path(tmp_path / "f2").touch() or tmp_path / "f2")
    # JSON may begin with a line feed, and a first node be as long as a brace is in ASCII.
    path.write_text("\n" + json.dumps(lm.read("example:lenet").to_document()))
    assert lm.read(path).n_ops == 104
    for text in ("\nmodule @jit_f {}\n", "\n# comment\n", "\n\n", "\n", "\n  %0 = a\n"):
        assert not protos.may_be_graph(text.encode())
    for length in (ord("{"), ord("[")):
        made = Made().node("a", "Placeholder", dtype=F32)
        made.graph.node[0].device = "/" * (length - made.graph.node[0].ByteSize() - 2)
        data = made.graph.SerializeToString()
        assert data[:2] == b"\n" + bytes([length])
        assert made.read(tmp_path).names == ["a"]


def text_of(made):
    from google.protobuf import text_format

    return text_format.MessageToString(made.graph)


def test_texts_are_read_as_their_binaries(tmp_path):
    made = step()
    made.graph.versions.producer = 1
    binary, path = made.read(tmp_path), tmp_path / "g.pbtxt"
    assert "DT_FLOAT" in text_of(made)
    for text in (
        text_of(made),
        "# as written by hand\n\n" + text_of(made) + 'library { function { ret { key: "a" } } }',
        "meta_info_def { tensorflow_version: '1.15' }\ngraph_def {" + text_of(made) + "}",
        text_of(made).replace("DT_FLOAT", "DT_FLOAT_REF"),
    ):
        path.write_text(text)
        assert lm.read(path).digest == binary.digest
    path.write_text(text_of(made)[:-9])
    with pytest.raises(
        InputError, match=r"is no text of a TensorFlow graph, or a cut one: \d+:\d+"
    ):
        lm.read(path)
    path.write_text("versions { producer: 1 }")
    with pytest.raises(InputError, match="is no TensorFlow GraphDef"):
        lm.read(path)
    path.write_text("node { " + "attr { " * 100_000)
    with pytest.raises(InputError, match="is no text of a TensorFlow graph"):
        lm.read(path)


@pytest.mark.parametrize("call", ["PartitionedCall", "StatefulPartitionedCall", "Relu"])
def test_a_saved_model_is_read_unless_its_ops_are_in_functions(tmp_path, call):
    path, meta = tmp_path / "saved_model.pb", protos._classes()["MetaGraphDef"]()
    meta.meta_info_def.tensorflow_version = "2.20"
    meta.graph_def.CopyFrom(Made().node("x", "Placeholder").node("y", call, "x").graph)
    data = meta.SerializeToString()
    path.write_bytes(b"\x08\x01\x12" + varint_of(len(data)) + data)
    if call == "Relu":
        assert lm.read(path).kinds == ["input", "Relu"]
    else:
        with pytest.raises(InputError, match=r"ops are inside functions: give.*add_shapes"):
            lm.read(path)
    path.write_bytes(b"\x08\x01\x12\x02\x0a\x00")
    with pytest.raises(InputError, match="a SavedModel without a graph"):
        lm.read(path)


@given(st.integers(0, 2**32))
def test_damaged_texts(tmp_path_factory, seed):
    path = tmp_path_factory.mktemp("damaged") / "g.pbtxt"
    path.write_bytes(damaged(text_of(step()).encode(), random.Random(seed)))
    with warnings.catch_warnings(), contextlib.suppress(LoadmasterError):
        warnings.simplefilter("ignore")
        lm.read(path)


@pytest.fixture(scope="module")
def whole():
    made = loop(rounds=3)
    step(made_without_input(made)).ran("net/product", 10, outputs=((2, 8),)).ran("net/relu", 5)
    return made.graph.SerializeToString(), made.run.SerializeToString()


def made_without_input(made):
    """The same, so that ``step`` can add an input called ``x`` of its own."""
    made.graph.node[0].name = "x0"
    made.graph.node[1].input[0] = "x0"
    return made


@given(st.integers(0, 2**32), st.booleans())
def test_damaged_files(tmp_path_factory, whole, seed, damages_run):
    random_ = random.Random(seed)
    parts = list(whole)
    parts[damages_run] = damaged(parts[damages_run], random_)
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "g.pb").write_bytes(parts[0])
    (folder / "r.pb").write_bytes(parts[1])
    for options in ({}, {"profile": folder / "r.pb", "device_type": "cpu"}):
        with warnings.catch_warnings(), contextlib.suppress(LoadmasterError):
            warnings.simplefilter("ignore")
            read(folder / "g.pb", **options)


KINDS = (
    *("Placeholder", "Const", "VariableV2", "Identity", "Relu", "AddN", "Shape", "NoOp", "Enter"),
    *("Merge", "Switch", "Exit", "NextIteration", "Assign", "ApplyMomentum", "ReadVariableOp"),
)
wild = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.lists(st.tuples(st.integers(0, 11), st.integers(0, 2), st.booleans()), max_size=3),
        st.integers(0, 3),  # how often it ran
        st.integers(0, 11),  # what it is put with
    ),
    min_size=1,
    max_size=12,
)


@given(wild, st.booleans())
def test_any_graph_is_read_or_refused(tmp_path_factory, rows, forwards):
    """Cycles, loops that are none, updates of what is no variable, runs of a part: all the same."""
    made, n = Made(), len(rows)
    for i, (kind, inputs, runs, mate) in enumerate(rows):
        named = []
        for source, port, waits in inputs:
            source %= max(i, 1) if forwards else n
            if source != i or not forwards:
                named.append(f"^n{source}" if waits else f"n{source}:{port}")
        named.sort(key=lambda text: text.startswith("^"))
        made.node(f"n{i}", kind, " ".join(named), dtype=F32, shape=(2, 4), loc=f"n{mate % n}")
        if runs:
            made.ran(f"n{i}", 100 + i, times=runs, kind=kind)
    folder = tmp_path_factory.mktemp("wild")
    for with_run in (False, True):
        try:
            graph = made.read(folder, with_run=with_run)
        except InputError:
            continue
        if with_run and made.devices:
            nanos = sum((100 + i) * row[2] for i, row in enumerate(rows))
            assert graph.time["cpu"].sum() == pytest.approx(nanos * 1e-9)
        else:
            assert graph.n_ops == n


@given(st.binary(max_size=60))
def test_any_bytes(data):
    protos.may_be_graph(data)
    protos.may_be_saved_model(b"\x08\x01\x12" + data)
    protos.may_be_graph(b"\n{" + data)
    run = protos._parsed(data, "RunMetadata")
    if run is not None:
        with contextlib.suppress(LoadmasterError):
            SessionRun.of(run)
