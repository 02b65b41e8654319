"""Dimensions of graphs: factors through views, forms, and what a reader needs of a root."""

from __future__ import annotations

import gc
import itertools
import math
import weakref

import numpy as np
import pytest
from called import Calls, T, part, places
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import ANY, PARTIAL, REPLICATE, part_sizes


def form_of(dimensions: Dimensions, op: int):
    return dimensions.forms[dimensions.form_of[op]]


def cut_of(dimensions: Dimensions, op: int, name: str):
    [cut] = [cut for cut in form_of(dimensions, op).cuts if cut.name == name]
    return cut


def needed(dimensions: Dimensions, op: int, name: str) -> list[int]:
    """The specs that the roots of an op's arguments must have if it is cut so."""
    cut = cut_of(dimensions, op, name)
    first, end = dimensions.first[op : op + 2].tolist()
    return [dimensions.needed(argument, cut) for argument in range(first, end)]


def roots(dimensions: Dimensions, op: int) -> list[int]:
    return dimensions.root[dimensions.first[op] : dimensions.first[op + 1]].tolist()


def sizes(factors) -> list[int]:
    return [size for _, size in factors]


def attention(calls: Calls, batch: int, tokens: int, heads: int, size: int) -> dict[str, T]:
    """Heads of queries, keys and values that one product makes; returns its ops by name."""
    width = heads * size
    x = calls.placeholder("input", batch, tokens, width)
    weight, bias = (
        calls.placeholder("parameter", 3 * width, width),
        calls.placeholder("parameter", 3 * width),
    )
    rows = calls.call("view.default", x, [batch * tokens, width], out=(batch * tokens, width))
    turned = calls.call("t.default", weight, out=(width, 3 * width))
    qkv = calls.call("addmm.default", bias, rows, turned, out=(batch * tokens, 3 * width))
    shaped = calls.call(
        "view.default", qkv, [batch, tokens, 3 * width], out=(batch, tokens, 3 * width)
    )
    three = calls.call("split.Tensor", shaped, width, -1, out=[(batch, tokens, width)] * 3)
    each = []
    for i in range(3):
        one = calls.call("getitem", three, i, out=(batch, tokens, width))
        one = calls.call(
            "view.default", one, [batch, tokens, heads, size], out=(batch, tokens, heads, size)
        )
        each.append(calls.call("transpose.int", one, 1, 2, out=(batch, heads, tokens, size)))
    key = calls.call("transpose.int", each[1], 2, 3, out=(batch, heads, size, tokens))
    product = (batch * heads, tokens, size)
    query = calls.call("view.default", each[0], list(product), out=product)
    key = calls.call(
        "view.default", key, [batch * heads, size, tokens], out=(batch * heads, size, tokens)
    )
    value = calls.call("view.default", each[2], list(product), out=product)
    scores = calls.call("bmm.default", query, key, out=(batch * heads, tokens, tokens))
    soft = calls.call("_softmax.default", scores, -1, False, out=(batch * heads, tokens, tokens))
    mixed = calls.call("bmm.default", soft, value, out=product)
    mixed4 = calls.call(
        "view.default", mixed, [batch, heads, tokens, size], out=(batch, heads, tokens, size)
    )
    turned = calls.call("transpose.int", mixed4, 1, 2, out=(batch, tokens, heads, size))
    clone = calls.call("clone.default", turned, out=(batch, tokens, heads, size))
    flat = calls.call("view.default", clone, [batch * tokens, width], out=(batch * tokens, width))
    last = calls.placeholder("parameter", width, width)
    last_turned = calls.call("t.default", last, out=(width, width))
    out = calls.call("mm.default", flat, last_turned, out=(batch * tokens, width))
    shaped = calls.call("view.default", out, [batch, tokens, width], out=(batch, tokens, width))
    added = calls.call("add.Tensor", x, shaped, out=(batch, tokens, width))
    return {
        "x": x, "weight": weight, "bias": bias, "qkv": qkv, "scores": scores, "soft": soft,
        "mixed": mixed, "clone": clone, "last": last, "out": out, "added": added,
    }  # fmt: skip


