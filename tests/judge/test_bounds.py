"""Lower bounds: figures by hand, and never above what can be reached."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import MS, clusters, graph_of, ms_mesh, op_graphs, placements, v100_mesh

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError


def two_types(n_fast: int = 1, n_slow: int = 1) -> lm.Cluster:
    devices = [lm.Device(f"f{i}", "fast", 10**6) for i in range(n_fast)]
    devices += [lm.Device(f"s{i}", "slow", 10**6) for i in range(n_slow)]
    links = [lm.Link(a.name, b.name, 1e3) for a in devices for b in devices if a != b]
    return lm.Cluster(devices, links)


def test_a_chain_is_its_critical_path():
    graph = graph_of({"a": 1, "b": 2, "c": 3}, [("a", "b", 9), ("b", "c", 9)])
    bound = lm.lower_bound(graph, ms_mesh(4))
    assert bound.seconds == pytest.approx(6 * MS)
    assert bound.source == "critical path"
    assert bound.parts["work over capacity"] == pytest.approx(1.5 * MS)


def test_independent_ops_are_work_over_devices():
    graph = graph_of({f"o{i}": 1 for i in range(10)})
    bound = lm.lower_bound(graph, ms_mesh(4))
    assert bound.seconds == pytest.approx(2.5 * MS)
    assert bound.parts["critical path"] == pytest.approx(1 * MS)


def test_work_between_heads_and_tails():
    # 2 ms before, ten ops of 1 ms on two devices, 3 ms after: 2 + 10 / 2 + 3.
    names = [f"o{i}" for i in range(10)]
    graph = graph_of(
        {"head": 2, **dict.fromkeys(names, 1), "tail": 3},
        [*(("head", o, 0) for o in names), *((o, "tail", 0) for o in names)],
    )
    bound = lm.lower_bound(graph, ms_mesh(2))
    assert bound.seconds == pytest.approx(10 * MS)
    assert bound.source == "work between heads and tails"
    assert bound.parts["critical path"] == pytest.approx(6 * MS)
    assert bound.parts["work over capacity"] == pytest.approx(7.5 * MS)


def test_work_over_types_is_the_linear_program():
    # Split two ops of (1, 3) and (2, 2) ms: the first on fast; x of the second joins it.
    # 1 + 2 x = 2 (1 - x) -> x = 1/4, T = 1.5 ms.
    graph = lm.OpGraph(
        {"name": ["a", "b"], "time": {"fast": [1e-3, 2e-3], "slow": [3e-3, 2e-3]}},
        {"src": [], "dst": []},
    )
    bound = lm.lower_bound(graph, two_types())
    assert bound.parts["work over capacity"] == pytest.approx(1.5 * MS)
    assert bound.seconds == pytest.approx(2 * MS), "the second op alone, wherever it is"


def test_the_linear_program_agrees_with_scipy():
    optimize = pytest.importorskip("scipy.optimize")
    random = np.random.default_rng(1)
    for n, n_fast, n_slow in ((3, 1, 1), (8, 2, 1), (20, 1, 3)):
        time = random.uniform(1e-3, 9e-3, (n, 2))
        graph = graph_of({f"o{i}": 1 for i in range(n)})
        bound = lm.lower_bound(graph, two_types(n_fast, n_slow), costs=time)
        # Variables: share of each op on each type, then T.
        cost = np.append(np.zeros(2 * n), 1.0)
        shares = np.hstack([np.kron(np.eye(n), [1.0, 1.0]), np.zeros((n, 1))])
        load = np.zeros((2, 2 * n + 1))
        for k, count in enumerate((n_fast, n_slow)):
            load[k, k : 2 * n : 2] = time[:, k]
            load[k, -1] = -count
        best = optimize.linprog(cost, load, [0, 0], shares, np.ones(n))
        assert bound.parts["work over capacity"] == pytest.approx(best.fun, rel=1e-6)


def test_only_the_types_an_op_allows_count():
    graph = lm.OpGraph(
        {
            "name": ["a", "b"],
            "time": {"fast": [1e-3, 1e-3], "slow": [5e-3, 5e-3]},
            "device_types": ["slow", ""],
        },
        {"src": [0], "dst": [1]},
    )
    assert lm.lower_bound(graph, two_types()).seconds == pytest.approx(6 * MS)
    nowhere = graph_of({"a": 1}, device_types=["tpu"])
    with pytest.raises(InfeasibleError, match='"a" is allowed on no device'):
        lm.lower_bound(nowhere, ms_mesh(2))


def test_the_bound_is_the_largest_of_its_parts(any_example):
    cluster = v100_mesh(4)
    if any_example.time:
        kinds = list(any_example.time)
        cluster = lm.Cluster.mesh(4, memory="9GiB", bandwidth=1e9, type=kinds[0])
    bound = lm.lower_bound(any_example, cluster)
    assert bound.seconds == max(bound.parts.values()) == bound.parts[bound.source]
    assert set(bound.parts) == {
        "critical path",
        "work over capacity",
        "critical path with forced transfers",
        "work between heads and tails",
    }


@given(data=st.data())
@settings(max_examples=40)
def test_no_placement_in_any_order_beats_the_bound(data):
    graph = data.draw(op_graphs())
    cluster = data.draw(clusters())
    bound = lm.lower_bound(graph, cluster)
    devices = data.draw(placements(graph, cluster))
    for policy, contention in itertools.product(("fifo", "random"), (True, False)):
        sim = lm.simulate(graph, cluster, devices, None, policy, contention)
        assert bound.seconds <= sim.makespan * (1 + 1e-9)


@given(op_graphs(rules=False))
def test_more_devices_never_raise_the_bound(graph):
    bounds = [lm.lower_bound(graph, ms_mesh(k)).seconds for k in (1, 2, 4)]
    assert bounds[0] >= bounds[1] >= bounds[2]
    assert bounds[0] == pytest.approx(graph.time["*"].sum())


def test_on_one_device_the_bound_is_not_above_the_makespan():
    for name in ("lenet", "bert-large", "rnnlm"):
        plan = lm.place(lm.read(f"example:{name}"), v100_mesh(1, "1TiB"), "single")
        assert plan.lower_bound <= plan.makespan


def test_short_times_do_not_lift_the_bound_over_the_makespan():
    graph = graph_of({"a": 1, "b": 1})
    plan = lm.place(graph, ms_mesh(1), costs=[1.0000004e-9, 1.0000004e-9])
    assert plan.gap >= 0
