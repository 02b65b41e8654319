"""Programs of torch.export, read without PyTorch: sizes, storage, edges, costs, bad files."""

from __future__ import annotations

import copy
import io
import json
import random
import re
import subprocess
import sys
import warnings
import zipfile

import pytest
from folders import EXAMPLES, LARGE
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.readers.pytorch import export as torch_export
from loadmaster.readers.pytorch.aten_costs import AtenTensor, cost, is_known, is_view, written
from loadmaster.readers.pytorch.aten_graph import AtenGraph, Effects, OpPlace
from loadmaster.readers.shared import symbolic
from loadmaster.readers.shared.formulas import Cost

ARTIFACTS = LARGE / "artifacts" / "torch"
PROGRAMS = {"bertmini_d32": None, "resnet18_w8": None, "resnet18_w8_dynbatch": 2}


# ---- programs of our own ----------------------------------------------------------------------


def size(value):
    return {"as_int": value} if isinstance(value, int) else {"as_expr": {"expr_str": value}}


def meta(*sizes, strides=None, dtype=7):
    if strides is None:
        strides, step = [], 1
        for each in reversed(sizes):
            strides.insert(0, step)
            step = step * each if isinstance(each, int) else 1
    return {
        "dtype": dtype,
        "sizes": [size(s) for s in sizes],
        "strides": [size(s) for s in strides],
        "layout": 7,
    }


def argument(value):
    match value:
        case str():
            return {"as_tensor": {"name": value}}
        case [str(), *_]:
            return {"as_tensors": [{"name": name} for name in value]}
        case bool():
            return {"as_bool": value}
        case int():
            return {"as_int": value}
        case dict():
            return {"as_graph": {"name": "body", "graph": value}}
        case list():
            return {"as_ints": value}
    return {"as_none": True}


def node(name, target, *arguments, outputs=None, several=False, stack=""):
    names = [name] if outputs is None else outputs
    written = [argument(n) for n in names] if not several else [argument(names)]
    return {
        "name": name,
        "target": target if "." in target.partition("aten.")[0] else f"torch.ops.{target}",
        "inputs": [{"name": "", "arg": argument(a), "kind": 1} for a in arguments],
        "outputs": written,
        "metadata": {"nn_module_stack": stack},
    }


def graph_of(inputs, nodes, values):
    return {
        "inputs": [argument(name) for name in inputs],
        "outputs": [],
        "nodes": nodes,
        "tensor_values": values,
    }


def program(inputs, nodes, values, outputs=(), ranges=None):
    """``inputs`` map a value to ("parameter" | "buffer" | "user_input", its name)."""
    specs = []
    for value, (role, name) in inputs.items():
        if role == "user_input":
            specs.append({role: {"arg": argument(value)}})
        else:
            specs.append({role: {"arg": {"name": value}, f"{role}_name": name}})
    return {
        "graph_module": {
            "graph": graph_of(inputs, nodes, values),
            "signature": {"input_specs": specs, "output_specs": list(outputs)},
        },
        "range_constraints": ranges or {},
        "torch_version": "2.13.0",
    }


def archive(path, document, files=None, name="models/model.json"):
    with zipfile.ZipFile(path, "w") as target:
        text = document if isinstance(document, str) else json.dumps(document)
        target.writestr(f"m/{name}", text)
        if files is not None:
            config = {parameter: {"path_name": file} for parameter, file in files.items()}
            target.writestr(
                "m/data/weights/model_weights_config.json", json.dumps({"config": config})
            )
    return path


def linear(**changes):
    """y = relu(x w^T) over an open batch."""
    open_ = "Symbol('s0', positive=True, integer=True)"
    return program(
        {"p_w": ("parameter", "fc.weight"), "x": ("user_input", "x")},
        [
            node("y", "aten.linear.default", "x", "p_w", stack="L__self___fc,fc,torch.nn.Linear"),
            node("z", "aten.relu_.default", "y"),
        ],
        {"p_w": meta(5, 3), "x": meta(open_, 3), "y": meta(open_, 5), "z": meta(open_, 5)},
        **({"ranges": {"s0": {"min_val": 2, "max_val": 64}}} | changes),
    )


def column(graph, name):
    return dict(zip(graph.names, getattr(graph, name).tolist(), strict=True))


def edges(graph):
    """(source, destination, bytes; None where it is a control edge)."""
    rows = zip(graph.src, graph.dst, graph.tensor, graph.bytes, strict=True)
    return {(graph.names[s], graph.names[d], None if t < 0 else int(b)) for s, d, t, b in rows}


# ---- what is read -----------------------------------------------------------------------------


def test_a_program_is_read_by_content_with_its_modules_and_sizes(tmp_path):
    graph = lm.read(archive(tmp_path / "net.zip", linear()), batch=8)
    assert graph.names == ["fc.weight", "x", "y", "z"]
    assert graph.kinds == ["parameter", "input", "aten.linear.default", "aten.relu_.default"]
    assert graph.modules == ["fc", "", "fc", ""]
    assert graph.outputs == ["f32[5,3]", "f32[8,3]", "f32[8,5]", "f32[8,5]"]
    assert graph.flops.tolist() == [0, 0, 2 * 8 * 3 * 5, 0]
    assert graph.bytes_accessed.tolist() == [0, 0, 4 * (24 + 15 + 40), 4 * 80]
    assert graph.output_bytes.tolist() == [60, 96, 160, 0]
    assert graph.alias_of.tolist() == [-1, -1, -1, 2], "relu_ writes where y is"
    assert graph.param_bytes.sum() == 60
    assert edges(graph) == {("fc.weight", "y", 60), ("x", "y", 96), ("y", "z", 160)}
    assert graph.meta["batch"] == 8
    assert graph.meta["assumed"] == ["s0 = 8"]
    assert graph.meta["framework"] == "torch 2.13.0"