@pytest.mark.parametrize("batch", [1, 4])
def test_heads_of_a_fused_projection_reach_its_weight_and_the_next_one(batch):
    calls = Calls(batch=batch)
    at = attention(calls, batch, tokens=8, heads=16, size=64)
    graph = calls.graph()
    d = Dimensions.of(graph)
    b = [batch] if batch > 1 else []
    assert sizes(form_of(d, at["qkv"]).inputs[0]) == [3, 16, 64]
    assert sizes(form_of(d, at["qkv"]).outputs[0]) == [*b, 8, 3, 16, 64]
    assert sizes(form_of(d, at["weight"]).outputs[0]) == [3, 16, 64, 1024]
    assert sizes(form_of(d, at["scores"]).outputs[0]) == [*b, 16, 8, 8]
    assert sizes(form_of(d, at["last"]).outputs[0]) == [1024, 16, 64]
    # Megatron's cut: columns by heads, heads, contraction by heads, and no conversion between.
    head = len(b) + 2
    heads = "batch.1" if b else "batch"
    assert needed(d, at["qkv"], "column.1") == [1, REPLICATE, 1]
    assert cut_of(d, at["qkv"], "column.1").outputs == (head,)
    assert needed(d, at["scores"], heads) == [head, head]
    assert needed(d, at["soft"], "axis0.1" if b else "axis0") == [len(b)]
    assert needed(d, at["mixed"], heads) == [len(b), head]
    assert needed(d, at["out"], "contraction") == [cut_of(d, at["clone"], "axis2").outputs[0], 1]
    assert cut_of(d, at["out"], "contraction").outputs == (PARTIAL,)
    roles = {cut.name: cut.role for cut in form_of(d, at["qkv"]).cuts}
    assert roles["column.1"] == "head"
    assert roles["row.1" if b else "row"] == "token"
    assert not b or roles["row"] == "batch"
    assert roles["contraction"] == "feature"


def test_multi_query_attention_has_one_head_of_keys():
    calls = Calls(batch=2)
    query = calls.placeholder("input", 2, 6, 8 * 4)
    key = calls.placeholder("input", 2, 6, 4)
    split = calls.call("view.default", query, [2, 6, 8, 4], out=(2, 6, 8, 4))
    heads = calls.call("permute.default", split, [0, 2, 1, 3], out=(2, 8, 6, 4))
    one = calls.call("unsqueeze.default", key, 1, out=(2, 1, 6, 4))
    many = calls.call("expand.default", one, [2, 8, 6, 4], out=(2, 8, 6, 4))
    turned = calls.call("transpose.int", many, -1, -2, out=(2, 8, 4, 6))
    left = calls.call("_unsafe_view.default", heads, [16, 6, 4], out=(16, 6, 4))
    right = calls.call("_unsafe_view.default", turned, [16, 4, 6], out=(16, 4, 6))
    scores = calls.call("bmm.default", left, right, out=(16, 6, 6))
    d = Dimensions.of(calls.graph())
    assert roots(d, scores) == [query, key]
    assert needed(d, scores, "batch") == [0, 0]
    assert needed(d, scores, "batch.1") == [2, REPLICATE]
    assert needed(d, scores, "column") == [REPLICATE, 1]


def test_a_flattened_image_is_cut_by_its_channels():
    calls = Calls(batch=4)
    x, kernel = calls.placeholder("input", 4, 3, 8, 8), calls.placeholder("parameter", 6, 3, 3, 3)
    convolved = calls.call(
        "convolution.default", x, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
        out=(4, 6, 8, 8),
    )  # fmt: skip
    flat = calls.call("view.default", convolved, [4, 384], out=(4, 384))
    weight = calls.placeholder("parameter", 10, 384)
    turned = calls.call("t.default", weight, out=(384, 10))
    out = calls.call("mm.default", flat, turned, out=(4, 10))
    d = Dimensions.of(calls.graph())
    assert sizes(form_of(d, weight).outputs[0]) == [10, 6, 8, 8]
    assert needed(d, out, "contraction") == [1, 1]
    assert needed(d, out, "contraction.1") == [2, 2]
    assert cut_of(d, convolved, "output_channel").outputs == (1,)
    assert cut_of(d, convolved, "spatial0").halos[0] == (1, 1)


