"""Collectives of a program as XLA compiled it for devices: kinds, bytes sent, trips counted.

The text is that of ``compiled.as_text()``, read as any optimized HLO.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, NamedTuple

from loadmaster.readers.xla import hlo_text
from loadmaster.readers.xla.program import Computation, Instruction

#: Kinds of HLO by the words that plans have.
KINDS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "send",
}


class Collective(NamedTuple):
    """One instruction: so many bytes go from one device to another each time that it runs."""

    kind: str
    sent: int
    trips: int


def collectives(text: str, devices: int) -> list[Collective]:
    """The collectives of a module for so many devices."""
    found: list[Collective] = []
    _walk(hlo_text.from_text(text).entry, 1, devices, found)
    return found


def sent(found: list[Collective]) -> int:
    """Bytes that go from one device to another in all of them."""
    return sum(one.sent * one.trips for one in found)


def by_kind(found: list[Collective]) -> Counter[str]:
    """How often each kind runs."""
    count: Counter[str] = Counter()
    for one in found:
        count[one.kind] += one.trips
    return count


def _walk(body: Computation, trips: int, devices: int, found: list[Collective]) -> None:
    for row in body.instructions:
        kind = KINDS.get(row.kind.removesuffix("-start"))
        if kind is not None:
            found.append(Collective(kind, _sent(kind, row, devices), trips))
        more = row.loop.trips or 1 if row.loop else 1
        for inner in row.bodies if row.flow != "op" else ():
            _walk(inner, trips * more, devices, found)


def _sent(kind: str, row: Instruction, devices: int) -> int:
    """Bytes as :attr:`Collectives.bytes_sent` counts them, over all groups."""
    held = sum(type_.nbytes for _, type_ in row.results)
    if kind == "send":
        pairs = re.findall(r"(\d+),(\d+)", str(row.keywords.get("source_target_pairs", "")))
        return held * sum(source != target for source, target in pairs)
    size, groups = _groups(row.keywords.get("replica_groups", ""), devices)
    times = {"all_reduce": 2, "reduce_scatter": size}.get(kind, 1)
    return times * (size - 1) * held * groups


def _groups(said: Any, devices: int) -> tuple[int, int]:
    """The size of groups and their number, of the ways in which HLO says them.

    >>> _groups("0,1},{2,3", 4), _groups("[2,4]<=[8]", 8), _groups("mesh['a'=4,'b'=2] {'a'", 8)
    ((2, 2), (4, 2), (4, 2))
    """
    if isinstance(said, list):
        said = ",".join(map(str, said))
    if said.startswith("mesh["):
        axes, _, those = said.partition("] ")
        sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", axes)}
        size = 1
        for name, part in re.findall(r"'([^']*)'(?::\(\d+\)(\d+))?", those):
            size *= int(part) if part else sizes[name]
        return size, devices // size
    if iota := re.match(r"\[(\d+),(\d+)\]<=", said):
        return int(iota[2]), int(iota[1])
    groups = [part.count(",") + 1 for part in said.split("},{")] if said else [devices]
    return groups[0], len(groups)
