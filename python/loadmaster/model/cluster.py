"""Cluster: devices, their types, and the links that join them. Validation and routes are Rust's.

Reading, presets, edits and the machine at hand are functions of the files in ``clusters/`` and
``machine/``, which the methods here only call.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.files import write_bytes
from loadmaster.base.units import counted, parse_bytes
from loadmaster.model.clusters.devices import Device, DeviceType
from loadmaster.model.clusters.links import (
    CollectiveTimes,
    CollectiveWay,
    Link,
    Mesh,
    Route,
    link_texts,
    one_by_one,
)
from loadmaster.model.runtime import Dispatch


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
        self.name = checks.text("the name of a cluster", name)
        self.description = checks.text("the description of a cluster", description)
        self.source = checks.text("the source of a cluster", source)
        #: Measured times of collectives.
        self.collectives: tuple[CollectiveTimes, ...] = tuple(collectives)
        #: Seconds that launches cost a host; None: nothing.
        self.dispatch = dispatch
        self.devices: tuple[Device, ...] = tuple(devices)
        #: The links as they were given: one by one, or many as a :class:`Mesh`.
        self.wiring: tuple[Link | Mesh, ...] = tuple(
            row for row in links if isinstance(row, Link) or row.joins
        )
        given_types = list(types)
        for i, t in enumerate(given_types):
            if any(other.name == t.name for other in given_types[:i]):
                raise InputError(f"two device types are named {t.name!r}")
        by_name = {t.name: t for t in given_types}
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
        self._core = self._compiled()

    def _compiled(self) -> fast.Cluster:
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
        return tuple(link for row in self.wiring for link in one_by_one(row))

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
        """The way in which a collective of ``size`` bytes among some devices is done.

        ``kind`` is one of :data:`loadmaster.fast.COLLECTIVES`. A broadcast comes from the first
        device.

        >>> cluster = Cluster.preset("4xV100-PCIe")
        >>> cluster.collective("all_reduce", range(4), "64MiB").algorithm
        'halving and doubling'
        """
        checks.one_of("kind", kind, fast.COLLECTIVES)
        members = [self.index(device) for device in devices]
        way = self._core.collective(kind, members, parse_bytes(size, "size"))
        algorithm, seconds, channels = way
        return CollectiveWay(algorithm, seconds, tuple(map(self._core.channel_name, channels)))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of devices, types and links, without names and sources of the whole."""
        figures = [asdict(d) for d in self.devices], [t.facts for t in self.types]
        links = ", ".join(text for row in self.wiring for text in link_texts(row))
        text = f"[{json.dumps(_one_zero(figures), sort_keys=True)}, [{links}]]"
        facts = [_one_zero(t.facts) for t in self.collectives]
        text += json.dumps(facts) if facts else ""
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
        from loadmaster.model.clusters import edits

        return edits.subset(self, devices)

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
        from loadmaster.model.clusters import edits

        return edits.without_device(self, device)

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
        from loadmaster.model.clusters import edits

        return edits.with_device(self, like)

    def with_memory(self, memory: int | str, device: str | int | None = None) -> Cluster:
        """The cluster with other memory on one device, or on all.

        >>> Cluster.preset("2xV100-NVLink").with_memory("64GiB", "gpu1").memory
        [17179869184, 68719476736]
        """
        from loadmaster.model.clusters import edits

        return edits.with_memory(self, memory, device)

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
        from loadmaster.model.clusters import edits

        return edits.with_link_speed(self, factor, between)

    def with_types(self, types: Iterable[DeviceType]) -> Cluster:
        """The cluster with other figures of some device types, which are matched by name.

        >>> import loadmaster as lm
        >>> from dataclasses import replace
        >>> pcie = Cluster.preset("4xV100-PCIe")
        >>> paid = [replace(t, send_cost=lm.SendCost(bandwidth=10e9)) for t in pcie.types]
        >>> pcie.with_types(paid).types[0].send_cost.bandwidth
        10000000000.0
        """
        from loadmaster.model.clusters import edits

        return edits.with_types(self, types)

    def with_collectives(self, collectives: Iterable[CollectiveTimes]) -> Cluster:
        """The cluster with these measured times of collectives, and no others.

        >>> times = CollectiveTimes("all_reduce", 2, 1, (1000,), (50e-6,))
        >>> two = Cluster.mesh(2, memory="1GiB", bandwidth=1e9).with_collectives([times])
        >>> two.collective("all_reduce", [0, 1], 1000).seconds
        5e-05
        """
        from loadmaster.model.clusters import edits

        return edits.with_collectives(self, collectives)

    def with_dispatch(self, dispatch: Dispatch | None) -> Cluster:
        """The cluster where a host pays for launches, and device types no longer do.

        None: no host pays. The launch times of the types are then unknown: they stay 0.

        >>> eager = Cluster.preset("8xV100-NVLink").with_dispatch(Dispatch(5e-6))
        >>> eager.dispatch.launch, eager.types[0].launch
        (5e-06, 0.0)
        """
        from loadmaster.model.clusters import edits

        return edits.with_dispatch(self, dispatch)

    def with_speed(self, factor: float, device: str | int | None = None) -> Cluster:
        """The cluster with one device, or all, so many times as fast at everything they compute.

        Such a device is of a type of its own, ``"TYPE xFACTOR"``: peaks and memory bandwidth times
        the factor, launch time divided by it. What sending costs it and what launches cost a host
        stay.

        >>> Cluster.preset("2xV100-NVLink").with_speed(2, "gpu1").devices[1].type
        'V100-SXM2-16GB x2'
        """
        from loadmaster.model.clusters import edits

        return edits.with_speed(self, factor, device)

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
        from loadmaster.model.clusters.presets import preset

        return preset(name)

    @classmethod
    def new(
        cls,
        gpus: str,
        link: str | None = None,
        *,
        hosts: int = 1,
        network: str | None = None,
        ports: int | None = None,
    ) -> Cluster:
        """A cluster from a few words, with the figures of Loadmaster's tables.

        Parameters
        ----------
        gpus : str
            Those of one host: ``"2xRTX4090,1xA100"``. A type is named as in the table (``loadmaster
            cluster types``), as its maker's tools call it, or by an alias of the table. Of a card
            and a module of one alias (A100, H100), PCIe joins the card.
        link : str, optional
            What joins them: ``"pcie4"``, ``"pcie4x8"`` (8 lanes), ``"nvlink"`` (all that the GPUs
            have), ``"nvlink2x1"`` (1 link), ``"xgmi"``, or a rate (``"25 GB/s"``). Absent: what
            joins such GPUs as they are sold, where all have the same. GeForce cards of today copy
            to each other through the host's memory.
        hosts : int
            Equal hosts, at most 64.
        network : str, optional
            What joins hosts, by the speed of a port: ``"25GbE"``, ``"200Gb-IB"``, ``"NDR"``,
            ``"400Gb"``. A rate in bytes (``"400GB/s"``) is that of all ports of a host. Must be
            there for several hosts.
        ports : int, optional
            Network ports of a host, of which a transfer uses one. Absent: one per GPU for types
            that are sold so (``loadmaster cluster types``), else one.

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
        >>> cards = Cluster.new("8xH100", hosts=2, network="400Gb")
        >>> cards.route("node0.gpu1", "node1.gpu0").channels
        ('node0.gpu1.nic.tx', 'node1.gpu0.nic.rx')
        """
        from loadmaster.model.machine.described import described

        return described(gpus, link, hosts=hosts, network=network, ports=ports)

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
        from loadmaster.model.machine.detected import with_warnings

        return with_warnings(cpu=cpu)

    @classmethod
    def named(cls, name: str) -> Cluster:
        """A TOML file's, if there is one or the name ends in ``.toml``; else the preset's.

        >>> Cluster.named("4xV100-PCIe").n_devices
        4
        """
        from loadmaster.model.clusters.presets import named

        return named(name)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Cluster:
        """From a TOML file.

        Raises
        ------
        InputError
            The file cannot be read, is no TOML, or describes no valid cluster.
        """
        from loadmaster.model.clusters.reading import of_file

        return of_file(path)

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
        from loadmaster.model.clusters.reading import of_text

        return of_text(text, source, bare=bare)

    def to_toml(self) -> str:
        """As TOML that :meth:`from_toml` reads back, as short as a person would write it.

        >>> "gpu{0..3}" in Cluster.preset("4xV100-PCIe").to_toml()
        True
        """
        from loadmaster.model.clusters.writing import cluster_text

        return cluster_text(self)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes :meth:`to_toml` to a file."""
        write_bytes(path, self.to_toml().encode())


def _one_zero(value: Any) -> Any:
    """Plain data with 0.0 for -0.0, which is the same number."""
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, dict):
        return {key: _one_zero(one) for key, one in value.items()}
    return list(map(_one_zero, value)) if isinstance(value, list | tuple) else value
