"""Cluster: devices, their types, and the links that join them.

Read from TOML or a preset by name. Validation and routes are Rust's; this file is their face.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib import resources
from itertools import count, product
from typing import Any

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.files import naming, parse_toml, read_text, write_bytes
from loadmaster.base.text import fits, meant
from loadmaster.base.units import (
    RATE,
    SIZE,
    SPEED,
    TIME,
    Quantity,
    counted,
    parse_bytes,
)
from loadmaster.model.runtime import Dispatch, SendCost

#: Dtypes for which a device type may state its peak.
DTYPES = ("f64", "f32", "bf16", "f16", "f8", "i8")

#: A preset's name that begins with how many there are.
_SIZED = re.compile(r"(\d{1,4})x(.+)")

#: What a preset's name ends in where one host launches the kernels of all its devices.
_EAGER = "-eager"

#: The presets that are listed so: GPUs of one server, which one process of eager PyTorch serves.
_SERVERS = ("2xV100-NVLink", "4xV100-PCIe", "8xV100-NVLink", "8xH100-NVLink")

#: Numbers in the name of many devices, from the first to the last.
_RANGE = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")

#: More devices than any cluster may have.
_MOST_NAMES = 10_000


@dataclass(frozen=True)
class DeviceType:
    """A kind of device, with the figures its roofline needs.

    Attributes
    ----------
    name : str
    peak : mapping of dtype to FLOP/s
        Dense peak per dtype; one that is missing runs at the peak of ``f32``.
    memory_bandwidth : float
        B/s.
    launch : float
        Seconds that starting one kernel takes, as a part of the op's time on the device. 0 where a
        host launches (:class:`Dispatch`).
    source : str
        Where the figures come from.
    send_cost : SendCost or None
        What sending costs a device; None: nothing.
    """

    name: str
    peak: Mapping[str, float] = field(default_factory=dict)
    memory_bandwidth: float = 0.0
    launch: float = 0.0
    source: str = ""
    send_cost: SendCost | None = None

    def __post_init__(self) -> None:
        unknown = sorted(set(self.peak) - set(DTYPES))
        if unknown:
            raise InputError(
                f"device type {self.name!r}: unknown dtype {unknown[0]!r} in peak; "
                f"known are {', '.join(DTYPES)}"
            )
        figures = {f"peak of {d}": v for d, v in self.peak.items()}
        figures["memory_bandwidth"] = self.memory_bandwidth
        figures["launch"] = self.launch
        for what, value in figures.items():
            check = checks.positive if what.startswith("peak") else checks.not_negative
            check(f"device type {self.name!r}: {what}", value)

    @property
    def facts(self) -> dict[str, Any]:
        """The fields as plain data; ``send_cost`` only where there is one."""
        facts = asdict(self)
        return facts if self.send_cost else {k: v for k, v in facts.items() if k != "send_cost"}

    @property
    def has_roofline(self) -> bool:
        """Whether op times can be estimated on this type."""
        return bool(self.peak) and self.memory_bandwidth > 0


@dataclass(frozen=True)
class Device:
    """A device: unique ``name``, name of its ``type``, bytes of ``memory`` (or ``"32GiB"``)."""

    name: str
    type: str
    memory: int

    def __post_init__(self) -> None:
        memory = parse_bytes(self.memory, f"memory of device {self.name!r}")
        object.__setattr__(self, "memory", memory)


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
        """Whether there is a link in it: two different devices."""
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
        what = f"times of {self.kind} on {self.devices} devices"
        checks.one_of(f"{what}: kind", self.kind, fast.COLLECTIVES)
        for name in ("devices", "machines"):
            checks.integer(f"{what}: {name}", getattr(self, name), 1, 2**31)
        for size in self.bytes:
            checks.integer(f"{what}: bytes", size, 0, 2**63 - 1)
        for seconds in self.seconds:
            checks.not_negative(f"{what}: seconds", seconds)
        for seconds in self.busy:
            checks.not_negative(f"{what}: busy", seconds)
        if len(self.bytes) != len(self.seconds):
            raise InputError(
                f"{what}: {counted(len(self.bytes), 'number')} of bytes and "
                f"{counted(len(self.seconds), 'number')} of seconds"
            )

    @property
    def facts(self) -> dict[str, Any]:
        """The fields as plain data; ``busy`` only where devices are."""
        facts = asdict(self)
        return facts if self.busy else {k: v for k, v in facts.items() if k != "busy"}


@dataclass(frozen=True)
class CollectiveWay:
    """How a collective is done: ``algorithm``, ``seconds``, names of the ``channels`` it holds."""

    algorithm: str
    seconds: float
    channels: tuple[str, ...]


@dataclass(frozen=True)
class Route:
    """How bytes get from one device to another: ``latency`` (s), ``bandwidth`` (B/s), names of the
    ``channels`` held and of the devices passed (``hops``).
    """

    latency: float
    bandwidth: float
    channels: tuple[str, ...]
    hops: tuple[str, ...]


class Cluster:
    """Devices joined by channels, with a route for every pair. Immutable.

    Where two devices have no direct link the route is the widest path: largest bottleneck
    bandwidth, then fewest hops, then smallest indices. Latencies add up.

    Raises
    ------
    InputError
        No devices, duplicate names or links, unknown ends, a bandwidth or latency out of range, a
        pair that no route joins; each named.

    Examples
    --------
    >>> import loadmaster as lm
    >>> c = lm.Cluster.preset("4xV100-PCIe")
    >>> c.n_devices, c.devices[0].name
    (4, 'gpu0')
    """

    def __init__(
        self,
        devices: Sequence[Device],
        links: Iterable[Link | Mesh],
        types: Iterable[DeviceType] = (),
        *,
        name: str = "",
        description: str = "",
        source: str = "",
        collectives: Iterable[CollectiveTimes] = (),
        dispatch: Dispatch | None = None,
    ) -> None:
        self.name = name
        self.description = description
        self.source = source
        #: Measured times of collectives.
        self.collectives: tuple[CollectiveTimes, ...] = tuple(collectives)
        #: What launches cost a host; None: nothing.
        self.dispatch = dispatch
        self.devices: tuple[Device, ...] = tuple(devices)
        #: The links as they were given: one by one, or many as a :class:`Mesh`.
        self.wiring: tuple[Link | Mesh, ...] = tuple(
            row for row in links if isinstance(row, Link) or row.joins
        )
        given = list(types)
        for i, t in enumerate(given):
            if any(other.name == t.name for other in given[:i]):
                raise InputError(f"two device types are named {t.name!r}")
        by_name = {t.name: t for t in given}
        used = dict.fromkeys(device.type for device in self.devices)
        #: Types in use, in the order in which columns of time matrices stand.
        self.types: tuple[DeviceType, ...] = tuple(by_name.get(t, DeviceType(t)) for t in used)
        for t in self.types if dispatch else ():
            if t.launch:
                raise InputError(
                    f"device type {t.name!r} has a launch of {t.launch:g} s, and the cluster a "
                    "dispatch, so launches would count twice: leave the type's launch out, as "
                    "Cluster.with_dispatch does"
                )
        self._core = self._made()

    def _made(self) -> fast.Cluster:
        """The same for the judge."""
        return fast.Cluster(
            [(d.name, d.type, d.memory) for d in self.devices],
            [
                (
                    list(row.ends[0]),
                    list(row.ends[1]),
                    row.bandwidth,
                    row.latency,
                    list(row.channels),
                )
                for row in self.wiring
            ],
            [
                (
                    t.kind,
                    t.machines,
                    t.devices,
                    list(zip(t.bytes, t.seconds, strict=True)),
                    list(t.busy),
                )
                for t in self.collectives
            ],
            [
                (t.name, t.send_cost.latency, t.send_cost.bandwidth)
                for t in self.types
                if t.send_cost
            ],
            host_each=self.dispatch is not None and not self.dispatch.one_host,
        )

    # -- lookup ------------------------------------------------------------------------------

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return len(self.devices)

    @property
    def device_types(self) -> list[int]:
        """Index into :attr:`types` per device."""
        return self._core.device_types

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The links one by one."""
        return tuple(link for row in self.wiring for link in _one_by_one(row))

    @cached_property
    def channels(self) -> list[str]:
        """Names of the channels."""
        return self._core.channels

    @property
    def n_channels(self) -> int:
        """Number of channels."""
        return self._core.n_channels

    @property
    def memory(self) -> list[int]:
        """Bytes per device."""
        return [d.memory for d in self.devices]

    def __repr__(self) -> str:
        devices = counted(self.n_devices, "device")
        return f"Cluster({self.name!r}, {devices}, {counted(self.n_channels, 'channel')})"

    def index(self, device: str | int) -> int:
        """Index of a device given by name or index."""
        if device in self._index:
            return self._index[device]
        known = ", ".join(d.name for d in self.devices)
        raise InputError(f"no device {device!r} in cluster {self.name!r}; it has {known}")

    @cached_property
    def _index(self) -> dict[str | int, int]:
        """Index per device, by index and by name."""
        index: dict[str | int, int] = {}
        for i, device in enumerate(self.devices):
            index[i] = index[device.name] = i
        return index

    def route(self, src: str | int, dst: str | int) -> Route:
        """The route between two devices, by name or index."""
        latency, bandwidth, channels, hops = self._core.route(self.index(src), self.index(dst))
        return Route(
            latency,
            bandwidth,
            tuple(map(self._core.channel_name, channels)),
            tuple(self.devices[h].name for h in hops),
        )

    def collective(self, kind: str, devices: Iterable[str | int], size: int | str) -> CollectiveWay:
        """How a collective of ``size`` bytes among some devices is done.

        ``kind`` is one of :data:`loadmaster.fast.COLLECTIVES`. A broadcast comes from the first
        device.

        >>> cluster = Cluster.preset("4xV100-PCIe")
        >>> cluster.collective("all_reduce", range(4), "64MiB").algorithm
        'halving and doubling'
        """
        checks.one_of("kind", kind, fast.COLLECTIVES)
        members = [self.index(device) for device in devices]
        found = self._core.collective(kind, members, parse_bytes(size, "size"))
        algorithm, seconds, channels = found
        return CollectiveWay(algorithm, seconds, tuple(map(self._core.channel_name, channels)))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of devices, types and links, without names and sources of the whole."""
        figures = [asdict(d) for d in self.devices], [t.facts for t in self.types]
        links = ", ".join(text for row in self.wiring for text in _link_texts(row))
        text = f"[{json.dumps(figures, sort_keys=True)}, [{links}]]"
        text += json.dumps([t.facts for t in self.collectives]) if self.collectives else ""
        text += json.dumps([self.dispatch.launch, self.dispatch.one_host]) if self.dispatch else ""
        return hashlib.sha256(text.encode()).hexdigest()

    # -- variations --------------------------------------------------------------------------

    @classmethod
    def mesh(
        cls,
        n_devices: int,
        *,
        memory: int | str,
        bandwidth: float,
        latency: float = 0.0,
        type: DeviceType | str = "gpu",
        name: str = "",
    ) -> Cluster:
        """Equal devices with a channel for every ordered pair.

        >>> Cluster.mesh(3, memory="16GiB", bandwidth=12e9, latency=10e-6).channels[0]
        'gpu0->gpu1'
        """
        device_type = type if isinstance(type, DeviceType) else DeviceType(type)
        size = parse_bytes(memory, "memory")
        devices = [Device(f"gpu{i}", device_type.name, size) for i in range(n_devices)]
        names = tuple(d.name for d in devices)
        links = [Mesh(names, names, bandwidth, latency)]
        return cls(devices, links, [device_type], name=name or f"{n_devices}x{device_type.name}")

    def subset(self, devices: Iterable[str | int]) -> Cluster:
        """The cluster with only some devices; their links stay, routes are found anew."""
        kept = [self.devices[self.index(d)] for d in devices]
        names = {d.name for d in kept}
        return Cluster(
            kept,
            _among(self.wiring, names),
            self.types,
            name=f"{self.name}[{len(kept)}]",
            collectives=self.collectives,
            dispatch=self.dispatch,
        )

    def shortfall(self, peak: Iterable[int], room: Sequence[int] | None = None) -> dict[str, int]:
        """Bytes that devices lack where each holds so many at its peak: by name, those that lack
        any. ``room`` is what each may hold, its memory if absent.

        >>> Cluster.mesh(2, memory="1GiB", bandwidth=1e9).shortfall([2**30, 2**30 + 8])
        {'gpu1': 8}
        """
        rows = zip(self.devices, map(int, peak), room or self.memory, strict=True)
        return {device.name: held - has for device, held, has in rows if held > has}

    def without_device(self, device: str | int) -> Cluster:
        """The cluster with one device less; see :meth:`subset`.

        >>> len(Cluster.preset("4xV100-PCIe").without_device("gpu3").devices)
        3
        """
        gone = self.index(device)
        if self.n_devices == 1:
            raise InputError(f"{self.devices[gone].name} is the only device of the cluster")
        return self.subset(i for i in range(self.n_devices) if i != gone)

    def with_device(self, like: str | int) -> Cluster:
        """The cluster with one more device: a copy of one that it has, joined as that one is.

        The copy has the memory and the type of ``like``, and its links with their figures. A
        channel whose name has that of ``like`` in it becomes the copy's own (``gpu3.tx`` gives
        ``gpu4.tx``); any other, such as a bridge, is shared. ``like`` and its copy are joined as
        ``like`` and the device that its fastest direct link leads to.

        Raises
        ------
        InputError
            No such device; it has no direct link both ways to copy.

        Examples
        --------
        >>> larger = Cluster.preset("4xV100-PCIe").with_device("gpu3")
        >>> larger.devices[-1].name, larger.route("gpu3", "gpu4").channels
        ('gpu4', ('gpu3.tx', 'gpu4.rx'))
        """
        model = self.devices[self.index(like)]
        name = self._next_name(model.name)
        direct = {(k.src, k.dst): k for k in self.links}
        peers = [b for a, b in direct if a == model.name and (b, a) in direct]
        if not peers:
            raise InputError(
                f"{model.name} has no direct link to and from another device, so how a copy would "
                "be joined is not known: describe the larger cluster as TOML or by lm.Cluster"
            )
        peer = max(peers, key=lambda b: direct[model.name, b].bandwidth)
        links = list(self.links)
        links += [_renamed(k, model.name, name) for k in links if model.name in (k.src, k.dst)]
        links.append(_renamed(direct[model.name, peer], peer, name))
        links.append(_renamed(direct[peer, model.name], peer, name))
        return self._changed([*self.devices, replace(model, name=name)], links, self.types)

    def with_memory(self, memory: int | str, device: str | int | None = None) -> Cluster:
        """The cluster with other memory on one device, or on all.

        >>> Cluster.preset("2xV100-NVLink").with_memory("64GiB", "gpu1").memory
        [17179869184, 68719476736]
        """
        which = range(self.n_devices) if device is None else [self.index(device)]
        size = parse_bytes(memory, "memory")
        devices = [replace(d, memory=size) if i in which else d for i, d in enumerate(self.devices)]
        return self._changed(devices, self.wiring, self.types)

    def with_link_speed(
        self, factor: float, between: tuple[str | int, str | int] | None = None
    ) -> Cluster:
        """The cluster with the bandwidth of its links times a factor; latencies stay.

        Measured times of collectives are left out: they hold for the links as they were.

        Parameters
        ----------
        factor : float
        between : two devices, optional
            Only the direct links between these, both ways; all links if absent.

        Raises
        ------
        InputError
            No positive finite factor, no direct link between the two.

        Examples
        --------
        >>> c = Cluster.mesh(2, memory="1GiB", bandwidth=1e9)
        >>> c.with_link_speed(2).route(0, 1).bandwidth
        2000000000.0
        """
        factor = checks.positive("link speed: factor", factor)

        def faster(row: Any) -> Any:
            return replace(row, bandwidth=row.bandwidth * factor)

        if between is None:
            return self._changed(self.devices, map(faster, self.wiring), self.types, ())
        ends = {self.devices[self.index(d)].name for d in between}
        if not any({k.src, k.dst} == ends for k in self.links):
            raise InputError(f"no direct link joins {' and '.join(sorted(ends))}")
        links = (faster(k) if {k.src, k.dst} == ends else k for k in self.links)
        return self._changed(self.devices, links, self.types, ())

    def with_types(self, types: Iterable[DeviceType]) -> Cluster:
        """The cluster with other figures of some device types, which are matched by name.

        >>> pcie = Cluster.preset("4xV100-PCIe")
        >>> paid = [replace(t, send_cost=SendCost(bandwidth=10e9)) for t in pcie.types]
        >>> pcie.with_types(paid).types[0].send_cost.bandwidth
        10000000000.0
        """
        changed = {t.name: t for t in types}
        types = [changed.get(t.name, t) for t in self.types]
        return self._changed(self.devices, self.wiring, types)

    def with_collectives(self, collectives: Iterable[CollectiveTimes]) -> Cluster:
        """The cluster with these measured times of collectives, and no others.

        >>> times = CollectiveTimes("all_reduce", 2, 1, (1000,), (50e-6,))
        >>> two = Cluster.mesh(2, memory="1GiB", bandwidth=1e9).with_collectives([times])
        >>> two.collective("all_reduce", [0, 1], 1000).seconds
        5e-05
        """
        return self._changed(self.devices, self.wiring, self.types, collectives)

    def with_dispatch(self, dispatch: Dispatch | None) -> Cluster:
        """The cluster where a host pays for launches, and device types no longer do.

        None: no host pays. The launch times of the types are then unknown: they stay 0.

        >>> eager = Cluster.preset("8xV100-NVLink").with_dispatch(Dispatch(5e-6))
        >>> eager.dispatch.launch, eager.types[0].launch
        (5e-06, 0.0)
        """
        types = [replace(t, launch=0.0) for t in self.types] if dispatch else self.types
        return Cluster(
            self.devices,
            self.wiring,
            types,
            name=self._changed_name,
            collectives=self.collectives,
            dispatch=dispatch,
        )

    def with_speed(self, factor: float, device: str | int | None = None) -> Cluster:
        """The cluster with one device, or all, so many times as fast at everything they compute.

        Such a device is of a type of its own, ``"TYPE xFACTOR"``: peaks and memory bandwidth times
        the factor, launch time divided by it. What sending costs it and what launches cost a host
        stay.

        >>> Cluster.preset("2xV100-NVLink").with_speed(2, "gpu1").devices[1].type
        'V100-SXM2-16GB x2'
        """
        factor = checks.positive("device speed: factor", factor)
        which = range(self.n_devices) if device is None else [self.index(device)]
        types = {t.name: t for t in self.types}
        devices = list(self.devices)
        for i in which:
            old = types[devices[i].type]
            name = f"{old.name} x{repr(factor).removesuffix('.0')}"
            faster = replace(
                old,
                name=name,
                peak={dtype: peak * factor for dtype, peak in old.peak.items()},
                memory_bandwidth=old.memory_bandwidth * factor,
                launch=old.launch / factor,
            )
            if types.setdefault(name, faster) != faster:
                raise InputError(f"another device type is already named {name!r}")
            devices[i] = replace(devices[i], type=name)
        return self._changed(devices, self.wiring, types.values())

    def _changed(
        self,
        devices: Sequence[Device],
        links: Iterable[Link | Mesh],
        types: Iterable[DeviceType],
        collectives: Iterable[CollectiveTimes] | None = None,
    ) -> Cluster:
        name = self._changed_name
        kept = self.collectives if collectives is None else collectives
        return Cluster(devices, links, types, name=name, collectives=kept, dispatch=self.dispatch)

    @property
    def _changed_name(self) -> str:
        return self.name if self.name.endswith(", changed") else f"{self.name}, changed"

    def _next_name(self, like: str) -> str:
        """A free name: a device's own with the next free number."""
        taken = {d.name for d in self.devices}
        stem = like.rstrip("0123456789")
        numbers = count(int(like[len(stem) :] or 0) + 1)
        return next(name for i in numbers if (name := f"{stem}{i}") not in taken)

    # -- TOML --------------------------------------------------------------------------------

    @classmethod
    def preset(cls, name: str) -> Cluster:
        """A cluster that comes with Loadmaster (see :func:`presets`), or the first devices of one.

        A name that ends in ``-eager`` is that of a server whose kernels are launched by one thread
        of one process, as eager PyTorch does: see :class:`Dispatch`.

        Raises
        ------
        InputError
            No preset has that name or is that, and more; the known ones are listed.

        Examples
        --------
        >>> Cluster.preset("8xA100-NVLink").n_devices
        8
        >>> Cluster.preset("4xA100-NVLink").description.partition(":")[0]
        'The first 4 devices of 8xA100-NVLink'
        >>> Cluster.preset("8xH100-NVLink-eager").dispatch.launch
        5e-06
        """
        whole, asked, there = _preset(name)
        of_file = whole.removesuffix(_EAGER)
        file = resources.files("loadmaster.model") / "presets" / f"{of_file}.toml"
        cluster = cls.from_toml(file.read_text(encoding="utf-8"), f"preset {of_file}")
        cluster = cluster if whole == of_file else _eager(cluster)
        if asked == there:
            return cluster
        n = cluster.n_devices * asked // there
        part = cluster.subset(range(n))
        first = f"The first {n} devices" if n > 1 else "The first device"
        text = f"{first} of {whole}: {cluster.description}"
        return Cluster(
            part.devices,
            part.wiring,
            part.types,
            name=name,
            description=text,
            source=cluster.source,
            collectives=part.collectives,
            dispatch=part.dispatch,
        )

    @classmethod
    def new(
        cls, gpus: str, link: str | None = None, *, hosts: int = 1, network: str | None = None
    ) -> Cluster:
        """A cluster from a few words, with the figures of Loadmaster's tables.

        Parameters
        ----------
        gpus : str
            Those of one host: ``"2xRTX4090,1xA100"``. A type is named as in the table, or by how
            that begins.
        link : str, optional
            What joins them: ``"pcie4"``, ``"pcie4x8"`` (8 lanes), ``"nvlink"`` (all that the GPUs
            have), ``"nvlink2x1"`` (1 link), ``"xgmi"``, or a rate (``"25 GB/s"``). Must be there
            for several. GeForce cards of today copy to each other through the host's memory.
        hosts : int
            Equal hosts, at most 64.
        network : str, optional
            What joins hosts, one port each: ``"25GbE"``, ``"200Gb-IB"``, ``"NDR"``, or a rate.
            Must be there for several.

        Raises
        ------
        InputError
            A type, link or network that no table has, or that is missing; each with the way out.

        Examples
        --------
        >>> Cluster.new("4xA100", "pcie4").digest == Cluster.preset("4xA100-PCIe").digest
        True
        >>> two = Cluster.new("2xL4", "pcie4", hosts=2, network="25GbE")
        >>> two.route("node0.gpu1", "node1.gpu0").channels
        ('node0.nic.tx', 'node1.nic.rx')
        """
        from loadmaster.model.machine.described import described

        return described(gpus, link, hosts=hosts, network=network)

    @classmethod
    def detect(cls, *, cpu: bool | None = None) -> Cluster:
        """The machine at hand: CUDA devices, AMD GPUs, what joins them; else its CPU.

        Asks nvidia-smi and rocm-smi, where they are, and reads /proc and /sys. Links get the
        figures that links of their kind reach elsewhere (:func:`loadmaster.detect` can time
        them). Warns of what could not be found out, with the way to fill it in.

        Parameters
        ----------
        cpu : bool, optional
            Whether the CPU is a device; by default only where there is no GPU.

        Raises
        ------
        InputError
            Neither a GPU nor a CPU was found.

        Examples
        --------
        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore"):
        ...     here = Cluster.detect(cpu=True)
        >>> here.devices[0].name
        'cpu'
        """
        from loadmaster.base.warnings import warn
        from loadmaster.model.machine.detected import detected

        found = detected(cpu=cpu)
        warn(*found.notes, *found.untimed)
        return found.cluster

    @classmethod
    def named(cls, name: str) -> Cluster:
        """A TOML file's, if there is one or the name ends in ``.toml``; else the preset's.

        >>> Cluster.named("4xV100-PCIe").n_devices
        4
        """
        if name.endswith(".toml") or os.path.exists(name):
            return cls.read(name)
        return cls.preset(name)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Cluster:
        """From a TOML file.

        Raises
        ------
        InputError
            The file cannot be read, is no TOML, or describes no valid cluster.
        """
        return cls.from_toml(read_text(path), os.fspath(path))

    @classmethod
    def from_toml(cls, text: str, source: str = "cluster", *, bare: bool = False) -> Cluster:
        """From TOML text; ``source`` is named in errors.

        ``[[device]]`` has ``name``, ``type``, ``memory``; ``{0..7}`` in its name stands for the
        numbers from 0 to 7, and for as many devices. ``[[type]]`` has the fields of
        :class:`DeviceType`, ``[dispatch]`` those of :class:`Dispatch`. ``[[link]]`` has ``from``
        and ``to``, ``bandwidth``, ``latency``, and ``channels``, in which ``{from}`` and ``{to}``
        stand for the ends. An end is a device, a pattern such as ``"gpu*"``, or a list of these: a
        pattern or a list gives a :class:`Mesh`. ``[[collective]]`` has the fields of
        :class:`CollectiveTimes`. A type of Loadmaster's own table (``"L4-24GB"``) needs no
        ``[[type]]``.

        Figures are texts with a unit: ``"80GiB"``, ``"25 GB/s"``, ``"200 Gbit/s"``, ``"10 us"``,
        ``"14 TFLOP/s"``. A number without a unit is refused, unless it is 0 or so large (a
        latency: so small) that it can only be bytes, B/s, seconds or FLOP/s. ``bare`` says that a
        program wrote the text, as it stands in plans: then any number is one of these.

        Examples
        --------
        >>> rack = Cluster.from_toml('''
        ... [[device]]
        ... name = "node{0..1}.gpu{0..499}"
        ... type = "gpu"
        ... memory = "80GiB"
        ... [[link]]
        ... from = "*"
        ... to = "*"
        ... bandwidth = "25 GB/s"
        ... channels = ["{from}.tx", "{to}.rx"]
        ... ''')
        >>> rack
        Cluster('', 1000 devices, 2000 channels)
        >>> rack.route("node0.gpu0", "node1.gpu499").channels
        ('node0.gpu0.tx', 'node1.gpu499.rx')
        """
        document = parse_toml(text, source)
        with naming(source):
            known = {"name", "description", "source", "device", "link", "type", "collective"}
            checks.known_keys("cluster", document, known | {"dispatch"})
            devices = [
                d
                for i, row in enumerate(_tables(document, "device"))
                for d in _devices(row, i, bare)
            ]
            known_devices = {d.name: None for d in devices}
            return cls(
                devices,
                [
                    _wired(row, i, known_devices, bare)
                    for i, row in enumerate(_tables(document, "link"))
                ],
                _types(document, devices, bare),
                name=str(document.get("name", "")),
                description=str(document.get("description", "")),
                source=str(document.get("source", "")),
                collectives=[
                    _collective_times(row, i)
                    for i, row in enumerate(_tables(document, "collective"))
                ],
                dispatch=_dispatch(document, bare),
            )

    def to_toml(self) -> str:
        """As TOML that :meth:`from_toml` reads back, as short as a person would write it.

        >>> "gpu{0..3}" in Cluster.preset("4xV100-PCIe").to_toml()
        True
        """
        from loadmaster.model.compact import cluster_text

        return cluster_text(self)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes :meth:`to_toml` to a file."""
        write_bytes(path, self.to_toml().encode())


def presets() -> list[str]:
    """Names of the clusters that come with Loadmaster.

    >>> "4xV100-PCIe" in presets()
    True
    """
    files = (resources.files("loadmaster.model") / "presets").iterdir()
    names = [f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")]
    return sorted(names + [name + _EAGER for name in _SERVERS])


def _eager(cluster: Cluster) -> Cluster:
    """The cluster where one host pays what launching a kernel takes, instead of each device."""
    launch = max(t.launch for t in cluster.types)
    source = f"the launch of {cluster.types[0].name} in {cluster.name}, paid by the one thread"
    dispatch = Dispatch(launch, source=f"{source} of a process of eager PyTorch")
    described = f"{cluster.description}; one thread launches all kernels, as eager PyTorch does"
    changed = cluster.with_dispatch(dispatch)
    return Cluster(
        changed.devices,
        changed.wiring,
        changed.types,
        name=cluster.name + _EAGER,
        description=described,
        source=cluster.source,
        collectives=changed.collectives,
        dispatch=dispatch,
    )


def _preset(name: str) -> tuple[str, int, int]:
    """The preset that has a name or is the smallest of more, how many of its first number are asked
    for, and how many it has.
    """
    known = presets()
    if name in known:
        return name, 1, 1
    if asked := _SIZED.fullmatch(name):
        sizes = (
            int(found[1])
            for found in map(_SIZED.fullmatch, known)
            if found and found[2] == asked[2]
        )
        for size in sorted(sizes):
            if 0 < int(asked[1]) < size:
                return f"{size}x{asked[2]}", int(asked[1]), size
    raise InputError(
        f"no preset is named {name!r}{meant(name, known)}, and fewer of each, such as "
        "4xA100-NVLink; any other is a TOML file, or is made by `loadmaster cluster new` or "
        "Cluster.new"
    )


def _one_by_one(row: Link | Mesh) -> Iterator[Link]:
    """The links that a row stands for, with their channels' own names."""
    sources, destinations = row.ends
    for src in sources:
        for dst in destinations:
            if src != dst:
                names = (c.replace("{from}", src).replace("{to}", dst) for c in row.channels)
                yield Link(src, dst, row.bandwidth, row.latency, tuple(names), row.source)


