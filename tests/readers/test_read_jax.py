"""JAX without JAX: jaxprs, StableHLO, HLO. Costs by hand and by XLA, loops, training, bad text."""

from __future__ import annotations

import contextlib
import enum
import functools
import gzip
import json
import random
import re
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from folders import DATA
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxprs import ClosedJaxpr, Equation, Jaxpr, Var, closed_jaxpr

import loadmaster as lm
from loadmaster.base.errors import InputError, LoadmasterError
from loadmaster.model import arguments
from loadmaster.readers.xla import graph as xla_graph
from loadmaster.readers.xla import hlo, hlo_text, jaxpr, stablehlo
from loadmaster.readers.xla.calls import of_hlo, of_mlir
from loadmaster.readers.xla.costs import Axis
from loadmaster.readers.xla.graph import to_graph

ARTIFACTS = DATA / "artifacts" / "jax"
MODELS = ("lstm_scan", "transformer", "transformer_scan")
FORMS = (".jaxpr.txt.gz", ".stablehlo.mlir.gz", ".optimized_hlo.txt.gz")
TRACE = ARTIFACTS / "lstm_scan.profiler.trace.json.gz"


# ---- helpers ------------------------------------------------------------------------------------


def of_jaxpr(inputs: str, body: str, outputs: str) -> lm.OpGraph:
    lines = "\n    ".join(body.strip().split("\n"))
    text = f"{{ lambda ; {inputs}. let\n    {lines}\n  in ({outputs},) }}"
    return lm.read(closed_jaxpr(text))


def of_stablehlo(arguments: str, body: str, rest: str = "") -> lm.OpGraph:
    text = f"module @jit_f {{\n  func.func public @main({arguments}) {{\n{body}\n  }}\n{rest}\n}}"
    return to_graph(stablehlo.from_text(text), "test")


def op(graph: lm.OpGraph, kind: str) -> int:
    """The only op of a kind that costs anything, or the only one."""
    found = [i for i, k in enumerate(graph.kinds) if k == kind]
    real = [i for i in found if not graph.view[i]]
    assert len(real or found) == 1, (kind, Counter(graph.kinds))
    return (real or found)[0]


def flops(graph: lm.OpGraph, kind: str) -> int:
    return int(graph.flops[op(graph, kind)])


@functools.cache
def read(name: str, **options) -> lm.OpGraph:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name.endswith(FORMS[0]):
            return lm.read(closed_jaxpr(gzip.decompress((ARTIFACTS / name).read_bytes()).decode()))
        return lm.read(ARTIFACTS / name, **options)


def once(graph: lm.OpGraph) -> int:
    """FLOPs with every loop run once, which is how XLA's own analysis counts."""
    loops = graph.meta["loops"]
    return sum(
        int(work) // (loops.get(group) or 1)
        for work, group in zip(graph.flops, graph.colocation, strict=True)
    )


DOT = "dot_general[dimension_numbers=(([1], [0]), ([], []))]"


# ---- calls --------------------------------------------------------------------------------------


def call(graph: lm.OpGraph, kind: str) -> list:
    """What the only op of a kind is called with, by names."""
    return arguments.renumbered(graph.args[op(graph, kind)], graph.names.__getitem__)


def test_equations_are_called_with_operands_and_parameters():
    graph = of_jaxpr(
        "a:f32[2,3,7] b:f32[2,7,5]",
        """c:f32[2,3,5] = dot_general[dimension_numbers=(([2], [1]), ([0], [0]))] a b
d:f32[3,2,5] = transpose[permutation=(1, 0, 2)] c
e:f32[3,2,5] = add d 2.5:f32[]
f:f32[3,5] = reduce_sum[axes=(1,)] e""",
        "f",
    )
    contract, batch = [[2], [1]], [[0], [0]]
    assert call(graph, "dot_general") == [
        [{"op": "a"}, {"op": "b"}], {"dimension_numbers": [contract, batch]}
    ]  # fmt: skip
    assert call(graph, "transpose") == [[{"op": "dot_general"}], {"permutation": [1, 0, 2]}]
    assert call(graph, "add") == [[{"op": "transpose"}, 2.5]]
    assert call(graph, "reduce_sum") == [[{"op": "add"}], {"axes": [1]}]
    assert graph.args[:2] == [None, None]


def test_dimension_numbers_are_told_field_by_field():
    class Numbers(NamedTuple):
        offset_dims: tuple[int, ...]
        start_index_map: tuple[int, ...]

    Mode = enum.Enum("Mode", ["CLIP"])  # noqa: N806
    equation = "c:f32[3,8] = gather[slice_sizes=(1, 8)] a i"
    closed = closed_jaxpr(f"{{ lambda ; a:f32[4,8] i:i32[3,1]. let\n    {equation}\n  in (c,) }}")
    closed.jaxpr.eqns[0].params |= {
        "dimension_numbers": Numbers((1,), (0,)),
        "mode": Mode.CLIP,
        "dtype": np.dtype("float32"),
        "sharding": None,
    }
    assert lm.read(closed).args[2] == [
        [{"op": 0}, {"op": 1}],
        {
            "slice_sizes": [1, 8],
            "offset_dims": [1],
            "start_index_map": [0],
            "mode": "CLIP",
            "dtype": "float32",
            "sharding": None,
        },
    ]


def test_calls_of_kept_ops_are_renumbered_with_them():
    equations = ["u:f32[4] = sin a", "v:f32[4] = cos a", "w:f32[4] = mul v v", "x:f32[4] = add w a"]
    graph = of_jaxpr("a:f32[4]", "\n".join(equations), "x")
    assert graph.kinds == ["input", "cos", "mul", "add"]
    assert graph.args[2:] == [[[{"op": 1}, {"op": 1}]], [[{"op": 2}, {"op": 0}]]]


def test_operations_of_stablehlo_are_called_with_operands_and_attributes():
    graph = of_stablehlo(
        "%arg0: tensor<4x8xf32>, %arg1: tensor<3x1xi32>, "
        "%arg2: tensor<1x4x4x3xf32>, %arg3: tensor<3x3x3x8xf32>",
        """
    %0 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.dot_general %arg0, %0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.slice %1 [0:4, 0:4:2] : (tensor<4x4xf32>) -> tensor<4x2xf32>
    %3 = "stablehlo.gather"(%2, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 2>}> : (tensor<4x2xf32>, tensor<3x1xi32>) -> tensor<3x2xf32>
    %c = stablehlo.constant dense<0.5> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %c) applies stablehlo.add across dimensions = [0] : (tensor<3x2xf32>, tensor<f32>) -> tensor<2xf32>
    %5 = stablehlo.convolution(%arg2, %arg3) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x4x4x3xf32>, tensor<3x3x3x8xf32>) -> tensor<1x4x4x8xf32>
    return %4, %5 : tensor<2xf32>, tensor<1x4x4x8xf32>""",  # noqa: E501
    )
    assert call(graph, "stablehlo.transpose")[1] == {"dims": [1, 0]}
    assert call(graph, "stablehlo.dot_general")[1] == {"contracting_dims": [[1], [0]]}
    assert call(graph, "stablehlo.slice")[1] == {"slice": [[0, 4], [0, 4, 2]]}
    assert call(graph, "stablehlo.gather")[1] == {
        "offset_dims": [1], "collapsed_slice_dims": [0], "start_index_map": [0],
        "index_vector_dim": 1, "indices_are_sorted": False, "slice_sizes": [1, 2],
    }  # fmt: skip
    gathered = graph.names[op(graph, "stablehlo.gather")]
    assert call(graph, "stablehlo.reduce") == [[{"op": gathered}, 0.5], {"dimensions": [0]}]
    assert call(graph, "stablehlo.convolution")[1] == {
        "dim_numbers": "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]",
        "stride": [1, 1], "pad": [[1, 1], [1, 1]],
        "batch_group_count": 1, "feature_group_count": 1,
    }  # fmt: skip


