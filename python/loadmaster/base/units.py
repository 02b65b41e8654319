"""Bytes, seconds and rates as people write them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from loadmaster.base.checks import is_integer, is_number
from loadmaster.base.errors import InputError
from loadmaster.base.text import shown

_NUMBER = re.compile(r"(\d+(?:\.\d*)?(?:[eE][+-]?\d{1,3})?)\s*([^\s\d.][^\d]*)?")


@dataclass(frozen=True)
class Quantity:
    """The quantities that a figure may be of.

    Attributes
    ----------
    units : mapping of str to Decimal
        How much of the first unit each unit is.
    likely : tuple of str
        The units that a number without one most likely has.
    sure : (float, float)
        Numbers from the first up to the second can only be of the first unit.
    any_case : bool
        Whether a unit may be in capitals or not.
    """

    units: Mapping[str, Decimal]
    likely: tuple[str, ...]
    sure: tuple[float, float]
    any_case: bool = False

    @property
    def base(self) -> str:
        """The unit in which figures are held."""
        return next(iter(self.units))

    def parse(self, text: str, named: str) -> float | int:
        """The figure of a text with a unit, or of ``"0"``.

        A whole number of the first unit is an int, all else a float.
        """
        match = _NUMBER.fullmatch(text.strip())
        number, unit = (match[1], (match[2] or "").strip()) if match else ("", "")
        known = {u.lower(): u for u in self.units} if self.any_case else {u: u for u in self.units}
        name = known.get(unit.lower() if self.any_case else unit)
        if number and not unit and not Decimal(number):
            name = self.base
        if number and not unit and name is None:
            raise self.bare(number, named)
        if name is None:
            forms = ", ".join(f"'12{unit}'" for unit in self.likely)
            raise InputError(f"{named} is {text!r}: write a number and its unit, such as {forms}")
        if number.isdigit() and name == self.base:
            return int(number)
        return float(Decimal(number) * self.units[name])

    def bare(self, number: object, name: str) -> InputError:
        """The error of a number without a unit."""
        *first, last = (f"'{number}{unit}'" for unit in self.likely)
        return InputError(f"{name} is {number}, without a unit: write {', '.join(first)} or {last}")

    def read(self, value: str | float, name: str, bare: bool = False) -> float | int:
        """A figure of a file: a text with a unit, or a number that is 0 or can be of the first unit
        alone. Any number will do where ``bare`` says that a program wrote it.
        """
        if isinstance(value, str):
            return self.parse(value, name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InputError(f"{name} is {shown(value)}: wants a text with a number and its unit")
        try:
            number = float(value)
        except OverflowError:
            raise InputError(f"{name} is {shown(value)}: out of range") from None
        low, high = self.sure
        if 0 < number < math.inf and not (bare or low <= number < high):
            raise self.bare(value, name)
        return value + 0  # -0.0 is 0.0

    def write(self, value: float) -> str:
        """A figure as text that :meth:`parse` reads as exactly this figure.

        >>> RATE.write(47.9e9), TIME.write(1e-05), SPEED.write(10**9)
        ('47.9 GB/s', '10 us', '1000000000 FLOP/s')
        """
        if is_integer(value):
            return f"{value} {self.base}"
        exact = Decimal(repr(float(value)))
        decimal = (u for u, of in self.units.items() if u.endswith(self.base) and _is_ten(of))
        unit = next((u for u in decimal if 1 <= exact / self.units[u] < 1000), self.base)
        if unit != self.base:
            return f"{(exact / self.units[unit]).normalize():f} {unit}"
        number = repr(float(value))
        return f"{number if set(number) & set('.eE') else number + '.0'} {unit}"


def _is_ten(scale: Decimal) -> bool:
    """True if a scale is a power of ten."""
    return scale.normalize().as_tuple().digits == (1,)


def _prefixed(unit: str, letters: str = "kMGTP") -> dict[str, Decimal]:
    """A unit and its multiples by powers of 1000."""
    factors = {unit: Decimal(1)}
    factors.update({f"{p}{unit}": Decimal(1000) ** i for i, p in enumerate(letters, start=1)})
    return factors


def _binary(unit: str) -> dict[str, Decimal]:
    return {f"{p}i{unit}": Decimal(1024) ** i for i, p in enumerate("KMGTP", start=1)}


_BITS = {f"{p}bit/s": Decimal(1000) ** i / 8 for i, p in enumerate("kMGT", start=1)}
_BITS |= {f"{p}bps": Decimal(1000) ** i / 8 for i, p in enumerate("kMGT", start=1)}
_OPS = _prefixed("OP/s")

SIZE = Quantity(
    {**_prefixed("B", "KMGTP"), **_binary("B")}, ("GiB", "MiB", "B"), (2**30, math.inf), True
)
RATE = Quantity(
    {**_prefixed("B/s"), **_binary("B/s"), **_BITS}, ("GB/s", "Gbit/s", "MB/s"), (1e6, math.inf)
)
SPEED = Quantity({**_prefixed("FLOP/s"), **_OPS}, ("TFLOP/s", "GFLOP/s", "FLOP/s"), (1e9, math.inf))
TIME = Quantity(
    {
        "s": Decimal(1),
        "ms": Decimal("1e-3"),
        "us": Decimal("1e-6"),
        "ns": Decimal("1e-9"),
        "min": Decimal(60),
    },
    ("ms", "s", "us"),
    (0, 1e-2),
)


def parse_bytes(value: object, name: str = "size") -> int:
    """Bytes from an int, or from a string such as ``"32GiB"`` (1024-based) or ``"16 GB"``.

    >>> parse_bytes("32GiB"), parse_bytes("2gb"), parse_bytes(8)
    (34359738368, 2000000000, 8)
    """
    if is_integer(value) and 0 <= value < 2**63:
        return int(value)
    if not isinstance(value, str):
        raise InputError(
            f"{name} is {shown(value)}: give bytes as an integer or as a string like '32GiB' or "
            "'16GB'"
        )
    size = SIZE.parse(value, name)
    if size >= 2**63:
        raise InputError(f"{name} is {shown(value)}: more than 2^63 bytes")
    return int(size)


def exact_bytes(size: int) -> str:
    """Bytes in the largest 1024-based unit that leaves a whole number.

    >>> exact_bytes(2**34), exact_bytes(1000)
    ('16 GiB', '1000 B')
    """
    whole = (u for u in ("TiB", "GiB", "MiB", "KiB") if size and not size % SIZE.units[u])
    unit = next(whole, "B")
    return f"{size // int(SIZE.units[unit])} {unit}"


def parse_seconds(value: object, name: str = "time") -> float:
    """Seconds from a number, or from a string such as ``"120ms"`` or ``"1.5 s"``.

    >>> parse_seconds("120ms"), parse_seconds(2)
    (0.12, 2.0)
    """
    if is_number(value) and 0 <= value < math.inf:
        return float(value)
    seconds = float(TIME.parse(value, name)) if isinstance(value, str) else math.inf
    if seconds == math.inf:
        raise InputError(
            f"{name} is {shown(value)}: give seconds as a number or as a string like '120ms' or "
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


def format_ratio(ratio: float) -> str:
    """A ratio with two decimals, or with four where two do not tell it from 1.

    >>> format_ratio(1.504), format_ratio(1.0012), format_ratio(1.0)
    ('1.50', '1.0012', '1.00')
    """
    fine = f"{ratio:.4f}"
    return fine if f"{ratio:.2f}" == "1.00" and fine != "1.0000" else f"{ratio:.2f}"


def changed(seconds: float, above: str, below: str, same: str) -> str:
    """A difference in a word: ``above`` zero, ``below`` it, or the ``same``.

    >>> changed(-0.002, "slower", "faster", "as fast"), changed(0.0, "slower", "faster", "as fast")
    ('2 ms faster', 'as fast')
    """
    if seconds == 0:
        return same
    return f"{format_seconds(abs(seconds))} {above if seconds > 0 else below}"


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