@pytest.mark.parametrize("options", [{"batch": 8}, {"shapes": {"x": (8, 3)}}, {"sizes": {"s0": 8}}])
def test_open_sizes_are_given_in_three_ways(tmp_path, options):
    graph = torch_export.read(archive(tmp_path / "net.pt2", linear()), **options)
    assert column(graph, "flops")["y"] == 2 * 8 * 3 * 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"net\.pt2: dimensions are left open: input 'x' is \[s0, 3\].*--batch N.*"
             r"sizes=\{'s0': N\}"),
        ({"sizes": {"s1": 8}}, "'s1', which is not open; open are 's0'"),
        ({"sizes": {"s0": -1}}, "size of 's0': -1 is not an integer"),
        ({"batch": 65}, "s0 = 65, but the program was exported for s0 from 0 to 64"),
        ({"shapes": {"y": (8, 3)}}, "'y', which is not an input"),
        ({"shapes": {"x": (8, 4)}}, r"x=8,4 contradicts the model, which fixes x to \[s0, 3\]"),
        ({"sizes": {"s0": 4}, "batch": 8}, "batch 8 contradicts"),
    ],
)  # fmt: skip
def test_sizes_that_are_open_or_contradict_are_named(tmp_path, options, message):
    path = archive(tmp_path / "net.pt2", linear())
    with pytest.raises(InputError, match=message):
        lm.read(path, **options)


def test_a_batch_of_one_is_fine_where_export_wrote_two_as_the_least(tmp_path):
    assert lm.read(archive(tmp_path / "net.pt2", linear()), batch=1).meta["batch"] == 1


def test_sizes_that_follow_from_symbols(tmp_path):
    """A second input twice as long, and a slice of half of it."""
    s0, double = "Symbol('s0', integer=True)", "Mul(Integer(2), Symbol('s0', integer=True))"
    half = "FloorDiv(Add(Symbol('s0', integer=True), Integer(1)), Integer(2))"
    document = program(
        {"x": ("user_input", "x"), "y": ("user_input", "y")},
        [
            node("cut", "aten.slice.Tensor", "y", 0, 0),
            node("sum_1", "aten.sum.default", "cut"),
        ],
        {"x": meta(s0), "y": meta(double), "cut": meta(half), "sum_1": meta()},
    )
    path = archive(tmp_path / "net.pt2", document)
    graph = torch_export.read(path, shapes={"x": (9,)})
    assert graph.outputs == ["f32[9]", "f32[18]", "f32[5]", "f32[]"]
    with pytest.raises(InputError, match=r"input 'x' is \[s0\]\. Give"):
        torch_export.read(path, shapes={"y": (18,)})
    with pytest.raises(InputError, match=r"input 'y' cannot have size 17 where the program has"):
        torch_export.read(path, shapes={"x": (9,), "y": (17,)})
    lone = program({"y": ("user_input", "y")}, [node("z", "aten.relu.default", "y")],
                   {"y": meta(double), "z": meta(double)})  # fmt: skip
    path = archive(tmp_path / "lone.pt2", lone)
    with pytest.raises(InputError, match=r"input 'y' depends on the size 's0'.*\{'s0': N\}"):
        torch_export.read(path, shapes={"y": (18,)})
    assert torch_export.read(path, sizes={"s0": 9}).outputs[0] == "f32[18]"


def test_sizes_known_only_at_run_time_are_said(tmp_path):
    document = program(
        {"x": ("user_input", "x")},
        [
            node("nonzero", "aten.nonzero.default", "x"),
            node("sum_1", "aten.sum.default", "nonzero"),
        ],
        {"x": meta(6), "nonzero": meta("Symbol('u0')", 1, dtype=5), "sum_1": meta(dtype=5)},
        ranges={"u0": {"min_val": 0, "max_val": 6}},
    )
    path = archive(tmp_path / "net.pt2", document)
    with pytest.warns(UserWarning, match=r"run time count as 0: u0 \(sizes=\{'u0': N\}"):
        assert lm.read(path).output_bytes.tolist() == [24, 0, 8]
    assert lm.read(path, sizes={"u0": 4}).output_bytes.tolist() == [24, 32, 8]


def test_tied_weights_are_one_parameter(tmp_path):
    document = program(
        {
            "p_e": ("parameter", "emb.weight"),
            "p_h": ("parameter", "head.weight"),
            "x": ("user_input", "x"),
        },
        [
            node("e", "aten.embedding.default", "p_e", "x"),
            node("y", "aten.linear.default", "e", "p_h"),
        ],
        {"p_e": meta(9, 4), "p_h": meta(9, 4), "x": meta(2, dtype=5), "e": meta(2, 4),
         "y": meta(2, 9)},
    )  # fmt: skip
    tied = {"emb.weight": "weight_0", "head.weight": "weight_0"}
    graph = lm.read(archive(tmp_path / "tied.pt2", document, tied))
    assert graph.names == ["emb.weight", "x", "e", "y"]
    assert ("emb.weight", "y", 144) in edges(graph)
    apart = {"emb.weight": "weight_0", "head.weight": "weight_1"}
    graph = lm.read(archive(tmp_path / "apart.pt2", document, apart))
    assert graph.param_bytes.sum() == 2 * 144


