"""Splitting an op: real bytes on every slice, FLOPs conserved, errors that name the dimension."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from folders import EXAMPLES, LARGE, traced_graphs
from hypothesis import given
from hypothesis import strategies as st
from strategies import graph_of, v100_mesh

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.costs.program import costs_of, program_costs
from loadmaster.model.graph import TEXTS
from loadmaster.model.shapes import format_output, parse_output
from loadmaster.transforms import dimensions, split_op
from loadmaster.transforms.split import planned_split


def convolution(batch: int = 8, **changes) -> lm.OpGraph:
    """x [8,3,4,4] * w [6,3,1,1] + b [6] -> y [8,6,4,4], then relu in place, then a view of it."""
    ops = {
        "name": ["x", "w", "b", "y", "relu", "flat", "write"],
        "kind": [
            "input",
            "parameter",
            "parameter",
            "aten.convolution.default",
            "aten.relu_.default",
            "aten.view.default",
            "aten.add_.Tensor",
        ],
        "output": [
            f"f32[{batch},3,4,4]",
            "f32[6,3,1,1]",
            "f32[6]",
            f"f32[{batch},6,4,4]",
            f"f32[{batch},6,4,4]",
            f"f32[{batch},96]",
            "f32[6,3,1,1]",
        ],
        "flops": [0, 0, 0, 1001, 0, 0, 5],
        "bytes_accessed": [0, 0, 0, 1536 + 72 + 24 + 3072, 6144, 0, 216],
        "output_bytes": [1536, 72, 24, 3072, 0, 0, 0],
        "param_bytes": [0, 72, 24, 0, 0, 0, 0],
        "workspace": [0, 0, 0, 10, 0, 0, 0],
        "view": [0, 0, 0, 0, 0, 1, 0],
        "alias_of": [-1, -1, -1, -1, 3, 3, 1],
        "colocation": ["", "w", "", "", "", "", "w"],
    }
    edges = {
        "src": [0, 1, 2, 3, 4, 1, 3],
        "dst": [3, 3, 3, 4, 5, 6, 6],
        "tensor": [0, 1, 2, 3, 4, 1, -1],
        "bytes": [1536, 72, 24, 3072, 3072, 72, 0],
    }
    return lm.OpGraph(ops | changes, edges, name="convolution")


def edges_of(graph: lm.OpGraph) -> list[tuple[str, str, int]]:
    """(source, destination, bytes), control edges with -1."""
    tensor = graph.src if graph.tensor is None else graph.tensor
    return sorted(
        (graph.names[s], graph.names[d], int(b) if t >= 0 else -1)
        for s, d, t, b in zip(graph.src, graph.dst, tensor, graph.bytes, strict=True)
    )


def row(graph: lm.OpGraph, op: str) -> dict[str, int]:
    at = graph.index(op)
    columns = ("flops", "bytes_accessed", "output_bytes", "workspace")
    return {c: int(getattr(graph, c)[at]) for c in columns}


def check(before: lm.OpGraph, op: str, done: lm.transforms.Program, n: int) -> None:
    """What holds for every split."""
    graph, own = done.graph, done.own
    given = lm.OpGraph.from_document(graph.to_document())
    assert given.digest == graph.digest, "it is acyclic, and names are unique"
    assert (given.reduced.map == graph.reduced.map).all()
    assert (given.reduced.graph.lead == graph.reduced.graph.lead).all()
    assert int(graph.flops[~own].sum()) == int(before.flops.sum())
    assert int(graph.param_bytes.sum()) == int(before.param_bytes.sum())
    at = before.index(op)
    assert done.share[done.origin == at].sum() == pytest.approx(1)
    assert Counter(done.origin[~own].tolist()) == {
        i: n if i == at else 1 for i in range(before.n_ops)
    }
    assert (graph.bytes_accessed[own] > 0).all(), "no split, concat or sum is free"
    if before.bytes_accessed[at]:
        assert int(graph.bytes_accessed[done.origin == at].sum()) >= before.bytes_accessed[at]
    for i in np.flatnonzero(own):
        tensors = {}
        for e in np.flatnonzero(graph.src == i):
            tensors[int(graph.tensor[e])] = int(graph.bytes[e])
        arriving = [int(b) for b in graph.bytes[graph.dst == i]]
        if graph.kinds[i] == "split":
            assert sum(tensors.values()) == sum(arriving)
        elif graph.kinds[i] == "concat":
            assert sum(arriving) == graph.output_bytes[i]
        else:
            assert set(arriving) == {int(graph.output_bytes[i])}
        if graph.kinds[i] != "split":
            assert set(tensors.values()) <= {0, int(graph.output_bytes[i])}
    # What reads the graph's outputs reads what it read before.
    named = {n: (int(b)) for _, n, b in edges_of(before) if n != op and b >= 0}
    now = {n: (int(b)) for _, n, b in edges_of(graph) if n in named and b >= 0}
    assert now == named


# -- by hand ---------------------------------------------------------------------------------


def test_a_convolution_along_its_batch():
    g = convolution()
    done = split_op(g, "y", "batch", 2)
    graph = done.graph
    assert graph.names == [
        "x", "w", "b", "y@split0", "y@s0", "y@s1", "y@concat", "relu", "flat", "write",
    ]  # fmt: skip
    assert edges_of(graph) == sorted(
        [
            ("x", "y@split0", 1536),
            *[("y@split0", f"y@s{i}", 768) for i in (0, 1)],
            *[(p, f"y@s{i}", b) for p, b in (("w", 72), ("b", 24)) for i in (0, 1)],
            *[(f"y@s{i}", "y@concat", 1536) for i in (0, 1)],
            ("y@concat", "relu", 3072),
            ("relu", "flat", 3072),
            ("w", "write", 72),
            *[(f"y@s{i}", "write", -1) for i in (0, 1)],
        ]
    )
    assert row(graph, "y@s0") == {
        "flops": 500, "bytes_accessed": 96 + 2304, "output_bytes": 1536, "workspace": 5,
    }  # fmt: skip
    assert row(graph, "y@s1")["flops"] == 501
    assert row(graph, "y@split0") == {
        "flops": 0, "bytes_accessed": 3072, "output_bytes": 1536, "workspace": 0,
    }  # fmt: skip
    assert row(graph, "y@concat")["bytes_accessed"] == 6144
    outputs = dict(zip(graph.names, graph.outputs, strict=True))
    assert outputs["y@split0"] == "f32[4,3,4,4];f32[4,3,4,4]"
    assert outputs["y@s1"] == "f32[4,6,4,4]"
    assert outputs["y@concat"] == "f32[8,6,4,4]"
    for name in ("relu", "flat"):
        assert graph.alias_of[graph.index(name)] == graph.index("y@concat")
    assert graph.alias_of[graph.index("write")] == graph.index("w")
    check(g, "y", done, 2)


def test_a_convolution_along_its_channels_slices_the_weight():
    g = convolution()
    done = split_op(g, "y", "output_channel", 3)
    edges = edges_of(done.graph)
    assert [e for e in edges if e[0] == "x"] == [("x", f"y@s{i}", 1536) for i in range(3)]
    assert ("w", "y@split1", 72) in edges
    assert ("b", "y@split2", 24) in edges
    assert ("y@split1", "y@s2", 24) in edges
    assert ("y@split2", "y@s2", 8) in edges
    assert done.graph.param_bytes.sum() == g.param_bytes.sum() == 96
    assert row(done.graph, "y@s0")["bytes_accessed"] == 1536 + (72 + 24 + 3072) // 3
    check(g, "y", done, 3)


def test_a_contraction_is_summed():
    g = lm.OpGraph(
        {
            "name": ["a", "b", "c", "d"],
            "kind": ["input", "input", "aten.mm.default", "use"],
            "output": ["f32[4,6]", "f32[6,2]", "f32[4,2]", ""],
            "flops": [0, 0, 96, 0],
            "bytes_accessed": [0, 0, 96 + 48 + 32, 32],
            "output_bytes": [96, 48, 32, 0],
        },
        {"src": [0, 1, 2], "dst": [2, 2, 3], "bytes": [96, 48, 32]},
    )
    assert dimensions(g, "c") == {"row": 4, "column": 2, "contraction": 6}
    done = split_op(g, "c", "contraction", 3)
    assert ("c@s1", "c@sum", 32) in edges_of(done.graph)
    assert row(done.graph, "c@sum") == {
        "flops": 16, "bytes_accessed": 128, "output_bytes": 32, "workspace": 0,
    }  # fmt: skip
    assert int(done.graph.flops[done.own].sum()) == 16
    assert row(done.graph, "c@s0")["bytes_accessed"] == 32 + (96 + 48) // 3
    check(g, "c", done, 3)


def test_gradients_of_a_convolution_are_joined_each_in_its_way():
    """A batch split: the input's gradient is concatenated, those of weight and bias are summed."""
    g = lm.read("example:lenet")
    done = split_op(g, "convolution_backward", "batch", 4)
    graph = done.graph
    joins = [n for n in graph.names if n.startswith("convolution_backward@") and "@s" not in n]
    joins += ["convolution_backward@sum1", "convolution_backward@sum2"]
    assert joins[:1] == ["convolution_backward@concat0"]
    of = {n: graph.names[graph.alias_of[graph.index(n)]] for n in ("getitem_6", "getitem_7")}
    assert of == {
        "getitem_6": "convolution_backward@concat0",
        "getitem_7": "convolution_backward@sum1",
    }
    # The weight is updated by what getitem_7 shows; its write waits for every part's read.
    waits = [(s, b) for s, d, b in edges_of(graph) if d == "add__5" and "backward@" in s]
    assert waits == [(f"convolution_backward@s{i}", -1) for i in range(4)]
    check(g, "convolution_backward", done, 4)