def test_what_does_not_divide_is_cut_on_neither_side():
    calls = Calls()
    x = calls.placeholder("input", 5, 6, 4)
    made = calls.call("relu.default", x, out=(5, 6, 4))
    other = calls.call("view.default", made, [5, 8, 3], out=(5, 8, 3))
    read = calls.call("relu.default", other, out=(5, 8, 3))
    d = Dimensions.of(calls.graph())
    assert sizes(form_of(d, made).outputs[0]) == [5, 6, 4]
    assert sizes(form_of(d, read).outputs[0]) == [5, 8, 3]
    assert needed(d, read, "axis0") == [0]
    assert needed(d, read, "axis1") == needed(d, read, "axis2") == [REPLICATE]


def test_what_is_more_frequent_decides_how_an_axis_is_taken_apart():
    def read_as(*shapes):
        calls = Calls()
        made = calls.call("relu.default", calls.placeholder("input", 64, 8), out=(64, 8))
        for shape in shapes:
            view = calls.call("view.default", made, [*shape, 8], out=(*shape, 8))
            calls.call("relu.default", view, out=(*shape, 8))
        return sizes(form_of(Dimensions.of(calls.graph()), made).outputs[0])

    windows, halves = (4, 16), (32, 2)
    assert read_as(halves, windows, windows) == [4, 16, 8]
    assert read_as(windows, halves, halves) == [32, 2, 8]


def test_arguments_tell_transposes_of_equal_sizes_apart():
    for dims, spec in ([0, 1, 2], [1, 2]), ([1, 0, 2], [0, 2]), ([0, 2, 1], [2, 1]):
        calls = Calls()
        x = calls.placeholder("input", 4, 4, 4)
        turned = calls.call("permute.default", x, dims, out=(4, 4, 4))
        read = calls.call("relu.default", turned, out=(4, 4, 4))
        d = Dimensions.of(calls.graph())
        assert [needed(d, read, "axis1")[0], needed(d, read, "axis2")[0]] == spec


def test_outputs_edges_and_roots_are_found_through_what_picks_them():
    calls = Calls()
    x = calls.placeholder("input", 4, 8)
    norm = calls.call(
        "native_layer_norm.default", x, [8], None, None, 1e-5, out=[(4, 8), (4, 1), (4, 1)]
    )
    picked = calls.call("getitem", norm, 1, out=(4, 1))
    read = calls.call("mul.Tensor", x, picked, out=(4, 8))
    graph = calls.graph()
    d = Dimensions.of(graph)
    at = slice(*d.first[read : read + 2].tolist())
    assert d.root[at].tolist() == [x, norm]
    assert d.output[at].tolist() == [0, 1]
    assert graph.src[d.edge[at]].tolist() == [x, picked]
    assert graph.dst[d.edge[at]].tolist() == [read, read]
    assert needed(d, read, "axis0") == [0, 0]
    assert needed(d, read, "axis1") == [1, REPLICATE]
    assert d.form_of[picked] == -1
    assert d.reader[at].tolist() == [read, read]


def test_what_writes_in_place_has_the_spec_of_what_it_writes():
    calls = Calls()
    weight, gradient = calls.placeholder("parameter", 8, 4), calls.placeholder("input", 8, 4)
    update = calls.call("add_.Tensor", weight, gradient, out=(8, 4), alias=int(weight))
    d = Dimensions.of(calls.graph())
    assert roots(d, update) == [weight, gradient]
    for axis in range(2):
        cut = cut_of(d, update, f"axis{axis}")
        assert (cut.inputs, cut.outputs) == ((axis, axis), (axis,))


def test_partial_sums_and_shapes_pass_through_views():
    calls = Calls()
    x = calls.placeholder("input", 4, 8)
    turned = calls.call("t.default", x, out=(8, 4))
    shape = calls.call("zeros_like.default", turned, out=(8, 4))
    copy = calls.call("clone.default", turned, out=(8, 4))
    d = Dimensions.of(calls.graph())
    assert needed(d, copy, "partial") == [PARTIAL]
    assert needed(d, shape, "axis0") == [ANY]