def _link_texts(row: Link | Mesh) -> Iterator[str]:
    """The links that a row stands for, each as JSON, without its source."""
    sources, destinations = (list(map(json.dumps, names)) for names in row.ends)
    figures = json.dumps((float(row.bandwidth), float(row.latency), row.channels))[1:]
    for src in sources:
        there = figures.replace("{from}", src[1:-1])
        for dst in destinations:
            if src != dst:
                yield f"[{src}, {dst}, {there.replace('{to}', dst[1:-1])}"


def _among(rows: Iterable[Link | Mesh], names: Container[str]) -> Iterator[Link | Mesh]:
    """The links whose ends are both among some devices."""
    for row in rows:
        src, dst = (tuple(name for name in side if name in names) for side in row.ends)
        if isinstance(row, Mesh):
            yield replace(row, src=src, dst=dst)
        elif src and dst:
            yield row


def _renamed(link: Link, old: str, new: str) -> Link:
    """A link with a device's name replaced, in its ends and as a word of its channels."""
    word = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(old)}(?![A-Za-z0-9_])")
    return replace(
        link,
        src=new if link.src == old else link.src,
        dst=new if link.dst == old else link.dst,
        channels=tuple(word.sub(lambda _: new, channel) for channel in link.channels),
    )


def _tables(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    tables = document.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(t, Mapping) for t in tables):
        raise InputError(f"{key!r} must be tables: write [[{key}]]")
    return tables


