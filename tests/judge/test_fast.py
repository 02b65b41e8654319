"""loadmaster.fast: numpy in, numpy out; against brute force, from threads, and what it refuses."""

from __future__ import annotations

import itertools
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import MS, Plain, clusters, in_ms, ms_mesh, plain_graphs, tried

from loadmaster import fast
from loadmaster.base.errors import InfeasibleError, InputError

I32, I64, F64, U64 = np.int32, np.int64, np.float64, np.uint64


def seconds(values) -> np.ndarray:
    return np.array(values, dtype=F64) * MS


def diamond(**columns) -> fast.Graph:
    """0 -> 1, 2 -> 3."""
    return fast.Graph(4, np.array([0, 0, 1, 2]), np.array([1, 2, 3, 3]), **columns)


TWO = ms_mesh(2)._core
ONES = np.ones(4)
ORDER = np.arange(4)
G = diamond()
P = fast.Problem(G, TWO, ONES)

# -- levels and orders -----------------------------------------------------------------------


@given(graph=plain_graphs(max_ops=9), data=st.data())
def test_levels_are_the_longest_paths(graph, data):
    k = len(graph.tensor_bytes)
    tensor = data.draw(st.lists(st.integers(0, 5), min_size=k, max_size=k))
    control = data.draw(st.integers(0, 3))
    top, bottom = fast.levels(
        fast.Weights(graph.fast(), graph.seconds, seconds(tensor), control_time=control * MS)
    )
    assert (in_ms(top), in_ms(bottom)) == reference.levels(graph, tensor, control)


def test_levels_by_hand():
    top, bottom = fast.levels(fast.Weights(diamond(), seconds([1, 2, 3, 1]), seconds([1, 1, 5])))
    assert in_ms(top) == [0, 2, 2, 10]
    assert in_ms(bottom) == [11, 4, 9, 1]


def all_orders(graph: fast.Graph, op_time, tensor_time, control=0.0):
    return {
        "m": fast.m_topo(graph),
        "dfs": fast.dfs_topo(graph),
        "cpd": fast.cpd_topo(fast.Weights(graph, op_time, tensor_time, control_time=control)),
    }


@given(plain_graphs(max_ops=12))
def test_orders_are_topological(graph):
    for order in all_orders(graph.fast(), graph.seconds, seconds(graph.tensor_bytes), MS).values():
        assert sorted(order.tolist()) == list(range(graph.n))
        position = np.argsort(order)
        assert all(position[s] < position[d] for s, d, _ in graph.edges)


@given(plain_graphs(max_ops=9))
def test_orders_follow_their_rules(graph):
    """A queue, a stack, and a stack with the longest path on top (Celeritas, 4.2 and 5.1.3)."""
    times = graph.seconds, seconds(graph.tensor_bytes)
    got = all_orders(graph.fast(), *times)
    top, bottom = (
        np.array(in_ms(level)) for level in fast.levels(fast.Weights(graph.fast(), *times))
    )
    path = (top + bottom).tolist()

    def kahn(stack: bool, rank):
        before = {u: {s for s, d, _ in graph.edges if d == u} for u in range(graph.n)}
        order = []
        waiting = sorted((u for u in before if not before[u]), key=rank)
        while waiting:
            op = waiting.pop(0)
            order.append(op)
            free = sorted({d for s, d, _ in graph.edges if s == op}, key=rank)
            free = [d for d in free if before[d] <= set(order)]
            waiting = free + waiting if stack else waiting + free
        return order

    assert got["dfs"].tolist() == kahn(True, lambda u: u)
    assert got["cpd"].tolist() == kahn(True, lambda u: (-path[u], u))


def test_m_topo_is_first_in_first_out():
    graph = fast.Graph(5, np.array([0, 0, 1]), np.array([3, 4, 2]))
    assert fast.m_topo(graph).tolist() == [0, 1, 3, 4, 2]


# -- fusion ----------------------------------------------------------------------------------


@given(graph=plain_graphs(max_ops=8), data=st.data())
@settings(max_examples=75)
def test_breakpoints_cut_the_least(graph, data):
    """Every way to cut the order tried: none within the limits costs less."""
    k = len(graph.tensor_bytes)
    tensor = data.draw(st.lists(st.integers(0, 5), min_size=k, max_size=k))
    control = data.draw(st.integers(0, 2))
    size = data.draw(st.lists(st.integers(0, 5), min_size=graph.n, max_size=graph.n))
    max_ops = data.draw(st.integers(1, graph.n))
    max_bytes = data.draw(st.none() | st.integers(0, 12))
    max_time = data.draw(st.none() | st.integers(0, 9))
    work = graph.fast()
    order = fast.dfs_topo(work)
    cuts = fast.breakpoints(
        fast.Weights(
            work,
            graph.seconds,
            seconds(tensor),
            control_time=control * MS,
            op_bytes=np.array(size, dtype=U64),
        ),
        order,
        max_ops=max_ops,
        max_bytes=max_bytes,
        max_time=None if max_time is None else max_time * MS,
    ).tolist()

    def allowed(segment: list[int]) -> bool:
        return len(segment) == 1 or (
            len(segment) <= max_ops
            and (max_bytes is None or sum(size[u] for u in segment) <= max_bytes)
            and (max_time is None or sum(graph.time[u] for u in segment) <= max_time)
        )

    def cost(at: list[int]) -> int | None:
        bounds = [0, *at, graph.n]
        parts = [order[a:b].tolist() for a, b in itertools.pairwise(bounds)]
        if not all(map(allowed, parts)):
            return None
        segment = {u: i for i, part in enumerate(parts) for u in part}
        return reference.cut_cost(graph, [segment[u] for u in range(graph.n)], tensor, control)

    every = [
        list(at) for r in range(graph.n) for at in itertools.combinations(range(1, graph.n), r)
    ]
    best = min(c for c in map(cost, every) if c is not None)
    assert cost(cuts) == best


@given(
    n=st.integers(20, 300),
    max_ops=st.integers(2, 120),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=20)
