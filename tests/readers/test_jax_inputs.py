"""Parameters of programs of JAX that train nothing are told by what they do, not by their names.

Programs are written here, in any order of arguments and by any names.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.readers.xla import stablehlo
from loadmaster.readers.xla.graph import to_graph

NAMES = ("x", "w", "model.layers[0].weight", "state['a'].kernel.value", "args[0][1]", "kernel", "p")


def module(arguments: dict[str, str], lines: list[str], result: str, returns: str) -> str:
    """A module: arguments by value with their types and names, in this order."""
    signature = ", ".join(f"{value}: {text}" for value, text in arguments.items())
    body = "\n".join(f"    {line}" for line in lines)
    return (
        f"module @jit_f {{\n  func.func public @main({signature}) -> {result} {{\n"
        f"{body}\n    return {returns} : {result}\n  }}\n}}\n"
    )


def read(text: str, parameters: tuple[str, ...] = ()) -> lm.OpGraph:
    return to_graph(stablehlo.from_text(text), "f", parameters)


def kinds_by_value(graph: lm.OpGraph, arguments: dict[str, str]) -> dict[str, str]:
    return dict(zip(arguments, graph.kinds, strict=False))


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_parameters_are_the_inputs_without_the_batch(data):
    """Layers with biases, embeddings or scores, a mask and a cache: in any order, of any names."""
    n_layers = data.draw(st.integers(1, 3))
    batch, width = data.draw(st.sampled_from(((8, 8), (8, 16), (16, 8))))
    x, w, b = f"tensor<{batch}x{width}xf32>", f"tensor<{width}x{width}xf32>", f"tensor<{width}xf32>"
    stored, served, lines, h = {}, {}, [], "%x"
    if data.draw(st.booleans()):
        served["%x"] = x
    else:
        served["%t"], stored["%e"] = f"tensor<{batch}x1xi32>", f"tensor<32x{width}xf32>"
        lines.append(
            '%x = "stablehlo.gather"(%e, %t) <{dimension_numbers = #stablehlo.gather<offset_dims = '
            "[1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, "
            f"slice_sizes = array<i64: 1, {width}>}}> : "
            f"(tensor<32x{width}xf32>, tensor<{batch}x1xi32>) -> {x}"
        )
    for i in range(n_layers):
        stored[f"%w{i}"] = w
        lines.append(
            f"%d{i} = stablehlo.dot_general {h}, %w{i}, contracting_dims = [1] x [0] : "
            f"({x}, {w}) -> {x}"
        )
        h = f"%d{i}"
        if data.draw(st.booleans()):
            stored[f"%b{i}"] = b
            lines += [
                f"%s{i} = stablehlo.broadcast_in_dim %b{i}, dims = [1] : ({b}) -> {x}",
                f"%a{i} = stablehlo.add {h}, %s{i} : {x}",
            ]
            h = f"%a{i}"
        if data.draw(st.booleans()):
            served[f"%c{i}"] = x
            lines.append(f"%m{i} = stablehlo.multiply {h}, %c{i} : {x}")
            h = f"%m{i}"
    arguments = data.draw(st.permutations([*stored.items(), *served.items()]))
    names = data.draw(st.lists(st.sampled_from(NAMES), min_size=len(arguments), max_size=99))
    is_named = data.draw(st.booleans())
    written = {
        value: f'{type_} loc("{name}")' if is_named else type_
        for (value, type_), name in zip(arguments, names, strict=False)
    }
    graph = read(module(written, lines, x, h))
    kinds = kinds_by_value(graph, written)
    assert {value for value, kind in kinds.items() if kind == "parameter"} == stored.keys()
    assert {value for value, kind in kinds.items() if kind == "input"} == served.keys()
    held = {op for op, kind in enumerate(graph.kinds) if kind == "parameter"}
    assert {op for op, size in enumerate(graph.param_bytes.tolist()) if size} == held
    plan = lm.place(graph, lm.Cluster.preset("4xV100-NVLink"), target="jax", tp=1)
    assert plan.recipe is not None
    assert plan.recipe.mesh.names == ("dp",)


X, W = "tensor<8x16xf32>", "tensor<16x16xf32>"
PRODUCT = (
    "%y = stablehlo.dot_general {}, {}, contracting_dims = [1] x [0] : (" + f"{X}, {W}) -> {X}"
)
UNKNOWN = "%u = stablehlo.custom_call @f(%x, %w) : (" + f"{X}, {W}) -> {X}"


def test_the_option_and_the_word_go_first():
    arguments = {"%w": f'{W} loc("a")', "%x": f"{X} loc(\"params['b']\")"}
    text = module(arguments, [PRODUCT.format("%x", "%w")], X, "%y")
    assert kinds_by_value(read(text), arguments) == {"%w": "input", "%x": "parameter"}
    graph = read(text, ("a",))
    assert kinds_by_value(graph, arguments) == {"%w": "parameter", "%x": "input"}
    with pytest.raises(InputError, match="no input is named 'c'; there are a, params"):
        read(text, ("c",))


@pytest.mark.filterwarnings("ignore:FLOPs unknown")
def test_where_nothing_is_known_the_first_argument_is_taken_and_said():
    arguments = {"%w": f'{W} loc("model")', "%x": f'{X} loc("x")'}
    graph = read(module(arguments, [UNKNOWN], X, "%u"))
    assert kinds_by_value(graph, arguments) == {"%w": "parameter", "%x": "input"}
    assert "model, the first argument, is taken for parameters" in graph.meta["assumed"][-1]
    unnamed = {"%w": W, "%x": X}
    graph = read(module(unnamed, [UNKNOWN], X, "%u"))
    assert kinds_by_value(graph, unnamed) == {"%w": "input", "%x": "input"}
    assert "parameters= (--parameters) says them" in graph.meta["assumed"][-1]


@pytest.mark.parametrize(
    ("mask", "dims", "batch"),
    [
        ("tensor<1x16xb8>", "[0, 1]", 8),  # shared by all samples
        ("tensor<16xb8>", "[1]", None),  # as far as is known, one of two candidates
    ],
)
def test_the_batch_is_told_where_inputs_differ(mask, dims, batch):
    mask = mask.replace("b8", "i1")
    arguments = {"%w": W, "%x": X, "%m": mask}
    lines = [
        PRODUCT.format("%x", "%w"),
        f"%b = stablehlo.broadcast_in_dim %m, dims = {dims} : ({mask}) -> tensor<8x16xi1>",
        f"%r = stablehlo.select %b, %y, %x : tensor<8x16xi1>, {X}",
    ]
    graph = read(module(arguments, lines, X, "%r"))
    assert kinds_by_value(graph, arguments)["%w"] == "parameter"
    assert graph.meta.get("batch") == 8
    # Of a training step the inputs alone say it.
    updated = [
        f"%g = stablehlo.dot_general %x, %r, contracting_dims = [0] x [0] : ({X}, {X}) -> {W}",
        f"%n = stablehlo.subtract %w, %g : {W}",
        "%z = stablehlo.constant dense<0.0> : tensor<f32>",
        f"%l = stablehlo.reduce(%r init: %z) applies stablehlo.add across dimensions = [0, 1] : "
        f"({X}, tensor<f32>) -> tensor<f32>",
        f"%v = stablehlo.add %o, %g : {W}",
    ]
    arguments = {"%w": W, "%o": W, "%x": X, "%m": mask, "%k": "tensor<2xui32>"}
    result = f"({W}, {W}, tensor<f32>)"
    text = module(arguments, [*lines, *updated], result, "%n, %v, %l")
    text = text.replace(f": {result}", f": {result[1:-1]}")
    graph = read(text)
    assert graph.kinds[:3] == ["parameter", "buffer", "input"]
    assert graph.meta.get("batch") == batch
