"""Graphs traced from real models: those of the package, and all others where they are at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from folders import EXAMPLES, LARGE, traced_graphs

import loadmaster as lm
from loadmaster.base.files import parse_json, read_bytes

#: Stands for the graphs that are not at hand.
OTHERS = LARGE / "graphs" / "others.json.gz"


def traced(path: Path) -> lm.OpGraph:
    """The graph of a file, with what its ops were called with."""
    graph = lm.read(path)
    if graph.args is not None:
        return graph
    args = LARGE / "graph_args" / path.name
    return graph.with_columns(parse_json(read_bytes(args), args))


def named(graph: str) -> object:
    """A test's case of one graph, which may not be at hand."""
    marks = () if (EXAMPLES / f"{graph}.json.gz").exists() else pytest.mark.large_data
    return pytest.param(graph, marks=marks)


def _case(at: int, path: Path) -> object:
    marks = [] if path.parent == EXAMPLES else [pytest.mark.large_data]
    if marks and path != OTHERS and at % 3:
        marks.append(pytest.mark.nightly)
    return pytest.param(path, marks=marks, id=path.name.partition(".")[0])


def _paths() -> list[Path]:
    at_hand = traced_graphs()
    return at_hand if any(path.parent != EXAMPLES for path in at_hand) else [*at_hand, OTHERS]


#: A test of every traced graph, one case a file; of those that may not be at hand two of three are
#: left to the night.
every_traced_graph = pytest.mark.parametrize(
    "path", [_case(at, path) for at, path in enumerate(_paths())]
)
