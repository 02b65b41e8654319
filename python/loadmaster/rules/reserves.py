"""Memory that no plan of PyTorch can use on a GPU: what the command line keeps free by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from loadmaster.base.files import parse_toml
from loadmaster.base.units import format_bytes, parse_bytes
from loadmaster.model.cluster import Cluster
from loadmaster.model.machine.types import known_types
from loadmaster.rules.constraints import Constraints


@dataclass(frozen=True)
class Reserve:
    """Memory of a device that is kept free, by what takes it.

    Attributes
    ----------
    parts : tuple of (str, int)
        What takes it, in words, and its bytes.

    Examples
    --------
    >>> print(Reserve((("context", 2**29), ("waste", 2**30))))
    1.50 GiB: 512 MiB context, 1 GiB waste
    """

    parts: tuple[tuple[str, int], ...]

    @property
    def bytes(self) -> int:
        """The sum of the parts."""
        return sum(size for _, size in self.parts)

    def __str__(self) -> str:
        words = ", ".join(f"{format_bytes(size)} {taker}" for taker, size in self.parts)
        return f"{format_bytes(self.bytes)}: {words}"


def default_reserve(cluster: Cluster, runtime: str | None = None) -> dict[str, Reserve]:
    """The memory that GPUs of each known type lack or lose: by the name of the type.

    A card has less than its name says, CUDA's context and the buffers of communicators take some,
    and an allocator in blocks wastes some. Other types (CPUs, types of a user's own) have none.
    Where devices of a type differ in memory, the smallest counts. O(devices).

    Parameters
    ----------
    cluster : Cluster
    runtime : str, optional
        ``"graphs"`` keeps pools of captured graphs as well.

    Returns
    -------
    dict of str to Reserve
        For ``lm.Constraints(reserve={name: one.bytes for name, one in ...})``.

    Examples
    --------
    >>> reserve = default_reserve(Cluster.preset("8xH100-NVLink"))["H100-SXM5-80GB"]
    >>> [taker for taker, _ in reserve.parts][:3], round(reserve.bytes / 2**30, 1)
    (['less than its name says', 'context', 'communicators'], 4.8)
    """
    table = _table()
    memory: dict[str, list[int]] = {}
    for device in cluster.devices:
        known = known_types().get(device.type)
        if known is not None and (known.nvlink or known.type.source.startswith("NVIDIA")):
            memory.setdefault(device.type, []).append(device.memory)
    is_alone = sum(map(len, memory.values())) == 1
    over_hosts = table["over_hosts"] if len(set(cluster._core.machines)) > 1 else 0
    reserves = {}
    for name, sizes in memory.items():
        known, size = known_types()[name], min(sizes)
        nominal = int(known.memory * (1 - table["lacks"]))
        shown = min(parse_bytes(table["shown"].get(name, nominal)), size)
        communicator = table["communicator_nvlink" if known.nvlink else "communicator_pcie"]
        buffers = parse_bytes(communicator) + parse_bytes(over_hosts)
        lost = {
            "less than its name says": size - shown,
            "context": parse_bytes(table["context"]),
            "communicators": 0 if is_alone else buffers,
            "pools of graphs": parse_bytes(table["graphs"]) if runtime == "graphs" else 0,
            f"({table['waste']:.0%}) wasted by an allocator": int(shown * table["waste"]),
        }
        one = Reserve(tuple((taker, part) for taker, part in lost.items() if part))
        if one.bytes < size:
            reserves[name] = one
    return reserves


def kept_by_default(cluster: Cluster, runtime: str | None = None) -> Constraints:
    """Constraints that keep the default reserve free, and nothing else."""
    reserves = default_reserve(cluster, runtime)
    return Constraints(reserve={name: one.bytes for name, one in reserves.items()})


@cache
def _table() -> Mapping[str, Any]:
    file = resources.files("loadmaster.rules") / "reserves.toml"
    return parse_toml(file.read_text(encoding="utf-8"), "reserves.toml")
