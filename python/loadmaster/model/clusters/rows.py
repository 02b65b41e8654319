"""Rows of the tables of TOML: their fields, figures with units, and the table of a device type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.files import naming
from loadmaster.base.units import RATE, SPEED, TIME, Quantity
from loadmaster.model.clusters.devices import DeviceType
from loadmaster.model.runtime import SendCost


def tables(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The tables ``[[key]]`` of a document; none where it has none."""
    tables = document.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(t, Mapping) for t in tables):
        raise InputError(f"{key!r} must be tables: write [[{key}]]")
    return tables


def field(row: Mapping[str, Any], what: str, key: str, kind: Any, default: Any = None) -> Any:
    """A field of a row of the kind that is wanted; ``what`` names the row in errors."""
    value = row.get(key, default)
    if value is None:
        raise InputError(f"{what} has no {key!r}")
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{what}: {key} is {value!r}")
    return value


def figure(row: Mapping[str, Any], what: str, key: str, of: Quantity, bare: bool) -> float | int:
    """A figure of a row; 0 where it has none, but for a bandwidth of a link."""
    return of.read(field(row, what, key, (int, float, str), 0.0), f"{what}: {key}", bare)


def read_type(row: Mapping[str, Any], i: int, bare: bool = False) -> DeviceType:
    """The device type of a table ``[[type]]``, the ``i``-th of a document."""
    what = f"type {row.get('name', i)!r}"
    known = {"name", "peak", "memory_bandwidth", "launch", "source", "send_cost"}
    checks.known_keys(what, row, known)
    return DeviceType(
        field(row, what, "name", str),
        {
            dtype: SPEED.read(peak, f"{what}: peak of {dtype}", bare)
            for dtype, peak in field(row, what, "peak", Mapping, {}).items()
        },
        figure(row, what, "memory_bandwidth", RATE, bare),
        figure(row, what, "launch", TIME, bare),
        field(row, what, "source", str, ""),
        _send_cost(field(row, what, "send_cost", Mapping, {}), what, bare),
    )


def _send_cost(row: Mapping[str, Any], what: str, bare: bool) -> SendCost | None:
    if not row:
        return None
    of = f"{what}: send_cost"
    checks.known_keys(of, row, {"latency", "bandwidth"})
    figures = (
        figure(row, of, "latency", TIME, bare),
        figure(row, of, "bandwidth", RATE, bare),
    )
    with naming(what):
        return SendCost(*map(float, figures))