def test_breakpoints_of_long_orders_match_the_plain_recurrence(n, max_ops, seed):
    """S(j) = min over i of S(i) + cost(i, j), scanned, with windows of many blocks."""
    random = np.random.default_rng(seed)
    m = 3 * n
    ends = np.sort(random.integers(0, n, (m, 2)), axis=1)
    src, dst = ends[ends[:, 0] < ends[:, 1]].T
    tensor = random.integers(0, 6, n)
    size = random.integers(0, 4, n)
    max_bytes = int(random.integers(10, 200))
    graph = fast.Graph(n, src, dst)
    order = np.arange(n)
    ids = graph.n_tensor_ids
    cuts = fast.breakpoints(
        fast.Weights(
            graph, np.zeros(graph.n_ops), seconds(tensor[:ids]), op_bytes=size.astype(U64)
        ),
        order,
        max_ops=max_ops,
        max_bytes=max_bytes,
    )
    readers: dict[int, list[int]] = {}
    for s, d in sorted(set(zip(src.tolist(), dst.tolist(), strict=True)), key=lambda e: e[1]):
        readers.setdefault(s, []).append(d)
    # A tensor met at p after q costs the segments that begin in (q, p] and hold p.
    charges: dict[int, list[tuple[int, int]]] = {}
    for s, who in readers.items():
        for q, p in itertools.pairwise([s, *who]):
            charges.setdefault(p, []).append((q, int(tensor[s])))
    total = [0] + [10**9] * n
    for i in range(n):
        here, held = total[i], 0
        for j in range(i + 1, min(i + max_ops, n) + 1):
            held += int(size[j - 1])
            if j - i > 1 and held > max_bytes:
                break
            here += sum(c for q, c in charges.get(j - 1, ()) if q < i)
            total[j] = min(total[j], here)
    segment = fast.segments(order, cuts)
    crossing = {
        (s, int(segment[d])) for s, who in readers.items() for d in who if segment[s] != segment[d]
    }
    assert sum(int(tensor[s]) for s, _ in crossing) == total[n]
    assert np.bincount(segment).max() <= max_ops


def test_of_equal_costs_the_longer_segments_win():
    graph = fast.Graph(6, np.arange(5), np.arange(1, 6))
    cuts = fast.breakpoints(
        fast.Weights(graph, np.zeros(graph.n_ops), seconds([0] * 5)), np.arange(6), max_ops=6
    )
    assert cuts.tolist() == []
    cuts = fast.breakpoints(
        fast.Weights(graph, np.zeros(graph.n_ops), seconds([1] * 5)), np.arange(6), max_ops=4
    )
    assert len(cuts) == 1


def test_an_op_over_a_limit_is_a_segment_of_its_own():
    graph = fast.Graph(3, np.array([0, 1]), np.array([1, 2]))
    cuts = fast.breakpoints(
        fast.Weights(graph, np.zeros(graph.n_ops), seconds([1, 1]), op_bytes=np.array([1, 9, 1])),
        np.arange(3),
        max_bytes=4,
    )
    assert cuts.tolist() == [1, 2]


def test_ops_of_other_device_types_never_share_a_segment():
    graph = fast.Graph(
        3, np.array([0, 1]), np.array([1, 2]), allowed=np.array([1, 3, 3], dtype=U64)
    )
    assert fast.breakpoints(
        fast.Weights(graph, np.zeros(graph.n_ops), seconds([9, 0])), np.arange(3)
    ).tolist() == [1]


@given(plain_graphs(max_ops=8), st.data())
def test_segments_number_the_stretches_between_cuts(graph, data):
    order = fast.m_topo(graph.fast())
    inner = list(range(1, graph.n))
    cuts = data.draw(st.lists(st.sampled_from(inner), unique=True).map(sorted)) if inner else []
    group = fast.segments(order, np.array(cuts, dtype=I64))
    want = np.searchsorted(cuts, np.arange(graph.n), side="right")
    assert group[order].tolist() == want.tolist()


# -- contraction -----------------------------------------------------------------------------


def quotient(graph: Plain, group: list[int]) -> dict[tuple[int, int], set]:
    """What flows between groups: tensors by pair, control edges as none."""
    flows: dict[tuple[int, int], set] = {}
    for s, d, t in graph.edges:
        if group[s] != group[d]:
            flows.setdefault((group[s], group[d]), set()).update([t] if t >= 0 else [])
    return flows


def is_acyclic(n: int, pairs) -> bool:
    left, edges = set(range(n)), set(pairs)
    while left:
        free = {u for u in left if not any(d == u and s in left for s, d in edges)}
        if not free:
            return False
        left -= free
    return True


@given(graph=plain_graphs(max_ops=9), data=st.data())
@settings(max_examples=75)
def test_contraction_keeps_what_flows_between_groups(graph, data):
    raw = data.draw(st.lists(st.integers(0, graph.n - 1), min_size=graph.n, max_size=graph.n))
    number = {g: i for i, g in enumerate(dict.fromkeys(raw))}
    group = [number[g] for g in raw]
    want = quotient(graph, group)
    work = graph.fast()
    if not is_acyclic(len(number), want):
        with pytest.raises(InputError, match="makes a cycle"):
            fast.contract(work, np.array(group))
        return
    coarse = fast.contract(work, np.array(group))
    src, dst, tensors, bytes_ = coarse.flows()
    got = {
        (s, d): (t, b)
        for s, d, t, b in zip(*(c.tolist() for c in (src, dst, tensors, bytes_)), strict=True)
    }
    assert got == {
        pair: (len(ids), sum(graph.tensor_bytes[t] for t in ids)) for pair, ids in want.items()
    }
    assert list(got) == sorted(got)
    fold = {g: [u for u in range(graph.n) if group[u] == g] for g in set(group)}
    assert coarse.resident.tolist() == [
        sum(graph.resident[u] for u in fold[g]) for g in sorted(fold)
    ]
    assert coarse.workspace.tolist() == [
        max(graph.workspace[u] for u in fold[g]) for g in sorted(fold)
    ]
    assert int(coarse.static_bytes.sum()) == int(work.static_bytes.sum())


