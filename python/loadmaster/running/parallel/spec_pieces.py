"""Pieces of tensors that devices of a mesh have, by the specs of the tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.dimensions.form import FLAT, OWNER, Factor
from loadmaster.running.parallel.pieces import Piece
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.specs import part_weights

Ints = NDArray[np.int64]


class Specs:
    """Pieces of tensors by how they lie on a mesh.

    What is FLAT on an axis and cut on another is in equal shards ``of_parts``, as sharded
    optimizers have it beside tensor parallelism. That cannot be where it is cut further without a
    collective: then the shards are of the whole tensor, and what a device has of its part is not
    equal.
    """

    def __init__(self, layout: Layout, of_parts: bool) -> None:
        self._of_parts = of_parts
        self._mesh, self._places = layout.mesh, layout.ways.places
        self._known: dict[Any, Piece] = {}

    def piece(
        self,
        sizes: tuple[int, ...],
        factors: tuple[Factor, ...],
        specs: Sequence[int],
        owner: Sequence[int],
        device: int,
    ) -> Piece:
        """The piece of a tensor that a device has under specs; ``owner``: the places of what is
        OWNER.
        """
        key = sizes, factors, *specs, *owner, device
        if key not in self._known:
            self._known[key] = self._made(sizes, factors, specs, owner, device)
        return self._known[key]

    def _made(
        self,
        sizes: tuple[int, ...],
        factors: tuple[Factor, ...],
        specs: Sequence[int],
        owner: Sequence[int],
        device: int,
    ) -> Piece:
        box = [np.arange(size) for size in sizes]
        flat = None
        for axis, spec in enumerate(specs):
            place = int(self._places[axis][device])
            if spec >= 0:
                dim, size = factors[spec]
                minor = int(np.prod([n for of, n in factors[spec + 1 :] if of == dim], dtype=int))
                box[dim] = box[dim][
                    np.isin(box[dim] // minor % size, self._part(size, axis, place))
                ]
        for axis, spec in enumerate(specs):
            place = int(self._places[axis][device])
            if spec == FLAT:
                flat = self._flat(Piece(sizes, tuple(box), flat), axis, place)
            elif spec == OWNER and place != owner[axis]:
                flat = np.empty(0, dtype=np.int64)
        return Piece(sizes, tuple(box), flat)

    def _flat(self, piece: Piece, axis: int, place: int) -> Ints:
        """The elements of a piece's box that are in a shard of the piece."""
        of_box = np.arange(prod(map(len, piece.box)))
        rows = of_box if piece.flat is None else piece.flat
        if self._of_parts:
            ends = np.cumsum(part_weights(len(rows), [1.0] * self._mesh.shape[axis]))
            return np.split(rows, ends[:-1])[place]
        index = piece.index
        return rows[np.isin(index, self._part(prod(piece.sizes), axis, place))]

    def _part(self, size: int, axis: int, place: int) -> Ints:
        """The indices, of so many, that a place on an axis has: a part of each part of
        outer axes.
        """
        blocks = [np.arange(size)]
        for of in range(axis + 1):
            mesh = self._mesh.axes[of]
            shares = mesh.shares or (1.0,) * mesh.size
            cut = [
                np.split(block, np.cumsum(part_weights(len(block), shares))[:-1])
                for block in blocks
            ]
            blocks = [part for row in cut for part in row]
            if of == axis:
                return np.concatenate([row[place] for row in cut])
        raise AssertionError("an axis of the mesh")
