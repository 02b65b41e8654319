"""Seconds of ops on a device type, from the surfaces of their families."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.kernels import sustained, tf32
from loadmaster.costs.kernels.cutting import cut
from loadmaster.costs.kernels.kin import Figures, is_gpu
from loadmaster.costs.kernels.tables import KernelTable, shipped
from loadmaster.costs.kernels.works import KernelWork, KernelWorks, works_of
from loadmaster.costs.peaks import peaks
from loadmaster.model.clusters.devices import DeviceType
from loadmaster.model.graph import OpGraph

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Provenance of ops of which nobody measured kernels, but whole steps that have them.
KERNELS_OF_STEPS = "kernels of steps"

#: Families that stand in where a device type has no table of one, nor any kin of it.
_ELSE = {"batched products": "products", "norm": "pointwise", "softmax": "pointwise"}

#: Families that lie on the surface of another, and have a data sheet of their own.
_LIKE = {"windows": "products"}

#: Dtypes whose tables stand in, at the data sheet of the dtype itself.
_HALF = {"f8": "f16"}

#: The same of families of which only the bytes count.
_STANDS_IN = {name: {"f8": "f32", "f16": "f32"} for name in ("pointwise", "norm", "softmax")}

#: The bandwidth that kernels reach of a data sheet's, where there is no table.
_SUSTAINED = 0.85

#: Bytes at which a device reaches what bandwidth it sustains.
_LARGE = 2.0**30


def has_kernels(device_type: DeviceType) -> bool:
    """True if a device type, or kin of it, was measured."""
    return device_type.has_roofline and is_gpu(device_type.name)


@dataclass(frozen=True)
class OpSeconds:
    """Seconds per op, and where they come from.

    Attributes
    ----------
    seconds : float64 [n]
        On the device, without the launch.
    words : list of str
        Provenances.
    word : int64 [n]
        Index into ``words``.
    """

    seconds: Floats
    words: list[str]
    word: Ints


def whole_seconds(graph: OpGraph, device_type: DeviceType) -> OpSeconds:
    """Seconds of each op of a graph.

    Notes
    -----
    O(n_ops), and O(sites) for each distinct op.
    """
    ops = np.arange(graph.n_ops)
    return part_seconds(graph, ops, graph.flops, graph.bytes_accessed, device_type)


def part_seconds(
    graph: OpGraph,
    ops: NDArray[np.integer],
    flops: NDArray[np.uint64],
    accessed: NDArray[np.uint64],
    device_type: DeviceType,
) -> OpSeconds:
    """Seconds of parts of ops of a graph, which have so many FLOPs and access so many bytes in all
    the runs of the op.

    Notes
    -----
    O(parts log parts), and O(sites) for each distinct part that nobody asked for before.
    """
    works = works_of(graph)
    known = works.parts.setdefault(_key(device_type), {})
    columns = (works.of_op[ops], flops, accessed)
    first, code = _distinct(columns)
    keys = list(zip(*(column[first].tolist() for column in columns), strict=True))
    unknown = [key for key in keys if key not in known]
    known.update(zip(unknown, _each(works, unknown, device_type), strict=True))
    pairs = [known[key] for key in keys]
    seconds = np.array([seconds for seconds, _ in pairs])
    return OpSeconds(seconds[code], [word for _, word in pairs], code)


def _key(device_type: DeviceType) -> tuple[object, ...]:
    """All of a device type that seconds of kernels follow from."""
    return device_type.name, device_type.memory_bandwidth, *sorted(device_type.peak.items())


def _distinct(columns: Sequence[NDArray[np.integer]]) -> tuple[Ints, Ints]:
    """The first of each distinct row of these columns, and of each row which one it is."""
    order = np.lexsort(columns)
    changes = np.zeros(len(order), dtype=bool)
    changes[:1] = True
    for column in columns:
        changes[1:] |= np.diff(column[order]) != 0
    code = np.empty(len(order), dtype=np.int64)
    code[order] = changes.cumsum() - 1
    return order[changes], code


def _each(
    works: KernelWorks, parts: Sequence[tuple[int, int, int]], device_type: DeviceType
) -> list[tuple[float, str]]:
    """Seconds of parts in all their runs, and where they come from; each has the number of its
    work, -1 if it is free, its FLOPs and the bytes that it accesses in all runs.
    """
    result = [(0.0, "free")] * len(parts)
    groups: dict[tuple[str, str], list[int]] = {}
    for i, (index, _, _) in enumerate(parts):
        if index >= 0:
            work = works.every[index]
            groups.setdefault((work.family, work.dtype), []).append(i)
    for (family, dtype), some in groups.items():
        which = np.array([parts[i][0] for i in some])
        runs = works.runs[which]
        flops, accessed = (np.array([parts[i][at] for i in some]) / runs for at in (1, 2))
        whole = (works.flops[which].astype(np.float64), works.accessed[which].astype(np.float64))
        members = [works.every[index] for index in which.tolist()]
        sizes = ((flops, accessed), whole)
        seconds, words = _of_family(family, dtype, members, sizes, device_type)
        pairs = zip((seconds * runs).tolist(), words, strict=True)
        for i, pair in zip(some, pairs, strict=True):
            result[i] = pair
    return result


def _of_family(
    family: str,
    dtype: str,
    members: list[KernelWork],
    sizes: tuple[tuple[Floats, Floats], tuple[Floats, Floats]],
    device_type: DeviceType,
) -> tuple[Floats, list[str]]:
    """Seconds of one run of parts of one family, and where they come from."""
    (flops, accessed), (whole_flops, whole_accessed) = sizes
    figures = _figures(dtype, device_type)
    whole = np.array([work.sizes for work in members])
    table_dtype = dtype
    if dtype == "f32" and family in tf32.FAMILIES and tf32.runs_tf32(device_type):
        family, whole = tf32.as_products(family, whole)
        table_dtype = "f16"
    table = _table(family, table_dtype, device_type) if family else None
    if table is None:
        moved = accessed / (figures.bandwidth * _sustained(device_type))
        return np.maximum(flops / figures.peak, moved), ["roofline"] * len(members)
    if table_dtype != dtype:
        table = replace(table, dtype=dtype)
    share = np.divide(flops, whole_flops, out=np.ones(len(flops)), where=whole_flops > 0)
    reads = np.divide(accessed, whole_accessed, out=share.copy(), where=whole_accessed > 0)
    part = whole.copy()
    changed = (np.abs(share - 1) > 1e-9) | (np.abs(reads - 1) > 1e-9)
    if changed.any():
        part[changed] = cut(family, whole[changed], share[changed], reads[changed])
    load = sustained.factor(device_type.name, table.device, table_dtype, family)
    computes = sustained.computing(flops, accessed, figures)
    factor = np.array([work.factor for work in members]) * load**computes
    word = "kernels" if table.device == device_type.name else f"kernels of {table.device}"
    words = [KERNELS_OF_STEPS if work.implied else word for work in members]
    return factor * table.seconds(part, figures), words


def _table(family: str, dtype: str, device_type: DeviceType) -> KernelTable | None:
    """The table of a family for a device type, of the nearest dtype, or of a family alike."""
    figures = _figures(dtype, device_type)
    surface = _LIKE.get(family, family)
    for name in (surface, _ELSE.get(surface, surface)):
        for of_dtype in (dtype, _STANDS_IN.get(name, _HALF).get(dtype, dtype)):
            table = shipped().table(name, of_dtype, device_type.name, figures)
            if table is not None:
                return table if surface == family else replace(table, family=family)
    return None


def _sustained(device_type: DeviceType) -> float:
    """The part of the data sheet's bandwidth that large kernels reach."""
    table = _table("pointwise", "f32", device_type)
    if table is None:
        return _SUSTAINED
    figures = _figures("f32", device_type)
    seconds = table.seconds(np.array([[_LARGE, 1.0]]), figures)[0]
    return float(min(_LARGE / figures.bandwidth / seconds, 1.0))


def _figures(dtype: str, device_type: DeviceType) -> Figures:
    peak = float(peaks([dtype], device_type)[0])
    return Figures(peak, device_type.memory_bandwidth)
