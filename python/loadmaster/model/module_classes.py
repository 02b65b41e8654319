"""Classes of a model's modules: what wraps modules by the names of their classes asks for them.

A graph keeps them in ``meta["classes"]``: the name of a class by a pattern of modules that have
parameters: that of all paths which differ in their numbers alone, where all have one class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from loadmaster.model.graph import PARAMETER, OpGraph
from loadmaster.model.patterns import escaped_pattern, innermost, layerless

#: Where a graph keeps them.
CLASSES = "classes"


def by_pattern(classes: Mapping[str, str]) -> dict[str, str]:
    """The classes of modules by paths, in as few lines as say the same.

    >>> by_pattern({"h.0": "Block", "h.1": "Block", "h.0.fc": "Linear", "h.1.fc": "Conv1D"})
    {'h.*': 'Block', 'h.0.fc': 'Linear', 'h.1.fc': 'Conv1D'}
    """
    of = defaultdict[str, set[str]](set)
    patterns = {path: layerless(path) for path in classes}
    for path, name in classes.items():
        of[patterns[path]].add(name)
    return {
        patterns[path] if len(of[patterns[path]]) == 1 else escaped_pattern(path): name
        for path, name in classes.items()
    }


def units_of_classes(graph: OpGraph, patterns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The patterns of units that names of classes say, each with these names.

    Names say a unit if every module of its class is a unit of these patterns. A class has a name
    that Python takes. O(parameters + modules).

    >>> import loadmaster as lm
    >>> units_of_classes(lm.read("example:gpt3-330m"), ["h.*"])  # it does not say its classes
    {}
    """
    kept = graph.meta.get(CLASSES)
    table = {
        line: name
        for line, name in (kept.items() if isinstance(kept, Mapping) else ())
        if isinstance(name, str) and name.isidentifier()
    }
    of = np.flatnonzero(graph.stands_for == PARAMETER).tolist()
    units: dict[int, dict[str, None]] = defaultdict(dict)
    for path, at in innermost([graph.modules[op] for op in of], list(patterns), "units"):
        if at >= 0:
            units[at][path] = None
    said = {at: _said(table, list(paths)) for at, paths in units.items()}
    while True:
        lines = {line for at, rows in said.items() for line in rows}
        classes = {table[line] for line in lines}
        stray = {name for line, name in table.items() if name in classes and line not in lines}
        fewer = {
            at: rows
            for at, rows in said.items()
            if rows and not any(table[line] in stray for line in rows)
        }
        if len(fewer) == len(said):
            return {
                patterns[at]: tuple(dict.fromkeys(table[line] for line in rows))
                for at, rows in sorted(said.items())
            }
        said = fewer


def _said(table: Mapping[str, str], paths: Collection[str]) -> list[str]:
    """The lines of a table that have the classes of modules; none if one has no class there."""
    lines = [
        line if (line := escaped_pattern(path)) in table else layerless(path) for path in paths
    ]
    return list(dict.fromkeys(lines)) if all(line in table for line in lines) else []