def test_what_ops_are_called_with(tmp_path):
    open_ = "2*Symbol('s0', positive=True, integer=True)"
    call = node("z", "aten.full_like.default", "y")
    call["inputs"] = [
        {"name": name, "arg": argument, "kind": kind}
        for name, argument, kind in (
            ("self", {"as_tensor": {"name": "y"}}, 1),
            ("fill_value", {"as_float": 0.5}, 1),
            ("sizes", {"as_sym_ints": [{"as_int": 3}, {"as_name": "n"}, {"as_name": "?"}]}, 1),
            ("size", {"as_sym_int": {"as_name": "n"}}, 1),
            ("flags", {"as_bools": [True, False]}, 1),
            ("bias", {"as_optional_tensor": {"as_none": True}}, 1),
            (
                "indices",
                {"as_optional_tensors": [{"as_none": True}, {"as_tensor": {"name": "x"}}]},
                1,
            ),
            ("rows", {"as_nested_tensors": [[{"name": "x"}], []]}, 1),
            ("data", {"as_ints": list(range(65))}, 1),
            ("dtype", {"as_scalar_type": 13}, 2),
            ("layout", {"as_layout": 7}, 2),
            ("memory_format", {"as_memory_format": 2}, 2),
            ("device", {"as_device": {"type": "cuda", "index": 1}}, 2),
            ("generator", {"as_custom_obj": {"name": "g", "class_fqn": "c"}}, 2),
        )
    ]
    document = linear()
    graph = document["graph_module"]["graph"]
    graph["nodes"][1] = call
    graph["sym_int_values"] = {"n": size(open_), "m": size(-1)}
    found = lm.read(archive(tmp_path / "net.pt2", document), batch=8)
    y = {"op": 2}
    assert found.args == [
        None,
        None,
        [[{"op": 1}, {"op": 0}]],
        [
            [
                y,
                0.5,
                [3, 16, None],
                16,
                [True, False],
                None,
                [None, {"op": 1}],
                [[{"op": 1}], []],
                None,
            ],
            {
                "dtype": "torch.bfloat16",
                "layout": "torch.strided",
                "memory_format": "torch.channels_last",
                "device": "cuda:1",
                "generator": None,
            },
        ],
    ]


def test_older_files_do_not_say_which_arguments_are_keywords(tmp_path):
    document = linear()
    call = document["graph_module"]["graph"]["nodes"][1]
    call["inputs"] = [
        {"name": "self", "arg": argument("y")},
        {"name": "memory_format", "arg": {"as_memory_format": 1}},
    ]
    graph = lm.read(archive(tmp_path / "net.pt2", document), batch=8)
    assert graph.args[3] == [[{"op": 2}], {"memory_format": "torch.contiguous_format"}]


def test_several_results_are_taken_apart(tmp_path):
    document = program(
        {"x": ("user_input", "x")},
        [
            node("split", "aten.split.Tensor", "x", 2, outputs=["a", "b"], several=True),
            node("top", "aten.topk.default", "b", 1, outputs=["values", "top_unused_1"]),
            node("y", "aten.add.Tensor", "a", "values"),
        ],
        {"x": meta(4), "a": meta(2), "b": meta(2), "values": meta(1),
         "top_unused_1": meta(1, dtype=5), "y": meta(2)},
    )  # fmt: skip
    graph = lm.read(archive(tmp_path / "net.pt2", document))
    assert graph.names == ["x", "split", "a", "b", "top", "values", "y"]
    assert graph.kinds[2] == graph.kinds[5] == "getitem"
    view = column(graph, "view")
    assert [n for n in graph.names if view[n]] == ["split", "a", "b", "values"]
    owner = {n: a for n, a in column(graph, "alias_of").items() if a >= 0}
    assert owner == {"split": 0, "a": 0, "b": 0, "values": 4}
    tensors = {(graph.names[s], graph.names[d]): t
               for s, d, t in zip(graph.src, graph.dst, graph.tensor, strict=True)}  # fmt: skip
    assert tensors["split", "a"] == tensors["a", "y"] != tensors["split", "b"]
    assert column(graph, "output_bytes")["top"] == 4 + 8, "both results, read or not"
    assert graph.args[1:6] == [
        [[{"op": 0}, 2]], [[{"op": 1}, 0]], [[{"op": 1}, 1]], [[{"op": 3}, 1]], [[{"op": 4}, 0]]
    ]  # fmt: skip


def test_buffers_written_back_are_in_place_and_stay_with_their_update(tmp_path):
    """As run_decompositions leaves it: the new value is an output of the program."""
    document = program(
        {"b_n": ("buffer", "norm.count"), "x": ("user_input", "x")},
        [node("next", "aten.add.Tensor", "b_n", 1), node("y", "aten.mul.Tensor", "x", "b_n")],
        {"b_n": meta(dtype=5), "next": meta(dtype=5), "x": meta(3), "y": meta(3)},
        outputs=[
            {"buffer_mutation": {"arg": {"name": "next"}, "buffer_name": "norm.count"}},
            {"user_output": {"arg": {"as_tensor": {"name": "y"}}}},
        ],
    )
    graph = lm.read(archive(tmp_path / "net.pt2", document))
    assert graph.names == ["norm.count", "x", "next", "y", "copy__default"]
    assert column(graph, "alias_of")["copy__default"] == 0
    assert graph.args[4] == [[{"op": 0}, {"op": 2}]]
    assert graph.colocation == ["norm.count", "", "", "", "norm.count"]
    assert {("next", "copy__default", 8), ("y", "copy__default", None)} <= edges(graph), (
        "after it was read"
    )
    assert graph.modules[4] == "norm"


def test_what_only_gradients_need_is_backward(tmp_path):
    document = program(
        {"p_w": ("parameter", "w"), "x": ("user_input", "x")},
        [
            node("y", "aten.mv.default", "p_w", "x"),
            node("loss", "aten.sum.default", "y"),
            node("ones", "aten.ones_like.default", "loss"),
            node("dy", "aten.expand.default", "ones", [2]),
            node("dw", "aten.outer.default", "dy", "x"),
        ],
        {"p_w": meta(2, 3), "x": meta(3), "y": meta(2), "loss": meta(), "ones": meta(),
         "dy": meta(2, strides=[0]), "dw": meta(2, 3)},
        outputs=[
            {"loss_output": {"arg": {"name": "loss"}}},
            {"gradient_to_parameter": {"arg": {"name": "dw"}, "parameter_name": "w"}},
        ],
    )  # fmt: skip
    graph = lm.read(archive(tmp_path / "net.pt2", document))
    assert "".join(graph.phases) == "ffffbbb"
    assert graph.meta["mode"] == "train"
    assert ("dy", "dw", 4) in edges(graph), "a repeated element is sent once"
    assert column(graph, "bytes_accessed")["dw"] == 4 + 12 + 24


def test_arithmetic_on_sizes_and_checks_are_the_hosts(tmp_path):
    document = linear()
    nodes = document["graph_module"]["graph"]["nodes"]
    host = node("n", "aten.sym_size.int", "x", 0, outputs=[])
    host["outputs"] = [{"as_sym_int": {"as_name": "n"}}]
    check = node("check", "aten._assert_tensor_metadata.default", "x", outputs=[])
    nodes[:0] = [host, check]
    assert lm.read(archive(tmp_path / "net.pt2", document), batch=4).n_ops == 4


