"""Kinds of links whose figures are known: the table of ``links.toml``, and links scaled from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources

from loadmaster.base.errors import InputError
from loadmaster.base.files import parse_toml
from loadmaster.base.text import meant
from loadmaster.base.units import RATE, TIME

#: Channels of a device's port: it sends one transfer and receives one at a time.
PORT = ("{from}.tx", "{to}.rx")

#: The one channel of all transfers that pass through the host's memory.
THROUGH_HOST = ("host",)

_LINK = re.compile(r"(pcie|nvlink)\s*(\d)(-bridge)?(?:\s*x\s*(\d{1,2}))?", re.I)
_NETWORK = re.compile(r"(\d+(?:\.\d+)?)\s*g(?:b|bit|bps)?(?:/s)?[\s-]*(e|ib|infiniband)", re.I)

#: A port's speed alone: ``400Gb``. Bytes have a capital B.
_BITS = re.compile(r"(\d+(?:\.\d+)?)\s*[gG](?:b|bit|bps)(?:/s)?")

#: Gbit/s from which on a port that is only a speed is taken for one of InfiniBand's.
_LEAST_INFINIBAND = 100

#: Names of InfiniBand's speeds, in Gbit/s of a port of four lanes.
_INFINIBAND = {"edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}


@dataclass(frozen=True)
class LinkKind:
    """A kind of link.

    Attributes
    ----------
    name : str
    rate : float
        B/s of one direction of all its lanes, as published.
    lanes : int
    bandwidth : float
        B/s that copies reach of it.
    latency : float
        Seconds.
    source : str
    """

    name: str
    rate: float
    lanes: int
    bandwidth: float
    latency: float
    source: str


@dataclass(frozen=True)
class LinkFigures:
    """Figures of one link: B/s, seconds, and where they come from; its ``channels`` as in TOML."""

    bandwidth: float
    latency: float
    channels: tuple[str, ...]
    source: str


@cache
def link_kinds() -> Mapping[str, LinkKind]:
    """The kinds of the table, by name.

    >>> link_kinds()["PCIe4"].bandwidth
    25000000000.0
    """
    file = resources.files("loadmaster.model.machine") / "links.toml"
    rows = parse_toml(file.read_text(encoding="utf-8"), "links.toml")["link"]
    return {
        row["name"]: LinkKind(
            row["name"],
            float(RATE.parse(row["rate"], "rate")),
            row["lanes"],
            float(RATE.parse(row["bandwidth"], "bandwidth")),
            float(TIME.parse(row["latency"], "latency")),
            row["source"],
        )
        for row in rows
    }


def pcie(generation: int, lanes: int, *, peer: bool = True) -> LinkFigures:
    """A PCIe link; without ``peer`` its copies pass through the host's memory.

    Generations that the table lacks have half or twice the figures of the next one.

    >>> pcie(4, 8).bandwidth, pcie(4, 16, peer=False).channels
    (12500000000.0, ('host',))
    """
    kinds = link_kinds()
    nearest = min(max(generation, 3), 5)
    kind = kinds[f"PCIe{nearest}"]
    part = 2.0 ** (generation - nearest) * lanes / kind.lanes
    bandwidth = kind.bandwidth * part
    channels: tuple[str, ...] = PORT
    latency, source = kind.latency, kind.source
    if not peer:
        staged = kinds["PCIe4-staged"]
        bandwidth *= staged.bandwidth / kinds["PCIe4"].bandwidth
        latency, channels = staged.latency, THROUGH_HOST
        source = f"{staged.source}; {source}" if nearest != 4 else staged.source
    of = "" if part == 1 else f", scaled from PCIe {nearest}.0 x{kind.lanes}"
    said = f"PCIe {generation}.0 x{lanes}{of}; {source}"
    return LinkFigures(float(round(bandwidth)), latency, channels, said)


def nvlink(kind: str, lanes: int | None = None, lane: float | None = None) -> LinkFigures:
    """``lanes`` NVLinks between two devices, of ``lane`` B/s each; as the table's where unsaid.

    >>> nvlink("NVLink2", 2).bandwidth, nvlink("NVLink2", 1).bandwidth
    (47900000000.0, 23950000000.0)
    """
    figures = link_kinds()[kind]
    lanes = lanes or figures.lanes
    rate = lanes * (lane or figures.rate / figures.lanes)
    said = f"{lanes} x {kind}, {rate / 1e9:g} GB/s peak per direction"
    bandwidth = float(round(figures.bandwidth * rate / figures.rate))
    return LinkFigures(bandwidth, figures.latency, PORT, f"{said}; {figures.source}")


def link_asked(text: str, nvlink_of: str = "", *, peer: bool = True) -> LinkFigures:
    """The link that a user calls so: ``pcie4``, ``pcie4x8``, ``nvlink3``, ``nvlink2x1``,
    ``nvlink`` (``nvlink_of``, that of the devices), ``xgmi``, or a rate such as ``25 GB/s``.
    """
    word = text.strip()
    if word.casefold() == "nvlink" and nvlink_of:
        word = nvlink_of
    kinds = {name.casefold(): kind for name, kind in link_kinds().items()}
    if word.casefold() == "xgmi":
        kind = kinds["xgmi"]
        return LinkFigures(kind.bandwidth, kind.latency, (), kind.source)
    if match := _LINK.fullmatch(word):
        family, generation, bridge, lanes = match.groups()
        if family.casefold() == "pcie" and 1 <= int(generation) <= 6 and not bridge:
            return pcie(int(generation), int(lanes or 16), peer=peer)
        named = kinds.get(f"{family}{generation}{bridge or ''}".casefold())
        if named is not None:
            return nvlink(named.name, int(lanes) if lanes else None)
    with suppress(InputError):
        bandwidth = float(RATE.parse(word, "link"))
        return LinkFigures(bandwidth, 10e-6, PORT, "bandwidth: as asked; latency: assumed, 10 us")
    known = ["pcie3", "pcie4", "pcie5", *(k for k in kinds if k.startswith("nvlink")), "xgmi"]
    raise InputError(
        f"no link is named {text!r}{meant(text, known)}; lanes follow (pcie4x8), or a rate "
        "stands alone (25GB/s)"
    )


def network_asked(text: str, ports: int = 1) -> LinkFigures:
    """One port of the network that a user calls so: ``25GbE``, ``200Gb-IB``, ``NDR``, ``400Gb``. A
    rate in bytes, such as ``400GB/s``, is that of all ports of a host.

    >>> network_asked("25GbE").bandwidth, network_asked("ndr").bandwidth
    (2940000000.0, 48000000000.0)
    >>> network_asked("400Gb").bandwidth, network_asked("400GB/s", 8).bandwidth
    (48000000000.0, 50000000000.0)
    """
    kinds, word = link_kinds(), text.strip()
    match, bits = _NETWORK.fullmatch(word), _BITS.fullmatch(word)
    speed = match or bits
    gigabits = _INFINIBAND.get(word.casefold(), float(speed[1]) if speed else 0.0)
    if gigabits:
        is_ethernet = gigabits < _LEAST_INFINIBAND if bits else match and match[2].casefold() == "e"
        kind = kinds["Ethernet" if is_ethernet else "InfiniBand"]
        bandwidth = float(round(kind.bandwidth * (gigabits * 1e9 / 8 / kind.rate)))
        source = f"{kind.name} of {gigabits:g} Gbit/s; {kind.source}"
        return LinkFigures(bandwidth, kind.latency, (), source)
    with suppress(InputError):
        bandwidth = float(RATE.parse(word, "network")) / ports
        said = "as asked" if ports == 1 else f"as asked, over {ports} ports"
        return LinkFigures(bandwidth, 50e-6, (), f"bandwidth: {said}; latency: assumed, 50 us")
    known = ["25GbE", "100GbE", "200Gb-IB", "400Gb", *(name.upper() for name in _INFINIBAND)]
    raise InputError(
        f"no network is named {text!r}{meant(text, known)}; any number of Gbit/s will do (40GbE), "
        "or what all ports of a host carry (3GB/s)"
    )
