"""Shards: the graph that a layout runs, with what each device of a mesh does and the collectives.

Every op has a copy on each device, but for what one device of an axis owns. A copy does its part of
the op and has its parts of tensors. Names of copies end in ``@d0``, ``@d1``, ...: the device of the
mesh, row-major. Conversions (:mod:`.conversions`) come right before the first op that reads them,
buckets of gradients right after the last of them is made. A conversion in the backward pass of what
the forward pass made begins when its reader's other arguments are nearly there, and buckets of
parameters that are gathered where they are used begin when the second bucket before them is in use:
so no more than two are there ahead of their time.

Parts that exchange sums while they run wait for a small all-reduce. A part that needs rows of its
neighbours' parts (a halo) gets them from "slice" ops there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InputError
from loadmaster.dimensions.form import ANY, OWNER, REPLICATE
from loadmaster.model.graph import OpGraph
from loadmaster.model.program import COLLECTIVE, SLICE, Program, user_roles
from loadmaster.model.recipe import Recipe
from loadmaster.transforms.base import build
from loadmaster.transforms.conversions import (
    ACTIVATION,
    EXPERT,
    GRADIENT,
    UPDATED,
    WEIGHT,
    Conversions,
)
from loadmaster.transforms.copy_texts import CopyTexts
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.recomputation import recompute
from loadmaster.transforms.shares import own_weights
from loadmaster.transforms.specs import halo
from loadmaster.transforms.ways import WHOLE, Links

#: Names of the collectives of conversions, by what these are of.
_WORDS = ("tensors", "gradients", "parameters", "updated", "experts")


def shard(graph: OpGraph, how: Recipe | Layout, modules: Sequence[str] = ()) -> Program:
    """The graph as a recipe or a layout has it run. O(k (V + E)), and sorting.

    Parameters
    ----------
    graph : OpGraph
    how : Recipe or Layout
        Nothing may be left to a solver in it.
    modules : sequence of str
        Patterns of modules whose activations are made anew in the backward pass
        (:func:`.recomputation.recompute`), beside those of a recipe. What is done again is shared
        as it is the first time.

    Returns
    -------
    Program
        It has the recipe. Its ``rank`` is the device of the mesh of each op, ``share`` what the op
        does of its origin.
        ``replica`` is the op's place on the axes on which ops are cut by the batch; -1: there are
        none. ``part`` and ``parts`` count what is cut otherwise.

    Raises
    ------
    InputError
        What :class:`Layout` refuses; a line of the recipe that means nothing in the graph.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph = lm.read("example:lenet")
    >>> recipe = lm.Recipe({"tp": 2}, {"tp": {"m.7 aten.addmm.default": "column"}})
    >>> program = shard(graph, recipe)
    >>> program.share[program.parts_of(graph.index("addmm"))].tolist()
    [0.5, 0.5]
    """
    if isinstance(how, Recipe):
        made = shard(graph, Layout.of(graph, how), (*how.recompute, *modules))
        return replace(made, recipe=how)
    if not modules:
        return Shards(how).build()
    again = recompute(graph, modules)
    return again.then(Shards(how.of_graph(again.graph, again.serves.tolist())).build())


@dataclass
class _Added:
    """Ops that are added, as they are found: rows of columns."""

    rows: list[tuple[NDArray[Any], ...]]
    n: int = 0

    def add(self, *row: NDArray[Any]) -> NDArray[np.int64]:
        """Adds ops: place, whether before it, serves, device, stem, kind. Gives their numbers."""
        found = self.n + np.arange(len(row[0]))
        self.rows.append(row)
        self.n += len(row[0])
        return found

    def column(self, i: int, dtype: type) -> NDArray[Any]:
        """A column of all rows."""
        return np.concatenate([np.empty(0, dtype), *(row[i] for row in self.rows)]).astype(dtype)


class Shards:
    """What is copied, added and linked.

    Attributes
    ----------
    member : int64 [k, n_steps]
        The added op of each device for each step of the conversions.
    exchanges : list of (axis, op, int64 column)
        Sums that the parts of an op exchange on an axis, with the added op of each device. Of an op
        with several, the outermost axis comes first.
    halos : dict of (argument, device) to list of (device, int)
        Who cuts out rows that a part needs for an argument, with the added op that does.
    which : int32 [n_ops of the graph that runs]
        Once it is built: the added op that each op is; -1: it is a copy.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout, self.graph, self.k = layout, layout.graph, layout.mesh.size
        if self.graph.is_member.any():
            op = int(self.graph.is_member.argmax())
            raise InputError(
                f"op {self.graph.names[op]!r} is a member of collective "
                f"{self.graph.collectives[op]!r}: a graph of several devices is not sharded"
            )
        self.conversions = Conversions(layout)
        self.ways = layout.ways.ways
        self.devices = np.arange(self.k)
        self.homes, self.home = layout.homes
        self.links, self.added, self.stems = Links(), _Added([]), list[str]()
        ids = self.graph.src if self.graph.tensor is None else self.graph.tensor
        self.ids, self.stride = ids, int(ids.max(initial=-1)) + 1
        self.fresh = self.k * self.stride
        #: Whether ops come after all that they read, so that one may be made to wait for another.
        self.is_ordered = bool((self.graph.src < self.graph.dst).all())
        self.member = np.empty((self.k, 0), dtype=np.int64)
        self.exchanges: list[tuple[int, int, NDArray[np.int64]]] = []
        self.halos: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self._carried()

    # -- ends, tensors and bytes -------------------------------------------------------------------

    def _carried(self) -> None:
        """Per output, an edge that carries it; -1: none."""
        at, edge = self.layout.carrying
        self.carrier = np.full(len(self.layout.maker), -1, dtype=np.int64)
        self.carrier[at] = edge

    def _copy(self, ops: NDArray[Any]) -> NDArray[np.int64]:
        """The ends of links at copies of ops: [k, n]."""
        return ops.astype(np.int64) * self.k + self.devices[:, None]

    def _end(self, added: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ends of links at added ops."""
        return self.graph.n_ops * self.k + added

    def _is_on(self, ops: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each device has a copy of ops: [k, n]."""
        found: NDArray[np.bool_] = np.equal(self.homes[self.home[ops]].T, self.devices[:, None])
        return found

    def _new_tensors(self, n: int) -> NDArray[np.int64]:
        """Ids of so many new tensors on each device: [k, n]."""
        first, self.fresh = self.fresh, self.fresh + n * self.k
        return first + np.arange(n) + n * self.devices[:, None]

    def _link(self, where: NDArray[np.bool_], place: NDArray[Any], *columns: NDArray[Any]) -> None:
        """Adds links where there are any: ends, tensor and bytes, [k, n]."""
        shape = where.shape
        rows = (np.broadcast_to(column, shape)[where] for column in (place, *columns))
        self.links.add(*rows)

    def _wait(self, where: NDArray[np.bool_], before: NDArray[Any], after: NDArray[Any]) -> None:
        """Adds links without data."""
        none = np.zeros(1, dtype=np.uint64)
        self._link(where, np.array(self.graph.n_edges), before, after, np.array(-1), none)

    # -- collectives of conversions ----------------------------------------------------------------

    def _collect(self) -> None:
        """Members of the collectives of conversions, and their links."""
        c, steps = self.conversions, self.conversions.steps
        if not len(steps.row):
            return
        # Buckets in the order of their first steps.
        _, first, bucket = np.unique(c.bucket, return_index=True, return_inverse=True)
        number = np.empty(len(first), dtype=np.int64)
        number[np.argsort(first, kind="stable")] = np.arange(len(first))
        bucket, lead = number[bucket], np.sort(first)
        self._buckets(bucket, lead)
        size = c.bytes[steps.row]
        self.read, self.made = (self.ways.amounts(way, size) for way in (steps.before, steps.after))
        member = bucket * self.k + self.devices[:, None]
        output = np.zeros(self.added.n, dtype=np.uint64)
        kept = ~((c.rows.what[steps.row] == UPDATED) & steps.is_last)
        np.add.at(output, member[:, kept], self.made[:, kept])
        self.output = output
        self.result = self._new_tensors(len(steps.row))
        self._enter(member)
        #: Per conversion, its last step.
        self.last = np.empty(len(c.rows), dtype=np.int64)
        self.last[steps.row[steps.is_last]] = np.flatnonzero(steps.is_last)
        self.member = member
        self._read_results()
        self._hold_back(bucket, lead)

    def _buckets(self, bucket: NDArray[np.int64], lead: NDArray[np.int64]) -> None:
        """Adds the members of every bucket: one per device."""
        c, steps, n = self.conversions, self.conversions.steps, len(lead)
        rows, maker = c.rows, self.layout.maker[c.rows.tensor]
        what, row = rows.what[steps.row], steps.row
        earliest, latest = np.full(n, self.graph.n_ops), np.zeros(n, dtype=np.int64)
        np.minimum.at(earliest, bucket, rows.first[row])
        np.maximum.at(latest, bucket, np.where(what == UPDATED, rows.first[row], maker[row]))
        is_after = np.isin(what[lead], (GRADIENT, UPDATED, EXPERT))
        self.place = np.where(is_after, latest, earliest)
        groups = self._groups(steps.axis[lead])
        counts = np.zeros(len(_WORDS), dtype=int)
        first = len(self.stems)
        width = groups.max(initial=0) + 1
        for one, kind in zip(what[lead].tolist(), steps.kind[lead].tolist(), strict=True):
            stem = f"{fast.COLLECTIVES[kind]}/{_WORDS[one]}{counts[one]}"
            counts[one] += 1
            self.stems += [f"{stem}.{group}" if group else stem for group in range(width)]
        each = np.repeat(np.arange(n), self.k)
        self.added.add(
            self.place[each],
            ~is_after[each],
            maker[row[lead]][each],
            np.tile(self.devices, n),
            first + each * width + groups.ravel(),
            steps.kind[lead][each],
        )

    def _groups(self, axis: NDArray[np.int64]) -> NDArray[np.int64]:
        """The group of each device in collectives on axes: [n, k]."""
        shape, places = self.layout.mesh.shape, self.layout.ways.places
        table = []
        for of in range(len(shape)):
            others = [i for i in range(len(shape)) if i != of]
            group = np.zeros(self.k, dtype=np.int64)
            for i in others:
                group = group * shape[i] + places[i]
            table.append(group)
        return np.array(table)[axis]

    def _enter(self, member: NDArray[np.int64]) -> None:
        """Links into members: from what is converted, or from the step before.

        Of what is whole on another axis, and wanted in parts there, a member brings its part.
        """
        c, steps, layout = self.conversions, self.conversions.steps, self.layout
        has = self.ways.fractions[steps.before].T > 0
        first = np.flatnonzero(steps.is_first)
        row = steps.row[first]
        tensor = c.rows.tensor[row]
        edge, maker = self.carrier[tensor], layout.maker[tensor]
        is_known = (edge >= 0) & (c.rows.what[row] != UPDATED)
        fresh = self._new_tensors(len(first))
        at = self.homes[self.home[maker]].T * self.stride
        ids = np.where(is_known, self.ids[np.where(is_known, edge, 0)] + at, fresh)
        into = self._end(member)
        place = np.where(is_known, edge, self.graph.n_edges)
        whole, read = self._whole(tensor), self.read[:, first]
        is_part = (read < whole).any(axis=0)
        ids, size = np.where(is_part, fresh, ids), np.where(is_part, read, whole)
        self._link(has[:, first], place, self._copy(maker), into[:, first], ids, size)
        # The step before is the last of the conversion's that came earlier.
        order = np.lexsort((np.arange(len(steps.row)), steps.row))
        before = np.empty(len(order), dtype=np.int64)
        before[order[1:]] = order[:-1]
        later = np.flatnonzero(~steps.is_first)
        of = before[later]
        none = np.array(self.graph.n_edges)
        self._link(
            has[:, later], none, into[:, of], into[:, later], self.result[:, of], self.made[:, of]
        )

    def _whole(self, tensor: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Bytes of tensors on each device, as they are made: [k, n]."""
        layout = self.layout
        return self.ways.amounts(layout.made_way[tensor], layout.tensor_bytes[tensor])

    def _read_results(self) -> None:
        """Links from the last members to the ops that read a conversion."""
        d, of = self.layout.dimensions, self.conversions.of_argument
        at = np.flatnonzero(of >= 0)
        last, reader = self.last[of[at]], d.reader[at]
        self._link(
            self._is_on(reader),
            d.edge[at],
            self._end(self.member[:, last]),
            self._copy(reader),
            self.result[:, last],
            self.made[:, last],
        )

    def _hold_back(self, bucket: NDArray[np.int64], lead: NDArray[np.int64]) -> None:
        """Makes gathers wait that would hold memory long before they are read."""
        if not self.is_ordered:
            return
        c, steps = self.conversions, self.conversions.steps
        what, is_first = c.rows.what[steps.row[lead]], steps.is_first[lead]
        wait = np.full(len(lead), -1, dtype=np.int64)
        of_weights = np.flatnonzero((what == WEIGHT) & is_first)
        of_weights = of_weights[np.argsort(self.place[of_weights], kind="stable")]
        places = self.place[of_weights]
        for i, at in enumerate(of_weights.tolist()):
            # The last op that begins the use of a bucket, two or more before this one.
            before = int(np.searchsorted(places[: max(i - 1, 0)], places[i])) - 1
            wait[at] = places[before] if before >= 0 else -1
        phases = np.array(self.graph.phases, dtype=object)
        maker = self.layout.maker[c.rows.tensor[steps.row[lead]]]
        late = np.flatnonzero((what == ACTIVATION) & is_first)
        late = late[phases[maker[late]] != phases[self.place[late]]]
        newest = self._newest()
        trigger = newest[newest[self.place[late]]]
        wait[late] = np.where(trigger > maker[late], trigger, -1)
        held = np.flatnonzero(wait >= 0)
        member = self._end(held * self.k + self.devices[:, None])
        self._wait(self._is_on(wait[held]), self._copy(wait[held]), member)

    def _newest(self) -> NDArray[np.int64]:
        """The last of the ops whose tensors each op reads; -1: it reads none that run."""
        d = self.layout.dimensions
        some = np.flatnonzero(self.layout.is_read & ~self.graph.placeholder[d.root])
        newest = np.full(self.graph.n_ops + 1, -1, dtype=np.int64)
        np.maximum.at(newest, d.reader[some], d.root[some])
        return newest

    # -- what else is added ------------------------------------------------------------------------

    def _source(
        self, at: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
        """Where arguments are found on each device: the ends, tensors and their bytes, [k, n]."""
        layout, of = self.layout, self.conversions.of_argument[at]
        tensor = layout.tensor[at]
        root = layout.maker[tensor]
        edge = self.carrier[tensor]
        here = self.homes[self.home[root]].T * self.stride
        ids = np.where(edge >= 0, self.ids[np.where(edge >= 0, edge, 0)] + here, -1)
        ends, size = self._copy(root), self._whole(tensor)
        if len(self.conversions.rows):
            is_converted, last = of >= 0, self.last[np.maximum(of, 0)]
            ends = np.where(is_converted, self._end(self.member[:, last]), ends)
            ids = np.where(is_converted, self.result[:, last], ids)
            size = np.where(is_converted, self.made[:, last], size)
        return ends, ids, np.where(ids < 0, np.uint64(0), size)

    def _exchange(self) -> None:
        """A small all-reduce before each op whose parts exchange sums."""
        layout, d = self.layout, self.layout.dimensions
        kind = fast.COLLECTIVES.index("all_reduce")
        axis, op = np.nonzero(layout.exchanged * ~self.graph.view)
        if not len(op):
            return
        groups, n = self._groups(axis), len(op)
        width, first = int(groups.max()) + 1, len(self.stems)
        self.stems += [
            f"all_reduce/statistics{i}" + (f".{group}" if group else "")
            for i in range(n)
            for group in range(width)
        ]
        each = np.repeat(np.arange(n), self.k)
        member = self.added.add(
            op[each],
            np.ones(len(each), dtype=bool),
            op[each],
            np.tile(self.devices, n),
            first + each * width + groups.ravel(),
            np.full(len(each), kind),
        ).reshape(n, self.k)
        bytes_ = layout.exchanged[axis, op].astype(np.uint64)
        self.output = np.append(self.output, np.repeat(bytes_, self.k))
        self.exchanges = list(zip(axis.tolist(), op.tolist(), member, strict=True))
        ends, tensors = self._end(member.T), self._new_tensors(n)
        place = np.array(self.graph.n_edges)
        self._link(self._is_on(op), place, ends, self._copy(op), tensors, bytes_)
        # What is summed on one axis is summed on the next one then.
        order = np.lexsort((axis, op))
        again = np.flatnonzero(op[order[1:]] == op[order[:-1]])
        one, then = order[again], order[again + 1]
        on = self._is_on(op[one])
        self._link(on, place, ends[:, one], ends[:, then], tensors[:, one], bytes_[one])
        for of_axis in range(len(layout.mesh.axes)):
            mine = np.flatnonzero(axis == of_axis)
            number = np.full(self.graph.n_ops, -1)
            number[op[mine]] = mine
            at = np.flatnonzero(layout.is_read & (number[d.reader] >= 0))
            at = at[~self.graph.placeholder[d.root[at]]]
            source, _, _ = self._source(at)
            into = ends[:, number[d.reader[at]]]
            self._wait(self._is_on(d.root[at]), source, into)

    def _halos(self) -> None:
        """Rows of neighbours' parts, cut out there and sent."""
        layout, d = self.layout, self.layout.dimensions
        places = layout.ways.places
        for axis, size in enumerate(layout.mesh.shape):
            stride = int(np.prod(layout.mesh.shape[axis + 1 :]))
            at, parts = self._halo_parts(axis)
            # What is whole on the axis has no neighbours.
            for side, step in ((0, 1), (1, -1)):
                some = np.flatnonzero(parts[side] > 0)
                if not len(some):
                    continue
                argument, part = at[some], parts[side][some]
                reader, n = d.reader[argument], len(some)
                sends = (places[axis] + step >= 0) & (places[axis] + step < size)
                to = self.devices + step * stride
                amount = self._halo_bytes(axis, argument, part)
                first = len(self.stems)
                self.stems += [f"slice/{self.graph.names[op]}" for op in reader.tolist()]
                self.stems[first:] = [
                    f"{s}.{axis}.{side}.{i}" for i, s in enumerate(self.stems[first:])
                ]
                from_ = self.devices[sends]
                each = np.repeat(np.arange(n), len(from_))
                cut = self.added.add(
                    reader[each],
                    np.ones(len(each), dtype=bool),
                    d.root[argument][each],
                    np.tile(from_, n),
                    first + each,
                    np.full(len(each), -1),
                ).reshape(n, len(from_))
                for argument_, ops in zip(argument.tolist(), cut.tolist(), strict=True):
                    for one, other, op in zip(from_.tolist(), to[from_].tolist(), ops, strict=True):
                        self.halos[argument_, other].append((one, op))
                self.output = np.append(self.output, amount[from_].T.ravel())
                ends, ids, whole = (some[from_] for some in self._source(argument))
                tensors = self._new_tensors(n)[from_]
                always = np.ones((len(from_), n), dtype=bool)
                nowhere = np.array(self.graph.n_edges)
                self._link(always, nowhere, ends, self._end(cut.T), ids, whole)
                into = reader.astype(np.int64) * self.k + to[from_][:, None]
                self._link(always, nowhere, self._end(cut.T), into, tensors, amount[from_])

    def _halo_parts(self, axis: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Arguments that need neighbours' rows, and how much before and after: [n], [2, n]."""
        layout, d = self.layout, self.layout.dimensions
        labels, forms = layout.labels[axis], d.forms
        has = np.array([any(cut.halos for cut in form.cuts) for form in forms] + [False])
        found: list[tuple[int, float, float]] = []
        for op in np.flatnonzero(has[layout.form_of] & (labels > 0)).tolist():
            form = forms[layout.form_of[op]]
            cut = form.cuts[int(labels[op]) - 1]
            for i in range(len(cut.halos)):
                argument = int(d.first[op]) + i
                is_cut = layout.wanted[axis, argument] >= 0
                if is_cut and layout.made[axis, layout.tensor[argument]] != REPLICATE:
                    found.append((argument, *halo(cut, i, form.inputs[i])))
        table = np.array(found).reshape(-1, 3).T
        return table[0].astype(np.int64), table[1:]

    def _halo_bytes(
        self, axis: int, at: NDArray[np.int64], part: NDArray[np.float64]
    ) -> NDArray[np.uint64]:
        """Bytes of parts of arguments on each device, of all that an axis has: [k, n]."""
        layout, d = self.layout, self.layout.dimensions
        specs = layout.wanted[:, at].copy()
        specs[axis] = REPLICATE
        way = layout.way(layout.tensor[at], specs, layout.owner[:, d.reader[at]])
        whole = layout.ways.fractions[way].T * self.graph.bytes[d.edge[at]]
        return np.ceil(whole * part).astype(np.uint64)

    # -- columns -----------------------------------------------------------------------------------

    def build(self) -> Program:
        """The program."""
        graph, layout = self.graph, self.layout
        self.output = np.zeros(0, dtype=np.uint64)
        self._collect()
        self._exchange()
        self._halos()
        texts = CopyTexts(graph, self.stems, "d")
        columns = texts.columns()
        added, stem = self._added()
        core, serves, device, which = fast.expand(
            graph._core, columns["name"], self.k, self._copies(), added, self.links.columns()
        )
        self.which = which
        texts.fill(serves, device, np.append(stem, -1)[which])
        is_copy = which < 0
        role = user_roles(graph)[serves]
        kind = np.append(self.added.column(5, np.int64), -1)[which]
        role[~is_copy] = np.where(kind[~is_copy] >= 0, COLLECTIVE, SLICE)
        share = np.where(is_copy, layout.share[serves, device], 1.0)
        replica, part, parts = self._parts(serves, device, is_copy)
        made = build(
            graph,
            core,
            columns,
            serves=serves,
            share=share,
            replica=replica,
            part=part,
            parts=parts,
            role=role,
            rank=device,
        )
        return replace(made, notes=(*made.notes, *self._notes()))

    def _notes(self) -> list[str]:
        """What is assumed of experts, where devices share them."""
        layout = self.layout
        axes = [
            name
            for name, cut in zip(layout.mesh.names, layout.experts_cut, strict=True)
            if cut[self.graph.flops > 0].any()
        ]
        if not axes:
            return []
        said = "" if layout.expert_imbalance != 1.0 else ": tokens are taken to be spread evenly"
        return [
            f"experts are shared on {' and '.join(axes)}; the busiest device does "
            f"{layout.expert_imbalance:g} times its fair share of their work "
            f"(expert_imbalance){said}"
        ]

    def _added(self) -> tuple[fast._Added, NDArray[np.int64]]:
        """Columns of added ops, and the stem of each."""
        column = self.added.column
        stem, kind = column(4, np.int64), column(5, np.int64)
        # Collectives are numbered in the order of their members.
        number = np.unique(stem, return_inverse=True)[1]
        nothing = np.zeros(self.added.n, dtype=np.uint64)
        return {
            "place": column(0, np.int64),
            "is_before": column(1, np.bool_),
            "serves": column(2, np.int64),
            "device": column(3, np.int64),
            "collective": np.where(kind >= 0, number, -1),
            "kind": np.maximum(kind, 0),
            "flops": nothing,
            "accessed": np.where(kind >= 0, nothing, 2 * self.output),
            "output": self.output,
        }, stem

    def _copies(self) -> fast._Copies:
        """Columns of :func:`loadmaster.fast.expand` per op and edge."""
        graph, layout, d = self.graph, self.layout, self.layout.dimensions
        edge_way = layout.made_way[
            np.minimum(layout.first_output[graph.src], len(layout.maker) - 1)
        ]
        is_made = np.diff(layout.first_output)[graph.src] > 0
        edge_way = np.where(is_made, edge_way, WHOLE)
        known = (d.edge >= 0) & (d.root >= 0) & (d.form_of[d.root] >= 0)
        edge_way[d.edge[known]] = layout.made_way[layout.tensor[known]]
        # What one device owns is not sent to those that want no more than its shape.
        owned = (layout.made[:, layout.tensor] == OWNER).any(axis=0)
        unread = layout.is_read & owned & (layout.wanted == ANY).all(axis=0)
        unread &= (self.homes[self.home[d.root]] != self.homes[self.home[d.reader]]).any(axis=1)
        converted = (self.conversions.of_argument >= 0) | unread
        reads = np.bincount(d.edge[d.edge >= 0], minlength=graph.n_edges)
        gone = np.bincount(d.edge[converted], minlength=graph.n_edges)
        placeholder = np.where(np.diff(layout.first_output) > 0, layout.first_output[:-1], -1)
        resident = np.where(
            graph.placeholder & (placeholder >= 0), layout.made_way[placeholder], WHOLE
        )
        accessed, output = self._accessed(), self._outputs()
        return {
            **self.ways.columns(),
            "homes": self.homes.ravel(),
            "home": self.home,
            "together": np.full(graph.n_ops, -1),
            "work": layout.work_way,
            "resident": resident,
            "accessed_first": accessed[0],
            "accessed_way": accessed[1],
            "accessed_bytes": accessed[2],
            "output_first": output[0],
            "output_way": output[1],
            "output_bytes": output[2],
            "stays": (gone == 0) | (gone < reads),
            "edge": edge_way,
        }

    def _accessed(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
        """What copies of ops access, in terms of their arguments and outputs.

        An op that accesses less than its tensors are, such as a look-up, goes by what it writes.
        """
        graph, layout, d = self.graph, self.layout, self.layout.dimensions
        n, own = graph.n_ops, own_weights(graph)
        read = layout.argument_bytes.astype(np.float64)
        made = layout.tensor_bytes.astype(np.float64)
        all_read = np.bincount(d.reader, read, n) + own
        all_made = np.bincount(layout.maker, made, n)
        accessed = graph.bytes_accessed.astype(np.float64)
        is_all = (accessed >= all_read + all_made) & (all_read + all_made > 0)
        by_output = ~is_all & (all_made > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = np.where(is_all, accessed / (all_read + all_made), accessed / all_made)
        rest = ~is_all & ~by_output
        some = np.flatnonzero(is_all[d.reader] & (read > 0))
        # Weights are read as often as they were, whoever has more tokens.
        is_state = graph.placeholder[d.root[some]]
        read_way = layout.loaded(layout.wanted_way[some], d.reader[some].astype(np.int64))
        read_way = np.where(is_state, layout.wanted_way[some], read_way)
        made_way = layout.loaded(layout.made_way, layout.maker)
        kept = np.flatnonzero((is_all | by_output)[layout.maker] & (made > 0))
        held = np.flatnonzero(is_all & (own > 0))
        alone = np.flatnonzero(rest)
        return _terms(
            n,
            (d.reader[some], read_way, read[some] * scale[d.reader[some]]),
            (layout.maker[kept], made_way[kept], made[kept] * scale[layout.maker[kept]]),
            (held, np.full(len(held), WHOLE), own[held].astype(np.float64) * scale[held]),
            (alone, layout.work_way[alone], accessed[alone]),
        )

    def _outputs(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
        """What copies of ops output. New storage is shared as the tensors are that lie in it."""
        graph, layout = self.graph, self.layout
        n, made = graph.n_ops, layout.tensor_bytes.astype(np.float64)
        all_made = np.bincount(layout.maker, made, n)
        total = graph.output_bytes.astype(np.float64)
        some = np.flatnonzero((made > 0) & (total[layout.maker] > 0))
        of = layout.maker[some]
        alone = np.flatnonzero((total > 0) & (all_made == 0))
        return _terms(
            n,
            (of, layout.made_way[some], made[some] * (total[of] / all_made[of])),
            (alone, np.full(len(alone), WHOLE), total[alone]),
        )

    def _parts(
        self, serves: NDArray[np.int32], device: NDArray[np.int32], is_copy: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """Replica, part and number of parts of each op."""
        layout = self.layout
        of_batch = layout.is_batch
        axes = [bool(row.any()) for row in of_batch]
        replica, part = np.zeros(len(serves), dtype=np.int32), np.zeros(len(serves), dtype=np.int32)
        parts = np.ones(len(serves), dtype=np.int32)
        for axis, size in enumerate(layout.mesh.shape):
            place = layout.ways.places[axis][device]
            if axes[axis]:
                replica = replica * size + place
            is_cut = (layout.labels[axis] > 0) & ~of_batch[axis] & ~self.graph.view
            cut = is_copy & is_cut[serves]
            part = np.where(cut, part * size + place, part)
            parts = np.where(cut, parts * size, parts)
        return np.where(any(axes), replica, -1).astype(np.int32), part, parts


def _terms(
    n: int, *rows: tuple[NDArray[Any], NDArray[Any], NDArray[np.float64]]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
    """Terms of ops, ways and bytes, by op: where those of each begin, ways and bytes."""
    op, way, size = map(np.concatenate, zip(*rows, strict=True))
    order = np.argsort(op, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(op.astype(np.int64), minlength=n))])
    return first, way[order], np.rint(size[order]).astype(np.uint64)