def test_instructions_of_hlo_are_called_with_operands_and_attributes():
    text = """HloModule f

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

ENTRY %main (x: f32[8,64], w: f32[64,32]) -> f32[16] {
  %x = f32[8,64]{1,0} parameter(0)
  %w = f32[64,32]{1,0} parameter(1)
  %d = f32[8,32]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="f"}
  %p = f32[8,16]{1,0} slice(%d), slice={[0:8], [0:32:2]}
  %zero = f32[] constant(0)
  ROOT %r = f32[16]{0} reduce(%p, %zero), dimensions={0}, to_apply=%add, backend_config={"a":"b=1"}
}
"""  # noqa: E501
    graph = to_graph(hlo_text.from_text(text), "f")
    assert call(graph, "dot") == [
        [{"op": graph.names[0]}, {"op": graph.names[1]}],
        {"lhs_contracting_dims": [1], "rhs_contracting_dims": [0]},
    ]
    assert call(graph, "slice") == [[{"op": "d"}], {"slice": [[0, 8], [0, 32, 2]]}]
    assert call(graph, "reduce") == [[{"op": "p"}, 0.0], {"dimensions": [0]}]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("window={size=3x3 pad=1_1x1_1}, feature_group_count=4", {
            "window": "size=3x3 pad=1_1x1_1", "feature_group_count": 4}),
        ('custom_call_target="a, b", is_host=true, dims={}', {
            "custom_call_target": "a, b", "is_host": True, "dims": []}),
        ("loose, of=words", {"of": "words"}),
        ("", {}),
    ],
)  # fmt: skip
def test_attributes_of_hlo(text, want):
    assert of_hlo(text) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (
            "a = dense<[1, 2]> : tensor<2xi64>, b = dense<true> : tensor<i1>",
            {"a": [1, 2], "b": True},
        ),
        ("a = array<i1: true, false>, b = array<i64>", {"a": [True, False], "b": []}),
        ('a = "b = 3", c = -4 : i64', {"c": -4}),
        ("a = [[1, 2], [3", {"a": None}),
        ("a = [1, ]]", {"a": None}),
        ("a = " + "[" * 5000 + "]" * 5000, {"a": None}),
    ],
)
def test_attributes_of_stablehlo(text, want):
    assert of_mlir(text) == want


# ---- costs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "equation", "want"),
    [
        # 2 * (2 * 3 * 5) * 7: a batch of 2, (3, 7) by (7, 5).
        (
            "a:f32[2,3,7] b:f32[2,7,5]",
            "c:f32[2,3,5] = dot_general[dimension_numbers=(([2], [1]), ([0], [0]))] a b",
            420,
        ),
        ("a:f32[3,7] b:f32[7]", f"c:f32[3] = {DOT} a b", 42),
        ("a:f32[4,8]", "c:f32[4] = reduce_sum[axes=(1,)] a", 32),
        ("a:f32[4,8]", "c:f32[4,8] = exp a", 32),
        ("a:f32[4,8]", "c:f32[4,8] = logistic a", 128),
        ("a:f32[4,8]", "c:f32[4,8] = integer_pow[y=3] a", 64),
        ("a:f32[4,8]", "c:f32[4,8] = integer_pow[y=-2] a", 64),
        ("a:f32[4,8]", "c:f32[4,8] = convert_element_type[new_dtype=float32] a", 0),
        ("a:f32[4,8] i:i32[3,1]", "c:f32[3,8] = gather[slice_sizes=(1, 8)] a i", 0),
        ("a:f32[8,8]", "c:f32[8,8] = cholesky a", 171),
        ("a:f32[16,1000]", "c:f32[16,10] d:i32[16,10] = top_k[axis=1 k=10] a", 64000),
    ],
)  # fmt: skip
def test_flops_of_primitives(inputs, equation, want):
    graph = of_jaxpr(inputs, equation, "c")
    assert int(graph.flops.sum()) == want


@pytest.mark.parametrize(
    ("shape", "extra", "want"),
    [
        ("8,16,16", "padding=((1, 1), (1, 1)) window_strides=(1, 1)", 46 * 46),
        ("8,8,8", "padding=((0, 1), (0, 1)) window_strides=(2, 2)", 23 * 23),
        ("8,14,14", "padding=((0, 0), (0, 0)) window_strides=(1, 1)", 42 * 42),
    ],
)
def test_a_convolution_counts_the_taps_that_meet_data(shape, extra, want):
    # An axis of 16 by a kernel of 3: with a border of one, the outermost positions lose a tap.
    text = (
        f"c:f32[2,{shape}] = conv_general_dilated[batch_group_count=1 "
        "dimension_numbers=ConvDimensionNumbers(lhs_spec=(0, 1, 2, 3), rhs_spec=(0, 1, 2, 3), "
        f"out_spec=(0, 1, 2, 3)) feature_group_count=1 lhs_dilation=(1, 1) {extra} "
        "rhs_dilation=(1, 1)] a b"
    )
    graph = of_jaxpr("a:f32[2,3,16,16] b:f32[8,3,3,3]", text, "c")
    assert flops(graph, "conv_general_dilated") == 2 * 2 * 8 * 3 * want


@given(
    st.integers(1, 12), st.integers(1, 5), st.integers(1, 3), st.integers(-2, 4),
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 14),
)  # fmt: skip
def test_taps_are_those_that_are_counted_one_by_one(size, kernel, stride, before, dil, kdil, out):
    want = sum(
        0 <= (at := o * stride - before + k * kdil) <= (size - 1) * dil and at % dil == 0
        for o in range(out)
        for k in range(kernel)
    )
    assert Axis(size, out, kernel, stride, before, dil, kdil).taps() == want


def test_bytes_are_inputs_once_and_outputs_once():
    graph = of_jaxpr("a:f32[4,8]", "b:f32[4,8] = mul a a\nc:f32[4,8] = add b 1.0:f32[]", "c")
    assert graph.bytes_accessed.tolist() == [0, 256, 256]
    assert graph.output_bytes.tolist() == [128, 128, 128]


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("bf16", 2), ("bool", 1), ("f8_e4m3fn", 1), ("i4", 0.5), ("c64", 8), ("u16", 2), ("f64", 8)],
)
def test_sizes_of_element_types(dtype, size):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = of_jaxpr(f"a:{dtype}[6,10]", f"b:{dtype}[6,10] = copy_it a", "b")
    assert graph.output_bytes.tolist() == [60 * size] * 2


