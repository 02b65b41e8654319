"""Measured times where the graph has them, else those of measured kernels, else the roofline.

Kernels (:mod:`loadmaster.costs.kernels`) are those of device types that were measured, and of
their kin. Roofline of an op on a device type (Williams, Waterman, Patterson 2009): the larger of
FLOPs / peak at the op's dtype and bytes / memory bandwidth, plus the time to launch its kernels,
one unless the graph counts several. Views, placeholders and ops that neither compute nor move
anything are free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loadmaster.base.errors import InputError, refusing
from loadmaster.base.text import Printed, aligned, in_lines
from loadmaster.base.units import counted, format_seconds
from loadmaster.base.warnings import warn
from loadmaster.costs.kernels.kin import MEASURED
from loadmaster.costs.kernels.seconds import KERNELS_OF_STEPS, has_kernels, whole_seconds
from loadmaster.costs.peaks import peaks
from loadmaster.model.cluster import Cluster
from loadmaster.model.clusters.devices import DeviceType
from loadmaster.model.graph import ANY_TYPE, ESTIMATED_BY, TIME_SOURCES, UNSIZED, OpGraph

#: Sources of an op's time. "scaled": from another device type. "optimistic": unknown, and
#: taken for 0, so that plans try the op. "bytes": from its bytes, at the speed of measured ops.
#: "kernels": as kernels of its sizes were measured on the type, or on its kin. "kernels of steps":
#: by what whole steps imply.
PROVENANCES = (
    "free",
    "measured",
    "regressed",
    "roofline",
    "given",
    "scaled",
    "optimistic",
    "bytes",
    "kernels",
    KERNELS_OF_STEPS,
    *(f"kernels of {device}" for device in MEASURED),
)

#: The first of the words that kernels have in :data:`PROVENANCES`; all after it are theirs.
_KERNELS = PROVENANCES.index("kernels")


@dataclass(frozen=True)
class Costs(Printed):
    """Times of every op of a graph on every device type of a cluster.

    Attributes
    ----------
    time : float64 [n_ops, n_types]
        Seconds.
    types : tuple of str
        Name of each column's device type.
    provenance : uint8 [n_ops]
        Index into :data:`PROVENANCES`.
    """

    time: NDArray[np.float64]
    types: tuple[str, ...]
    provenance: NDArray[np.uint8]

    @classmethod
    def given(cls, time: ArrayLike, graph: OpGraph, cluster: Cluster) -> Costs:
        """From seconds per op, or per op and device type, as a user gives them.

        Raises
        ------
        InputError
            A wrong shape; a time that is NaN, infinite or negative (the op is named).
        """
        with refusing("costs is no matrix of numbers", ValueError, TypeError):
            matrix = np.array(time, dtype=np.float64)
        types = tuple(t.name for t in cluster.types)
        if matrix.shape == (graph.n_ops,):
            matrix = np.repeat(matrix[:, None], len(types), axis=1)
        if matrix.shape != (graph.n_ops, len(types)):
            raise InputError(
                f"costs has shape {matrix.shape}, wants ({graph.n_ops}, {len(types)}): "
                f"ops by device types ({', '.join(types)})"
            )
        bad = np.argwhere(~((matrix >= 0) & np.isfinite(matrix)))
        if len(bad):
            op, k = map(int, bad[0])
            raise InputError(
                f"costs of {graph.names[op]!r} on {types[k]} is {matrix[op, k]}: "
                "a time must be finite and not negative"
            )
        return cls(matrix, types, _all(graph, "given"))

    def __str__(self) -> str:
        shares = ", ".join(f"{share:.0%} {word}" for word, share in self.shares().items())
        head = f"times of {counted(len(self.time), 'op')}: {shares or 'all free'}"
        sums = zip(self.types, self.time.sum(axis=0).tolist(), strict=True)
        rows = [(f"  {name}", format_seconds(seconds)) for name, seconds in sums]
        return in_lines([head, *aligned([("  device type", "all ops"), *rows])])

    def shares(self) -> dict[str, float]:
        """Share of the total time (on the slowest type) by provenance; free ops do not count."""
        weight = self.time.max(axis=1)
        sums = np.bincount(self.provenance, weights=weight, minlength=len(PROVENANCES))
        total = sums.sum()
        return {
            word: float(part / total) if total else 0.0
            for word, part in zip(PROVENANCES, sums, strict=True)
            if word != "free" and (part > 0 or (self.provenance == PROVENANCES.index(word)).any())
        }


def estimate(graph: OpGraph, cluster: Cluster) -> Costs:
    """Measured times where the graph has them for a device type, else those of kernels, else the
    roofline. Instances (:mod:`loadmaster.instances`) have the roofline.

    Raises
    ------
    InputError
        A device type with neither measured times nor roofline figures; a graph without times, FLOPs
        and bytes, whose ops would all be free; most ops that work are of unknown size.

    Examples
    --------
    >>> import loadmaster as lm
    >>> g = lm.read("example:lenet")
    >>> list(lm.costs.estimate(g, lm.Cluster.preset("4xV100-PCIe")).shares())[0]
    'kernels'
    """
    if graph.meta.get(ESTIMATED_BY) == "roofline":
        return roofline_costs(graph, cluster)
    return _estimated(graph, cluster, kernel_seconds)


def roofline_costs(graph: OpGraph, cluster: Cluster) -> Costs:
    """Measured times where the graph has them for a device type, else the roofline: no kernels.

    >>> import loadmaster as lm
    >>> g = lm.read("example:lenet")
    >>> roofline_costs(g, lm.Cluster.preset("4xV100-PCIe")).shares()
    {'roofline': 1.0}
    """

    def seconds(graph: OpGraph, device_type: DeviceType) -> Estimated:
        return roofline(graph, device_type), _all(graph, "roofline")

    return _estimated(graph, cluster, seconds)


#: Seconds of each op of a graph on a device type, and their provenances.
Estimated = tuple[NDArray[np.float64], NDArray[np.uint8]]


def _estimated(
    graph: OpGraph, cluster: Cluster, seconds_on: Callable[[OpGraph, DeviceType], Estimated]
) -> Costs:
    columns, provenance, words = [], _all(graph, "roofline"), []
    for device_type in cluster.types:
        seconds = graph.time.get(device_type.name, graph.time.get(ANY_TYPE))
        if seconds is None:
            seconds, word = seconds_on(graph, device_type)
            words.append(word)
        columns.append(seconds)
    if words:
        _check_sizes(graph)
        provenance = _least_sure(words)
    else:
        provenance = _sources(graph)
    time = np.stack(columns, axis=1)
    if not time.any():
        known = ", ".join(graph.time) or "no device type"
        raise InputError(
            "every op would be free: the graph has no FLOPs and no bytes_accessed, and times for "
            f"{known}, but the cluster has {', '.join(t.name for t in cluster.types)}; "
            "give times in the graph or as costs=, or say which of its types the times are of: "
            "device_type= (--device-type) as the graph is read"
        )
    if graph.time and not set(graph.time) & {ANY_TYPE, *(t.name for t in cluster.types)}:
        warn(
            f"times were measured on {', '.join(graph.time)}, of which the cluster has none: "
            f"those used are estimates for {', '.join(t.name for t in cluster.types)}. If it is "
            "the same, say so as the graph is read: device_type= (--device-type)"
        )
    provenance[~time.any(axis=1)] = PROVENANCES.index("free")
    return Costs(time, tuple(t.name for t in cluster.types), provenance)


def _least_sure(words: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """The least sure provenance of each op over device types: the roofline, else the last word."""
    every = np.stack(words)
    roof = np.uint8(PROVENANCES.index("roofline"))
    return np.where((every == roof).any(0), roof, every.max(0)).astype(np.uint8)


def kernel_seconds(graph: OpGraph, device_type: DeviceType) -> Estimated:
    """Seconds of the ops of a graph by kernels, launches and all; by the roofline on a device type
    that has no kin.
    """
    if not has_kernels(device_type):
        return roofline(graph, device_type), _all(graph, "roofline")
    each = whole_seconds(graph, device_type)
    launched = np.where(each.seconds > 0, graph.launches * device_type.launch, 0.0)
    index = {word: PROVENANCES.index(word) for word in set(each.words)}
    words = np.array([index[word] for word in each.words], dtype=np.uint8)
    return each.seconds + launched, words[each.word]


def is_of_kernels(provenance: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """True where an op's time is that of kernels."""
    return np.asarray(provenance >= _KERNELS, dtype=bool)


