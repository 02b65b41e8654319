"""A cluster as TOML, as short as a person would write it.

Devices of one type whose numbers follow each other share a row (``gpu{0..7}``), and the ends of a
mesh are a pattern where one fits. :meth:`Cluster.from_toml` reads the same cluster back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import groupby
from typing import Any

import tomli_w

from loadmaster.base.text import fits
from loadmaster.base.units import RATE, SPEED, TIME, Quantity, exact_bytes
from loadmaster.model.cluster import Cluster
from loadmaster.model.clusters.devices import Device, DeviceType
from loadmaster.model.clusters.links import Link, Mesh
from loadmaster.model.clusters.measured_collectives import known_times
from loadmaster.model.machine.types import known_types

#: A number in a name that may be one of a range: it has no zeros in front.
_NUMBER = re.compile(r"(?<!\d)(0|[1-9]\d{0,8})(?!\d)")

#: A name by its texts, at even places, and its ranges between them: the first number, the last.
_Pattern = tuple[Any, ...]


def cluster_text(cluster: Cluster) -> str:
    """The whole cluster.

    >>> print(cluster_text(Cluster.mesh(8, memory="1GiB", bandwidth=1e9)), end="")
    name = "8xgpu"
    <BLANKLINE>
    [[type]]
    name = "gpu"
    <BLANKLINE>
    [[device]]
    name = "gpu{0..7}"
    type = "gpu"
    memory = "1 GiB"
    <BLANKLINE>
    [[link]]
    from = "*"
    to = "*"
    bandwidth = "1 GB/s"
    """
    head = {
        "name": cluster.name,
        "description": cluster.description,
        "source": cluster.source,
    }
    tables = ["".join(_lines(head))] if any(head.values()) else []
    if not cluster.collectives and known_times(cluster):
        # A file that has none gets those that are known.
        tables = ["".join([*tables, "collective = []\n"])]
    if cluster.dispatch is not None:
        row = {
            "launch": TIME.write(cluster.dispatch.launch),
            "one_host": cluster.dispatch.one_host,
            "source": cluster.dispatch.source,
        }
        tables.append(f"[dispatch]\n{''.join(_lines(row))}")
    tables += [type_text(kind) for kind in cluster.types]
    tables += [_table("device", row) for row in _device_rows(cluster.devices)]
    names = [device.name for device in cluster.devices]
    tables += [_table("link", _link_row(row, names)) for row in cluster.wiring]
    for times in cluster.collectives:
        row = {
            "kind": times.kind,
            "devices": times.devices,
            "machines": times.machines,
            "bytes": list(times.bytes),
            "seconds": list(times.seconds),
            "busy": list(times.busy),
            "source": times.source,
        }
        tables.append(_table("collective", row))
    return "\n".join(tables)


def preset_text(name: str) -> str:
    """A preset as it is written, its comments too, with the device types that it only names.

    What is not written so, such as a part of a preset, is as :func:`cluster_text` has it.

    Raises
    ------
    InputError
        No preset has that name or is that, and more.

    Examples
    --------
    >>> print(preset_text("4xL4-PCIe").splitlines()[4])
    # figures read at https://www.yobitel.com/knowledge-base/nvidia-l4
    """
    cluster = Cluster.preset(name)
    file = resources.files("loadmaster.model") / "presets" / f"{name}.toml"
    if not file.is_file():
        return cluster_text(cluster)
    head, mark, tail = file.read_text(encoding="utf-8").partition("[[device]]")
    table = known_types()
    types = [type_text(kind, table[kind.name].read_at) for kind in cluster.types]
    return head + "".join(f"{text}\n" for text in types) + mark + tail


def type_text(kind: DeviceType, read_at: str = "") -> str:
    """A table ``[[type]]``, under a comment that says where its figures were read, if given."""
    cost, session = kind.send_cost, kind.session_cost
    text = _table(
        "type",
        {
            "name": kind.name,
            "memory_bandwidth": _figure(kind.memory_bandwidth, RATE),
            "launch": _figure(kind.launch, TIME),
            "peak": {dtype: SPEED.write(peak) for dtype, peak in kind.peak.items()},
            "source": kind.source,
            "send_cost": {
                "latency": TIME.write(cost.latency),
                "bandwidth": RATE.write(cost.bandwidth),
            }
            if cost
            else {},
            "session_cost": {
                "run": TIME.write(session.run),
                "tensor": TIME.write(session.tensor),
                "source": session.source,
            }
            if session
            else {},
        },
    )
    return f"# figures read at {read_at}\n{text}" if read_at else text


def _figure(value: float, of: Quantity) -> str:
    """A figure with its unit; nothing for 0.0, which is read where there is none."""
    return "" if isinstance(value, float) and value == 0 else of.write(value)


def _table(key: str, row: Mapping[str, Any]) -> str:
    return f"[[{key}]]\n{''.join(_lines(row))}"


def _lines(row: Mapping[str, Any]) -> Iterator[str]:
    """A line per field that says anything."""
    for key, value in row.items():
        if value not in ("", [], {}):
            yield f"{key} = {_value(value)}\n"


def _value(value: Any) -> str:
    """A value in one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{k} = {_value(v)}' for k, v in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").removesuffix("\n")