@given(plain_graphs(max_ops=9))
def test_flows_are_the_quotient_of_single_ops(graph):
    src, dst, tensors, bytes_ = graph.fast().flows()
    want = quotient(graph, list(range(graph.n)))
    rows = zip(src.tolist(), dst.tolist(), tensors.tolist(), bytes_.tolist(), strict=True)
    assert list(rows) == [
        (s, d, len(ids), sum(graph.tensor_bytes[t] for t in ids))
        for (s, d), ids in sorted(want.items())
    ]
    assert src.dtype == dst.dtype == I32
    assert tensors.dtype == np.uint32
    assert bytes_.dtype == U64


def test_merging_both_diagonals_of_k22_is_refused():
    """The smallest cycle that Pesto's theorem 3.5 (iii) as printed lets through."""
    k22 = fast.Graph(4, np.array([0, 0, 1, 1]), np.array([2, 3, 2, 3]))
    with pytest.raises(InputError, match="merging these groups makes a cycle"):
        fast.contract(k22, np.array([0, 1, 1, 0]))
    assert fast.contract(k22, np.array([0, 0, 1, 2])).n_ops == 3
    assert fast.contract(k22, np.array([0, 1, 0, 2])).n_ops == 3


# -- memory ----------------------------------------------------------------------------------


@given(graph=plain_graphs(max_ops=8), data=st.data())
def test_peak_bytes_by_brute_force_and_as_simulated(graph, data):
    work = graph.fast()
    order = data.draw(st.sampled_from([fast.m_topo(work), fast.dfs_topo(work)]))
    peak, held = fast.peak_bytes(work, order)
    assert peak == reference.peak_bytes(graph, order.tolist())
    assert held.dtype == U64
    assert int(held.sum()) <= peak <= int(held.sum()) + max(graph.workspace)
    rank = np.argsort(order).astype(I32)
    alone = fast.simulate(
        fast.Problem(work, ms_mesh(1)._core, graph.seconds),
        np.zeros(graph.n, dtype=I32),
        rank,
        policy="fixed",
    )
    assert alone.peak.tolist() == [peak]


# -- bounds and times ------------------------------------------------------------------------


@given(data=st.data())
def test_no_placement_beats_the_bounds(data):
    """Every placement of a small graph simulated."""
    cluster = data.draw(clusters(max_devices=3))
    graph = data.draw(plain_graphs(max_ops=5))
    factor = data.draw(st.lists(st.integers(1, 4), min_size=graph.n, max_size=graph.n))
    kinds = len(cluster.types)
    time = np.array(
        [
            [t * (f if k else 1) for k in range(kinds)]
            for t, f in zip(graph.time, factor, strict=True)
        ],
        dtype=F64,
    ).reshape(graph.n, kinds)
    work = graph.fast()
    found = fast.bounds(fast.Problem(work, cluster._core, time * MS))
    parts = ("critical_path", "work", "forced_transfers", "heads_and_tails")
    assert found["best"] == max(found[part] for part in parts)
    best = min(
        fast.simulate(fast.Problem(work, cluster._core, time * MS), np.array(devices)).makespan
        for devices in itertools.product(range(cluster.n_devices), repeat=graph.n)
    )
    assert found["best"] <= best * (1 + 1e-9)


def test_mean_time_is_over_the_devices_an_op_may_use():
    cluster = fast.Cluster(
        [("a", "gpu", 1), ("b", "gpu", 1), ("c", "cpu", 1)],
        [(x, y, 1.0, 0.0, []) for x, y in itertools.permutations("abc", 2)],
    )
    graph = fast.Graph(2, np.array([0]), np.array([1]), allowed=np.array([3, 2], dtype=U64))
    mean = fast.Problem(graph, cluster, np.array([[1.0, 4.0], [1.0, 4.0]])).mean_time
    assert mean.tolist() == [2.0, 4.0]


# -- placing ---------------------------------------------------------------------------------

PLACERS = {
    "fill_in_order": lambda p: fast.fill_in_order(p, fast.m_topo(p.graph)),
    "round_robin": lambda p: fast.round_robin(p, fast.m_topo(p.graph)),
    "follow_bytes": lambda p: fast.follow_bytes(p, fast.m_topo(p.graph)),
    "schedule": lambda p: fast.schedule(p, fast.m_topo(p.graph))[0],
    "schedule_earliest": lambda p: fast.schedule_earliest(p, fast.m_topo(p.graph))[0],
    "adjusting_placement": lambda p: fast.adjusting_placement(p, fast.m_topo(p.graph))[0],
}


@pytest.mark.parametrize("name", PLACERS)
@given(data=st.data())
@settings(max_examples=20)
def test_placers_obey_memory_and_colocation(name, data):
    cluster = data.draw(clusters())
    graph = data.draw(plain_graphs())
    graph.colocation = data.draw(
        st.lists(st.sampled_from([-1, -1, 0, 1]), min_size=graph.n, max_size=graph.n)
    )
    size = np.array(
        data.draw(st.lists(st.integers(0, 9), min_size=graph.n, max_size=graph.n)), dtype=U64
    )
    capacity = np.array(
        data.draw(
            st.lists(st.integers(0, 30), min_size=cluster.n_devices, max_size=cluster.n_devices)
        ),
        dtype=U64,
    )
    problem = fast.Problem(graph.fast(), cluster._core, np.ones((graph.n, len(cluster.types))))
    within = problem.within(op_bytes=size, capacity=capacity)

    def place(best_effort=False):
        return PLACERS[name](within.within(best_effort=best_effort))

    devices, error = tried(place)
    if error is not None:
        assert len(error.shortfall) == 1
        assert set(error.shortfall) <= {d.name for d in cluster.devices}
        assert all(b > 0 for b in error.shortfall.values())
        devices = place(best_effort=True)
    else:
        assert (np.bincount(devices, weights=size, minlength=len(capacity)) <= capacity).all()
        assert devices.tolist() == place(best_effort=True).tolist()
    assert devices.dtype == I32
    assert ((devices >= 0) & (devices < cluster.n_devices)).all()
    for code in (0, 1):
        members = [u for u in range(graph.n) if graph.colocation[u] == code]
        assert len(set(devices[members].tolist())) <= 1


