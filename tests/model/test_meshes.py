"""Links as a pattern: a mesh is what its links one by one are, at any size."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from folders import ROOT
from hypothesis import given
from hypothesis import strategies as st
from strategies import graph_of

import loadmaster as lm
from loadmaster import Cluster, Device, Link, Mesh
from loadmaster.base.errors import InputError

#: A thousand GPUs, written in ten lines.
RACK = """
[[device]]
name = "node{0..124}.gpu{0..7}"
type = "gpu"
memory = "80GiB"
[[link]]
from = "*"
to = "*"
bandwidth = "25 GB/s"
latency = "10 us"
"""

PORTS = 'channels = ["{from}.tx", "{to}.rx"]\n'


def devices(n: int) -> list[Device]:
    return [Device(f"d{i}", f"t{i % 2}", 10**6) for i in range(n)]


@st.composite
def meshes(draw) -> tuple[list[Device], list[Link | Mesh]]:
    """Devices, and meshes that join every pair of them once."""
    n = draw(st.integers(2, 5))
    names = [f"d{i}" for i in range(n)]
    cut = draw(st.integers(1, n))
    parts = [(names, names)] if cut == n else []
    if not parts:
        near, far = names[:cut], names[cut:]
        parts = [(near, far), (far, near), (near, near), (far, far)]
    shared = st.sampled_from(
        [(), ("bus",), ("{from}.tx", "{to}.rx"), ("{from}", "{to}"), ("d0->d1",)]
    )
    rows: list[Link | Mesh] = []
    for src, dst in draw(st.permutations(parts)):
        speed, latency = draw(st.sampled_from([1000.0, 500.0])), draw(st.sampled_from([0.0, 1e-3]))
        rows.append(Mesh(tuple(src), tuple(dst), speed, latency, draw(shared)))
    return devices(n), rows


#: Eight ops, of which each may read some that stand before it.
READS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=14, unique=True)


@given(meshes(), READS, st.lists(st.integers(0, 4), min_size=8, max_size=8))
def test_a_mesh_is_its_links_one_by_one(mesh, reads, placed):
    whole = Cluster(*mesh)
    single = Cluster(whole.devices, whole.links)
    assert single.channels == whole.channels
    assert single.links == whole.links
    assert single.digest == whole.digest == Cluster.from_toml(whole.to_toml()).digest
    ids = range(whole.n_devices)
    routes = [[cluster.route(a, b) for a in ids for b in ids] for cluster in (single, whole)]
    assert routes[0] == routes[1]
    edges = [("abcdefgh"[a], "abcdefgh"[b], 1 + a) for a, b in reads if a < b]
    graph = graph_of(dict.fromkeys("abcdefgh", 1.0), edges)
    devices = [d % whole.n_devices for d in placed]
    seen = [lm.simulate(graph, cluster, devices) for cluster in (single, whole)]
    for column in ("start", "finish", "channel_busy"):
        assert np.array_equal(getattr(seen[0], column), getattr(seen[1], column)), column


@given(meshes(), st.data())
def test_parts_of_a_mesh_are_parts_of_its_links(mesh, data):
    whole = Cluster(*mesh)
    kept = data.draw(st.lists(st.sampled_from(range(whole.n_devices)), min_size=1, unique=True))
    single = Cluster(whole.devices, whole.links)
    assert whole.subset(kept).links == single.subset(kept).links
    assert whole.with_link_speed(2).digest == single.with_link_speed(2).digest
    if len(kept) > 1:
        ends = (kept[0], kept[1])
        assert whole.with_link_speed(3, ends).links == single.with_link_speed(3, ends).links


def test_a_thousand_devices_are_a_few_lines_and_no_link_is_made():
    cluster = Cluster.from_toml(RACK)
    assert (cluster.n_devices, cluster.n_channels) == (1000, 999_000)
    assert cluster.devices[9].name == "node1.gpu1"
    assert cluster.route(0, 999).channels == ("node0.gpu0->node124.gpu7",)
    assert "links" not in vars(cluster)
    assert Cluster.from_toml(RACK + PORTS).n_channels == 2000
    assert len(cluster.to_toml()) < 200_000


def test_the_file_of_two_hosts_that_the_page_shows():
    text = (ROOT / "docs" / "clusters.md").read_text()
    *_, block = re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S)
    cluster = Cluster.from_toml(block)
    assert (cluster.n_devices, cluster.n_channels) == (16, 64)
    assert cluster.route("node1.gpu7", "node0.gpu0").bandwidth == 50e9


def test_a_thousand_devices_take_a_plan():
    graph = graph_of(dict.fromkeys("abcdefgh", 1.0))
    plan = lm.place(graph, Cluster.from_toml(RACK), "heft", costs=[1.0] * 8)
    assert plan.makespan == 1
    assert len(set(plan.devices.tolist())) == 8


def test_a_link_may_hold_the_own_channel_of_another():
    forward = Mesh(("d0",), ("d2",), 1e9, channels=("d0->d1", "d1->d2"))
    mesh = Mesh(("d0", "d1", "d2"), ("d1",), 1e9)
    back = [Mesh(("d1", "d2"), ("d0",), 1e9), Mesh(("d1",), ("d2",), 1e9)]
    for rows in ([forward, mesh, *back], [mesh, *back, forward]):
        cluster = Cluster(devices(3), rows)
        assert cluster.route(0, 1).channels == ("d0->d1",)
        assert cluster.route(0, 2).channels == ("d0->d1", "d1->d2")
        assert sorted(cluster.channels) == ["d0->d1", "d1->d0", "d1->d2", "d2->d0", "d2->d1"]


FOUR = """
[[device]]
name = "a{1..2}"
memory = "1GiB"
[[device]]
name = "b*"
memory = "1GiB"
[[device]]
name = "bus"
memory = "1GiB"
"""


@pytest.mark.parametrize(
    ("end", "found"),
    [
        ('"*"', ("a1", "a2", "b*", "bus")),
        ('["a*"]', ("a1", "a2")),
        ('["bus", "b*", "a2"]', ("bus", "b*", "a2")),
        ('"b*s"', ("bus",)),
        ('["*2", "*"]', ("a2", "a1", "b*", "bus")),
    ],
)
def test_patterns_name_devices_and_a_name_is_itself(end, found):
    own = f"[[link]]\nfrom = {end}\nto = {end}\nbandwidth = 1e9\n"
    missing = [name for name in ("a1", "a2", "b*", "bus") if name not in found]
    for name in missing:
        own += f'[[link]]\nfrom = "{name}"\nto = {end}\nbandwidth = 1e9\n'
        own += f'[[link]]\nfrom = {end}\nto = "{name}"\nbandwidth = 1e9\n'
    cluster = Cluster.from_toml(FOUR + own)
    assert {k.src for k in cluster.links if k.dst == "a1"} >= set(found) - {"a1"}
    assert {row.src for row in cluster.wiring if isinstance(row, Mesh)} >= {found} or len(
        found
    ) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[device]]\nname = "a{3..1}"\nmemory = "1GiB"', ["'a{3..1}'", "must go up"]),
        ('[[device]]\nname = "a{0..99}{0..999}"\nmemory = "1GiB"', ["at most 10000 names"]),
        ('[[device]]\nname = "a{0..1024}"\nmemory = "1GiB"', ["1025 devices: at most 1024"]),
        (
            FOUR + '[[link]]\nfrom = "c*"\nto = "a1"\nbandwidth = 1e9',
            ["link 0 (from 'c*' to 'a1')", "no device's name matches 'c*'"],
        ),
        (
            FOUR + '[[link]]\nfrom = ["a1", "a1"]\nto = "*"\nbandwidth = 1e9',
            ["link 0", "'a1' twice"],
        ),
    ],
)
def test_bad_patterns_are_named(text, words):
    with pytest.raises(InputError) as caught:
        Cluster.from_toml(text)
    for word in words:
        assert word in str(caught.value)


def test_routes_over_very_many_links_are_refused():
    names = [f"d{i}" for i in range(1024)]
    line = [Link(a, b, 1e9) for a, b in itertools.pairwise(names)]
    line += [Link(k.dst, k.src, 1e9) for k in line]
    with pytest.raises(InputError, match=r"1024 devices hold more than .* links of their own"):
        Cluster([Device(name, "gpu", 1) for name in names], line)
