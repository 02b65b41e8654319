"""The host by Linux: cores, memory, PCIe slots; read from procfs, sysfs and cgroups.

Every function takes the folder that stands for ``/``, so that recorded trees can be read.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: PCIe generations by GT/s of a lane.
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}

_AT = re.compile(r"@\s*(\d{1,3}(?:\.\d{1,6})?)\s*GHz")


@dataclass(frozen=True)
class Host:
    """The CPU and memory that this process may use.

    Attributes
    ----------
    name : str
        The CPU's, as /proc/cpuinfo has it; empty where it has none.
    cores : int
        Cores, not threads, that this process may run on; 0: not told.
    hertz : float
        Clock rate; 0: not told.
    clock : str
        What the clock rate is: ``"base"``, ``"current"``, or ``"maximum"``.
    flop_per_cycle : int
        f32 FLOP of a core per cycle, by the vector instructions that it says it has; 0: not told.
    vectors : str
        These instructions.
    memory : int
        Bytes: the machine's, or the limit of the control group, if that is less.
    limited : bool
        Whether it is that limit.
    """

    name: str
    cores: int
    hertz: float
    clock: str
    flop_per_cycle: int
    vectors: str
    memory: int
    limited: bool


def host(root: Path) -> Host:
    """The host under a root; what no file tells is 0 or empty."""
    first, *_ = _text(root / "proc/cpuinfo").split("\n\n")
    rows = (line.partition(":") for line in first.splitlines())
    facts = {key.strip(): value.strip() for key, _, value in rows}
    name = facts.get("model name", "")
    flags = set(facts.get("flags", facts.get("Features", "")).split())
    hertz, clock = _clock(root, name, facts.get("cpu MHz", ""))
    total = _bytes_of(_text(root / "proc/meminfo"), "MemTotal")
    limit = _limit(root)
    memory = min(total, limit) if limit and total else total
    per_cycle, vectors = _vectors(flags)
    return Host(name, usable_cores(root), hertz, clock, per_cycle, vectors, memory, memory < total)


def pcie_of(root: Path, bus: str) -> tuple[int | None, int | None]:
    """PCIe generation and lanes that a device and the slot above it can both do."""
    generations, widths = [], []
    device = root / "sys/bus/pci/devices" / bus
    with suppress(OSError, RuntimeError):
        device = device.resolve()
    for end in (device, device.parent):
        speed = _text(end / "max_link_speed").partition(" ")[0]
        width = _text(end / "max_link_width").strip()
        with suppress(ValueError):
            generations.append(_GENERATIONS.get(float(speed), 0))
        widths += [int(width)] if width.isdecimal() else []
    return min((g for g in generations if g), default=None), min(
        (w for w in widths if 0 < w <= 32), default=None
    )


def numbers(text: str) -> list[int]:
    """The numbers of a list as the kernel writes it.

    >>> numbers("0-2,8")
    [0, 1, 2, 8]
    """
    listed: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            listed += range(int(first), int(last or first) + 1)
    return listed


def usable_cores(root: Path = Path("/")) -> int:
    """Cores whose threads this process may run on; threads where no file tells cores."""
    cpus = numbers(_text(root / "sys/devices/system/cpu/online"))
    status = re.search(r"^Cpus_allowed_list:(.*)$", _text(root / "proc/self/status"), re.M)
    if status:
        allowed = set(numbers(status[1]))
        cpus = [cpu for cpu in cpus if cpu in allowed] or sorted(allowed)
    cores = set()
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        core = _text(topology / "core_id").strip()
        cores.add((_text(topology / "physical_package_id").strip(), core) if core else cpu)
    return len(cores)


def _clock(root: Path, name: str, current: str) -> tuple[float, str]:
    """Hz, and what it is of."""
    if at := _AT.search(name):
        return float(at[1]) * 1e9, "base"
    frequencies = root / "sys/devices/system/cpu/cpu0/cpufreq"
    for file, kind in (("base_frequency", "base"), ("cpuinfo_max_freq", "maximum")):
        kilohertz = _text(frequencies / file).strip()
        if kilohertz.isdecimal() and int(kilohertz):
            return int(kilohertz) * 1e3, kind
    with suppress(ValueError):
        return float(current) * 1e6, "current"
    return 0.0, ""


def _vectors(flags: set[str]) -> tuple[int, str]:
    """f32 FLOP per core and cycle. Two units with fused multiply-add are usual."""
    if "fma" in flags and "avx2" in flags:
        return 32, "AVX2 with two FMA units"
    if "asimd" in flags:
        return 16, "NEON with two FMA units"
    if "avx" in flags:
        return 16, "AVX"
    return (8, "SSE") if "sse" in flags else (0, "")


def _limit(root: Path) -> int:
    """Bytes that the control group of this process may take; 0: no limit."""
    groups = root / "sys/fs/cgroup"
    own = re.search(r"^0::/(.*)$", _text(root / "proc/self/cgroup"), re.M)
    files = [groups / own[1] / "memory.max"] if own else []
    files += [groups / "memory.max", groups / "memory/memory.limit_in_bytes"]
    limits = [int(text) for file in files if (text := _text(file).strip()).isdecimal()]
    return min(limits, default=0)


def _bytes_of(text: str, key: str) -> int:
    """Bytes of a row of /proc/meminfo."""
    match = re.search(rf"^{key}:\s*(\d+) kB$", text, re.M)
    return int(match[1]) << 10 if match else 0


def _text(file: Path) -> str:
    """The text of a file; empty where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
