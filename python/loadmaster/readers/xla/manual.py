"""Computations that a program maps over the devices of a mesh by hand: ``shard_map``, and Shardy's
``sdy.manual_computation``.

Each device runs the body on its own part of every array. The graph has all devices at once, as
``vmap`` has: inside, arrays begin with an axis per axis of the mesh, so all work counts and a plan
may cut these axes. Arrays enter and leave by views, and a collective of the body is a sum, or a
view, along the axes of the mesh.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from loadmaster.base.checks import product

#: The names of the axes of a mesh that cut each axis of an array.
Sharding = Sequence[Sequence[str]]

#: A view: its kind, its attributes, and the sizes that it gives.
Step = tuple[str, dict[str, Any], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Manual:
    """The mesh of a computation that is mapped by hand, and how its arrays lie.

    Attributes
    ----------
    mesh
        Sizes of all axes, by name.
    names
        The axes that the body is mapped over, in the order of the mesh.
    inputs, outputs
        Per array, the axes of the mesh that cut each of its axes.

    >>> Manual({"x": 2, "y": 4}, ("y",)).sizes
    (4,)
    """

    mesh: Mapping[str, int]
    names: Sequence[str]
    inputs: Sequence[Sharding] = field(default=())
    outputs: Sequence[Sharding] = field(default=())

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the axes that the body is mapped over."""
        return tuple(self.mesh[name] for name in self.names)

    def entering(self, shape: Sequence[int], sharding: Sharding) -> Iterator[Step]:
        """Views from an array to the parts of it that devices have.

        >>> manual = Manual({"x": 2, "y": 4}, ("x", "y"))
        >>> [(kind, sizes) for kind, _, sizes in manual.entering((8, 3), [["y"], []])]
        [('reshape', (4, 2, 3)), ('broadcast_in_dim', (2, 4, 2, 3))]
        """
        split, of_name, rest = self._split(shape, sharding)
        if split != list(shape):
            yield "reshape", {}, tuple(split)
        used = [name for name in self.names if name in of_name]
        order = [*(of_name[name] for name in used), *rest]
        parts = [split[at] for at in rest]
        if order != sorted(order):
            yield "transpose", {"dims": order}, tuple(split[at] for at in order)
        if len(used) < len(self.names):
            yield self._spread([self.names.index(name) for name in used], parts)

    def leaving(self, shape: Sequence[int], sharding: Sharding) -> Iterator[Step]:
        """Views from the parts that devices have to the whole array, of this shape.

        >>> manual = Manual({"x": 2, "y": 4}, ("x", "y"))
        >>> [(kind, sizes) for kind, _, sizes in manual.leaving((8, 3), [["y"], []])]
        [('slice', (1, 4, 2, 3)), ('reshape', (4, 2, 3)), ('reshape', (8, 3))]
        """
        split, of_name, rest = self._split(shape, sharding)
        used = [name for name in self.names if name in of_name]
        parts = [split[at] for at in rest]
        now = [*(self.mesh[name] for name in used), *parts]
        if len(used) < len(self.names):
            # Devices along other axes have the same: the first says it.
            ones = [self.mesh[name] if name in of_name else 1 for name in self.names]
            yield "slice", {"slice": [[0, size] for size in [*ones, *parts]]}, (*ones, *parts)
            yield "reshape", {}, tuple(now)
        order = [*(of_name[name] for name in used), *rest]
        if order != sorted(order):
            yield "transpose", {"dims": np.argsort(order).tolist()}, tuple(split)
        if split != list(shape):
            yield "reshape", {}, tuple(shape)

    def gathering(self, parts: Sequence[int], axes: Sequence[int], dim: int) -> Iterator[Step]:
        """Views of an all-gather along an axis of the parts, among devices on axes of the mesh."""
        sizes, r = self.sizes, len(self.names)
        kept = self._without(axes)
        order = [*kept, *range(r, r + dim), *axes, *range(r + dim, r + len(parts))]
        every = [*sizes, *parts]
        if order != sorted(order):
            yield "transpose", {"dims": order}, tuple(every[i] for i in order)
        whole = list(parts)
        whole[dim] *= product([sizes[i] for i in axes])
        yield "reshape", {}, (*(sizes[i] for i in kept), *whole)
        yield self._spread(kept, whole)

    def spreading(self, parts: Sequence[int], axes: Sequence[int]) -> Iterator[Step]:
        """The view that gives every device what was summed along axes of the mesh."""
        yield self._spread(self._without(axes), parts)

    def scattering(self, parts: Sequence[int], axes: Sequence[int], dim: int) -> Iterator[Step]:
        """Views that give every device its part, along an axis, of what was summed along axes of
        the mesh.
        """
        sizes, r, kept = self.sizes, len(self.names), self._without(axes)
        cut = [sizes[i] for i in axes]
        inside = [*parts[:dim], *cut, parts[dim] // product(cut), *parts[dim + 1 :]]
        split = [*(sizes[i] for i in kept), *inside]
        yield "reshape", {}, tuple(split)
        of_axis = {i: at for at, i in enumerate(kept)}
        of_axis |= {i: len(kept) + dim + at for at, i in enumerate(axes)}
        lead = [of_axis[i] for i in range(r)]
        order = [*lead, *(at for at in range(len(split)) if at not in lead)]
        if order != sorted(order):
            yield "transpose", {"dims": order}, tuple(split[at] for at in order)

    def exchanging(
        self, parts: Sequence[int], axes: Sequence[int], split: int, concat: int
    ) -> Iterator[Step]:
        """Views of an all-to-all among devices on axes of the mesh: each sends a piece of an axis
        of its part to every other, and joins what it gets along an axis.
        """
        sizes, r = self.sizes, len(self.names)
        cut = [sizes[i] for i in axes]
        inside = [*parts[:split], *cut, parts[split] // product(cut), *parts[split + 1 :]]
        every = [*sizes, *inside]
        yield "reshape", {}, tuple(every)
        piece = {i: r + split + at for at, i in enumerate(axes)}
        order = [piece.get(i, i) for i in range(r)]
        for dim in range(len(parts)):
            order += axes if dim == concat else ()
            order.append(r + dim + (len(axes) if dim >= split else 0))
        yield "transpose", {"dims": order}, tuple(every[at] for at in order)
        after = list(parts)
        after[split] //= product(cut)
        after[concat] *= product(cut)
        yield "reshape", {}, (*sizes, *after)

    def _without(self, axes: Sequence[int]) -> list[int]:
        return [i for i in range(len(self.names)) if i not in axes]

    def axes_of(self, groups: Any) -> tuple[int, ...] | None:
        """The axes of the mesh along which groups of devices lie; None: along none.

        >>> Manual({"x": 2, "y": 2}, ("x", "y")).axes_of([[0, 2], [1, 3]])
        (0,)
        """
        devices = np.arange(product(list(self.mesh.values()))).reshape(tuple(self.mesh.values()))
        every = list(self.mesh)
        for n in range(len(self.names), 0, -1):
            for some in combinations(range(len(self.names)), n):
                along = [every.index(self.names[i]) for i in some]
                size = product([self.mesh[self.names[i]] for i in some])
                rows = np.moveaxis(devices, along, range(-n, 0)).reshape(-1, size)
                if sorted(map(sorted, rows.tolist())) == sorted(map(sorted, groups)):
                    return some
        return None

    def places_of(self, pairs: Sequence[Sequence[int]]) -> tuple[int, list[tuple[int, int]]] | None:
        """The axis of the mesh along which pairs of devices lie, the same on all other axes, and
        their places on it; None: they lie along several.

        >>> Manual({"x": 2, "y": 2}, ("x", "y")).places_of([[0, 2], [2, 0], [1, 3], [3, 1]])
        (0, [(0, 1), (1, 0)])
        """
        sizes = tuple(self.mesh.values())
        devices = np.arange(product(sizes)).reshape(sizes)
        for number, name in enumerate(self.names):
            at = list(self.mesh).index(name)
            rows = np.moveaxis(devices, at, -1).reshape(-1, sizes[at])
            where = np.unravel_index(np.array(pairs).ravel(), sizes)[at].reshape(-1, 2)
            places = sorted({(source, target) for source, target in where.tolist()})
            every = [[row[s], row[t]] for row in rows.tolist() for s, t in places]
            if sorted(every) == sorted(map(list, pairs)):
                return number, places
        return None

    def _split(
        self, shape: Sequence[int], sharding: Sharding
    ) -> tuple[list[int], dict[str, int], list[int]]:
        """Sizes with each axis that is cut as axes of the mesh and the part; where each axis of the
        mesh is among them, and where the parts are.
        """
        split: list[int] = []
        of_name: dict[str, int] = {}
        rest = []
        for size, names in zip(shape, sharding, strict=True):
            for name in names:
                of_name[name] = len(split)
                split.append(self.mesh[name])
            rest.append(len(split))
            split.append(size // product([self.mesh[name] for name in names]))
        return split, of_name, rest

    def _spread(self, kept: Sequence[int], parts: Sequence[int]) -> Step:
        r = len(self.names)
        dims = [*kept, *range(r, r + len(parts))]
        return "broadcast_in_dim", {"dims": dims}, (*self.sizes, *parts)
