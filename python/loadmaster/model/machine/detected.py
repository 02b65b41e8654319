"""The machine at hand as a cluster, from what its tools and its system say.

Links get the figures that links of their kind reach elsewhere (``links.toml``), by what joins the
devices: nothing is timed here. What could not be found out is said, with the way to fill it in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path

from loadmaster.base.errors import InputError
from loadmaster.base.text import Printed, escaped
from loadmaster.base.units import counted, format_bytes
from loadmaster.base.warnings import warn
from loadmaster.model.cluster import Cluster
from loadmaster.model.clusters.devices import Device, DeviceType
from loadmaster.model.clusters.links import Mesh
from loadmaster.model.clusters.measured_collectives import with_known_times
from loadmaster.model.machine import amd, nvidia
from loadmaster.model.machine.host import Host, host, pcie_of
from loadmaster.model.machine.links import LinkFigures, link_asked, nvlink, pcie
from loadmaster.model.machine.tools import Tool, answer
from loadmaster.model.machine.types import recognised

#: GPUs with less memory are parts of CPUs that draw the screen.
_LEAST_MEMORY = 1 << 30

#: The PCIe that is assumed where nothing tells.
_USUAL = (4, 16)

#: Ports of NVLink, beside those of PCIe.
_NVLINK_PORT = ("{from}.nvlink.tx", "{to}.nvlink.rx")

_LANES = re.compile(r"NV([1-9]\d{0,2})")


@dataclass(frozen=True)
class Detected(Printed):
    """The machine at hand, as far as it was found out.

    Attributes
    ----------
    cluster : Cluster
    notes : tuple of str
        What could not be found out, and the way to fill it in: a sentence each.
    untimed_links, untimed_memory : tuple of str
        The same, of links and of the CPU's memory, which measuring would tell.
    """

    cluster: Cluster
    notes: tuple[str, ...]
    untimed_links: tuple[str, ...] = ()
    untimed_memory: tuple[str, ...] = ()

    @property
    def untimed(self) -> tuple[str, ...]:
        """All that measuring would tell."""
        return self.untimed_links + self.untimed_memory

    @property
    def toml(self) -> str:
        """The cluster as TOML, under its notes as comments."""
        comments = "".join(f"# {escaped(note)}\n" for note in self.notes + self.untimed)
        return f"{comments}\n{self.cluster.to_toml()}" if comments else self.cluster.to_toml()

    def __str__(self) -> str:
        return self.toml.rstrip()


@dataclass
class _Gpus:
    """GPUs in order, what joins each pair, and what is to be said."""

    rows: list[nvidia.Gpu] = field(default_factory=list)
    joins: dict[tuple[int, int], LinkFigures] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    untimed: list[str] = field(default_factory=list)


def detected(tool: Tool = answer, root: Path = Path("/"), *, cpu: bool | None = None) -> Detected:
    """Looks at the machine.

    Parameters
    ----------
    tool : callable
        Runs a command for what it prints.
    root : Path
        The folder that stands for ``/``.
    cpu : bool, optional
        Whether the CPU is a device; by default only where there is no GPU.

    Raises
    ------
    InputError
        Neither a GPU nor a CPU was found.
    """
    gpus = _nvidia(tool)
    _append(gpus, _amd(tool, root))
    devices, types = _devices(gpus)
    names = [device.name for device in devices]
    links = list(_meshes(gpus.joins, names))
    machine = host(root)
    notes: list[str] = gpus.notes
    untimed_memory: list[str] = []
    if cpu or (cpu is None and not devices):
        if not machine.cores or not machine.memory:
            raise InputError(
                "neither a GPU nor, in /proc and /sys, a CPU was found: write a cluster by "
                "`loadmaster cluster new`, or take a preset (m2-ultra, m1-max)"
            )
        kind = _cpu_type(machine, notes, untimed_memory)
        links += _to_host(gpus.rows, names)
        devices.insert(0, Device("cpu", kind.name, machine.memory))
        types.insert(0, kind)
    elif machine.cores:
        notes.append(f"The host is no device of the cluster ({_words(machine)}): --cpu adds it.")
    cluster = Cluster(
        devices,
        links,
        {kind.name: kind for kind in types}.values(),
        name="this machine",
        description=_description(devices),
        source="detected; types: the table of Loadmaster; links: as each says",
    )
    cluster = with_known_times(cluster)
    return Detected(cluster, tuple(notes), tuple(gpus.untimed), tuple(untimed_memory))


def with_warnings(*, cpu: bool | None = None) -> Cluster:
    """The machine at hand; warns of what could not be found out."""
    here = detected(cpu=cpu)
    warn(*here.notes, *here.untimed)
    return here.cluster


# -- GPUs ----------------------------------------------------------------------------------------


def _nvidia(tool: Tool) -> _Gpus:
    query = tool(nvidia.QUERY)
    if query.why:
        return _Gpus(notes=[f"CUDA devices were not looked for: {query.why}."])
    gpus = _Gpus(nvidia.gpus(query.text))
    if len(gpus.rows) < 2:
        return gpus
    topology = tool(nvidia.TOPOLOGY)
    entries = nvidia.matrix(topology.text)
    peers = nvidia.matrix(tool(nvidia.PEERS).text)
    has_nvlink = any(map(_LANES.fullmatch, entries.values()))
    lanes = nvidia.lanes(tool(nvidia.NVLINKS).text) if has_nvlink else {}
    if not entries:
        why = topology.why or "nvidia-smi topo -m shows none"
        gpus.notes.append(f"What joins the GPUs is not known, PCIe is assumed: {why}.")
    across = []
    for a, b in permutations(range(len(gpus.rows)), 2):
        entry = entries.get((a, b), "")
        if of_nvlink := _LANES.fullmatch(entry):
            gpus.joins[a, b] = _by_nvlink(gpus.rows, entries, lanes, a, int(of_nvlink[1]))
            continue
        known = [recognised(gpus.rows[i].name) for i in (a, b)]
        usual = "OK" if all(k is None or k.peer for k in known) else "GNS"
        peer = peers.get((a, b), usual) == "OK"
        gpus.joins[a, b] = _by_pcie(gpus.rows, a, b, peer)
        if entry == "SYS":
            across.append((a, b))
            figures = gpus.joins[a, b]
            said = f"across CPU sockets (SYS), which may be slower; {figures.source}"
            gpus.joins[a, b] = replace(figures, source=said)
    if across:
        pair = "gpu{} and gpu{}".format(*across[0])
        gpus.untimed.append(
            f"{counted(len(across) // 2, 'pair')} of GPUs, such as {pair}, are on different CPU "
            "sockets: their links may be slower than here: --measure."
        )
    return gpus


def _by_nvlink(
    rows: Sequence[nvidia.Gpu],
    entries: Mapping[tuple[int, int], str],
    lanes: Mapping[int, list[float]],
    a: int,
    n: int,
) -> LinkFigures:
    """``n`` NVLinks from GPU ``a`` to another: its whole port through switches, or links apart."""
    known, up = recognised(rows[a].name), lanes.get(a, [])
    figures = nvlink(known.nvlink if known and known.nvlink else _generation(up), n)
    wanted = sum(
        int(match[1])
        for (src, _), entry in entries.items()
        if src == a and (match := _LANES.fullmatch(entry))
    )
    # Links to all others that are more than it has lead to switches, which all of them share.
    shared = wanted > len(up) if up else wanted > n
    return replace(figures, channels=_NVLINK_PORT if shared else ())


def _generation(lanes: Sequence[float]) -> str:
    """The kind of NVLink by the rate of a lane, as nvidia-smi tells it."""
    rate = max(lanes, default=0.0)
    if rate > 40e9:
        return "NVLink5"
    if rate > 26e9:
        return "NVLink4"
    return "NVLink3-bridge" if 0 < rate < 16e9 else "NVLink3"


def _by_pcie(rows: Sequence[nvidia.Gpu], a: int, b: int, peer: bool) -> LinkFigures:
    """PCIe between two GPUs: as fast as the slower slot."""
    slots = [slot for slot in map(_slot, (rows[a], rows[b])) if slot]
    slower = min(slots or [_USUAL], key=lambda slot: (pcie(*slot).bandwidth, slot))
    figures = pcie(*slower, peer=peer)
    guessed = "" if len(slots) == 2 else "PCIe assumed, not told; "
    return replace(figures, source=f"{guessed}{figures.source}")


def _slot(gpu: nvidia.Gpu) -> tuple[int, int] | None:
    """Generation and lanes, where both are told."""
    generation, lanes = gpu.generation or 0, gpu.lanes or 0
    return (generation, lanes) if 1 <= generation <= 8 and 1 <= lanes <= 32 else None


def _amd(tool: Tool, root: Path) -> _Gpus:
    query = tool(amd.QUERY)
    if query.why:
        return _Gpus(notes=[f"AMD GPUs were not looked for: {query.why}."])
    cards = [c for c in amd.cards(query.text) if not 0 < c.memory < _LEAST_MEMORY]
    slots = [pcie_of(root, card.bus) if card.bus else (None, None) for card in cards]
    gpus = _Gpus(
        [
            nvidia.Gpu(card.name, card.memory or None, *slot)
            for card, slot in zip(cards, slots, strict=True)
        ]
    )
    kinds = amd.link_types(query.text)
    for a, b in permutations(range(len(cards)), 2):
        kind = kinds.get((cards[a].number, cards[b].number), "")
        if kind == "XGMI":
            gpus.joins[a, b] = link_asked("xgmi")
        else:
            gpus.joins[a, b] = _by_pcie(gpus.rows, a, b, peer=True)
    others = {c.name for c in cards if recognised(c.name) is None}
    if "XGMI" in kinds.values() and others:
        gpus.untimed.append(
            f"Links of xGMI are taken to be those of MI300X, and here are {', '.join(others)}: "
            "--measure, or write their bandwidth."
        )
    return gpus


def _append(gpus: _Gpus, more: _Gpus) -> None:
    """Adds the GPUs of another maker: copies between the two pass through the host."""
    first, n = len(gpus.rows), len(more.rows)
    gpus.rows += more.rows
    gpus.notes += more.notes
    gpus.untimed += more.untimed
    for (a, b), figures in more.joins.items():
        gpus.joins[first + a, first + b] = figures
    for a in range(first):
        for b in range(first, first + n):
            gpus.joins[a, b] = gpus.joins[b, a] = _by_pcie(gpus.rows, a, b, peer=False)


def _devices(gpus: _Gpus) -> tuple[list[Device], list[DeviceType]]:
    """Devices and their types; says what is not known of them."""
    devices, types, strange = [], [], {}
    for i, gpu in enumerate(gpus.rows):
        known = recognised(gpu.name)
        memory = gpu.memory or (known.memory if known else 0)
        if not memory:
            gpus.notes.append(
                f"gpu{i} ({gpu.name}): its memory is not told, 1 GiB stands here: write it."
            )
        kind = known.type if known else DeviceType(gpu.name)
        if known is None:
            strange[gpu.name] = f"gpu{i}"
        devices.append(Device(f"gpu{i}", kind.name, memory or 1 << 30))
        types.append(kind)
    for name, first in strange.items():
        gpus.notes.append(
            f"{first} is an {name}, whose peak and memory_bandwidth are not in the table: write "
            "them into its [[type]], or give measured times of ops."
        )
    return devices, types


def _meshes(joins: Mapping[tuple[int, int], LinkFigures], names: Sequence[str]) -> Iterator[Mesh]:
    """The links of all pairs in few rows: all of some devices to each other, or some to others."""
    groups: dict[LinkFigures, dict[int, list[int]]] = {}
    for (a, b), figures in sorted(joins.items(), key=lambda row: row[0]):
        groups.setdefault(figures, {}).setdefault(a, []).append(b)
    for figures, to in groups.items():
        among: dict[tuple[int, ...], list[int]] = {}
        for a, others in to.items():
            among.setdefault(tuple(sorted([a, *others])), []).append(a)
        rows: dict[tuple[int, ...], list[int]] = {}
        for every, members in among.items():
            if tuple(members) == every:
                rows[every] = members
                continue
            for a in members:
                rows.setdefault(tuple(to[a]), []).append(a)
        for dst, src in rows.items():
            start, end = (tuple(names[i] for i in side) for side in (src, dst))
            yield Mesh(
                start, end, figures.bandwidth, figures.latency, figures.channels, figures.source
            )


# -- the host ------------------------------------------------------------------------------------


def _cpu_type(machine: Host, notes: list[str], untimed: list[str]) -> DeviceType:
    """The type of the CPU; says what is not known of it."""
    known = recognised(machine.name)
    if known is not None and known.cores == machine.cores:
        return known.type
    name = machine.name or "CPU"
    rate = float(f"{machine.cores * machine.hertz * machine.flop_per_cycle:.3g}")
    if not rate:
        notes.append("The CPU's clock or vector instructions are not told: write its peak.")
    if machine.clock == "current":
        notes.append(
            "The CPU's peak counts with its clock of this moment: write the peak if you know it."
        )
    untimed.append(
        "Linux does not tell the CPU's memory bandwidth: --measure, or write memory_bandwidth "
        "(channels x MT/s x 8 B) into its [[type]]."
    )
    source = (
        f"detected: {counted(machine.cores, 'core')}, {machine.hertz / 1e9:.3g} GHz "
        f"({machine.clock}), {machine.flop_per_cycle} f32 FLOP per core and cycle "
        f"({machine.vectors}), f64 half of it; "
        "launch: typical for a framework's CPU operator"
    )
    peak = {"f64": rate / 2, "f32": rate} if rate else {}
    return DeviceType(name, peak, launch=1e-6, source=source)


def _to_host(rows: Sequence[nvidia.Gpu], names: Sequence[str]) -> Iterator[Mesh]:
    """Links between the CPU and GPUs: each GPU's slot, which copies between GPUs use too."""
    groups: dict[LinkFigures, list[str]] = {}
    for name, gpu in zip(names, rows, strict=True):
        slot = _slot(gpu)
        figures = pcie(*(slot or _USUAL))
        guessed = "" if slot else "PCIe assumed, not told; "
        groups.setdefault(replace(figures, source=guessed + figures.source), []).append(name)
    for figures, of_group in groups.items():
        rest = (figures.bandwidth, figures.latency)
        yield Mesh(("cpu",), tuple(of_group), *rest, ("{to}.rx",), figures.source)
        yield Mesh(tuple(of_group), ("cpu",), *rest, ("{from}.tx",), figures.source)


def _words(machine: Host) -> str:
    """The host in a few words."""
    limit = ", the limit of its control group" if machine.limited else ""
    named = f"{machine.name}, " if machine.name else ""
    return f"{named}{counted(machine.cores, 'core')}, {format_bytes(machine.memory)}{limit}"


def _description(devices: Sequence[Device]) -> str:
    kinds = dict.fromkeys(device.type for device in devices)
    listed = (f"{sum(d.type == kind for d in devices)} x {kind}" for kind in kinds)
    return f"This machine: {', '.join(listed)}"