def test_parts_can_be_split_again():
    g = convolution()
    once = split_op(g, "y", "batch", 2)
    assert dimensions(once.graph, "y@s1") == {"batch": 4, "output_channel": 6}
    twice = split_op(once.graph, "y@s1", "batch", 2)
    assert "y@s1@s0" in twice.graph.names
    assert twice.graph.outputs[twice.graph.index("y@s1@split0")] == "f32[2,3,4,4];f32[2,3,4,4]"
    both = once.then(twice)
    shares = {n: s for n, s in zip(both.graph.names, both.share, strict=True) if s < 1}
    assert shares == {"y@s0": 0.5, "y@s1@s0": 0.25, "y@s1@s1": 0.25}
    check(once.graph, "y@s1", twice, 2)
    assert int(both.graph.flops[~both.own].sum()) == int(g.flops.sum())


def test_what_reads_a_split_op_keeps_the_order_of_its_arguments():
    g = lm.OpGraph(
        {
            "name": ["a", "b", "c", "d", "e"],
            "kind": ["input", "input", "aten.mm", "input", "aten.mm"],
            "output": ["f32[8,6]", "f32[6,4]", "f32[8,4]", "f32[4,2]", "f32[8,2]"],
        },
        {"src": [0, 1, 2, 3], "dst": [2, 2, 4, 4], "bytes": [192, 96, 128, 32]},
    )
    wanted = dimensions(g, "e")
    assert wanted == {"row": 8, "column": 2, "contraction": 4}
    for dimension in ("row", "column", "contraction"):
        graph = split_op(g, "c", dimension, 2).graph
        assert dimensions(graph, "e") == wanted
        assert set(dimensions(graph, "c@s1")) == set(wanted)
    graph = split_op(g, "e", "row", 2).graph
    assert dimensions(graph, "e@s0") == wanted | {"row": 4}


