"""Which tensors of a layout are turned into other specs, by which collectives, in which buckets.

There is one conversion per tensor and specs wanted on all axes, for all readers that want it. A
parameter that is gathered where it is used is gathered in the forward pass and in the backward
pass. Where some reader wants all of what another wants a part of, the part is taken from the whole.

A conversion goes axis by axis, what makes less of a tensor first: slices, then reduce-scatters from
the inside out, all-to-alls, all-reduces, and all-gathers from the outside in. So the fewest bytes
cross the outer axes, whose links are the slower ones.

Gradients on their way to the optimizer, parameters that are gathered where they are used and
parameters that were updated go in buckets, each of one kind on one axis, and of one stage of a
pipeline: by size, or where the layout has units, those of a unit. What the same op of each expert
of a layer reads, or makes, goes together.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InputError
from loadmaster.dimensions.form import ANY, OWNER
from loadmaster.transforms.gradients import filled, turns
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.specs import FORBIDDEN, FREE, conversion

#: What a conversion is of: an activation, which has collectives of its own; a gradient on its way
#: to an update; a parameter that is gathered where it is used; one that was updated; an activation
#: on its way to or from an expert that one device has whole.
ACTIVATION, GRADIENT, WEIGHT, UPDATED, EXPERT = range(5)

#: Kinds in the order in which a conversion has them, and whether the outermost axis comes first.
STAGES = (
    ("reduce_scatter", False),
    ("all_to_all", False),
    ("all_reduce", False),
    ("all_gather", True),
)


@dataclass(frozen=True)
class Rows:
    """Conversions, a column each.

    Attributes
    ----------
    tensor : int64 [n]
        The output that is converted.
    want, owner : int [n_axes, n]
        How it is to lie; the place on each axis of what is OWNER.
    what : int64 [n]
        ACTIVATION, GRADIENT, WEIGHT or UPDATED.
    first : int64 [n]
        The first op that reads it; of what was updated, the op that wrote it.
    """

    tensor: NDArray[np.int64]
    want: NDArray[np.int32]
    owner: NDArray[np.int64]
    what: NDArray[np.int64]
    first: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.tensor)

    def joined(self, other: Rows) -> Rows:
        """These and others."""
        names = [one.name for one in fields(self)]
        pairs = ((getattr(self, name), getattr(other, name)) for name in names)
        return Rows(*(np.concatenate(pair, axis=-1) for pair in pairs))


@dataclass(frozen=True)
class Steps:
    """Collectives of conversions, in the order of a conversion's.

    Attributes
    ----------
    row : int64 [n]
        The conversion.
    axis, kind : int64 [n]
        Where, and an index into :data:`loadmaster.fast.COLLECTIVES`.
    before, after : int64 [n]
        The ways in which the tensor is shared.
    is_first, is_last : bool [n]
        Whether it is its conversion's first step, or the last.
    """

    row: NDArray[np.int64]
    axis: NDArray[np.int64]
    kind: NDArray[np.int64]
    before: NDArray[np.int64]
    after: NDArray[np.int64]
    is_first: NDArray[np.bool_]
    is_last: NDArray[np.bool_]


class Conversions:
    """The conversions of a layout.

    Attributes
    ----------
    rows : Rows
    of_argument : int64 [n_arguments]
        The conversion that each argument reads; -1: it reads the tensor itself.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        rows, self.of_argument = self._wanted()
        self.rows = rows.joined(self._updated())

    # -- what is converted -------------------------------------------------------------------------

    def _wanted(self) -> tuple[Rows, NDArray[np.int64]]:
        """Those that arguments need, and the one of each."""
        layout, d, graph = self.layout, self.layout.dimensions, self.layout.graph
        of_argument = np.full(len(d.reader), -1, dtype=np.int64)
        at = np.flatnonzero((layout.conversion >= 0).any(axis=0))
        tensor, reader = layout.tensor[at], d.reader[at].astype(np.int64)
        want = layout.wanted[:, at]
        want = np.where(want == ANY, layout.made[:, tensor], want)
        owner = np.where(want == OWNER, layout.owner[:, reader], 0)
        is_state = graph.placeholder[d.root[at]]
        is_backward = is_state & np.isin(np.array(graph.phases, dtype=object)[reader], ["b"])
        is_backward &= ~layout.is_kept[d.root[at]]
        code = tensor * 2 + is_backward
        for specs, places in zip(want, owner, strict=True):
            code = (code * (int(want.max(initial=0)) + 7) + specs + 6) * (
                int(owner.max(initial=0)) + 1
            ) + places
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
        reads = np.full(len(first), graph.n_ops)
        np.minimum.at(reads, which, reader)
        is_update = np.zeros(len(first), dtype=bool)
        is_update[which[graph.updates[reader]]] = True
        is_update &= ~graph.updates[layout.maker[tensor[first]]]
        what = np.where(is_state[first], WEIGHT, np.where(is_update, GRADIENT, ACTIVATION))
        is_owned = (want[:, first] == OWNER) | (layout.made[:, tensor[first]] == OWNER)
        is_expert = is_owned.any(axis=0) & (self._part(tensor[first], reads) >= 0)
        what = np.where((what == ACTIVATION) & is_expert, EXPERT, what)
        rows = Rows(tensor[first], want[:, first], owner[:, first], what, reads)
        by = _served(rows, is_backward[first])
        kept, number = np.unique(by, return_inverse=True)
        np.minimum.at(reads, by, rows.first)
        of_argument[at] = number[which]
        return Rows(
            tensor[first][kept],
            want[:, first][:, kept],
            owner[:, first][:, kept],
            what[kept],
            reads[kept],
        ), of_argument

    def _part(self, tensor: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[np.int64]:
        """The op of an expert that makes tensors or reads them first, the same number for all
        experts of a layer; -1: none.
        """
        experts, maker = self.layout.dimensions.experts, self.layout.maker[tensor]
        of_maker = experts.part[maker] >= 0
        op = np.where(of_maker, maker, first)
        n = int(experts.part.max(initial=0)) + 1
        found = (experts.layer[op].astype(np.int64) * n + experts.part[op]) * 2 + of_maker
        return np.where(experts.part[op] >= 0, found, -1)

    def _updated(self) -> Rows:
        """State that lies otherwise than what the optimizer writes into it last."""
        layout, graph = self.layout, self.layout.graph
        writes = np.flatnonzero(graph.updates & ~graph.view & (graph.alias_of >= 0))
        state = graph.alias_of[writes]
        known = graph.placeholder[state] & (layout.dimensions.form_of[state] >= 0)
        known &= layout.dimensions.form_of[writes] >= 0
        last = dict(zip(state[known].tolist(), writes[known].tolist(), strict=True))
        of, writer = (np.array(some, dtype=np.int64) for some in (list(last), list(last.values())))
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
        return Rows(
            tensor[some],
            want[:, some],
            layout.owner[:, writer[some]],
            np.full(len(some), UPDATED),
            writer[some],
        )

    def _unit(self, of: NDArray[np.int64]) -> NDArray[np.int64]:
        """The unit of the parameter that conversions are of, and in which pass it is read."""
        layout, rows = self.layout, self.rows
        tensor, first = rows.tensor[of], rows.first[of]
        op = np.where(rows.what[of] == GRADIENT, first, layout.maker[tensor])
        phases = np.array(layout.graph.phases, dtype=object)
        is_late = (rows.what[of] == WEIGHT) & (phases[first] == "b") & ~layout.is_kept[op]
        return np.stack([layout.unit[op], is_late])

    # -- how ---------------------------------------------------------------------------------------

    @cached_property
    def steps(self) -> Steps:
        """The collectives, those that come first in a conversion before the others."""
        layout, rows = self.layout, self.rows
        maker = layout.maker[rows.tensor]
        owner = np.where(rows.want == OWNER, rows.owner, layout.owner[:, maker])
        have = layout.made[:, rows.tensor]
        kinds = conversion(have, rows.want)
        now = np.where(kinds == FREE, rows.want, have)
        found: list[tuple[NDArray[Any], ...]] = []
        seen, left = np.zeros(len(rows), dtype=bool), (kinds >= 0).sum(axis=0)
        for word, is_outer_first in STAGES:
            kind, axes = fast.COLLECTIVES.index(word), range(len(kinds))
            for axis in axes if is_outer_first else reversed(axes):
                of = np.flatnonzero(kinds[axis] == kind)
                before = layout.way(rows.tensor[of], now[:, of], owner[:, of])
                now[axis, of] = rows.want[axis, of]
                after = layout.way(rows.tensor[of], now[:, of], owner[:, of])
                left[of] -= 1
                is_first = ~seen[of]
                seen[of] = True
                found.append(
                    (
                        of,
                        np.full(len(of), axis),
                        np.full(len(of), kind),
                        before,
                        after,
                        is_first,
                        left[of] == 0,
                    )
                )
        return Steps(*(np.concatenate(column) for column in zip(*found, strict=True)))

    @cached_property
    def bytes(self) -> NDArray[np.uint64]:
        """Bytes of the whole tensor of each conversion."""
        return self.layout.tensor_bytes[self.rows.tensor]

    @cached_property
    def bucket(self) -> NDArray[np.int64]:
        """The bucket of each step; what is in no bucket is alone in one of its own."""
        rows, steps = self.rows, self.steps
        ways, size = self.layout.ways.ways, self.bytes[steps.row]
        largest = np.maximum(ways.amounts(steps.before, size), ways.amounts(steps.after, size))
        largest = largest.max(axis=0)
        what = rows.what[steps.row]
        sort = np.where(
            what == WEIGHT, rows.first[steps.row], self.layout.maker[rows.tensor[steps.row]]
        )
        turn = np.zeros(len(what), dtype=np.int64)
        of_gradients = np.flatnonzero(what == GRADIENT)
        if len(of_gradients):
            d = self.layout.dimensions
            serves = self.of_argument >= 0
            is_gradient = (
                serves
                & (rows.what[self.of_argument] == GRADIENT)
                & self.layout.graph.updates[d.reader]
            )
            level = turns(self.layout.graph, d.edge[is_gradient])
            turn[of_gradients] = level[self.layout.maker[rows.tensor[steps.row[of_gradients]]]]
        bucket, count = np.empty(len(what), dtype=np.int64), 0
        alone = np.flatnonzero(what == ACTIVATION)
        bucket[alone] = np.arange(len(alone))
        count = len(alone)
        group = (what * 8 + steps.axis) * 8 + steps.kind
        if (stage := self.layout.stage) is not None:
            group += 64 * (EXPERT + 1) * stage[self.layout.maker[rows.tensor[steps.row]]]
        group = np.where(what == ACTIVATION, -1, group)
        part = self._part(rows.tensor, rows.first)[steps.row]
        # What was in one bucket a step before stays together: else buckets could wait in a circle.
        before = np.full(len(rows), -1, dtype=np.int64)
        begins = np.unique(group, return_index=True)[1]
        for one in group[np.sort(begins)].tolist():
            if one < 0:
                continue
            of = np.flatnonzero(group == one)
            came = before[steps.row[of]]
            order = np.lexsort((sort[of], came, turn[of]))
            of, came = of[order], came[order]
            batch = np.unique(np.stack([turn[of], came]), axis=1, return_inverse=True)[1]
            if one // 64 % (EXPERT + 1) == EXPERT:
                number = np.unique(np.stack([part[of], came]), axis=1, return_inverse=True)[1]
            elif self.layout.units:
                together = self._unit(steps.row[of])
                number = np.unique(np.vstack([together, batch]), axis=1, return_inverse=True)[1]
            else:
                number = filled(largest[of], batch, self.layout.bucket_bytes)
            bucket[of] = count + number
            before[steps.row[of]] = bucket[of]
            count += int(number.max()) + 1
        return bucket


def _served(rows: Rows, is_backward: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The conversion of the same tensor whose result each can be taken from; itself if none."""
    n = len(rows)
    by = np.arange(n)
    same_as = np.stack([rows.tensor, is_backward])
    offset = 1
    while offset < n and (same := (same_as[:, :-offset] == same_as[:, offset:]).all(axis=0)).any():
        low = np.flatnonzero(same)
        for of, other in ((low, low + offset), (low + offset, low)):
            is_free = (conversion(rows.want[:, other], rows.want[:, of]) == FREE).all(axis=0)
            is_free &= (
                (rows.want[:, other] != OWNER) | (rows.owner[:, other] == rows.owner[:, of])
            ).all(axis=0)
            by[of[is_free]] = other[is_free]
        offset += 1
    while (by[by] != by).any():
        by = by[by]
    return by
