"""Types of devices whose figures are known: the table of ``types.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.files import parse_toml
from loadmaster.base.text import meant
from loadmaster.base.units import parse_bytes
from loadmaster.model.clusters.devices import DeviceType
from loadmaster.model.clusters.rows import read_type

#: Words that tools and people say or leave out: they tell no two types apart.
_NOISE = re.compile(r"nvidia|geforce|quadro|tesla|\brtx|amd|instinct|[^a-z0-9]")

#: Facts of a type that only the table has; a cluster's TOML has all else in ``[[type]]``.
_ONLY_HERE = ("memory", "called", "nvlink", "link", "port", "peer", "cores", "read_at")


@dataclass(frozen=True)
class KnownType:
    """A type of the table.

    Attributes
    ----------
    type : DeviceType
        With its figures and where they come from.
    memory : int
        Bytes of a device of this type; 0 where devices of it differ.
    called : tuple of str
        Names that nvidia-smi, rocm-smi or /proc/cpuinfo give it.
    nvlink : str
        The kind of NVLink that it has (see ``links.toml``); empty: none.
    link : str
        What joins several in a host as they are sold, as a user would say it (``"pcie4"``); empty:
        unknown.
    port : bool
        Whether hosts of it are sold with a network port for each.
    peer : bool
        Whether two of it may copy to each other over PCIe without passing through the host.
    cores : int
        Cores of a CPU for which the figures hold; 0: no CPU.
    read_at : str
        Address where the figures were read, where not in the maker's document; or empty.
    """

    type: DeviceType
    memory: int
    called: tuple[str, ...]
    nvlink: str
    link: str
    port: bool
    peer: bool
    cores: int
    read_at: str


@cache
def known_types() -> Mapping[str, KnownType]:
    """The types of the table, by name, in its order.

    >>> known_types()["L4-24GB"].type.memory_bandwidth
    300000000000.0
    """
    file = resources.files("loadmaster.model.machine") / "types.toml"
    rows = parse_toml(file.read_text(encoding="utf-8"), "types.toml")["type"]
    return {row["name"]: _known(row, i) for i, row in enumerate(rows)}


def _known(row: Mapping[str, Any], i: int) -> KnownType:
    figures = {key: value for key, value in row.items() if key not in _ONLY_HERE}
    return KnownType(
        read_type(figures, i),
        parse_bytes(row.get("memory", 0), f"memory of type {row['name']!r}"),
        tuple(row.get("called", ())),
        row.get("nvlink", ""),
        row.get("link", ""),
        row.get("port", False),
        row.get("peer", True),
        row.get("cores", 0),
        row.get("read_at", ""),
    )


def recognised(name: str) -> KnownType | None:
    """The type that a tool calls so; None where the table has none.

    >>> recognised("NVIDIA GeForce RTX 4090").type.name
    'RTX4090-24GB'
    >>> recognised("NVIDIA L40") is None
    True
    """
    key = _key(name)
    for known in known_types().values():
        if key in map(_key, (known.type.name, *known.called)):
            return known
    return None


def asked(name: str, link: str = "") -> KnownType:
    """The type that a user calls so: by its name, or how that begins.

    Where several begin so, the link decides: PCIe cards have ``PCIe`` in their names, modules that
    NVLink joins ``SXM``.

    Raises
    ------
    InputError
        No type is called so, or several: the message names them.

    Examples
    --------
    >>> asked("rtx4090").type.name, asked("A100", "pcie4").type.name
    ('RTX4090-24GB', 'A100-PCIe-80GB')
    """
    table = known_types()
    exact = recognised(name)
    if exact is not None:
        return exact
    key = _key(name)
    fitting = [k for k in table.values() if key and _key(k.type.name).startswith(key)]
    form = {"p": "PCIe", "n": "SXM"}.get(link[:1].casefold(), "")
    of_form = [k for k in fitting if form and form in k.type.name]
    chosen = of_form if len(fitting) > 1 and of_form else fitting
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        names = ", ".join(k.type.name for k in chosen)
        raise InputError(f"{name!r} may be one of several types: write one of {names}")
    raise InputError(
        f"no device type is named {name!r}{meant(name, table)}; any other is a [[type]] of a TOML "
        "file with its peak and memory_bandwidth"
    )


def _key(name: str) -> str:
    """The part of a name that tells types apart."""
    return _NOISE.sub("", name.casefold())
