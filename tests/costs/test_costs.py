"""Costs: measured as given, rooflines by hand, and where every figure comes from."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import V100, graph_of, ms_mesh, v100_mesh

import loadmaster as lm
from loadmaster import Cluster, Costs, Device, DeviceType, Link, OpGraph
from loadmaster.base.errors import InputError
from loadmaster.costs import PROVENANCES, estimate
from loadmaster.costs.roofline import roofline_costs


def ops(**columns) -> OpGraph:
    column = next(iter(columns.values()))
    n = len(next(iter(column.values())) if isinstance(column, dict) else column)
    return OpGraph({"name": [f"op{i}" for i in range(n)], **columns}, {"src": [], "dst": []})


def pair(*types: DeviceType) -> Cluster:
    devices = [Device(f"d{i}", t.name, 2**30) for i, t in enumerate(types)]
    links = [Link(a.name, b.name, 1e9) for a in devices for b in devices if a != b]
    return Cluster(devices, links, types)


def words(costs: Costs) -> list[str]:
    return [PROVENANCES[p] for p in costs.provenance]


def roofline(graph: OpGraph, device_type: DeviceType) -> list[float]:
    """Seconds per op, estimated for a cluster of one type."""
    return estimate(graph, pair(device_type)).time[:, 0].tolist()


FAST = DeviceType("fast", {"f32": 1e12}, memory_bandwidth=1e11, launch=1e-6)
SLOW = DeviceType("slow", {"f32": 1e11}, memory_bandwidth=1e10, launch=2e-6)


# -- measured --------------------------------------------------------------------------------


def test_measured_times_are_taken_as_they_are():
    graph = ops(time={"slow": [0.25, 0.5], "fast": [0.1, 0.2], "other": [9.0, 9.0]})
    costs = estimate(graph, pair(FAST, SLOW))
    assert costs.types == ("fast", "slow")
    assert costs.time.tolist() == [[0.1, 0.25], [0.2, 0.5]]
    assert words(costs) == ["measured", "measured"]
    assert costs.shares() == {"measured": 1.0}


def test_a_star_stands_for_every_type_that_has_no_times_of_its_own():
    graph = ops(time={"*": [1.0, 0.0], "slow": [3.0, 4.0]})
    costs = estimate(graph, pair(FAST, SLOW))
    assert costs.time.tolist() == [[1.0, 3.0], [0.0, 4.0]]


def test_an_op_measured_as_nothing_is_free():
    costs = estimate(ops(time={"*": [1.0, 0.0]}), ms_mesh(2))
    assert words(costs) == ["measured", "free"]


def test_times_measured_on_some_types_are_filled_up_by_the_roofline():
    graph = ops(time={"fast": [0.5]}, flops=[10**11])
    costs = estimate(graph, pair(FAST, SLOW))
    assert costs.time[0, 0] == 0.5
    assert costs.time[0, 1] == pytest.approx(1.0 + 2e-6)


# -- roofline --------------------------------------------------------------------------------

PEAKS = {"f64": 1e12, "f32": 2e12, "bf16": 4e12, "f16": 8e12, "f8": 16e12, "i8": 32e12}


@pytest.mark.parametrize(
    ("output", "peak"),
    [
        ("f64[8]", 1e12),
        ("f32[8,16]", 2e12),
        ("bf16[8]", 4e12),
        ("f16[8]", 8e12),
        ("f8[8]", 16e12),
        ("f8e4m3[8]", 16e12),
        ("i8[8]", 32e12),
        ("u8[8]", 32e12),
        ("i64[8]", 2e12),
        ("b8[8]", 2e12),
        ("", 2e12),
        ("tuple", 2e12),
    ],
)
def test_the_peak_is_that_of_the_outputs_dtype(output, peak):
    device = DeviceType("x", PEAKS, memory_bandwidth=1e15)
    graph = ops(flops=[16 * 10**12], output=[output])
    assert roofline(graph, device) == [16e12 / peak]


@pytest.mark.parametrize(
    ("peaks", "output", "used"),
    [
        ({"f32": 2.0, "f16": 8.0}, "bf16", 8.0),
        ({"f32": 2.0, "bf16": 4.0}, "f16", 4.0),
        ({"f32": 2.0}, "f16", 2.0),
        ({"f32": 2.0}, "f64", 2.0),
        ({"f32": 2.0, "f16": 8.0, "bf16": 4.0}, "f8", 8.0),
        ({"f32": 2.0, "bf16": 4.0}, "i8", 4.0),
        ({"f32": 2.0, "f16": 8.0}, "i8", 8.0),
        ({"f16": 8.0, "f64": 1.0}, "f32", 8.0),
        ({"f16": 8.0}, "f64", 8.0),
    ],
)
def test_a_peak_that_is_missing_is_that_of_the_nearest_dtype(peaks, output, used):
    device = DeviceType("x", peaks, memory_bandwidth=1e15)
    assert roofline(ops(flops=[16], output=[output]), device) == [16 / used]


def test_the_larger_of_compute_and_traffic_plus_the_launch():
    graph = ops(flops=[2 * 10**12, 10, 0], bytes_accessed=[10, 10**11, 10**11])
    assert roofline(graph, FAST) == pytest.approx([2.0 + 1e-6, 1.0 + 1e-6, 1.0 + 1e-6])


def test_views_placeholders_and_ops_that_do_nothing_are_free():
    graph = OpGraph(
        {
            "name": ["p", "b", "i", "c", "view", "idle", "busy"],
            "kind": ["parameter", "buffer", "input", "constant", "aten.view", "", "aten.mul"],
            "view": [0, 0, 0, 0, 1, 0, 0],
            "flops": [5] * 5 + [0, 5],
            "bytes_accessed": [7] * 5 + [0, 0],
        },
        {"src": [0], "dst": [4]},
    )
    costs = estimate(graph, pair(FAST))
    assert (costs.time[:6] == 0).all()
    assert costs.time[6, 0] == 5 / 1e12 + 1e-6
    assert words(costs) == ["free"] * 6 + ["roofline"]
    assert costs.shares() == {"roofline": 1.0}


def test_every_example_on_v100s_has_sane_costs(any_example):
    if any_example.time:
        pytest.skip("has measured times of its own types")
    costs = roofline_costs(any_example, v100_mesh(2))
    assert costs.time.shape == (any_example.n_ops, 1)
    assert np.isfinite(costs.time).all()
    paid = costs.time[:, 0] > 0
    assert (costs.time[paid, 0] >= V100.launch).all()
    assert (paid == (costs.provenance == PROVENANCES.index("roofline"))).all()
    assert costs.shares() == {"roofline": pytest.approx(1.0)}


def test_googlenet_has_measured_times():
    graph = lm.read("example:googlenet")
    types = [DeviceType(t) for t in graph.time]
    assert len(types) == 4
    assert estimate(graph, pair(*types)).shares() == {"measured": pytest.approx(1.0)}


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
def test_a_peak_of_nothing_is_refused():
    with pytest.raises(InputError, match="peak"):
        estimate(ops(flops=[1]), pair(DeviceType("x", {"f32": 0.0}, 1e9)))


# -- refusals --------------------------------------------------------------------------------


def test_a_type_with_neither_times_nor_figures_is_named():
    graph = ops(time={"a100": [1.0], "v100": [2.0]})
    with pytest.raises(InputError, match=r"'gpu'.*measured times for a100, v100"):
        estimate(graph, ms_mesh(2))
    with pytest.raises(InputError, match=r"'gpu'.*measured times for none"):
        estimate(ops(flops=[1]), ms_mesh(2))


@pytest.mark.parametrize("columns", [{"kind": ["a"]}, {"time": {"*": [0.0]}}, {"flops": [0]}])
def test_a_graph_in_which_all_is_free_is_refused(columns):
    with pytest.raises(InputError, match="every op would be free"):
        estimate(ops(**columns), v100_mesh(2))


def test_times_of_another_type_are_not_taken_in_silence():
    """Of nothing else there is nothing; beside FLOPs, a roofline and a word."""
    with pytest.raises(InputError, match=r"times for a100, but .*V100.*device_type= \(--device"):
        estimate(ops(time={"a100": [1.0]}), v100_mesh(2))
    with pytest.warns(
        UserWarning, match=r"measured on a100, of which the cluster has none: .*V100"
    ):
        costs = estimate(ops(time={"a100": [1.0]}, flops=[10**9]), v100_mesh(2))
    assert words(costs) == ["roofline"]


def test_what_a_reader_filled_in_does_not_count_as_measured():
    told = {"bytes": ["op1", "gone", 3], "regressed": ["op2"], "magic": ["op0"], "free": None}
    graph = ops(time={"*": [1.0, 2.0, 5.0, 0.0]})
    graph.meta["time_sources"] = told
    costs = estimate(graph, ms_mesh(2))
    assert words(costs) == ["measured", "bytes", "regressed", "free"]
    assert costs.shares() == {"measured": 0.125, "regressed": 0.625, "bytes": 0.25}
    again = OpGraph.from_document(graph.to_document())
    assert words(estimate(again, ms_mesh(2))) == words(costs)
    new = graph.with_columns({"time": {"*": [1.0, 1.0, 1.0, 1.0]}})
    assert words(estimate(new, ms_mesh(2))) == ["measured"] * 4
    graph.meta["time_sources"] = ["op1"]
    assert words(estimate(graph, ms_mesh(2)))[:3] == ["measured"] * 3


# -- costs= ----------------------------------------------------------------------------------

CHAIN = graph_of({"first": 1, "second": 2}, [("first", "second", 4)])


def test_given_costs_count_instead_of_the_graphs():
    plan = lm.place(CHAIN, ms_mesh(2), "single", costs=[0.5, 0.25])
    assert plan.makespan == 0.75
    assert plan.provenance == {"given": 1.0}
    assert words(plan.costs) == ["given", "given"]


def test_given_costs_per_type_or_for_all_types():
    cluster = pair(FAST, SLOW)
    per_op = Costs.given([1.0, 2.0], CHAIN, cluster)
    assert per_op.time.tolist() == [[1.0, 1.0], [2.0, 2.0]]
    per_type = Costs.given([[1.0, 3.0], [2.0, 4.0]], CHAIN, cluster)
    assert lm.simulate(CHAIN, cluster, [1, 1], costs=per_type).makespan == 7.0
    assert lm.simulate(CHAIN, cluster, [1, 1], costs=per_type.time).makespan == 7.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1.0], r"shape \(1,\), wants \(2, 2\)"),
        ([[1.0], [2.0]], r"shape \(2, 1\), wants \(2, 2\).*fast, slow"),
        ([[1.0, 2.0, 3.0]] * 2, r"shape \(2, 3\)"),
        (3.0, r"shape \(\)"),
        ([1.0, float("nan")], "costs of 'second' on fast is nan"),
        ([[1.0, float("inf")], [0.0, 0.0]], "costs of 'first' on slow is inf"),
        ([[1.0, 0.0], [0.0, -2.0]], "costs of 'second' on slow is -2.0"),
    ],
)
def test_given_costs_that_are_refused(given, message):
    for use in (
        lambda: Costs.given(given, CHAIN, pair(FAST, SLOW)),
        lambda: lm.place(CHAIN, pair(FAST, SLOW), costs=given),
        lambda: lm.lower_bound(CHAIN, pair(FAST, SLOW), costs=given),
        lambda: lm.compare(CHAIN, pair(FAST, SLOW), ["single"], costs=given),
        lambda: lm.simulate(CHAIN, pair(FAST, SLOW), [0, 0], costs=given),
    ):
        with pytest.raises(InputError, match=message):
            use()


@pytest.mark.parametrize("given", ["fast", [[1.0], [1.0, 2.0]]])
def test_given_costs_that_are_no_numbers(given):
    with pytest.raises(InputError, match="costs"):
        Costs.given(given, CHAIN, pair(FAST, SLOW))


def test_costs_of_another_graph_or_cluster_are_refused():
    costs = estimate(CHAIN, ms_mesh(2))
    with pytest.raises(InputError, match=r"costs are for 2 ops on gpu; the graph has 2 .* fast"):
        lm.place(CHAIN, pair(FAST), costs=costs)
    with pytest.raises(InputError, match="costs are for 2 ops on gpu; the graph has 1"):
        lm.place(graph_of({"only": 1}), ms_mesh(2), costs=costs)


def test_given_costs_are_the_users_no_longer():
    mine = np.array([[1.0, 1.0], [2.0, 2.0]])
    costs = Costs.given(mine, CHAIN, pair(FAST, SLOW))
    before = costs.time.copy()
    mine[:] = 9.0
    assert costs.time.tolist() == before.tolist()


def test_shares_weigh_by_the_slowest_type():
    time = np.array([[1.0, 3.0], [1.0, 1.0], [0.0, 0.0]])
    provenance = np.array([PROVENANCES.index(w) for w in ("measured", "roofline", "free")])
    shares = Costs(time, ("a", "b"), provenance.astype(np.uint8)).shares()
    assert shares == {"measured": 0.75, "roofline": 0.25}