def test_unknown_primitives_are_costed_by_bytes_and_listed_once():
    with pytest.warns(
        UserWarning, match=r"costed by the bytes they move: glorp \(2\), snarf \(1\)"
    ):
        graph = of_jaxpr(
            "a:f32[4]", "b:f32[4] = glorp a\nc:f32[4] = glorp b\nd:f32[4] = snarf[x=1] c", "d"
        )
    assert graph.flops.sum() == 0
    assert graph.bytes_accessed.tolist() == [0, 32, 32, 32]
    assert any("glorp (2)" in note for note in graph.meta["assumed"])


# ---- what XLA says ------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("form", "near"), [(FORMS[0], 0.005), (FORMS[1], 0.005), (FORMS[2], 0.0002)]
)
def test_flops_are_what_xla_counts(model, form, near):
    said = json.loads((ARTIFACTS / f"{model}.cost.json").read_text())["cost"]
    want = said["flops"] + said["transcendentals"]
    assert once(read(model + form)) == pytest.approx(want, rel=near)


@pytest.mark.parametrize("model", MODELS)
def test_bytes_of_what_is_compiled_are_what_xla_counts(model):
    said = json.loads((ARTIFACTS / f"{model}.cost.json").read_text())["cost"]
    graph = read(model + FORMS[2])
    loops = graph.meta["loops"]
    moved = sum(
        int(size) // (loops.get(group) or 1)
        for size, group in zip(graph.bytes_accessed, graph.colocation, strict=True)
    )
    assert moved == pytest.approx(said["bytes accessed"], rel=0.04)


@pytest.mark.parametrize("form", FORMS[:2])
def test_scanned_layers_cost_what_written_out_layers_cost(form):
    scanned, written = read(f"transformer_scan{form}"), read(f"transformer{form}")
    assert scanned.flops.sum() == written.flops.sum()
    assert scanned.param_bytes.sum() == written.param_bytes.sum()


@pytest.mark.parametrize("model", MODELS)
def test_the_forms_agree(model):
    first, second, third = (read(model + form) for form in FORMS)
    dots = [
        sum(int(f) for f, k in zip(g.flops, g.kinds, strict=True) if k.endswith("dot_general"))
        for g in (first, second)
    ]
    assert dots[0] == dots[1]
    assert first.flops.sum() == pytest.approx(second.flops.sum(), rel=1e-4)
    assert first.flops.sum() == pytest.approx(third.flops.sum(), rel=5e-3)
    assert first.param_bytes.sum() == second.param_bytes.sum()
    assert [list(g.meta["loops"].values()) for g in (first, second)] == [
        list(third.meta["loops"].values())
    ] * 2


# ---- structure ----------------------------------------------------------------------------------


def test_a_broadcast_travels_as_small_as_it_was():
    graph = of_jaxpr(
        "a:f32[8]",
        "b:f32[8] = sin a\nc:f32[64,8] = broadcast_in_dim[broadcast_dimensions=(1,)] b\n"
        "d:f32[64,8] = exp c",
        "d",
    )
    view = op(graph, "broadcast_in_dim")
    assert graph.view[view]
    assert graph.alias_of[view] == op(graph, "sin")
    assert graph.output_bytes[view] == 0
    assert graph.bytes[graph.dst == op(graph, "exp")].tolist() == [32]
    assert graph.bytes_accessed[op(graph, "exp")] == 32 + 2048


def test_literals_and_what_they_make_are_no_ops():
    graph = of_jaxpr(
        "a:f32[8]",
        "b:f32[8] = broadcast_in_dim 2.0:f32[]\nc:f32[8] = sqrt b\nd:f32[8] = mul a c",
        "d",
    )
    assert graph.kinds == ["input", "mul"]
    assert graph.bytes_accessed[1] == 64


def test_what_nothing_needs_is_left_out_and_said():
    graph = of_jaxpr("a:f32[8]", "b:f32[8] = sin a\n_:f32[8] = exp b\nc:f32[8] = cos a", "c")
    assert graph.kinds == ["input", "cos"]
    assert any("2 ops that no output needs" in note for note in graph.meta["assumed"])


def test_effects_stay_and_keep_their_order():
    graph = of_jaxpr(
        "a:f32[8]",
        "debug_print[\n  fmt=one [( {}\n  ordered=True\n] a\n"
        "b:f32[8] = sin a\ndebug_callback[callback=<function f at 0x7f> ordered=True] b\n"
        "c:f32[8] = cos a",
        "c",
    )
    first, second = op(graph, "debug_print"), op(graph, "debug_callback")
    control = {(s, d) for s, d, t in zip(graph.src, graph.dst, graph.tensor, strict=True) if t < 0}
    assert (first, second) in control


