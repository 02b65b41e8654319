"""Products and convolutions of float32 on tensor cores (TF32): kernels of 16 bits at the peak of
TF32, with four bytes an element.

Nobody published tables of them. A device runs TF32 if its peak of float32 is far above that of its
data sheet: a cluster's file says so (``peak = { f32 = "156 TFLOP/s" }`` for an A100).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.clusters.devices import DeviceType
from loadmaster.model.machine.types import known_types

Floats = NDArray[np.float64]

#: Families that tensor cores run.
FAMILIES = frozenset({"products", "batched products", "convolutions", "windows"})

#: Times the data sheet's float32 peak that TF32 has at least.
_FAR = 2.0


def runs_tf32(device_type: DeviceType) -> bool:
    """True if the float32 peak of a device type can only be that of TF32."""
    sheet = known_types().get(device_type.name)
    if sheet is None or "f32" not in sheet.type.peak:
        return False
    return device_type.peak.get("f32", 0.0) > _FAR * sheet.type.peak["f32"]


def as_products(family: str, sizes: Floats) -> tuple[str, Floats]:
    """A family that has tables of 16 bits, and sizes as it has them: float64 [n, columns].

    >>> family, sizes = as_products("convolutions", np.array([[2.0, 64.0, 128.0, 56.0]]))
    >>> family, sizes.tolist()
    ('windows', [[1.0, 6272.0, 128.0, 576.0, 401408.0]])
    """
    if family != "convolutions":
        return family.removeprefix("batched "), sizes
    batch, inputs, outputs, size = sizes.T
    pixels = batch * size * size
    return "windows", np.stack(
        [np.ones(len(sizes)), pixels, outputs, 9 * inputs, pixels * inputs], axis=1
    )
