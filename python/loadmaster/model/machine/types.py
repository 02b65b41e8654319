"""Types of devices whose figures are known: the table of ``types.toml``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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

#: Words of makers that a name may begin with. Tools and people say them or leave them out.
_MAKERS = ("nvidia", "tesla", "geforce", "rtx", "amd", "instinct", "apple", "intel(r)", "intel")

#: Parts of a name. What separates them, or nothing, everybody writes otherwise.
_PARTS = re.compile(r"[^\W\d_]+|\d+|[^\w\s/()-]+")

#: Kinds of lists of names: those that hold always, and those that hold for a link that begins so.
_NAMES = ("called", "aliases")
_NAMES_BY_LINK = {"pcie": "on_pcie", "nvlink": "on_nvlink"}

#: Facts of a type that only the table has; a cluster's TOML has all else in ``[[type]]``.
_ONLY_HERE = (
    *(*_NAMES, *_NAMES_BY_LINK.values()),
    *("memory", "nvlink", "link", "port", "lanes", "peer", "cores", "read_at"),
)


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
    spellings : frozenset of str
        All its names, folded: its own, those of tools, and aliases.
    by_link : mapping of str to frozenset of str
        Aliases, folded, that it has where ``"pcie"`` or ``"nvlink"`` joins the devices.
    nvlink : str
        The kind of NVLink that it has (see ``links.toml``); empty: none.
    link : str
        What joins several in a host as they are sold, as a user would say it (``"pcie4"``); empty:
        unknown.
    port : bool
        Whether hosts of it are sold with a network port for each.
    lanes : int
        How many of them; 0: as many as ``links.toml`` says.
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
    spellings: frozenset[str]
    by_link: Mapping[str, frozenset[str]]
    nvlink: str
    link: str
    port: bool
    lanes: int
    peer: bool
    cores: int
    read_at: str

    @property
    def nvlinks(self) -> str:
        """All NVLinks that it has, as a link is asked for; empty: none."""
        return f"{self.nvlink}x{self.lanes}" if self.lanes else self.nvlink


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
    names = [row["name"], *(name for kind in _NAMES for name in row.get(kind, ()))]
    return KnownType(
        read_type(figures, i),
        parse_bytes(row.get("memory", 0), f"memory of type {row['name']!r}"),
        tuple(row.get("called", ())),
        _spellings(names),
        {link: _spellings(row.get(kind, ())) for link, kind in _NAMES_BY_LINK.items()},
        row.get("nvlink", ""),
        row.get("link", ""),
        row.get("port", False),
        row.get("lanes", 0),
        row.get("peer", True),
        row.get("cores", 0),
        row.get("read_at", ""),
    )


def recognised(name: str) -> KnownType | None:
    """The type that a tool calls so; None where the table has none, or several.

    >>> recognised("NVIDIA GeForce RTX 4090").type.name
    'RTX4090-24GB'
    >>> recognised("NVIDIA GeForce RTX 4090 D") is None
    True
    """
    key = _folded(name)
    fitting = [known for known in known_types().values() if key in known.spellings]
    return fitting[0] if len(fitting) == 1 else None


def asked(name: str, link: str = "") -> KnownType:
    """The type of which a user says a name that is listed: its own, that of a tool, or an alias.

    Where a card and a module have the same alias, the link decides: PCIe joins cards, NVLink
    modules.

    Raises
    ------
    InputError
        No type is called so, or several: the message names them.

    Examples
    --------
    >>> asked("rtx4090").type.name, asked("A100", "pcie4").type.name
    ('RTX4090-24GB', 'A100-PCIe-80GB')
    """
    key, table = _folded(name), known_types().values()
    always = [known for known in table if key in known.spellings]
    by_link = {
        kind: [known for known in table if key in known.by_link[kind]] for kind in _NAMES_BY_LINK
    }
    by_this = [
        known
        for kind, of_kind in by_link.items()
        if link.strip().casefold().startswith(kind)
        for known in of_kind
    ]
    chosen = by_this or always or [known for of_kind in by_link.values() for known in of_kind]
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        names = ", ".join(known.type.name for known in chosen)
        raise InputError(f"{name!r} may be one of several types: write one of {names}")
    listed = dict.fromkeys(n for known in table for n in (known.type.name, *known.called))
    raise InputError(
        f"no device type is named {name!r}{meant(name, listed, 'loadmaster cluster types')}; any "
        "other is a [[type]] of a TOML file with its peak and memory_bandwidth"
    )


def _spellings(names: Iterable[str]) -> frozenset[str]:
    """Names, folded, with the maker's words at their beginning and without."""
    spelled = set()
    for name in names:
        words = name.split()
        spelled.add(_folded(name))
        while len(words) > 1 and words[0].casefold() in _MAKERS:
            words = words[1:]
            spelled.add(_folded(" ".join(words)))
    return frozenset(spelled)


def _folded(name: str) -> str:
    """A name in parts of letters or of digits, without capitals.

    >>> _folded("A100-SXM4 80GB"), _folded("RTX4090"), _folded("H20 0")
    ('a 100 sxm 4 80 gb', 'rtx 4090', 'h 20 0')
    """
    return " ".join(_PARTS.findall(name.casefold()))