def test_references_are_read_and_written_in_order():
    graph = of_jaxpr(
        "a:f32[8]",
        "b:Ref{f32[8]} = new_ref[kind=None memory_space=None] a\nc:f32[8] <- b[...]\n"
        "d:f32[8] = sin c\nb[...] <- d\nb[0:4] += d\ne:f32[8], b[...] <- b[...], d\n"
        "f:f32[8] <- b[]",
        "f",
    )
    assert graph.kinds == ["input", "new_ref", "get", "sin", "swap", "addupdate", "swap", "get"]
    order = set(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
    assert {(2, 4), (4, 5), (5, 6), (6, 7)} <= order


def test_calls_are_inlined_under_their_names_and_names_are_unique():
    inner = "{ lambda ; x:f32[4]. let y:f32[4] = sin x in (y,) }"
    graph = of_jaxpr(
        "a:f32[4]",
        f"b:f32[4] = jit[name=act jaxpr={inner}] a\nc:f32[4] = jit[name=act jaxpr={inner}] b\n"
        f"d:f32[4] = custom_jvp_call[call_jaxpr={inner} jvp=f symbolic_zeros=False] c",
        "d",
    )
    assert graph.names == ["a", "jit(act)/sin", "jit(act)/sin_1", "sin"]
    assert graph.src.tolist() == [0, 1, 2]


def test_name_stacks_give_names_modules_and_phases():
    graph = of_jaxpr(
        "a:f32[4,4] b:f32[4,4]",
        "c:f32[4,4] = dot_general[dimension_numbers=(([1], [0]), ([], []))] a b  # [jvp(MLP)/up]\n"
        "d:f32[4,4] = mul c c   # [transpose(jvp(MLP))/up]\n"
        "e:f32[4,4] = sub a d   # []",
        "e",
    )
    assert graph.names[2:] == ["jvp(MLP)/up/dot_general", "transpose(jvp(MLP))/up/mul", "sub"]
    assert graph.modules[2:] == ["MLP.up", "MLP.up", ""]
    assert graph.phases[2:] == ["f", "b", "o"]
    assert graph.kinds[:2] == ["parameter", "input"]


# ---- loops --------------------------------------------------------------------------------------

SCAN = """h:f32[8,4] i:f32[5] = scan[
  jaxpr={ lambda ; j:f32[4,4] k:f32[8,4] l:f32[8,4]. let
      m:f32[8,4] = dot_general[dimension_numbers=(([1], [0]), ([], []))] k j
      n:f32[8,4] = add m l
      p:f32[] = reduce_sum[axes=(0, 1)] n
    in (n, p) }
  length=5
  num_carry=1
  num_consts=1
  reverse=False
] w a x
o:f32[8,4] = exp h"""


def test_a_scan_is_one_op_per_op_of_its_body_times_its_trips():
    graph = of_jaxpr("a:f32[8,4] w:f32[4,4] x:f32[5,8,4]", SCAN, "o, i")
    body = [i for i, name in enumerate(graph.names) if name.startswith("scan/")]
    assert [graph.kinds[i] for i in body] == [
        "dynamic_slice", "dot_general", "add", "reduce_sum",
    ]  # fmt: skip
    assert graph.flops[body].tolist() == [0, 5 * 2 * 32 * 4, 5 * 32, 5 * 32]
    # Tensors are those of one trip; what the loop returns is allocated for all of it.
    assert graph.output_bytes[body].tolist() == [128, 128, 128, 4]
    assert graph.runs[body].tolist() == [5] * 4
    begin, end = graph.index("scan"), graph.index("scan.end")
    kept = [graph.index(f"scan.{part}#{i}") for i in (0, 1) for part in ("carry", "next")]
    assert graph.output_bytes[kept].tolist() == [128, 0, 5 * 4, 0]
    assert {graph.colocation[i] for i in (*body, *kept, begin, end)} == {"scan"}
    assert graph.meta["loops"] == {"scan": 5}
    # What comes after waits for the end and reads what the loop has kept.
    result = graph.index("scan#0")
    assert (graph.kinds[result], graph.runs[result]) == ("loop.result", 1)
    assert graph.alias_of[result] == kept[0]
    assert {int(s) for s in graph.src[graph.dst == result]} == {kept[1], end}
    assert graph.src[graph.dst == graph.index("exp")].tolist() == [result]


def test_nested_scans_multiply():
    inner = SCAN.split("\n")
    body = "\n".join("        " + line for line in inner[:11])
    text = (
        "q:f32[8,4] = scan[\n  jaxpr={ lambda ; w:f32[4,4] x:f32[5,8,4] a:f32[8,4]. let\n"
        f"{body}\n      in (h,) }}\n  length=3\n  num_carry=1\n  num_consts=2\n] w x a"
    )
    graph = of_jaxpr("a:f32[8,4] w:f32[4,4] x:f32[5,8,4]", text, "q")
    assert flops(graph, "dot_general") == 3 * 5 * 2 * 32 * 4
    assert set(graph.meta["loops"].values()) == {3, 5}
    groups = {c for c, kind in zip(graph.colocation, graph.kinds, strict=True) if kind != "input"}
    assert groups - {""} == {"scan"}


def while_text(test: str, step: str, start: str = "0:i32[]") -> str:
    return (
        "y:i32[] z:f32[8] = while[\n"
        "  body_jaxpr={ lambda ; p:i32[] q:f32[8]. let\n"
        f"      r:i32[] = {step}\n      s:f32[8] = mul q q\n    in (r, s) }}\n"
        "  body_nconsts=0\n"
        f"  cond_jaxpr={{ lambda ; t:i32[] u:f32[8]. let v:bool[] = {test} in (v,) }}\n"
        f"  cond_nconsts=0\n] {start} a"
    )


@pytest.mark.parametrize(
    ("test", "step", "start", "trips"),
    [
        ("lt t 7:i32[]", "add p 1:i32[]", "0:i32[]", 7),
        ("le t 7:i32[]", "add p 1:i32[]", "0:i32[]", 8),
        ("lt t 7:i32[]", "add p 2:i32[]", "0:i32[]", 4),
        ("gt t 0:i32[]", "sub p 3:i32[]", "10:i32[]", 4),
        ("ge t 1:i32[]", "add p -3:i32[]", "10:i32[]", 4),
        ("gt 7:i32[] t", "add p 1:i32[]", "2:i32[]", 5),
        ("ne t 6:i32[]", "add p 2:i32[]", "0:i32[]", 3),
        ("lt t 0:i32[]", "add p 1:i32[]", "5:i32[]", 0),
    ],
)
def test_trips_of_a_counter_against_a_literal(test, step, start, trips):
    graph = of_jaxpr("a:f32[8]", while_text(test, step, start), "z")
    assert list(graph.meta["loops"].values()) == [trips]
    assert flops(graph, "mul") == 8 * trips


@pytest.mark.parametrize(
    ("test", "step", "inputs", "start"),
    [
        ("lt t 7:i32[]", "add p 1:i32[]", "a:f32[8] n:i32[]", "n"),
        ("lt t 7:i32[]", "shift_left p 1:i32[]", "a:f32[8]", "1:i32[]"),
        ("ne t 7:i32[]", "add p 2:i32[]", "a:f32[8]", "0:i32[]"),
        ("lt t 7:i32[]", "sub p 1:i32[]", "a:f32[8]", "0:i32[]"),
    ],
)
def test_trips_that_are_not_known_count_once_and_are_said(test, step, inputs, start):
    with pytest.warns(UserWarning, match="1 loop does not say how often"):
        graph = of_jaxpr(inputs, while_text(test, step, start), "z")
    assert list(graph.meta["loops"].values()) == [None]
    assert flops(graph, "mul") == 8


def test_a_stack_that_a_loop_carries_is_updated_in_place():
    graph = of_stablehlo(
        "%arg0: tensor<20x64xf32>",
        """
    %cst = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<20x64xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1:3 = stablehlo.while(%i = %c, %x = %arg0, %y = %0) : tensor<i32>, tensor<20x64xf32>, tensor<20x64xf32>
    cond {
      %c_1 = stablehlo.constant dense<20> : tensor<i32>
      %2 = stablehlo.compare LT, %i, %c_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = stablehlo.dynamic_slice %x, %i, %c, sizes = [1, 64] : (tensor<20x64xf32>, tensor<i32>, tensor<i32>) -> tensor<1x64xf32>
      %3 = stablehlo.tanh %2 : tensor<1x64xf32>
      %4 = stablehlo.dynamic_update_slice %y, %3, %i, %c : (tensor<20x64xf32>, tensor<1x64xf32>, tensor<i32>, tensor<i32>) -> tensor<20x64xf32>
      %c_1 = stablehlo.constant dense<1> : tensor<i32>
      %5 = stablehlo.add %i, %c_1 : tensor<i32>
      stablehlo.return %5, %x, %4 : tensor<i32>, tensor<20x64xf32>, tensor<20x64xf32>
    }
    return %1#2 : tensor<20x64xf32>""",  # noqa: E501
    )
    stack = graph.index("while.1.carry#2")
    update = op(graph, "stablehlo.dynamic_update_slice")
    assert list(graph.meta["loops"].values()) == [20]
    assert graph.output_bytes[stack] == 20 * 64 * 4
    assert graph.output_bytes[update] == 0
    assert graph.alias_of[update] == stack
    assert graph.bytes_accessed[update] == 20 * (2 * 256 + 8)
    assert flops(graph, "stablehlo.tanh") == 20 * 64
    # The counter is known everywhere: no op, no tensor.
    assert "stablehlo.add" not in graph.kinds


def test_a_branch_is_its_dearest_and_waits_for_the_predicate():
    text = (
        "e:bool[] = gt b 0.0:f32[]\ni:i32[] = convert_element_type[new_dtype=int32] e\n"
        "c:f32[4,4] = cond[branches=(\n"
        "    { lambda ; x:f32[4,4]. let  in (x,) }\n"
        "    { lambda ; x:f32[4,4]. let\n"
        "        y:f32[4,4] = dot_general[dimension_numbers=(([1], [0]), ([], []))] x x\n"
        "      in (y,) }\n  )\n] i a"
    )
    graph = of_jaxpr("a:f32[4,4] b:f32[]", text, "c")
    assert flops(graph, "dot_general") == 128
    dot, branch = op(graph, "dot_general"), op(graph, "cond")
    assert branch in graph.src[graph.dst == dot]
    assert graph.colocation[dot] == graph.colocation[branch] != ""
    assert any("dearest" in note for note in graph.meta["assumed"])


# ---- StableHLO and HLO --------------------------------------------------------------------------


def test_stablehlo_in_its_pretty_and_generic_forms():
    graph = of_stablehlo(
        "%arg0: tensor<2x16x16x3xbf16>, %arg1: tensor<3x3x3x8xbf16>, %arg2: tensor<4x7xi32>",
        """
    %cst = stablehlo.constant dense<0.0> : tensor<bf16>
    %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 2], pad = [[0, 1], [0, 1]], rhs_dilate = [1, 1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x16x16x3xbf16>, tensor<3x3x3x8xbf16>) -> tensor<2x8x8x8xbf16>
    %1 = "stablehlo.reduce_window"(%0, %cst) <{window_dimensions = array<i64: 1, 2, 2, 1>}> ({
    ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
      %9 = stablehlo.maximum %a, %b : tensor<bf16>
      stablehlo.return %9 : tensor<bf16>
    }) : (tensor<2x8x8x8xbf16>, tensor<bf16>) -> tensor<2x4x4x8xbf16>
    %2 = stablehlo.reduce(%1 init: %cst) across dimensions = [1] : (tensor<2x4x4x8xbf16>, tensor<bf16>) -> tensor<2x4x8xbf16>
     reducer(%a: tensor<bf16>, %b: tensor<bf16>) {
      %9 = stablehlo.add %a, %b : tensor<bf16>
      %10 = stablehlo.multiply %9, %b : tensor<bf16>
      stablehlo.return %10 : tensor<bf16>
    }
    %3:2 = "stablehlo.sort"(%arg2, %arg2) <{dimension = 1 : i64}> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
      %9 = stablehlo.compare LT, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %9 : tensor<i1>
    }) : (tensor<4x7xi32>, tensor<4x7xi32>) -> (tensor<4x7xi32>, tensor<4x7xi32>)
    return %2, %3#1 : tensor<2x4x8xbf16>, tensor<4x7xi32>""",  # noqa: E501
    )
    assert flops(graph, "stablehlo.convolution") == 2 * 2 * 8 * 3 * 23 * 23
    assert flops(graph, "stablehlo.reduce_window") == 256 * 4
    assert flops(graph, "stablehlo.reduce") == 256 * 2
    assert flops(graph, "stablehlo.sort") == 28 * 3
    assert graph.output_bytes[op(graph, "stablehlo.convolution")] == 2 * 8 * 8 * 8 * 2


#: A module with every place in which MLIR prints a location, each a ``~``.
PLACES_OF_LOCATIONS = """module @jit_f {
  func.func public @main(%arg0: tensor<6x8xf32>~, %arg1: tensor<8xf32>~) -> (tensor<6xi32>, tensor<6x8xf32>) {
    %0 = stablehlo.iota dim = 1 : tensor<6x8xi32>~
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>~
    %c = stablehlo.constant dense<0> : tensor<i32>~
    %five = stablehlo.constant dense<5> : tensor<i32>~
    %1:2 = stablehlo.reduce(%arg0 init: %cst), (%0 init: %c) across dimensions = [1] : (tensor<6x8xf32>, tensor<6x8xi32>, tensor<f32>, tensor<i32>) -> (tensor<6xf32>, tensor<6xi32>)
     reducer(%arg2: tensor<f32>~, %arg4: tensor<f32>~) (%arg3: tensor<i32>~, %arg5: tensor<i32>~)  {
      %2 = stablehlo.compare GT, %arg2, %arg4, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>~
      %3 = stablehlo.select %2, %arg2, %arg4 : tensor<i1>, tensor<f32>~
      %4 = stablehlo.select %2, %arg3, %arg5 : tensor<i1>, tensor<i32>~
      stablehlo.return %3, %4 : tensor<f32>, tensor<i32>~
    }~
    %5:2 = stablehlo.while(%iterArg = %c, %iterArg_0 = %arg0) : tensor<i32>, tensor<6x8xf32>
    cond {
      %6 = stablehlo.compare LT, %iterArg, %five, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>~
      stablehlo.return %6 : tensor<i1>~
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>~
      %6 = stablehlo.add %iterArg, %one : tensor<i32>~
      %7 = stablehlo.tanh %iterArg_0 : tensor<6x8xf32>~
      stablehlo.return %6, %7 : tensor<i32>, tensor<6x8xf32>~
    }~
    %8 = "stablehlo.reduce_window"(%5#1, %cst) <{window_dimensions = array<i64: 1, 2>}> ({
    ^bb0(%arg2: tensor<f32>~, %arg3: tensor<f32>~):
      %9 = stablehlo.maximum %arg2, %arg3 : tensor<f32>~
      stablehlo.return %9 : tensor<f32>~
    }) : (tensor<6x8xf32>, tensor<f32>) -> tensor<6x7xf32>~
    %10 = call @scaled(%5#1, %arg1) : (tensor<6x8xf32>, tensor<8xf32>) -> tensor<6x8xf32>~
    return %1#1, %10 : tensor<6xi32>, tensor<6x8xf32>~
  }~
  func.func private @scaled(%arg0: tensor<6x8xf32>~, %arg1: tensor<8xf32>~) -> tensor<6x8xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<8xf32>) -> tensor<6x8xf32>~
    %1 = stablehlo.multiply %arg0, %0 : tensor<6x8xf32>~
    return %1 : tensor<6x8xf32>~
  }~
}~
"""  # noqa: E501

LOCATIONS = st.recursive(
    st.sampled_from(("#loc7", "unknown", '"f.py":3:48 to :64', '"x"', '"a loc(b, (c"', '"d/<e>"')),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(('"jit(f)/dot"', '"reduce:"')), inner).map(
            lambda it: f"{it[0]}({it[1]})"
        ),
        st.tuples(inner, inner).map(lambda it: f"callsite({it[0]} at {it[1]})"),
        st.lists(inner, min_size=1, max_size=3).map(lambda it: f"fused[{', '.join(it)}]"),
    ),
    max_leaves=4,
)


