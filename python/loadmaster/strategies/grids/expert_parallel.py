"""Replicas, and expert parallelism: replicas that have all but the weights of routed experts, of
which each has some. Tokens go to the experts that were chosen for them, and come back, by
all-to-alls.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import gcd

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.graph import PARAMETER
from loadmaster.strategies.sharding.structure import Structure
from loadmaster.strategies.sharding.uniform import Mask, products, roles_only

#: The axis of a mesh on which experts are apart, inside of the axis of replicas.
AXIS = "ep"


def shared(structure: Structure, state: Sequence[str] = ("whole",)) -> Mask:
    """Labels of replicas: all that has a batch is cut by it, and updates are as ``state`` says."""
    mask = roles_only(structure, ("batch",), state).copy()
    has = ~structure.in_update & mask[:, 1:].any(axis=1)
    mask[has, 0] = False
    return mask


def products_of_experts(structure: Structure) -> NDArray[np.bool_]:
    """Mask of the products with the weights of routed experts, and of those that make a gradient of
    these: bool [n_nodes].
    """
    is_product: NDArray[np.bool_] = products(structure) & by_experts(structure).any(axis=1)
    return is_product


def products_of_routers(structure: Structure) -> NDArray[np.bool_]:
    """Mask of the products with weights that score experts, and of those that make a gradient of
    these: bool [n_nodes].
    """
    scores = roles_only(structure, ("expert",), ()) & ~roles_only(structure, (), ())
    is_product: NDArray[np.bool_] = products(structure) & ~products_of_experts(structure)
    return is_product & scores.any(axis=1)


def number_of_experts(structure: Structure) -> int:
    """The greatest number of parts into which the experts of every layer go; 0: there are none."""
    nodes = np.flatnonzero(products_of_experts(structure))
    of_modules = structure.expert[1][nodes]
    limits = np.where(by_experts(structure)[nodes], structure.ways.limit[structure.way[nodes]], 0)
    counts = np.where(of_modules > 0, of_modules, limits.max(axis=1, initial=0))
    return gcd(*np.unique(counts).tolist())


def experts_apart(structure: Structure, state: Sequence[str] = ("whole",)) -> Mask:
    """Labels of expert parallelism: what is done with the weights of experts is by experts, and so
    are these weights and their updates. All else is as replicas have it.
    """
    mask, experts = shared(structure, state), by_experts(structure)
    product = products_of_experts(structure)
    mask |= experts & ~structure.in_update[:, None]
    mask[product] = experts[product]
    held = weights_of(structure, product)
    mask[held] = whole_experts(structure, set(state) - {"whole"})[held]
    return mask


def weights_of(structure: Structure, product: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mask of the weights that some products read, and of ops that update such: bool [n_nodes]."""
    arguments, updates = structure.arguments, structure.updates
    weight = np.zeros(structure.n, dtype=bool)
    weight[arguments.root[product[arguments.reader]]] = True
    weight &= structure.stands_for == PARAMETER
    node = structure.node[updates.parameter]
    updated = np.zeros(updates.n + 1, dtype=bool)
    updated[updates.of_parameter[(node >= 0) & weight[node]]] = True
    return weight | (structure.in_update & updated[updates.of_op[structure.op]])


def whole_experts(structure: Structure, state: Collection[str] = ()) -> Mask:
    """Labels of weights and their updates by experts, or in update as ``state`` says: whole is only
    what has none of these.
    """
    mask = roles_only(structure, ("expert",), ("expert", *state)).copy()
    of_model = ~structure.in_update
    mask[of_model] &= ~roles_only(structure, (), ())[of_model]
    return mask


def by_experts(structure: Structure) -> Mask:
    """Mask of the labels by which devices share experts: bool [n_nodes, most labels]."""
    by: Mask = structure.ways.shares_experts[structure.way]
    return by