def _field(row: Mapping[str, Any], what: str, key: str, kind: Any, default: Any = None) -> Any:
    value = row.get(key, default)
    if value is None:
        raise InputError(f"{what} has no {key!r}")
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{what}: {key} is {value!r}")
    return value


def _figure(row: Mapping[str, Any], what: str, key: str, of: Quantity, bare: bool) -> float | int:
    """A figure of a row; 0 where it has none, but for a bandwidth of a link."""
    return of.read(_field(row, what, key, (int, float, str), 0.0), f"{what}: {key}", bare)


def _devices(row: Mapping[str, Any], i: int, bare: bool) -> Iterator[Device]:
    what = f"device {row.get('name', i)!r}"
    checks.known_keys(what, row, {"name", "type", "memory"})
    pattern = _field(row, what, "name", str)
    if "memory" not in row:
        raise InputError(f"{what} has no 'memory'")
    kind = _field(row, what, "type", str, "") or None
    memory = row["memory"]
    if checks.is_number(memory):
        memory = SIZE.read(memory, f"memory of {what}", bare)
    for name in _numbered(pattern):
        yield Device(name, kind or name, memory)


def _numbered(pattern: str) -> Iterator[str]:
    """The names that a pattern with ranges stands for; the last range runs fastest."""
    texts = _RANGE.split(pattern)
    ranges = [range(int(a), int(b) + 1) for a, b in zip(texts[1::3], texts[2::3], strict=True)]
    if not 0 < math.prod(map(len, ranges)) <= _MOST_NAMES:
        raise InputError(
            f"device {pattern!r}: its ranges must go up, and give at most {_MOST_NAMES} names"
        )
    for numbers in product(*ranges):
        given = [
            text for pair in zip(texts[:-1:3], map(str, numbers), strict=True) for text in pair
        ]
        yield "".join(given) + texts[-1]