@settings(max_examples=20)
@given(st.data())
def test_locations_of_any_form_stand_anywhere(data):
    first, *parts = PLACES_OF_LOCATIONS.split("~")
    text = first + "".join(f" loc({data.draw(LOCATIONS)}){part}" for part in parts)
    wants = to_graph(stablehlo.from_text(PLACES_OF_LOCATIONS.replace("~", "")), "f")
    graph = to_graph(stablehlo.from_text(text), "f")
    assert graph.kinds == wants.kinds
    assert graph.outputs == wants.outputs
    assert graph.flops.tolist() == wants.flops.tolist()
    assert (graph.src.tolist(), graph.dst.tolist()) == (wants.src.tolist(), wants.dst.tolist())


def test_regions_read_what_is_around_them():
    graph = of_stablehlo(
        "%arg0: tensor<i32>, %arg1: tensor<4x4xf32>",
        """
    %0 = "stablehlo.case"(%arg0) ({
      stablehlo.return %arg1 : tensor<4x4xf32>
    }, {
      %1 = stablehlo.dot %arg1, %arg1 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      stablehlo.return %1 : tensor<4x4xf32>
    }) : (tensor<i32>) -> tensor<4x4xf32>
    return %0 : tensor<4x4xf32>""",
    )
    assert flops(graph, "stablehlo.dot") == 128


