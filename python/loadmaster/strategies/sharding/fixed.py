"""Labels that a recipe fixes, where it leaves others to the solver."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.words import FREE, labels_of, words_of
from loadmaster.model.program import Program
from loadmaster.model.recipe import Recipe
from loadmaster.strategies.sharding.structure import Structure


def fixed(
    source: Dimensions, structure: Structure, recipe: Recipe, again: Program | None
) -> NDArray[np.int64]:
    """The label that each node must have on each axis, int64 [n_axes, n_nodes]; -1: any.

    Parameters
    ----------
    source : Dimensions
        Of the user's graph.
    structure : Structure
        Of the graph that is labelled: the user's, or that of ``again``, in which some is recomputed
        and has the labels of what it repeats.

    Raises
    ------
    InputError
        A line means nothing, or an op cannot have its label; states are to be sharded, or devices
        to be overridden, which is said of labels that are known.
    """
    for name in ("shard_state", "overrides"):
        if getattr(recipe, name):
            raise InputError(
                f'recipe: it leaves something to the solver ("auto"), and has {name}, which '
                'counts by the labels of all: label updates "flat" or "owner", or leave them '
                '"auto" too'
            )
    labels = labels_of(source, recipe)
    if again is not None:
        words = words_of(source, recipe.mesh.names, labels)
        of = again.serves.tolist()
        there = {axis: [column[op] for op in of] for axis, column in words.items()}
        repeated = Recipe.of_labels(again.graph, recipe.mesh, there)
        labels = labels_of(structure.dimensions, repeated)
    ways, graph = structure.ways, structure.graph
    of_nodes = labels[:, structure.op]
    known = np.arange(ways.label.shape[1]) < ways.n_labels[structure.way][:, None]
    columns = np.full(of_nodes.shape, -1, dtype=np.int64)
    for axis, column in enumerate(of_nodes):
        same = (ways.label[structure.way] == column[:, None]) & known
        lacks = np.flatnonzero((column != FREE) & ~same.any(axis=1))
        if len(lacks):
            op = int(structure.op[lacks[0]])
            raise InputError(
                f"recipe: op {graph.names[op]!r} ({graph.kinds[op]}) cannot have its label on axis "
                f"{recipe.mesh.names[axis]!r}: only what updates a parameter can be flat, and only "
                "that and what is of an expert can be on one device"
            )
        columns[axis] = np.where(column == FREE, -1, same.argmax(axis=1))
    return columns


def masks(structure: Structure, columns: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
    """Per axis, which labels each node may have: bool [n_nodes, most labels]."""
    every = np.arange(structure.ways.label.shape[1])
    return [(column < 0)[:, None] | (every == column[:, None]) for column in columns]
