"""Schedules worked out by hand: figures of the papers, and small cases that tell models apart."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import graph_of, in_ms, ms_mesh

import loadmaster as lm
from loadmaster import fast
from loadmaster.base.errors import InputError


def by_name(graph: lm.OpGraph, seconds) -> dict[str, int]:
    return dict(zip(graph.names, in_ms(seconds), strict=True))


# -- the papers ------------------------------------------------------------------------------


def cut(graph: fast.Graph, order: np.ndarray) -> int:
    """Edges between the halves of an order."""
    late = np.zeros(graph.n_ops, dtype=bool)
    late[order[graph.n_ops // 2 :]] = True
    src, dst, _, _ = graph.flows()
    return int((late[src] != late[dst]).sum())


def test_celeritas_figure_3():
    """Four short branches: M-TOPO cuts four edges between two devices, DFS-TOPO none."""
    graph = fast.Graph(8, np.arange(4), np.arange(4, 8))
    assert fast.m_topo(graph).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert fast.dfs_topo(graph).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert cut(graph, fast.m_topo(graph)) == 4
    assert cut(graph, fast.dfs_topo(graph)) == 0
    # CPD-TOPO does the same, heaviest branch first.
    time = np.array([1.0, 1, 1, 1, 1, 2, 4, 3])
    order = fast.cpd_topo(fast.Weights(graph, time, np.zeros(4)))
    assert order.tolist() == [2, 6, 3, 7, 1, 5, 0, 4]
    assert cut(graph, order) == 0


#: After Pesto's figure 2: a chain of small ops beside two large ones, on two GPUs.
PESTO = graph_of(
    {"A": 1, "B": 1, "C": 1, "D": 1, "E": 1, "F": 10, "G": 8},
    [("A", "B", 1), ("B", "C", 1), ("C", "D", 1), ("D", "E", 1), ("F", "G", 2)],
)


def test_pesto_figure_2():
    """The same placement, another order: a quarter slower when the longest chain goes first."""
    devices = [0, 0, 0, 0, 0, 0, 1]
    chain_first = lm.simulate(PESTO, ms_mesh(2), devices, [0, 1, 2, 3, 4, 5, 6])
    # A-E until 5, F until 15, its output is there at 17, G until 25.
    assert by_name(PESTO, chain_first.start) == dict(A=0, B=1, C=2, D=3, E=4, F=5, G=17)
    assert in_ms(chain_first.makespan) == 25
    large_first = lm.simulate(PESTO, ms_mesh(2), devices, [2, 3, 4, 5, 6, 0, 1])
    # F until 10, its output is there at 12, G until 20; meanwhile A-E until 15.
    assert by_name(PESTO, large_first.start) == dict(A=10, B=11, C=12, D=13, E=14, F=0, G=12)
    assert in_ms(large_first.makespan) == 20
    assert chain_first.makespan / large_first.makespan == pytest.approx(1.25)


def test_pesto_merging_both_diagonals_of_k22_makes_a_cycle():
    k22 = fast.Graph(4, np.array([0, 0, 1, 1]), np.array([2, 3, 2, 3]))
    with pytest.raises(InputError, match=r"makes a cycle.*group|makes a cycle: op"):
        fast.contract(k22, np.array([0, 1, 1, 0]))


# -- the model -------------------------------------------------------------------------------

DIAMOND = graph_of(
    {"top": 1, "left": 2, "right": 3, "bottom": 1},
    [("top", "left", 4), ("top", "right", 4), ("left", "bottom", 1), ("right", "bottom", 2)],
    output_bytes=[4, 1, 2, 5],
)


def test_diamond_on_one_device():
    sim = lm.simulate(DIAMOND, ms_mesh(1), [0] * 4)
    assert by_name(DIAMOND, sim.start) == dict(top=0, left=1, right=3, bottom=6)
    assert in_ms(sim.makespan) == 7
    # 4; + left's 1; + right's 2, then top's 4 go; bottom's 5 come, then 1 + 2 go.
    times, used = sim.memory.profile(0)
    changes = list(zip(in_ms(times), used.tolist(), strict=True))
    assert changes == [(0, 0), (0, 4), (1, 5), (3, 7), (6, 3), (6, 8), (7, 5)]


def test_diamond_on_two_devices():
    sim = lm.simulate(DIAMOND, ms_mesh(2), [0, 0, 1, 0])
    # top's 4 bytes take until 5; right runs to 8, its 2 bytes take until 10.
    assert by_name(DIAMOND, sim.start) == dict(top=0, left=1, right=5, bottom=10)
    assert in_ms(sim.makespan) == 11
    assert sim.bytes_moved == 6
    assert in_ms(sim.device_busy) == [4, 3]
    assert dict(zip(ms_mesh(2).channels, in_ms(sim.channel_busy), strict=True)) == {
        "gpu0->gpu1": 4,
        "gpu1->gpu0": 2,
    }
    waits = [(b.op if b.transfer is None else "sent", b.waited) for b in sim.blame]
    assert waits == [
        (3, "transfer"),
        ("sent", "op"),
        (2, "transfer"),
        ("sent", "op"),
        (0, "nothing"),
    ]
    # Held on gpu1: the copy from 1 to 8, right's output from 5 to the end of its transfer at 10.
    times, used = sim.memory.profile(1)
    assert list(zip(in_ms(times), used.tolist(), strict=True)) == [
        (0, 0),
        (1, 4),
        (5, 6),
        (8, 2),
        (10, 0),
    ]


def test_one_tensor_for_three_consumers_on_a_device_is_sent_once():
    graph = graph_of(
        {"a": 1, "x": 1, "y": 1, "z": 1}, [("a", "x", 4), ("a", "y", 4), ("a", "z", 4)]
    )
    sim = lm.simulate(graph, ms_mesh(2), [0, 1, 1, 1])
    assert len(sim.transfers) == 1
    assert sim.bytes_moved == 4
    assert by_name(graph, sim.start) == dict(a=0, x=5, y=6, z=7)
    # Two devices, two transfers.
    sim = lm.simulate(graph, ms_mesh(3), [0, 1, 1, 2])
    assert len(sim.transfers) == 2
    assert sim.bytes_moved == 8


def test_two_tensors_on_one_channel_go_one_after_the_other():
    graph = graph_of({"a": 1, "x": 1, "y": 1}, [("a", "x", 4, 0), ("a", "y", 4, 1)])
    sim = lm.simulate(graph, ms_mesh(2), [0, 1, 1])
    assert in_ms(sim.transfers.queued) == [1, 1]
    assert in_ms(sim.transfers.start) == [1, 5]
    assert by_name(graph, sim.start) == dict(a=0, x=5, y=9)
    free = lm.simulate(graph, ms_mesh(2), [0, 1, 1], contention=False)
    assert in_ms(free.transfers.start) == [1, 1]
    assert by_name(graph, free.start) == dict(a=0, x=5, y=6)


def test_two_directions_do_not_wait_for_each_other():
    graph = graph_of({"a": 1, "b": 1, "x": 1, "y": 1}, [("a", "y", 4), ("b", "x", 4)])
    sim = lm.simulate(graph, ms_mesh(2), [0, 1, 0, 1])
    assert in_ms(sim.transfers.start) == [1, 1]
    bridge = [
        lm.Link("d0", "d1", 1000.0, 0.0, ("bridge",)),
        lm.Link("d1", "d0", 1000.0, 0.0, ("bridge",)),
    ]
    cluster = lm.Cluster([lm.Device("d0", "g", 99), lm.Device("d1", "g", 99)], bridge)
    assert in_ms(lm.simulate(graph, cluster, [0, 1, 0, 1]).transfers.start) == [1, 5]


def test_a_route_of_two_hops_holds_both_links_all_the_while():
    # d0 - d1 at 1 byte/ms and 2 ms, d1 - d2 at half the speed and 3 ms.
    devices = [lm.Device(f"d{i}", "g", 99) for i in range(3)]
    links = [
        link
        for a, b, speed, latency in ((0, 1, 1000.0, 2e-3), (1, 2, 500.0, 3e-3))
        for link in (
            lm.Link(f"d{a}", f"d{b}", speed, latency),
            lm.Link(f"d{b}", f"d{a}", speed, latency),
        )
    ]
    cluster = lm.Cluster(devices, links)
    graph = graph_of({"a": 1, "far": 1, "b": 1, "near": 1}, [("a", "far", 4), ("b", "near", 4)])
    # a's 4 bytes go from 1, for 2 + 3 + 4 * 2 = 13 ms; b's wait for the first link until 14.
    sim = lm.simulate(graph, cluster, [0, 2, 0, 1])
    assert in_ms(sim.transfers.start) == [1, 14]
    assert in_ms(sim.transfers.finish) == [14, 20]
    busy = dict(zip(cluster.channels, in_ms(sim.channel_busy), strict=True))
    assert busy == {"d0->d1": 19, "d1->d0": 0, "d1->d2": 13, "d2->d1": 0}
    assert sim.blame[1].waited == "channel"


def test_a_control_edge_costs_the_latency_between_devices_only():
    graph = graph_of({"a": 1, "b": 1, "c": 1}, [("a", "b", 0, -1), ("a", "c", 0, -1)])
    sim = lm.simulate(graph, ms_mesh(2, latency=2), [0, 0, 1])
    assert by_name(graph, sim.start) == dict(a=0, b=1, c=3)
    assert sim.transfers.tensor.tolist() == [-1]
    assert sim.bytes_moved == 0


def test_policies_take_the_ready_op_they_say():
    # first is ready at 0 with priority 9; soon becomes ready at 1, late at 3.
    graph = graph_of(
        {"a": 1, "first": 2, "soon": 2, "late": 2}, [("a", "soon", 1), ("first", "late", 1)]
    )
    priority = [0, 9, 5, 1]

    def order(policy):
        sim = lm.simulate(graph, ms_mesh(1), [0] * 4, priority, policy)
        return [graph.names[i] for i in np.argsort(sim.start, kind="stable")]

    assert order("priority") == ["a", "soon", "first", "late"]
    assert order("fifo") == ["a", "first", "soon", "late"]
    with pytest.raises(InputError, match="never run"):
        order("fixed")


def test_fixed_waits_for_the_next_in_line():
    graph = graph_of({"a": 1, "sent": 1, "ready": 1}, [("a", "sent", 4)])
    sim = lm.simulate(graph, ms_mesh(2), [0, 1, 1], [0, 0, 1], "fixed")
    assert by_name(graph, sim.start) == dict(a=0, sent=5, ready=6)
    assert sim.blame[0].waited == "device"


def test_workspace_lives_while_the_op_runs():
    graph = graph_of(
        {"a": 2, "b": 1},
        [("a", "b", 3)],
        workspace=[10, 0],
        param_bytes=[5, 0],
        output_bytes=[3, 1],
    )
    times, used = lm.simulate(graph, ms_mesh(1), [0, 0]).memory.profile(0)
    changes = list(zip(in_ms(times), used.tolist(), strict=True))
    assert changes == [(0, 5), (0, 18), (2, 8), (2, 9), (3, 6)]


def test_the_first_overflow_says_where_when_what_and_by_how_much():
    graph = graph_of({"a": 2, "b": 3, "c": 1}, [("a", "b", 30), ("b", "c", 20), ("a", "c", 30)])
    overflow = lm.simulate(graph, ms_mesh(2, memory=45), [1, 1, 1]).memory.overflow
    assert overflow.device == 1
    assert in_ms(overflow.time) == 2
    assert graph.names[overflow.op] == "b"
    assert overflow.over == 5
    assert [(graph.names[t.op], t.bytes, t.copy) for t in overflow.alive] == [
        ("a", 30, False),
        ("b", 20, False),
    ]
    # A copy that arrives counts as well.
    overflow = lm.simulate(graph, ms_mesh(2, memory=45), [0, 0, 1]).memory.overflow
    assert (overflow.device, in_ms(overflow.time)) == (0, 2)
    overflow = lm.simulate(graph, ms_mesh(2, memory=29), [0, 1, 1]).memory.overflow
    assert (overflow.device, in_ms(overflow.time), overflow.over) == (0, 0, 1)
    # However many they are.
    many = graph_of({f"o{i}": 1 for i in range(12)}, output_bytes=[1] * 11 + [9])
    overflow = lm.simulate(many, ms_mesh(1, memory=19), [0] * 12).memory.overflow
    assert [t.bytes for t in overflow.alive] == [9] + [1] * 11
    resident = graph_of({"a": 1}, param_bytes=[9])
    overflow = lm.simulate(resident, ms_mesh(1, memory=8), [0]).memory.overflow
    assert (overflow.op, overflow.over, overflow.alive) == (None, 1, ())
