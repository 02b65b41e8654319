"""Calls told by sizes alone: what is told is right, and what sizes do not tell is unknown."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traced import every_traced_graph, traced

import loadmaster as lm
from loadmaster.dimensions.binding import pattern
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.guessed import guessed
from loadmaster.model.arguments import tensors
from loadmaster.model.shapes import parse_output


def text(*shapes: tuple[int, ...], dtype: str = "f32") -> str:
    """The ``output`` of an op."""
    return ";".join(f"{dtype}[{','.join(map(str, shape))}]" for shape in shapes)


def graph_of(kind: str, inputs: list[tuple[int, ...]], *outputs: tuple[int, ...]) -> lm.OpGraph:
    """An op of inputs, which stand before it."""
    n = len(inputs)
    ops = {
        "name": [*(f"x{i}" for i in range(n)), "op"],
        "kind": ["input"] * n + [kind],
        "output": [*map(text, inputs), text(*outputs)],
    }
    return lm.OpGraph(ops, {"src": list(range(n)), "dst": [n] * n, "tensor": list(range(n))})


def told(kind: str, inputs: list[tuple[int, ...]], *outputs: tuple[int, ...]):
    """What is told of the op of :func:`graph_of`, tensors as letters."""
    call = guessed(graph_of(kind, inputs, *outputs))[-1]
    return None if call is None else json.loads(
        json.dumps(call), object_hook=lambda d: "xyzuvw"[d["op"]] if "op" in d else d
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "call"),
    [
        ("permute.default", [(2, 3, 4)], [(4, 2, 3)], [["x", [2, 0, 1]]]),
        ("permute.default", [(1, 3, 1)], [(3, 1, 1)], [["x", [1, 0, 2]]]),
        ("transpose.int", [(2, 3, 4)], [(2, 4, 3)], [["x", 1, 2]]),
        ("transpose.int", [(2, 3)], [(2, 3)], [["x", 0, 0]]),
        ("t.default", [(2, 2)], [(2, 2)], [["x"]]),
        ("sum.dim_IntList", [(2, 3, 4)], [(1, 3, 1)], [["x", [0, 2], True]]),
        ("mean.dim", [(2, 3, 4)], [(3,)], [["x", [0, 2], False]]),
        ("amax.default", [(2, 3)], [(2, 1)], [["x", [1], True]]),
        ("sum.default", [(2, 2)], [()], [["x"]]),
        ("linalg_vector_norm.default", [(2, 3)], [(2,)], [["x"], {"dim": [1], "keepdim": False}]),
        ("_softmax.default", [(2, 3)], [(2, 3)], [["x", -1]]),
        ("_softmax_backward_data.default", [(2, 3), (2, 3)], [(2, 3)], [["x", "y", -1]]),
        ("cat.default", [(2, 3), (2, 5)], [(2, 8)], [[["x", "y"], 1]]),
        ("stack.default", [(3, 4), (3, 4)], [(3, 2, 4)], [[["x", "y"], 1]]),
        ("split.Tensor", [(2, 6)], [(2, 3), (2, 3)], [["x"], {"dim": 1}]),
        ("split_with_sizes.default", [(5, 2)], [(3, 2), (2, 2)], [["x"], {"dim": 0}]),
        ("unbind.int", [(3, 4)], [(4,), (4,), (4,)], [["x", 0]]),
        ("slice.Tensor", [(2, 6)], [(2, 4)], [["x", 1, 1]]),
        ("slice.Tensor", [(2, 6)], [(2, 6)], [["x", 0, 0]]),
        ("narrow.default", [(2, 6)], [(1, 6)], [["x", 0, 1]]),
        ("select.int", [(2, 3, 4)], [(2, 4)], [["x", 1]]),
        ("select_backward.default", [(2, 4)], [(2, 3, 4)], [["x", [2, 3, 4], 1]]),
        ("slice_backward.default", [(2, 4)], [(2, 6)], [["x", [2, 6], 1, 1]]),
        ("unsqueeze.default", [(2, 3)], [(2, 1, 3)], [["x"]]),
        ("squeeze.dim", [(2, 1, 3)], [(2, 3)], [["x"]]),
        ("expand.default", [(2, 1)], [(2, 5)], [["x"]]),
        ("view.default", [(2, 6)], [(2, 2, 3)], [["x"]]),
        ("mm.default", [(2, 3), (3, 4)], [(2, 4)], [["x", "y"]]),
        ("addmm.default", [(4,), (2, 3), (3, 4)], [(2, 4)], [["x", "y", "z"]]),
        ("linear.default", [(2, 3), (4, 3)], [(2, 4)], [["x", "y"]]),
        ("add.Tensor", [(2, 3), (3,)], [(2, 3)], [["x", "y"]]),
        ("mul.Tensor", [(2, 3)], [(2, 3)], [["x", "x"]]),
        ("add.Tensor", [(2, 3)], [(2, 3)], [["x", 1]]),
        ("add_.Scalar", [(2, 3)], [(2, 3)], [["x", 1]]),
        ("addcmul_.default", [(3,), (3,)], [(3,)], [["x", "y", "y"]]),
        ("relu.default", [(2, 3)], [(2, 3)], [["x"]]),
        ("zeros.default", [], [(2, 3)], [[]]),
        ("native_layer_norm.default", [(2, 5, 3), (3,), (3,)], [(2, 5, 3), (2, 5, 1), (2, 5, 1)],
         [["x", [3], "y", "z"]]),
        ("native_group_norm.default", [(2, 6, 4), (6,), (6,)], [(2, 6, 4), (2, 3), (2, 3)],
         [["x", "y", "z"], {"group": 3}]),
    ],
)  # fmt: skip
def test_what_sizes_tell_is_told(kind, inputs, outputs, call):
    assert told(f"aten.{kind}", inputs, *outputs) == call


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs"),
    [
        ("permute.default", [(3, 3)], [(3, 3)]),
        ("transpose.int", [(3, 3, 2)], [(3, 3, 2)]),
        ("sum.dim_IntList", [(3, 3)], [(3,)]),
        ("cumsum.default", [(2, 3)], [(2, 3)]),
        ("select.int", [(3, 3)], [(3,)]),
        ("cat.default", [(2, 2)], [(2, 4)]),
        ("stack.default", [(2, 2), (2, 2)], [(2, 2, 2)]),
        ("convolution.default", [(2, 3, 8, 8), (4, 3, 3, 3)], [(2, 4, 8, 8)]),
        ("nobody_knows.default", [(2, 3)], [(2, 3)]),
    ],
)
def test_what_sizes_do_not_tell_is_unknown(kind, inputs, outputs):
    assert told(f"aten.{kind}", inputs, *outputs) is None


def test_outputs_that_look_alike_are_taken_in_order():
    def taken(n: int) -> list:
        ops = {
            "name": ["x", "unbind", *(f"part{i}" for i in range(n)), "y"],
            "kind": ["input", "aten.unbind.int", *["getitem"] * n, "aten.relu.default"],
            "output": [text((3, 4)), text((4,), (4,), (4,)), *[text((4,))] * n, text((4,))],
        }
        src, dst = [0, *[1] * n, 2], [1, *range(2, n + 2), n + 2]
        graph = lm.OpGraph(ops, {"src": src, "dst": dst, "tensor": list(range(len(src)))})
        return guessed(graph)[2:]

    picks = [[[{"op": 1}, i]] for i in range(3)]
    assert taken(3) == [*picks, [[{"op": 2}]]]
    assert taken(2) == [None, None, None], "which two are taken, nobody knows"


def test_a_graph_of_no_aten_ops_says_nothing():
    graph = lm.OpGraph({"name": ["a", "b"], "kind": ["Conv", ""]}, {"src": [0], "dst": [1]})
    assert guessed(graph) == [None, None]
    assert Dimensions.of(graph).root.tolist() == [0], "what is read is known all the same"


# -- against what was called ----------------------------------------------------------------------


def check(graph: lm.OpGraph, args: list, op: int, call: list) -> None:
    """Whatever the guess allows, the call that was made allows."""
    outputs = parse_output(graph.outputs[op])
    allowed = []
    for one in (call, args[op]):
        given = list(tensors(one))
        inputs = [parse_output(graph.outputs[source])[0] for source in given]
        found = pattern(graph.kinds[op], one, inputs, outputs)
        assert found is not None, (graph.kinds[op], one)
        allowed.append(ways(found, given))
    assert allowed[0] <= allowed[1], (graph.kinds[op], graph.outputs[op], call, args[op])


def ways(found, given: list[int]) -> set:
    """Axes that are one dimension with what that means, and sets of tensors that may be partial."""
    axes: dict[int, set] = {}
    places = [
        *zip(given, found.inputs, strict=True),
        *enumerate(found.outputs, -len(found.outputs)),
    ]
    for tensor, row in places:
        for axis, d in enumerate(row or ()):
            axes.setdefault(d, set()).add((tensor, axis))
    axes.pop(-1, None)
    result: set = {(found.meanings[d], frozenset(each)) for d, each in axes.items()}
    result |= {("free", given[i]) for i, row in enumerate(found.inputs) if row is None}
    for several in found.linear:
        partial = {given[i] for i in several}
        rest = {given[i] for i in range(len(given)) if i not in several}
        result |= set() if partial & rest else {frozenset(partial)}
    return result | ({"reshape"} if found.is_reshape else set())


@every_traced_graph
def test_nothing_that_is_told_of_real_graphs_is_wrong(path):
    graph = traced(path)
    args = graph.args
    seen = set()
    for op, call in enumerate(guessed(graph)):
        if call is None:
            continue
        if graph.kinds[op] == "getitem":
            assert call == args[op]
            continue
        shapes = [graph.outputs[source] for source in tensors(args[op])]
        alike = [graph.kinds[op], graph.outputs[op], shapes, _plain(args[op]), _plain(call)]
        key = json.dumps(alike)
        if key not in seen:
            seen.add(key)
            check(graph, args, op, call)
    assert len(seen) > 10


def _plain(call: list) -> object:
    """A call with its tensors numbered as they come."""
    order = list(dict.fromkeys(tensors(call)))
    return json.loads(
        json.dumps(call), object_hook=lambda d: order.index(d["op"]) if "op" in d else d
    )


SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@st.composite
def made(draw):
    """A kind, its call and what it does, by numpy."""
    sizes = draw(SIZES)
    x = np.zeros(sizes)
    axis = draw(st.integers(0, len(sizes) - 1))
    keepdim = draw(st.booleans())
    order = draw(st.permutations(range(len(sizes))))
    axes = draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, unique=True))
    start = draw(st.integers(0, sizes[axis] - 1))
    end = draw(st.integers(start + 1, sizes[axis]))
    part = np.take(x, range(start, end), axis)
    t = {"op": 0}
    u = {"op": 1}
    name, call, outputs, inputs = draw(st.sampled_from([
        ("permute.default", [[t, order]], [x.transpose(order)], [x]),
        ("transpose.int", [[t, axis, 0]], [x.swapaxes(axis, 0)], [x]),
        ("sum.dim_IntList", [[t, axes, keepdim]], [x.sum(tuple(axes), keepdims=keepdim)], [x]),
        ("amax.default", [[t, axes, keepdim]], [x.max(tuple(axes), keepdims=keepdim)], [x]),
        ("select.int", [[t, axis, start]], [x.take(start, axis)], [x]),
        ("slice.Tensor", [[t, axis, start, end]], [part], [x]),
        ("split.Tensor", [[t, 1, axis]], np.split(x, sizes[axis], axis), [x]),
        ("unbind.int", [[t, axis]], [x.take(i, axis) for i in range(sizes[axis])], [x]),
        ("cat.default", [[[t, u], axis]], [np.concatenate([x, part], axis)], [x, part]),
        ("stack.default", [[[t, u], axis]], [np.stack([x, x], axis)], [x, x]),
        ("select_backward.default", [[t, sizes, axis, start]], [x], [x.take(0, axis)]),
        ("slice_backward.default", [[t, sizes, axis, start, end, 1]], [x], [part]),
        ("mul.Tensor", [[t, t]], [x], [x]),
        ("mul.Tensor", [[t, 0.5]], [x], [x]),
        ("add.Tensor", [[t, t]], [x], [x]),
        ("add.Tensor", [[t, 3]], [x], [x]),
        ("masked_fill.Scalar", [[t, u, 0]], [x], [x, x]),
        ("masked_fill.Scalar", [[t, u, 2]], [x], [x, x]),
        ("addcmul.default", [[t, u, u]], [x], [x, x]),
        ("addcmul.default", [[t, u, t]], [x], [x, x]),
        ("where.self", [[t, u, u]], [x], [x, x]),
        ("mm.default", [[t, t]], [np.zeros((3, 3))], [np.zeros((3, 3))]),
    ]))  # fmt: skip
    return f"aten.{name}", call, [a.shape for a in inputs], [a.shape for a in outputs]


@given(made())
def test_nothing_that_is_told_is_wrong(drawn):
    kind, call, inputs, outputs = drawn
    graph = graph_of(kind, inputs, *outputs)
    found = guessed(graph)[-1]
    if found is not None:
        check(graph, [None] * len(inputs) + [call], len(inputs), found)