def _collective_times(row: Mapping[str, Any], i: int) -> CollectiveTimes:
    what = f"collective {i}"
    fields = {"kind", "devices", "machines", "bytes", "seconds", "source", "busy"}
    checks.known_keys(what, row, fields)
    return CollectiveTimes(
        _field(row, what, "kind", str),
        _field(row, what, "devices", int),
        _field(row, what, "machines", int, 1),
        tuple(_field(row, what, "bytes", list)),
        tuple(_field(row, what, "seconds", list)),
        _field(row, what, "source", str, ""),
        tuple(_field(row, what, "busy", list, [])),
    )


def _types(
    document: Mapping[str, Any], devices: Iterable[Device], bare: bool
) -> Iterator[DeviceType]:
    """The types that a document defines, and those of the table that its devices only name."""
    from loadmaster.model.machine.types import known_types

    given = [read_type(row, i, bare) for i, row in enumerate(_tables(document, "type"))]
    yield from given
    known = {} if bare else known_types()
    for name in dict.fromkeys(d.type for d in devices):
        if name in known and all(t.name != name for t in given):
            yield known[name].type


def read_type(row: Mapping[str, Any], i: int, bare: bool = False) -> DeviceType:
    """The device type of a table ``[[type]]``, the ``i``-th of a document."""
    what = f"type {row.get('name', i)!r}"
    known = {"name", "peak", "memory_bandwidth", "launch", "source", "send_cost"}
    checks.known_keys(what, row, known)
    return DeviceType(
        _field(row, what, "name", str),
        {
            dtype: SPEED.read(peak, f"{what}: peak of {dtype}", bare)
            for dtype, peak in _field(row, what, "peak", Mapping, {}).items()
        },
        _figure(row, what, "memory_bandwidth", RATE, bare),
        _figure(row, what, "launch", TIME, bare),
        _field(row, what, "source", str, ""),
        _send_cost(_field(row, what, "send_cost", Mapping, {}), what, bare),
    )


