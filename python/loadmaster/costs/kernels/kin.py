"""Device types that stand in for others: the nearest kin of those that were measured."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

#: Vendor and generation by the beginnings of names of device types: the first that fits counts.
_GENERATIONS = (
    (r"G?B300-", "NVIDIA", 9),
    (r"G?B200-", "NVIDIA", 8),
    (r"RTX50|RTXPRO", "NVIDIA", 8),
    (r"H100|H200|H20-|H800|GH200", "NVIDIA", 7),
    (r"L4-|L40S?-|L20-|RTX40", "NVIDIA", 6),
    (r"A10G?-|A40-|RTXA|RTX30", "NVIDIA", 5),
    (r"A100|A30-|A800", "NVIDIA", 4),
    (r"T4-|RTX20", "NVIDIA", 3),
    (r"V100", "NVIDIA", 2),
    (r"P4-|P40-|P100", "NVIDIA", 1),
    (r"MI\d", "AMD", 1),
    (r"ArcPro", "Intel", 1),
)

#: Device types that were measured: those of the tables.
MEASURED = (
    *("A100-PCIe-40GB", "A100-PCIe-80GB", "A100-SXM4-80GB", "A40-48GB", "ArcProB60-24GB"),
    *("B200-180GB", "B300-288GB", "GB300-279GB", "H100-SXM5-80GB", "H200-SXM-141GB"),
    *("L4-24GB", "L40S-48GB", "MI100-32GB", "P4-8GB", "RTXPRO6000-96GB", "T4-16GB"),
    "V100-PCIe-32GB",
)

#: How far one generation is from the next, in units of the logarithm of a rate.
_GENERATION = 0.5


@dataclass(frozen=True)
class Figures:
    """A data sheet: ``peak`` in FLOP/s at a dtype, ``bandwidth`` in B/s."""

    peak: float
    bandwidth: float


def is_gpu(name: str) -> bool:
    """True if a device type of this name can have kin."""
    return _generation(name) is not None


def same_generation(name: str, other: str) -> bool:
    """True if two device types are of one vendor and generation.

    >>> same_generation("H200-SXM-141GB", "H100-SXM5-80GB"), same_generation("V100", "A100")
    (True, False)
    """
    own = _generation(name)
    return own is not None and own == _generation(other)


def nearest(name: str, figures: Figures, measured: dict[str, Figures]) -> str | None:
    """The measured device type that is the most like one: of its chip, else of its vendor, and by
    generation, peak and bandwidth the nearest. None: there is none.

    >>> a100, h100 = Figures(312e12, 2e12), Figures(989e12, 3.35e12)
    >>> sheets = {"A100-SXM4-80GB": a100, "H100-SXM5-80GB": h100}
    >>> nearest("H200-SXM-141GB", Figures(989e12, 4.8e12), sheets)
    'H100-SXM5-80GB'
    """
    if name in measured:
        return name
    own = _generation(name)
    apart: list[tuple[bool, float, str]] = []
    for other, sheet in measured.items():
        of_other = _generation(other)
        if own is None or of_other is None or own[0] != of_other[0]:
            continue
        distance = (
            _GENERATION * abs(own[1] - of_other[1])
            + abs(math.log(figures.peak / sheet.peak))
            + abs(math.log(figures.bandwidth / sheet.bandwidth))
        )
        apart.append((_chip(name) != _chip(other), distance, other))
    return min(apart)[2] if apart else None


def _chip(name: str) -> str:
    """The first word of a device type's name, whatever speed it is told to have.

    >>> _chip("V100-SXM2-16GB"), _chip("V100 x 0.5")
    ('V100', 'V100')
    """
    return re.split(r"\W", name, maxsplit=1)[0]


def _generation(name: str) -> tuple[str, int] | None:
    for pattern, vendor, generation in _GENERATIONS:
        if re.match(pattern, name):
            return vendor, generation
    return None