def test_splitting_one_op_takes_no_dimension_from_another():
    """Of what sizes tell: the graph that runs does not say what ops were called with."""
    said = lm.read("example:lenet")
    g = said.with_columns({"args": None})
    names = [n for n in g.names if dimensions(g, n)]
    for op in names:
        graph = split_op(g, op, *min(dimensions(g, op).items()), best_effort=True).graph
        for other in set(names) - {op}:
            assert dimensions(graph, other) == dimensions(g, other), (op, other)
    for op in names:
        assert dimensions(g, op).items() <= dimensions(said, op).items(), op


def test_replicas_can_be_split():
    lenet = lm.read("example:lenet")
    graph = lm.transforms.replicate(lenet, 2, aggregation="parameter-server").graph
    assert dimensions(graph, "convolution_1@r1") == {"batch": 128, "output_channel": 50}
    assert dimensions(graph, "mm_3@r0") == {"row": 500, "column": 800, "contraction": 128}


def test_an_op_that_waits_makes_its_split_and_parts_wait():
    g = convolution()
    document = g.to_document()
    document["ops"]["name"].append("first")
    for column, values in document["ops"].items():
        if column != "name":
            values.append("" if isinstance(values[0], str) else -1 if column == "alias_of" else 0)
    for column, value in (("src", 7), ("dst", 3), ("tensor", -1), ("bytes", 0)):
        document["edges"][column].append(value)
    graph = split_op(lm.OpGraph.from_document(document), "y", "batch", 2).graph
    assert [d for s, d, b in edges_of(graph) if s == "first"] == ["y@s0", "y@s1", "y@split0"]