def _device_rows(devices: Sequence[Device]) -> Iterator[dict[str, Any]]:
    """A row per run of devices that differ by a number of their names alone."""
    for (kind, memory), run in groupby(devices, key=lambda device: (device.type, device.memory)):
        for name in _folded([device.name for device in run]):
            yield {"name": name, "type": kind, "memory": exact_bytes(memory)}


def _folded(names: Sequence[str]) -> Iterator[str]:
    """Patterns that stand for the names, in their order: the last numbers are folded first."""
    rows: list[_Pattern] = [_parts(name) for name in names]
    for place in range(max(map(len, rows), default=0) // 2 * 2 - 1, 0, -2):
        joined: list[_Pattern] = []
        for row in rows:
            last = joined[-1] if joined else ()
            if _follows(last, row, place):
                both = (last[place][0], row[place][1])
                joined[-1] = (*row[:place], both, *row[place + 1 :])
            else:
                joined.append(row)
        rows = joined
    for row in rows:
        yield "".join(part if isinstance(part, str) else _range(*part) for part in row)


def _parts(name: str) -> _Pattern:
    """Texts at even places, numbers as ranges of one at odd ones."""
    pieces = _NUMBER.split(name)
    return tuple((int(part), int(part)) if place % 2 else part for place, part in enumerate(pieces))


def _follows(last: _Pattern, row: _Pattern, place: int) -> bool:
    """True if a pattern goes on where another ends, by the number at one place alone."""
    if len(last) != len(row) or len(row) <= place:
        return False
    others = (last[:place] + last[place + 1 :]) == (row[:place] + row[place + 1 :])
    return others and bool(row[place][0] == last[place][1] + 1)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{{{first}..{last}}}"


def _link_row(row: Link | Mesh, names: Sequence[str]) -> dict[str, Any]:
    src: str | list[str]
    dst: str | list[str]
    if isinstance(row, Link):
        src, dst = row.src, row.dst
    else:
        src, dst = _end(row.src, names), _end(row.dst, names)
    return {
        "from": src,
        "to": dst,
        "bandwidth": RATE.write(float(row.bandwidth)),
        "latency": _figure(float(row.latency), TIME),
        "channels": list(row.channels),
        "source": row.source,
    }


def _end(end: Iterable[str], names: Sequence[str]) -> str | list[str]:
    """One end of a mesh: the pattern that matches it and nothing else, or its devices."""
    devices = list(end)
    first, last = min(devices), max(devices)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), None)
    stem = first[:same].rstrip("0123456789")
    for pattern in ("*", f"{stem}*"):
        if pattern not in names and devices == [n for n in names if fits(n, pattern.split("*"))]:
            return pattern
    return devices