def test_kinds_without_a_rule_are_listed_and_their_ops_are_whole():
    calls = Calls()
    x = calls.placeholder("input", 4, 8)
    strange = calls.call("strange.default", x, out=(4, 8))
    calls.call("strange.default", strange, out=(4, 8))
    d = Dimensions.of(calls.graph())
    assert d.unknown == {"aten.strange.default": 2}
    form = form_of(d, strange)
    assert form.cuts == ()
    assert form.inputs == form.outputs == (((0, 4), (1, 8)),)


def test_a_graph_has_its_dimensions_once_and_none_without_arguments():
    calls = Calls()
    x = calls.placeholder("input", 4, 8)
    calls.call("relu.default", x, out=(4, 8))
    graph = calls.graph()
    assert Dimensions.of(graph) is Dimensions.of(graph)
    kept = weakref.ref(graph)
    del graph
    gc.collect()
    assert kept() is None
    bare = lm.OpGraph({"name": ["a", "b"]}, {"src": [0], "dst": [1]})
    d = Dimensions.of(bare)
    assert d.form_of.tolist() == [-1, -1]
    assert d.forms == ()


def test_what_is_said_and_cannot_be_is_as_if_nobody_said_anything():
    calls = Calls()
    x = calls.placeholder("input", 4, 8)
    norm = calls.call("native_layer_norm.default", x, [8], None, None, 1e-5, out=[(4, 8), (4, 1)])
    picked = calls.call("getitem", norm, 7, out=(4, 8))
    calls.call("relu.default", picked, out=(4, 8))
    copy = calls.call("clone.default", x, out=(4, 8))
    view = calls.call("view.default", x, [4, 8], out=(4, 8), alias=int(x))
    read = calls.call("relu.default", view, out=(4, 8))
    calls.ops["args"][view] = None
    # The copy is said to read what is made after it.
    calls.ops["args"][copy] = [[{"op": int(read)}]]
    d = Dimensions.of(calls.graph())
    assert roots(d, copy) == [x]
    assert form_of(d, copy).cuts == ()
    assert roots(d, read) == [x]
    assert needed(d, read, "axis0") == [REPLICATE]


def test_a_call_that_its_rule_cannot_read_is_whole_and_listed():
    calls = Calls()
    x = calls.placeholder("input", 4, 8)
    for dims in (["a"], 7, [0, 1, 2, 3], None):
        calls.call("permute.default", x, dims, out=(8, 4))
    read = calls.call("relu.default", T(1), out=(8, 4))
    d = Dimensions.of(calls.graph())
    assert d.unknown["aten.permute.default"] >= 3
    assert needed(d, read, "axis0") == [REPLICATE]


def test_the_shape_of_a_view_may_be_a_constant_without_an_edge():
    calls = Calls()
    x, shape = calls.placeholder("input", 4, 8), calls.placeholder("constant", 2, dtype="i64")
    view = calls.call("view.default", x, shape, out=(4, 2, 4))
    calls.edges = {key: values[:-1] for key, values in calls.edges.items()}
    read = calls.call("relu.default", view, out=(4, 2, 4))
    d = Dimensions.of(calls.graph())
    assert needed(d, read, "axis1") == [1]


def test_rules_of_onnx_are_not_for_ops_of_tensorflow_of_the_same_name():
    ops = {
        "name": ["x", "w", "y"],
        "kind": ["input", "parameter", "MatMul"],
        "output": ["f32[4,4]"] * 3,
        "args": [None, None, [[{"op": 0}, {"op": 1}], {"transpose_b": True}]],
    }
    edges = {"src": [0, 1], "dst": [2, 2], "tensor": [0, 1]}
    onnx = lm.OpGraph(ops, edges, meta={"framework": "onnx pytorch"})
    assert needed(Dimensions.of(onnx), 2, "column") == [REPLICATE, 1]
    other = Dimensions.of(lm.OpGraph(ops, edges, meta={"framework": "tensorflow (GraphDef)"}))
    assert form_of(other, 2).cuts == () or needed(other, 2, "column") == [REPLICATE, 0]


