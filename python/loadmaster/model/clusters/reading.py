"""A cluster from TOML: :meth:`Cluster.from_toml` says what stands there."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.files import naming, parse_toml, read_text
from loadmaster.base.text import fits, shown
from loadmaster.base.units import RATE, SIZE, TIME
from loadmaster.model.cluster import Cluster
from loadmaster.model.clusters.devices import Device, DeviceType
from loadmaster.model.clusters.links import CollectiveTimes, Link, Mesh
from loadmaster.model.clusters.measured_collectives import with_known_times
from loadmaster.model.clusters.rows import field, figure, read_type, tables
from loadmaster.model.machine.types import known_types
from loadmaster.model.runtime import Dispatch

#: Numbers in the name of many devices, from the first to the last.
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")

#: More devices than any cluster may have, and more digits than the number of one.
_MOST_NAMES, _DIGITS = 10_000, 9


def of_file(path: str | os.PathLike[str]) -> Cluster:
    """The cluster of a TOML file."""
    return of_text(read_text(path), os.fspath(path))


def of_text(text: str, source: str = "cluster", *, bare: bool = False) -> Cluster:
    """The cluster of a text of TOML; ``source`` is named in errors, numbers may be ``bare``."""
    document = parse_toml(text, source)
    with naming(source):
        known = {"name", "description", "source", "device", "link", "type", "collective"}
        checks.known_keys("cluster", document, known | {"dispatch"})
        devices = [
            d for i, row in enumerate(tables(document, "device")) for d in _devices(row, i, bare)
        ]
        known_devices = {d.name: None for d in devices}
        cluster = Cluster(
            devices,
            [_wired(row, i, known_devices, bare) for i, row in enumerate(tables(document, "link"))],
            _types(document, devices, bare),
            name=str(document.get("name", "")),
            description=str(document.get("description", "")),
            source=str(document.get("source", "")),
            collectives=[
                _collective_times(row, i) for i, row in enumerate(tables(document, "collective"))
            ],
            dispatch=_dispatch(document, bare),
        )
        is_all = bare or document.get("collective") == []
        return cluster if is_all else with_known_times(cluster)


def _devices(row: Mapping[str, Any], i: int, bare: bool) -> Iterator[Device]:
    noun = f"device {row.get('name', i)!r}"
    checks.known_keys(noun, row, {"name", "type", "memory"})
    pattern = field(row, noun, "name", str)
    if "memory" not in row:
        raise InputError(f"{noun} has no 'memory'")
    kind = field(row, noun, "type", str, "") or None
    memory = row["memory"]
    if checks.is_number(memory):
        memory = SIZE.read(memory, f"memory of {noun}", bare)
    for name in _numbered(pattern):
        yield Device(name, kind or name, memory)


def _numbered(pattern: str) -> Iterator[str]:
    """The names that a pattern with ranges stands for; the last range runs fastest."""
    texts = _RANGE.split(pattern)
    ends = list(zip(texts[1::3], texts[2::3], strict=True))
    is_long = any(len(number) > _DIGITS for pair in ends for number in pair)
    ranges = [] if is_long else [range(int(a), int(b) + 1) for a, b in ends]
    if is_long or not 0 < math.prod(map(len, ranges)) <= _MOST_NAMES:
        raise InputError(
            f"device {shown(pattern)}: its ranges must go up, and give at most {_MOST_NAMES} names"
        )
    for numbers in product(*ranges):
        pieces = [
            text for pair in zip(texts[:-1:3], map(str, numbers), strict=True) for text in pair
        ]
        yield "".join(pieces) + texts[-1]


def _collective_times(row: Mapping[str, Any], i: int) -> CollectiveTimes:
    noun = f"collective {i}"
    fields = {"kind", "devices", "machines", "bytes", "seconds", "source", "busy"}
    checks.known_keys(noun, row, fields)
    return CollectiveTimes(
        field(row, noun, "kind", str),
        field(row, noun, "devices", int),
        field(row, noun, "machines", int, 1),
        tuple(field(row, noun, "bytes", list)),
        tuple(field(row, noun, "seconds", list)),
        field(row, noun, "source", str, ""),
        tuple(field(row, noun, "busy", list, [])),
    )


def _types(
    document: Mapping[str, Any], devices: Iterable[Device], bare: bool
) -> Iterator[DeviceType]:
    """The types that a document defines, and those of the table that its devices only name."""
    own = [read_type(row, i, bare) for i, row in enumerate(tables(document, "type"))]
    yield from own
    known = {} if bare else known_types()
    for name in dict.fromkeys(d.type for d in devices):
        if name in known and all(t.name != name for t in own):
            yield known[name].type


def _dispatch(document: Mapping[str, Any], bare: bool) -> Dispatch | None:
    row = field(document, "cluster", "dispatch", Mapping, {})
    if not row:
        return None
    checks.known_keys("dispatch", row, {"launch", "one_host", "source"})
    launch = float(figure(row, "dispatch", "launch", TIME, bare))
    return Dispatch(launch, row.get("one_host", True), field(row, "dispatch", "source", str, ""))


def _wired(row: Mapping[str, Any], i: int, devices: Mapping[str, None], bare: bool) -> Link | Mesh:
    noun = f"link {i} (from {row.get('from')!r} to {row.get('to')!r})"
    checks.known_keys(noun, row, {"from", "to", "bandwidth", "latency", "channels", "source"})
    field(row, noun, "bandwidth", (int, float, str))
    figures = (
        float(figure(row, noun, "bandwidth", RATE, bare)),
        float(figure(row, noun, "latency", TIME, bare)),
        tuple(map(str, field(row, noun, "channels", list, []))),
        str(row.get("source", "")),
    )
    ends = [field(row, noun, key, (str, list)) for key in ("from", "to")]
    src, dst = (_matching(end, noun, devices) for end in ends)
    if all(isinstance(end, str) and (end in devices or "*" not in end) for end in ends):
        return Link(src[0], dst[0], *figures)
    return Mesh(src, dst, *figures)


def _matching(end: str | list[Any], noun: str, devices: Mapping[str, None]) -> tuple[str, ...]:
    """The devices that one end of a row of links names: each by its name, or by a pattern."""
    names: dict[str, None] = {}
    for pattern in [end] if isinstance(end, str) else map(str, end):
        if pattern in devices or "*" not in pattern:
            if pattern in names:
                raise InputError(f"{noun}: one end has {pattern!r} twice")
            names[pattern] = None
            continue
        matching = [name for name in devices if fits(name, pattern.split("*"))]
        if not matching:
            raise InputError(f"{noun}: no device's name matches {pattern!r}")
        names.update(dict.fromkeys(matching))
    return tuple(names)
