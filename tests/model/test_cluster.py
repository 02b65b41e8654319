"""Clusters: presets, TOML, routes, and errors that name the device or link."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import V100, clusters, v100_mesh

import loadmaster as lm
from loadmaster import Cluster, Device, DeviceType, Dispatch, Link, OpGraph, SendCost
from loadmaster.base.errors import InputError
from loadmaster.base.units import format_bytes, format_count, format_seconds, parse_bytes


def named(n: int, memory: int = 2**30) -> list[Device]:
    return [Device(f"d{i}", "gpu", memory) for i in range(n)]


def both_ways(*pairs, bandwidth: float = 10e9, latency: float = 1e-6, channels=()) -> list[Link]:
    return [
        Link(f"d{a}", f"d{b}", bandwidth, latency, channels)
        for pair in pairs
        for a, b in (pair, pair[::-1])
    ]


# -- presets ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", lm.presets())
def test_every_preset_is_whole(name):
    cluster = Cluster.preset(name)
    assert cluster.name == name
    assert cluster.description
    assert cluster.source
    assert all(d.memory > 0 for d in cluster.devices)
    for t in cluster.types:
        assert t.has_roofline, t
        assert t.launch > 0 or cluster.dispatch
        assert all(v > 0 for v in t.peak.values())
        assert "f32" in t.peak
        assert t.source, "every figure has its source"
    assert all(k.source for k in cluster.links)
    for a, b in itertools.permutations(cluster.devices, 2):
        route = cluster.route(a.name, b.name)
        assert route.bandwidth > 0
        assert route.latency > 0
        assert route.channels
        assert route.hops[0] == a.name
        assert route.hops[-1] == b.name


@pytest.mark.parametrize("name", lm.presets())
def test_toml_round_trip_of_presets(name):
    cluster = Cluster.preset(name)
    again = Cluster.from_toml(cluster.to_toml())
    assert again.digest == cluster.digest
    assert again.devices == cluster.devices
    assert again.links == cluster.links
    assert again.types == cluster.types
    assert (again.name, again.description) == (cluster.name, cluster.description)


def test_presets_of_the_design_are_there():
    wanted = {"4xV100-PCIe", "2xV100-NVLink", "8xH100-NVLink", "moirai-inter", "moirai-intra"}
    assert wanted <= set(lm.presets())
    assert lm.presets() == sorted(lm.presets())
    assert any("cpu" in name for name in lm.presets())


@pytest.mark.parametrize("name", [n for n in lm.presets() if n.endswith("-eager")])
def test_eager_presets_count_launches_at_the_host_alone(name):
    plain, eager = Cluster.preset(name.removesuffix("-eager")), Cluster.preset(name)
    assert eager.dispatch.launch == plain.types[0].launch == 5e-6
    assert eager.dispatch.one_host
    assert "eager PyTorch" in eager.dispatch.source
    assert [replace(t, launch=5e-6) for t in eager.types] == list(plain.types)
    assert eager.wiring == plain.wiring
    assert eager.collectives == plain.collectives
    assert (
        Cluster.preset("2xH100-NVLink-eager").dispatch
        == Cluster.preset("8xH100-NVLink-eager").dispatch
    )


def test_fewer_devices_of_a_preset_are_its_first_ones():
    whole, half = Cluster.preset("8xV100-NVLink"), Cluster.preset("4xV100-NVLink")
    assert half.devices == whole.devices[:4]
    assert half.types == whole.types
    assert set(half.links) < set(whole.links)
    assert half.name == "4xV100-NVLink"
    assert half.source == whole.source
    assert Cluster.preset("1x8xH100-IB").devices == Cluster.preset("2x8xH100-IB").devices[:8]
    assert Cluster.preset("1xA100-PCIe").description.startswith("The first device of 4xA100-PCIe")
    assert Cluster.from_toml(half.to_toml()).digest == half.digest


@pytest.mark.parametrize("name", ["0x8xH100-IB", "00xA100-PCIe", "99999xA100-PCIe", "-1xA100-PCIe"])
def test_no_preset_has_so_many(name):
    with pytest.raises(InputError, match="no preset is named"):
        Cluster.preset(name)


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(InputError, match=r"no preset is named '5xV100'; there are .*4xV100-PCIe"):
        Cluster.preset("5xV100")
    with pytest.raises(InputError, match="no preset"):
        Cluster.preset("../presets/4xV100-PCIe")


# -- TOML ------------------------------------------------------------------------------------


@given(clusters(runtime=True))
def test_toml_round_trip(cluster):
    again = Cluster.from_toml(cluster.to_toml())
    assert again.digest == cluster.digest
    assert again.links == cluster.links
    assert (again.types, again.dispatch) == (cluster.types, cluster.dispatch)


def test_toml_round_trip_of_whole_numbers():
    cluster = Cluster(named(2), both_ways((0, 1), bandwidth=12_000_000_000, latency=0))
    assert Cluster.from_toml(cluster.to_toml()).digest == cluster.digest


def test_files(tmp_path):
    path = tmp_path / "cluster.toml"
    v100_mesh(2).write(path)
    assert Cluster.read(path).digest == v100_mesh(2).digest
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"cluster\.toml is not a text file"):
        Cluster.read(path)
    path.write_text("name = ")
    with pytest.raises(InputError, match=r"cluster\.toml is not valid TOML"):
        Cluster.read(path)
    with pytest.raises(InputError, match=r"cannot read .*none\.toml"):
        Cluster.read(tmp_path / "none.toml")


DEVICES = """
[[device]]
name = "a"
memory = "1GiB"
[[device]]
name = "b"
memory = 1073741824
[[device]]
name = "c"
memory = "1 GiB"
"""


def test_lists_of_ends_stand_for_every_pair():
    cluster = Cluster.from_toml(
        DEVICES
        + """
        [[link]]
        from = ["a", "b", "c"]
        to = ["a", "b", "c"]
        bandwidth = 1e9
        latency = 1e-6
        """
    )
    ends = [(k.src, k.dst) for k in cluster.links]
    assert ends == list(itertools.permutations("abc", 2))
    assert cluster.memory == [2**30] * 3
    assert [d.type for d in cluster.devices] == ["a", "b", "c"], "a device is its own type"


def test_from_and_to_stand_for_the_ends():
    cluster = Cluster.from_toml(
        DEVICES
        + """
        [[link]]
        from = ["a", "b", "c"]
        to = ["a", "b", "c"]
        bandwidth = 1e9
        channels = ["{from}.nic", "{to}.nic"]
        """
    )
    assert cluster.channels == ["a.nic", "b.nic", "c.nic"]
    assert cluster.route("a", "c").channels == ("a.nic", "c.nic")
    assert cluster.route("c", "a").channels == ("c.nic", "a.nic")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no devices"]),
        ("device = 3", ["'device' must be tables", "[[device]]"]),
        ('[device]\nname = "a"', ["'device' must be tables"]),
        ("[[device]]\nmemory = 1", ["device 0 has no 'name'"]),
        ('[[device]]\nname = "a"', ["device 'a' has no 'memory'"]),
        ('[[device]]\nname = "a"\nmemory = -1', ["memory of device 'a' is -1"]),
        ('[[device]]\nname = "a"\nmemory = "8 gigs"', ["memory of device 'a' is '8 gigs'", "GiB"]),
        ('[[device]]\nname = "a"\nmemory = "9999999PB"', ["memory of device 'a'", "2^63"]),
        ('[[device]]\nname = "a"\nmemory = true', ["memory of device 'a' is True"]),
        (
            '[[device]]\nname = "a"\nmemory = "1GiB"\ncolour = 1',
            ["device 'a'", "'colour'", "memory"],
        ),
        ('[[device]]\nname = "a"\nmemory = "1GiB"\ntype = 4', ["device 'a': type is 4"]),
        (DEVICES + '[[device]]\nname = "a"\nmemory = "1GiB"', ['two devices are named "a"']),
        (DEVICES, ['from "a" to "b"', "no link or chain of links"]),
        (
            DEVICES + '[[link]]\nfrom = "a"\nto = "b"\nbandwidth = "1GB/s"',
            ['leads from "a" to "c"'],
        ),
        (
            DEVICES + '[[link]]\nfrom = "a"\nto = "b"',
            ["link 0 (from 'a' to 'b') has no 'bandwidth'"],
        ),
        (
            DEVICES + '[[link]]\nto = "b"\nbandwidth = "1GB/s"',
            ["link 0 (from None to 'b') has no 'from'"],
        ),
        (
            DEVICES + '[[link]]\nfrom = "a"\nto = "b"\nbandwidth = 0',
            ['from "a" to "b" has bandwidth 0', "positive"],
        ),
        (
            DEVICES + '[[link]]\nfrom = "a"\nto = "b"\nbandwidth = nan',
            ['from "a" to "b" has bandwidth NaN'],
        ),
        (
            DEVICES + '[[link]]\nfrom = "a"\nto = "b"\nbandwidth = "5e-324 B/s"',
            ['from "a" to "b" has bandwidth 5e-324', "at least"],
        ),
        (
            DEVICES + '[[link]]\nfrom = "a"\nto = "b"\nbandwidth = "1GB/s"\nlatency = -1',
            ['from "a" to "b" has latency -1'],
        ),
        (
            DEVICES + '[[link]]\nfrom = "a"\nto = "b"\nbandwidth = "fast"',
            ["link 0 (from 'a' to 'b')", "bandwidth is 'fast'"],
        ),
        (
            DEVICES + '[[link]]\nfrom = "a"\nto = "a"\nbandwidth = "1GB/s"',
            ['joins device "a" to itself'],
        ),
        (
            DEVICES + '[[link]]\nfrom = "a"\nto = "z"\nbandwidth = "1GB/s"',
            ["link 0", 'to "z"', "no device"],
        ),
        (
            DEVICES + 2 * '[[link]]\nfrom = "a"\nto = "b"\nbandwidth = "1GB/s"\n',
            ['two links go from "a" to "b"'],
        ),
        (
            DEVICES + '[[link]]\nfrom = "a"\nto = "b"\nbandwidth = "1GB/s"\nspeed = 1',
            ["link 0 (from 'a' to 'b')", "unknown key 'speed'"],
        ),
        (DEVICES + "[[type]]\nlaunch = 1", ["type 0 has no 'name'"]),
        (
            DEVICES + '[[type]]\nname = "a"\npeak = { f33 = "1 TFLOP/s" }',
            ["device type 'a'", "'f33'", "f32"],
        ),
        (DEVICES + '[[type]]\nname = "a"\nlaunch = -1', ["device type 'a': launch is -1"]),
        (
            DEVICES + '[[type]]\nname = "a"\nmemory_bandwidth = nan',
            ["device type 'a': memory_bandwidth is nan"],
        ),
        (
            DEVICES + 2 * '[[type]]\nname = "a"\n',
            ["two device types are named 'a'"],
        ),
    ],
)
def test_bad_toml_names_the_culprit(text, words):
    with pytest.raises(InputError) as caught:
        Cluster.from_toml(text, "rack.toml")
    assert str(caught.value).startswith("rack.toml: ")
    for word in words:
        assert word in str(caught.value)


def test_a_misspelt_table_is_named():
    text = '[[device]]\nname = "a"\nmemory = "1GiB"\n[[types]]\nname = "a"\n'
    with pytest.raises(InputError, match="types"):
        Cluster.from_toml(text)


# -- routes ----------------------------------------------------------------------------------


def test_a_mesh_has_a_channel_for_every_ordered_pair():
    cluster = Cluster.mesh(3, memory="16GiB", bandwidth=12e9, latency=10e-6)
    assert len(cluster.channels) == 6
    assert cluster.route(2, 0).channels == ("gpu2->gpu0",)
    assert cluster.route("gpu2", "gpu0") == lm.Route(10e-6, 12e9, ("gpu2->gpu0",), ("gpu2", "gpu0"))


def test_a_mesh_of_one_needs_no_link():
    cluster = Cluster.mesh(1, memory=1, bandwidth=1.0)
    assert cluster.channels == []
    assert cluster.route(0, 0).hops == ("gpu0",)


def test_a_bridge_is_one_channel_for_all_its_pairs():
    cluster = Cluster(named(3), both_ways((0, 1), (0, 2), (1, 2), channels=("bridge",)))
    assert cluster.channels == ["bridge"]
    assert {cluster.route(a, b).channels for a, b in itertools.permutations(range(3), 2)} == {
        ("bridge",)
    }


def test_the_one_port_preset_holds_both_ports():
    cluster = Cluster.preset("4x1V100-25GbE")
    route = cluster.route("node1", "node3")
    assert route.channels == ("node1.nic", "node3.nic")
    assert cluster.route("node3", "node1").channels == ("node3.nic", "node1.nic")


def test_two_hops_add_latency_and_take_the_narrower_bandwidth():
    links = [
        *both_ways((0, 1), bandwidth=10e9, latency=1e-6),
        *both_ways((1, 2), bandwidth=4e9, latency=3e-6, channels=("slow",)),
    ]
    route = Cluster(named(3), links).route("d0", "d2")
    assert route.latency == pytest.approx(4e-6)
    assert route.bandwidth == 4e9
    assert route.channels == ("d0->d1", "slow")
    assert route.hops == ("d0", "d1", "d2")


def test_a_channel_met_twice_on_a_route_is_held_once():
    links = both_ways((0, 1), (1, 2), channels=("bus",))
    assert Cluster(named(3), links).route(0, 2).channels == ("bus",)


def test_the_route_is_the_widest_then_the_shortest_then_the_first():
    wide = both_ways((0, 3), (3, 1), bandwidth=9e9)
    assert Cluster(named(4), [*both_ways((0, 2), (2, 1), bandwidth=5e9), *wide]).route(
        0, 1
    ).hops == ("d0", "d3", "d1")
    same = both_ways((0, 2), (2, 1), (0, 3), (3, 1))
    assert Cluster(named(4), same[::-1]).route(0, 1).hops == ("d0", "d2", "d1")
    longer = [*both_ways((0, 2), (2, 3), (3, 1)), *both_ways((0, 4), (4, 1))]
    assert Cluster(named(5), longer).route(0, 1).hops == ("d0", "d4", "d1")


def test_a_direct_link_is_the_route_even_where_a_detour_is_wider():
    links = [*both_ways((0, 1), bandwidth=1e9), *both_ways((0, 2), (2, 1), bandwidth=9e9)]
    assert Cluster(named(3), links).route(0, 1).hops == ("d0", "d1")


@given(data=st.data())
def test_routes_are_the_widest_paths(data):
    """Every simple path tried: none is wider, none as wide is shorter or comes first."""
    n = data.draw(st.integers(2, 5))
    pairs = list(itertools.permutations(range(n), 2))
    ring = {(i, (i + 1) % n) for i in range(n)}
    chosen = ring | set(data.draw(st.lists(st.sampled_from(pairs), max_size=8)))
    width = {p: data.draw(st.sampled_from([1e9, 2e9, 3e9])) for p in sorted(chosen)}
    cluster = Cluster(named(n), [Link(f"d{a}", f"d{b}", w) for (a, b), w in width.items()])
    for a, b in pairs:
        route = cluster.route(a, b)
        if (a, b) in width:
            assert route.hops == (f"d{a}", f"d{b}")
            continue
        inner = [d for d in range(n) if d not in (a, b)]
        paths = [
            (a, *middle, b)
            for r in range(len(inner) + 1)
            for middle in itertools.permutations(inner, r)
        ]
        steps = {p: list(itertools.pairwise(p)) for p in paths}
        able = [p for p in paths if all(s in width for s in steps[p])]
        ranked = {p: (-min(width[s] for s in steps[p]), len(p)) for p in able}
        best = min(ranked.values())
        assert (-route.bandwidth, len(route.hops)) == best
        assert tuple(int(h[1:]) for h in route.hops) in [p for p in able if ranked[p] == best]


def test_transfer_time_is_linear():
    cluster = Cluster(named(2), both_ways((0, 1), bandwidth=2e9, latency=5e-6))
    assert cluster._core.transfer_time(0, 1, 4_000_000_000) == pytest.approx(2.000005)
    assert cluster._core.transfer_time(0, 0, 4_000_000_000) == 0.0


# -- variations and lookup -------------------------------------------------------------------


def test_a_subset_keeps_its_links_and_finds_new_routes():
    links = [*both_ways((0, 1), (1, 2), bandwidth=9e9), *both_ways((0, 3), (3, 2), bandwidth=1e9)]
    cluster = Cluster(named(4), links)
    assert cluster.route(0, 2).hops == ("d0", "d1", "d2")
    kept = cluster.subset(["d0", 2, "d3"])
    assert [d.name for d in kept.devices] == ["d0", "d2", "d3"]
    assert kept.route("d0", "d2").hops == ("d0", "d3", "d2")
    with pytest.raises(InputError, match='"d0" to "d2"'):
        cluster.subset(["d0", "d2"])
    with pytest.raises(InputError, match="no devices"):
        cluster.subset([])
    with pytest.raises(InputError, match='two devices are named "d0"'):
        cluster.subset(["d0", 0])


def test_lookup_by_name_or_index():
    cluster = v100_mesh(2)
    assert cluster.index("gpu1") == cluster.index(1) == 1
    for unknown in ("gpu2", 2, -1):
        with pytest.raises(InputError, match="it has gpu0, gpu1"):
            cluster.index(unknown)


def test_types_stand_in_the_order_of_first_use():
    devices = [Device("a", "gpu", 1), Device("b", "cpu", 1), Device("c", "gpu", 1)]
    links = [Link(x, y, 1.0) for x, y in itertools.permutations("abc", 2)]
    cluster = Cluster(devices, links, [DeviceType("unused"), DeviceType("cpu", {"f32": 1e9}, 1e9)])
    assert [t.name for t in cluster.types] == ["gpu", "cpu"]
    assert cluster.device_types == [0, 1, 0]
    assert [t.has_roofline for t in cluster.types] == [False, True]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Cluster([], []), ["no devices"]),
        (lambda: Cluster(named(1) * 2, []), ['two devices are named "d0"']),
        (lambda: Cluster(named(2), []), ['"d0"', '"d1"']),
        (lambda: Cluster(named(2), [Link("d0", "d1", 1.0)]), ['from "d1" to "d0"']),
        (lambda: Cluster(named(1025), []), ["1025 devices: at most 1024"]),
        (
            lambda: Cluster([Device(f"d{i}", f"t{i}", 1) for i in range(65)], []),
            ["65 device types: at most 64"],
        ),
        (lambda: Cluster(named(2), [Link("d0", "d9", 1.0)]), ["link 0", '"d9"']),
        (lambda: DeviceType("x", {"f32": float("inf")}), ["'x'", "peak of f32", "inf"]),
        (lambda: DeviceType("x", {"float": 1.0}), ["'x'", "'float'"]),
        (lambda: Cluster.mesh(0, memory=1, bandwidth=1.0), ["no devices"]),
        (lambda: Cluster.mesh(2, memory="x", bandwidth=1.0), ["memory is 'x'"]),
        (lambda: Cluster.mesh(2, memory=1, bandwidth=-1.0), ["bandwidth -1", '"gpu0"']),
    ],
)
def test_bad_clusters_name_the_culprit(build, words):
    with pytest.raises(InputError) as caught:
        build()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("memory", ["much", -1, 1e9])
def test_memory_that_is_no_count_of_bytes(memory):
    with pytest.raises(InputError, match="d0"):
        Cluster([Device("d0", "gpu", memory)], [])


def test_the_digest_follows_every_figure_and_no_name_of_the_whole():
    base = Cluster(named(2), both_ways((0, 1)), [DeviceType("gpu", {"f32": 1e12}, 1e9)], name="x")
    same = Cluster(named(2), both_ways((0, 1)), [DeviceType("gpu", {"f32": 1e12}, 1e9)], name="y")
    assert same.digest == base.digest
    others = [
        Cluster(named(2, 5), both_ways((0, 1)), base.types),
        Cluster(named(2), both_ways((0, 1), bandwidth=1e9), base.types),
        Cluster(named(2), both_ways((0, 1), latency=2e-6), base.types),
        Cluster(named(2), both_ways((0, 1), channels=("bus",)), base.types),
        Cluster(named(2), both_ways((0, 1)), [DeviceType("gpu", {"f32": 2e12}, 1e9)]),
        Cluster(named(2), both_ways((0, 1)), [DeviceType("gpu", {"f32": 1e12}, 1e9, 1e-6)]),
        Cluster(named(2), both_ways((0, 1)), [replace(base.types[0], send_cost=SendCost(0, 1e9))]),
        base.with_dispatch(Dispatch(5e-6)),
        base.with_dispatch(Dispatch(5e-6, one_host=False)),
    ]
    assert len({base.digest, *(c.digest for c in others)}) == 1 + len(others)


RUNTIME = """
[dispatch]
launch = "5 us"
one_host = false
source = "measured"
[[type]]
name = "cpu"
send_cost = { latency = "7 us", bandwidth = "10 GB/s" }
[[device]]
name = "a"
type = "cpu"
memory = "1GiB"
"""


def test_costs_of_a_runtime_are_read_from_toml():
    cluster = Cluster.from_toml(RUNTIME)
    assert cluster.dispatch == Dispatch(5e-6, one_host=False, source="measured")
    assert cluster.types[0].send_cost == SendCost(7e-6, 10e9)
    assert Cluster.from_toml(cluster.to_toml(), bare=True).digest == cluster.digest
    assert cluster.with_memory("2GiB").dispatch == cluster.dispatch
    assert cluster.subset(["a"]).dispatch == cluster.dispatch
    assert cluster.with_speed(2).types[0].send_cost == SendCost(7e-6, 10e9)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('launch = "5 us"', "launch = 5", ["dispatch: launch", "without a unit"]),
        ('launch = "5 us"', 'launch = "-1 us"', ["dispatch: launch"]),
        ('launch = "5 us"', "", ["dispatch: launch", "> 0"]),
        ("one_host = false", "one_host = 0", ["one_host is 0", "True or False"]),
        ("one_host = false", "hosts = 2", ["dispatch", "'hosts'", "one_host"]),
        (RUNTIME[: RUNTIME.index("[[type]]")], 'dispatch = "5 us"\n', ["dispatch is '5 us'"]),
        ('bandwidth = "10 GB/s"', 'bandwidth = "0"', ["type 'cpu'", "send_cost", "bandwidth"]),
        ('latency = "7 us", ', "", []),
        (', bandwidth = "10 GB/s"', "", ["type 'cpu'", "send_cost: bandwidth", "> 0"]),
        ('latency = "7 us"', 'seconds = "7 us"', ["send_cost", "'seconds'", "latency"]),
        ('name = "cpu"', 'name = "cpu"\nlaunch = "1 us"', ["'cpu'", "with_dispatch", "twice"]),
    ],
)
def test_wrong_costs_of_a_runtime_are_refused(old, new, words):
    assert old in RUNTIME
    text = RUNTIME.replace(old, new)
    if not words:
        assert Cluster.from_toml(text).types[0].send_cost == SendCost(0.0, 10e9)
        return
    with pytest.raises(InputError) as caught:
        Cluster.from_toml(text)
    for word in words:
        assert word in str(caught.value)


def test_a_type_without_figures_has_no_roofline():
    assert V100.has_roofline
    assert not DeviceType("x").has_roofline
    assert not DeviceType("x", {"f32": 1e12}).has_roofline
    assert not DeviceType("x", memory_bandwidth=1e9).has_roofline


# -- units -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (5, 5),
        ("0", 0),
        ("2gb", 2 * 10**9),
        ("1.5e3 MiB", 1500 * 2**20),
        ("5B", 5),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("1.5 GiB", 3 * 2**29),
        (" 16 GB ", 16 * 10**9),
        ("2TiB", 2**41),
        ("", None),
        ("GiB", None),
        ("-1GiB", None),
        (1.5, None),
        (True, None),
        (None, None),
        (2**63, None),
    ],
)
def test_sizes_as_people_write_them(text, size):
    if size is None:
        with pytest.raises(InputError, match="size is"):
            parse_bytes(text)
    else:
        assert parse_bytes(text) == size


def test_figures_as_people_read_them():
    assert [format_bytes(b) for b in (0, 1023, 1024, 1536, 2**40, 2**60)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1.50 KiB",
        "1 TiB",
        "1048576 TiB",
    ]
    assert [format_seconds(s) for s in (1.5, 0.0123, 45e-6, 7e-9, 5000)] == [
        "1.5 s",
        "12.3 ms",
        "45 us",
        "7 ns",
        "5000 s",
    ]
    assert [format_count(c) for c in (0, 999, 25_600_000)] == ["0", "999", "25.6 M"]


def test_figures_that_round_up_take_the_next_unit():
    assert format_seconds(0.99999) == "1 s"
    assert format_bytes(2**20 - 1) == "1 MiB"
    assert format_count(999_999) == "1 M"


@pytest.mark.parametrize("name", ["g{0..9999999999}", "g{3..1}", "g{0.." + "9" * 5000 + "}"])
def test_a_range_of_too_many_names_is_no_name(name):
    with pytest.raises(InputError, match="its ranges must go up, and give at most 10000 names"):
        Cluster.from_toml(f'[[device]]\nname = "{name}"\nmemory = "1GiB"\n')


def test_zero_has_no_sign_in_a_digest():
    text = '[[device]]\nname = "a"\nmemory = "1GiB"\n[[type]]\nname = "a"\nlaunch = '
    assert Cluster.from_toml(text + "-0.0").digest == Cluster.from_toml(text + "0.0").digest
    edges = {"src": [], "dst": []}
    graphs = [OpGraph({"name": ["a"], "time": {"*": [zero]}}, edges) for zero in (0.0, -0.0)]
    assert graphs[0].digest == graphs[1].digest