def test_an_op_that_nothing_reads_and_ids_that_are_the_ops():
    g = lm.OpGraph(
        {
            "name": ["x", "w", "y"],
            "kind": ["input", "parameter", "Gemm"],
            "output": ["f32[4,3]", "f32[5,3]", "f32[4,5]"],
            "output_bytes": [48, 60, 80],
            "bytes_accessed": [0, 0, 188],
        },
        {"src": [0, 1], "dst": [2, 2], "bytes": [48, 60]},
    )
    assert g.tensor is None
    assert dimensions(g, "y") == {"row": 4, "column": 5, "contraction": 3}
    done = split_op(g, "y", "row", 2)
    assert ("y@s1", "y@concat", 40) in edges_of(done.graph)
    check(g, "y", done, 2)


def test_matrix_products_of_onnx_by_rank():
    def product(a: str, b: str, c: str) -> dict[str, int]:
        g = lm.OpGraph(
            {"name": ["a", "b", "c"], "kind": ["input", "input", "MatMul"], "output": [a, b, c],
             "output_bytes": [1, 1, 1]},
            {"src": [0, 1], "dst": [2, 2], "bytes": [1, 1]},
        )  # fmt: skip
        return dimensions(g, "c")

    assert product("f32[8,4,3]", "f32[3,5]", "f32[8,4,5]") == {
        "batch": 8, "row": 4, "column": 5, "contraction": 3,
    }  # fmt: skip
    assert product("f32[8,2,4,3]", "f32[8,2,3,5]", "f32[8,2,4,5]") == {
        "batch0": 8, "batch1": 2, "row": 4, "column": 5, "contraction": 3,
    }  # fmt: skip
    assert product("f32[4,3]", "f32[3,5]", "f32[4,5]") == {
        "row": 4, "column": 5, "contraction": 3,
    }  # fmt: skip


def test_what_is_planned_takes_what_it_takes_in_the_graph():
    cluster = v100_mesh(2)
    for graph in (lm.read("example:lenet"), convolution()):
        before = lm.costs.estimate(graph, cluster)
        for op in range(graph.n_ops):
            for dimension in dimensions(graph, op):
                planned = planned_split(graph, op, dimension, 2)
                step = planned.program()
                found = costs_of(planned.work, before, cluster)
                whole = program_costs(step, before, cluster)
                block = np.flatnonzero(step.serves == op)
                assert (found.time == whole.time[block]).all()
                assert (found.provenance == whole.provenance[block]).all()
                assert (step.role[block] == planned.work.role).all()
                assert not set(TEXTS.values()) & set(vars(step.graph)), "no text is made for it"


