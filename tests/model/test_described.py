"""Device types and links of the tables, clusters of a few words, and clusters written short."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.cli import main
from loadmaster.model.clusters.devices import DTYPES
from loadmaster.model.clusters.writing import cluster_text, preset_text
from loadmaster.model.machine.links import link_asked, link_kinds, network_asked, nvlink, pcie
from loadmaster.model.machine.types import asked, known_types, recognised

TYPES = known_types()


# -- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TYPES)
def test_every_known_type_is_whole(name):
    known = TYPES[name]
    assert known.type.has_roofline
    assert known.type.launch > 0
    assert known.type.source
    assert "f32" in known.type.peak
    assert set(known.type.peak) <= set(DTYPES)
    assert not known.nvlink or known.nvlink in link_kinds()
    assert recognised(name) is known
    assert all(recognised(called) is known for called in known.called)


def test_no_two_types_are_called_alike():
    names = [called for known in TYPES.values() for called in (known.type.name, *known.called)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", TYPES)
def test_lower_precision_is_at_least_as_fast(name):
    """So it is on every device of the table: a dense figure is not beside a sparse one. The B300's
    tensor cores have nearly no i8.
    """
    peak = {d: p for d, p in TYPES[name].type.peak.items() if d != "i8" or "B300" not in name}
    order = [peak[d] for d in ("f64", "f32", "bf16", "f8", "i8") if d in peak]
    assert order == sorted(order)
    if "f16" in peak and "f8" in peak:
        assert peak["f8"] == pytest.approx(2 * peak["f16"], rel=0.02), "half the bits, twice"


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        # Data sheets of L4 and B200 state figures with sparsity: 242 and 4500 TFLOP/s.
        ("L4-24GB", "f16", 242e12 / 2),
        ("B200-180GB", "bf16", 4500e12 / 2),
        # 3072 cores, an FMA per cycle, 2.37 GHz; 233 TOPS of i8 with sparsity.
        ("RTX4060-Laptop-8GB", "f32", 3072 * 2 * 2.37e9),
        ("RTX4060-Laptop-8GB", "i8", 233e12 / 2),
        ("Ryzen7-7840U", "f32", 8 * 32 * 3.3e9),
        ("M1Max-32core", "f32", 4 * 2.6e12),
        # Racks of 72 GPUs, with sparsity: 360 and 720 PFLOP/s.
        ("GB200-186GB", "bf16", 360e15 / 72 / 2),
        ("GB300-279GB", "f8", 720e15 / 72 / 2),
        # Cores x 2 x clock.
        ("RTX3090-24GB", "f32", 10496 * 2 * 1.695e9),
        ("RTX5090-32GB", "f32", 21760 * 2 * 2.407e9),
        ("RTX4080-16GB", "f32", 9728 * 2 * 2.505e9),
        ("P40-24GB", "f32", 3840 * 2 * 1.531e9),
        ("L20-48GB", "f32", 11776 * 2 * 2.52e9),
        ("RTXPRO6000-96GB", "f32", 24064 * 2 * 2.617e9),
        ("A10-24GB", "f32", 9216 * 2 * 1.695e9),
        ("ArcProB60-24GB", "f32", 20 * 128 * 2 * 2.4e9),
    ],
)
def test_peaks_checked_by_hand(name, dtype, peak):
    assert TYPES[name].type.peak[dtype] == pytest.approx(peak, rel=4e-3)


@pytest.mark.parametrize("name", lm.presets())
def test_presets_have_the_figures_of_the_table(name):
    cluster = lm.Cluster.preset(name)
    for kind in cluster.types:
        known = TYPES[kind.name]
        assert kind.facts | {"launch": 0} == known.type.facts | {"launch": 0}
        assert kind.launch in (known.type.launch, 0.0)
    for device in cluster.devices:
        whole = TYPES[device.type].memory
        assert not whole or device.memory == whole or device.type.startswith("M")


def test_a_document_may_name_a_type_or_define_its_own():
    device = '[[device]]\nname = "gpu"\ntype = "L4-24GB"\nmemory = "24GiB"\n'
    assert lm.Cluster.from_toml(device).types[0] == TYPES["L4-24GB"].type
    own = '[[type]]\nname = "L4-24GB"\nmemory_bandwidth = "1 GB/s"\n'
    assert lm.Cluster.from_toml(own + device).types[0].memory_bandwidth == 1e9
    assert not lm.Cluster.from_toml(device.replace("L4-24GB", "gpu")).types[0].has_roofline
    bare = lm.Cluster.from_toml(device, bare=True)
    assert not bare.types[0].has_roofline, "a plan's clusters say all that they know"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("RTX4090", "RTX4090-24GB"),
        ("4090", "RTX4090-24GB"),
        ("rtx 4090", "RTX4090-24GB"),
        ("NVIDIA GeForce RTX 4090", "RTX4090-24GB"),
        ("A6000", "RTXA6000-48GB"),
        ("mi300x", "MI300X-192GB"),
        ("l4", "L4-24GB"),
        ("L40", "L40-48GB"),
        ("L40S", "L40S-48GB"),
        ("A10", "A10-24GB"),
        ("A10G", "A10G-24GB"),
        ("RTX3060", "RTX3060-12GB"),
        ("3060 Ti", "RTX3060Ti-8GB"),
        ("H100", "H100-SXM5-80GB"),
        ("H100 96 GB", "H100-SXM5-96GB"),
        ("RTX PRO 6000", "RTXPRO6000-96GB"),
        ("M4 Max", "M4Max-40core"),
        ("Arc B60", "ArcProB60-24GB"),
        ("V100-SXM2-16GB", "V100-SXM2-16GB"),
    ],
)
def test_types_by_the_names_that_people_use(words, name):
    assert asked(words).type.name == name


def test_the_link_decides_between_a_card_and_a_module():
    assert asked("A100", "pcie4").type.name == "A100-PCIe-80GB"
    assert asked("A100", "nvlink3").type.name == "A100-SXM4-80GB"
    assert asked("A100-40GB", "nvlink").type.name == "A100-SXM4-40GB"
    assert asked("H100", "pcie5").type.name == "H100-PCIe-80GB"
    with pytest.raises(InputError, match="A100-PCIe-80GB, A100-SXM4-80GB"):
        asked("A100")
    with pytest.raises(InputError, match="V100-SXM2-32GB, V100-SXM2-16GB"):
        asked("V100", "nvlink2")


ROWS = tomllib.loads(
    (resources.files("loadmaster.model.machine") / "types.toml").read_text(encoding="utf-8")
)["type"]
LISTED = sorted(
    {
        name
        for row in ROWS
        for name in (
            row["name"],
            *(
                n
                for kind in ("called", "aliases", "on_pcie", "on_nvlink")
                for n in row.get(kind, ())
            ),
        )
    }
)


#: Names that several types list: which one is meant, a link may say.
SHARED = {
    name
    for row in ROWS
    for kind in ("aliases", "on_pcie", "on_nvlink")
    for name in row.get(kind, ())
    if any(name in (n for v in other.values() if isinstance(v, list) for n in v)
           for other in ROWS if other is not row)
}  # fmt: skip


def parts(name):
    """Runs of digits and of letters, but for the maker's words at the beginning."""
    words = re.findall("[a-z]+|[0-9]+", name.casefold())
    makers = ("nvidia", "tesla", "geforce", "rtx", "amd", "instinct", "apple", "intel", "r")
    while len(words) > 1 and words[0] in makers:
        words = words[1:]
    return tuple(words)


