"""A cluster from a few words: which GPUs, what joins them, how many hosts, and their network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.units import RATE, counted
from loadmaster.model.cluster import Cluster
from loadmaster.model.clusters.devices import Device
from loadmaster.model.clusters.links import Mesh
from loadmaster.model.clusters.measured_collectives import with_known_times
from loadmaster.model.machine.links import (
    THROUGH_HOST,
    LinkFigures,
    link_asked,
    network_asked,
)
from loadmaster.model.machine.types import KnownType, asked

#: Devices of one host, and hosts: every pair of hosts is a row.
_MOST_DEVICES, _MOST_HOSTS = 64, 64

_SOME = re.compile(r"(\d{1,4})\s*x\s*(.+)", re.I)


def described(
    gpus: str,
    link: str | None = None,
    *,
    hosts: int = 1,
    network: str | None = None,
    ports: int | None = None,
) -> Cluster:
    """See :meth:`Cluster.new`."""
    hosts = checks.integer("hosts", hosts, 1, _MOST_HOSTS, wants=f"from 1 to {_MOST_HOSTS}")
    types = _types(gpus, link or "")
    link = link or _own_link(gpus, types)
    joins = _network(types, hosts, network, ports)
    devices: list[Device] = []
    links: list[Mesh] = []
    names_of: list[tuple[str, ...]] = []
    for host in range(hosts):
        before = f"node{host}." if hosts > 1 else ""
        names = tuple(f"{before}gpu{i}" for i in range(len(types)))
        names_of.append(names)
        rows = zip(names, types, strict=True)
        devices += [Device(name, known.type.name, known.memory) for name, known in rows]
        links += _inside(names, types, link, before)
    if joins is not None:
        links += _between(names_of, joins)
    shape = "+".join(f"{n}x{known.type.name}" for n, known in _counted(types))
    joined = f"-{link}" if link and len(types) > 1 else ""
    of_hosts = f"-{network}" + (f"x{ports}" if ports else "")
    whole = f"{hosts}x({shape}{joined}){of_hosts}" if hosts > 1 else f"{shape}{joined}"
    cluster = Cluster(
        devices,
        links,
        {known.type.name: known.type for known in types}.values(),
        name=whole,
        description=_words(types, link, hosts, joins),
        source="types: the table of Loadmaster; links: as each says",
    )
    return with_known_times(cluster)


def parts(gpus: str) -> list[tuple[int, str]]:
    """Numbers and names of types.

    >>> parts("2xRTX4090, A100")
    [(2, 'RTX4090'), (1, 'A100')]
    """
    listed = []
    for part in gpus.split(","):
        some = _SOME.fullmatch(part.strip())
        count, name = (int(some[1]), some[2]) if some else (1, part.strip())
        if not name or count == 0:
            raise InputError(f"gpus are {gpus!r}: write such as 2xRTX4090,1xA100")
        listed.append((count, name))
    return listed


def _types(gpus: str, link: str) -> list[KnownType]:
    """A type per device of one host."""
    types: list[KnownType] = []
    for count, name in parts(gpus):
        known = asked(name, link)
        if not known.memory:
            raise InputError(
                f"devices of type {known.type.name} differ in memory: write a TOML file with "
                "type and memory of each [[device]]; `loadmaster presets cpu+gpu` is one"
            )
        types += [known] * count
    if len(types) > _MOST_DEVICES:
        raise InputError(f"{gpus} are {len(types)} devices: one host has at most {_MOST_DEVICES}")
    return types


def _own_link(gpus: str, types: Sequence[KnownType]) -> str | None:
    """The link that joins such devices in hosts as they are sold; None for one device."""
    if len(types) == 1:
        return None
    own = {known.link for known in types}
    if len(own) > 1 or "" in own:
        raise InputError(
            f"{gpus} are {len(types)} devices, and no link is given: --link pcie4, or link='pcie4'"
        )
    return own.pop()


@dataclass(frozen=True)
class HostPorts:
    """Ports of each host to the others: the network's name, how many, and the figures of one."""

    name: str
    ports: int
    figures: LinkFigures


