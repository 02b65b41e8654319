"""METIS, layers and the dice: every rule obeyed, and what each is supposed to do."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from conftest import example
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import clusters, graph_of, ms_mesh, op_graphs, tried, v100_mesh

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError, InputError, MissingExtraError
from loadmaster.judge.problem import Problem
from loadmaster.strategies.simple import layer_ranges, layers, metis
from loadmaster.strategies.simple import random as dice

BASELINES = [layers, metis, dice]
by_name = pytest.mark.parametrize("method", BASELINES, ids=lambda m: m.__name__.rpartition(".")[2])


@pytest.fixture(autouse=True)
def _has_metis():
    pytest.importorskip("pymetis")


def problem_of(graph: lm.OpGraph, cluster: lm.Cluster, **options) -> Problem:
    return Problem.make(graph, cluster, lm.costs.estimate(graph, cluster), **options)


def check_rules(problem: Problem, devices: np.ndarray) -> None:
    """Sets together, on types they allow."""
    assert devices.shape == (problem.graph.n_ops,)
    assert devices.dtype == np.int32
    assert ((devices >= 0) & (devices < problem.cluster.n_devices)).all()
    by_set: dict[int, set[int]] = {}
    for s, d in zip(problem.graph.colocation.tolist(), devices.tolist(), strict=True):
        by_set.setdefault(s, set()).add(d)
    assert all(len(used) == 1 for used in by_set.values())
    types = problem.cluster.device_types
    assert all(
        int(mask) >> types[d] & 1
        for mask, d in zip(problem.graph.allowed, devices.tolist(), strict=True)
    )


@by_name
@given(data=st.data())
@settings(max_examples=25)
def test_drawn_graphs_with_sets_and_little_memory(method, data):
    graph = data.draw(op_graphs())
    cluster = data.draw(clusters(memory=data.draw(st.sampled_from([12, 20, 40, 10**6]))))
    placed, error = tried(lambda: method.place(problem_of(graph, cluster)))
    if error is not None:
        assert error.shortfall
        for device, short in error.shortfall.items():
            assert short > 0
            assert device in str(error)
            assert f"{short} byte" in str(error)
        placed = method.place(problem_of(graph, cluster, best_effort=True))
    else:
        assert placed.fits
    check_rules(problem_of(graph, cluster), placed.assignment.devices)


@by_name
@given(data=st.data())
@settings(max_examples=15)
def test_ops_stay_on_the_types_they_allow(method, data):
    graph = data.draw(op_graphs(rules=False))
    words = st.lists(
        st.sampled_from(["", "t0", "t0, t1", "t1"]), min_size=graph.n_ops, max_size=graph.n_ops
    )
    document = graph.to_document()
    document["ops"] |= {"device_types": data.draw(words)}
    document["ops"].pop("alias_of", None)
    restricted = lm.OpGraph.from_document(document)
    devices = [lm.Device(f"d{i}", f"t{i % 2}", 10**6) for i in range(4)]
    links = [lm.Link(a.name, b.name, 1000.0) for a in devices for b in devices if a != b]
    try:
        problem = problem_of(restricted, lm.Cluster(devices, links))
    except InputError:
        return  # a view and its owner that allow no common type
    check_rules(problem, method.place(problem).assignment.devices)


@by_name
def test_an_op_that_no_device_allows_is_named(method):
    graph = graph_of({"a": 1, "b": 1}, [("a", "b", 1)], device_types=["", "tpu"])
    with pytest.raises(InfeasibleError, match="'b' may run on tpu"):
        method.place(problem_of(graph, ms_mesh(2)))


@by_name
@pytest.mark.parametrize("name", ["bert-large", "inception-v3", "vgg19", "mixtral"])
def test_models_fit_the_same_way_every_time(method, name):
    problem = problem_of(example(name), v100_mesh(4))
    try:
        first = method.place(problem)
    except InfeasibleError:
        assert method is dice, "only the dice may fail here"
        return
    assert first.fits
    check_rules(problem, first.assignment.devices)
    again = method.place(problem)
    assert first.assignment.devices.tolist() == again.assignment.devices.tolist()
    assert first.assignment.priority.tolist() == again.assignment.priority.tolist()


# -- METIS -----------------------------------------------------------------------------------


def test_metis_cuts_the_thin_edges_and_balances_time():
    # Two cliques of four, joined by one thin edge.
    names = [f"{side}{i}" for side in "lr" for i in range(4)]
    edges = [(a, b, 50) for a in names for b in names if a < b and a[0] == b[0]]
    graph = graph_of(dict.fromkeys(names, 1), [*edges, ("l3", "r0", 1)])
    devices = metis.parts(problem_of(graph, ms_mesh(2)))
    assert len(set(devices[:4].tolist())) == len(set(devices[4:].tolist())) == 1
    assert devices[0] != devices[7]


def test_metis_parts_balance_bytes_where_time_does_not_fit():
    # The short ops hold all the bytes.
    times = {f"o{i}": 40 if i < 4 else 1 for i in range(12)}
    held = [0] * 4 + [10] * 8
    graph = graph_of(times, output_bytes=held)
    problem = problem_of(graph, ms_mesh(2, memory=45))
    bytes_ = np.array(held, dtype=np.uint64)
    on_0 = metis.parts(problem, bytes_, 1.0) == 0
    assert int(bytes_[on_0].sum()) == 40
    placed = metis.place(problem)
    assert placed.schedule.peak.max() <= 45


def test_faster_devices_get_more():
    graph = graph_of({f"o{i}": 3 for i in range(40)})
    devices = [lm.Device("f", "fast", 10**6), lm.Device("s", "slow", 10**6)]
    cluster = lm.Cluster(devices, [lm.Link("f", "s", 1e3), lm.Link("s", "f", 1e3)])
    time = np.repeat([[1e-3, 3e-3]], 40, axis=0)
    problem = Problem.make(graph, cluster, lm.Costs.given(time, graph, cluster))
    assert np.bincount(metis.parts(problem)).tolist() == [30, 10]
    assert np.bincount(layers.place(problem).assignment.devices).tolist() == [30, 10]


def test_metis_takes_a_device_without_room():
    graph = graph_of({f"o{i}": 3 for i in range(9)}, param_bytes=[1] * 9)
    cluster = ms_mesh(2, memory=9)
    nothing_left = lm.Constraints(reserve={cluster.devices[1].name: 9})
    plan = lm.place(graph, cluster, "metis", constraints=nothing_left, on_oom="best_effort")
    assert plan.devices.tolist() == [0] * 9


def test_without_pymetis_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(MissingExtraError, match=r"loadmaster\[metis\]"):
        metis.parts(problem_of(example("lenet"), v100_mesh(2)))


# -- layers ----------------------------------------------------------------------------------


def layered(modules: list[str], times: list[float] | None = None, **columns) -> lm.OpGraph:
    """A chain of ops with the given module paths."""
    n = len(modules)
    ops = {
        "name": [f"o{i}" for i in range(n)],
        "module": modules,
        "time": {"*": times or [1e-3] * n},
        **columns,
    }
    return lm.OpGraph(ops, {"src": range(n - 1), "dst": range(1, n), "bytes": [1] * (n - 1)})


def layer_names(graph: lm.OpGraph, n_devices: int) -> list[str]:
    """Name of the layer of each op."""
    found = layer_ranges.layers(problem_of(graph, ms_mesh(n_devices)))
    return [found.names[i] for i in found.layer]


@pytest.mark.parametrize(
    "stack", ["m.encoder.layer.{}.attention", "blocks.{}.mlp.fc1", "enc/block_{}/dense/MatMul"]
)
def test_stacks_of_layers_are_recognised(stack):
    graph = layered([stack.format(i // 2) for i in range(16)])
    names = layer_names(graph, 4)
    assert len(set(names)) == 8
    assert names[0] == names[1] != names[2]


def test_small_layers_stay_whole_and_large_stages_do_not():
    # As in Swin: stages of layers, one of which holds most of the work.
    modules = ["layers.0.blocks.0", "layers.0.blocks.1"]
    modules += [f"layers.1.blocks.{i}.attn.{q}" for i in range(14) for q in "qkv"]
    assert dict.fromkeys(layer_names(layered(modules), 4)) == dict.fromkeys(
        ["layers.0", *(f"layers.1.blocks.{i}" for i in range(14))]
    )


def test_backward_and_optimizer_go_with_the_forward():
    modules = ["l.0", "l.1", "l.2", "l.3", "l.3", "l.2", "l.1", "l.0", "optim.l.2.weight"]
    graph = layered(modules, phase=["f"] * 4 + ["b"] * 4 + ["o"])
    problem = problem_of(graph, ms_mesh(2))
    devices = layers.place(problem).assignment.devices
    assert devices.tolist() == [0, 0, 1, 1, 1, 1, 0, 0, 1]


def test_ops_without_a_module_go_with_what_feeds_them():
    graph = layered(["", "l.0", "", "l.1", "l.2", ""])
    names = layer_names(graph, 2)
    assert names == ["l.0", "l.0", "l.0", "l.1", "l.2", "l.2"]


def test_ranges_balance_time():
    graph = layered([f"l.{i}" for i in range(6)], [5e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3])
    assert layers.place(problem_of(graph, ms_mesh(2))).assignment.devices.tolist() == [
        0,
        1,
        1,
        1,
        1,
        1,
    ]


def test_where_memory_binds_ranges_balance_that():
    graph = layered(
        [f"l.{i}" for i in range(6)],
        [1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 9e-3],
        workspace=[0] * 6,
        output_bytes=[30, 30, 0, 0, 0, 0],
        colocation=[""] * 6,
    )
    # Outputs that are never read live to the end.
    graph = lm.OpGraph(graph.to_document()["ops"], {"src": [0, 1, 2, 3, 4], "dst": [1, 2, 3, 4, 5]})
    problem = problem_of(graph, ms_mesh(2, memory=30))
    bytes_ = np.array([30, 30, 0, 0, 0, 0], dtype=np.uint64)
    layer = np.arange(6, dtype=np.int32)
    devices = layer_ranges.ranges(problem, layer, bytes_, np.array([30, 30], dtype=np.uint64))
    assert devices.tolist() == [0, 1, 1, 1, 1, 1]
    roomy = layer_ranges.ranges(problem, layer, bytes_, np.array([90, 90], dtype=np.uint64))
    assert roomy.tolist() == [0, 0, 0, 0, 0, 1]
    over = layer_ranges.ranges(problem, layer, bytes_, np.array([20, 20], dtype=np.uint64))
    assert over.tolist() == [0, 1, 1, 1, 1, 1], "as little over as can be"


@pytest.mark.parametrize("method", ["auto", "layers", "ilp"])
def test_devices_without_memory_are_refused(method):
    graph = graph_of({"a": 1, "b": 1}, [("a", "b", 1)], param_bytes=[60, 60])
    nothing = lm.Constraints(reserve=100)
    with pytest.raises(InfeasibleError, match="does not fit"):
        lm.place(graph, ms_mesh(2, memory=100), method, constraints=nothing)


def test_without_module_paths_ranges_follow_the_program_and_say_so():
    placed = layers.place(problem_of(layered([""] * 8), ms_mesh(4)))
    assert placed.assignment.devices.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert "no module paths" in placed.notes[0]
    assert layers.place(problem_of(layered([f"l.{i}" for i in range(8)]), ms_mesh(4))).notes == ()


@pytest.mark.parametrize(
    ("name", "n_devices", "stack"),
    [("bert-large", 8, "m.bert.encoder.layer.{}"), ("mixtral", 4, "layers.{}")],
)
def test_real_models_are_cut_between_layers(name, n_devices, stack):
    problem = problem_of(example(name), v100_mesh(n_devices))
    found = layer_ranges.layers(problem)
    devices = layers.place(problem).assignment.devices
    wanted = [n for n in found.names if n == stack.format(n.rpartition(".")[2])]
    assert len(wanted) >= 24
    for i in range(len(found.names)):
        assert len(set(devices[found.layer == i].tolist())) <= 1
    assert (np.diff([devices[found.layer == i][0] for i in np.unique(found.layer)]) >= 0).all()
    busy = np.bincount(devices, weights=problem.op_time, minlength=n_devices)
    assert busy.max() < 1.5 * busy.mean()


# -- the dice --------------------------------------------------------------------------------


def test_the_dice_are_fair_and_seeded():
    graph = graph_of({f"o{i}": 1 for i in range(900)})
    problem = problem_of(graph, ms_mesh(3))
    drawn = dice.devices(problem, 7)
    assert (np.bincount(drawn, minlength=3) > 240).all()
    assert drawn.tolist() == dice.devices(problem, 7).tolist()
    assert drawn.tolist() != dice.devices(problem, 8).tolist()
    assert (
        dice.place(problem_of(graph, ms_mesh(3), seed=7)).assignment.devices.tolist()
        == drawn.tolist()
    )


def test_the_dice_leave_full_devices_alone():
    graph = graph_of({f"o{i}": 1 for i in range(10)}, output_bytes=[10] * 10)
    placed = dice.place(problem_of(graph, ms_mesh(2, memory=50)))
    assert np.bincount(placed.assignment.devices).tolist() == [5, 5]
    with pytest.raises(InfeasibleError, match="short by"):
        dice.place(problem_of(graph, ms_mesh(2, memory=40)))