@given(data=st.data())
def test_adjusting_placement_expects_what_runs_without_contention(data):
    """Its starts are a schedule: simulated in their order without contention, nothing is later."""
    cluster = data.draw(clusters())
    graph = data.draw(plain_graphs(zero_times=False))
    work = graph.fast()
    time = np.repeat(graph.seconds[:, None], len(cluster.types), axis=1)
    order = fast.m_topo(work)
    devices, start, finish = fast.adjusting_placement(
        fast.Problem(work, cluster._core, time).without_contention(), order
    )
    assert in_ms(finish - start) == graph.time
    for d in range(cluster.n_devices):
        mine = np.flatnonzero(devices == d)
        mine = mine[np.argsort(start[mine])]
        assert (start[mine][1:] >= finish[mine][:-1] - 1e-9).all()
    rank = np.argsort(np.argsort(start, kind="stable"), kind="stable")
    seen = fast.simulate(
        fast.Problem(work, cluster._core, time).without_contention(), devices, rank, policy="fixed"
    )
    assert (seen.start <= start + 1e-9).all()


def test_round_robin_deals_out():
    graph = fast.Graph(5, np.array([], dtype=I64), np.array([], dtype=I64))
    assert fast.round_robin(
        fast.Problem(graph, TWO, np.ones(graph.n_ops)), np.arange(5)
    ).tolist() == [0, 1, 0, 1, 0]


def test_fill_in_order_fills_one_device_after_another():
    graph = fast.Graph(5, np.array([], dtype=I64), np.array([], dtype=I64))
    devices = fast.fill_in_order(
        fast.Problem(graph, TWO, np.ones(graph.n_ops)).within(
            op_bytes=np.array([4, 4, 4, 2, 2]), capacity=np.array([10, 10])
        ),
        np.arange(5),
    )
    # 4 + 4 on the first; the third closes it, though the fourth would still fit.
    assert devices.tolist() == [0, 0, 1, 1, 1]


def test_follow_bytes_goes_where_the_inputs_are():
    # 0 and 1 fill a device each; 2 reads more of 1.
    graph = fast.Graph(
        3,
        np.array([0, 1]),
        np.array([2, 2]),
        tensor_bytes=np.array([3, 5]),
    )
    devices = fast.follow_bytes(
        fast.Problem(graph, TWO, np.ones(graph.n_ops)).within(
            op_bytes=np.array([5, 5, 1]), capacity=np.array([6, 6])
        ),
        np.arange(3),
    )
    assert devices.tolist() == [0, 1, 1]


def test_an_op_that_fits_nowhere_says_how_much_is_missing():
    with pytest.raises(
        InfeasibleError, match=r"op 0 needs 9 bytes.* 5 bytes, on gpu1: 4 bytes"
    ) as e:
        fast.fill_in_order(
            P.within(op_bytes=np.array([9, 0, 0, 0]), capacity=np.array([3, 5])),
            ORDER,
        )
    assert e.value.shortfall == {"gpu1": 4}


# -- what arrays are taken -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [I32, I64])
def test_ids_of_either_width_and_any_stride(dtype):
    src, dst = (np.array(c, dtype=dtype) for c in ([0, 0, 1, 2], [1, 2, 3, 3]))
    spread = np.zeros((4, 3), dtype=dtype)
    spread[:, 1] = src
    backwards = dst[::-1].copy()[::-1]
    assert not spread[:, 1].flags.c_contiguous
    for s, d in ((src, dst), (spread[:, 1], backwards)):
        graph = fast.Graph(4, s, d, np.array([0, 0, 1, 2], dtype=dtype))
        assert graph.n_edges == 4
        order = fast.m_topo(graph).astype(dtype)
        assert len(fast.breakpoints(fast.Weights(graph, ONES), order, max_ops=2)) >= 1
        devices = np.array([0, 1, 0, 1], dtype=dtype)
        assert fast.simulate(fast.Problem(graph, TWO, ONES), devices, order).makespan == 3.0
        assert fast.contract(graph, np.array([0, 0, 0, 1], dtype=dtype)).n_ops == 2


def test_floats_and_sizes_of_any_stride_and_read_only_arrays():
    time = np.ones((4, 2), order="F")[:, :1]
    frozen = np.ones(4)
    frozen.flags.writeable = False
    sizes = np.arange(8, dtype=U64)[::2]
    for t in (time, frozen, np.ones(8)[::2]):
        assert fast.bounds(fast.Problem(diamond(), TWO, t))["critical_path"] == 3.0
    graph = diamond(resident=sizes, workspace=sizes.astype(I64))
    assert graph.resident.tolist() == graph.workspace.tolist() == [0, 2, 4, 6]
    levels = fast.levels(fast.Weights(graph, np.ones(8)[::2], np.zeros(6)[::2]))
    assert levels[0].tolist() == [0.0, 1.0, 1.0, 2.0]


