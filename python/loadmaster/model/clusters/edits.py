"""Changes to a cluster: each function returns another cluster, and the methods of
:class:`~loadmaster.model.cluster.Cluster` say what each does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.units import parse_bytes
from loadmaster.model.cluster import Cluster
from loadmaster.model.clusters.devices import Device, DeviceType
from loadmaster.model.clusters.links import CollectiveTimes, Link, Mesh, among, renamed
from loadmaster.model.runtime import Dispatch


def subset(cluster: Cluster, devices: Iterable[str | int]) -> Cluster:
    """The cluster with only some devices; their links stay, routes are computed again.

    Measured times of collectives go where links no longer tell which devices are of one host.
    """
    at = [cluster.index(d) for d in devices]
    kept = [cluster.devices[i] for i in at]
    links = list(among(cluster.wiring, {d.name for d in kept}))

    def part(collectives: Iterable[CollectiveTimes]) -> Cluster:
        name = f"{cluster.name}[{len(kept)}]"
        return Cluster(
            kept,
            links,
            cluster.types,
            name=name,
            collectives=collectives,
            dispatch=cluster.dispatch,
        )

    whole = part(cluster.collectives)
    hosts = [cluster._core.machines[i] for i in at]
    pairs = set(zip(hosts, whole._core.machines, strict=True))
    is_told = len(pairs) == len(set(hosts)) == len(set(whole._core.machines))
    return whole if is_told else part(())


def without_device(cluster: Cluster, device: str | int) -> Cluster:
    """The cluster with one device less."""
    gone = cluster.index(device)
    if cluster.n_devices == 1:
        raise InputError(f"{cluster.devices[gone].name} is the only device of the cluster")
    return subset(cluster, (i for i in range(cluster.n_devices) if i != gone))


def with_device(cluster: Cluster, like: str | int) -> Cluster:
    """The cluster with a copy of one of its devices, joined as that one is."""
    model = cluster.devices[cluster.index(like)]
    name = _next_name(cluster, model.name)
    direct = {(k.src, k.dst): k for k in cluster.links}
    peers = [b for a, b in direct if a == model.name and (b, a) in direct]
    if not peers:
        raise InputError(
            f"{model.name} has no direct link to and from another device, so how a copy would "
            "be joined is not known: describe the larger cluster as TOML or by lm.Cluster"
        )
    peer = max(peers, key=lambda b: direct[model.name, b].bandwidth)
    links = list(cluster.links)
    links += [renamed(k, model.name, name) for k in links if model.name in (k.src, k.dst)]
    links.append(renamed(direct[model.name, peer], peer, name))
    links.append(renamed(direct[peer, model.name], peer, name))
    return _changed(cluster, [*cluster.devices, replace(model, name=name)], links, cluster.types)


def with_memory(cluster: Cluster, memory: int | str, device: str | int | None = None) -> Cluster:
    """The cluster with other memory on one device, or on all."""
    which = range(cluster.n_devices) if device is None else [cluster.index(device)]
    size = parse_bytes(memory, "memory")
    devices = [replace(d, memory=size) if i in which else d for i, d in enumerate(cluster.devices)]
    return _changed(cluster, devices, cluster.wiring, cluster.types)


def with_link_speed(
    cluster: Cluster, factor: float, between: tuple[str | int, str | int] | None = None
) -> Cluster:
    """The cluster with the bandwidth of its links, or of those between two, times a factor."""
    factor = checks.positive("link speed: factor", factor)

    def faster(row: Any) -> Any:
        return replace(row, bandwidth=row.bandwidth * factor)

    if between is None:
        return _changed(cluster, cluster.devices, map(faster, cluster.wiring), cluster.types, ())
    ends = {cluster.devices[cluster.index(d)].name for d in between}
    if not any({k.src, k.dst} == ends for k in cluster.links):
        raise InputError(f"no direct link joins {' and '.join(sorted(ends))}")
    links = (faster(k) if {k.src, k.dst} == ends else k for k in cluster.links)
    return _changed(cluster, cluster.devices, links, cluster.types, ())


def with_types(cluster: Cluster, types: Iterable[DeviceType]) -> Cluster:
    """The cluster with other figures of some device types, which are matched by name."""
    changed = {t.name: t for t in types}
    types = [changed.get(t.name, t) for t in cluster.types]
    return _changed(cluster, cluster.devices, cluster.wiring, types)


def with_collectives(cluster: Cluster, collectives: Iterable[CollectiveTimes]) -> Cluster:
    """The cluster with these measured times of collectives, and no others."""
    return _changed(cluster, cluster.devices, cluster.wiring, cluster.types, collectives)


def with_dispatch(cluster: Cluster, dispatch: Dispatch | None) -> Cluster:
    """The cluster where a host pays for launches, and device types no longer do."""
    types = [replace(t, launch=0.0) for t in cluster.types] if dispatch else cluster.types
    return Cluster(
        cluster.devices,
        cluster.wiring,
        types,
        name=_changed_name(cluster),
        collectives=cluster.collectives,
        dispatch=dispatch,
    )


def with_speed(cluster: Cluster, factor: float, device: str | int | None = None) -> Cluster:
    """The cluster with one device, or all, so many times as fast at all that they compute."""
    factor = checks.positive("device speed: factor", factor)
    which = range(cluster.n_devices) if device is None else [cluster.index(device)]
    types = {t.name: t for t in cluster.types}
    devices = list(cluster.devices)
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
    return _changed(cluster, devices, cluster.wiring, types.values())


def _changed(
    cluster: Cluster,
    devices: Sequence[Device],
    links: Iterable[Link | Mesh],
    types: Iterable[DeviceType],
    collectives: Iterable[CollectiveTimes] | None = None,
) -> Cluster:
    name = _changed_name(cluster)
    kept = cluster.collectives if collectives is None else collectives
    return Cluster(devices, links, types, name=name, collectives=kept, dispatch=cluster.dispatch)


def _next_name(cluster: Cluster, like: str) -> str:
    """A free name: a device's own with the next free number."""
    taken = {d.name for d in cluster.devices}
    stem = like.rstrip("0123456789")
    numbers = count(int(like[len(stem) :] or 0) + 1)
    return next(name for i in numbers if (name := f"{stem}{i}") not in taken)


def _changed_name(cluster: Cluster) -> str:
    """The name of a cluster that is a changed one."""
    return cluster.name if cluster.name.endswith(", changed") else f"{cluster.name}, changed"
