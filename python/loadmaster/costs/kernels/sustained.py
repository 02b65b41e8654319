"""Times under load, in times of kernels that were measured one by one.

Clocks fall in a long step, and frameworks run other kernels than those that were measured: training
has FlashAttention 2 on an H100, where serving systems have 3. ``sustained.toml`` has one factor by
device type and class of kernel, fitted to published steps (``benches/sustained.py``).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.kernels.kin import Figures, same_generation

Floats = NDArray[np.float64]

#: Classes of families that have factors.
CLASSES = {
    "products": "products",
    "batched products": "products",
    "experts": "products",
    "convolutions": "convolutions",
    "windows": "convolutions",
    "context": "attention",
    "encoder": "attention",
}


def factor(device: str, kin: str, dtype: str, family: str) -> float:
    """Time under load in times of the measured kernel's: of a device type, else of the kin whose
    kernels it has, if that is of its generation; 1 where no step tells.

    >>> factor("H100-SXM5-80GB", "H100-SXM5-80GB", "f16", "context") > 1
    True
    >>> factor("H100-SXM5-80GB", "H100-SXM5-80GB", "f32", "context")
    1.0
    """
    known = factors()
    row = known.get((device, dtype), {})
    if not row and same_generation(device, kin):
        row = known.get((kin, dtype), {})
    return row.get(CLASSES.get(family, ""), 1.0)


def computing(flops: Floats, accessed: Floats, figures: Figures) -> Floats:
    """Seconds of computing by the data sheet, as a part of those of computing and of moving bytes.

    It is the power of an op's factor: clocks slow what computes, not what waits for memory.

    >>> figures = Figures(peak=2.0, bandwidth=1.0)
    >>> computing(np.array([6.0, 0.0]), np.array([1.0, 1.0]), figures).tolist()
    [0.75, 0.0]
    """
    computes, moves = flops / figures.peak, accessed / figures.bandwidth
    share: Floats = computes / np.maximum(computes + moves, 1e-30)
    return share


@cache
def factors() -> dict[tuple[str, str], Mapping[str, float]]:
    """The factors by class, by device type and dtype."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return {
        (row["device"], row["dtype"]): row["factors"] for row in tomllib.loads(text)["sustained"]
    }