@pytest.mark.parametrize("link", ["", "pcie4", "nvlink"])
def test_every_listed_name_is_of_the_types_that_list_it(link):
    for name in LISTED:
        by = {
            row["name"]
            for row in ROWS
            if name in (row["name"], *(n for v in row.values() if isinstance(v, list) for n in v))
        }
        if name in SHARED:
            with contextlib.suppress(InputError):
                assert asked(name, link).type.name in by
        else:
            assert {asked(name, link).type.name} == by


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_name_that_is_not_listed_is_a_type(data):
    """Not the beginning of one, not one with more behind it, not a neighbour's number."""
    name = data.draw(st.sampled_from(LISTED))
    at = data.draw(st.integers(0, len(name)))
    some = data.draw(st.text("0123456789AGLPSTXi -", max_size=3))
    left = data.draw(st.integers(0, 3))
    word = name[:at] + some + name[at + left :]
    link = data.draw(st.sampled_from(["", "pcie4", "nvlink"]))
    if parts(word) in {parts(one) for one in LISTED}:
        return
    with pytest.raises(InputError, match="no device type is named"):
        asked(word, link)
    assert recognised(word) is None


def test_links_in_proportion():
    assert pcie(4, 8).bandwidth == 12.5e9
    assert pcie(2, 16).bandwidth == pcie(3, 8).bandwidth
    assert pcie(4, 16, peer=False).bandwidth == 21e9
    assert pcie(4, 4, peer=False).bandwidth == pytest.approx(21e9 / 4)
    assert nvlink("NVLink2", 1).bandwidth == 47.9e9 / 2
    assert link_asked("nvlink", "NVLink3").bandwidth == 273e9
    assert link_asked("NVLink2x1").bandwidth == 47.9e9 / 2
    assert link_asked("PCIe4x8") == pcie(4, 8)
    assert link_asked("30 GB/s").bandwidth == 30e9
    assert network_asked("100GbE").bandwidth == 4 * network_asked("25gbe").bandwidth
    assert network_asked("400Gb-IB") == network_asked("NDR")


