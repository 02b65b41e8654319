"""Constraints on arrays that a program has of itself, kept by a plan: JAX's
``with_sharding_constraint``, ``sdy.sharding_constraint``.

A constraint fixes, on every axis of the mesh, how one array lies. What makes the array gets one of
the labels that make it so, or one that leaves it in parts of a sum. Where no label does, or a sum
is left, and for parameters and inputs, which lie as they are told, those that read the array behind
the constraint get labels that read it so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from loadmaster.base.checks import product
from loadmaster.base.errors import InputError, malformed
from loadmaster.dimensions.calls import LIES, MAPPED, OPEN, keyword
from loadmaster.dimensions.form import ANY, PARTIAL, REPLICATE, Factor
from loadmaster.model.graph import OpGraph
from loadmaster.model.recipe import DeviceMesh
from loadmaster.strategies.sharding.structure import Structure
from loadmaster.strategies.sharding.uniform import Mask
from loadmaster.systems.shared.partition_specs import sayable

#: Kinds of ops that constrain, without their dialects.
_KINDS = ("sharding_constraint",)


def constraints_of(graph: OpGraph) -> list[int]:
    """The ops that constrain an array. O(V)."""
    return [op for op, kind in enumerate(graph.kinds) if kind.rpartition(".")[2] in _KINDS]


@dataclass(frozen=True)
class OwnConstraints:
    """The constraints of a program, on a mesh whose axes have the names that these speak of.

    Attributes
    ----------
    graph : OpGraph
    mesh : mapping of str to int
        The sizes of the axes that have more than one device.
    names : mapping of str to str, optional
        The program's names of axes by those of plans; absent: axes are taken in their order.
    """

    graph: OpGraph
    mesh: Mapping[str, int]
    names: Mapping[str, str] | None = None

    @classmethod
    def of(cls, graph: OpGraph, names: Mapping[str, str] | None = None) -> OwnConstraints:
        """The constraints of a graph.

        Raises
        ------
        InputError
            There is none; one does not say axes of a mesh; they are of several meshes.
        """
        ops = constraints_of(graph)
        if not ops:
            raise InputError(
                f"{graph.name!r} has no sharding constraints to keep: leave model_constraints out"
            )
        meshes: dict[tuple[tuple[str, int], ...], int] = {}
        for op in ops:
            lies = keyword(graph, op, LIES)
            if not lies:
                raise InputError(
                    f"{graph.names[op]!r} does not say which axes of a mesh cut its array, so it "
                    "cannot be kept: lower the program by Shardy (jax_use_shardy_partitioner), "
                    "constrain by whole axes of a named mesh, or leave model_constraints out"
                )
            with malformed(partial("{!r} is constrained in no known form".format, graph.names[op])):
                axes, _, _ = lies
                meshes.setdefault(tuple((name, size) for name, size in axes if size > 1), op)
        if len(meshes) > 1:
            several = " and ".join(_words(dict(mesh)) for mesh in meshes)
            raise InputError(
                f"the sharding constraints of {graph.name!r} are of several meshes, {several}: "
                "keep those of one mesh, or leave model_constraints out"
            )
        return cls(graph, dict(next(iter(meshes))), names)

    def axes(self, mesh: DeviceMesh) -> dict[str, str] | None:
        """The program's name of each axis of a mesh; None: that mesh is not the program's."""
        if self.names is None:
            names = dict(zip(mesh.names, self.mesh, strict=False))
        else:
            names = {axis: self.names[axis] for axis in mesh.names}
        sizes = {names.get(axis.name, ""): axis.size for axis in mesh.axes}
        return names if sizes == self.mesh else None

    def fitting(self, shapes: Sequence[DeviceMesh]) -> list[DeviceMesh]:
        """Those of some meshes that are the program's.

        Raises
        ------
        InputError
            None is.
        """
        fitting = [mesh for mesh in shapes if self.axes(mesh) is not None]
        if fitting:
            return fitting
        words, n = _words(self.mesh), product(list(self.mesh.values()))
        if self.names is not None and not self.mesh.keys() <= set(self.names.values()):
            way_out = f"say axis_names={','.join(self.mesh)!r}"
        elif len(self.mesh) > 2:
            way_out = "plans have two axes: join some of them"
        else:
            way_out = f"plan for {n} devices of one kind, without tp or with the tp of that mesh"
        raise InputError(
            f"the sharding constraints of {self.graph.name!r} are of a mesh of {words}, and no "
            f"mesh of the {max(mesh.size for mesh in shapes)} devices here is that one: {way_out}, "
            "lower the program on another mesh, or leave model_constraints out"
        )

    def narrowed(self, structure: Structure, mesh: DeviceMesh, masks: list[Mask]) -> list[Mask]:
        """Masks of labels by axis, narrowed to those that keep the constraints. O(V + E) an axis.

        Labels that other reasons exclude are let in where no other keeps a constraint.
        """
        names, narrowed = self.axes(mesh), list[Mask]()
        assert names is not None, "fitting"
        readers = _readers(self.graph, constraints_of(self.graph))
        for axis, mask in zip(mesh.axes, masks, strict=True):
            sizes = {names[one.name]: one.size for one in mesh.axes}
            one_axis = _AxisConstraints(
                structure,
                names[axis.name],
                sizes,
                mask.copy(),
                sayable(structure, axis.size, mesh.size),
            )
            for op, rows in readers.items():
                one_axis.keep(op, rows)
            narrowed.append(one_axis.mask)
        return narrowed


class _AxisConstraints:
    """Labels on one axis of a mesh, as constraints narrow them."""

    def __init__(
        self, structure: Structure, axis: str, sizes: Mapping[str, int], mask: Mask, every: Mask
    ) -> None:
        self.structure, self.axis, self.sizes = structure, axis, sizes
        self.mask = mask
        known = np.arange(mask.shape[1]) < structure.ways.n_labels[structure.way][:, None]
        self.every = every & known
        #: The spec of each node's first output under each label.
        self.specs = structure.ways.outputs[structure.ways.first_output[structure.way]]
        self._storage = np.where(structure.owner >= 0, structure.owner, np.arange(structure.n))
        self._mates = defaultdict[int, list[int]](list)
        for node, storage in enumerate(self._storage.tolist()):
            self._mates[storage].append(node)

    def keep(self, op: int, readers: frozenset[int]) -> None:
        """Narrows the labels of what makes an array, or of what reads it behind its constraint."""
        structure, d = self.structure, self.structure.dimensions
        argument = int(d.first[op])
        if op not in d.constrained or d.root[argument] < 0:
            return
        root, output = int(structure.node[d.root[argument]]), int(d.output[argument])
        back = d.backs[d.back[argument]]
        wanted = {back[spec] if spec >= 0 else spec for spec in self._specs(op)}
        if root < 0 or not wanted:
            return
        row = structure.ways.first_output[structure.way[root]] + output
        specs = structure.ways.outputs[row]
        lies = np.isin(specs, list(wanted))
        wanted.add(ANY)
        if structure.stands_for[root] < 0:
            self._narrow(root, lies | (specs == PARTIAL))
            others = self.mask[root] & ~lies
            if not others.any():
                return
            if (specs[others] == PARTIAL).all():
                # A sum of parts is scattered and gathered: what reads it whole is served as well.
                wanted.add(REPLICATE)
        a = structure.arguments
        some = np.flatnonzero((a.root == root) & (a.output == output))
        for at in some.tolist():
            if int(structure.op[a.reader[at]]) in readers:
                fits = np.isin(structure.specs_wanted[structure.wanted[at]], list(wanted))
                self._narrow(int(a.reader[at]), fits)

    def _narrow(self, node: int, fits: Mask) -> None:
        """Leaves a node the labels that fit, if there are any, and what shares its storage those
        that make it alike: a loop carries a value in one layout.
        """
        specs, mates = self.specs, self._mates[self._storage[node]]
        for some in (self.mask[node] & fits, self.every[node] & fits):
            narrowed = {node: some}
            for mate in mates if len(mates) > 1 else ():
                alike = np.isin(specs[mate], specs[node][some]) & self.mask[mate]
                narrowed[mate] = alike & narrowed.get(mate, True)
            if all(labels.any() for labels in narrowed.values()):
                for mate, labels in narrowed.items():
                    self.mask[mate] = labels
                return

    def _specs(self, op: int) -> set[int]:
        """The specs on this axis that a constraint allows, by the factors of its array; none: it
        cuts what no spec of a plan says.
        """
        graph, factors = self.structure.graph, self.structure.dimensions.constrained[op]
        _, cuts, replicated = keyword(graph, op, LIES)
        lead = keyword(graph, op, MAPPED) or 0
        for dim, names in enumerate(cuts, lead):
            if self.axis in names:
                here = [name for name in names if name in self.sizes]
                spec = _first(factors, dim)
                order = [name for name in self.sizes if name in here]
                parts = product([self.sizes[name] for name in here])
                is_said = spec is not None and factors[spec][1] % parts == 0 and here == order
                return {spec} if is_said and spec is not None else set()
        may = {REPLICATE}
        if self.axis not in replicated:
            opened = (_first(factors, dim) for dim, names in enumerate(cuts, lead) if OPEN in names)
            may |= {spec for spec in opened if spec is not None}
        return may


def _first(factors: Sequence[Factor], dim: int) -> int | None:
    """The first factor of an axis of an array that has more than one element; None: none has."""
    some = (i for i, (axis, size) in enumerate(factors) if axis == dim and size > 1)
    return next(some, None)


def _readers(graph: OpGraph, constraints: Sequence[int]) -> dict[int, frozenset[int]]:
    """The ops that read what each constraint shows, through views."""
    after: dict[int, list[int]] = {}
    for source, target in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        after.setdefault(source, []).append(target)

    def reached(op: int) -> Iterator[int]:
        waiting, seen = [op], {op}
        while waiting:
            for target in after.get(waiting.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    if graph.view[target]:
                        waiting.append(target)
                    else:
                        yield target

    return {op: frozenset(reached(op)) for op in constraints}


def _words(mesh: Mapping[str, int]) -> str:
    """A mesh in words.

    >>> _words({"data": 4, "model": 2})
    "'data' 4, 'model' 2"
    """
    return ", ".join(f"{name!r} {size}" for name, size in mesh.items()) or "one device"
