"""Bytes and seconds as people write them."""

from __future__ import annotations

import math
import re

from loadmaster.base.checks import is_integer, is_number
from loadmaster.base.errors import InputError
from loadmaster.base.text import shown

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _UNITS[f"{_letter}B"] = 1000**_power
    _UNITS[f"{_letter}iB"] = 1024**_power
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP]i?B|B|)\s*")
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(s|ms|us|ns|min|)\s*")


def parse_bytes(value: object, what: str = "size") -> int:
    """Bytes from an int, or from a string such as ``"32GiB"`` (1024-based) or ``"16 GB"``.

    >>> parse_bytes("32GiB")
    34359738368
    """
    if is_integer(value) and 0 <= value < 2**63:
        return int(value)
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InputError(
            f"{what} is {shown(value)}: give bytes as an integer or as a string like '32GiB' or "
            "'16GB'"
        )
    size = float(match[1]) * _UNITS[match[2]]
    if size >= 2**63:
        raise InputError(f"{what} is {shown(value)}: more than 2^63 bytes")
    return int(size)


def parse_seconds(value: object, what: str = "time") -> float:
    """Seconds from a number, or from a string such as ``"120ms"`` or ``"1.5 s"``.

    >>> parse_seconds("120ms"), parse_seconds(2)
    (0.12, 2.0)
    """
    if is_number(value) and 0 <= value < math.inf:
        return float(value)
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    seconds = float(match[1]) * _SECONDS[match[2]] if match else math.inf
    if seconds == math.inf:
        raise InputError(
            f"{what} is {shown(value)}: give seconds as a number or as a string like '120ms' or "
            "'1.5s'"
        )
    return seconds


def format_bytes(size: float) -> str:
    """Bytes in the largest 1024-based unit that leaves at least one.

    >>> format_bytes(34359738368)
    '32 GiB'
    """
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        # A value that rounds to 1024 is written as 1 of the next unit.
        if abs(value) < 1023.5 or unit == "TiB":
            break
        value /= 1024
    digits = 0 if round(value, 2) == round(value) or value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"


def format_seconds(seconds: float) -> str:
    """Seconds in the unit that leaves one to three digits before the point.

    >>> format_seconds(0.0123)
    '12.3 ms'
    """
    if seconds == 0:
        return "0 s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")):
        # A value that rounds to 1000 is written as 1 of the next unit.
        if abs(seconds) >= 0.9995 * scale or unit == "ns":
            return f"{seconds / scale:.3g} {unit}" if seconds < 1000 else f"{seconds:.0f} s"
    raise AssertionError


def format_count(count: float) -> str:
    """A large count with a decimal prefix.

    >>> format_count(25_600_000)
    '25.6 M'
    """
    for scale, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= 0.9995 * scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f}"


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number and its noun, singular or plural.

    >>> counted(1, "op"), counted(2, "op"), counted(1, "case is", "cases are")
    ('1 op', '2 ops', '1 case is')
    """
    return f"{count} {one if count == 1 else many or f'{one}s'}"
