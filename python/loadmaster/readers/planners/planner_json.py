"""The common parts of JSON inputs of pipeline planners: nodes with ids, and edges between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadmaster.base.checks import is_integer
from loadmaster.base.errors import InputError
from loadmaster.base.text import shown

Row = Mapping[str, Any]


def rows(document: Row, part: str) -> list[Row]:
    """The objects of a list in a document."""
    listed = document.get(part)
    if not isinstance(listed, list) or not all(isinstance(row, dict) for row in listed):
        raise InputError(f"{part} is no list of objects")
    return listed


def positions(nodes: list[Row], word: str) -> dict[int, int]:
    """The place of each id in a list of nodes; ``word`` is what messages call a node."""
    index: dict[int, int] = {}
    for at, node in enumerate(nodes):
        key = node.get("id")
        if not is_integer(key):
            raise InputError(f"{word} {at} has the id {shown(key)}: wants an integer")
        if index.setdefault(key, at) != at:
            raise InputError(f"two {word}s have the id {key}")
    if not nodes:
        raise InputError(f"the file has no {word}s")
    return index


def ends(edges: list[Row], index: Mapping[int, int], word: str) -> list[tuple[int, int]]:
    """The positions of the nodes at the ends of each edge."""
    pairs = []
    for at, edge in enumerate(edges):
        for key in ("sourceId", "destId"):
            end = edge.get(key)
            if not is_integer(end) or end not in index:
                raise InputError(f"edge {at} has the {key} {shown(end)}: no {word} has that id")
        pairs.append((index[edge["sourceId"]], index[edge["destId"]]))
    return pairs
