"""Families of kernels: what each takes by the data sheet, and where it lies on its surface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.kernels import attention, convolutions, experts, products, vectors

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Family:
    """A family of kernels.

    Attributes
    ----------
    columns : tuple of str
        Sizes of an op of the family.
    least : function of sizes [n, columns], FLOP/s, B/s and bytes of an element
        Seconds by the data sheet, float64 [n].
    features : function of sizes
        Coordinates on the surface, float64 [n, d].
    """

    columns: tuple[str, ...]
    least: Callable[[Floats, float, float, float], Floats]
    features: Callable[[Floats], Floats]


FAMILIES = {
    "products": Family(products.COLUMNS, products.least, products.features),
    "batched products": Family(products.COLUMNS, products.least, products.features_batched),
    "context": Family(attention.COLUMNS, attention.least_context, attention.features_context),
    "encoder": Family(attention.COLUMNS, attention.least_encoder, attention.features_encoder),
    "generation": Family(
        attention.COLUMNS, attention.least_generation, attention.features_generation
    ),
    "experts": Family(experts.COLUMNS, experts.least, experts.features),
    "convolutions": Family(convolutions.COLUMNS, convolutions.least, convolutions.features),
    "windows": Family(
        convolutions.WINDOWS, convolutions.least_windows, convolutions.features_windows
    ),
    "pointwise": Family(vectors.COLUMNS, vectors.least, vectors.features_pointwise),
    "norm": Family(vectors.COLUMNS, vectors.least, vectors.features_rows),
    "softmax": Family(vectors.COLUMNS, vectors.least, vectors.features_rows),
}

#: Bytes of an element by the dtypes that tables have. "f16" stands for all 16-bit floats.
ITEM = {"f32": 4.0, "f16": 2.0, "f8": 1.0}
