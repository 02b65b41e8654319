"""Coarse scheduling instances with the best makespans that long searches and solvers found.

Groups of ops of six families on 2 or 4 devices: integer microseconds per group and device, a
capacity per device, and per tensor the microseconds to send it from each device to each other. An
output is sent once per device that reads it; a channel serves one ordered pair of devices, first
come, first served.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from loadmaster.base.errors import InputError
from loadmaster.base.files import parse_json, read_bytes
from loadmaster.base.text import meant
from loadmaster.model.cluster import Cluster
from loadmaster.model.clusters.devices import Device
from loadmaster.model.clusters.links import Link
from loadmaster.model.graph import OpGraph
from loadmaster.readers.instances.instance import LISTED_BY, Instance

#: Bytes of a unit of an instance's memory, so many that what a tensor takes is nothing beside it:
#: memory is the sum of the groups on a device, as the instances have it.
UNIT = 2**36

#: Seconds and bytes per second of a microsecond of transfer: a byte takes one from device 0 to 1.
_US, _BYTES_PER_SECOND = 1e-6, 1e6

_SOURCE = "generated with six families of models in mind; best knowns by annealing and CP-SAT"


@cache
def _documents() -> dict[str, Any]:
    file = resources.files(__package__) / "data" / "scheduling.json.gz"
    with resources.as_file(file) as path:
        document: dict[str, Any] = parse_json(read_bytes(path), path)
        return document


def names() -> list[str]:
    """Their names; those of 20 groups, which are proved optimal, first."""
    return sorted(_documents(), key=lambda name: (int(name[1:].partition("-")[0]), name))


def load(name: str) -> Instance:
    """The instance called ``name``, such as ``"n20-lstm-K4-hom-ccr1-tight"``.

    The published transfer times of an instance with unequal links are rounded to microseconds. A
    cluster has a latency and a bandwidth per link: they are chosen so that no transfer is shorter
    than published, by a few microseconds at most. So published bounds hold, and the best known
    makespan is that of the published schedule as the simulator judges it.

    Raises
    ------
    InputError
        None has that name.
    """
    if name not in _documents():
        raise InputError(
            f"no instance is named 'scheduling/{name}'{meant(name, names(), LISTED_BY)}"
        )
    raw = _documents()[name]
    placement = np.array(raw["placement"], dtype=np.int32)
    order = np.array(raw["order"], dtype=np.int64)
    priority = np.empty(len(order), dtype=np.int32)
    priority[order] = np.arange(len(order))
    sizes, links = _transfers(raw)
    return Instance(
        name=f"scheduling/{name}",
        graph=_graph(name, raw, sizes),
        cluster=Cluster(_devices(raw), links, name=name),
        best_known=raw["seconds"],
        best_by=raw["source"],
        lower_bound=raw["lower_bound"] * _US,
        bound_by=raw["lb_source"],
        devices=placement,
        priority=priority,
        source=_SOURCE,
        licence="MIT OR Apache-2.0",
    )


def _types(raw: Mapping[str, Any]) -> list[str]:
    """The device type of each device: one for all where they are equal."""
    return ["t0"] * raw["K"] if raw["hom"] else [f"t{d}" for d in range(raw["K"])]


def _devices(raw: Mapping[str, Any]) -> list[Device]:
    # Half a unit above what is allowed: tensors take some of it.
    return [
        Device(f"d{d}", kind, int(raw["cap"][d]) * UNIT + UNIT // 2)
        for d, kind in enumerate(_types(raw))
    ]


def _graph(name: str, raw: Mapping[str, Any], sizes: list[int]) -> OpGraph:
    types, seconds = _types(raw), np.array(raw["p"], dtype=np.float64) * _US
    edges = [(t["src"], d, i, sizes[i]) for i, t in enumerate(raw["tensors"]) for d in t["dsts"]]
    src, dst, tensor, size = zip(*edges, strict=True)
    return OpGraph(
        {
            "name": [f"o{i}" for i in range(raw["n"])],
            "param_bytes": [bytes_ * UNIT for bytes_ in raw["mem"]],
            "time": {kind: seconds[:, types.index(kind)] for kind in dict.fromkeys(types)},
        },
        {"src": src, "dst": dst, "tensor": tensor, "bytes": size},
        name=name,
    )


def _transfers(raw: Mapping[str, Any]) -> tuple[list[int], list[Link]]:
    """Bytes per tensor, and links whose transfers take at least what the instance says.

    What a pair of devices takes is a slope times what devices 0 and 1 take, plus a latency.
    """
    base = [int(t["c"][0][1]) for t in raw["tensors"]]
    low, high = base.index(min(base)), base.index(max(base))
    lines: dict[tuple[int, int], tuple[float, float]] = {}
    for a in range(raw["K"]):
        for b in (b for b in range(raw["K"]) if b != a):
            takes = [int(t["c"][a][b]) for t in raw["tensors"]]
            spread = base[high] - base[low]
            slope = (takes[high] - takes[low]) / spread if spread and takes != base else 1.0
            above = (took - slope * size for took, size in zip(takes, base, strict=True))
            lines[a, b] = slope, max(above)
    # Fewer bytes by what keeps every latency from being negative.
    less = math.ceil(max(0.0, *(-offset / slope for slope, offset in lines.values())))
    links = [
        Link(f"d{a}", f"d{b}", _BYTES_PER_SECOND / slope, max(offset + slope * less, 0.0) * _US)
        for (a, b), (slope, offset) in lines.items()
    ]
    return [max(size - less, 0) for size in base], links