@pytest.mark.parametrize(
    ("target", "arguments", "flops", "kernels", "said"),
    [
        ("higher_order.cond", ["p", "SMALL", "LARGE"], 2 * 2 * 3 * 3, 1, "cond, its larger branch"),
        ("higher_order.while_loop", ["LARGE", "SMALL"], 36 + 4, 2, "while_loop, its body once"),
        ("higher_order.scan", ["LARGE", "x", ["rows"]], 5 * 36, 5, "scan, its body 5 times"),
        ("higher_order.scan", ["NESTED", "x", ["rows"]], 5 * 40, 10, "scan, its body 5 times"),
        ("higher_order.wrap_with_set_grad_enabled", [False, "LARGE"], 36, 1, ""),
    ],
)
def test_control_flow_costs_what_its_programs_do(tmp_path, target, arguments, flops, kernels, said):
    square, vector = {"x": meta(2, 3), "z": meta(3, 3)}, {"v": meta(2), "d": meta()}
    bodies = {
        "LARGE": graph_of(
            ["x"],
            [node("y", "aten.linear.default", "x", "z")],
            {**square, "y": meta(2, 3)},
        ),
        "SMALL": graph_of(["v"], [node("d", "aten.dot.default", "v", "v")], vector),
    }
    bodies["LARGE"]["inputs"].append(argument("z"))
    loop = node("y", "higher_order.while_loop", bodies["LARGE"], bodies["SMALL"])
    bodies["NESTED"] = graph_of(["x"], [loop], {"x": meta(2, 3), "y": meta(2, 3)})
    document = program(
        {n: ("user_input", n) for n in ("p", "x", "rows")},
        [node("y", target, *(bodies.get(a, a) if isinstance(a, str) else a for a in arguments))],
        {"p": meta(), "x": meta(2, 3), "rows": meta(5, 3), "y": meta(2, 3)},
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = lm.read(archive(tmp_path / "net.pt2", document))
    assert column(graph, "flops")["y"] == flops
    assert graph.launches[graph.index("y")] == kernels
    assert [bool(said and said in str(w.message)) for w in caught] == [True] * bool(said)


def test_unknown_kinds_are_listed_once_with_counts_where_the_user_asked(tmp_path):
    document = linear()
    document["graph_module"]["graph"]["nodes"][1]["target"] = "torch.ops.mine.relu.default"
    path = archive(tmp_path / "net.pt2", document)
    with pytest.warns(UserWarning, match=r"known for mine\.relu\.default \(1\)") as caught:
        graph = lm.read(path, batch=2)
    assert caught[0].filename == __file__
    assert column(graph, "bytes_accessed")["z"] == 2 * 40
    assert any("mine.relu" in note for note in graph.meta["assumed"])


def test_element_types_of_unknown_size_are_said(tmp_path):
    document = linear()
    document["graph_module"]["graph"]["tensor_values"]["z"]["dtype"] = 99
    with pytest.warns(UserWarning, match=r"unknown size count as 0 bytes: type99 \(1\)"):
        lm.read(archive(tmp_path / "net.pt2", document), batch=2)


# ---- bad files --------------------------------------------------------------------------------


def zipped(path, *names):
    with zipfile.ZipFile(path, "w") as target:
        for name in names:
            target.writestr(name, "x")
    return path


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["net/data.pkl", "net/code/__torch__.py"], "TorchScript archive.*torch.export.export"),
        (["net/data.pkl", "net/data/0"], "checkpoint of torch.save: weights without a graph"),
        (["net/data/aotinductor/net/x.so"], "compiled code"),
        (["word/document.xml"], "a zip file without a program of torch.export"),
        (["m/models/a.json", "m/models/b.json"], r"holds 2 programs \(m/models/a.json, "),
    ],
)
def test_other_zip_files_are_told_by_what_they_are(tmp_path, names, message):
    with pytest.raises(InputError, match=rf"net\.pt: .*{message}"):
        lm.read(zipped(tmp_path / "net.pt", *names))


def test_older_archives_and_packages_are_read(tmp_path):
    old = archive(tmp_path / "old.pt2", linear(), name="serialized_exported_program.json")
    assert lm.read(old, batch=2).n_ops == 4
    named = archive(tmp_path / "named.pt2", linear(), name="models/encoder.json")
    assert lm.read(named, batch=2).n_ops == 4


def test_a_program_larger_than_the_limit_is_not_unpacked(tmp_path):
    packed = archive(tmp_path / "net.pt2", " " * 5000)
    with pytest.raises(InputError, match=r"model\.json takes more than 2 KiB unpacked and parsed"):
        lm.read(packed, max_input="2KiB")


def test_a_size_that_lies_is_no_way_around_the_limit(tmp_path):
    path = archive(tmp_path / "net.pt2", linear())
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = (100).to_bytes(4, "little")  # the directory's uncompressed size
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        lm.read(path, batch=2, max_input="1KiB")


@pytest.mark.parametrize("keep", [0.2, 0.6, 0.95])
def test_truncated_archives(tmp_path, keep):
    path = archive(tmp_path / "net.pt2", linear())
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(InputError, match=r"net\.pt2: a damaged or truncated zip file"):
        lm.read(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g["nodes"].clear(), "the program has no ops"),
        (lambda g: g.pop("tensor_values"), "not the schema of torch.export.*tensor_values"),
        (lambda g: g["tensor_values"].pop("x"), "not the schema of torch.export.*'x'"),
        (lambda g: g["tensor_values"].update(y=meta(-1)), "size -1"),
        (lambda g: g["tensor_values"].update(y=meta(2, 3, strides=[1])), "1 strides for 2 sizes"),
        (lambda g: g["tensor_values"].update(y=meta("os.system('x')")), "cannot be told"),
        (lambda g: g["nodes"].reverse(), "op 'z' reads 'y', which nothing produces"),
        (lambda g: g["nodes"].append(g["nodes"][0]), "the value 'y' is defined twice"),
        (lambda g: g["tensor_values"].update(y=meta(2**60, 2**60)), "out of range"),
    ],
)
def test_damaged_programs_are_refused_with_the_culprit(tmp_path, change, message):
    document = linear()
    change(document["graph_module"]["graph"])
    with pytest.raises(InputError, match=message):
        lm.read(archive(tmp_path / "net.pt2", document), batch=2)


