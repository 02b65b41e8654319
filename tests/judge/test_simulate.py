"""The judge: against a plain simulator, by the laws every schedule obeys, and its refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import reference
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import (
    MS,
    clusters,
    graph_of,
    in_ms,
    ms_mesh,
    op_graphs,
    placements,
    plain_graphs,
    v100_mesh,
)

import loadmaster as lm
from loadmaster import fast
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.model.graph import PLACEHOLDERS

# -- against the reference -------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=200)
def test_every_schedule_is_the_reference_schedule(data):
    """Starts, finishes, transfers and peaks: every policy, order of links, kind of cluster."""
    cluster = data.draw(clusters(runtime=True))
    graph = data.draw(plain_graphs())
    k, n = cluster.n_devices, graph.n
    device = data.draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))
    dispatch = None
    if cluster.dispatch is not None:
        dispatch = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
        dispatch[0] = 1
    priority = data.draw(st.lists(st.integers(-3, 3), min_size=n, max_size=n))
    policy = data.draw(st.sampled_from(["priority", "fifo", "fixed"]))
    contention = data.draw(st.booleans())
    link_order = data.draw(st.sampled_from(["fifo", "priority"]))
    slower = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    time = [
        [t + extra * kind for kind in range(len(cluster.types))]
        for t, extra in zip(graph.time, slower, strict=True)
    ]

    launches = None if dispatch is None else np.array(dispatch) * MS
    seconds = np.array(time, dtype=np.float64) * MS
    problem = fast.Problem(graph.fast(), cluster._core, seconds, launches)

    def run():
        return fast.simulate(
            problem if contention else problem.without_contention(),
            np.array(device),
            np.array(priority),
            policy=policy,
            link_order=link_order,
            record_memory=True,
        )

    try:
        want = reference.simulate(
            graph,
            cluster,
            time,
            device,
            priority,
            policy=policy,
            contention=contention,
            link_order=link_order,
            dispatch=dispatch,
            one_host=cluster.dispatch is None or cluster.dispatch.one_host,
        )
    except reference.StuckError:
        with pytest.raises(InputError, match="can never run"):
            run()
        return
    got = run()
    assert in_ms(got.start) == [want.start[u] for u in range(n)]
    assert in_ms(got.finish) == [want.finish[u] for u in range(n)]
    assert in_ms(got.makespan) == max(want.finish.values())
    columns = got.transfers()
    sent = {
        ((1, op) if t < 0 else (0, t), dst): tuple(in_ms(times))
        for t, op, dst, *times in zip(
            *(columns[c].tolist() for c in ("tensor", "op", "dst", "queued", "start", "finish")),
            strict=True,
        )
    }
    assert sent == want.sent
    keys = [
        ((1, op) if t < 0 else (0, t), dst)
        for t, op, dst in zip(*(columns[c].tolist() for c in ("tensor", "op", "dst")), strict=True)
    ]
    assert dict(zip(keys, in_ms(columns["copied"]), strict=True)) == want.copied
    if dispatch is None:
        assert got.launched is None
    else:
        assert in_ms(got.launched) == [want.launched[u] for u in range(n)]
    assert got.peak.tolist() == want.peak
    moved = sum(graph.tensor_bytes[t[1]] for t, _ in want.sent if t[0] == 0)
    assert got.bytes_moved == moved
    _, devices, used = got.memory()
    last = {int(d): int(b) for d, b in zip(devices, used, strict=True)}
    assert [last[d] for d in range(k)] == want.used


# -- laws, on users' graphs ------------------------------------------------------------------


def shown_by(graph: lm.OpGraph) -> list[int]:
    """The op whose data each op shows: itself, unless it is a view (of one input here)."""
    source = list(range(graph.n_ops))
    for s, d, t in zip(graph.src, graph.dst, graph.tensor, strict=True):
        if graph.view[d] and t >= 0:
            source[d] = source[s]
    return source


@given(data=st.data())
@settings(max_examples=60)
def test_laws_of_every_schedule(data):
    graph = data.draw(op_graphs())
    cluster = data.draw(clusters())
    devices = data.draw(placements(graph, cluster))
    policy = data.draw(st.sampled_from(["priority", "fifo", "random"]))
    contention = data.draw(st.booleans())
    order = data.draw(st.permutations(range(graph.n_ops)))
    sim = lm.simulate(
        graph,
        cluster,
        devices,
        order,
        policy,
        contention,
        seed=data.draw(st.integers(0, 2**64 - 1)),
    )
    check_laws(graph, cluster, sim, contention)
    real = np.array([k != "parameter" for k in graph.kinds]) & ~graph.view
    assert (sim.devices[real] == devices[real]).all()
    assert (sim.priority[real] == np.array(order)[real]).all()
    seconds = graph.time["*"]
    assert in_ms(sim.finish[real] - sim.start[real]) == in_ms(seconds[real])


def check_laws(graph: lm.OpGraph, cluster: lm.Cluster, sim, contention: bool = True) -> None:
    """Precedence, one op per device, one transfer per channel, memory, bound and blame."""
    tick = 1e-9
    placeholder = np.array([k in PLACEHOLDERS for k in graph.kinds])
    tensor = graph.src if graph.tensor is None else graph.tensor
    # A view of a placeholder is there from the start; a wait of a view is its readers' wait.
    weight_view = placeholder.copy()
    for u in fast.m_topo(fast.Graph(graph.n_ops, graph.src, graph.dst)):
        readers = graph.dst[(graph.src == u) & (tensor >= 0)] if weight_view[u] else ()
        for v in readers:
            weight_view[v] |= bool(graph.view[v])
    counts = ~weight_view[graph.src] & ~((tensor < 0) & graph.view[graph.dst])
    s, d = graph.src[counts], graph.dst[counts]
    assert (sim.start[d] >= sim.finish[s] - tick).all()

    transfers = sim.transfers
    assert (transfers.queued <= transfers.start + tick).all()
    assert (transfers.start <= transfers.finish).all()
    assert (transfers.src != transfers.dst).all()
    real = graph.reduced.op_of
    for device in range(cluster.n_devices):
        mine = real[sim.devices[real] == device]
        no_overlap(sim.start[mine], sim.finish[mine])
        busy = (sim.finish[mine] - sim.start[mine]).sum()
        assert sim.device_busy[device] == pytest.approx(busy, abs=1e-9)
    on_channel: dict[str, list[int]] = {}
    for i, (a, b) in enumerate(zip(transfers.src.tolist(), transfers.dst.tolist(), strict=True)):
        for channel in cluster.route(a, b).channels:
            on_channel.setdefault(channel, []).append(i)
    for name, busy in zip(cluster.channels, sim.channel_busy, strict=True):
        held = on_channel.get(name, [])
        if contention:
            no_overlap(transfers.start[held], transfers.finish[held])
        spent = (transfers.finish[held] - transfers.start[held]).sum()
        assert busy == pytest.approx(spent, abs=1e-9)
    assert sim.bytes_moved == int(transfers.bytes.sum())
    assert sim.makespan == sim.finish.max()

    for device in range(cluster.n_devices):
        times, used = sim.memory.profile(device)
        assert (np.diff(times) >= 0).all()
        assert used.max() == sim.memory.peak[device]
        assert used.max() < 2**63, "memory in use went below zero"
    assert sim.fits == bool((sim.memory.peak <= sim.memory.capacity).all())
    check_blame(sim)
    bound = lm.lower_bound(graph, cluster)
    assert bound.seconds <= sim.makespan * (1 + 1e-9)


def no_overlap(start: np.ndarray, finish: np.ndarray) -> None:
    order = np.lexsort((finish, start))
    assert (start[order][1:] >= finish[order][:-1] - 1e-9).all()


def check_blame(sim) -> None:
    """Each link of the chain ends when the one before it starts, from the makespan back to 0."""
    chain = sim.blame
    assert chain[0].finish == sim.makespan
    assert chain[-1].start == 0.0
    assert chain[-1].waited == "nothing"
    for later, earlier in itertools.pairwise(chain):
        assert later.start == earlier.finish
        assert later.waited != "nothing"
        if later.waited in ("op", "device"):
            assert earlier.op is not None
        else:
            assert earlier.transfer is not None


@pytest.mark.parametrize("policy", ["priority", "fifo", "random"])
@pytest.mark.parametrize("contention", [True, False])
def test_laws_hold_on_a_traced_graph(alexnet, policy, contention):
    cluster = v100_mesh(3)
    plan = lm.place(alexnet, cluster, "round-robin")
    sim = lm.simulate(alexnet, cluster, plan.devices, plan.priority, policy, contention, seed=7)
    check_laws(alexnet, cluster, sim, contention)
    assert sim.transfers.bytes.sum() > 0


@given(data=st.data())
def test_memory_is_what_the_schedule_says(data):
    """Recomputed from starts, finishes and transfers; at the end: residents and graph outputs."""
    graph = data.draw(plain_graphs(zero_times=False))
    cluster = data.draw(clusters())
    device = data.draw(
        st.lists(
            st.integers(0, cluster.n_devices - 1),
            min_size=graph.n,
            max_size=graph.n,
        )
    )
    outputs = [0] * graph.n
    for s, _, t in graph.edges:
        if t >= 0:
            outputs[s] = 1
    model = lm.OpGraph(
        {
            "name": [f"op{i}" for i in range(graph.n)],
            "time": {"*": graph.seconds},
            "param_bytes": graph.resident,
            "workspace": graph.workspace,
            "output_bytes": [0 if read else 9 for read in outputs],
        },
        {
            "src": graph.src,
            "dst": graph.dst,
            "tensor": graph.tensor,
            "bytes": [graph.tensor_bytes[t] if t >= 0 else 0 for t in graph.tensor],
        },
    )
    sim = lm.simulate(model, cluster, device)
    start, finish = in_ms(sim.start), in_ms(sim.finish)
    tr = sim.transfers
    changes: dict[int, list[tuple[int, int]]] = {d: [] for d in range(cluster.n_devices)}

    def alive(d, since, until, size):
        changes[d].append((since, size))
        if until is not None:
            changes[d].append((until, -size))

    for u in range(graph.n):
        alive(device[u], 0, None, graph.resident[u])
        alive(device[u], start[u], finish[u], graph.workspace[u])
        if not outputs[u]:
            alive(device[u], start[u], None, 9)
    readers: dict[int, set[int]] = {}
    made = {}
    for s, d, t in graph.edges:
        if t >= 0:
            readers.setdefault(t, set()).add(d)
            made[t] = s
    for t, who in readers.items():
        home = device[made[t]]
        ends = [finish[c] for c in who if device[c] == home]
        for i in np.flatnonzero(tr.tensor == t).tolist():
            there = int(tr.dst[i])
            begin, end = in_ms([tr.start[i], tr.finish[i]])
            last = max(finish[c] for c in who if device[c] == there)
            alive(there, begin, last, graph.tensor_bytes[t])
            ends.append(end)
        alive(home, start[made[t]], max(ends), graph.tensor_bytes[t])
    for d, list_of in changes.items():
        used = peak = 0
        for _, change in sorted(list_of, key=lambda c: (c[0], c[1])):
            used += change
            assert used >= 0
            peak = max(peak, used)
        assert sim.memory.peak[d] == peak
        _, profile = sim.memory.profile(d)
        assert profile[-1] == used
        kept = sum(9 for u in range(graph.n) if device[u] == d and not outputs[u])
        assert used == kept + sum(r for u, r in enumerate(graph.resident) if device[u] == d)


@given(data=st.data())
def test_numbering_of_ops_does_not_matter(data):
    """Without ties, the schedule follows the ops however they are numbered."""
    graph = data.draw(plain_graphs(min_ops=2))
    cluster = data.draw(clusters())
    n = graph.n
    device = np.array(
        data.draw(st.lists(st.integers(0, cluster.n_devices - 1), min_size=n, max_size=n))
    )
    priority = np.array(data.draw(st.permutations(range(n))))
    # Sums of distinct powers never tie, and neither do transfers of such sizes.
    seconds = np.array([2.0**i * 1.1e-6 + 1e-3 for i in range(n)])
    sizes = [3**i + 1 for i in range(len(graph.tensor_bytes))]
    assume(len(graph.tensor_bytes) < 10)
    new = np.array(data.draw(st.permutations(range(n))))

    def simulate(number):
        old = np.argsort(number)
        model = lm.OpGraph(
            {"name": [f"op{i}" for i in old], "time": {"*": seconds[old]}},
            {
                "src": number[graph.src] if graph.src else [],
                "dst": number[graph.dst] if graph.dst else [],
                "tensor": graph.tensor,
                "bytes": [sizes[t] if t >= 0 else 0 for t in graph.tensor],
            },
        )
        return lm.simulate(model, cluster, device[old], priority[old])

    one, other = simulate(np.arange(n)), simulate(new)
    assert one.makespan == other.makespan
    assert one.start.tolist() == other.start[new].tolist()
    assert one.memory.peak.tolist() == other.memory.peak.tolist()


@given(data=st.data())
def test_priorities_of_a_run_replayed_as_fixed_give_the_run(data):
    """What ran, in the order in which it ran, is a fixed sequence that runs the same way."""
    graph = data.draw(plain_graphs(zero_times=False))
    cluster = data.draw(clusters())
    device = np.array(
        data.draw(
            st.lists(st.integers(0, cluster.n_devices - 1), min_size=graph.n, max_size=graph.n)
        )
    )
    work, time = graph.fast(), np.repeat(graph.seconds[:, None], len(cluster.types), axis=1)
    first = fast.simulate(fast.Problem(work, cluster._core, time), device)
    order = np.argsort(first.start, kind="stable")
    rank = np.empty(graph.n, dtype=np.int64)
    rank[order] = np.arange(graph.n)
    again = fast.simulate(fast.Problem(work, cluster._core, time), device, rank, policy="fixed")
    assert first.start.tolist() == again.start.tolist()


def test_random_policy_is_seeded():
    graph = graph_of({f"op{i}": 1 + i for i in range(12)})
    cluster = ms_mesh(1)
    starts = [
        lm.simulate(graph, cluster, [0] * 12, policy="random", seed=s).start.tolist()
        for s in (1, 1, 2)
    ]
    assert starts[0] == starts[1]
    assert starts[0] != starts[2]


def test_utilisation_and_the_empty_step():
    graph = graph_of({"a": 2, "b": 2})
    sim = lm.simulate(graph, ms_mesh(2), [0, 0])
    assert sim.utilisation.tolist() == [1.0, 0.0]
    nothing = lm.simulate(graph, ms_mesh(2), [0, 1], costs=[0.0, 0.0])
    assert nothing.makespan == 0.0
    assert nothing.utilisation.tolist() == [0.0, 0.0]


# -- links -----------------------------------------------------------------------------------


def test_link_order_by_priority_lets_the_urgent_transfer_pass():
    # a makes two tensors at 1; the one for the urgent reader (priority 0) has the larger id.
    graph = graph_of({"a": 1, "late": 1, "soon": 1}, [("a", "late", 10, 0), ("a", "soon", 10, 1)])
    by = {
        order: in_ms(lm.simulate(graph, ms_mesh(2), [0, 1, 1], [5, 9, 0], link_order=order).start)
        for order in ("fifo", "priority")
    }
    assert by == {"fifo": [0, 11, 21], "priority": [0, 21, 11]}


def test_a_one_port_nic_sends_to_one_at_a_time():
    names = ["d0", "d1", "d2"]
    links = [
        lm.Link(a, b, 1000.0, 0.0, (f"{a}.nic", f"{b}.nic")) for a in names for b in names if a != b
    ]
    cluster = lm.Cluster([lm.Device(d, "gpu", 1000) for d in names], links)
    graph = graph_of({"a": 1, "b": 1, "c": 1}, [("a", "b", 4), ("a", "c", 4)])
    assert in_ms(lm.simulate(graph, cluster, [0, 1, 2]).start) == [0, 5, 9]
    assert in_ms(lm.simulate(graph, cluster, [0, 1, 2], contention=False).start) == [0, 5, 5]


# -- refusals --------------------------------------------------------------------------------

PAIR = graph_of({"first": 1, "second": 1}, [("first", "second", 4)])


def test_a_fixed_order_that_cannot_run_names_the_ops():
    graph = graph_of({"a": 1, "b": 1, "x": 1, "y": 1}, [("a", "b", 1), ("x", "y", 1)])
    # Device 0 runs y before a, device 1 b before x: each waits for the other.
    with pytest.raises(InputError, match="block each other") as caught:
        lm.simulate(graph, ms_mesh(2), [0, 1, 1, 0], [2, 1, 2, 1], policy="fixed")
    for op in ("a", "b", "x", "y"):
        assert f'"{op}"' in str(caught.value)


def test_unknown_devices_name_the_op():
    with pytest.raises(InputError, match="'second' is on device 2"):
        lm.simulate(PAIR, ms_mesh(2), [0, 2])
    with pytest.raises(InputError, match="'second' is on device -1"):
        lm.simulate(PAIR, ms_mesh(2), [0, -1])
    with pytest.raises(InputError, match="no device 'gpu7'"):
        lm.simulate(PAIR, ms_mesh(2), ["gpu0", "gpu7"])


def test_devices_may_be_given_by_name():
    by_name = lm.simulate(PAIR, ms_mesh(2), ["gpu1", "gpu0"])
    assert by_name.devices.tolist() == [1, 0]


def test_a_split_set_names_both_ops_and_devices():
    graph = graph_of({"w": 1, "other": 1, "update": 1}, colocation=["s", "", "s"])
    with pytest.raises(InputError) as caught:
        lm.simulate(graph, ms_mesh(2), [0, 0, 1])
    for word in ('"w"', '"update"', "gpu0", "gpu1", "colocation"):
        assert word in str(caught.value)


def test_a_forbidden_type_names_op_device_and_type():
    devices = [lm.Device("host", "cpu", 100), lm.Device("card", "gpu", 100)]
    links = [lm.Link("host", "card", 1000.0), lm.Link("card", "host", 1000.0)]
    cluster = lm.Cluster(devices, links)
    graph = graph_of({"conv": 1, "print": 1}, device_types=["gpu", "cpu,gpu"])
    assert lm.simulate(graph, cluster, [1, 0]).makespan == MS
    with pytest.raises(InputError) as caught:
        lm.simulate(graph, cluster, [0, 0])
    for word in ('"conv"', "host", "cpu"):
        assert word in str(caught.value)
    impossible = graph_of({"conv": 1}, device_types=["tpu"])
    with pytest.raises(
        InfeasibleError, match="op 'conv' may run on tpu, but the cluster has cpu, gpu"
    ):
        lm.place(impossible, cluster, "celeritas")


@pytest.mark.parametrize(
    ("devices", "priority", "message"),
    [
        ([0], None, "devices has shape"),
        ([[0, 1]], None, "devices has shape"),
        ([0.0, 1.0], None, "devices has shape"),
        ([0, 1], [1], "priority has shape"),
        ([0, 1], [0.5, 1.5], "priority has shape"),
        ([0, 1], [0, 2**31], "32 bits"),
    ],
)
def test_columns_of_the_wrong_shape_or_type(devices, priority, message):
    with pytest.raises(InputError, match=message):
        lm.simulate(PAIR, ms_mesh(2), devices, priority)


def test_unknown_policies_and_link_orders():
    with pytest.raises(ValueError, match="policy is 'greedy'"):
        lm.simulate(PAIR, ms_mesh(2), [0, 1], policy="greedy")
    with pytest.raises(ValueError, match="link_order is 'lifo'"):
        lm.simulate(PAIR, ms_mesh(2), [0, 1], link_order="lifo")


# -- views and placeholders ------------------------------------------------------------------

WEIGHT = graph_of(
    {"w": 0, "w.T": 0, "x": 0, "x2": 3, "mm": 2},
    [("w", "w.T", 8), ("x", "x2", 4), ("x2", "mm", 4), ("w.T", "mm", 8)],
    kind=["parameter", "aten.t", "input", "aten.mul", "aten.mm"],
    view=[0, 1, 0, 0, 0],
    alias_of=[-1, 0, -1, -1, -1],
    param_bytes=[8, 0, 0, 0, 0],
)


def test_placeholders_cost_nothing_and_are_there_at_once():
    sim = lm.simulate(WEIGHT, ms_mesh(2), [0] * 5)
    assert in_ms(sim.start[[0, 2, 3, 4]]) == [0, 0, 0, 3]
    assert in_ms(sim.finish[[0, 2, 3, 4]]) == [0, 0, 3, 5]


def test_a_view_of_a_placeholder_is_there_before_its_reader():
    sim = lm.simulate(WEIGHT, ms_mesh(2), [0] * 5)
    assert in_ms([sim.start[1], sim.finish[1]]) == [0, 0]


def test_a_weight_read_elsewhere_is_pulled_from_home_every_step():
    # The first reader is the home; the second pulls 8 bytes from time 0 on.
    graph = graph_of(
        {"w": 0, "one": 1, "two": 1},
        [("w", "one", 8), ("w", "two", 8)],
        kind=["parameter", "", ""],
        param_bytes=[8, 0, 0],
    )
    sim = lm.simulate(graph, ms_mesh(2), [1, 0, 1])
    assert sim.devices.tolist() == [0, 0, 1], "what is given for a placeholder does not count"
    assert in_ms(sim.start) == [0, 0, 8]
    assert sim.transfers.tensor.tolist() == [0]
    assert graph.names[sim.transfers.op[0]] == "one"
    assert sim.memory.peak.tolist() == [8, 8]