def test_results_have_the_dtypes_the_design_says():
    graph = diamond(tensor_bytes=np.array([4, 4, 4]))
    zeros = np.zeros(3)
    problem, weights = fast.Problem(graph, TWO, ONES), fast.Weights(graph, ONES, zeros)
    int_results = [
        fast.m_topo(graph),
        fast.dfs_topo(graph),
        fast.cpd_topo(weights),
        fast.breakpoints(weights, ORDER),
        fast.segments(ORDER, np.array([2])),
        *[place(problem) for place in PLACERS.values()],
        fast.priority_order(graph, ONES),
        fast.critical_path(weights),
        fast.placed_paths(problem, ORDER * 0)[1],
        fast.linear_clusters(weights),
        fast.dominant_sequences(weights),
        graph.lead,
        problem.lead,
        graph.colocation,
    ]
    assert {a.dtype for a in int_results} == {np.dtype(I32)}
    seen = fast.simulate(problem, np.array([0, 0, 1, 1]), record_memory=True)
    columns = seen.transfers()
    floats = [
        *fast.levels(weights),
        problem.mean_time,
        problem.mean(ONES),
        *fast.schedule(problem, ORDER)[1:],
        *fast.schedule_earliest(problem, ORDER)[1:],
        *fast.schedule_placed(problem, ORDER, ORDER * 0),
        fast.optimistic_costs(problem, zeros),
        fast.placed_paths(problem, ORDER * 0)[0],
        seen.start,
        seen.finish,
        seen.device_busy,
        seen.channel_busy,
        seen.memory()[0],
        *(columns[c] for c in ("queued", "start", "finish")),
    ]
    assert {a.dtype for a in floats} == {np.dtype(F64)}
    bytes_ = [
        graph.tensor_bytes,
        graph.static_bytes,
        graph.resident,
        graph.allowed,
        problem.capacity,
        problem.within(op_bytes=ORDER).op_bytes,
        seen.peak,
        seen.static_bytes,
        seen.memory()[2],
        columns["bytes"],
        fast.peak_bytes(graph, ORDER)[1],
    ]
    assert {a.dtype for a in bytes_} == {np.dtype(U64)}
    assert {columns[c].dtype for c in ("tensor", "op", "src", "dst")} == {np.dtype(I32)}
    assert {len(c) for c in columns.values()} == {seen.n_transfers}


# -- what is refused -------------------------------------------------------------------------

