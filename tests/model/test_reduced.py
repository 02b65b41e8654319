"""The reduced graph: views and placeholders gone, and nothing else (design, section 4)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from strategies import graph_of, in_ms, ms_mesh, op_graphs

import loadmaster as lm
from loadmaster import fast
from loadmaster.base.errors import InputError
from loadmaster.model.graph import PLACEHOLDERS


def sent(graph: lm.OpGraph, devices: dict[str, int], n_devices: int = 2) -> set[tuple]:
    """(producer, tensor, bytes, destination) of every transfer, when all but some are on 0."""
    placement = [devices.get(name, 0) for name in graph.names]
    tr = lm.simulate(graph, ms_mesh(n_devices), placement).transfers
    rows = zip(tr.op, tr.tensor.tolist(), tr.bytes.tolist(), tr.dst.tolist(), strict=True)
    return {(graph.names[op], t, b, d) for op, t, b, d in rows}


def edges(graph: lm.OpGraph) -> dict[tuple[str, str], tuple[int, int]]:
    """(tensors, bytes) between real ops by name."""
    reduced = graph.reduced
    name = [graph.names[i] for i in reduced.op_of]
    return {
        (name[s], name[d]): (int(t), int(b))
        for s, d, t, b in zip(*reduced.graph.flows(), strict=True)
    }


# -- by hand ---------------------------------------------------------------------------------


def test_consumers_of_a_chain_of_views_read_from_the_owner():
    graph = graph_of(
        {"a": 1, "reshape": 0, "slice": 0, "b": 1},
        [("a", "reshape", 8), ("reshape", "slice", 8), ("slice", "b", 2)],
        view=[0, 1, 1, 0],
        alias_of=[-1, 0, 0, -1],
    )
    assert graph.reduced.op_of.tolist() == [0, 3]
    assert graph.reduced.map.tolist() == [0, 0, 0, 1]
    assert edges(graph) == {("a", "b"): (1, 2)}, "the bytes of the view, not of what it shows"
    sim = lm.simulate(graph, ms_mesh(2), [0, 1, 1, 1])
    assert sim.devices.tolist() == [0, 0, 0, 1], "a view sits with its owner"
    assert in_ms(sim.start) == [0, 1, 1, 3]
    assert in_ms(sim.finish) == [1, 1, 1, 4]


def test_a_view_as_large_as_what_it_shows_is_the_same_tensor():
    graph = graph_of(
        {"a": 1, "reshape": 0, "b": 1, "c": 1},
        [("a", "reshape", 8), ("a", "b", 8), ("reshape", "c", 8)],
        view=[0, 1, 0, 0],
    )
    assert sent(graph, {"b": 1, "c": 1}) == {("a", 0, 8, 1)}


def test_a_smaller_view_is_sent_beside_what_it_shows():
    graph = graph_of(
        {"a": 1, "slice": 0, "b": 1, "c": 1},
        [("a", "slice", 8), ("a", "b", 8), ("slice", "c", 2)],
        view=[0, 1, 0, 0],
    )
    assert sent(graph, {"b": 1, "c": 1}) == {("a", 0, 8, 1), ("a", 1, 2, 1)}


def test_a_getitem_forwards_its_producers_tensor():
    # split has two outputs; each goes on through a getitem under its own id.
    graph = graph_of(
        {"split": 1, "get0": 0, "get1": 0, "x": 1, "y": 1, "z": 1},
        [
            ("split", "get0", 4, 0),
            ("split", "get1", 6, 1),
            ("get0", "x", 4, 0),
            ("get1", "y", 6, 1),
            ("get1", "z", 6, 1),
        ],
        view=[0, 1, 1, 0, 0, 0],
    )
    assert edges(graph) == {
        ("split", "x"): (1, 4),
        ("split", "y"): (1, 6),
        ("split", "z"): (1, 6),
    }
    assert sent(graph, {"x": 1, "y": 1, "z": 1}) == {("split", 0, 4, 1), ("split", 1, 6, 1)}


def test_control_edges_pass_through_views():
    graph = graph_of(
        {"a": 1, "first": 1, "view": 0, "b": 1, "after": 1},
        [
            ("a", "view", 8, 0),
            ("first", "view", 0, -1),
            ("view", "b", 8, 1),
            ("view", "after", 0, -1),
        ],
        view=[0, 0, 1, 0, 0],
    )
    assert edges(graph) == {
        ("a", "b"): (1, 8),
        ("first", "b"): (0, 0),
        ("a", "after"): (0, 0),
        ("first", "after"): (0, 0),
    }


def test_the_view_of_a_tensor_changed_in_place_waits_for_the_change():
    graph = graph_of(
        {"a": 1, "add_": 1, "view": 0, "b": 1},
        [("a", "add_", 8), ("add_", "view", 8), ("view", "b", 8)],
        view=[0, 0, 1, 0],
        alias_of=[-1, 0, 0, -1],
        output_bytes=[8, 0, 0, 8],
    )
    assert edges(graph) == {("a", "add_"): (1, 8), ("add_", "b"): (1, 8)}
    assert graph.reduced.map.tolist() == [0, 1, 1, 2]


def test_an_in_place_op_is_bound_to_its_owner_and_allocates_nothing():
    graph = graph_of(
        {"a": 1, "add_": 1, "b": 1},
        [("a", "add_", 8), ("add_", "b", 8)],
        alias_of=[-1, 0, -1],
        output_bytes=[8, 0, 2],
    )
    sets = graph.reduced.graph.colocation
    assert sets[0] == sets[1] != sets[2]
    with pytest.raises(InputError, match='"a" and "add_" must share a device'):
        lm.simulate(graph, ms_mesh(2), [0, 1, 1])
    sim = lm.simulate(graph, ms_mesh(2), [0, 0, 1])
    # 8 bytes live until they are sent (2 + 8 ms); the copy until b is done, then 2 stay.
    assert sim.memory.peak.tolist() == [8, 10]
    times, used = sim.memory.profile(0)
    assert list(zip(in_ms(times), used.tolist(), strict=True)) == [(0, 0), (0, 8), (10, 0)]


def test_storage_lives_to_the_last_reader_of_any_view_of_it():
    graph = graph_of(
        {"a": 1, "slice": 0, "b": 1, "c": 5, "d": 1},
        [("a", "slice", 8), ("a", "b", 8), ("slice", "d", 2), ("b", "c", 1), ("c", "d", 1)],
        view=[0, 1, 0, 0, 0],
        output_bytes=[8, 0, 1, 1, 1],
    )
    times, used = lm.simulate(graph, ms_mesh(1), [0] * 5).memory.profile(0)
    at = dict(zip(in_ms(times), used.tolist(), strict=True))
    assert at == {0: 8, 1: 9, 2: 10, 7: 10, 8: 1}


def test_a_view_nobody_reads_keeps_its_owners_storage_as_an_output():
    graph = graph_of(
        {"a": 1, "out": 0, "b": 1},
        [("a", "out", 8)],
        view=[0, 1, 0],
        output_bytes=[8, 0, 1],
    )
    assert lm.simulate(graph, ms_mesh(1), [0] * 3).memory.profile(0)[1][-1] == 9


def test_a_view_with_two_inputs_shows_the_one_it_aliases():
    # expand_as(b, a): the data is b's, of a it takes the shape.
    graph = graph_of(
        {"a": 1, "b": 1, "expand_as": 0, "c": 1},
        [("a", "expand_as", 2), ("b", "expand_as", 8), ("expand_as", "c", 8)],
        view=[0, 0, 1, 0],
        alias_of=[-1, -1, 1, -1],
    )
    assert edges(graph)["b", "c"] == (1, 8)
    assert graph.reduced.map[2] == 1


def test_placeholders_are_resident_at_home():
    graph = graph_of(
        {"w": 0, "late": 1, "early": 1, "x": 0},
        [("w", "late", 8), ("w", "early", 8), ("early", "late", 1), ("x", "early", 3)],
        kind=["parameter", "", "", "input"],
        param_bytes=[8, 0, 0, 0],
        output_bytes=[0, 0, 0, 3],
    )
    reduced = graph.reduced
    assert reduced.map.tolist() == [1, 0, 1, 1], "home is the first reader in topological order"
    assert reduced.graph.resident.tolist() == [0, 11]
    assert sent(graph, {"late": 1}) == {("early", 0, 8, 1), ("early", 2, 1, 1)}


def test_the_home_of_a_colocated_parameter_is_its_set():
    graph = graph_of(
        {"w": 0, "read": 1, "update": 1},
        [("w", "read", 8), ("read", "update", 8)],
        kind=["parameter", "", ""],
        param_bytes=[8, 0, 0],
        colocation=["w", "", "w"],
    )
    assert graph.reduced.map.tolist() == [1, 0, 1]
    assert graph.reduced.graph.resident.tolist() == [0, 8]
    assert graph.reduced.graph.lead.tolist() == [0, 0], "the update should follow the first reader"
    assert sent(graph, {"read": 1}) == {("update", 0, 8, 1), ("read", 1, 8, 0)}


def test_a_placeholder_nobody_reads_still_takes_memory():
    graph = graph_of({"w": 0, "a": 1}, kind=["buffer", ""], param_bytes=[8, 0])
    assert graph.reduced.graph.resident.tolist() == [8]


def test_a_placeholder_that_reads_something_is_an_op():
    graph = graph_of({"a": 1, "b": 0}, [("a", "b", 1)], kind=["", "buffer"])
    assert graph.reduced.op_of.tolist() == [0, 1]


def test_a_graph_of_placeholders_has_nothing_to_place():
    graph = graph_of({"w": 0}, kind=["parameter"])
    with pytest.raises(InputError, match="no ops"):
        graph.reduced  # noqa: B018


def test_sets_joined_by_views_and_aliases_stay_together():
    graph = graph_of(
        {"a": 1, "v": 0, "b": 1, "c": 1},
        [("a", "v", 8), ("v", "b", 8)],
        view=[0, 1, 0, 0],
        colocation=["", "set", "", "set"],
    )
    sets = graph.reduced.graph.colocation.tolist()
    assert sets[0] == sets[2] != sets[1], "the view is in c's set, so its owner is"


def test_types_are_allowed_where_every_op_of_a_set_is():
    graph = graph_of(
        {"a": 1, "b": 1, "c": 1},
        device_types=["cpu,gpu", "gpu, npu", "cpu"],
        colocation=["s", "s", ""],
    )
    reduced = graph.reduced_for(["cpu", "gpu", "npu"])
    assert reduced.graph.allowed.tolist() == [0b010, 0b010, 0b001]
    clash = graph_of({"a": 1, "b": 1}, device_types=["cpu", "gpu"], colocation=["s", "s"])
    with pytest.raises(InputError, match='"a" and "b" must share a device'):
        clash.reduced_for(["cpu", "gpu"])


# -- on every graph --------------------------------------------------------------------------


def check_reduced(graph: lm.OpGraph) -> None:
    reduced, work = graph.reduced, graph.reduced.graph
    n = graph.n_ops
    reads = np.zeros(n, dtype=bool)
    reads[graph.dst] = True
    tensor = graph.src if graph.tensor is None else graph.tensor
    shows = np.zeros(n, dtype=bool)
    shows[graph.dst[tensor >= 0]] = True
    placeholder = np.array([k in PLACEHOLDERS for k in graph.kinds]) & ~reads
    gone = (graph.view & shows) | placeholder
    assert reduced.op_of.tolist() == np.flatnonzero(~gone).tolist(), "only views and placeholders"
    assert reduced.map[reduced.op_of].tolist() == list(range(work.n_ops))
    assert reduced.map.min() >= 0

    # Bytes and time are kept.
    held = np.where(
        placeholder, np.maximum(graph.param_bytes, graph.output_bytes), graph.param_bytes
    )
    assert int(work.resident.sum()) == int(held.sum())
    seconds = np.arange(n, dtype=np.float64)
    assert reduced.sum(seconds).sum() == seconds.sum()
    assert work.workspace.max(initial=0) == graph.workspace.max(initial=0)

    # What must share a device does: labels, views with what they show, in-place ops with owners.
    together = work.colocation[reduced.map]
    groups: dict[str, set[int]] = {}
    for label, s in zip(graph.colocation, together.tolist(), strict=True):
        groups.setdefault(label, set()).add(s)
    assert all(len(sets) == 1 for label, sets in groups.items() if label)
    aliased = np.flatnonzero((graph.alias_of >= 0) & ~placeholder[graph.alias_of])
    assert (together[aliased] == together[graph.alias_of[aliased]]).all()

    # Every edge follows a path of the model, and no order of the model is broken.
    rank = np.empty(n, dtype=np.int64)
    rank[fast.m_topo(fast.Graph(n, graph.src, graph.dst))] = np.arange(n)
    src, dst, tensors, bytes_ = work.flows()
    assert (rank[reduced.op_of[src]] < rank[reduced.op_of[dst]]).all()
    assert (bytes_[tensors == 0] == 0).all()


def test_every_example_is_reduced_rightly(any_example):
    check_reduced(any_example)


@given(op_graphs(max_ops=12))
def test_drawn_graphs_are_reduced_rightly(graph):
    check_reduced(graph)


@given(op_graphs(max_ops=8))
def test_edges_of_the_reduced_graph_are_paths_and_paths_are_kept(graph):
    """Reachability between real ops is that of the model, placeholders apart."""
    n = graph.n_ops
    reduced = graph.reduced

    def closure(size, pairs):
        reach = np.eye(size, dtype=bool)
        for s, d in pairs:
            reach[s, d] = True
        for k in range(size):
            reach |= reach[:, [k]] & reach[[k], :]
        return reach

    model = closure(n, zip(graph.src, graph.dst, strict=True))
    src, dst, _, _ = reduced.graph.flows()
    ours = closure(reduced.graph.n_ops, zip(src, dst, strict=True))
    real = reduced.op_of
    through_views = model[np.ix_(real, real)]
    assert (ours <= through_views).all()
    # A path of the model between real ops runs over real ops and views only: it must be kept.
    assert (through_views <= ours).all()


def test_half_of_a_traced_training_graph_goes(alexnet):
    share = alexnet.reduced.graph.n_ops / alexnet.n_ops
    assert 0.2 < share < 0.8


def test_views_that_multiply_control_edges_are_refused_not_expanded():
    # A hundred waits of one view, times a hundred readers: 10,000 edges from 300 ops.
    n = 100
    names = ["a", "v", *(f"w{i}" for i in range(n)), *(f"r{i}" for i in range(n))]
    rows = [("a", "v", 8, 0)]
    rows += [(f"w{i}", "v", 0, -1) for i in range(n)]
    rows += [("v", f"r{i}", 8, 1) for i in range(n)]
    graph = graph_of({name: 1 for name in names}, rows, view=[int(name == "v") for name in names])
    with pytest.raises(InputError, match=r'view "v".*view = 0'):
        graph.reduced  # noqa: B018
    few = graph_of(
        {name: 1 for name in names[:12]},
        [r for r in rows if r[0] in names[:12] and r[1] in names[:12]],
        view=[int(name == "v") for name in names[:12]],
    )
    assert few.reduced.graph.n_ops == 11


def test_all_pairs_of_readers_and_tensors_are_distinct(alexnet):
    src, dst, _, _ = alexnet.reduced.graph.flows()
    pairs = list(zip(src.tolist(), dst.tolist(), strict=True))
    assert pairs == sorted(set(pairs))
    assert all(a != b for a, b in itertools.islice(pairs, 1000))
