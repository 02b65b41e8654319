"""Ties between ops that play the same part in every layer: they get one label.

They are alike, they stand in modules whose paths differ by the numbers of layers alone, and each is
the same of its kind there, in the order of the program: the second sum of each block. Where a
module has many that are alike, such as the steps of an unrolled recurrence, or a graph that knows
no modules, those are tied that have alike ops around them (colour refinement, Weisfeiler and Leman
1968).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.module_paths import module_path
from loadmaster.model.patterns import ordinals
from loadmaster.strategies.sharding.joint import joint
from loadmaster.strategies.sharding.structure import Structure

#: So many ops of a module that are alike are told apart by what is around them.
CROWD = 4

#: Most edges between an op and those around it.
REACH = 3

_SALT = np.uint64(0x9E3779B97F4A7C15)


def part_played(structure: Structure, nature: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number per node, equal for those that are tied; ``nature`` is equal for those alike."""
    graph = structure.graph
    modules = [graph.modules[op] for op in structure.op.tolist()]
    paths = {module: wild(module) for module in set(modules)}
    path = [paths[module] for module in modules]
    kind = [graph.kinds[op] for op in structure.op.tolist()]
    where = joint(modules, kind, structure.phase)
    alike = joint(where, nature)
    is_crowded = np.bincount(alike)[alike] > CROWD
    which = np.where(is_crowded, -1 - _around(structure, nature), ordinals(where))
    part = structure.dimensions.experts.part[structure.op]
    return joint(nature, path, kind, part, np.where(part >= 0, 0, which))


def _around(structure: Structure, nature: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number per node, equal for those that are alike up to :data:`REACH` edges away.

    Arguments of which a reader wants the same specs are alike, wherever they stand in its call, and
    so are outputs made alike: each step of a recurrence is another argument of what stacks them.
    """
    a, code = structure.arguments, nature
    have, wanted = joint(*structure.ways.outputs.T), joint(*structure.specs_wanted.T)
    place = joint(have[structure.made], wanted[structure.wanted])
    salt = _scrambled(place.astype(np.uint64)) | np.uint64(1)
    for _ in range(REACH):
        sums = np.zeros((2, structure.n), dtype=np.uint64)
        np.add.at(sums[0], a.reader, _scrambled(code[a.root].astype(np.uint64)) * salt)
        np.add.at(sums[1], a.root, _scrambled(code[a.reader].astype(np.uint64) + _SALT) * salt)
        code = joint(code, *sums)
    return code


def _scrambled(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Numbers that look random, one for each value (the finaliser of SplitMix64)."""
    values = (values + _SALT) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def wild(module: str) -> str:
    """The path of a module with numbers left open.

    >>> wild("h.11.attn"), wild("layer1.0.conv1"), wild("optim.m.layer.3.weight")
    ('h.*.attn', 'layer1.*.conv1', 'm.layer.*.weight')
    """
    return ".".join("*" if word.isdigit() else word for word in module_path(module))
