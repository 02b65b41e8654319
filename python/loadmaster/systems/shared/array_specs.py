"""Specs of the arrays of a plan of labels: the axes of its mesh that cut each axis of an array."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.checks import product
from loadmaster.dimensions.form import FLAT
from loadmaster.model.families import families
from loadmaster.model.recipe import MeshAxis
from loadmaster.model.shapes import parse_output
from loadmaster.plans.plan import Plan
from loadmaster.strategies.sharding.structure import Structure
from loadmaster.systems.shared.partition_specs import axis_of, flat_axis, is_said
from loadmaster.systems.shared.refusal import Reason
from loadmaster.transforms.layout import Layout

Ints = NDArray[np.int64]


class ArraySpecs:
    """Specs of arrays, read off a plan's labels.

    Parameters
    ----------
    plan : Plan
    layout : Layout
        Of the plan.
    axis_names : mapping of str to str
        Names of axes of the mesh, by those that the plan has.
    """

    def __init__(self, plan: Plan, layout: Layout, axis_names: Mapping[str, str]) -> None:
        self.plan, self.mesh, self.graph = plan, layout.mesh, plan.graph
        self.labels, self.axis_names = layout.labels, axis_names
        self.structure = Structure.of(layout.dimensions, layout.batch_norm)
        self.forms = layout.dimensions.forms
        self.form_of = layout.dimensions.form_of[self.structure.op].tolist()

    # -- what is in the way -----------------------------------------------------------------------

    def in_the_way(self) -> Iterator[Reason]:
        """Everything that specs cannot say."""
        graph, structure = self.graph, self.structure
        if any(axis.shares is not None for axis in self.mesh.axes):
            yield "devices have unequal shares"
        of = families(self.plan.cluster)
        kinds = {of[d][0] for d in self.mesh.on(self.plan.cluster).tolist()}
        if len(kinds) > 1:
            yield "a mesh has devices of one kind", sorted(kinds)
        unsaid: dict[int, None] = {}
        for axis, labels in zip(self.mesh.axes, self.labels[:, structure.op].tolist(), strict=True):
            known: dict[tuple[int, int], bool] = {}
            for node, key in enumerate(zip(self.form_of, labels, strict=True)):
                if key not in known:
                    known[key] = is_said(self.forms[key[0]], key[1], axis.size)
                if not known[key] or (key[1] == FLAT and self._flat_is_torn(node)):
                    unsaid[node] = None
        if unsaid:
            names = [repr(graph.names[structure.op[node]]) for node in sorted(unsaid)]
            yield "arrays of these are in parts that no spec says", names

    def _flat_is_torn(self, node: int) -> bool:
        """True if a parameter or a slot of it has no axis to be shared out on."""
        return self.structure.stands_for[node] >= 0 and self.spec(node) is None

    # -- specs ------------------------------------------------------------------------------------

    def spec(self, node: int) -> list[list[str]] | None:
        """Axes of the mesh by which each axis of what a node makes is cut, of several outputs the
        first that is; None: it cannot be said.
        """
        outputs = parse_output(self.graph.outputs[self.structure.op[node]])
        axes: list[list[str]] = []
        for number, (_, sizes) in enumerate(outputs):
            axes = [[] for _ in sizes or ()]
            if not self._cut(node, number, axes, sizes or ()):
                return None
            if any(axes):
                break
        return axes

    def axis_name(self, axis: MeshAxis) -> str:
        """The name of an axis in the file."""
        return self.axis_names.get(axis.name, axis.name)

    def _cut(self, node: int, number: int, axes: list[list[str]], sizes: Sequence[int]) -> bool:
        """Adds the axes of the mesh that cut an output; whether all can be said.

        A parameter and its state are shared out on the same axis, whatever cuts each of them; first
        of all, where the parameter has no cut. So an updated parameter is gathered by what cuts its
        state alone, and no part has to go elsewhere.
        """
        taken, flat = self._taken(node, number)
        for at, names in taken.items():
            axes[at] += [self.axis_name(axis) for axis in names]
        of_set = self._set_of[self.structure.op[node]]
        shared = self._shared_out.get((of_set, tuple(sizes)), {})
        by = {at: product([axis.size for axis in names]) for at, names in taken.items()}
        for axis in flat:
            where = flat_axis(sizes, axis.size, {**shared, **by})
            where = flat_axis(sizes, axis.size, by) if where is None else where
            if where is None:
                return False
            place = len(axes[where]) if where in self._parameter_cut[of_set] else 0
            axes[where].insert(place, self.axis_name(axis))
            by[where] = by.get(where, 1) * axis.size
        return True

    def _taken(self, node: int, number: int) -> tuple[dict[int, list[MeshAxis]], list[MeshAxis]]:
        """Axes of the mesh by the axis of an output that they cut; those that share it out."""
        structure, flat = self.structure, list[MeshAxis]()
        row = structure.ways.first_output[structure.way[node]] + number
        taken: dict[int, list[MeshAxis]] = {}
        for axis, labels in zip(self.mesh.axes, self.labels, strict=True):
            label = int(labels[structure.op[node]])
            column = structure.ways.label[structure.way[node]].tolist().index(label)
            spec = int(structure.ways.outputs[row, column])
            if spec == FLAT:
                flat.append(axis)
            elif spec >= 0:
                at = axis_of(self.forms[self.form_of[node]].outputs[number], spec)
                assert at is not None, "is_said"
                taken.setdefault(at, []).append(axis)
        return taken, flat

    @cached_property
    def _set_of(self) -> Ints:
        """The set of updates that each op, slot and parameter is of; -1: none."""
        updates = self.structure.updates
        of = updates.of_op.copy()
        of[updates.parameter] = updates.of_parameter
        return of

    @cached_property
    def _parameter_cut(self) -> dict[int, set[int]]:
        """The axes of parameters that are cut, by the set of updates."""
        updates, cut = self.structure.updates, defaultdict[int, set[int]](set)
        for op, of_set in zip(
            updates.parameter.tolist(), updates.of_parameter.tolist(), strict=True
        ):
            if (node := int(self.structure.node[op])) >= 0:
                cut[of_set] |= self._taken(node, 0)[0].keys()
        return cut

    @cached_property
    def _shared_out(self) -> dict[tuple[int, tuple[int, ...]], dict[int, int]]:
        """In how many parts the axes of the arrays of an update are, at the most, by what is not
        shared out: by its set and the sizes of the arrays.
        """
        structure, most = self.structure, dict[tuple[int, tuple[int, ...]], dict[int, int]]()
        for node in np.flatnonzero(self._set_of[structure.op] >= 0).tolist():
            op = structure.op[node]
            for number, (_, sizes) in enumerate(parse_output(self.graph.outputs[op])):
                parts = most.setdefault((int(self._set_of[op]), sizes or ()), {})
                for at, names in self._taken(node, number)[0].items():
                    size = product([axis.size for axis in names])
                    parts[at] = max(parts.get(at, 1), size)
        return most
