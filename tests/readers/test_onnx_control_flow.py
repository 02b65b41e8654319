"""Bodies of ONNX's control flow: work, launches and memory as of the same ops written out flat."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import loadmaster as lm  # noqa: E402
import loadmaster.fast as fast  # noqa: E402
from loadmaster.costs.roofline import estimate, roofline  # noqa: E402
from loadmaster.plans.info import info as facts  # noqa: E402
from loadmaster.readers.onnx.model import op_names, to_columns  # noqa: E402

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
GPUS = lm.Cluster.preset("4xV100-PCIe")
LIMIT = 2**63 - 1  # "no limit", as exporters write it

LAYERS = st.lists(st.sampled_from(["product", "Relu", "Sigmoid", "view", "sum"])).map(
    lambda kinds: ["product", *kinds]
)


def layers(kinds, value, prefix, as_constants):
    """Nodes of a chain of layers on f32[4, 8], what they store, and their output."""
    nodes, stored = [], []
    for i, kind in enumerate(kinds):
        name = f"{prefix}{i}"
        if kind == "product":
            nodes.append(helper.make_node("MatMul", [value, f"{name}w"], [name], name=name))
            stored.append(numpy_helper.from_array(np.zeros((8, 8), np.float32), f"{name}w"))
        elif kind == "view":
            nodes.append(helper.make_node("Reshape", [value, f"{name}s"], [name], name=name))
            stored.append(numpy_helper.from_array(np.array([4, 8]), f"{name}s"))
        elif kind == "sum":
            nodes.append(helper.make_node("Add", [value, value], [name], name=name))
        else:
            nodes.append(helper.make_node(kind, [value], [name], name=name))
        value = name
    if as_constants:
        constants = [
            helper.make_node("Constant", [], [t.name], name=t.name, value=t) for t in stored
        ]
        nodes, stored = constants + nodes, []
    return nodes, stored, value


def info(name, shape=None, dtype=F32):
    return helper.make_tensor_value_info(name, dtype, shape)


def graph_of(nodes, inputs, outputs, stored=()):
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, list(stored)),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = lm.OpGraph.from_document(to_columns(model, name="g"))
    assert set(op_names(model.graph)[0]) == set(graph.names), "an export finds its ops"
    return graph


def summed(graph):
    """Work, launches, and what is there before the step, but for its inputs."""
    runs = (graph.flops > 0) | (graph.bytes_accessed > 0)
    kept = [kind in ("parameter", "constant") for kind in graph.kinds]
    return (
        int(graph.flops.sum()),
        int(graph.bytes_accessed.sum()),
        int(graph.launches[runs].sum()),
        int(graph.resident[kept].sum()),
    )


@settings(max_examples=20, deadline=None)
@given(LAYERS, st.booleans(), st.integers(1, 3))
def test_a_branch_costs_what_its_ops_cost_flat(kinds, as_constants, depth):
    x = info("x", [4, 8])
    nodes, stored, y = layers(kinds, "x", "a", as_constants)
    flat = graph_of(nodes, [x], [info(y)], stored)
    conditions = []
    for level in range(depth):
        other = helper.make_graph(
            [helper.make_node("Identity", ["x"], [f"other{level}"])],
            "o",
            [],
            [info(f"other{level}")],
        )
        branch = helper.make_graph(nodes, "body", [], [info(y)], stored)
        y, stored = f"y{level}", []
        condition = info(f"c{level}", [], BOOL)
        conditions.append(condition)
        nodes = [
            helper.make_node(
                "If", [condition.name], [y], name=y, then_branch=branch, else_branch=other
            )
        ]
    inside = graph_of(nodes, [x, *conditions], [info(y)])
    assert summed(inside) == summed(flat)
    assert facts(inside, GPUS).parameter_bytes == summed(flat)[3]
    # The branch's ops are priced together: their sum is at least the larger of two sums.
    v100 = GPUS.types[0]
    seconds, in_turn = roofline(inside, v100).sum(), roofline(flat, v100).sum()
    launches = summed(flat)[2] * v100.launch
    assert launches <= seconds <= in_turn + 1e-15
    assert in_turn - launches <= 2 * (seconds - launches) + 1e-15
    # What is alive at the peak is, but for the output, which an op holds while it runs.
    peaks = [fast.peak_bytes(graph.reduced.graph)[0] for graph in (flat, inside)]
    assert peaks[0] <= peaks[1] <= peaks[0] + 4 * 8 * 4 + depth


@settings(max_examples=25, deadline=None)
@given(LAYERS, st.integers(0, 5), st.integers(1, 3))
def test_a_loop_costs_its_body_times_its_trips(kinds, trips, outer):
    nodes, stored, y = layers(kinds, "h", "a", as_constants=False)
    once = summed(graph_of(nodes, [info("h", [4, 8])], [info(y)], stored))
    numbers = [
        numpy_helper.from_array(np.array(n), name) for n, name in ((trips, "n"), (outer, "m"))
    ]
    value = y
    for level, limit in enumerate("nm"):
        carried = "h" if level == 0 else "k"
        inputs = [info("i", [], I64), info("go", [], BOOL), info(carried)]
        nodes = [*nodes, helper.make_node("Identity", ["go"], ["on"])]
        body = helper.make_graph(nodes, "body", inputs, [info("on"), info(value)], stored)
        before, value, stored = ("k" if level == 0 else "x"), f"y{level}", []
        nodes = [helper.make_node("Loop", [limit, "", before], [value], name=value, body=body)]
    inside = graph_of(nodes, [info("x", [4, 8])], [info(value)], numbers)
    assert inside.outputs[inside.index("y1")] == "f32[4,8]"
    flops, moved, launches, kept = summed(inside)
    times = trips * outer
    assert (flops, moved) == (times * once[0], times * once[1])
    assert launches == times * once[2]
    assert kept == once[3] + 16


def while_loop(start, step, limit, most, scale):
    """``while i <= limit: i += step``, with a product in its body; i is a number that is known."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["i", "step"], ["i2"]),
            helper.make_node("Mul", ["i2", "scale"], ["scaled"]),
            helper.make_node("LessOrEqual", ["scaled", "limit"], ["on"]),
            helper.make_node("MatMul", ["h", "w"], ["h2"]),
        ],
        "body",
        [info("trip", [], I64), info("go", [], BOOL), info("i", [], I64), info("h")],
        [info("on"), info("i2"), info("h2")],
        [numpy_helper.from_array(np.array(step), "step")],
    )
    numbers = {"start": start, "limit": limit, "most": most, "scale": scale}
    return graph_of(
        [
            helper.make_node(
                "Loop", ["most", "", "start", "x"], ["end", "y"], name="loop", body=body
            )
        ],
        [info("x", [4, 8])],
        [info("y")],
        [
            numpy_helper.from_array(np.zeros((8, 8), np.float32), "w"),
            *(numpy_helper.from_array(np.array(n), name) for name, n in numbers.items()),
        ],
    )