Z = np.zeros(3)
W = fast.Weights(G, np.zeros(4), Z)
BAD = {
    "src is a list": (lambda: fast.Graph(2, [0], np.array([1])), "src: got list.*int32 or int64"),
    "src is float": (
        lambda: fast.Graph(2, np.array([0.0]), np.array([1])),
        "src: got float64.*int",
    ),
    "dst is 2-d": (
        lambda: fast.Graph(2, np.array([0]), np.array([[1]])),
        r"dst: got int64 array of shape \[1, 1\].*one-dimensional",
    ),
    "src is uint8": (
        lambda: fast.Graph(2, np.array([0], dtype=np.uint8), np.array([1])),
        "src: got uint8",
    ),
    "dst is short": (
        lambda: fast.Graph(2, np.array([0]), np.array([], dtype=I64)),
        "dst has 0 values where 1",
    ),
    "tensor is short": (
        lambda: fast.Graph(2, np.array([0]), np.array([1]), np.array([], dtype=I64)),
        "tensor has 0 values where 1",
    ),
    "no ops": (
        lambda: fast.Graph(0, np.array([], dtype=I64), np.array([], dtype=I64)),
        "the graph has no ops",
    ),
    "a dangling edge": (lambda: fast.Graph(2, np.array([0]), np.array([2])), "edge 0 has dst 2"),
    "a self loop": (lambda: fast.Graph(2, np.array([1]), np.array([1])), "edge 0 joins op 1"),
    "a cycle": (
        lambda: fast.Graph(3, np.array([0, 1, 2]), np.array([1, 2, 0])),
        "cycle: op 0 -> op 1 -> op 2|cycle: op . -> op .",
    ),
    "two producers": (
        lambda: fast.Graph(3, np.array([0, 1]), np.array([2, 2]), np.array([0, 0])),
        "tensor 0 has two producers, op 0 and op 1",
    ),
    "a tensor id out of range": (
        lambda: fast.Graph(2, np.array([0]), np.array([1]), np.array([9])),
        "edge 0 carries tensor 9",
    ),
    "sizes are float": (lambda: diamond(resident=np.ones(4)), "resident: got float64.*uint64"),
    "sizes are negative": (
        lambda: diamond(workspace=np.array([0, -1, 0, 0])),
        r"workspace\[1\] is -1",
    ),
    "sizes are short": (lambda: diamond(resident=np.array([1])), "resident has 1 value where 4"),
    "tensor_bytes is short": (
        lambda: diamond(tensor_bytes=np.array([1])),
        "tensor_bytes has 1 value where 3",
    ),
    "colocation is short": (
        lambda: diamond(colocation=np.array([1])),
        "colocation has 1 value where 4",
    ),
    "colocation is float": (lambda: diamond(colocation=ONES), "colocation: got float64"),
    "no common type": (
        lambda: diamond(
            colocation=np.array([0, 0, -1, -1]), allowed=np.array([1, 2, 3, 3], dtype=U64)
        ),
        "op 0 and op 1 must share a device",
    ),
    "op_time is int": (
        lambda: fast.levels(fast.Weights(G, ORDER, Z)),
        r"op_time: got int64.*float64.*\(4,\)",
    ),
    "op_time is float32": (
        lambda: fast.levels(fast.Weights(G, ONES.astype("f4"), Z)),
        "op_time: got float32",
    ),
    "op_time is long": (
        lambda: fast.levels(fast.Weights(G, np.ones(5), Z)),
        r"op_time: got .*\[5\], wants.*\(4,\)",
    ),
    "op_time is NaN": (
        lambda: fast.levels(fast.Weights(G, np.array([0, np.nan, 0, 0]), Z)),
        r"op_time\[1\] is NaN",
    ),
    "op_time is negative": (
        lambda: fast.cpd_topo(fast.Weights(G, -ONES, Z)),
        r"op_time\[0\] is -1",
    ),
    "tensor_time is short": (
        lambda: fast.cpd_topo(fast.Weights(G, ONES, np.zeros(2))),
        r"tensor_time: got .*\[2\], wants .*\(3,\) or longer",
    ),
    "tensor_time is infinite": (
        lambda: fast.levels(fast.Weights(G, ONES, np.array([0, 0, np.inf]))),
        r"tensor_time\[2\] is inf",
    ),
    "control_time is NaN": (
        lambda: fast.levels(fast.Weights(G, ONES, Z, control_time=float("nan"))),
        "control_time is NaN",
    ),
    "times without end": (
        lambda: fast.levels(fast.Weights(G, ONES * 1e300, Z)),
        "too long to be counted",
    ),
    "order is no permutation": (
        lambda: fast.breakpoints(W, np.array([0, 0, 1, 2])),
        "order: must list every op once",
    ),
    "order is not topological": (
        lambda: fast.fill_in_order(P, np.array([3, 2, 1, 0])),
        "order: must list.*producers before consumers",
    ),
    "order is short": (lambda: fast.peak_bytes(G, np.array([0])), "order: got 1 value, wants 4"),
    "order is out of range": (
        lambda: fast.round_robin(P, np.array([0, 1, 2, 4])),
        r"order\[3\] is 4: it must be 0 to 3",
    ),
    "order is float": (
        lambda: fast.follow_bytes(P, ONES),
        "order: got float64",
    ),
    "op_bytes is short": (
        lambda: fast.fill_in_order(P.within(op_bytes=np.array([1])), ORDER),
        "op_bytes: got 1 value, wants 4",
    ),
    "op_bytes is float": (
        lambda: fast.breakpoints(fast.Weights(G, np.zeros(G.n_ops), Z, op_bytes=ONES), ORDER),
        "op_bytes: got float64",
    ),
    "capacity is short": (
        lambda: fast.round_robin(P.within(capacity=np.array([1])), ORDER),
        "capacity: got 1 value, wants 2",
    ),
    "capacity is negative": (
        lambda: fast.follow_bytes(P.within(capacity=np.array([1, -1])), ORDER),
        r"capacity\[1\] is -1",
    ),
    "max_ops is 0": (
        lambda: fast.breakpoints(W, ORDER, max_ops=0),
        "max_ops is 0",
    ),
    "breakpoints' op_time": (
        lambda: fast.Weights(G, np.ones(3)),
        "op_time: got",
    ),
    "cuts descend": (lambda: fast.segments(ORDER, np.array([2, 1])), "cuts: must ascend"),
    "cuts out of range": (lambda: fast.segments(ORDER, np.array([4])), "from 1 to 3"),
    "cuts at 0": (lambda: fast.segments(ORDER, np.array([0])), "from 1 to 3"),
    "group is short": (lambda: fast.contract(G, np.array([0])), "group: got 1 value, wants 4"),
    "group is negative": (
        lambda: fast.contract(G, np.array([0, 0, -1, 1])),
        r"group\[2\] is -1",
    ),
    "group has gaps": (
        lambda: fast.contract(G, np.array([0, 0, 2, 2])),
        "no op is in group 1.*without gaps",
    ),
    "group makes a cycle": (
        lambda: fast.contract(G, np.array([0, 1, 2, 0])),
        "makes a cycle",
    ),
    "time has another shape": (
        lambda: fast.bounds(fast.Problem(G, TWO, np.ones((4, 2)))),
        r"time: got .*\[4, 2\], wants .*\(4, 1\)",
    ),
    "time is int": (
        lambda: fast.simulate(fast.Problem(G, TWO, ORDER), ORDER * 0),
        "time: got int64",
    ),
    "time is NaN": (
        lambda: fast.Problem(G, TWO, np.array([0, 0, np.nan, 0])).mean_time,
        "time of op 2 is NaN",
    ),
    "time is a list": (lambda: fast.bounds(fast.Problem(G, TWO, [1.0] * 4)), "time: got list"),
    "adjusting_placement's time": (
        lambda: fast.adjusting_placement(fast.Problem(G, TWO, np.ones(3)), ORDER),
        "time: got",
    ),
    "schedule's order": (
        lambda: fast.schedule(P, ORDER[::-1]),
        "order: must list.*producers before consumers",
    ),
    "pinned is short": (
        lambda: fast.schedule(P, ORDER, pinned=np.array([0])),
        "pinned: got 1 value, wants 4",
    ),
    "pinned is out of range": (
        lambda: fast.schedule(P, ORDER, pinned=np.array([0, -1, 2, 0])),
        r"pinned\[2\] is 2: it must be -1 to 1",
    ),
    "pinned is below -1": (
        lambda: fast.schedule(P, ORDER, pinned=np.array([-2, 0, 0, 0])),
        r"pinned\[0\] is -2",
    ),
    "bias is infinite": (
        lambda: fast.schedule(P, ORDER, bias=np.full((4, 1), np.inf)),
        r"bias\[0, 0\] is inf",
    ),
    "bias has another shape": (
        lambda: fast.schedule(P, ORDER, bias=np.ones((4, 2))),
        r"bias: got .*\[4, 2\], wants .*\(4, 1\)",
    ),
    "delay_weight is negative": (
        lambda: fast.schedule(P, ORDER, delay_weight=-1),
        "delay_weight is -1: wants an integer, at least 0",
    ),
    "lead makes a chain": (
        lambda: fast.schedule(P.led_by(np.array([0, 0, 1, 3])), ORDER),
        r"lead\[2\] is 1: that op follows another one",
    ),
    "lead splits a set": (
        lambda: fast.schedule(
            fast.Problem(diamond(colocation=np.array([0, 0, -1, -1])), TWO, ONES).led_by(ORDER),
            ORDER,
        ),
        r"lead\[1\] is 1: other ops of its colocation set follow another one",
    ),
    "lead is of another type": (
        lambda: fast.schedule(
            fast.Problem(diamond(allowed=np.array([1, 3, 3, 3], dtype=U64)), TWO, ONES).led_by(
                ORDER * 0
            ),
            ORDER,
        ),
        r"lead\[1\] is 0: that op may run on other device types",
    ),
    "ties twice": (
        lambda: fast.schedule_earliest(P, np.array([0, 0, 1, 2])),
        "ties: must list every op once",
    ),
    "favourite out of range": (
        lambda: fast.schedule_earliest(P, ORDER, favourite=ORDER + 1),
        r"favourite\[3\] is 4: it must be -1 to 3",
    ),
    "placed on no device": (
        lambda: fast.schedule_placed(P, ORDER, ORDER),
        r"devices\[2\] is 2",
    ),
    "placed_paths' devices": (
        lambda: fast.placed_paths(P, np.array([0])),
        "devices: got 1 value, wants 4",
    ),
    "priority is NaN": (
        lambda: fast.priority_order(G, np.array([0, np.nan, 0, 0])),
        r"priority\[1\] is NaN",
    ),
    "optimistic_costs' time": (
        lambda: fast.optimistic_costs(fast.Problem(G, TWO, np.full((4, 1), np.nan)), Z),
        "time of op 0 is NaN",
    ),
    "linear_clusters' tensor_time": (
        lambda: fast.linear_clusters(fast.Weights(G, ONES, np.zeros(2))),
        r"tensor_time: got .*\[2\]",
    ),
    "dominant_sequences' op_time": (
        lambda: fast.dominant_sequences(fast.Weights(G, -ONES, Z)),
        r"op_time\[0\] is -1",
    ),
    "devices is short": (
        lambda: fast.simulate(P, np.array([0])),
        "devices: got 1 value, wants 4",
    ),
    "devices out of range": (
        lambda: fast.simulate(P, np.array([0, 0, 2, 0])),
        r"devices\[2\] is 2: it must be 0 to 1",
    ),
    "devices is float": (
        lambda: fast.simulate(P, ONES),
        "devices: got float64",
    ),
    "priority is short": (
        lambda: fast.simulate(P, ORDER * 0, np.array([1])),
        "priority: got 1 value, wants 4",
    ),
    "priority is wide": (
        lambda: fast.simulate(P, ORDER * 0, ORDER + 2**40),
        r"priority\[0\] is .*32 bits",
    ),
    "policy": (
        lambda: fast.simulate(P, ORDER * 0, policy="lucky"),
        'policy: got "lucky", wants "priority"',
    ),
    "link_order": (
        lambda: fast.simulate(P, ORDER * 0, link_order="lucky"),
        'link_order: got "lucky", wants "fifo"',
    ),
    "limit is negative": (
        lambda: fast.simulate_below(P, -1.0, ORDER * 0),
        "limit is -1: it must be a number >= 0",
    ),
    "limit of a list schedule is NaN": (
        lambda: fast.schedule_below(P, float("nan"), ORDER),
        "limit is NaN: it must be a number >= 0",
    ),
    "limit is NaN": (
        lambda: fast.simulate_below(P, float("nan"), ORDER * 0),
        "limit is NaN: it must be a number >= 0",
    ),
    "masks leave nothing": (
        lambda: P.restricted(np.array([1, 0, 1, 1], dtype=U64)),
        r"masks\[1\] leaves the op no device type",
    ),
    "values of another shape": (lambda: P.mean(np.ones((4, 2))), r"values: got .*\[4, 2\]"),
    "values are infinite": (
        lambda: P.mean(np.full((4, 1), np.inf)),
        r"values\[0, 0\] is inf",
    ),
    "nothing stops a search": (lambda: fast.Stop(patience=9), "the search would never stop"),
    "windows count no moves": (
        lambda: fast.search_windows(P, (ORDER * 0, ORDER), fast.Stop(moves=9)),
        "stop has moves: a search in windows counts visits or seconds",
    ),
}


