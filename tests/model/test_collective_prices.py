"""Prices of collectives, against plain Python: on clusters drawn, and by hand on presets."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest
from collective_prices import direct, halving, least_seconds, ring, seconds, together
from hypothesis import given
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster import fast

KINDS = fast.COLLECTIVES
SIZES = st.integers(1, 10**9)

#: What joins the devices of a host, from what they share the most to what they share the least.
JOINED = (("host",), ("{from}", "{to}"), ("{from}.tx", "{to}.rx"), ())


def joined(k: int, channels: tuple[str, ...], bandwidth: float, latency: float) -> lm.Cluster:
    names = tuple(f"gpu{i}" for i in range(k))
    devices = [lm.Device(name, "gpu", "1GiB") for name in names]
    return lm.Cluster(devices, [lm.Mesh(names, names, bandwidth, latency, channels)])


@st.composite
def hosts(draw) -> lm.Cluster:
    """One host or two, of few devices, whatever joins them."""
    n, k = draw(st.integers(1, 2)), draw(st.integers(1, 4))
    inside, ports = draw(st.sampled_from(JOINED)), draw(st.sampled_from((1, k)))
    names = [[f"node{h}.gpu{i}" for i in range(k)] for h in range(n)]
    rate, latency = st.sampled_from((1e9, 3e9, 40e9)), st.sampled_from((0.0, 1e-6, 2e-5))
    links, figures = [], (draw(rate), draw(latency))
    for h, here in enumerate(names):
        own = tuple(c.replace("host", f"node{h}.host") for c in inside)
        links.append(lm.Mesh(tuple(here), tuple(here), *figures, own))
    across = (draw(rate), draw(latency))
    for a, b in [(a, b) for a in range(n) for b in range(n) if a != b]:
        for i, src in enumerate(names[a]):
            for j, dst in enumerate(names[b]):
                held = f"node{a}.nic{i % ports}.tx", f"node{b}.nic{j % ports}.rx"
                links.append(lm.Link(src, dst, *across, held))
    devices = [lm.Device(name, "gpu", "1GiB") for here in names for name in here]
    return lm.Cluster(devices, links)


@st.composite
def groups(draw) -> tuple[lm.Cluster, list[int]]:
    """A cluster, and two of its devices or more in any order."""
    preset = st.sampled_from(("8xV100-NVLink", "8xMI300X", "2x4xV100-25GbE", "moirai-inter"))
    cluster = draw(st.one_of(hosts(), preset.map(lm.Cluster.preset)))
    n = cluster.n_devices
    return cluster, draw(st.permutations(range(n)))[: draw(st.integers(min(n, 2), n))]


@given(
    k=st.integers(2, 7),
    channels=st.sampled_from(JOINED),
    figures=st.tuples(st.sampled_from((1e6, 7e9)), st.sampled_from((0.0, 3e-6, 1e-3))),
    kind=st.sampled_from(KINDS),
    size=SIZES,
)
def test_a_price_is_that_of_the_hops(k, channels, figures, kind, size):
    cluster, devices = joined(k, channels, *figures), range(k)
    ways = [direct(kind, devices)] if kind == "all_to_all" or not channels else []
    if kind in ("all_reduce", "reduce_scatter", "all_gather"):
        ways += [ring(kind, devices), halving(kind, devices)]
    least = min((seconds(cluster, way, size) for way in ways), default=float("inf"))
    price = cluster.collective(kind, devices, size).seconds
    assert price == pytest.approx(least, rel=1e-9) if kind != "broadcast" else price <= least


@given(groups(), st.sampled_from(KINDS), SIZES, SIZES)
def test_prices_rise_with_bytes_and_are_not_below_any_algorithm(group, kind, one, other):
    cluster, devices = group
    few, many = sorted((one, other))
    way = cluster.collective(kind, devices, many)
    assert cluster.collective(kind, devices, few).seconds <= way.seconds
    idle = cluster.collective(kind, devices, 0)
    assert (idle.seconds, idle.channels) == (0.0, ())
    if len(devices) > 1:
        assert way.seconds >= least_seconds(cluster, kind, devices, many) * (1 - 1e-9)
        assert way.channels


@given(groups(), st.sampled_from(("all_reduce", "reduce_scatter", "all_gather")), SIZES)
def test_no_algorithm_is_slower_than_a_ring(group, kind, size):
    """The widest ring; several may be as wide, and any may be the one."""
    cluster, (first, *rest) = group
    if not 1 < len(rest) < 5:
        return

    def width(order):
        return min(cluster.route(a, b).bandwidth for a, b in pairwise([*order, order[0]]))

    both = [[first, *order] for order in permutations(rest)]
    widest = max(min(width(o), width(o[::-1])) for o in both)
    rings = [o for o in both if min(width(o), width(o[::-1])) == widest]
    slowest = max(seconds(cluster, ring(kind, order), size) for order in rings)
    assert cluster.collective(kind, group[1], size).seconds <= slowest * (1 + 1e-9)


@given(
    k=st.integers(2, 8),
    latency=st.sampled_from((0.0, 1e-5)),
    kind=st.sampled_from(KINDS),
    size=SIZES,
)
def test_more_links_are_never_slower(k, latency, kind, size):
    """From one channel for all to a link for each pair; a wider link is never slower either."""
    clusters = [joined(k, channels, 5e9, latency) for channels in JOINED]
    clusters.append(joined(k, (), 6e9, latency))
    prices = [cluster.collective(kind, range(k), size).seconds for cluster in clusters]
    assert all(more <= less * (1 + 1e-12) for less, more in pairwise(prices))


@given(st.integers(2, 3), st.sampled_from((0, 1)), st.sampled_from(KINDS), SIZES, st.integers(2, 8))
def test_more_ports_of_a_host_are_never_slower(hosts, first, kind, size, k):
    clusters = [
        lm.Cluster.new("4xL4", "pcie4", hosts=hosts, network="100Gb", ports=ports)
        for ports in (1, 2, 4)
    ]
    devices = range(first, clusters[0].n_devices)[:k]
    prices = [cluster.collective(kind, devices, size).seconds for cluster in clusters]
    assert all(more <= less * (1 + 1e-12) for less, more in pairwise(prices))


# -- by hand -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "by_hand"),
    [
        # An eighth of 1 GB over every link of 48 GB/s, to reduce and to gather.
        ("all_reduce", 2 * (10e-6 + 125e6 / 48e9)),
        ("reduce_scatter", 10e-6 + 125e6 / 48e9),
        ("all_gather", 10e-6 + 125e6 / 48e9),
        ("all_to_all", 10e-6 + 125e6 / 8 / 48e9),
        ("broadcast", 2 * (10e-6 + 125e6 / 48e9)),
    ],
)
def test_a_full_mesh_uses_all_of_its_links(kind, by_hand):
    way = lm.Cluster.preset("8xMI300X").collective(kind, range(8), 10**9)
    assert (way.algorithm, len(way.channels)) == ("direct", 56)
    assert way.seconds == pytest.approx(by_hand)


def test_three_rings_of_v100_go_both_ways():
    cluster = lm.Cluster.preset("8xV100-NVLink")
    way = cluster.collective("all_reduce", range(8), 10**9)
    # Double links make a ring of 47.9 GB/s each way, single ones a ring of 24.
    assert (way.algorithm, len(way.channels)) == ("rings", 32)
    assert way.seconds == pytest.approx(14 * (10e-6 + 125e6 / (2 * 47.9e9 + 2 * 24e9)))
    double, single = [0, 3, 2, 1, 5, 6, 7, 4], [0, 1, 3, 7, 5, 4, 6, 2]
    part = 47.9 / (2 * 47.9 + 2 * 24), 24 / (2 * 47.9 + 2 * 24)
    both = [(double, part[0]), (double[::-1], part[0]), (single, part[1]), (single[::-1], part[1])]
    rings = together(*(ring("all_reduce", order, share) for order, share in both))
    assert way.seconds == pytest.approx(seconds(cluster, rings, 10**9))
    # Four of them are a full mesh: at once for a few bytes, two rings each way for many.
    four = [cluster.collective("all_reduce", range(4), size) for size in (4096, 10**9)]
    assert [way.algorithm for way in four] == ["direct", "rings"]
    assert four[0].seconds == pytest.approx(2 * (10e-6 + 1024 / 24e9))
    assert four[1].seconds == pytest.approx(6 * (10e-6 + 250e6 / (2 * 24e9 + 2 * 23.9e9)))


@pytest.mark.parametrize(("k", "steps"), [(4, 4), (8, 6)])
def test_latencies_on_a_shared_channel_do_not_add_up(k, steps):
    cluster = lm.Cluster.new("8xRTX4090", "pcie4")
    way = cluster.collective("all_reduce", range(k), 4096)
    assert way.seconds == pytest.approx(steps * 20e-6 + 2 * (k - 1) * 4096 / 21e9)
    assert cluster.collective("all_reduce", range(k), 0).seconds == 0


def test_the_simulator_runs_what_was_priced():
    cluster = lm.Cluster.preset("8xMI300X")
    plan = lm.place("example:lenet", cluster, "data-parallel")
    seen = plan.schedule.collectives
    assert len(seen) > 0
    for i, (kind, size) in enumerate(zip(seen.kind, seen.bytes.tolist(), strict=True)):
        taken = float(seen.finish[i] - seen.start[i])
        priced = seconds(cluster, direct(kind, seen.devices[i]), size)
        launch = cluster.types[0].launch
        assert priced - 1e-9 <= taken <= priced + launch + 1e-9
        assert seen.start[i] >= seen.queued[i]
        assert len(seen.channels[i]) == len(seen.devices[i]) * (len(seen.devices[i]) - 1)
