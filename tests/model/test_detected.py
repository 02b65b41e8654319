"""Machines as their tools and systems tell them: what real ones gave is in ``recorded``."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.costs.transfers import TransferTimes
from loadmaster.model.machine import amd, host, nvidia
from loadmaster.model.machine.detected import Detected, detected
from loadmaster.model.machine.tools import ToolOutput, answer
from loadmaster.tasks.detect import alike, timed

RECORDED = Path(__file__).parent / "recorded"
NOTHING = Path("/nowhere/at/all")
#: A query in the form of the recorded ones, of a machine whose topology was recorded alone.
H100 = "name, memory.total [MiB], pcie.link.gen.max, pcie.link.width.max\n" + (
    "NVIDIA H100 80GB HBM3, 81559 MiB, 5, 16\n" * 4
)


def told(name: str) -> str:
    return (RECORDED / name).read_text()


def machine(answers: dict[tuple[str, ...], str], root: Path = NOTHING, **given) -> Detected:
    """What is detected where commands print so; others are not installed."""

    def tool(words):
        text = answers.get(tuple(words))
        return ToolOutput(why=f"{words[0]} is not installed") if text is None else ToolOutput(text)

    return detected(tool, root, **given)


def nvidia_machine(query: str, topology: str = "", peers: str = "", nvlinks: str = "", **given):
    commands = (nvidia.QUERY, nvidia.TOPOLOGY, nvidia.PEERS, nvidia.NVLINKS)
    texts = (query, topology, peers, nvlinks)
    return machine({c: t for c, t in zip(commands, texts, strict=True) if t}, **given)


# -- parsers -------------------------------------------------------------------------------------


def test_the_query_is_read_by_its_header():
    rows = nvidia.gpus(told("8xh200.query.csv"))
    assert rows == [nvidia.Gpu("NVIDIA H200", 143771 << 20, 5, 16)] * 8
    # Other columns, no memory; the generation is the most that the slot can do, not that of now.
    rows = nvidia.gpus(told("4xrtx5060ti.query.csv"))
    assert rows == [nvidia.Gpu("NVIDIA GeForce RTX 5060 Ti", None, 3, 8)] * 4
    assert nvidia.gpus(told("rtx4090.query.csv"))[0].memory == 24564 << 20


@pytest.mark.parametrize(
    "text", ["", "No devices were found", "name, memory.total [MiB]\n", "a, b\n1, 2\n"]
)
def test_a_query_without_devices_has_none(text):
    assert nvidia.gpus(text) == []


def test_figures_that_are_not_available_are_not_told():
    text = "name, memory.total [MiB], pcie.link.gen.max\nNVIDIA GB10, [N/A], [N/A]\n"
    assert nvidia.gpus(text) == [nvidia.Gpu("NVIDIA GB10", None, None, None)]


@pytest.mark.parametrize(
    ("name", "n", "entries"),
    [
        ("8xh200", 8, {"NV18": 56}),
        ("4xh100", 4, {"NV6": 12}),
        ("3xa6000", 3, {"NV4": 2, "NODE": 4}),
        ("3xrtx3060ti", 3, {"SYS": 4, "PHB": 2}),
        ("2xrtx5090", 2, {"PHB": 2}),
        ("4xrtx5060ti", 4, {"PHB": 12}),
    ],
)
def test_a_topology_has_an_entry_for_every_pair(name, n, entries):
    found = nvidia.matrix(told(f"{name}.topo.txt"))
    assert set(found) == set(permutations(range(n), 2))
    values = list(found.values())
    assert {entry: values.count(entry) for entry in values} == entries
    assert all(found[b, a] == entry for (a, b), entry in found.items()), "it is symmetric"


def test_a_header_may_be_underlined():
    plain = told("2xrtx5090.topo.txt")
    header, *rest = plain.splitlines(keepends=True)
    styled = f"\x1b[4m{header.rstrip()}\x1b[0m\n{''.join(rest)}"
    assert nvidia.matrix(styled) == nvidia.matrix(plain)


def test_peers_are_read_as_topologies_are():
    assert set(nvidia.matrix(told("4xrtx5060ti.p2p.txt")).values()) == {"OK"}
    assert nvidia.matrix(told("2xrtx5090.p2p.txt")) == {(0, 1): "GNS", (1, 0): "GNS"}


def test_nvlinks_that_are_down_do_not_count():
    assert nvidia.lanes(told("v100.nvlink.txt")) == {3: [25.781e9] * 4}
    assert nvidia.lanes(told("3xa6000.nvlink.txt")) == {0: [14.062e9] * 4, 1: [14.062e9] * 4, 2: []}


def test_cards_of_amd_old_and_new():
    cards = amd.cards(told("4xmi100.rocm.json"))
    assert [card.number for card in cards] == [0, 1, 2, 3]
    assert cards[1].name == "Arcturus GL-XL [Instinct MI100]"
    assert (cards[1].memory, cards[1].bus) == (34342961152, "0000:a3:00.0")
    kinds = amd.link_types(told("4xmi100.rocm.json"))
    assert set(kinds) == set(permutations(range(4), 2))
    assert set(kinds.values()) == {"PCIE"}
    warned = f"WARNING: a device is in a low-power state.\n{told('rx7900xt.rocm.json')}"
    assert amd.cards(warned) == [amd.Card(0, "Radeon RX 7900 XT", 21458059264, "")]
    assert amd.link_types(warned) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"card0": 3, "system": 4}', "no JSON {here}"])
def test_what_is_no_document_of_rocm_smi_has_no_cards(text):
    assert amd.cards(text) == []
    assert amd.link_types(text) == {}


def test_the_host_of_a_recorded_tree():
    found = host.host(RECORDED / "virtual-epyc")
    assert (found.name, found.cores, found.memory) == ("AMD EPYC", 2, 24684092 << 10)
    assert (found.flop_per_cycle, found.clock, found.limited) == (32, "current", False)
    assert found.hertz == pytest.approx(2.445e9, rel=1e-3)


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def xeon(root: Path) -> Path:
    """A Xeon of two sockets with 2 cores of 2 threads each, of which a container may use some."""
    files = {
        "proc/cpuinfo": "model name\t: Intel(R) Xeon(R) CPU E5-2665 0 @ 2.40GHz\n"
        "flags\t\t: fpu sse avx\n",
        "proc/meminfo": "MemTotal:       65835636 kB\nMemFree: 1 kB\n",
        "sys/devices/system/cpu/online": "0-7\n",
        "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-5\n",
    }
    for cpu in range(8):
        topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
        files[f"{topology}/core_id"] = f"{cpu % 2}\n"
        files[f"{topology}/physical_package_id"] = f"{cpu // 2 % 2}\n"
    return tree(root, files)


def test_cores_are_those_that_the_process_may_use_not_threads(tmp_path):
    found = host.host(xeon(tmp_path))
    # CPUs 4 and 5 are second threads of cores 0 and 1 of the first socket.
    assert found.cores == 4
    assert (found.hertz, found.clock, found.flop_per_cycle) == (2.4e9, "base", 16)
    tree(tmp_path, {"proc/self/status": "Cpus_allowed_list:\t0,4\n"})
    assert host.host(tmp_path).cores == 1


def test_the_limit_of_a_control_group_is_the_memory(tmp_path):
    xeon(tmp_path)
    tree(tmp_path, {"sys/fs/cgroup/memory.max": "max\n"})
    assert host.host(tmp_path).memory == 65835636 << 10
    tree(
        tmp_path,
        {"proc/self/cgroup": "0::/jobs/7\n", "sys/fs/cgroup/jobs/7/memory.max": f"{8 << 30}\n"},
    )
    found = host.host(tmp_path)
    assert (found.memory, found.limited) == (8 << 30, True)


def test_a_pcie_slot_is_as_wide_as_the_narrower_end(tmp_path):
    card = "sys/bus/pci/devices/0000:03:00.0"
    bridge = "sys/devices/pci0000:00/0000:00:01.0"
    device = f"{bridge}/0000:03:00.0"
    ends = {f"{bridge}/max_link_speed": "8.0 GT/s PCIe\n", f"{bridge}/max_link_width": "8\n"}
    ends |= {f"{device}/max_link_speed": "16.0 GT/s PCIe\n", f"{device}/max_link_width": "16\n"}
    tree(tmp_path, ends)
    (tmp_path / card).parent.mkdir(parents=True)
    (tmp_path / card).symlink_to(tmp_path / device)
    assert host.pcie_of(tmp_path, "0000:03:00.0") == (3, 8)
    assert host.pcie_of(tmp_path, "0000:99:00.0") == (None, None)


# -- machines ------------------------------------------------------------------------------------


def test_eight_h200_share_nvswitch_by_their_ports():
    found = nvidia_machine(told("8xh200.query.csv"), told("8xh200.topo.txt"))
    cluster = found.cluster
    assert [d.name for d in cluster.devices] == [f"gpu{i}" for i in range(8)]
    assert set(cluster.memory) == {143771 << 20}
    assert [t.name for t in cluster.types] == ["H200-SXM-141GB"]
    assert len(cluster.wiring) == 1, "one row for all pairs"
    route = cluster.route("gpu0", "gpu7")
    assert route.channels == ("gpu0.nvlink.tx", "gpu7.nvlink.rx")
    assert route.bandwidth == 376e9, "18 links of NVLink 4"
    assert found.notes == ("AMD GPUs were not looked for: rocm-smi is not installed.",)
    assert lm.Cluster.from_toml(found.toml).digest == cluster.digest


def test_four_h100_with_links_apart():
    """Six links to each of three others are all that a GPU has: nothing is shared."""
    links = "".join(
        f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: ...)\n"
        + "".join(f"\t Link {i}: 26.562 GB/s\n" for i in range(18))
        for gpu in range(4)
    )
    apart = nvidia_machine(H100, told("4xh100.topo.txt"), nvlinks=links).cluster
    assert apart.route(0, 1).bandwidth == pytest.approx(376e9 / 3)
    assert apart.n_channels == 12
    unsaid = nvidia_machine(H100, told("4xh100.topo.txt")).cluster
    assert unsaid.n_channels == 8, "where links are not told, a port is taken to be shared"


def test_a_bridge_joins_two_of_three():
    found = nvidia_machine(
        told("2xa6000.query.csv"), told("3xa6000.topo.txt"), nvlinks=told("3xa6000.nvlink.txt")
    ).cluster
    assert found.types[0].name == "RTXA6000-48GB"
    assert found.memory == [49140 << 20] * 2
    assert found.route(0, 1).bandwidth == 51e9
    assert found.route(0, 1).channels != found.route(1, 0).channels


def test_peers_over_pcie_and_types_that_no_table_has():
    texts = [told(f"4xrtx5060ti.{what}") for what in ("query.csv", "topo.txt", "p2p.txt")]
    found = nvidia_machine(*texts)
    route = found.cluster.route("gpu0", "gpu3")
    assert route.bandwidth == 11.35e9 / 2, "PCIe 3.0, 8 of 16 lanes"
    assert route.channels == ("gpu0.tx", "gpu3.rx")
    assert not found.cluster.types[0].has_roofline
    said = " ".join(found.notes)
    assert "peak and memory_bandwidth are not in the table" in said
    assert "memory is not told" in said


def test_no_peers_pass_through_the_host():
    query = "name, memory.total [MiB], pcie.link.gen.max, pcie.link.width.max\n" + (
        "NVIDIA GeForce RTX 4090, 24564 MiB, 4, 16\n" * 2
    )
    topology, peers = told("2xrtx5090.topo.txt"), told("2xrtx5090.p2p.txt")
    for found in (nvidia_machine(query, topology, peers), nvidia_machine(query, topology)):
        route = found.cluster.route(0, 1)
        assert (route.bandwidth, route.latency, route.channels) == (21e9, 20e-6, ("host",))
    patched = nvidia_machine(query, topology, peers.replace("GNS", "OK")).cluster
    assert patched.route(0, 1).channels == ("gpu0.tx", "gpu1.rx")


def test_pairs_on_different_sockets_are_named():
    query = "name, memory.total [MiB], pcie.link.gen.max, pcie.link.width.max\n" + (
        "NVIDIA L4, 23034 MiB, 4, 16\n" * 3
    )
    found = nvidia_machine(query, told("3xrtx3060ti.topo.txt"))
    assert any("2 pairs of GPUs, such as gpu0 and gpu1" in note for note in found.untimed)
    sources = {(k.src, k.dst): k.source for k in found.cluster.links}
    assert "sockets" in sources["gpu0", "gpu2"]
    assert "sockets" not in sources["gpu1", "gpu2"]


def test_a_topology_that_is_not_told_is_taken_to_be_pcie():
    found = nvidia_machine(told("8xh200.query.csv"))
    assert any("What joins the GPUs is not known" in note for note in found.notes)
    assert found.cluster.route(0, 1).bandwidth == 55.6e9


def test_cards_of_amd_by_pcie_and_by_xgmi():
    by_pcie = machine({amd.QUERY: told("4xmi100.rocm.json")})
    assert by_pcie.cluster.route(0, 3).bandwidth == 25e9
    assert "PCIe assumed" in by_pcie.cluster.links[0].source
    # MI300X as the two recorded, by the words that rocm-smi has for xGMI.
    text = told("4xmi100.rocm.json").replace('"PCIE"', '"XGMI"')
    text = text.replace("Arcturus GL-XL [Instinct MI100]", "AMD Instinct MI300X")
    by_xgmi = machine({amd.QUERY: text}).cluster
    assert by_xgmi.types[0].name == "MI300X-192GB"
    preset = lm.Cluster.preset("8xMI300X")
    assert by_xgmi.route(0, 3).bandwidth == preset.route(0, 3).bandwidth
    assert by_xgmi.n_channels == 12, "a channel for each direction of each pair"


def test_the_cpu_is_a_device_where_it_is_asked_for_or_alone():
    epyc = RECORDED / "virtual-epyc"
    alone = machine({}, epyc)
    assert [d.name for d in alone.cluster.devices] == ["cpu"]
    peak = alone.cluster.types[0].peak
    assert peak["f32"] == 157e9, "2 cores x 2.445432 GHz x 32, by three digits"
    assert peak["f64"] == peak["f32"] / 2
    assert any("memory bandwidth" in note for note in alone.untimed)
    beside = machine({nvidia.QUERY: told("rtx4090.query.csv")}, epyc)
    assert [d.name for d in beside.cluster.devices] == ["gpu0"]
    assert any("--cpu adds it" in note for note in beside.notes)
    both = machine({nvidia.QUERY: told("rtx4090.query.csv")}, epyc, cpu=True).cluster
    assert [d.name for d in both.devices] == ["cpu", "gpu0"]
    assert both.route("cpu", "gpu0").bandwidth == 25e9
    assert both.route("cpu", "gpu0").channels == ("gpu0.rx",)


def test_the_figures_of_a_known_cpu_hold_for_all_its_cores_alone(tmp_path):
    xeon(tmp_path)
    name = "model name\t: AMD EPYC 7313 16-Core Processor\nflags\t\t: fma avx2\n"
    tree(tmp_path, {"proc/cpuinfo": name})
    assert machine({}, tmp_path).cluster.types[0].name == "AMD EPYC 7313 16-Core Processor"
    tree(tmp_path, {"sys/devices/system/cpu/online": "0-15\n", "proc/self/status": ""})
    for cpu in range(16):
        topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
        tree(tmp_path, {f"{topology}/core_id": str(cpu), f"{topology}/physical_package_id": "0"})
    assert machine({}, tmp_path).cluster.types[0].name == "EPYC-7313"


def test_where_nothing_is_found_the_way_out_is_said():
    with pytest.raises(InputError, match="loadmaster cluster new"):
        machine({})


def test_a_tool_that_is_missing_fails_or_hangs_is_a_sentence():
    assert "not installed" in answer(["no-such-tool-is-here"]).why
    assert "failed" in answer(["sh", "-c", "echo broken >&2; exit 9"]).why
    assert "broken" in answer(["sh", "-c", "echo broken >&2; exit 9"]).why
    assert "took more than 0.2 s" in answer(["sleep", "20"], deadline=0.2).why


def test_measured_transfers_stand_above_the_table():
    cluster = lm.Cluster.new("3xL4", "pcie4")
    sizes = np.array([1e4, 1e6, 1e8])
    times = TransferTimes.of(
        {
            ("gpu0", "gpu1", "copy"): (sizes, 8e-6 + sizes / 20e9),
            ("cpu", "gpu0", "copy"): (sizes, 8e-6 + sizes / 5e9),
        }
    )
    found = timed(cluster, times)
    assert found.route(0, 1).bandwidth == pytest.approx(20e9, rel=1e-3)
    assert found.route(1, 0).bandwidth == 25e9
    assert found.route(0, 1).channels == cluster.route(0, 1).channels
    elsewhere = TransferTimes.of({("cpu", "gpu0", "copy"): (sizes, sizes / 5e9)})
    assert timed(cluster, elsewhere) is cluster


def test_measured_transfers_are_of_the_gpus_that_were_listed():
    cluster = lm.Cluster.new("1xRTX4090,1xL4", "pcie4")
    names = ["NVIDIA GeForce RTX 4090", "NVIDIA L4"]
    assert alike(cluster, names)
    assert not alike(cluster, names[::-1]), "CUDA numbers the fastest first"
    assert not alike(cluster, names[:1]), "the other is hidden"
    strange = nvidia_machine(told("4xrtx5060ti.query.csv")).cluster
    assert alike(strange, ["NVIDIA GeForce RTX 5060 Ti"] * 4)


@given(st.text(), st.sampled_from(["4xh100.topo.txt", "v100.nvlink.txt", "rx7900xt.rocm.json"]))
def test_no_text_is_an_error(text, name):
    """Any text, and a recorded one with any text in its middle."""
    recorded = told(name)
    half = len(recorded) // 2
    for damaged in (text, recorded[:half] + text + recorded[half:]):
        nvidia.gpus(damaged)
        nvidia.matrix(damaged)
        nvidia.lanes(damaged)
        amd.cards(damaged)
        amd.link_types(damaged)


def test_the_command_writes_what_it_found(tmp_path, capsys):
    from loadmaster.cli import main

    file = tmp_path / "here.toml"
    assert main(["cluster", "detect", "--cpu", "-o", str(file)]) == 0
    assert f"cluster written to {file}" in capsys.readouterr().err
    assert lm.Cluster.read(file).devices[0].name == "cpu"
    assert main(["cluster", "detect", "--cpu", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["devices"][0]["memory"] > 0
