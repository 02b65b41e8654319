"""Tables of measured kernels, and the surfaces that are laid through them.

``tables.npz`` has, for each family, the sizes that were measured (``sites``), and for each dtype
and device type how long each took (``values``): steps of :data:`STEP` of log(measured / data
sheet), :data:`MISSING` where nobody measured. ``tables.toml`` says of each table where it comes
from.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.kernels.families import FAMILIES, ITEM
from loadmaster.costs.kernels.kin import Figures, nearest
from loadmaster.costs.kernels.surface import Surface

Floats = NDArray[np.float64]

#: log(measured / data sheet) that one step of a value is.
STEP = 0.03

#: What one step of a size is.
SITE_STEP = 1 / 64

#: The value of a size that was not measured.
MISSING = -128

#: Seconds that the shortest kernel takes.
SHORTEST = 2e-6

#: Seconds by which a host is done with a kernel's launch after the kernel began, where a table has
#: the host's time in it: a measurement is the longer of the host's time, and of this much less than
#: that and the kernel's. So does it show in ops of 5 to 100 MB, by bytes, on V100, A100 and T4.
_AFTER = 12e-6

#: A measurement that is less than so many times the shortest may show the host's time alone.
_NOISE = 1.06

#: So many times its data sheet is what a kernel takes that is hidden behind the host's launch, and
#: at most.
_HIDDEN, _WORST = 2.0, 8.0


@dataclass(frozen=True)
class KernelTable:
    """One table: of a family, a dtype and a device type.

    Attributes
    ----------
    figures : Figures
        The data sheet that the values are held against.
    floor : float
        Seconds of the host in every measurement: shorter kernels do not show. 0: only the device's.
    shortest : float
        Seconds of the shortest measurement, which says nothing of shorter ones.
    """

    family: str
    dtype: str
    device: str
    figures: Figures
    floor: float
    shortest: float
    surface: Surface

    def measured(self, sizes: Floats, figures: Figures) -> Floats:
        """Seconds as whoever filled the table would measure them, on a device of these figures."""
        family = FAMILIES[self.family]
        least = family.least(sizes, figures.peak, figures.bandwidth, ITEM[self.dtype])
        factor = np.exp(self.surface.at(family.features(sizes)))
        return (
            factor * np.maximum(least, max(self.floor, 0.0))
            if self.floor
            else factor * (least + SHORTEST)
        )

    def seconds(self, sizes: Floats, figures: Figures) -> Floats:
        """Seconds on the device alone, without the host's."""
        measured = self.measured(sizes, figures)
        if not self.floor:
            return measured
        least = FAMILIES[self.family].least(
            sizes, figures.peak, figures.bandwidth, ITEM[self.dtype]
        )
        alone = np.maximum(measured - max(self.floor - _AFTER, 0.0), SHORTEST)
        behind = np.maximum(measured - _NOISE * self.shortest, 0.0) + _HIDDEN * least + SHORTEST
        return np.minimum(np.minimum(alone, behind), _WORST * least + SHORTEST)


def encoded(
    table: tuple[str, str, float], sizes: Floats, seconds: Floats, figures: Figures
) -> Floats:
    """log(measured / data sheet) of measurements of a (family, dtype, floor)."""
    family, dtype, floor = table
    least = FAMILIES[family].least(sizes, figures.peak, figures.bandwidth, ITEM[dtype])
    return np.log(seconds / (np.maximum(least, floor) if floor else least + SHORTEST))


class KernelTables:
    """All tables.

    Parameters
    ----------
    arrays : mapping of name to array
        ``sites/FAMILY``: int64 [columns, n], each site less the one before it, in steps of
        :data:`SITE_STEP`; ``values/FAMILY/DTYPE/DEVICE``: int8 [n].
    facts : list of mappings
        A table each: ``family``, ``dtype``, ``device``, ``peak``, ``bandwidth``, ``floor``,
        ``shortest``.
    """

    def __init__(
        self, arrays: Mapping[str, NDArray[np.generic]], facts: list[dict[str, object]]
    ) -> None:
        self.facts = facts
        self._arrays = arrays
        self._facts: dict[tuple[str, str], dict[str, dict[str, object]]] = {}
        for fact in facts:
            key = (str(fact["family"]), str(fact["dtype"]))
            self._facts.setdefault(key, {})[str(fact["device"])] = fact
        self._tables: dict[tuple[str, str, str], KernelTable] = {}

    def table(self, family: str, dtype: str, device: str, figures: Figures) -> KernelTable | None:
        """The table of a device type, or of its nearest kin; None: there is none of either."""
        known = self._facts.get((family, dtype), {})
        sheets = {
            name: Figures(float(str(fact["peak"])), float(str(fact["bandwidth"])))
            for name, fact in known.items()
        }
        name = nearest(device, figures, sheets)
        if name is None:
            return None
        key = (family, dtype, name)
        if key not in self._tables:
            steps = np.asarray(self._arrays[f"sites/{family}"], dtype=np.int64)
            sites = steps.cumsum(axis=1).T * SITE_STEP
            values = np.asarray(self._arrays[f"values/{family}/{dtype}/{name}"])
            there = values != MISSING
            surface = Surface(
                FAMILIES[family].features(sites[there]), values[there].astype(np.float64) * STEP
            )
            floor, shortest = (float(str(known[name][fact])) for fact in ("floor", "shortest"))
            self._tables[key] = KernelTable(
                family, dtype, name, sheets[name], floor, shortest, surface
            )
        return self._tables[key]


@cache
def shipped() -> KernelTables:
    """The tables of the package."""
    here = Path(__file__).parent
    facts = tomllib.loads((here / "tables.toml").read_text(encoding="utf-8"))["table"]
    return KernelTables(np.load(here / "tables.npz"), facts)