def _send_cost(row: Mapping[str, Any], what: str, bare: bool) -> SendCost | None:
    if not row:
        return None
    of = f"{what}: send_cost"
    checks.known_keys(of, row, {"latency", "bandwidth"})
    figures = (
        _figure(row, of, "latency", TIME, bare),
        _figure(row, of, "bandwidth", RATE, bare),
    )
    with naming(what):
        return SendCost(*map(float, figures))


def _dispatch(document: Mapping[str, Any], bare: bool) -> Dispatch | None:
    row = _field(document, "cluster", "dispatch", Mapping, {})
    if not row:
        return None
    checks.known_keys("dispatch", row, {"launch", "one_host", "source"})
    launch = float(_figure(row, "dispatch", "launch", TIME, bare))
    return Dispatch(launch, row.get("one_host", True), _field(row, "dispatch", "source", str, ""))


def _wired(row: Mapping[str, Any], i: int, devices: Mapping[str, None], bare: bool) -> Link | Mesh:
    what = f"link {i} (from {row.get('from')!r} to {row.get('to')!r})"
    checks.known_keys(what, row, {"from", "to", "bandwidth", "latency", "channels", "source"})
    _field(row, what, "bandwidth", (int, float, str))
    figures = (
        float(_figure(row, what, "bandwidth", RATE, bare)),
        float(_figure(row, what, "latency", TIME, bare)),
        tuple(map(str, _field(row, what, "channels", list, []))),
        str(row.get("source", "")),
    )
    ends = [_field(row, what, key, (str, list)) for key in ("from", "to")]
    src, dst = (_matching(end, what, devices) for end in ends)
    if all(isinstance(end, str) and (end in devices or "*" not in end) for end in ends):
        return Link(src[0], dst[0], *figures)
    return Mesh(src, dst, *figures)


def _matching(end: str | list[Any], what: str, devices: Mapping[str, None]) -> tuple[str, ...]:
    """The devices that one end of a row of links names: each by its name, or by a pattern."""
    names: dict[str, None] = {}
    for pattern in [end] if isinstance(end, str) else map(str, end):
        if pattern in devices or "*" not in pattern:
            if pattern in names:
                raise InputError(f"{what}: one end has {pattern!r} twice")
            names[pattern] = None
            continue
        matching = [name for name in devices if fits(name, pattern.split("*"))]
        if not matching:
            raise InputError(f"{what}: no device's name matches {pattern!r}")
        names.update(dict.fromkeys(matching))
    return tuple(names)
