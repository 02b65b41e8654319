"""Rows of the tables of TOML: their fields, figures with units, and the table of a device type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.files import naming
from loadmaster.base.units import RATE, SPEED, TIME, Quantity
from loadmaster.model.clusters.devices import DeviceType
from loadmaster.model.runtime import SendCost, SessionCost


def tables(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The tables ``[[key]]`` of a document; none where it has none."""
    tables = document.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(t, Mapping) for t in tables):
        raise InputError(f"{key!r} must be tables: write [[{key}]]")
    return tables


def field(row: Mapping[str, Any], noun: str, key: str, kind: Any, default: Any = None) -> Any:
    """A field of a row of the kind that is wanted; ``noun`` names the row in errors."""
    value = row.get(key, default)
    if value is None:
        raise InputError(f"{noun} has no {key!r}")
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{noun}: {key} is {value!r}")
    return value


def figure(row: Mapping[str, Any], noun: str, key: str, of: Quantity, bare: bool) -> float | int:
    """A figure of a row; 0 where it has none, but for a bandwidth of a link."""
    return of.read(field(row, noun, key, (int, float, str), 0.0), f"{noun}: {key}", bare)


def read_type(row: Mapping[str, Any], i: int, bare: bool = False) -> DeviceType:
    """The device type of a table ``[[type]]``, the ``i``-th of a document."""
    noun = f"type {row.get('name', i)!r}"
    known = {"name", "peak", "memory_bandwidth", "launch", "source"} | {"send_cost", "session_cost"}
    checks.known_keys(noun, row, known)
    return DeviceType(
        field(row, noun, "name", str),
        {
            dtype: SPEED.read(peak, f"{noun}: peak of {dtype}", bare)
            for dtype, peak in field(row, noun, "peak", Mapping, {}).items()
        },
        figure(row, noun, "memory_bandwidth", RATE, bare),
        figure(row, noun, "launch", TIME, bare),
        field(row, noun, "source", str, ""),
        _send_cost(field(row, noun, "send_cost", Mapping, {}), noun, bare),
        _session_cost(field(row, noun, "session_cost", Mapping, {}), noun, bare),
    )


def _send_cost(row: Mapping[str, Any], noun: str, bare: bool) -> SendCost | None:
    if not row:
        return None
    of = f"{noun}: send_cost"
    checks.known_keys(of, row, {"latency", "bandwidth"})
    figures = (
        figure(row, of, "latency", TIME, bare),
        figure(row, of, "bandwidth", RATE, bare),
    )
    with naming(noun):
        return SendCost(*map(float, figures))


def _session_cost(row: Mapping[str, Any], noun: str, bare: bool) -> SessionCost | None:
    if not row:
        return None
    of = f"{noun}: session_cost"
    checks.known_keys(of, row, {"run", "tensor", "source"})
    run, tensor = (float(figure(row, of, key, TIME, bare)) for key in ("run", "tensor"))
    with naming(noun):
        return SessionCost(run, tensor, field(row, of, "source", str, ""))