def test_columns_of_a_graph_go_by_their_names():
    with pytest.raises(
        TypeError, match=r'Graph\(\) got an unexpected keyword argument "residents"'
    ):
        diamond(residents=ORDER)
    with pytest.raises(TypeError, match=r'OpGraph\(\) wants the keyword argument "view"'):
        fast.OpGraph(["a"], ORDER[:0], ORDER[:0], None, ORDER[:0])
    assert diamond(resident=None).resident.tolist() == [0] * 4


def test_a_derived_problem_differs_in_one_rule():
    charged = P.within(op_bytes=ORDER, capacity=np.array([7, 8]))
    led = charged.led_by(ORDER * 0)
    assert P.op_bytes is None
    assert led.op_bytes.tolist() == ORDER.tolist()
    assert (led.capacity.tolist(), led.lead.tolist()) == ([7, 8], [0] * 4)
    assert (charged.lead.tolist(), P.lead.tolist()) == (ORDER.tolist(), ORDER.tolist())
    assert led.mean_time.tolist() == P.mean(ONES).tolist() == ONES.tolist()
    assert set(fast.schedule(led, ORDER)[0].tolist()) == {0}


def test_unlimited_channels_send_two_tensors_at_once():
    both = [("a", "b", 1.0, 0.0, []), ("b", "a", 1.0, 0.0, [])]
    cluster = fast.Cluster([("a", "gpu", 99), ("b", "gpu", 99)], both)
    graph = fast.Graph(
        4, np.array([0, 1]), np.array([2, 3]), tensor_bytes=np.array([10, 10], dtype=U64)
    )
    problem = fast.Problem(graph, cluster, np.array([1.0, 0.0, 0.0, 0.0]))
    devices = np.array([0, 0, 1, 1])
    assert fast.simulate(problem, devices).makespan == 21.0
    assert fast.simulate(problem.without_contention(), devices).makespan == 11.0


def test_a_simulation_goes_on_only_below_a_limit():
    devices = ORDER * 0
    whole = fast.simulate(P, devices)
    assert fast.simulate_below(P, whole.makespan, devices) is None
    longer = np.nextafter(whole.makespan, np.inf) + 1e-9
    for limit in (longer, float("inf")):
        seen = fast.simulate_below(P, limit, devices)
        assert seen is not None
        assert seen.makespan == whole.makespan
        assert seen.start.tolist() == whole.start.tolist()


def test_a_list_schedule_goes_on_only_below_a_limit():
    whole = fast.schedule(P, ORDER)
    makespan = whole[2].max()
    assert fast.schedule_below(P, makespan, ORDER) is None
    for limit in (makespan + 1e-9, float("inf")):
        seen = fast.schedule_below(P, limit, ORDER)
        assert seen is not None
        assert [column.tolist() for column in seen] == [column.tolist() for column in whole]