def test_sizes_tell_which_output_is_taken_where_nothing_picks_it():
    calls = Calls()
    x = calls.placeholder("input", 4, 8)
    norm = calls.call("native_layer_norm.default", x, [8], None, None, 1e-5, out=[(4, 8), (4, 1)])
    read = calls.call("mul.Tensor", x, norm, out=(4, 8))
    edges = calls.edges | {"bytes": [128, 128, 16]}
    d = Dimensions.of(lm.OpGraph(calls.ops, edges))
    assert d.output[d.first[read] : d.first[read + 1]].tolist() == [0, 1]
    assert needed(d, read, "axis1") == [1, REPLICATE]


def test_people_see_what_can_be_cut_and_how_far():
    calls = Calls(batch=4)
    attention(calls, 4, tokens=8, heads=16, size=64)
    d = Dimensions.of(calls.graph())
    assert repr(d) == "Dimensions(33 ops, 11 forms, 0 kinds without a rule)"
    rows = [line.split(maxsplit=2) for line in d.table().splitlines()]
    assert rows == [
        ["dimension", "ops", "sizes"],
        ["batch", "7", "4"],
        ["token", "7", "8"],
        ["head", "6", "16"],
        ["feature", "6", "64, 1024, 3"],
    ]


def test_the_batch_is_what_the_graph_says_or_what_all_inputs_agree_on():
    def roles(batch, *shapes):
        calls = Calls(batch=batch)
        ops = [calls.placeholder("input", *shape) for shape in shapes]
        d = Dimensions.of(calls.graph())
        return [form_of(d, op).cuts[0].role for op in ops]

    assert roles(None, (4, 8, 2), (4,)) == ["batch", "batch"]
    assert roles(4, (4, 8, 2), (3, 7, 2)) == ["batch", "token"]
    assert roles(None, (4, 8, 2), (3, 7, 2)) == ["token", "token"]


# -- by execution ------------------------------------------------------------------------------