def test_an_uneven_split_is_said():
    g = convolution()
    done = split_op(g, "y", "batch", 3, best_effort=True)
    assert done.notes == ("op 'y': batch of 8 is cut unevenly, into 2, 3, 3",)
    assert [b for s, d, b in edges_of(done.graph) if s == "y@split0"] == [384, 576, 576]
    assert done.share[done.origin == 3].tolist() == [0.25, 0.375, 0.375]
    assert split_op(g, "y", "batch", 4, best_effort=True).notes == ()
    check(g, "y", done, 3)


# -- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "dimension", "n", "words"),
    [
        ("y", "batch", 3, ["'y'", "batch has size 8", "3 equal parts", "best_effort=True"]),
        ("y", "batch", 9, ["'y'", "batch has size 8", "into 9 parts"]),
        ("y", "row", 2, ["'y' (aten.convolution.default)", "'row'", "are batch, output_channel"]),
        ("y", "batch", 1, ["'y'", "n is 1", ">= 2"]),
        ("y", "batch", 2.0, ["'y'", "n is 2.0", ">= 2"]),
        ("x", "batch", 2, ["'x' cannot be split", "view or placeholder"]),
        ("flat", "batch", 2, ["'flat' cannot be split", "view or placeholder"]),
        ("relu", "batch", 2, ["'relu' cannot be split", "writes 'y' in place"]),
        ("yy", "batch", 2, ["no op is named 'yy'"]),
    ],
)
def test_what_cannot_be_split_is_named(op, dimension, n, words):
    with pytest.raises(InputError) as caught:
        split_op(convolution(), op, dimension, n)
    for word in words:
        assert word in str(caught.value)


def test_more_parts_than_there_is_to_cut_is_an_error_even_with_best_effort():
    with pytest.raises(InputError, match=r"batch has size 8, which cannot be cut into 9 parts$"):
        split_op(convolution(), "y", "batch", 9, best_effort=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colocation": ["", "", "", "set", "", "", ""]}, "colocation set 'set'"),
        ({"param_bytes": [0, 72, 24, 8, 0, 0, 0]}, "it holds weights itself"),
        ({"kind": ["x"] * 7}, r"'y' \(x\) cannot be split along 'batch': its dimensions are none"),
        ({"output": ["f32[8,3,4,4]", "f32[6,3,1,1]", "f32[6]", *[""] * 4]}, "shape of its output"),
        ({"output": ["", "f32[6,3,1,1]", "f32[6]", "f32[8,6,4,4]", "", "", ""]}, "input 0 is of"),
        (
            {"output": ["f32[7,3,4,4]", "f32[6,3,1,1]", "f32[6]", "f32[8,6,4,4]", "", "", ""]},
            "its dimensions are none",
        ),
        (
            {"output": ["", "", "", "f32[8,6,4,4];f32[2]", "", "", ""]},
            "it has 2 outputs in 'f32.*' and sends 1",
        ),
    ],
)
def test_what_the_graph_does_not_say_is_named(changes, message):
    g = convolution(**changes)
    with pytest.raises(InputError, match=message):
        split_op(g, "y", "batch", 2)
    assert "batch" not in dimensions(g, "y")


def test_grouped_convolutions_are_split_by_groups_of_one_channel_alone():
    outputs = ["f32[8,6,4,4]", "f32[6,1,3,3]", "f32[6]", "f32[8,6,4,4]", "", "", ""]
    g = convolution(output=outputs)
    assert dimensions(g, "y") == {"batch": 8, "group": 6}
    done = split_op(g, "y", "group", 2)
    assert done.graph.outputs[done.graph.index("y@split1")] == "f32[3,1,3,3];f32[3,1,3,3]"
    check(g, "y", done, 2)
    outputs = ["f32[8,6,4,4]", "f32[6,3,3,3]", "f32[6]", "f32[8,6,4,4]", "", "", ""]
    assert dimensions(convolution(output=outputs), "y") == {"batch": 8}
    with pytest.raises(InputError, match=r"'y'.* cannot be split along 'output_channel'"):
        split_op(g, "y", "output_channel", 2)


