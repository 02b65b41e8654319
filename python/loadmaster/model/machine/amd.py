"""GPUs and the links between them, read from the JSON of rocm-smi."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

#: The command whose output the functions here read.
QUERY = (
    "rocm-smi",
    "--showproductname",
    "--showmeminfo",
    "vram",
    "--showbus",
    "--showtopotype",
    "--json",
)

_CARD = re.compile(r"card(\d{1,4})")
_PAIR = re.compile(r"\(Topology\) Link type between DRM devices (\d{1,4}) and (\d{1,4})")

#: Fields that have the name, the best first: old versions write small letters.
_NAMES = ("Card Series", "Card series", "Device Name", "Card SKU")


@dataclass(frozen=True)
class Card:
    """A GPU as rocm-smi lists it: number, ``memory`` in bytes (0: not told), PCI ``bus``."""

    number: int
    name: str
    memory: int
    bus: str


def cards(text: str) -> list[Card]:
    """The GPUs, in the order of their numbers; none where the text has no JSON.

    >>> cards('{"card0": {"Card Series": "AMD Instinct MI300X", "PCI Bus": "0000:0C:00.0"}}')
    [Card(number=0, name='AMD Instinct MI300X', memory=0, bus='0000:0c:00.0')]
    """
    listed = []
    for key, row in _document(text).items():
        if (card := _CARD.fullmatch(key)) and isinstance(row, dict):
            name = next((row[k] for k in _NAMES if row.get(k, "N/A") != "N/A"), "AMD GPU")
            memory = str(row.get("VRAM Total Memory (B)", "0"))
            number = int(memory) if memory.isdecimal() and len(memory) < 17 else 0
            bus = str(row.get("PCI Bus", "")).casefold()
            listed.append(Card(int(card[1]), str(name).strip(), number, bus))
    return sorted(listed, key=lambda card: card.number)


def link_types(text: str) -> dict[tuple[int, int], str]:
    """``XGMI`` or ``PCIE`` by pairs of numbers, both ways; rocm-smi lists each pair once."""
    system = _document(text).get("system", {})
    types: dict[tuple[int, int], str] = {}
    for key, kind in system.items() if isinstance(system, dict) else ():
        if pair := _PAIR.fullmatch(key):
            a, b = int(pair[1]), int(pair[2])
            types[a, b] = types[b, a] = str(kind)
    return types


def _document(text: str) -> dict[str, Any]:
    """The object in the text: warnings may stand before it."""
    try:
        document = json.loads(text[text.index("{") :])
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