@settings(max_examples=25, deadline=None)
@given(
    st.integers(-5, 5), st.integers(1, 3), st.integers(-9, 30), st.sampled_from([LIMIT, 7, 1, 0]),
    st.integers(1, 2),
)  # fmt: skip
def test_trips_of_a_while_loop_are_counted(start, step, limit, most, scale):
    trips, i, goes_on = 0, start, True
    while goes_on and trips < most:
        trips, i = trips + 1, i + step
        goes_on = i * scale <= limit
    graph = while_loop(start, step, limit, most, scale)
    assert graph.flops[graph.index("loop")] == trips * (2 * 4 * 8 * 8 + 3)


def test_a_loop_that_never_ends_by_what_is_known_counts_once():
    graph = while_loop(0, 0, 5, LIMIT, 1)
    assert graph.flops[graph.index("loop")] == 2 * 4 * 8 * 8 + 3
    # With a limit, it runs up to that.
    graph = while_loop(0, 0, 5, 10_000, 1)
    assert graph.flops[graph.index("loop")] == 10_000 * (2 * 4 * 8 * 8 + 3)


def test_what_branches_store_stays_with_the_op():
    nodes, stored, y = layers(["product", "Relu"] * 3, "x", "a", as_constants=True)
    branch = helper.make_graph(nodes, "body", [], [info(y)], stored)
    branches = {"then_branch": branch, "else_branch": branch}
    nodes = [
        helper.make_node("If", ["c"], ["y"], name="if", **branches),
        helper.make_node("Relu", ["x"], ["z"], name="relu"),
    ]
    inputs = [info("x", [4, 8]), info("c", [], BOOL)]
    graph = graph_of(nodes, inputs, [info("y"), info("z")])
    costs = estimate(graph, GPUS)
    assert costs.time[graph.index("if")].min() > 6 * GPUS.types[0].launch
    plan = lm.place(graph, GPUS, "heft")
    inside = [op for op, kind in enumerate(graph.kinds) if kind == "constant"]
    assert len(inside) == 6
    assert set(plan.devices[inside].tolist()) == {int(plan.devices[graph.index("if")])}


def test_an_op_reads_what_its_bodies_read_so_nothing_cuts_it():
    """Where all else is cut for four devices, a branch still has its matrices and inputs whole."""
    n = 8192  # The matrices' content is never read, so it may be missing.
    stored = [TensorProto(name=f"w{i}", data_type=F32, dims=[n, n]) for i in range(4)]
    nodes = [
        helper.make_node(
            "MatMul", [f"h{i}" if i else "x", f"w{i}"], [f"h{i + 1}"], name=f"h{i + 1}"
        )
        for i in range(3)
    ]
    product = helper.make_node("MatMul", ["h3", "w3"], ["t"])
    branch = helper.make_graph([product], "body", [], [info("t")])
    nodes.append(
        helper.make_node("If", ["c"], ["y"], name="if", then_branch=branch, else_branch=branch)
    )
    nodes.append(helper.make_node("MatMul", ["y", "w0"], ["z"], name="z"))
    graph = graph_of(nodes, [info("x", [1, n]), info("c", [], BOOL)], [info("z")], stored)
    at = graph.index("if")
    assert {graph.names[argument["op"]] for argument in graph.args[at][0]} == {"c", "h3", "w3"}
    program = lm.place(graph, GPUS).program
    assert program.graph.n_ops > graph.n_ops, "it is cut"
    for copy in np.flatnonzero((program.serves == at) & ~program.own):
        assert program.graph.bytes[program.graph.dst == copy].sum() >= 4 * (n * n + n)
