"""Conversions: the tensors that have to change their spec, and the collectives that change it.

DTensor calls this redistribution. A tensor is converted once for each spec that readers want of it,
and all readers that want the same spec share the result. A parameter that is gathered where it is
used (ZeRO 3, FSDP) is gathered once in the forward pass and once in the backward pass, and each
result is freed after its last reader. A reader that wants a shard takes it from the whole tensor,
if another reader has the whole tensor made anyway.

A conversion on a mesh of several axes goes axis by axis. Steps that make the tensor smaller come
first: reduce-scatters from the innermost axis outwards, then all-to-alls, all-reduces, and at last
all-gathers from the outermost axis inwards. So the outer axes, whose links are the slower ones,
carry the fewest bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InputError
from loadmaster.dimensions.form import ANY, OWNER
from loadmaster.model.graph import INPUT
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.specs import FORBIDDEN, FREE, conversion

Ints = NDArray[np.int64]

#: The traffic of a conversion: an activation; a gradient on its way to the optimizer; a parameter
#: that is gathered where it is used; a parameter that the optimizer has updated; an activation on
#: its way to or from an expert that one device has whole.
ACTIVATION, GRADIENT, WEIGHT, UPDATED, EXPERT = range(5)

#: The collectives in the order in which a conversion runs them, and whether each goes from the
#: outermost axis inwards.
STAGES = (
    ("reduce_scatter", False),
    ("all_to_all", False),
    ("all_reduce", False),
    ("all_gather", True),
)


def stages(n_axes: int) -> list[tuple[int, int]]:
    """The steps that a conversion may have on so many axes, in order: the collective, as an index
    into :data:`loadmaster.fast.COLLECTIVES`, and the axis.

    >>> [(fast.COLLECTIVES[kind], axis) for kind, axis in stages(2)][:3]
    [('reduce_scatter', 1), ('reduce_scatter', 0), ('all_to_all', 1)]
    """
    steps = []
    for word, is_outer_first in STAGES:
        axes = range(n_axes) if is_outer_first else reversed(range(n_axes))
        steps += [(fast.COLLECTIVES.index(word), axis) for axis in axes]
    return steps


@dataclass(frozen=True, eq=False)
class ConversionSteps:
    """The collectives of conversions, a row each; those of one conversion are in their order.

    Attributes
    ----------
    conversion : int64 [n]
        The row of the conversion.
    axis, kind : int64 [n]
        The axis of the mesh; the collective, as an index into :data:`loadmaster.fast.COLLECTIVES`.
    have : int32 [n_axes, n]
        The spec on each axis before the step.
    before, after : int64 [n]
        The way (:class:`.mesh_ways.MeshWays`) in which devices share the tensor before and after.
    is_first, is_last : bool [n]
        Whether the step is the first or the last of its conversion.
    """

    conversion: Ints
    axis: Ints
    kind: Ints
    have: NDArray[np.int32]
    before: Ints
    after: Ints
    is_first: NDArray[np.bool_]
    is_last: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.conversion)


@dataclass(frozen=True, eq=False)
class Conversions:
    """The conversions of a layout, a row each.

    Attributes
    ----------
    layout : Layout
    tensor : int64 [n]
        The output that is converted: an index into :attr:`.Layout.maker`.
    want, owner : int [n_axes, n]
        The spec that it gets on each axis; the place on the axis of what is OWNER.
    traffic : int64 [n]
        ACTIVATION, GRADIENT, WEIGHT, UPDATED or EXPERT.
    first : int64 [n]
        The first op that reads the result; of what was updated, the op that wrote it.
    of_argument : int64 [n_arguments]
        The conversion whose result each argument reads; -1: it reads the tensor as it was made.
    """

    layout: Layout
    tensor: Ints
    want: NDArray[np.int32]
    owner: Ints
    traffic: Ints
    first: Ints
    of_argument: Ints

    def __len__(self) -> int:
        return len(self.tensor)

    @classmethod
    def of(cls, layout: Layout) -> Conversions:
        """The conversions that a layout needs. O(arguments), and sorting.

        Raises
        ------
        InputError
            No collective turns one spec into the other.
        """
        read, of_argument = _read(layout)
        columns = zip(read, _with_their_units(layout, read), _updated(layout), strict=True)
        tensor, want, owner, traffic, first = (np.concatenate(rows, axis=-1) for rows in columns)
        return cls(layout, tensor, want, owner, traffic, first, of_argument)

    def served(self, by: Ints) -> Conversions:
        """The conversions without those that others serve; ``by``: the conversion that serves each,
        itself or another.
        """
        kept, number = np.unique(by, return_inverse=True)
        first = self.first.copy()
        np.minimum.at(first, by, self.first)
        of_argument = np.where(self.of_argument >= 0, number[self.of_argument], -1)
        columns = self.tensor[kept], self.want[:, kept], self.owner[:, kept], self.traffic[kept]
        return Conversions(self.layout, *columns, first[kept], of_argument)

    @cached_property
    def bytes(self) -> NDArray[np.uint64]:
        """Bytes of the whole tensor of each conversion, with what units fill up."""
        layout, size = self.layout, self.layout.tensor_bytes[self.tensor]
        of = np.where(self.traffic == GRADIENT, self.first, layout.maker[self.tensor])
        of_units = np.isin(self.traffic, (WEIGHT, GRADIENT)) & (layout.unit[of] >= 0)
        padded = np.rint(size * layout.padding[of]).astype(np.uint64)
        return np.where(of_units, padded, size)

    @cached_property
    def runs(self) -> NDArray[np.uint64]:
        """Runs of each conversion in a step: one per trip of the loops around both ends.

        A tensor from before a loop is converted once for all trips.
        """
        runs = self.layout.graph.runs
        return np.minimum(runs[self.layout.maker[self.tensor]], runs[self.first])

    @cached_property
    def expert_op(self) -> Ints:
        """A number per conversion for the op of an expert that makes the tensor or reads it first,
        the same for all experts of a layer; -1: it is no expert's.
        """
        return _expert_op(self.layout, self.tensor, self.first)

    @cached_property
    def steps(self) -> ConversionSteps:
        """The collectives, stage after stage."""
        layout, n_axes = self.layout, len(self.want)
        maker = layout.maker[self.tensor]
        owner = np.where(self.want == OWNER, self.owner, layout.owner[:, maker])
        have = layout.made[:, self.tensor]
        kinds = conversion(have, self.want)
        now = np.where(kinds == FREE, self.want, have)
        rows: list[tuple[NDArray[Any], ...]] = []
        seen, left = np.zeros(len(self), dtype=bool), (kinds >= 0).sum(axis=0)
        for kind, axis in stages(n_axes):
            of = np.flatnonzero(kinds[axis] == kind)
            specs = now[:, of]
            before = layout.way(self.tensor[of], specs, owner[:, of])
            now[axis, of] = self.want[axis, of]
            after = layout.way(self.tensor[of], now[:, of], owner[:, of])
            left[of] -= 1
            same = (np.full(len(of), axis), np.full(len(of), kind), specs)
            rows.append((of, *same, before, after, ~seen[of], left[of] == 0))
            seen[of] = True
        columns = zip(*rows, strict=True)
        return ConversionSteps(*(np.concatenate(column, axis=-1) for column in columns))


#: Columns of conversions: tensor, want, owner, traffic, first.
_Columns = tuple[NDArray[Any], ...]


def _read(layout: Layout) -> tuple[_Columns, Ints]:
    """The conversions that arguments need, and the one of each argument."""
    d, graph = layout.dimensions, layout.graph
    of_argument = np.full(len(d.reader), -1, dtype=np.int64)
    at = np.flatnonzero((layout.conversion >= 0).any(axis=0))
    tensor, reader = layout.tensor[at], d.reader[at].astype(np.int64)
    want = layout.wanted[:, at]
    want = np.where(want == ANY, layout.made[:, tensor], want)
    owner = np.where(want == OWNER, layout.owner[:, reader], 0)
    is_state = graph.placeholder[d.root[at]] & (graph.stands_for[d.root[at]] != INPUT)
    is_backward = is_state & layout.columns.is_backward[reader]
    is_backward &= ~layout.is_kept[d.root[at]]
    code = tensor * 2 + is_backward
    for specs, places in zip(want, owner, strict=True):
        code = (code * (int(want.max(initial=0)) + 7) + specs + 6) * (
            int(owner.max(initial=0)) + 1
        ) + places
    _, some, which = np.unique(code, return_index=True, return_inverse=True)
    first = np.full(len(some), graph.n_ops)
    np.minimum.at(first, which, reader)
    is_update = np.zeros(len(some), dtype=bool)
    is_update[which[graph.updates[reader]]] = True
    tensor, want, owner = tensor[some], want[:, some], owner[:, some]
    is_update &= ~graph.updates[layout.maker[tensor]]
    traffic = np.where(is_state[some], WEIGHT, np.where(is_update, GRADIENT, ACTIVATION))
    is_owned = ((want == OWNER) | (layout.made[:, tensor] == OWNER)).any(axis=0)
    is_expert = is_owned & (_expert_op(layout, tensor, first) >= 0)
    traffic = np.where((traffic == ACTIVATION) & is_expert, EXPERT, traffic)
    by = served_by(np.stack([tensor, is_backward[some]]), want, owner)
    kept, number = np.unique(by, return_inverse=True)
    earliest = first.copy()
    np.minimum.at(earliest, by, first)
    of_argument[at] = number[which]
    columns = tensor[kept], want[:, kept], owner[:, kept], traffic[kept], earliest[kept]
    return columns, of_argument


def _with_their_units(layout: Layout, read: _Columns) -> _Columns:
    """The conversions of parameters that the backward pass gathers and does not read: a unit is
    gathered again as a whole, with its biases, before the first op of its backward pass.
    """
    tensor, want, owner, traffic, first = read
    op, is_late = layout.maker[tensor], layout.columns.is_backward[first]
    may = (traffic == WEIGHT) & (layout.unit[op] >= 0) & ~layout.is_kept[op]
    may &= ~np.isin(tensor, tensor[is_late])
    at = np.flatnonzero(may)
    begins = layout.begins_backward[layout.unit[op[at]]]
    at, begins = at[begins < layout.graph.n_ops], begins[begins < layout.graph.n_ops]
    return tensor[at], want[:, at], owner[:, at], traffic[at], begins


def _updated(layout: Layout) -> _Columns:
    """The conversions of parameters and optimizer state whose spec is not that of what the
    optimizer writes into them last.
    """
    graph = layout.graph
    of, writer = layout.columns.written
    tensor, want = layout.first_output[writer], layout.made[:, layout.first_output[of]]
    kinds = conversion(layout.made[:, tensor], want)
    if (kinds == FORBIDDEN).any():
        axis, at = np.argwhere(kinds == FORBIDDEN)[0].tolist()
        raise InputError(
            f"axis {layout.mesh.names[axis]!r}: op {graph.names[writer[at]]!r} writes "
            f"{graph.names[of[at]]!r}, which lies as {int(want[axis, at])}, and its output as "
            f"{int(layout.made[axis, tensor[at]])}: no collective turns one into the other"
        )
    some = np.flatnonzero((kinds >= 0).any(axis=0))
    updated = np.full(len(some), UPDATED)
    return tensor[some], want[:, some], layout.owner[:, writer[some]], updated, writer[some]


def _expert_op(layout: Layout, tensor: Ints, first: Ints) -> Ints:
    experts, maker = layout.dimensions.experts, layout.maker[tensor]
    of_maker = experts.part[maker] >= 0
    op = np.where(of_maker, maker, first)
    n = int(experts.part.max(initial=0)) + 1
    number = (experts.layer[op].astype(np.int64) * n + experts.part[op]) * 2 + of_maker
    return np.where(experts.part[op] >= 0, number, -1)


def served_by(tensor: Ints, want: NDArray[np.int32], owner: Ints) -> Ints:
    """The conversion whose result each can be taken from without a collective; itself if none.

    ``tensor`` has columns that are equal for conversions of one tensor, which are side by side.
    """
    n = tensor.shape[1]
    by = np.arange(n)
    offset = 1
    while offset < n and (same := (tensor[:, :-offset] == tensor[:, offset:]).all(axis=0)).any():
        low = np.flatnonzero(same)
        for of, other in ((low, low + offset), (low + offset, low)):
            is_free = (conversion(want[:, other], want[:, of]) == FREE).all(axis=0)
            is_free &= ((want[:, other] != OWNER) | (owner[:, other] == owner[:, of])).all(axis=0)
            is_free &= by[other] != of
            by[of[is_free]] = other[is_free]
        offset += 1
    while (by[by] != by).any():
        by = by[by]
    return by