HLO = """HloModule jit_f, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%fused (p0: f32[8,64], p1: f32[64,32]) -> (f32[8,32], f32[8]) {
  %p0 = f32[8,64]{1,0} parameter(0)
  %p1 = f32[64,32]{1,0} parameter(1)
  %d = f32[8,32]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %zero = f32[] constant(0)
  %r = f32[8]{0} reduce(%d, %zero), dimensions={1}, to_apply=%add
  ROOT %t = (f32[8,32]{1,0}, f32[8]{0}) tuple(%d, %r)
}

ENTRY %main (x: f32[8,64], w: f32[64,32]) -> f32[8,32] {
  %x = f32[8,64]{1,0} parameter(0), metadata={op_name="x"}
  %w = f32[64,32]{1,0} parameter(1), metadata={op_name="params[\\'w\\']"}
  %fusion.1 = (f32[8,32]{1,0}, /*index=1*/f32[8]{0}) fusion(%x, %w), kind=kOutput, calls=%fused, metadata={op_name="jit(f)/jvp(MLP)/up/dot_general" stack_frame_id=3}
  %g0 = f32[8,32]{1,0} get-tuple-element(%fusion.1), index=0
  %g1 = f32[8]{0} get-tuple-element(%fusion.1), index=1
  %b = f32[8,32]{1,0} broadcast(%g1), dimensions={0}
  ROOT %tanh.2 = f32[8,32]{1,0} tanh(%b), metadata={op_name="jit(f)/tanh"}
}
"""  # noqa: E501


def trace_of(*events: tuple, module: str = "jit_f") -> dict:
    """Events as (hlo_op, run, thread, start us, us)."""
    rows = [
        {"ph": "X", "pid": 1, "tid": tid, "ts": ts, "dur": dur, "name": name,
         "args": {"hlo_op": name, "hlo_module": module, "run_id": str(run)}}
        for name, run, tid, ts, dur in events
    ]  # fmt: skip
    rows += [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/host:CPU"}},
        {"ph": "X", "ts": 1, "dur": 2},
    ]
    return {"traceEvents": rows}


@pytest.fixture
def hlo_file(tmp_path) -> Path:
    path = tmp_path / "f.hlo.txt"
    path.write_text(HLO)
    return path


def write(path: Path, document: dict) -> Path:
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


def test_a_fusion_costs_what_is_in_it_and_moves_what_crosses_its_border(hlo_file):
    graph = lm.read(hlo_file)
    assert graph.names == ["x", "params.w", "fusion.1", "b", "tanh.2"]
    assert graph.flops.tolist() == [0, 0, 2 * 8 * 32 * 64 + 8 * 32, 0, 256]
    assert graph.bytes_accessed[2] == 4 * (8 * 64 + 64 * 32 + 8 * 32 + 8)
    assert graph.kinds[:2] == ["input", "parameter"]
    assert graph.modules[2] == "MLP.up"


def test_hlo_before_it_is_optimized():
    text = HLO.replace("%", "").replace(
        "ENTRY main (x: f32[8,64], w: f32[64,32]) -> f32[8,32] {", "ENTRY main.5 {"
    )
    graph = to_graph(hlo_text.from_text(text), "f")
    assert graph.flops.tolist() == to_graph(hlo_text.from_text(HLO), "f").flops.tolist()


def test_times_of_a_trace_are_joined_by_instruction(hlo_file, tmp_path):
    events = [
        ("fusion.1", 1, 7, 10, 100), ("b", 1, 7, 120, 5), ("tanh.2", 1, 8, 130, 30),
        ("fusion.1", 2, 7, 300, 200), ("b", 2, 7, 510, 7), ("tanh.2", 2, 8, 600, 50),
        ("tanh.2", 2, 8, 700, 10),
    ]  # fmt: skip
    path = write(tmp_path / "t.json.gz", trace_of(*events))
    graph = lm.read(hlo_file, profile=path, device_type="cpu")
    np.testing.assert_allclose(graph.time["cpu"], [0, 0, 150e-6, 6e-6, 45e-6])
    measured = hlo.profile(path, graph=hlo_file, device_type="cpu", batch=8)
    assert measured.names == ("fusion.1", "b", "tanh.2")
    np.testing.assert_allclose(measured.seconds[2], [30e-6, 60e-6])
    assert (measured.device_type, measured.batch) == ("cpu", 8)
    assert measured.output_bytes.tolist() == [8 * 32 * 4 + 32, 1024, 1024]


def test_an_event_within_another_is_not_counted_twice(hlo_file, tmp_path):
    events = [("fusion.1", 1, 7, 0, 100), ("b", 1, 7, 10, 30), ("tanh.2", 1, 9, 20, 50)]
    path = write(tmp_path / "t.json.gz", trace_of(*events))
    np.testing.assert_allclose(
        lm.read(hlo_file, profile=path).time["cpu"][2:], [70e-6, 30e-6, 50e-6]
    )


def test_ops_that_a_trace_lacks_are_filled_in_by_bytes_and_counted(hlo_file, tmp_path):
    events = [("tanh.2", 1, 7, 0, 20), ("b", 1, 7, 30, 10)]
    path = write(tmp_path / "t.json.gz", trace_of(*events))
    with pytest.warns(UserWarning, match=r"1 of 5 ops \('fusion.1'\) were not measured"):
        graph = lm.read(hlo_file, profile=path)
    moved = graph.bytes_accessed
    rate = 30e-6 / int(moved[3] + moved[4])
    assert graph.time["cpu"][2] == pytest.approx(int(moved[2]) * rate)


def test_a_lane_of_all_ops_is_not_counted_beside_its_streams(hlo_file, tmp_path):
    events = [(name, 1, 7, 0, 20) for name in ("fusion.1", "b", "tanh.2")]
    document = trace_of(*events, *((name, run, 8, ts, dur) for name, run, _, ts, dur in events))
    name = {"ph": "M", "pid": 1, "tid": 8, "name": "thread_name", "args": {"name": "XLA Ops"}}
    document["traceEvents"].append(name)
    path = write(tmp_path / "t.json.gz", document)
    measured = hlo.profile(path, graph=hlo_file)
    assert measured.seconds.sum() == pytest.approx(20e-6)


@pytest.mark.parametrize(
    ("document", "match"),
    [
        (trace_of(("tanh.2", 1, 7, 0, 20), module="jit_g"), "'jit_f'; it has jit_g"),
        (trace_of(("tanh.2", 1, 7, 0, -3)), "dur -3"),
        (trace_of(("other", 1, 7, 0, 3)), "belongs to another graph"),
        (trace_of(), "no event names an hlo_op"),
        ({"events": []}, "no list 'traceEvents'"),
    ],
)  # fmt: skip
def test_traces_that_do_not_fit(hlo_file, tmp_path, document, match):
    path = write(tmp_path / "t.json.gz", document)
    with pytest.raises(InputError, match=match):
        lm.read(hlo_file, profile=path)


