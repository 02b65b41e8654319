"""The data that benches read: what comes with the repository, and the rest where it is at hand."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from folders import DATA, LARGE, at, traced_graphs

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.base.files import parse_json, read_bytes

__all__ = [
    "DATA",
    "LARGE",
    "at",
    "of_these_at_hand",
    "scheduling",
    "traced",
    "traced_graphs",
    "traced_names",
]


def traced_names() -> list[str]:
    """The names of all traced graphs at hand."""
    return sorted(path.name.removesuffix(".json.gz") for path in traced_graphs())


def of_these_at_hand(names: Iterable[str]) -> list[str]:
    """Those of the names whose graphs are at hand, in their order."""
    at_hand = set(traced_names())
    return [name for name in names if name in at_hand]


def traced(name: str) -> lm.OpGraph:
    """A traced model, with the arguments of its calls where these are at hand."""
    path = next((path for path in traced_graphs() if path.name == f"{name}.json.gz"), None)
    if path is None:
        raise InputError(f"no graph {name} in {LARGE / 'graphs'}: LOADMASTER_DATA names its folder")
    graph, args = lm.read(path), LARGE / "graph_args" / path.name
    if graph.args is not None or not args.exists():
        return graph
    return graph.with_columns(parse_json(read_bytes(args), args))


def scheduling(name: str) -> dict:
    """The document of an instance of scheduling, as it was published."""
    path = DATA / "scheduling" / f"{name}.json.gz"
    return parse_json(read_bytes(path), path)
