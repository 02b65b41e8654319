"""Times of ops on a device type on which they were not measured."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.base.units import counted
from loadmaster.base.warnings import warn
from loadmaster.costs.roofline import roofline
from loadmaster.model.cluster import Cluster
from loadmaster.model.clusters.devices import DeviceType
from loadmaster.model.graph import ANY_TYPE, OpGraph

Floats = NDArray[np.float64]


def scaled(
    graph: OpGraph,
    cluster: Cluster,
    device_type: DeviceType,
    known: Floats,
    elsewhere: Mapping[str, Floats],
) -> Floats:
    """Times on a device type, completed by scaled times of other types.

    Other types take their turn, the one with most ops known on both types first. Its times are
    multiplied by the median ratio of those ops. If no op is known on both, each time is multiplied
    by the ratio of the op's rooflines, if the cluster has both types.

    Parameters
    ----------
    graph, cluster, device_type
    known : float64 [n_ops]
        Seconds on the type; NaN: unknown.
    elsewhere : mapping of device type to float64 [n_ops]
        Seconds on the other types.
    """
    completed = known.copy()
    types = {t.name: t for t in cluster.types}
    shared = {name: (known > 0) & (other > 0) for name, other in elsewhere.items()}
    for name in sorted(elsewhere, key=lambda name: (-shared[name].sum(), name)):
        other, both = elsewhere[name], shared[name]
        if both.any():
            there = other * np.median(known[both] / other[both])
        elif name in types and types[name].has_roofline and device_type.has_roofline:
            there = other * _speed(graph, types[name], device_type)
        else:
            continue
        completed = np.where(np.isnan(completed), there, completed)
    return completed


def _speed(graph: OpGraph, one: DeviceType, other: DeviceType) -> Floats:
    """Ratio of each op's rooflines, other type / this type; the median ratio for free ops."""
    here, there = roofline(graph, one), roofline(graph, other)
    both = (here > 0) & (there > 0)
    usual = float(np.median(there[both] / here[both])) if both.any() else 1.0
    ratio: Floats = np.full(graph.n_ops, usual)
    np.divide(there, here, out=ratio, where=both)
    return ratio


def assumed(
    graph: OpGraph, device_type: DeviceType, missing: NDArray[np.bool_]
) -> tuple[Floats, str]:
    """Times of ops that no profile has, and their provenance.

    They are the graph's times, else the roofline's. A warning counts the ops that are then free.

    Raises
    ------
    InputError
        The type has no roofline; the first op is named.
    """
    measured = graph.time.get(device_type.name, graph.time.get(ANY_TYPE))
    if measured is not None:
        return measured[missing], "measured"
    if not device_type.has_roofline:
        first = graph.names[int(np.flatnonzero(missing)[0])]
        raise InputError(
            f"no time for {counted(int(missing.sum()), 'op')} on device type "
            f"{device_type.name!r}, {first!r} first: no profile has them, the graph no times for "
            "that type, and the cluster no peak and memory_bandwidth; explore=True takes them for "
            "free to find out"
        )
    times = roofline(graph, device_type)[missing]
    free = np.flatnonzero(missing)[times == 0]
    if len(free):
        warn(
            f"{counted(len(free), 'op')} free on {device_type.name!r}, "
            f"{graph.names[int(free[0])]!r} first: no profile has them, and the graph neither "
            "FLOPs nor bytes_accessed"
        )
    return times, "roofline"