def test_the_measured_lstm():
    graph = read("lstm_scan.optimized_hlo.txt.gz", profile=TRACE)
    measured = hlo.profile(TRACE, graph=ARTIFACTS / "lstm_scan.optimized_hlo.txt.gz")
    assert set(measured.names) <= set(graph.names)
    assert (measured.n_steps, measured.device_type) == (1, "cpu")
    # The step took 1.64 ms on two threads; what ran in it cannot be much less on one.
    assert 1.3e-3 < float(graph.time["cpu"].sum()) < 1.64e-3
    events = json.loads(gzip.decompress(TRACE.read_bytes()))["traceEvents"]
    dots = [e["dur"] for e in events if e.get("args", {}).get("hlo_op") == "dot.8"]
    assert len(dots) == 20
    assert measured.seconds[measured.names.index("dot.8"), 0] == pytest.approx(sum(dots) * 1e-6)
    # Each loop's event spans its trips, which are not counted again.
    assert measured.seconds[measured.names.index("while.26"), 0] < 0.2e-3


# ---- training -----------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("form", FORMS)
def test_a_training_step_is_recognised(model, form):
    graph = read(model + form)
    kinds = Counter(graph.kinds)
    assert kinds["input"] == 2
    assert kinds["buffer"] == 2 * kinds["parameter"] + 1  # two moments each, and the count
    work = Counter()
    for phase, count in zip(graph.phases, graph.flops, strict=True):
        work[phase] += int(count)
    assert work["b"] == pytest.approx(2 * work["f"], rel=0.03)
    assert 0 < work["o"] < 0.1 * work["f"]


def test_a_parameter_its_slots_and_its_update_share_a_device():
    graph = read("transformer.stablehlo.mlir.gz")
    name = "params.Block_0.Dense_0.kernel"
    group = [i for i, c in enumerate(graph.colocation) if c == name]
    kinds = Counter(graph.kinds[i] for i in group)
    assert (kinds["parameter"], kinds["buffer"]) == (1, 2)
    assert {graph.phases[i] for i in group} == {"f", "o"}
    assert {graph.outputs[i] for i in group} == {"f32[512,128]"}
    assert graph.modules[graph.index(name)] == "params.Block_0.Dense_0"


STEP = """g:f32[8,4] = dot_general[dimension_numbers=(([1], [0]), ([], []))] x w
l:f32[] = reduce_sum[axes=(0, 1)] g
e:f32[4,4] = dot_general[dimension_numbers=(([0], [0]), ([], []))] x g
m:f32[4,4] = mul 0.9:f32[] v
n:f32[4,4] = add m e
o:f32[4,4] = mul -0.1:f32[] n
p:f32[4,4] = add w o"""


def test_state_is_told_by_its_place_and_its_update():
    graph = of_jaxpr("w:f32[4,4] v:f32[4,4] x:f32[8,4]", STEP, "p, n, l")
    assert graph.kinds[:3] == ["parameter", "buffer", "input"]
    assert graph.modules[1] == "optim"
    assert graph.phases[3:] == ["f", "f", "b", "o", "o", "o", "o"]
    assert set(graph.colocation[i] for i in (0, 1, 6, 7, 8, 9)) == {"w"}