def is_estimated(provenance: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """True where an op's time follows from its sizes alone."""
    of_sheet = provenance == PROVENANCES.index("roofline")
    return np.asarray(is_of_kernels(provenance) | of_sheet, dtype=bool)


def _check_sizes(graph: OpGraph) -> None:
    """Checks that the sizes of most ops that work are known, as far as the graph's reader says."""
    unsized = graph.meta.get(UNSIZED)
    if not isinstance(unsized, Mapping) or not {"ops", "of", "way"} <= unsized.keys():
        return
    if 2 * int(unsized["ops"]) > int(unsized["of"]):
        raise InputError(
            f"the sizes of {unsized['ops']} of {counted(int(unsized['of']), 'op')} are not known, "
            f"and so neither is their time: {unsized['way']}"
        )


def _all(graph: OpGraph, word: str) -> NDArray[np.uint8]:
    return np.full(graph.n_ops, PROVENANCES.index(word), dtype=np.uint8)


def _sources(graph: OpGraph) -> NDArray[np.uint8]:
    """Provenance of each op's time in the graph's columns."""
    sources = _all(graph, "measured")
    recorded = graph.meta.get(TIME_SOURCES)
    at = {name: i for i, name in enumerate(graph.names)} if recorded else {}
    for word, names in recorded.items() if isinstance(recorded, Mapping) else ():
        if word in PROVENANCES and isinstance(names, list):
            rows = [at[name] for name in names if isinstance(name, str) and name in at]
            sources[rows] = PROVENANCES.index(word)
    return sources


def roofline(graph: OpGraph, device_type: DeviceType) -> NDArray[np.float64]:
    """Seconds per op on one device type, from FLOPs, bytes and launch time."""
    check_roofline(graph, device_type)
    peak = peaks(graph.outputs, device_type)
    free = graph.view | graph.placeholder
    accessed, launches = graph.bytes_accessed, graph.launches
    return busy_seconds(graph.flops, accessed, peak, device_type, free, launches)


def check_roofline(graph: OpGraph, device_type: DeviceType) -> None:
    """Checks that a device type has a roofline.

    Raises
    ------
    InputError
        It has none; the types that the graph has measured times for are named.
    """
    if not device_type.has_roofline:
        known = ", ".join(graph.time) or "none"
        raise InputError(
            f"no times for device type {device_type.name!r}: the graph has measured times for "
            f"{known}, and the cluster gives no peak and memory_bandwidth for it"
        )


def busy_seconds(
    flops: NDArray[np.uint64],
    accessed: NDArray[np.uint64],
    peak: NDArray[np.float64],
    device_type: DeviceType,
    free: NDArray[np.bool_],
    launches: NDArray[np.int64],
) -> NDArray[np.float64]:
    """The roofline of ops with these FLOPs, bytes accessed, peaks in FLOP/s and numbers of
    launches, in seconds.
    """
    moved = accessed.astype(np.float64) / device_type.memory_bandwidth
    busy = np.maximum(flops.astype(np.float64) / peak, moved)
    free = free | ((flops == 0) & (accessed == 0))
    return np.where(free, 0.0, busy + launches.astype(np.float64) * device_type.launch)
