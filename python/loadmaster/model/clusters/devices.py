"""Devices, and the types of devices with the figures that times are estimated from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.units import parse_bytes
from loadmaster.model.runtime import SendCost, SessionCost

#: Dtypes for which a device type may state its peak.
DTYPES = ("f64", "f32", "bf16", "f16", "f8", "i8")


#: Parts of a name that stand for something else: a range of names, and the ends of a link.
_TAKEN = re.compile(r"\{(\d+\.\.\d+|from|to)\}")


@dataclass(frozen=True)
class DeviceType:
    """A kind of device, with the figures its roofline needs.

    Attributes
    ----------
    name : str
    peak : mapping of dtype to FLOP/s
        Dense peak per dtype; one that is missing runs at the peak of ``f32``.
    memory_bandwidth : float
        B/s.
    launch : float
        Seconds that starting one kernel takes, as a part of the op's time on the device. 0 where a
        host launches (:class:`Dispatch`).
    source : str
        Where the figures come from.
    send_cost : SendCost or None
        What sending costs a device; None: nothing.
    session_cost : SessionCost or None
        What running a sub-model costs a device; None: what the system that runs it says.
    """

    name: str
    peak: Mapping[str, float] = field(default_factory=dict)
    memory_bandwidth: float = 0.0
    launch: float = 0.0
    source: str = ""
    send_cost: SendCost | None = None
    session_cost: SessionCost | None = None

    def __post_init__(self) -> None:
        unknown = sorted(set(self.peak) - set(DTYPES))
        if unknown:
            raise InputError(
                f"device type {self.name!r}: unknown dtype {unknown[0]!r} in peak; "
                f"known are {', '.join(DTYPES)}"
            )
        for dtype, peak in self.peak.items():
            checks.positive(f"device type {self.name!r}: peak of {dtype}", peak)
        for name in ("memory_bandwidth", "launch"):
            checks.not_negative(f"device type {self.name!r}: {name}", getattr(self, name))

    @property
    def facts(self) -> dict[str, Any]:
        """The fields as plain data; costs of sending and of sessions only where there are some."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def has_roofline(self) -> bool:
        """True if op times can be estimated on this type."""
        return bool(self.peak) and self.memory_bandwidth > 0


@dataclass(frozen=True)
class Device:
    """A device: unique ``name``, name of its ``type``, bytes of ``memory`` (or ``"32GiB"``)."""

    name: str
    type: str
    memory: int

    def __post_init__(self) -> None:
        checks.text("the name of a device", self.name)
        checks.text(f"the type of device {self.name!r}", self.type)
        if taken := _TAKEN.search(self.name):
            raise InputError(
                f"device {self.name!r}: a name may not have {taken[0]} in it, which stands for "
                "other names in files"
            )
        memory = parse_bytes(self.memory, f"memory of device {self.name!r}")
        object.__setattr__(self, "memory", memory)