def test_not_json(tmp_path):
    with pytest.raises(InputError, match=r"models/model.json is not valid JSON"):
        lm.read(archive(tmp_path / "net.pt2", "{"))


JUNK = (
    None, 0, -1, 2**70, 1.5, "", "x", [], {}, True, [[]], {"as_int": 3}, "Symbol(", "9**9**9",
    {"as_tensor": {"name": "x"}}, {"as_expr": {"expr_str": "Pow(Pow(Integer(9), 9), 99)"}},
)  # fmt: skip


def places(value, path=()):
    """Every place in a document."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in pairs:
        yield (*path, key)
        if isinstance(each, (dict, list)):
            yield from places(each, (*path, key))


def everything():
    """A program with lists, programs within it, in-place ops, several results, copies back."""
    square = {"x": meta(2, 3), "z": meta(3, 3), "y": meta(2, 3)}
    body = graph_of(["x", "z"], [node("y", "aten.linear.default", "x", "z")], square)
    document = linear()
    graph = document["graph_module"]["graph"]
    graph["nodes"] += [
        node("parts", "aten.split.Tensor", "z", 1, outputs=["a", "b"], several=True),
        node("sum_1", "aten.add_.Tensor", "a", "b"),
        node("scan", "higher_order.scan", body, "x", ["z"]),
    ]
    graph["tensor_values"] |= {n: meta(1, 5) for n in ("a", "b", "sum_1")} | {"scan": meta(2, 3)}
    document["graph_module"]["signature"]["output_specs"] = [
        {"user_input_mutation": {"arg": {"name": "scan"}, "user_input_name": "x"}},
        {"user_output": {"arg": argument("sum_1")}},
    ]
    return document


FUZZED = everything()
PLACES = list(places(FUZZED))


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(range(-1, len(JUNK)))),
                min_size=1, max_size=3))  # fmt: skip
def test_documents_with_anything_in_them(tmp_path_factory, changes):
    document = copy.deepcopy(FUZZED)
    for place, junk in changes:
        target = document
        try:
            for key in place[:-1]:
                target = target[key]
            if junk < 0:
                del target[place[-1]]
            else:
                target[place[-1]] = JUNK[junk]
        except (KeyError, IndexError, TypeError):
            continue
    path = tmp_path_factory.getbasetemp() / "fuzzed.pt2"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lm.read(archive(path, document), batch=2)
    except InputError:
        pass


def test_archives_with_damaged_bytes(tmp_path):
    data = archive(tmp_path / "net.pt2", linear(), {"fc.weight": "weight_0"}).read_bytes()
    random_ = random.Random(0)
    for _ in range(200):
        broken = bytearray(data)
        for _ in range(random_.randint(1, 4)):
            broken[random_.randrange(4, len(broken))] = random_.randrange(256)
        (tmp_path / "net.pt2").write_bytes(broken)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                lm.read(tmp_path / "net.pt2", batch=2)
        except InputError:
            pass


# ---- expressions of sizes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Symbol('s0', positive=True, integer=True)", 7),
        ("Mul(Integer(2), Symbol('s0'))", 14),
        ("2*s0 + 1", 15),
        ("(s0 - 1)//2 + 1", 4),
        ("Add(FloorDiv(Add(Symbol('s0'), Integer(-1)), Integer(2)), Integer(1))", 4),
        ("Mul(Rational(1, 2), Add(Symbol('s0'), Integer(1)))", 4),
        ("Pow(Symbol('s0'), Integer(2))", 49),
        ("s0**2", 49),
        ("Mul(Symbol('s0'), Pow(Integer(7), Integer(-1)))", 1),
        ("Mod(Symbol('s0'), Integer(4))", 3),
        ("ModularIndexing(Symbol('s0'), Integer(2), Integer(2))", 1),
        ("Max(Integer(9), Symbol('s0'))", 9),
        ("CeilToInt(IntTrueDiv(Symbol('s0'), Integer(2)))", 4),
    ],
)
def test_expressions(text, value):
    assert symbolic.evaluate(text, {"s0": 7}) == value
    assert symbolic.symbols_of(text) == {"s0"}


@pytest.mark.parametrize(
    "text",
    ["s0 +", "__import__('os')", "s0.real", "[s0]", "s0 - 8", "s0 / 2", "1 // 0", "9**9**9",
     "Pow(Pow(Pow(9, 500), 500), 500)", "True", "'x'", "x" * 20_000, "(" * 5000, "-" * 5000 + "1"],
)  # fmt: skip
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        symbolic.evaluate(text, {"s0": 7})


# ---- costs ------------------------------------------------------------------------------------


def f32(*shape, strides=None):
    return AtenTensor("f32", shape, strides)


def long(*shape):
    return AtenTensor("i64", shape)


X, W = f32(2, 8, 10, 10), f32(6, 4, 3, 3)  # two groups
Q, K, V = f32(2, 4, 5, 8), f32(2, 4, 7, 8), f32(2, 4, 7, 16)
PAIRS = 2 * 4 * 5 * 7
RNN = [f32(12, 3), f32(12, 3), f32(12), f32(12)]  # one layer of three hidden units


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "flops"),
    [
        ("aten.mm.default", [f32(3, 4), f32(4, 5)], [f32(3, 5)], 2 * 3 * 4 * 5),
        ("aten::mm", [f32(3, 4), f32(4, 5)], [f32(3, 5)], 2 * 3 * 4 * 5),
        ("aten.addmm.default", [f32(5), f32(3, 4), f32(4, 5)], [f32(3, 5)], 120),
        ("aten.bmm.default", [f32(6, 3, 4), f32(6, 4, 5)], [f32(6, 3, 5)], 6 * 120),
        ("aten.baddbmm.default", [f32(6, 3, 5), f32(6, 3, 4), f32(6, 4, 5)], [f32(6, 3, 5)], 720),
        ("aten.addbmm.default", [f32(3, 5), f32(6, 3, 4), f32(6, 4, 5)], [f32(3, 5)], 720),
        ("aten.linear.default", [f32(2, 3, 4), f32(5, 4)], [f32(2, 3, 5)], 2 * 120),
        ("aten.dot.default", [f32(9), f32(9)], [f32()], 18),
        ("aten.mv.default", [f32(3, 4), f32(4)], [f32(3)], 24),
        ("aten.einsum.default", ["bij,bjk->bik", [f32(6, 3, 4), f32(6, 4, 5)]], [f32(6, 3, 5)],
         720),
        ("aten._trilinear.default", [f32(3, 4), f32(6, 4, 5), f32(3, 5), [1, 3], [0], [1, 2],
         [2, 3]], [f32(3, 6)], 2 * 3 * 6 * 4 * 5),
        ("aten.tensordot.default", [f32(3, 4, 5), f32(5, 4, 7), [1, 2], [1, 0]], [f32(3, 7)],
         2 * 3 * 7 * 20),
        ("aten.linear_backward.default", [f32(3, 4), f32(3, 5), f32(5, 4)],
         [f32(3, 4), f32(5, 4), f32(5)], 2 * 120),
        ("aten.conv2d.default", [X, W], [f32(2, 6, 8, 8)], 2 * (2 * 6 * 64) * (4 * 9)),
        ("aten.convolution.default", [X, W, None, [1], [0], [1], False], [f32(2, 6, 8, 8)],
         2 * (2 * 6 * 64) * (4 * 9)),
        ("aten.conv1d.default", [f32(8, 10), f32(6, 8, 3)], [f32(6, 8)], 2 * (6 * 8) * (8 * 3)),
        ("aten.conv_transpose2d.input", [X, f32(8, 6, 3, 3)], [f32(2, 6, 12, 12)],
         2 * (2 * 8 * 100) * (6 * 9)),
        ("aten.convolution.default", [X, f32(8, 6, 3, 3), None, [1], [0], [1], True],
         [f32(2, 6, 12, 12)], 2 * (2 * 8 * 100) * (6 * 9)),
        ("aten.convolution_backward.default", [f32(2, 6, 8, 8), X, W, [0], [1], [0], [1], False],
         [X, W, f32(6)], 2 * (2 * (2 * 6 * 64) * (4 * 9))),
        ("aten.convolution_backward.default", [f32(2, 6, 8, 8), X, W, [0], [1], [0], [1], False],
         [None, W, None], 2 * (2 * 6 * 64) * (4 * 9)),
        ("aten.scaled_dot_product_attention.default", [Q, K, V], [f32(2, 4, 5, 16)],
         2 * PAIRS * (8 + 16)),
        ("aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
         [f32(2, 4, 5, 16), Q, K, V], [Q, K, V], 2 * PAIRS * (3 * 8 + 2 * 16)),
        ("higher_order.flex_attention", [Q, K, V, None, []], [f32(2, 4, 5, 16)],
         2 * PAIRS * (8 + 16)),
        ("aten._efficient_attention_forward.default",
         [f32(2, 5, 4, 8), f32(2, 7, 4, 8), f32(2, 7, 4, 16)], [f32(2, 5, 4, 16)],
         2 * PAIRS * (8 + 16)),
        ("aten._flash_attention_forward.default",
         [f32(9, 4, 8), f32(9, 4, 8), f32(9, 4, 8), long(3), long(3), 5, 5], [f32(9, 4, 8)],
         2 * (9 * 4 * 5) * (8 + 8)),
        ("aten.lstm.input", [f32(5, 2, 3), [f32(1, 2, 3)] * 2, RNN], [f32(5, 2, 3)],
         2 * (5 * 2) * (36 + 36)),
        ("aten.mkldnn_rnn_layer_backward.default", [f32(5, 2, 3), *RNN], [f32(5, 2, 3)],
         2 * 2 * (5 * 2) * (36 + 36)),
        ("aten.lstm_cell.default", [f32(2, 3), [f32(2, 3)] * 2, *RNN], [f32(2, 3)] * 2,
         2 * 2 * (36 + 36)),
        ("aten._cudnn_rnn.default", [f32(5, 2, 3), RNN, 4], [f32(5, 2, 3)], 2 * 10 * 72),
        ("aten.relu.default", [X], [X], 0),
    ],
)  # fmt: skip
def test_flops(kind, inputs, outputs, flops):
    found = cost(kind, inputs, outputs)
    assert (found.flops, found.known) == (flops, True)


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "moved"),
    [
        ("aten.add.Tensor", [f32(9), f32(9)], [f32(9)], 3 * 36),
        ("aten.add_.Tensor", [f32(9), f32(9)], [f32(9)], 3 * 36),
        ("aten.copy_.default", [f32(9), f32(9)], [f32(9)], 2 * 36),
        ("aten.zero_.default", [f32(9)], [f32(9)], 36),
        ("aten.zeros_like.default", [f32(9)], [f32(9)], 36),
        ("aten.empty.memory_format", [[9]], [f32(9)], 0),
        ("aten.embedding.default", [f32(1000, 4), long(3)], [f32(3, 4)], 2 * 48 + 24),
        ("aten.index_select.default", [f32(1000, 4), 0, long(3)], [f32(3, 4)], 2 * 48 + 24),
        ("aten.index.Tensor", [f32(1000, 4), [long(3)]], [f32(3, 4)], 2 * 48 + 24),
        ("aten.index_put_.default", [f32(1000), [long(3)], f32(3)], [f32(1000)], 24 + 2 * 12),
        ("aten.index_add_.default", [f32(1000), 0, long(3), f32(3)], [f32(1000)], 24 + 3 * 12),
        ("aten._embedding_bag.default", [f32(1000, 4), long(6), long(2)], [f32(2, 4)],
         6 * 16 + 48 + 16 + 32),
        ("aten.cat.default", [[f32(2), f32(3)]], [f32(5)], 2 * 20),
        ("aten.clone.default", [f32(2, 8, strides=(1, 0))], [f32(2, 8)], 8 + 64),
        ("aten.view.default", [f32(9)], [f32(3, 3)], 0),
        ("aten.view_copy.default", [f32(9)], [f32(3, 3)], 2 * 36),
        ("aten.select_backward.default", [f32(3), [4, 3], 0, 0], [f32(4, 3)], 12 + 48),
    ],
)  # fmt: skip
def test_bytes(kind, inputs, outputs, moved):
    assert cost(kind, inputs, outputs) == Cost(0, moved, True)


def test_an_argument_given_twice_is_read_once():
    x = f32(9)
    assert cost("aten.mul.Tensor", [x, x], [f32(9)]).bytes == 2 * 36


def test_a_kind_with_arguments_it_cannot_have_costs_its_bytes_and_says_so():
    assert cost("aten.convolution.default", [X], [X]) == Cost(0, 2 * X.nbytes, False)
    assert cost("aten.mm.default", [None, 3], [f32(2)]) == Cost(0, 8, False)


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "view"),
    [
        ("aten.t.default", [], [], True),
        ("aten.transpose_.default", [], [], True),
        ("aten.clone.default", [], [], False),
        ("aten.meshgrid.indexing", [[f32(2), f32(3)], "ij"], [f32(2, 3), f32(2, 3)], False),
        ("aten.contiguous.default", [f32(2, 3, strides=(3, 1))], [f32(2, 3, strides=(3, 1))], True),
        ("aten.contiguous.default", [f32(2, 3, strides=(1, 2))], [f32(2, 3, strides=(3, 1))],
         False),
        ("aten.to.dtype", [f32(2)], [f32(2)], True),
        ("aten.to.dtype", [f32(2)], [AtenTensor("f16", (2,))], False),
        ("aten.dropout.default", [f32(2), 0.5, False], [f32(2)], True),
        ("aten.dropout.default", [f32(2), 0.5, True], [f32(2)], False),
        ("aten.reshape.default", [f32(2, 3, 4, strides=(12, 4, 1))], [f32(6, 4)], True),
        ("aten.reshape.default", [f32(2, 3, 4, strides=(12, 4, 1))], [f32(3, 8)], True),
        ("aten.reshape.default", [f32(3, 2, 4, strides=(4, 12, 1))], [f32(3, 2, 2, 2)], True),
        ("aten.reshape.default", [f32(3, 2, 4, strides=(4, 12, 1))], [f32(6, 4)], False),
        ("aten.reshape.default", [f32(3, 2, 4, strides=(4, 12, 1))], [f32(3, 8)], False),
        ("aten.flatten.using_ints", [f32(1, 6, 1, strides=(99, 1, 7))], [f32(6)], True),
    ],
)  # fmt: skip
def test_views(kind, inputs, outputs, view):
    assert is_view(kind, inputs, outputs) is view


def test_what_ops_write():
    assert written("aten._fused_adamw_.default", [[X], [X], [X], [X], [], [X]]) == (0, 2, 3, 4, 5)
    norm = [X, f32(8), f32(8), f32(8), f32(8), True]
    assert written("aten.native_batch_norm.default", norm) == (3, 4)
    assert written("aten.native_batch_norm.default", [*norm[:5], False]) == ()
    assert written("aten.detach_.default", [X]) == written("mine.thing_", [X]) == ()


@pytest.mark.parametrize(
    "kind",
    ["aten._foreach_add_.List", "aten.gelu_backward.default", "aten::native_layer_norm_backward",
     "aten._softmax_backward_data.default", "aten.slice_backward.default", "aten.expand_copy"],
)  # fmt: skip
def test_variants_are_known_by_their_family(kind):
    assert is_known(kind)
    assert not is_known(kind.replace("aten", "mine"))


@pytest.mark.parametrize("stem", ["lenet_train_b256", "vgg19_train_b64", "rnnlm_2x2048_train_b128",
                                  "bert_large_train_b16_s64"])  # fmt: skip
def test_costs_are_those_of_the_traced_graphs(stem):
    """FLOPs of every op, and bytes but for random numbers written in place (not read there)."""
    graph = lm.read(EXAMPLES / f"{stem}.json.gz")
    outputs = [[tensor_in(part) for part in text.split(";")] for text in graph.outputs]
    inputs = [[] for _ in graph.names]
    for s, d, t in zip(graph.src.tolist(), graph.dst.tolist(), graph.tensor.tolist(), strict=True):
        inputs[d] += [outputs[s][0]] if t >= 0 else []
    for i, kind in enumerate(graph.kinds):
        if kind.startswith("aten."):
            found = cost(kind, inputs[i], outputs[i])
            assert found.known, kind
            assert found.flops == graph.flops[i], graph.names[i]
            assert is_view(kind) == graph.view[i]
            assert "bernoulli_" in kind or found.bytes == graph.bytes_accessed[i], graph.names[i]


def tensor_in(text):
    match = re.fullmatch(r"(\w+)\[([\d,]*)\]", text)
    return match and AtenTensor(match[1], tuple(int(n) for n in match[2].split(",") if n))


# ---- order of reads and writes ----------------------------------------------------------------


def test_a_write_comes_after_the_reads_and_before_later_ones():
    graph = AtenGraph()
    weight = graph.placeholder("w", "parameter", f32(4, 4))
    x = graph.placeholder("x", "input", f32(4, 4))
    [turned] = graph.op(
        "aten.t.default", [weight], [f32(4, 4)], place=OpPlace("turned"), effects=Effects(weight)
    )
    changes = Effects(writes=[weight], in_place=True)
    [y] = graph.op("aten.mm.default", [x, turned], [f32(4, 4)], place=OpPlace("before"))
    [updated] = graph.op(
        "aten.add_.Tensor", [weight, x], [f32(4, 4)], place=OpPlace("update"), effects=changes
    )
    graph.op("aten.mm.default", [x, turned], [f32(4, 4)], place=OpPlace("alias"))
    graph.op("aten.mm.default", [x, updated], [f32(4, 4)], place=OpPlace("after"))
    graph.op("aten.mul_.Scalar", [weight], [f32(4, 4)], place=OpPlace("again"), effects=changes)
    found = lm.OpGraph.from_document(graph.document("order", {}))
    control = {(s, d) for s, d, size in edges(found) if size is None}
    assert control == {
        ("before", "update"),
        ("update", "alias"),
        ("alias", "again"),
        ("after", "again"),
        ("update", "again"),
    }
    assert found.colocation == ["w", "", "", "", "w", "", "", "w"]
    assert column(found, "alias_of")["turned"] == 0
    assert y.owner == 3


def test_each_result_of_an_op_is_a_storage_of_its_own():
    """A write into one is no write into the other."""
    graph = AtenGraph()
    x = graph.placeholder("x", "input", f32(4))
    values, indices = graph.op("aten.topk.default", [x, 2], [f32(2), long(2)])
    values = graph.getitem(values, 0, name="values")
    indices = graph.getitem(indices, 1, name="indices")
    graph.op(
        "aten.relu_.default",
        [values],
        [f32(2)],
        place=OpPlace("relu"),
        effects=Effects(writes=[values], in_place=True),
    )
    graph.op("aten.index_select.default", [x, 0, indices], [f32(2)], place=OpPlace("reads_indices"))
    graph.op("aten.neg.default", [values], [f32(2)], place=OpPlace("reads_values"))
    found = lm.OpGraph.from_document(graph.document("results", {}))
    control = {(s, d) for s, d, size in edges(found) if size is None}
    assert control == {("relu", "reads_values")}


# ---- what PyTorch wrote -----------------------------------------------------------------------


@pytest.mark.large_data
@pytest.mark.parametrize(("stem", "batch"), PROGRAMS.items())
def test_real_programs_read_in_full(stem, batch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = lm.read(ARTIFACTS / f"{stem}.pt2", batch=batch)
    assert graph.meta["batch"] == 2
    assert not [kind for kind in graph.kinds if kind.startswith("aten") and not is_known(kind)]
    assert (graph.src < graph.dst).all()
    views = graph.view.nonzero()[0]
    assert not graph.view[graph.alias_of[views]].any()
    sizes = dict(zip(graph.tensor, graph.bytes, strict=True))
    assert all(sizes[t] == b for t, b in zip(graph.tensor, graph.bytes, strict=True))
    if batch is None:
        assert graph.names[-1] in (ARTIFACTS / f"{stem}.fx.txt").read_text()


@pytest.mark.large_data
@pytest.mark.parametrize("stem", ["bertmini_d32", "resnet18_w8"])
def test_the_ops_are_those_that_torch_lists(stem):
    listing = (ARTIFACTS / f"{stem}.fx.txt").read_text()
    calls = re.findall(r'^ *(\w+)(?:: "[^"]*")? = torch\.ops\.([\w.]+)\(', listing, re.MULTILINE)
    graph = lm.read(ARTIFACTS / f"{stem}.pt2")
    own = zip(graph.names, graph.kinds, strict=True)
    assert [(name, kind) for name, kind in own if kind.startswith("aten")] == calls
    placed = json.loads((ARTIFACTS / f"{stem}.fx.json").read_text())
    assert sum(graph.placeholder) == sum(entry["op"] == "placeholder" for entry in placed)


@pytest.mark.large_data
def test_an_open_batch_scales_all_but_the_weights():
    two, eight = (lm.read(ARTIFACTS / "resnet18_w8_dynbatch.pt2", batch=b) for b in (2, 8))
    fixed = lm.read(ARTIFACTS / "resnet18_w8.pt2")
    assert two.to_document()["ops"] == fixed.to_document()["ops"]
    assert eight.flops.sum() == 4 * two.flops.sum()
    assert eight.param_bytes.sum() == two.param_bytes.sum()
    with pytest.raises(InputError, match=r"'x' is \[s77, 3, 64, 64\].*--batch N"):
        lm.read(ARTIFACTS / "resnet18_w8_dynbatch.pt2")


@pytest.mark.large_data
def test_onnx_and_torch_agree_on_the_convolutions():
    pytest.importorskip("onnx")
    torch_graph = lm.read(ARTIFACTS / "resnet18_w8_dynbatch.pt2", batch=4)
    onnx_graph = lm.read(ARTIFACTS.parent / "onnx" / "resnet18_w8.onnx", batch=4)
    found = [
        sum(f for k, f in zip(g.kinds, g.flops.tolist(), strict=True) if k in kinds)
        for g, kinds in ((torch_graph, "aten.conv2d.default"), (onnx_graph, "Conv"))
    ]
    assert found[0] * 96**2 == found[1] * 64**2 > 0, "images of 64 and of 96 pixels"


@pytest.mark.large_data
def test_modules_and_places_of_a_real_program():
    graph = lm.read(ARTIFACTS / "bertmini_d32.pt2")
    attention = graph.names.index("scaled_dot_product_attention")
    assert graph.modules[attention] == "enc.0.self_attn"
    assert graph.flops[attention] == 2 * (2 * 4 * 16 * 16) * (8 + 8)
    plan = lm.place(graph, lm.Cluster.preset("2xV100-NVLink"), "heft")
    assert plan.makespan > 0


def test_reading_needs_no_torch(tmp_path):
    path = archive(tmp_path / "net.pt2", linear())
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"import loadmaster as lm; print(lm.read({str(path)!r}, batch=2).n_ops)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "4\n"


def test_capturing_without_torch_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(lm.MissingExtraError, match=r"loadmaster\[torch\]"):
        lm.capture(None, None)
    with pytest.raises(lm.MissingExtraError, match=r"loadmaster\[torch\]"):
        lm.read(type("GraphModule", (), {"__module__": "torch.fx.graph_module"})())
    with pytest.raises(InputError, match=r"not from BytesIO; lm.capture takes a PyTorch model"):
        lm.read(io.BytesIO())