def test_graphs_that_say_nothing_have_no_dimensions():
    g = graph_of({"a": 1, "b": 1}, [("a", "b", 4)])
    assert dimensions(g, "a") == {}


# -- data ------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["f32", "bf16", "i64", "b8"]),
            st.none() | st.lists(st.integers(0, 99), max_size=4).map(tuple),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_output_texts_read_back(shapes):
    assert parse_output(format_output(shapes)) == shapes


@pytest.mark.parametrize("text", ["", "f32", "f32[", "f32[a]", "f32[2,]", "tensor(float)"])
def test_outputs_that_say_no_shape(text):
    assert parse_output(text)[0][1] is None


# -- properties ------------------------------------------------------------------------------


@given(st.data())
def test_any_split_of_any_op_of_an_example(data):
    g = lm.read(f"example:{data.draw(st.sampled_from(['lenet', 'alexnet']))}")
    able = [n for n in g.names if dimensions(g, n)]
    op = data.draw(st.sampled_from(able))
    dimension, size = data.draw(st.sampled_from(sorted(dimensions(g, op).items())))
    n = data.draw(st.integers(2, min(size, 8)))
    done = split_op(g, op, dimension, n, best_effort=True)
    assert bool(done.notes) == bool(size % n)
    check(g, op, done, n)


@pytest.mark.parametrize(
    "paths",
    [
        pytest.param([path for path in traced_graphs() if path.parent == EXAMPLES], id="packaged"),
        pytest.param(traced_graphs(), marks=pytest.mark.large_data, id="all"),
    ],
)
def test_one_split_of_every_kind_in_three_traced_graphs(paths):
    kinds: Counter[tuple[str, str]] = Counter()
    for path in paths:
        if path.stat().st_size > 150_000:
            continue
        graph = lm.read(path)
        seen = set()
        for i, kind in enumerate(graph.kinds):
            if kind in seen:
                continue
            for dimension, size in dimensions(graph, i).items():
                if size >= 2:
                    seen.add(kind)
                    kinds[kind, dimension] += 1
                    if kinds[kind, dimension] > 3:
                        continue
                    name = graph.names[i]
                    done = split_op(graph, name, dimension, 2, best_effort=True)
                    check(graph, name, done, 2)
    assert {
        ("aten.convolution.default", "output_channel"),
        ("aten.convolution_backward.default", "batch"),
        ("aten.bmm.default", "batch"),
        ("aten.mm.default", "contraction"),
    } <= kinds.keys()


@pytest.mark.large_data
@pytest.mark.parametrize("kind", ["Conv", "MatMul", "Gemm"])
def test_graphs_read_from_onnx(kind):
    folder = LARGE / "artifacts" / "onnx"
    pytest.importorskip("onnx")
    found = 0
    for path in sorted(folder.rglob("*.onnx")):
        try:
            graph = lm.read(path)
        except lm.LoadmasterError:
            continue
        for i, of in enumerate(graph.kinds):
            if of == kind and not found:
                for dimension, size in dimensions(graph, i).items():
                    if size >= 2:
                        name = graph.names[i]
                        check(graph, name, split_op(graph, name, dimension, 2, best_effort=True), 2)
                        found += 1
    if not found:
        pytest.skip(f"no {kind} with known shapes")


def test_a_split_graph_can_be_placed():
    g = lm.read("example:lenet")
    done = split_op(g, "convolution_backward", "batch", 2)
    plan = lm.place(done.graph, v100_mesh(2), method="round-robin")
    assert plan.fits
    assert (plan.costs.time[done.own] > 0).all()
