"""Damaged files and arbitrary arrays: an error of ours or a result, never anything else."""

import contextlib
import gzip
import json
import random
import warnings
from pathlib import Path

import numpy as np
import pytest
from damage import damaged
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster import fast
from loadmaster.base.errors import LoadmasterError

LENET = lm.read("example:lenet").to_document()


def read_or_refuse(path: Path) -> None:
    """Reads, places and simulates, or raises one of our own errors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = lm.read(path)
        lm.place(
            graph, lm.Cluster.preset("2xV100-NVLink"), "celeritas", on_oom="best_effort"
        ).summary()
    except LoadmasterError:
        pass


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzipped"])
def test_damaged_opgraph_files(tmp_path, pack):
    data = pack(json.dumps(LENET).encode())
    random_ = random.Random(0)
    for i in range(200):
        path = tmp_path / f"{i}.json"
        path.write_bytes(damaged(data, random_))
        read_or_refuse(path)


def test_damaged_onnx_files(tmp_path):
    onnx = pytest.importorskip("onnx")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    weight = helper.make_tensor("w", floats, [4, 3, 3, 3], [0.0] * 108)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["y"], ["z"], name="relu"),
        helper.make_node("Flatten", ["z"], ["out"], name="flat"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", floats, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("out", floats, [1, 256])],
        [weight],
    )
    data = helper.make_model(graph).SerializeToString()
    random_ = random.Random(1)
    for i in range(300):
        path = tmp_path / f"{i}.onnx"
        path.write_bytes(damaged(data, random_))
        read_or_refuse(path)


values = st.one_of(
    st.none(),
    st.integers(-5, 5),
    st.sampled_from(
        [2**31, 2**63, 2**64, -(2**63), 1e300, float("nan"), float("inf"), "a", "", [], {}]
    ),
)


@given(
    column=st.sampled_from(
        [*LENET["ops"], "device_types", "workspace", "src", "dst", "tensor", "bytes"]
    ),
    at=st.integers(0, 103),
    value=values,
)
def test_documents_with_one_strange_value(column, at, value):
    part = "edges" if column in ("src", "dst", "tensor", "bytes") else "ops"
    old = LENET[part].get(column, [0] * len(LENET["ops"]["name"]))
    document = {**LENET, part: {**LENET[part], column: [*old[:at], value, *old[at + 1 :]]}}
    try:
        graph = lm.OpGraph.from_document(document)
        lm.place(
            graph, lm.Cluster.preset("2xV100-NVLink"), "celeritas", on_oom="best_effort"
        ).summary()
    except LoadmasterError:
        pass


arrays = st.one_of(
    # One value per op of the graph below, most of them valid.
    st.lists(st.integers(-1, 3), min_size=3, max_size=3).map(np.array),
    st.lists(st.sampled_from([0.0, 1.0, 1e-9, 1e300]), min_size=3, max_size=3).map(np.array),
    st.lists(st.integers(-2, 9), max_size=12).map(np.array),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6).map(
        lambda v: np.array(v, dtype=np.int64)
    ),
    st.lists(st.floats(width=64), max_size=12).map(np.array),
    st.lists(st.integers(0, 2**64 - 1), max_size=6).map(lambda v: np.array(v, dtype=np.uint64)),
    st.just(np.zeros((2, 2))),
    st.just(np.array(["x"])),
)
BOTH = [("a", "b", 1e9, 1e-6, []), ("b", "a", 1e9, 1e-6, [])]
TWO = fast.Cluster([("a", "gpu", 100), ("b", "gpu", 100)], BOTH)
ORDER, ONES, NONE_LEFT = np.arange(3), np.ones(3), np.zeros(2, dtype=np.uint64)
CALLS = {
    "levels": lambda g, a, b: fast.levels(fast.Weights(g, a, b)),
    "cpd_topo": lambda g, a, b: fast.cpd_topo(fast.Weights(g, a, b)),
    "breakpoints": lambda g, a, b: fast.breakpoints(fast.Weights(g, np.zeros(g.n_ops), b), a),
    "segments": lambda g, a, b: fast.segments(a, b),
    "contract": lambda g, a, b: fast.contract(g, a),
    "peak_bytes": lambda g, a, b: fast.peak_bytes(g, a),
    "fill_in_order": lambda g, a, b: fast.fill_in_order(
        fast.Problem(g, TWO, np.ones(g.n_ops)).within(op_bytes=b), a
    ),
    "follow_bytes": lambda g, a, b: fast.follow_bytes(
        fast.Problem(g, TWO, np.ones(g.n_ops)).within(capacity=b), a
    ),
    "adjusting_placement": lambda g, a, b: fast.adjusting_placement(fast.Problem(g, TWO, b), a),
    "simulate": lambda g, a, b: fast.simulate(fast.Problem(g, TWO, b), a, policy="fixed"),
    "bounds": lambda g, a, b: fast.bounds(fast.Problem(g, TWO, a)),
    "schedule": lambda g, a, b: fast.schedule(fast.Problem(g, TWO, b), a),
    "schedule, bent": lambda g, a, b: fast.schedule(
        fast.Problem(g, TWO, ONES), ORDER, pinned=a, bias=b
    ),
    "schedule, leads": lambda g, a, b: fast.schedule(
        fast.Problem(g, TWO, ONES).led_by(a).within(op_bytes=b), ORDER
    ),
    "schedule_placed": lambda g, a, b: fast.schedule_placed(fast.Problem(g, TWO, a), ORDER, b),
    "schedule_earliest": lambda g, a, b: fast.schedule_earliest(fast.Problem(g, TWO, b), a),
    "schedule_earliest, bytes": lambda g, a, b: fast.schedule_earliest(
        fast.Problem(g, TWO, ONES).within(capacity=b), ORDER, favourite=a
    ),
    "schedule_earliest, best effort": lambda g, a, b: fast.schedule_earliest(
        fast.Problem(g, TWO, ONES)
        .led_by(a)
        .within(op_bytes=b, capacity=NONE_LEFT, best_effort=True),
        ORDER,
    ),
    "priority_order": lambda g, a, b: fast.priority_order(g, a),
    "optimistic_costs": lambda g, a, b: fast.optimistic_costs(fast.Problem(g, TWO, a), b),
    "critical_path": lambda g, a, b: fast.critical_path(fast.Weights(g, a, b)),
    "placed_paths": lambda g, a, b: fast.placed_paths(fast.Problem(g, TWO, a), b),
    "linear_clusters": lambda g, a, b: fast.linear_clusters(fast.Weights(g, a, b)),
    "dominant_sequences": lambda g, a, b: fast.dominant_sequences(fast.Weights(g, a, b)),
    "batch_merge": lambda g, a, b: fast.batch_merge(fast.Weights(g, a, b), 1),
    "parallel_merge": lambda g, a, b: fast.parallel_merge(
        fast.Weights(g, a, np.zeros(3), op_bytes=b), 2
    ),
    "multilevel_partition": lambda g, a, b: fast.multilevel_partition(
        fast.Weights(g, a, b), 2, max_time=1.0
    ),
    "repeated_groups": lambda g, a, b: fast.repeated_groups(fast.Weights(g, a, b), 3, [1.0, 0.0]),
    "fuse": lambda g, a, b: fast.fuse(fast.Weights(g, a), b, [[[0], [1]]], 1),
    "exact_breakpoints": lambda g, a, b: fast.exact_breakpoints(
        fast.Weights(g, np.zeros(g.n_ops), b), a, 2
    ),
    "refine_placement": lambda g, a, b: fast.refine_placement(
        fast.Problem(g, TWO, np.ones(3)), a, b, [a]
    ),
}


@settings(max_examples=300)
@given(
    n=st.integers(0, 9),
    columns=st.tuples(arrays, arrays, st.none() | arrays, arrays, arrays),
    call=st.sampled_from(sorted(CALLS)),
)
def test_the_array_api_takes_anything(n, columns, call):
    src, dst, tensor, a, b = columns
    graph = fast.Graph(3, np.array([0, 1]), np.array([1, 2]))
    for attempt in (
        lambda: fast.Graph(n, src, dst, tensor, tensor_bytes=a, resident=b),
        lambda: CALLS[call](graph, a, b),
    ):
        with contextlib.suppress(ValueError, LoadmasterError):
            attempt()
