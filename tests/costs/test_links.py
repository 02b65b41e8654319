"""What transfers cost: fits of links, and measuring them."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import pytest
from folders import DATA
from hypothesis import given
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.costs import TransferTimes, fit_links
from loadmaster.costs.measuring_links import WAYS

SIZES = [float(2**k) for k in range(10, 27)]


def fit(seconds, sizes=SIZES):
    return fit_links({"way": (sizes, seconds)}).fits[0]


@given(st.floats(0, 1e-3), st.floats(1e-12, 1e-6))
def test_a_line_comes_out_as_a_line(latency, per_byte):
    found = fit([latency + s * per_byte for s in SIZES])
    assert found.latency == pytest.approx(latency, rel=1e-3, abs=1e-3 * per_byte * SIZES[0])
    assert found.bandwidth == pytest.approx(1 / per_byte, rel=1e-3)
    assert len(found.knots) == 2


@given(st.lists(st.floats(1e-7, 1.0), min_size=2, max_size=17))
def test_nothing_is_negative_and_more_bytes_never_take_less(seconds):
    found = fit(seconds, SIZES[: len(seconds)])
    assert found.latency >= 0
    assert 0 < found.bandwidth < np.inf
    assert (np.diff(found.times) >= 0).all()
    assert (np.diff(found.curve(np.geomspace(1, 1e10, 100))) >= 0).all()


@given(st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(random):
    rng = np.random.default_rng(0)
    rows = [(s, (1e-5 + s / 1e9) * rng.lognormal(0, 0.3)) for s in SIZES for _ in range(5)]
    one = fit_links({"way": tuple(zip(*rows, strict=True))}).fits[0]
    random.shuffle(rows)
    other = fit_links({"way": tuple(zip(*rows, strict=True))}).fits[0]
    assert (one.latency, one.bandwidth) == (other.latency, other.bandwidth)
    assert one.knots.tolist() == other.knots.tolist()


def test_a_bend_is_found_where_it_is():
    bend = SIZES[10]
    found = fit([1e-5 + s / 4e9 + max(0.0, s - bend) / 5e8 for s in SIZES])
    assert found.knots.tolist() == [0.0, bend, SIZES[-1]]
    assert max(found.errors(found.curve(found.sizes)).values()) < 1e-6
    assert found.latency == pytest.approx(1e-5)


def test_repeats_count_by_their_median():
    """One in three transfers waits a thousand times as long."""
    sizes, seconds = [], []
    for s in SIZES:
        sizes += [s, s, s]
        seconds += [1e-5 + s / 1e9, 1e-5 + s / 1e9, 1.0]
    found = fit(seconds, sizes)
    assert found.latency == pytest.approx(1e-5, rel=1e-6)
    assert found.repeats == 3 * len(SIZES)


def test_a_line_for_a_graph_suits_its_tensors():
    """Beyond 1 MiB transfers are ten times slower, and the graph sends nothing smaller."""
    seconds = [1e-5 + s / 1e10 + max(0.0, s - 2**20) / 1e9 for s in SIZES]
    times = TransferTimes.of({"way": (SIZES, seconds)})
    graph = lm.OpGraph(
        {"name": ["a", "b", "c"]}, {"src": [0, 1], "dst": [1, 2], "bytes": [2**25, 2**26]}
    )
    alike, suited = fit_links(times).fits[0], fit_links(times, graph).fits[0]
    size = np.array([2**25, 2**26])
    truth = np.array(seconds[-2:])
    assert np.abs(suited.line(size) / truth - 1).max() < 0.1
    assert np.abs(alike.line(size) / truth - 1).min() > 0.5
    assert suited.latency == alike.latency == pytest.approx(1e-5, rel=0.01)


def test_what_the_communication_sweep_shows():
    """Ordinary least squares says -110 to -457 us where 1 KB takes 4 to 9."""
    links = fit_links(DATA / "artifacts" / "comm" / "comm_cpu_2proc.csv.gz")
    assert len(links.fits) == 5
    for found in links.fits:
        assert max(found.errors(found.curve(found.sizes)).values()) <= 0.15
        assert 0.5 <= found.latency / found.seconds[0] <= 2
    assert "shared_memory" in str(links)


def test_the_cluster_gets_what_was_measured(tmp_path):
    cluster = lm.Cluster.preset("cpu+gpu")
    times = TransferTimes.of(
        {
            ("cpu", "gpu", "copy"): (SIZES, [1e-5 + s / 1e10 for s in SIZES]),
            ("gpu", "cpu", "copy"): (SIZES, [2e-5 + s / 5e9 for s in SIZES]),
        }
    )
    changed = fit_links(times).cluster(cluster)
    assert changed.route("cpu", "gpu").latency == pytest.approx(1e-5)
    assert changed.route("gpu", "cpu").bandwidth == pytest.approx(5e9)
    changed.write(tmp_path / "cluster.toml")
    again = lm.Cluster.read(tmp_path / "cluster.toml")
    assert again.links == changed.links
    assert "measured by copy" in again.links[0].source


def test_links_without_devices_stand_for_all():
    seconds = [1e-5 + s / 1e10 for s in SIZES]
    links = fit_links({"tcp": (SIZES, seconds), "pipe": (SIZES, [2 * s for s in seconds])})
    cluster = lm.Cluster.mesh(3, memory="1GiB", bandwidth=1e9)
    changed = links.cluster(cluster, "pipe")
    assert {k.latency for k in changed.links} == {links.fits[1].latency}
    with pytest.raises(lm.errors.InputError, match="pipe, tcp were measured: choose"):
        links.cluster(cluster)
    with pytest.raises(lm.errors.InputError, match="no method is named 'smoke'"):
        links.cluster(cluster, "smoke")


def test_devices_that_the_cluster_does_not_join_are_named():
    links = fit_links({("cpu", "moon", "laser"): (SIZES, [1.0 + s for s in SIZES])})
    with pytest.raises(lm.errors.InputError, match="from 'cpu' to 'moon'; it has cpu -> gpu"):
        links.cluster(lm.Cluster.preset("cpu+gpu"))


def test_tables_are_written_and_read(tmp_path):
    times = TransferTimes.of(
        {"pipe": ([1024, 1024, 4096], [1e-5, 2e-5, 3e-5]), ("a", "b", "x"): ([1, 2], [1.0, 2.0])}
    )
    times.write(tmp_path / "links.csv")
    again = TransferTimes.read(tmp_path / "links.csv")
    assert again.links == times.links
    assert again.bytes.tolist() == times.bytes.tolist()
    assert again.seconds.tolist() == times.seconds.tolist()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has the columns none"),
        ("bytes,method\n1,a\n", "has the columns bytes, method; wants bytes, seconds_one_way"),
        ("seconds,method\n1,a\n", "wants bytes"),
        ("bytes,seconds\n", "has no rows"),
        ("bytes,seconds\n1024,1e-5\n", "measured with 1024 bytes only"),
        ("bytes,seconds\n1024,1e-5\n1024,2e-5\n", "measured with 1024 bytes only"),
        ("bytes,seconds\n1024,1e-5\n2048,-1\n", "line 3: seconds is '-1'"),
        ("bytes,seconds\n1024,nan\n", "line 2: seconds is 'nan'"),
        ("bytes,seconds\n0,1\n", "line 2: bytes is '0'"),
        ("bytes,seconds\n1024\n", "line 2: seconds is None"),
        ("bytes,seconds\nmuch,1\n", "line 2: bytes is 'much'"),
    ],
)
def test_tables_that_are_none_are_refused(tmp_path, text, words):
    path = tmp_path / "links.csv"
    path.write_text(text)
    with pytest.raises(lm.errors.InputError, match=words):
        fit_links(path)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, "no transfers"),
        ({"a": ([1, 2], [1.0])}, "link a: .* sizes and .* times"),
        ({"a": (["x"], [1.0])}, "link a: no numbers"),
        ({"a": ([1, 2], [1.0, np.nan])}, "link a, row 2: seconds is nan"),
        ({"a": ([1, -2], [1.0, 1.0])}, "link a, row 2: bytes is -2"),
        ({("x", "y", ""): ([5], [1.0])}, "link x -> y was measured with 5 bytes only"),
    ],
)
def test_arrays_that_are_no_transfers_are_refused(arrays, words):
    with pytest.raises(lm.errors.InputError, match=words):
        fit_links(arrays)


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_fail_otherwise(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "links.csv"
        path.write_bytes(b"bytes,seconds\n" + data)
        with contextlib.suppress(lm.errors.InputError):
            fit_links(path)


# -- measuring -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_processes_are_measured_each_way(way):
    told = []
    times = lm.measure_links([way], [1024, 2**20], progress=told.append)
    assert times.links[0] == ("", "", way)
    assert set(times.bytes.tolist()) == {1024.0, float(2**20)}
    assert told[0] == f"{way}, 1 KiB"
    assert fit_links(times).fits[0].bandwidth > 1e6


@pytest.mark.parametrize(
    ("ways", "sizes", "words"),
    [
        (["pigeon"], [1], "no way is named 'pigeon'"),
        (["pipe"], [], "wants bytes"),
        (["pipe"], [0], "wants bytes"),
        (["pipe"], [2**40], "wants bytes"),
        (["pipe"], [1.5], "wants bytes"),
    ],
)
def test_measuring_refuses(ways, sizes, words):
    with pytest.raises(lm.errors.InputError, match=words):
        lm.measure_links(ways, sizes)


def test_a_process_that_dies_is_an_error_and_leaves_nothing_behind(monkeypatch):
    from loadmaster.costs import measuring_links

    monkeypatch.setattr(measuring_links, "PATIENCE", 0.2)
    with pytest.raises(lm.LoadmasterError, match="the other process ended"):
        lm.measure_links(["pipe"], [2**22] * 100_000)


def test_every_pair_of_host_and_gpus_is_measured_where_torch_sees_some(monkeypatch):
    """A torch that counts what is asked of it stands for two GPUs."""
    asked = []

    class Tensor:
        def __init__(self, size, device, pin_memory, dtype):
            asked.append((size, device, pin_memory))

        def copy_(self, other, non_blocking):
            assert non_blocking

    torch = types.ModuleType("torch")
    torch.__spec__ = types.SimpleNamespace()
    torch.uint8 = None
    torch.empty = Tensor
    torch.cuda = types.SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 2, synchronize=lambda at: None
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    times = lm.measure_links([], [1024, 4096])
    ends = {(src, dst) for src, dst, _ in times.links}
    assert len(ends) == 6
    assert ("cpu", "gpu0") in ends
    assert ("gpu1", "gpu0") in ends
    assert all(pinned == (device == "cpu") for _, device, pinned in asked)