def test_a_list_schedule_tells_how_far_it_is_and_what_is_raised_ends_it():
    n = 2000
    ops = np.arange(n)
    graph = fast.Graph(n, ops[:-1], ops[1:])
    problem = fast.Problem(graph, fast.Cluster([("a", "gpu", 99)], []), np.ones(n))
    order, told = fast.m_topo(graph), []
    fast.schedule(problem, order, progress=lambda done, pushed: told.append((done, pushed)))
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert len(told) > 1
    assert told[-1] == (n, 0)
    told.clear()

    def interrupted(done: int, pushed: int) -> None:
        told.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fast.schedule_below(problem, float("inf"), order, progress=interrupted)
    assert len(told) == 1
    assert told[0] < n


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_value_errors_that_say_what_is_wanted(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: fast.segments(np.array([0, 0, 0]), np.array([1])), id="segments"),
        pytest.param(
            lambda: fast.breakpoints(W, ORDER, max_time=float("nan")),
            id="max_time is NaN",
        ),
        pytest.param(
            lambda: fast.breakpoints(W, ORDER, max_time=-1.0),
            id="max_time < 0",
        ),
        pytest.param(
            lambda: fast.breakpoints(W, ORDER, max_bytes=-1),
            id="max_bytes < 0",
        ),
        pytest.param(
            lambda: fast.breakpoints(W, ORDER, max_ops=-1),
            id="max_ops < 0",
        ),
        pytest.param(lambda: fast.Graph(-1, ORDER, ORDER), id="n_ops < 0"),
        pytest.param(lambda: fast.simulate(P, ORDER * 0, seed=-1), id="seed < 0"),
    ],
)
def test_bad_scalars_are_value_errors(call):
    with pytest.raises(ValueError, match=r"order|max_time|max_bytes|max_ops|n_ops|seed"):
        call()


def test_a_cluster_checks_its_indices():
    with pytest.raises(IndexError, match="device 2 of 2"):
        TWO.route(0, 2)
    with pytest.raises(IndexError, match="device 5 of 2"):
        TWO.transfer_time(5, 0, 1)


# -- threads and processes -------------------------------------------------------------------


def everything(graph, cluster, time, tensor_time) -> list[np.ndarray]:
    """Every function's result on one graph."""
    problem = fast.Problem(graph, cluster, time)
    weights = fast.Weights(graph, time[:, 0].copy(), tensor_time)
    order = fast.cpd_topo(weights)
    group = fast.segments(
        order,
        fast.breakpoints(weights, order, max_ops=20),
    )
    coarse = fast.contract(graph, group)
    devices = fast.round_robin(problem, order)
    seen = fast.simulate(problem, devices, policy="random", seed=3)
    return [
        *fast.levels(weights),
        fast.m_topo(graph),
        fast.dfs_topo(graph),
        order,
        group,
        *coarse.flows(),
        devices,
        fast.follow_bytes(problem, order),
        fast.fill_in_order(problem, order),
        *fast.adjusting_placement(problem, order),
        *fast.schedule(problem, order),
        *fast.schedule_earliest(problem, order),
        *fast.schedule_placed(problem, order, devices),
        *fast.placed_paths(problem, devices),
        fast.optimistic_costs(problem, tensor_time),
        fast.priority_order(graph, time[:, 0].copy()),
        fast.critical_path(weights),
        fast.linear_clusters(weights),
        fast.dominant_sequences(weights),
        fast.peak_bytes(graph, order)[1],
        problem.mean_time,
        np.array(list(fast.bounds(problem).values())[:4]),
        seen.start,
        seen.finish,
        seen.peak,
    ]


def test_four_threads_get_what_one_gets(alexnet):
    reduced = alexnet.reduced
    time = np.linspace(1e-6, 1e-3, reduced.graph.n_ops)[:, None]
    tensor_time = np.full(reduced.graph.n_tensor_ids, 1e-5)
    cluster = ms_mesh(4, memory="64GiB")._core

    def run(_):
        return everything(reduced.graph, cluster, time, tensor_time)

    alone = run(0)
    with ThreadPoolExecutor(4) as pool:
        for other in pool.map(run, range(12)):
            for a, b in zip(alone, other, strict=True):
                assert a.tolist() == b.tolist()


def test_other_threads_run_while_the_simulator_does():
    """The GIL is released: a thread counts on while one long call is under way."""
    n = 150_000
    graph = fast.Graph(n, np.arange(n - 1), np.arange(1, n))
    time = np.full(n, 1e-6)
    devices = np.arange(n, dtype=I32) % 2
    count = 0
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(fast.simulate, fast.Problem(graph, TWO, time), devices)
        while not job.done():
            count += 1
        assert job.result().n_transfers == n - 1
    assert count > 50


DIGEST = """
import hashlib, numpy as np, loadmaster as lm
g = lm.read("example:rnnlm")
digest = hashlib.sha256()
for k in (2, 4):
    c = lm.Cluster.mesh(k, memory="32GiB", bandwidth=12e9, latency=1e-5, type=lm.Cluster.preset(
        "4xV100-PCIe").types[0])
    for method in ("celeritas", "m-topo", "round-robin"):
        p = lm.place(g, c, method)
        for a in (p.devices, p.priority, p.schedule.start, p.memory.peak):
            digest.update(np.ascontiguousarray(a).tobytes())
print(digest.hexdigest())
"""


def test_results_do_not_depend_on_process_hashing_or_thread_count():
    got = set()
    for threads, seed in (("1", "0"), ("4", "1"), ("", "random")):
        env = os.environ | {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST], capture_output=True, text=True, env=env, check=True
        )
        got.add(done.stdout)
    assert len(got) == 1


FAULTS = """
import resource, numpy as np
from loadmaster import fast
n = 50_000
dst = np.repeat(np.arange(1, n, dtype=np.int32), 3)
src = dst * np.tile(np.array([0, 1, 2], dtype=np.int32), n - 1) // 3
def faults(runs):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(runs):
        fast.Graph(n, src, dst)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(3)
print(faults(10))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep as they do")
def test_a_freed_graph_leaves_its_pages_to_the_next():
    limits = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
    env = {name: value for name, value in os.environ.items() if not name.startswith(limits)}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, env=env, check=True
    )
    # Ten graphs of over 2 MiB each: above 5,000 where their pages are mapped anew.
    assert int(done.stdout) < 500