@pytest.mark.parametrize("name", link_kinds())
def test_no_kind_of_link_reaches_more_than_its_rate(name):
    kind = link_kinds()[name]
    assert 0.6 * kind.rate < kind.bandwidth <= kind.rate
    assert kind.source


# -- clusters of a few words ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "words"),
    [
        ("4xA100-PCIe", ("4xA100", "pcie4")),
        ("4xV100-PCIe", ("4xV100-PCIe", "pcie3")),
        ("4xL4-PCIe", ("4xL4", "pcie4")),
        ("8xL40S-PCIe", ("8xL40S", "pcie4")),
        ("8xA100-NVLink", ("8xA100", "nvlink")),
        ("8xB200-NVLink", ("8xB200", "nvlink5")),
        ("8xMI300X", ("8xMI300X", "xgmi")),
        ("2xRTX4090-PCIe", ("2xRTX4090", "pcie4")),
    ],
)
def test_words_and_presets_give_the_same_cluster(preset, words):
    assert lm.Cluster.new(*words).digest == lm.Cluster.preset(preset).digest


def test_unequal_gpus_copy_through_the_host_where_one_is_no_peer():
    cluster = lm.Cluster.new("2xRTX4090,2xA100", "pcie4")
    assert [d.type for d in cluster.devices[::2]] == ["RTX4090-24GB", "A100-PCIe-80GB"]
    assert cluster.route("gpu0", "gpu3").channels == ("host",)
    assert cluster.route("gpu3", "gpu1").channels == ("host",)
    assert cluster.route("gpu2", "gpu3").channels == ("gpu2.tx", "gpu3.rx")
    assert len(cluster.links) == 12


def test_hosts_share_a_port_each():
    cluster = lm.Cluster.new("2xRTX4090", "pcie4", hosts=3, network="25GbE")
    assert cluster.n_devices == 6
    assert cluster.devices[-1].name == "node2.gpu1"
    route = cluster.route("node0.gpu0", "node2.gpu1")
    assert (route.bandwidth, route.latency) == (2.94e9, 50e-6)
    assert route.channels == ("node0.nic.tx", "node2.nic.rx")
    assert cluster.route("node1.gpu0", "node1.gpu1").channels == ("node1.host",)
    assert lm.Cluster.from_toml(cluster.to_toml()).digest == cluster.digest
    assert lm.Cluster.new("1xL4").n_channels == 0


