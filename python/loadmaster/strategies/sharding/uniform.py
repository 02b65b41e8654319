"""Labels of plans that share all work in one way: by the batch, or by features and heads.

Each is a mask: which labels every node may have. The solver takes the cheapest of these.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from loadmaster.strategies.sharding.structure import Structure

Mask = NDArray[np.bool_]

#: Roles of dimensions by which tensor parallelism cuts.
TENSOR = ("feature", "head", "expert")


def roles_only(structure: Structure, roles: Collection[str], state: Collection[str]) -> Mask:
    """Only labels of some roles: bool [n_nodes, most labels].

    An op that updates, its slots and its parameter have labels of the roles ``state``, and are
    whole where they have none. Every other op may also be whole, or work on partial sums.
    """
    ways = structure.ways
    most = ways.label.shape[1]
    model = _rows(ways.role, most, {"whole", "partial", *roles})
    held = _rows(ways.role, most, state)
    held[~held.any(axis=1), 0] = True
    mask: Mask = np.where(structure.in_update[:, None], held[structure.way], model[structure.way])
    return mask


def _rows(role: tuple[tuple[str, ...], ...], most: int, wanted: Collection[str]) -> Mask:
    found = np.zeros((len(role), most), dtype=bool)
    for row, words in enumerate(role):
        found[row, : len(words)] = [word in wanted for word in words]
    return found
