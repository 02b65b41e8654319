"""Measured times of collectives that come with Loadmaster, for hosts like those that were measured.

``collectives.json`` has them, with their source and licence: for each kind of host the device
types it may have, the bandwidth between two of its devices, and rows of (library, kind, devices,
bytes of the whole tensor, microseconds). ``benches/collectives.py fit`` writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from loadmaster.base.files import parse_json
from loadmaster.model.cluster import Cluster
from loadmaster.model.clusters.links import CollectiveTimes

#: The library that runs collectives: NCCL, or a serving system's own kernel where it has one.
Library = Literal["nccl", "serving"]

#: Links are as those of the measured host if they have its bandwidth times or by no more than this.
_ALIKE = 1.5


def known_times(cluster: Cluster, library: Library = "nccl") -> tuple[CollectiveTimes, ...]:
    """Times of collectives inside the hosts of a cluster; none where no such hosts were measured.

    All devices must be of one measured type, and any two of a host joined about as fast as there.
    O(devices).

    Parameters
    ----------
    cluster : Cluster
    library : "nccl" or "serving"
        A serving system's own kernel stands for its all-reduce, the only one that was measured.

    Examples
    --------
    >>> dgx = Cluster.preset("8xA100-NVLink")
    >>> sorted({(times.kind, times.devices) for times in known_times(dgx)})[:3]
    [('all_gather', 2), ('all_gather', 4), ('all_gather', 8)]
    >>> known_times(Cluster.preset("4xA100-PCIe"))
    ()
    """
    types = {device.type for device in cluster.devices}
    host = _hosts().get(types.pop()) if len(types) == 1 else None
    if host is None or not _is_joined_so(cluster, host.bandwidth):
        return ()
    return host.served if library == "serving" else host.nccl


def with_known_times(cluster: Cluster) -> Cluster:
    """The cluster with known times beside those it has, if it has none inside of hosts."""
    has_own = any(times.machines == 1 for times in cluster.collectives)
    times = () if has_own else known_times(cluster)
    return _with(cluster, (*times, *cluster.collectives)) if times else cluster


def as_served(cluster: Cluster) -> Cluster:
    """The cluster where a serving system's own all-reduce stands for NCCL's, if it has known times.

    >>> dgx = Cluster.preset("8xA100-NVLink")
    >>> own, nccl = (c.collective("all_reduce", range(8), 8192) for c in (as_served(dgx), dgx))
    >>> own.seconds < nccl.seconds / 2
    True
    """
    nccl = known_times(cluster)
    if not nccl or not set(nccl) <= set(cluster.collectives):
        return cluster
    others = (times for times in cluster.collectives if times not in nccl)
    return _with(cluster, (*known_times(cluster, "serving"), *others))


def _with(cluster: Cluster, times: Iterable[CollectiveTimes]) -> Cluster:
    """The cluster under its own name with other times."""
    return Cluster(
        cluster.devices,
        cluster.wiring,
        cluster.types,
        name=cluster.name,
        description=cluster.description,
        source=cluster.source,
        collectives=times,
        dispatch=cluster.dispatch,
    )


def _is_joined_so(cluster: Cluster, bandwidth: float) -> bool:
    """True if every device of a host has routes of about this bandwidth to and from its first."""
    first: dict[int, int] = {}
    for device, host in enumerate(cluster._core.machines):
        one = first.setdefault(host, device)
        ways = ((one, device), (device, one)) if one != device else ()
        rates = [cluster.route(*way).bandwidth for way in ways]
        if not all(1 / _ALIKE <= rate / bandwidth <= _ALIKE for rate in rates):
            return False
    return True


@dataclass(frozen=True)
class _Host:
    """A measured host: B/s between two of its devices, times of NCCL, and those of a server."""

    bandwidth: float
    nccl: tuple[CollectiveTimes, ...]
    served: tuple[CollectiveTimes, ...]


@cache
def _hosts() -> Mapping[str, _Host]:
    """Measured hosts by each type of devices that they may have."""
    file = resources.files("loadmaster.model.clusters") / "collectives.json"
    document = parse_json(file.read_bytes(), "collectives.json")
    hosts = {}
    for host in document["hosts"]:
        source = f"{host['types'][0]} hosts, {document['source']}"
        times: dict[str, dict[tuple[str, int], CollectiveTimes]] = {"nccl": {}, "serving": {}}
        for library, kind, devices, sizes, micros in host["times"]:
            seconds = tuple(micro * 1e-6 for micro in micros)
            row = CollectiveTimes(kind, devices, 1, tuple(sizes), seconds, source)
            times[library][kind, devices] = row
        nccl, own = times["nccl"], times["serving"]
        one = _Host(host["bandwidth"], tuple(nccl.values()), tuple({**nccl, **own}.values()))
        hosts.update(dict.fromkeys(host["types"], one))
    return hosts
