"""Rules and patterns: what real graphs come to, what calls that are no calls come to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.dimensions.binding import FAMILIES, pattern
from loadmaster.dimensions.rules import TENSORFLOW, rule_of, rules
from loadmaster.transforms.cut import cuts


@pytest.mark.parametrize("name", ["inception-v3", "gpt3-330m"])
def test_ops_are_split_alike_where_only_sizes_are_known(name):
    """Every dimension that sizes tell of an op is one that its call tells, along the same axes."""
    said = lm.read(f"example:{name}")
    only_sizes = said.with_columns({"args": None})
    kinds = set()
    seen = set()
    for op, kind in enumerate(said.kinds):
        key = kind, said.outputs[op]
        if key in seen or said.placeholder[op] or said.view[op]:
            continue
        seen.add(key)
        guessed, told = cuts(only_sizes, op), cuts(said, op)
        if isinstance(guessed, str) or isinstance(told, str) or not guessed:
            continue
        kinds.add(kind)
        axes = [(cut.inputs, cut.outputs) for cut in told.values()]
        for cut in guessed.values():
            assert (cut.inputs, cut.outputs) in axes, (key, cut)
    assert len(kinds) >= 10


def test_every_rule_has_a_family_and_every_family_a_rule():
    assert {rule.family for rule in rules().values()} == set(FAMILIES)


def test_an_overload_or_an_op_in_place_has_the_rule_of_its_kind():
    assert rule_of("aten.mul_.Tensor") is rule_of("aten.mul.Scalar") is rules()["aten.mul"]
    assert rule_of("aten.max.other") is not rule_of("aten.max.dim")
    assert rule_of("com.microsoft.nchwc.Conv") is rule_of("Conv")
    assert rule_of("aten.nonzero.default") is None
    assert rules()["Sum"].family != rules()[f"{TENSORFLOW}Sum"].family


def test_words_of_tensorflow_are_not_those_of_onnx():
    shapes = [("f32", (2, 3))], [("f32", (2,))]
    call = [[{"op": 0}], {"T": "DT_FLOAT", "axis": [1], "keep_dims": False}]
    made = pattern("Sum", call, *shapes)
    assert made is not None
    assert made.outputs == ((0,),)
    assert pattern("Sum", [[{"op": 0}]], *shapes) is None


def test_calls_that_are_alike_have_one_pattern():
    shapes = [("f32", (2, 3)), ("f32", (3, 4))], [("f32", (2, 4))]
    one = pattern("aten.mm.default", [[{"op": 0}, {"op": 1}]], *shapes)
    assert one is pattern("aten.mm.default", [[{"op": 7}, {"op": 2}]], *shapes)


def test_a_number_in_the_place_of_a_tensor_is_added_by_one_part_only():
    shapes = [("f32", (4,))], [("f32", (4,))]
    assert pattern("aten.add.Tensor", [[{"op": 0}, 1]], *shapes).linear == ()
    assert pattern("aten.mul.Tensor", [[{"op": 0}, 2]], *shapes).linear == ((0,),)
    assert pattern("stablehlo.add", [[{"op": 0}, None]], *shapes).linear == ()


@pytest.mark.parametrize("kind", ["aten._softmax.default", "aten.sum.dim_IntList", "Transpose"])
def test_an_axis_that_is_not_there_is_no_call(kind):
    shapes = [("f32", (2, 3))], [("f32", (2, 3))]
    assert pattern(kind, [[{"op": 0}, "nothing"], {"perm": [7, 8]}], *shapes) is None


arguments = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 70) | st.floats() | st.text(max_size=3)
    | st.just({"op": 0}),
    lambda inside: st.lists(inside, max_size=3), max_leaves=5,
)  # fmt: skip
shapes = st.tuples(
    st.sampled_from(["f32", "i64", "none", ""]),
    st.none() | st.lists(st.integers(0, 4), max_size=4).map(tuple),
)


@given(
    st.sampled_from(sorted(rules())),
    st.lists(arguments, max_size=9),
    st.dictionaries(st.sampled_from(["dim", "axis", "dims", "pads", "T", "labels"]), arguments),
    st.data(),
)
def test_what_is_no_call_has_no_pattern_and_is_no_error(kind, positional, keywords, data):
    count = str([positional, keywords]).count("'op'")
    inputs = data.draw(st.lists(shapes, min_size=count, max_size=count))
    outputs = data.draw(st.lists(shapes, min_size=1, max_size=3))
    made = pattern(kind.removeprefix(TENSORFLOW), [positional, keywords], inputs, outputs)
    if made is not None:
        every = [*zip(made.inputs, inputs, strict=True), *zip(made.outputs, outputs, strict=True)]
        for axes, (_, sizes) in every:
            assert axes is None or len(axes) == len(sizes or ())
            assert all(-1 <= d < len(made.words) for d in axes or ())