def reshaped(draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape of as many elements: neighbours are merged, and an axis is taken apart."""
    axes = list(shape)
    if len(axes) > 1 and draw(st.booleans()):
        at = draw(st.integers(0, len(axes) - 2))
        axes[at : at + 2] = [axes[at] * axes[at + 1]]
    if draw(st.booleans()):
        at = draw(st.integers(0, len(axes) - 1))
        by = draw(st.sampled_from([n for n in range(1, axes[at] + 1) if axes[at] % n == 0]))
        axes[at : at + 1] = [axes[at] // by, by]
    return tuple(axes)


def a_view(draw, calls: Calls, at: T, value: np.ndarray) -> tuple[T, np.ndarray]:
    """One more view of a tensor, and its value."""
    shape, rank = value.shape, value.ndim
    axis = draw(st.integers(0, rank - 1))
    kind = draw(
        st.sampled_from(["view", "permute", "transpose", "slice", "select", "split", "expand"])
    )
    if kind == "view":
        new = reshaped(draw, shape)
        return calls.call("view.default", at, list(new), out=new), value.reshape(new)
    if kind == "permute":
        order = draw(st.permutations(range(rank)))
        new = value.transpose(order)
        return calls.call("permute.default", at, order, out=new.shape), new
    if kind == "transpose":
        other = draw(st.integers(0, rank - 1))
        new = value.swapaxes(axis, other)
        return calls.call("transpose.int", at, axis, other - rank, out=new.shape), new
    if kind == "slice":
        start = draw(st.integers(0, shape[axis] - 1))
        end = draw(st.integers(start + 1, shape[axis]))
        step = draw(st.sampled_from([1, 1, 1, 2]))
        new = value[(slice(None),) * axis + (slice(start, end, step),)]
        return calls.call("slice.Tensor", at, axis, start, end, step, out=new.shape), new
    if kind == "select" and rank > 1:
        new = value.take(0, axis)
        return calls.call("select.int", at, axis, 0, out=new.shape), new
    if kind == "split":
        size = draw(st.integers(1, shape[axis]))
        parts = np.split(value, range(size, shape[axis], size), axis)
        whole = calls.call("split.Tensor", at, size, axis, out=[each.shape for each in parts])
        which = draw(st.integers(0, len(parts) - 1))
        return calls.call("getitem", whole, which, out=parts[which].shape), parts[which]
    one = calls.call("unsqueeze.default", at, axis, out=(*shape[:axis], 1, *shape[axis:]))
    wide = (*shape[:axis], 3, *shape[axis:])
    new = np.broadcast_to(np.expand_dims(value, axis), wide)
    return calls.call("expand.default", one, list(wide), out=wide), new


@settings(max_examples=75)
@given(st.data())
def test_parts_of_an_argument_are_parts_of_its_root_through_any_views(data):
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=3))
    calls = Calls()
    root = calls.placeholder("input", *shape)
    value = np.arange(math.prod(shape)).reshape(shape)
    at = root
    for _ in range(data.draw(st.integers(1, 5))):
        if value.size < 2000:
            at, value = a_view(data.draw, calls, at, value)
    read = calls.call("relu.default", at, out=value.shape)
    d = Dimensions.of(calls.graph())
    assert roots(d, read) == [root]
    [factors], [made] = form_of(d, read).inputs, form_of(d, root).outputs
    for axis, size in enumerate(value.shape):
        assert math.prod(s for a, s in factors if a == axis) == size
    back = d.backs[d.back[d.first[read]]]
    assert len(back) == len(factors)
    for number, spec in enumerate(back):
        if spec == REPLICATE:
            continue
        mine = places(value.shape, factors, number)
        size = factors[number][1]
        assert size == made[spec][1]
        # The same place within the factor, so the same part, however many parts there are.
        assert (mine == places(tuple(shape), made, spec).ravel()[value]).all()


RUN = {
    "aten.addmm.default": lambda bias, a, b: bias + a @ b,
    "aten.mm.default": np.matmul,
    "aten.bmm.default": np.matmul,
    "aten.add.Tensor": np.add,
    "aten.clone.default": lambda x: x,
}


def softmax(x: np.ndarray) -> np.ndarray:
    raised = np.exp(x - x.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def share(value: np.ndarray, factors, spec: int, j: int, k: int) -> np.ndarray:
    """What device ``j`` of ``k`` has of a tensor that lies so."""
    if spec >= 0:
        return part(value, factors, spec, j, k)
    return value if spec == REPLICATE or j == 0 else np.zeros_like(value)


@pytest.mark.parametrize("k", [2, 3])
def test_parts_of_ops_join_to_the_whole(k):
    """Every cut of every op of an attention, executed, but for those whose parts exchange sums."""
    calls = Calls(batch=3)
    at = attention(calls, 3, tokens=5, heads=4, size=2)
    graph = calls.graph()
    d = Dimensions.of(graph)
    random = np.random.default_rng(1)
    done = set()
    for name in ("qkv", "scores", "soft", "mixed", "clone", "out", "added"):
        form = form_of(d, at[name])
        run = RUN.get(graph.kinds[at[name]], softmax)
        values = [random.normal(size=shape_of(factors)) for factors in form.inputs]
        whole = run(*values)
        for cut in form.cuts:
            if cut.exchanged:
                continue
            made = [
                run(
                    *(
                        share(*each, j, k)
                        for each in zip(values, form.inputs, cut.inputs, strict=True)
                    )
                )
                for j in range(k)
            ]
            [spec] = cut.outputs
            for j in range(k):
                if spec >= 0:
                    assert np.allclose(made[j], part(whole, form.outputs[0], spec, j, k)), cut
            assert spec >= 0 or np.allclose(sum(made), whole), cut
            done.add(cut.name.partition(".")[0])
    assert done >= {"row", "column", "contraction", "batch", "axis0", "partial"}


def shape_of(factors) -> tuple[int, ...]:
    """The shape of a tensor without axes of size 1 before its last one."""
    return tuple(
        math.prod(size for _, size in some)
        for _, some in itertools.groupby(factors, key=lambda factor: factor[0])
    )


def test_parts_are_as_equal_as_can_be():
    assert part_sizes(10, 4) == [3, 3, 2, 2]
    assert part_sizes(2, 4) == [1, 1, 0, 0]
