"""Which ops play the same part in every layer: they get one label.

They are alike, they stand in modules whose paths differ by the numbers of layers alone, and each is
the same of its kind there, in the order of the program: the second sum of each block.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.module_paths import module_path
from loadmaster.strategies.sharding.joint import joint
from loadmaster.strategies.sharding.structure import Structure


def part_played(structure: Structure, nature: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number per node, equal for those that are tied; ``nature`` is equal for those alike."""
    graph = structure.graph
    modules = [graph.modules[op] for op in structure.op.tolist()]
    paths = {module: wild(module) for module in set(modules)}
    path = [paths[module] for module in modules]
    kind = [graph.kinds[op] for op in structure.op.tolist()]
    where = joint(modules, kind, structure.phase)
    return joint(nature, path, kind, _ordinals(where))


def wild(module: str) -> str:
    """The path of a module with numbers left open.

    >>> wild("h.11.attn"), wild("layer1.0.conv1"), wild("optim.m.layer.3.weight")
    ('h.*.attn', 'layer1.*.conv1', 'm.layer.*.weight')
    """
    return ".".join("*" if word.isdigit() else word for word in module_path(module))


def _ordinals(code: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of its number come before each.

    >>> _ordinals(np.array([4, 7, 4, 4])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(code, kind="stable")
    begins = np.r_[True, code[order][1:] != code[order][:-1]][: len(code)]
    starts = np.flatnonzero(begins)
    count = np.arange(len(code)) - np.repeat(starts, np.diff(np.append(starts, len(code))))
    found = np.empty(len(code), dtype=np.int64)
    found[order] = count
    return found