def _network(
    types: Sequence[KnownType], hosts: int, name: str | None, ports: int | None
) -> HostPorts | None:
    """The network between hosts; None for one host. Types that are sold so have a port each."""
    if hosts == 1:
        if name or ports:
            said = f"network {name}" if name else f"ports {ports}"
            raise InputError(f"{said} is between hosts, and there is one: --hosts 2")
        return None
    if not name:
        raise InputError(
            f"{hosts} hosts, and no network is given: --network 25GbE, or network='25GbE'"
        )
    most = len(types)
    if ports is None:
        ports = most if all(known.port for known in types) else 1
    ports = checks.integer(
        "ports", ports, 1, most, wants=f"the ports of a host, from 1 to {most}, one per device"
    )
    return HostPorts(name, ports, network_asked(name, ports))


def _inside(
    names: Sequence[str], types: Sequence[KnownType], link: str | None, before: str
) -> Iterator[Mesh]:
    """Links within a host. Those whose devices are no peers pass through its memory."""
    if len(names) < 2 or not link:
        return
    without = next((known.type.name for known in types if not known.nvlink), "")
    if link.strip().casefold().startswith("nvlink") and without:
        raise InputError(f"link {link}: {without} has no NVLink; PCIe joins it: pcie4")
    direct = link_asked(link, types[0].nvlinks)
    staged = link_asked(link, types[0].nvlinks, peer=False)
    peers = tuple(n for n, known in zip(names, types, strict=True) if known.peer)
    others = tuple(n for n, known in zip(names, types, strict=True) if not known.peer)
    if staged.channels != THROUGH_HOST or not others:
        yield _mesh(names, names, direct)
        return
    through = tuple(f"{before}{channel}" for channel in THROUGH_HOST)
    yield from (_mesh(peers, peers, direct),) if len(peers) > 1 else ()
    yield _mesh(others, names, staged, through)
    yield from (_mesh(peers, others, staged, through),) if peers else ()


def _mesh(
    src: Sequence[str],
    dst: Sequence[str],
    figures: LinkFigures,
    channels: tuple[str, ...] | None = None,
) -> Mesh:
    held = figures.channels if channels is None else channels
    return Mesh(tuple(src), tuple(dst), figures.bandwidth, figures.latency, held, figures.source)


def _between(names_of: Sequence[tuple[str, ...]], network: HostPorts) -> Iterator[Mesh]:
    """Links between hosts, by the ports of the devices: each is full duplex. Devices that share a
    port follow each other.
    """
    n, ports = len(names_of[0]), network.ports
    for a, b in permutations(range(len(names_of)), 2):
        if ports == n > 1:
            held = ("{from}.nic.tx", "{to}.nic.rx")
            yield _mesh(names_of[a], names_of[b], network.figures, held)
            continue
        for p, q in product(range(ports), repeat=2):
            src = [name for i, name in enumerate(names_of[a]) if i * ports // n == p]
            dst = [name for i, name in enumerate(names_of[b]) if i * ports // n == q]
            of_p, of_q = (p, q) if ports > 1 else ("", "")
            held = (f"node{a}.nic{of_p}.tx", f"node{b}.nic{of_q}.rx")
            yield _mesh(src, dst, network.figures, held)


def _counted(types: Sequence[KnownType]) -> Iterator[tuple[int, KnownType]]:
    """Numbers of each type, in their order."""
    for name in dict.fromkeys(known.type.name for known in types):
        of_name = [known for known in types if known.type.name == name]
        yield len(of_name), of_name[0]


def _words(
    types: Sequence[KnownType], link: str | None, hosts: int, network: HostPorts | None
) -> str:
    """The cluster in a sentence."""
    devices = ", ".join(f"{n} x {known.type.name}" for n, known in _counted(types))
    joined = f" joined by {link}" if link and len(types) > 1 else ""
    staged = (
        ""
        if all(known.peer for known in types) or len(types) < 2
        else ("; copies of those without peer-to-peer pass through the host's memory")
    )
    if network is None:
        return f"One host with {devices}{joined}{staged}"
    each = "one per GPU" if network.ports == len(types) else "which its GPUs share"
    said = f"{counted(network.ports, 'port')} a host of {RATE.write(network.figures.bandwidth)}"
    between = f"between hosts {network.name}, {said}, {each}"
    return f"{hosts} hosts, each with {devices}{joined}{staged}; {between}"
