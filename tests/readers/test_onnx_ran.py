"""A profile of ONNX Runtime says what ran: every time and every size that a model leaves open."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from loadmaster.readers.onnx.nodes import declared_dims  # noqa: E402
from loadmaster.readers.onnx.profile import read  # noqa: E402

CALLED = {"f4": "float", "i8": "int64", "b1": "bool"}
RUN = {"cat": "Session", "name": "model_run", "dur": 9}


def info(name, *dims):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def drawn(kinds, named, rows):
    """A chain on x [?, 8] that keeps two axes of 8 columns; a weight has the shape of x, too."""
    nodes, stored, value = [], [], "x"
    for i, kind in enumerate(kinds):
        name = f"v{i}"
        stored_name = f"w{i}"
        if kind == "MatMul":
            stored.append(numpy_helper.from_array(np.ones((8, 8), np.float32), stored_name))
            made = [helper.make_node("MatMul", [value, stored_name], [name])]
        elif kind == "Add":
            stored.append(numpy_helper.from_array(np.ones((rows, 8), np.float32), stored_name))
            made = [helper.make_node("Add", [stored_name, "x"], [name])]
        elif kind == "rows":  # as many rows as there are of data: inference cannot tell
            made = [
                helper.make_node("NonZero", [value], [f"{name}n"]),
                helper.make_node("Transpose", [f"{name}n"], [f"{name}t"]),
                helper.make_node("Slice", [f"{name}t", "zero", "two", "zero"], [f"{name}s"]),
                helper.make_node("GatherND", ["table", f"{name}s"], [f"{name}g"]),
                helper.make_node("Reshape", [f"{name}g", "shape"], [f"{name}r"]),
                helper.make_node("Mul", [f"{name}r", "eights"], [name]),
            ]
        else:
            made = [helper.make_node(kind, [value], [name])]
        nodes, value = nodes + made, name
    for i, node in enumerate(nodes):
        node.name = f"n{i}" if named[i % len(named)] else ""
    numbers = {"zero": [0], "two": [2], "shape": [-1, 1]}
    stored += [numpy_helper.from_array(np.array(n), name) for name, n in numbers.items()]
    stored.append(numpy_helper.from_array(np.ones((1, 8), np.float32), "eights"))
    stored.append(numpy_helper.from_array(np.ones((99, 8), np.float32), "table"))
    graph = helper.make_graph(nodes, "g", [info("x", "?", "?")], [info(value, "?", "?")], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def recorded(model, x, drops):
    """Events as ONNX Runtime writes them, and the array of every value."""
    whole = onnx.ModelProto.FromString(model.SerializeToString())
    values = [value for node in model.graph.node for value in node.output]
    del whole.graph.output[:]
    whole.graph.output.extend(helper.make_empty_tensor_value_info(v) for v in values)
    arrays = dict(zip(values, ReferenceEvaluator(whole).run(None, {"x": x}), strict=True))
    arrays["x"] = x
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}

    def types(names):
        tensors = [arrays[name] if name in arrays else stored[name] for name in names]
        return [{CALLED[t.dtype.str[1:]]: list(t.shape)} for t in tensors]

    events = []
    for i, node in enumerate(model.graph.node):
        # Some kernels keep a weight in a form of their own, and do not say that they read it.
        keeps = drops and node.op_type == "MatMul"
        args = {
            "op_name": node.op_type,
            "output_size": str(sum(arrays[v].nbytes for v in node.output)),
            "input_type_shape": types(v for v in node.input if not (keeps and v in stored)),
            "output_type_shape": types(node.output),
        }
        name = node.name or f"{node.op_type}_{i}"
        events.append({"cat": "Node", "name": f"{name}_kernel_time", "dur": 10 + i, "args": args})
    return [*events, RUN], arrays


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.sampled_from(["Relu", "MatMul", "Add", "rows", "Sigmoid"]), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=1, max_size=3),
    st.sampled_from([1, 3, 8]),
    st.booleans(),
)
def test_no_time_and_no_size_is_lost(tmp_path_factory, kinds, named, rows, drops):
    folder = tmp_path_factory.mktemp("ran")
    model = drawn(["Relu", *kinds], named, rows)
    x = np.random.default_rng(rows).normal(size=(rows, 8)).astype(np.float32)
    events, arrays = recorded(model, x, drops)
    onnx.save(model, folder / "m.onnx")
    (folder / "p.json").write_text(json.dumps(events))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is left out
        graph = read(folder / "m.onnx", profile=folder / "p.json")
    micros = [event["dur"] + 0.5 for event in events[:-1]]
    assert graph.time["cpu"].sum() == pytest.approx(1e-6 * sum(micros))
    runs = [op for op in range(graph.n_ops) if not graph.placeholder[op]]
    assert graph.time["cpu"][runs].tolist() == pytest.approx([1e-6 * m for m in micros])
    for op, node in zip(runs, model.graph.node, strict=True):
        shape = ",".join(map(str, arrays[node.output[0]].shape))
        assert graph.outputs[op].partition("[")[2] == f"{shape}]"


def test_an_op_whose_size_nobody_tells_keeps_its_time(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("NonZero", ["a"], ["y"], name="where"),
    ]
    graph = helper.make_graph(
        nodes, "g", [info("x", 4, 8)], [helper.make_empty_tensor_value_info("y")]
    )
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    events = [
        {"cat": "Node", "name": "relu_kernel_time", "dur": 3,
         "args": {"op_name": "Relu", "output_size": "128"}},
        {"cat": "Node", "name": "where_kernel_time", "dur": 7,
         "args": {"op_name": "NonZero", "output_size": "352"}},
        RUN,
    ]  # fmt: skip
    (tmp_path / "p.json").write_text(json.dumps(events))
    with pytest.warns(UserWarning, match="known only at run time"):
        graph = read(tmp_path / "m.onnx", profile=tmp_path / "p.json")
    assert graph.time["cpu"].tolist() == pytest.approx([0, 3.5e-6, 7.5e-6])


def test_kernels_inside_of_bodies_are_in_the_time_of_the_op_that_has_them(tmp_path):
    body = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["t"], name="relu")], "b", [], [info("t", 4, 8)]
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("If", ["c"], ["y"], name="if", then_branch=body, else_branch=body),
    ]
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph(
        nodes, "g", [info("x", 4, 8), condition], [info("y", 4, 8), info("a", 4, 8)]
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx"
    )

    def event(name, ts, dur, kind=None):
        args = {"op_name": kind} if kind else {}
        called = f"{name}_kernel_time" if kind else name
        category = "Node" if kind else "Session"
        return {"cat": category, "name": called, "ts": ts, "dur": dur, "args": args}

    run = [
        event("relu", 10, 4, "Relu"),
        event("relu", 20, 2, "Relu"),  # inside
        event("SequentialExecutor::Execute", 19, 4),
        event("if", 15, 9, "If"),
        event("SequentialExecutor::Execute", 8, 20),
        event("model_run", 7, 22),
    ]
    (tmp_path / "p.json").write_text(json.dumps(run * 2))
    with pytest.warns(UserWarning, match="control flow") as caught:
        graph = read(tmp_path / "m.onnx", profile=tmp_path / "p.json")
    assert len(caught) == 1
    seconds = dict(zip(graph.names, graph.time["cpu"].tolist(), strict=True))
    assert seconds == pytest.approx({"x": 0, "c": 0, "relu": 4.5e-6, "if": 9.5e-6})


def test_names_that_name_nothing_are_no_symbols():
    tensor = info("x", "?", "?", "n", 3).type
    assert declared_dims(tensor) == [None, None, "n", 3]


def test_an_input_that_only_a_body_reads_has_the_size_that_ran(tmp_path):
    body = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["t"], name="relu")], "b", [], [info("t", "?", 8)]
    )
    node = helper.make_node("If", ["c"], ["y"], name="if", then_branch=body, else_branch=body)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph([node], "g", [info("x", "?", 8), condition], [info("y", "?", 8)])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx"
    )
    inside = {"op_name": "Relu", "input_type_shape": [{"float": [5, 8]}]}
    ran = {"cat": "Session", "name": "SequentialExecutor::Execute"}
    events = [
        {"cat": "Node", "name": "relu_kernel_time", "ts": 20, "dur": 2, "args": inside},
        {**ran, "ts": 19, "dur": 4},
        {"cat": "Node", "name": "if_kernel_time", "ts": 15, "dur": 9, "args": {"op_name": "If"}},
        {**ran, "ts": 8, "dur": 20},
        {**RUN, "ts": 7},
    ]
    (tmp_path / "p.json").write_text(json.dumps(events))
    with pytest.warns(UserWarning, match="control flow"):
        graph = read(tmp_path / "m.onnx", profile=tmp_path / "p.json")
    assert graph.outputs[graph.index("if")] == "f32[5,8]"
    assert graph.time["cpu"].sum() == pytest.approx(9.5e-6)