MISTAKES = [
    (("2xRTX4091", "pcie4"), "did you mean 'RTX4090-24GB'"),
    (("2xA11", "pcie4"), "`loadmaster cluster types` lists them"),
    (("1xL4,1xV100-PCIe",), "link='pcie4'"),
    (("2xL4", "pcei4"), "did you mean 'pcie4'"),
    (("2xL4", "nvlink3"), "L4-24GB has no NVLink"),
    (("2xL4", "pcie9"), "pcie5"),
    (("0xL4", "pcie4"), "2xRTX4090,1xA100"),
    (("", "pcie4"), "2xRTX4090,1xA100"),
    (("65xL4", "pcie4"), "at most 64"),
    (("1xEPYC-7313",), "differ in memory"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_mistakes_are_answered_by_the_way_out(words, said):
    with pytest.raises(InputError, match=r".") as error:
        lm.Cluster.new(*words)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_the_link_is_the_types_own_where_none_is_said():
    for gpus, link in (("2xL4", "pcie4"), ("8xMI300X", "xgmi"), ("4xH200", "nvlink")):
        assert lm.Cluster.new(gpus).digest == lm.Cluster.new(gpus, link).digest
    for known in TYPES.values():
        assert not known.link or link_asked(known.link, known.nvlink)
        assert not known.port or known.link in ("nvlink", "xgmi"), "sold in whole hosts"


@pytest.mark.parametrize(
    ("gpus", "network", "ports", "wanted", "rate"),
    [
        ("8xH100-SXM5-80GB", "400Gb", None, 8, 48e9),
        ("8xH100-SXM5-80GB", "NDR", None, 8, 48e9),
        ("8xH100-SXM5-80GB", "400GB/s", None, 8, 50e9),
        ("8xH100-SXM5-80GB", "400GB/s", 1, 1, 400e9),
        ("8xH100-SXM5-80GB", "400Gb", 4, 4, 48e9),
        ("2xL4", "25GbE", None, 1, 2.94e9),
        ("2xL4", "25Gb", 2, 2, 2.94e9),
    ],
)
def test_a_host_has_the_ports_that_it_is_sold_with_or_that_are_asked_for(
    gpus, network, ports, wanted, rate
):
    cluster = lm.Cluster.new(gpus, hosts=2, network=network, ports=ports)
    n = cluster.n_devices // 2
    routes = [cluster.route(i, n + j) for i in range(n) for j in range(n)]
    assert {route.bandwidth for route in routes} == {rate}
    for end in range(2):
        held = [route.channels[end] for route in routes]
        assert len(set(held)) == wanted
        assert {held.count(port) for port in held} == {n * n // wanted}
    assert f"{wanted} port" in cluster.description
    assert lm.Cluster.from_toml(cluster.to_toml()).digest == cluster.digest
    # One flow gets one port; all together get all ports.
    flow = cluster.collective("all_reduce", [0, n], 10**9).seconds
    assert flow == pytest.approx(1e9 / rate, abs=2e-4)


def test_cards_of_a_host_sum_together():
    cluster = lm.Cluster.new("8xH100-SXM5-80GB", hosts=2, network="400GB/s")
    cluster = cluster.with_collectives(())
    # Inside 7/8 of the bytes twice by NVLink, across an eighth twice by halves over each card.
    by_hand = 2 * (3 * 10e-6 + 7 / 8 * 2**30 / 376e9) + 2 * (50e-6 + 2**30 / 16 / 50e9)
    way = cluster.collective("all_reduce", range(16), "1GiB")
    assert way.algorithm == "hierarchical"
    assert way.seconds == pytest.approx(by_hand) == pytest.approx(7.84e-3, rel=1e-3)


def test_hosts_want_a_network_and_a_network_hosts():
    with pytest.raises(InputError, match="--network 25GbE"):
        lm.Cluster.new("1xL4", hosts=2)
    with pytest.raises(InputError, match="--hosts 2"):
        lm.Cluster.new("1xL4", network="25GbE")
    with pytest.raises(InputError, match="did you mean '25GbE'"):
        lm.Cluster.new("1xL4", hosts=2, network="25GeB")
    with pytest.raises(InputError, match=r"ports is 3.*from 1 to 2"):
        lm.Cluster.new("2xL4", hosts=2, network="25GbE", ports=3)
    with pytest.raises(InputError, match="ports 2 is between hosts"):
        lm.Cluster.new("2xL4", ports=2)
    with pytest.raises(InputError, match="no network is named '400GB'"):
        lm.Cluster.new("1xL4", hosts=2, network="400GB")
    with pytest.raises(InputError, match="hosts is 65"):
        lm.Cluster.new("1xL4", hosts=65, network="25GbE")


# -- written short -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*lm.presets(), "4xA100-NVLink", "1x8xH100-IB", "3xV100-NVLink"])
def test_what_a_preset_prints_is_the_preset(name, tmp_path, capsys):
    cluster = lm.Cluster.preset(name)
    assert main(["presets", name]) == 0
    text = capsys.readouterr().out
    again = lm.Cluster.from_toml(text)
    assert again.digest == cluster.digest
    assert (again.links, again.types, again.name) == (cluster.links, cluster.types, name)
    assert text.count("[[device]]") <= 4
    assert all(f'name = "{kind.name}"' in text for kind in cluster.types), "it stands alone"


@pytest.mark.parametrize("name", lm.presets())
def test_a_preset_is_printed_as_it_is_written(name):
    from importlib import resources

    file = resources.files("loadmaster.model") / "presets" / f"{name}.toml"
    if not file.is_file():
        pytest.skip("made of another preset")
    written, printed = file.read_text().splitlines(), preset_text(name).splitlines()
    assert "[[type]]" not in written, "figures of types are the table's"
    kept = iter(printed)
    assert all(line in kept for line in written), "every line, comments too, in its order"


def names(*names: str) -> lm.Cluster:
    devices = [lm.Device(name, "gpu", "1GiB") for name in names]
    mesh = lm.Mesh(names, names, 1e9)
    return lm.Cluster(devices, [mesh])


@pytest.mark.parametrize(
    ("cluster", "rows"),
    [
        (names("gpu0", "gpu1", "gpu2"), ["gpu{0..2}"]),
        (names("gpu0", "gpu2"), ["gpu0", "gpu2"]),
        (names("gpu1", "gpu0"), ["gpu1", "gpu0"]),
        (names("gpu01", "gpu02"), ["gpu01", "gpu02"]),
        (names("gpu9", "gpu10"), ["gpu{9..10}"]),
        (names("a0.b0", "a0.b1", "a1.b0", "a1.b1"), ["a{0..1}.b{0..1}"]),
        (names("a0.b0", "a1.b0", "a0.b1", "a1.b1"), ["a{0..1}.b0", "a{0..1}.b1"]),
        (names("a0.b0", "a0.b1", "a1.b0"), ["a0.b{0..1}", "a1.b0"]),
        (names("*", "x"), ["*", "x"]),
        (names("1", "2", "3"), ["{1..3}"]),
    ],
)
def test_devices_are_folded_by_their_numbers(cluster, rows):
    text = cluster_text(cluster)
    lines = text.splitlines()
    found = [lines[i + 1] for i, line in enumerate(lines) if line == "[[device]]"]
    assert found == [f'name = "{row}"' for row in rows]
    again = lm.Cluster.from_toml(text)
    assert again.devices == cluster.devices
    assert again.wiring == cluster.wiring


def test_devices_of_other_memory_or_type_have_rows_of_their_own():
    cluster = lm.Cluster.mesh(4, memory="1GiB", bandwidth=1e9).with_memory("2GiB", "gpu2")
    text = cluster_text(cluster)
    assert [row in text for row in ("gpu{0..1}", '"gpu2"', '"gpu3"')] == [True] * 3
    assert lm.Cluster.from_toml(text).devices == cluster.devices


# -- the command ---------------------------------------------------------------------------------


def test_new_writes_a_cluster(tmp_path, capsys):
    file = tmp_path / "c.toml"
    words = "cluster new --gpus 2xRTX4090,1xA100 --link pcie4 --hosts 2 --network 25GbE -o"
    assert main([*words.split(), str(file)]) == 0
    assert "cluster written to" in capsys.readouterr().err
    assert lm.Cluster.read(file).n_devices == 6
    assert main(["cluster", "new", "--gpus", "4xL4"]) == 0
    printed = lm.Cluster.from_toml(capsys.readouterr().out)
    assert printed.digest == lm.Cluster.preset("4xL4-PCIe").digest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("cluster detcet", "did you mean 'detect'"),
        ("cluster", "see loadmaster cluster --help"),
        ("cluster new", "--gpus 4xL4 --link pcie4"),
        ("cluster detect --gpus 2xL4", "`loadmaster cluster new`"),
        ("cluster new --gpus 2xL4 --link pcie4 --measure", "`loadmaster cluster detect`"),
        ("cluster new --gpus 2xL4 --link pcie4 --hosts two", "no whole number"),
    ],
)
def test_mistakes_at_the_command_line(words, said, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_questions_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", Terminal("2xL4\npcie4\n2\n25GbE\n"))
    assert main(["cluster", "new"]) == 0
    output = capsys.readouterr()
    assert output.err.count("?") == 4
    wanted = lm.Cluster.new("2xL4", "pcie4", hosts=2, network="25GbE")
    assert lm.Cluster.from_toml(output.out).digest == wanted.digest
    monkeypatch.setattr("sys.stdin", Terminal("1xL4\n\n"))
    assert main(["cluster", "new"]) == 0
    assert capsys.readouterr().err.count("?") == 2, "one GPU of one host has no links"
    monkeypatch.setattr("sys.stdin", Terminal("nvlink\n"))
    assert main(["cluster", "new", "--gpus", "2xA100-SXM4-80GB"]) == 0
    assert capsys.readouterr().err.count("?") == 1, "what flags say is not asked"
    monkeypatch.setattr("sys.stdin", Terminal(""))
    assert main(["cluster", "new", "--gpus", "2xL4", "--link", "pcie4"]) == 0
    assert "?" not in capsys.readouterr().err


def test_the_known_types_are_listed(capsys):
    assert main(["cluster", "types"]) == 0
    assert "L4-24GB" in capsys.readouterr().out
