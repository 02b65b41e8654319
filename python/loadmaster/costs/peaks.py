"""FLOP/s of device types at the dtypes of ops."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.clusters.devices import DeviceType

#: Dtypes whose peak stands in for that of a dtype, the best first.
_PEAK_OF = {
    "f64": ("f64", "f32"),
    "f32": ("f32",),
    "f16": ("f16", "bf16", "f32"),
    "bf16": ("bf16", "f16", "f32"),
    "f8": ("f8", "f16", "bf16", "f32"),
    "i8": ("i8", "f16", "bf16", "f32"),
    "u8": ("i8", "f16", "bf16", "f32"),
}
_DTYPE = re.compile(r"(bf|f|i|u|b|c)(\d+)")


def peaks(outputs: Sequence[str], device_type: DeviceType) -> NDArray[np.float64]:
    """FLOP/s of a device type at the dtype of each of these outputs."""

    def peak(output: str) -> float:
        match = _DTYPE.match(output)
        wanted = _PEAK_OF.get(match[0] if match else "f32", ("f32",))
        known = [device_type.peak[d] for d in wanted if device_type.peak.get(d)]
        return known[0] if known else max(device_type.peak.values())

    by_output = {output: peak(output) for output in set(outputs)}
    return np.fromiter(map(by_output.__getitem__, outputs), np.float64, len(outputs))
