"""Small ONNX models, made here: branches, control flow, shared weights, constants, functions."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = [helper.make_opsetid("", 17)]


def weight(name, *shape, seed=0):
    data = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return numpy_helper.from_array(data, name)


def branchy():
    """Two branches of shared weights from one input, joined; a constant that both ends read, a node
    that nothing needs, an output in the middle, and an output that is an input.
    """
    node = helper.make_node
    nodes = [
        node("Constant", [], ["two"], "two", value_float=2.0),
        node("MatMul", ["x", "w"], ["a"], "left"),
        node("MatMul", ["x", "v"], ["b"], "right"),
        node("Relu", ["a"], ["a1"], "left_relu"),
        node("Mul", ["b", "two"], ["b1"], "right_scaled"),
        node("MatMul", ["b1", "w"], ["b2"], "right_again"),
        node("Add", ["a1", "b2"], ["sum"], "join"),
        node("Neg", ["sum"], ["unused"], "unneeded"),
        node("Mul", ["sum", "two"], ["y"], "last"),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "branchy",
        [info("x", TensorProto.FLOAT, ["N", 4])],
        [
            info("y", TensorProto.FLOAT, ["N", 4]),
            info("a1", TensorProto.FLOAT, ["N", 4]),
            info("x", TensorProto.FLOAT, ["N", 4]),
        ],
        [weight("w", 4, 4), weight("v", 4, 4, seed=1)],
    )
    return helper.make_model(graph, opset_imports=OPSET, ir_version=8)


def conditional():
    """An If whose branches capture a computed value and a weight from outside."""
    node, info = helper.make_node, helper.make_tensor_value_info
    out = [info("r", TensorProto.FLOAT, [3, 4])]
    then = helper.make_graph([node("Mul", ["h", "w"], ["r"], "scaled")], "then", [], out)
    other = helper.make_graph([node("Neg", ["h"], ["r"], "negated")], "else", [], out)
    nodes = [
        node("Relu", ["x"], ["h"], "first"),
        node("ReduceSum", ["h"], ["s"], "total", keepdims=0),
        node("Greater", ["s", "zero"], ["c"], "positive"),
        node("If", ["c"], ["z"], "branch", then_branch=then, else_branch=other),
        node("Add", ["z", "h"], ["y"], "last"),
    ]
    graph = helper.make_graph(
        nodes,
        "conditional",
        [info("x", TensorProto.FLOAT, [3, 4])],
        [info("y", TensorProto.FLOAT, [3, 4])],
        [weight("w", 4), numpy_helper.from_array(np.float32(0), "zero")],
    )
    return helper.make_model(graph, opset_imports=OPSET, ir_version=8)


def functional():
    """A model-local function, called twice."""
    body = [
        helper.make_node("MatMul", ["p", "q"], ["m"]),
        helper.make_node("Relu", ["m"], ["out"]),
    ]
    function = helper.make_function("local", "Dense", ["p", "q"], ["out"], body, OPSET)
    nodes = [
        helper.make_node("Dense", ["x", "w"], ["h"], "one", domain="local"),
        helper.make_node("Dense", ["h", "w"], ["y"], "two", domain="local"),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "functional",
        [info("x", TensorProto.FLOAT, [2, 4])],
        [info("y", TensorProto.FLOAT, [2, 4])],
        [weight("w", 4, 4)],
    )
    opsets = [*OPSET, helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8)


MODELS = {"branchy": branchy, "conditional": conditional, "functional": functional}


def saved(name, folder):
    """A model in a file that holds its weights."""
    path = folder / f"{name}.onnx"
    onnx.save(MODELS[name](), path)
    return path