def test_donated_state_is_updated_in_place_after_its_readers():
    lines = "\n          ".join(STEP.split("\n"))
    text = (
        "{ lambda ; a:f32[4,4] b:f32[4,4] c:f32[8,4]. let\n"
        "    d:f32[4,4] e:f32[4,4] f:f32[] = jit[\n"
        "      name=step\n      donated_invars=(True, True, False)\n"
        f"      jaxpr={{ lambda ; w:f32[4,4] v:f32[4,4] x:f32[8,4]. let\n          {lines}\n"
        "        in (p, n, l) }\n    ] a b c\n  in (d, e, f) }"
    )
    graph = lm.read(closed_jaxpr(text))
    update = graph.index("jit(step)/add_1")
    assert graph.alias_of[update] == 0
    assert graph.output_bytes[update] == 0
    reader = graph.index("jit(step)/dot_general")
    assert (reader, update) in set(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
    assert graph.name == "step"


def test_an_inference_is_no_training_step():
    graph = of_jaxpr(
        "x:f32[4,4] w:f32[4,4]",
        "h:f32[4,4] = dot_general[dimension_numbers=(([1], [0]), ([], []))] x w\n"
        "y:f32[4,4] = add x h",
        "y",
    )
    assert graph.kinds[:2] == ["input", "input"]
    assert set(graph.phases) == {"f"}


def test_a_cache_that_comes_back_updated_is_no_training_step():
    graph = of_jaxpr(
        "k:f32[4,4] v:f32[4,4] x:f32[4,4]",
        f"a:f32[4,4] = add k x\nb:f32[4,4] = add v x\nc:f32[4,4] = {DOT} a k\n"
        f"d:f32[4,4] = {DOT} b v\n"
        "y:f32[4,4] = add c d",
        "a, b, y",
    )
    assert graph.kinds[:3] == ["input"] * 3
    assert set(graph.phases) == {"f"}


def test_gradients_alone_have_their_phase():
    graph = of_jaxpr(
        "w:f32[4,4]",
        "a:f32[4,4] = sin w # [jvp()]\nb:f32[4,4] = cos w # [transpose(jvp())]",
        "a, b",
    )
    assert graph.phases[1:] == ["f", "b"]


# ---- reading and placing ------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzipped"])
@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("module @jit_f {\n  func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {\n"
         "    %0 = stablehlo.sine %a : tensor<2xf32>\n    return %0 : tensor<2xf32>\n  }\n}",
         "stablehlo"),
        (HLO, "hlo"),
    ],
)  # fmt: skip
def test_texts_are_told_by_content(tmp_path, pack, text, framework):
    path = tmp_path / "program"
    path.write_bytes(pack(text.encode()))
    graph = lm.read(path)
    assert graph.meta["framework"] == framework
    assert graph.flops.sum() > 0
    with pytest.raises(InputError, match=r"takes no option.* 'batch'"):
        lm.read(path, batch=4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("model", MODELS)
def test_graphs_are_placed(model, form):
    graph = read(model + form)
    cluster = lm.Cluster.preset("4xV100-PCIe")
    plan = lm.place(graph, cluster, "heft")
    assert plan.lower_bound <= plan.makespan
    for group in graph.meta["loops"]:
        devices = plan.devices[[i for i, c in enumerate(graph.colocation) if c == group]]
        assert len(set(devices.tolist())) <= 1


def test_a_printed_jaxpr_is_no_graph_and_what_to_give_is_said(tmp_path):
    path = tmp_path / "f.jaxpr"
    path.write_text("{ lambda ; a:f32[2]. let b:f32[2] = sin a in (b,) }")
    with pytest.raises(InputError, match=r"a jaxpr \(jax.make_jaxpr.*StableHLO"):
        lm.read(path)


def test_symbolic_dimensions_want_sizes():
    closed = closed_jaxpr(
        "{ lambda ; a:f32[b,8]. let c:f32[2*b,8] = concatenate[dimension=0] a a in (c,) }"
    )
    with pytest.raises(InputError, match=r"dimension 'b' is symbolic: give sizes="):
        lm.read(closed)
    assert lm.read(closed, sizes={"b": 16}).outputs == ["f32[16,8]", "f32[32,8]"]


def test_dynamic_dimensions_are_refused_with_a_way_out():
    with pytest.raises(InputError, match=r"line 2: tensor<\?x4xf32> has a dynamic dimension"):
        of_stablehlo("%arg0: tensor<?x4xf32>", "    return %arg0 : tensor<?x4xf32>")


@pytest.mark.parametrize("dtype", ["!quant.uniform<i8:f32, 0.1>", "f42", "tensor<4xf32>"])
def test_element_types_of_unknown_size_are_refused(dtype):
    with pytest.raises(InputError, match=r"line 2: element type .* is unknown"):
        of_stablehlo(f"%arg0: tensor<4x{dtype}>", f"    return %arg0 : tensor<4x{dtype}>")


def test_shapes_without_elements():
    graph = of_jaxpr(
        "a:f32[0,8] b:f32[8,4]",
        "c:f32[0,4] = dot_general[dimension_numbers=(([1], [0]), ([], []))] a b\n"
        "d:f32[0] = reduce_sum[axes=(1,)] c",
        "d",
    )
    assert graph.flops.sum() == 0
    assert lm.place(graph, lm.Cluster.preset("2xV100-NVLink"), "heft").makespan > 0


# ---- bad text -----------------------------------------------------------------------------------

PROGRAMS = {
    "stablehlo": (
        "module @jit_f {\n  func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> {\n"
        "    %0 = call @g(%a) : (tensor<2xf32>) -> tensor<2xf32>\n    return %0 : tensor<2xf32>\n"
        "  }\n  func.func private @g(%a: tensor<2xf32>) -> tensor<2xf32> {\n"
        "    %cst = stablehlo.constant dense<1.0> : tensor<f32>\n"
        "    %0 = stablehlo.reduce(%a init: %cst) applies stablehlo.add across dimensions = [0] : "
        "(tensor<2xf32>, tensor<f32>) -> tensor<f32>\n"
        "    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<2xf32>\n"
        "    return %1 : tensor<2xf32>\n  }\n}"
    ),
    "hlo": HLO,
}


@pytest.mark.parametrize("form", PROGRAMS)
def test_truncated_text_names_the_line(form, tmp_path):
    lines = PROGRAMS[form].rstrip().split("\n")
    path = tmp_path / "program"
    for n in range(1, len(lines)):
        text = "\n".join(lines[:n])
        if text.strip().endswith("}") and form == "hlo":
            continue  # whole computations: the entry is what is missing
        path.write_text(text)
        with pytest.raises(InputError, match=r"line \d+: |no ENTRY|no function"):
            lm.read(path)


@pytest.mark.parametrize(
    ("equation", "match"),
    [
        ("dot_general a a", "dot_general has no dimension_numbers"),
        ("conv_general_dilated a a", "conv_general_dilated has dimension numbers, padding or"),
        ("sin 1.0:q7[]", "element type 'q7' is unknown"),
        ("sin 1.0:Weird", "'Weird' is no type like"),
        (
            "scan[jaxpr={ lambda ; c:f32[2]. let  in (c,) } num_carry=1 num_consts=0] a",
            "scan has no whole number for 'length'",
        ),
    ],
)
def test_wrong_jaxprs(equation, match):
    with pytest.raises(InputError, match=re.escape(match)):
        of_jaxpr("a:f32[2]", f"b:f32[2] = {equation}", "b")


def test_what_is_no_jaxpr():
    with pytest.raises(InputError, match=r"int is no jaxpr: give what jax\.make_jaxpr"):
        jaxpr.read(3)


def test_calls_that_double_end_in_an_error_not_in_memory(monkeypatch):
    monkeypatch.setattr(xla_graph, "LIMIT", 10_000)
    lines = ["let f0 = { lambda ; a:f32[]. let b:f32[] = sin a in (b,) } in"]
    for i in range(1, 40):
        call = f"jit[name=f jaxpr=f{i - 1}]"
        lines.append(
            f"let f{i} = {{ lambda ; a:f32[]. let\n    b:f32[] = {call} a\n    c:f32[] = {call} b\n"
            "  in (c,) } in"
        )
    lines.append("{ lambda ; a:f32[]. let b:f32[] = jit[name=f jaxpr=f39] a in (b,) }")
    with pytest.raises(InputError, match="more than 10000 instructions once its calls are inlined"):
        lm.read(closed_jaxpr("\n".join(lines)))


def test_a_function_that_calls_itself():
    call = "    %0 = call @main(%a) : (tensor<f32>) -> tensor<f32>\n    return %0 : tensor<f32>"
    with pytest.raises(InputError, match="'main' calls itself"):
        of_stablehlo("%a: tensor<f32>", call)


def test_nesting_is_the_programs_not_pythons():
    """3,000 calls within one another; Python's own stack holds 1,000."""
    inner = closed_jaxpr("{ lambda ; a:f32[]. let b:f32[] = sin a in (b,) }")
    for _ in range(3000):
        x, y = Var(inner.jaxpr.invars[0].aval), Var(inner.jaxpr.invars[0].aval)
        call = Equation(SimpleNamespace(name="jit"), [x], [y], {"name": "f", "jaxpr": inner})
        inner = ClosedJaxpr(Jaxpr([x], [], [call], [y]))
    assert lm.read(inner).n_ops == 2


def mutated(text: str, random_: random.Random) -> str:
    """Some pieces of a text changed, dropped or doubled."""
    out = text
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(out) + 1)
        size = random_.randint(1, 30)
        match random_.randrange(4):
            case 0:
                out = out[:at] + random_.choice("[](){}<>,:;=%#\"' \n0a-?") + out[at + 1 :]
            case 1:
                out = out[:at] + out[at + size :]
            case 2:
                out = out[:at] + out[at : at + size] + out[at:]
            case _:
                start = random_.randrange(len(out) + 1)
                out = out[:at] + out[start : start + size] + out[at:]
    return out


@pytest.mark.parametrize("form", PROGRAMS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=75)
def test_damaged_text_is_read_or_refused(form, seed):
    parse = {"stablehlo": stablehlo.from_text, "hlo": hlo_text.from_text}
    text = mutated(PROGRAMS[form], random.Random(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(LoadmasterError):
            graph = to_graph(parse[form](text), "f")
            lm.place(graph, lm.Cluster.preset("2xV100-NVLink"), "single", on_oom="best_effort")


@pytest.mark.parametrize("name", [f"lstm_scan{form}" for form in FORMS[1:]])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=15)
def test_damaged_artifacts_are_read_or_refused(name, seed):
    text = gzip.decompress((ARTIFACTS / name).read_bytes()).decode()
    parse = {FORMS[1]: stablehlo.from_text, FORMS[2]: hlo_text.from_text}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(InputError):
            to_graph(parse[name.removeprefix("lstm_scan")](mutated(text, random.Random(seed))), "f")


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_damaged_traces_are_read_or_refused(seed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace")
    text, trace = folder / "f.hlo.txt", folder / "t.json"
    text.write_text(HLO)
    events = trace_of(("fusion.1", 1, 7, 10, 100), ("b", 1, 7, 120, 5), ("tanh.2", 2, 8, 130, 30))
    trace.write_text(mutated(json.dumps(events), random.Random(seed)))
    with warnings.catch_warnings(), contextlib.suppress(InputError):
        warnings.simplefilter("ignore")
        lm.read(text, profile=trace)
