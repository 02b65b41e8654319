"""Links between devices, routes over them, and measured times of collectives."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.units import counted


@dataclass(frozen=True)
class Link:
    """A directed link.

    Attributes
    ----------
    src, dst : str
        Device names.
    bandwidth : float
        B/s.
    latency : float
        Seconds.
    channels : tuple of str
        Channels a transfer holds for its whole duration; each carries one transfer at a time.
        ``{from}`` and ``{to}`` stand for the ends. Empty: a channel of its own.
    source : str
        Where the figures come from.
    """

    src: str
    dst: str
    bandwidth: float
    latency: float = 0.0
    channels: tuple[str, ...] = ()
    source: str = ""

    @property
    def ends(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Sources and destinations, as a :class:`Mesh` has them."""
        return (self.src,), (self.dst,)


@dataclass(frozen=True)
class Mesh:
    """A link from every device of ``src`` to every other of ``dst``, all with the same figures.

    It takes the memory of its two lists, where links one by one take that of every pair.

    Attributes
    ----------
    src, dst : tuple of str
        Device names, none twice in one of the two.
    bandwidth : float
        B/s of each link.
    latency : float
        Seconds.
    channels : tuple of str
        As those of :class:`Link`: ``("{from}.tx", "{to}.rx")`` are two ports per device.
    source : str
        Where the figures come from.

    Examples
    --------
    >>> import loadmaster as lm
    >>> all_of = ("a", "b", "c")
    >>> mesh = lm.Mesh(all_of, all_of, 25e9, channels=("{from}.tx", "{to}.rx"))
    >>> devices = [lm.Device(name, "gpu", "16GiB") for name in all_of]
    >>> lm.Cluster(devices, [mesh]).route("c", "a").channels
    ('c.tx', 'a.rx')
    """

    src: tuple[str, ...]
    dst: tuple[str, ...]
    bandwidth: float
    latency: float = 0.0
    channels: tuple[str, ...] = ()
    source: str = ""

    @property
    def ends(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Sources and destinations."""
        return self.src, self.dst

    @property
    def joins(self) -> bool:
        """True if there is a link in it: two different devices."""
        return bool(self.src and self.dst) and len({*self.src, *self.dst}) > 1


@dataclass(frozen=True)
class CollectiveTimes:
    """Measured times of one kind of collective, which stand above what links say.

    Attributes
    ----------
    kind : str
        One of :data:`loadmaster.fast.COLLECTIVES`.
    devices, machines : int
        How many devices took part, as many on each machine.
    bytes : tuple of int
        Of the whole tensor, ascending. Of an all-to-all: what all devices send together.
    seconds : tuple of float
        One per number of bytes. Times between two numbers lie on a line; below the least they are
        the least one's; above the most they go on as between the last two.
    source : str
        Where the figures come from.
    busy : tuple of float
        For how many of these seconds every device that takes part computes nothing else, one per
        number of bytes: where cores sum and copy, and not links alone. Empty: for none. A device
        does this share when its inputs are there, before its next op; when all have, the collective
        takes the rest of its time.

    Examples
    --------
    >>> import loadmaster as lm
    >>> times = lm.CollectiveTimes("all_reduce", 2, 1, (1000, 3000), (50e-6, 70e-6))
    >>> two = lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e9)
    >>> known = lm.Cluster(two.devices, two.wiring, collectives=[times])
    >>> known.collective("all_reduce", [0, 1], 2000).algorithm
    'table'
    """

    kind: str
    devices: int
    machines: int
    bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    source: str = ""
    busy: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        noun = f"times of {self.kind} on {self.devices} devices"
        checks.one_of(f"{noun}: kind", self.kind, fast.COLLECTIVES)
        for name in ("devices", "machines"):
            checks.integer(f"{noun}: {name}", getattr(self, name), 1, 2**31)
        for size in self.bytes:
            checks.integer(f"{noun}: bytes", size, 0, 2**63 - 1)
        for seconds in self.seconds:
            checks.not_negative(f"{noun}: seconds", seconds)
        for seconds in self.busy:
            checks.not_negative(f"{noun}: busy", seconds)
        if len(self.bytes) != len(self.seconds):
            raise InputError(
                f"{noun}: {counted(len(self.bytes), 'number')} of bytes and "
                f"{counted(len(self.seconds), 'number')} of seconds"
            )

    @property
    def facts(self) -> dict[str, Any]:
        """The fields as plain data; ``busy`` only where devices are."""
        facts = asdict(self)
        return facts if self.busy else {k: v for k, v in facts.items() if k != "busy"}


@dataclass(frozen=True)
class CollectiveWay:
    """A way to do a collective: ``algorithm``, ``seconds``, names of the ``channels`` it holds."""

    algorithm: str
    seconds: float
    channels: tuple[str, ...]


@dataclass(frozen=True)
class Route:
    """The way of bytes from one device to another: ``latency`` (s), ``bandwidth`` (B/s), names of
    the ``channels`` held and of the devices passed (``hops``).
    """

    latency: float
    bandwidth: float
    channels: tuple[str, ...]
    hops: tuple[str, ...]


def one_by_one(row: Link | Mesh) -> Iterator[Link]:
    """The links that a row stands for, with their channels' own names."""
    sources, destinations = row.ends
    for src in sources:
        for dst in destinations:
            if src != dst:
                names = (c.replace("{from}", src).replace("{to}", dst) for c in row.channels)
                yield Link(src, dst, row.bandwidth, row.latency, tuple(names), row.source)


def link_texts(row: Link | Mesh) -> Iterator[str]:
    """The links that a row stands for, each as JSON, without its source."""
    sources, destinations = (list(map(json.dumps, names)) for names in row.ends)
    figures = json.dumps((float(row.bandwidth), float(row.latency) + 0.0, row.channels))[1:]
    for src in sources:
        there = figures.replace("{from}", src[1:-1])
        for dst in destinations:
            if src != dst:
                yield f"[{src}, {dst}, {there.replace('{to}', dst[1:-1])}"


def among(rows: Iterable[Link | Mesh], names: Container[str]) -> Iterator[Link | Mesh]:
    """The links whose ends are both among some devices."""
    for row in rows:
        src, dst = (tuple(name for name in side if name in names) for side in row.ends)
        if isinstance(row, Mesh):
            yield replace(row, src=src, dst=dst)
        elif src and dst:
            yield row


def renamed(link: Link, old: str, new: str) -> Link:
    """A link with a device's name replaced, in its ends and as a word of its channels."""
    word = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(old)}(?![A-Za-z0-9_])")
    return replace(
        link,
        src=new if link.src == old else link.src,
        dst=new if link.dst == old else link.dst,
        channels=tuple(word.sub(lambda _: new, channel) for channel in link.channels),
    )
