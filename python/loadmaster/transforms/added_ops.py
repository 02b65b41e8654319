"""Added ops: the collectives and slices of a lowering, on each device, and the edges that join them
to the copies of the user's ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.transforms.conversions import UPDATED
from loadmaster.transforms.copied_graph import CopiedGraph, links, waits
from loadmaster.transforms.lowering import Halos, Lowering

Ints = NDArray[np.int64]
Sizes = NDArray[np.uint64]

#: Nouns in the names of collectives, by the traffic of what they convert.
_NOUNS = ("tensors", "gradients", "parameters", "updated", "experts")

#: The kind of an added op that is no collective.
NO_COLLECTIVE = -1

#: Noun of sums that files leave out, in labels of collectives: weights of a mean loss.
OWN = "weights"


@dataclass(frozen=True, eq=False)
class AddedOps:
    """Ops that are added to the copies, a column each.

    Attributes
    ----------
    place : int64 [n]
        The op of the user's graph that each comes right before or right after.
    is_before : bool [n]
    serves : int64 [n]
        The op of the user's graph whose tensor it takes.
    device : int64 [n]
    stem : int64 [n]
        Index into the stems.
    kind : int64 [n]
        Index into :data:`loadmaster.fast.COLLECTIVES`; -1: it is no collective.
    output : uint64 [n]
        Bytes of one run.
    runs : uint64 [n]
        How often it runs in a step.
    """

    place: Ints
    is_before: NDArray[np.bool_]
    serves: Ints
    device: Ints
    stem: Ints
    kind: Ints
    output: Sizes
    runs: Sizes

    def __len__(self) -> int:
        return len(self.place)


@dataclass(frozen=True, eq=False)
class Addition:
    """Added ops, with their names and edges.

    Attributes
    ----------
    ops : AddedOps
    stems : list of str
        Kind and name of the ops, without the device.
    links : list of tuple
        Edges, rows of :meth:`.ways.Links.add`.
    n_tensors : int
        New tensors on each device.
    """

    ops: AddedOps
    stems: list[str]
    links: list[tuple[NDArray[Any], ...]]
    n_tensors: int

    def then(self, other: Addition) -> Addition:
        """Both additions as one; the other was numbered after this one."""
        names = [one.name for one in fields(AddedOps)]
        pairs = {name: (getattr(self.ops, name), getattr(other.ops, name)) for name in names}
        pairs["stem"] = self.ops.stem, other.ops.stem + len(self.stems)
        return Addition(
            AddedOps(**{name: np.concatenate(pair) for name, pair in pairs.items()}),
            self.stems + other.stems,
            self.links + other.links,
            self.n_tensors + other.n_tensors,
        )


@dataclass(frozen=True, eq=False)
class Members:
    """Tensors that members of the collectives of conversions read and make, step by step.

    Attributes
    ----------
    lowering : Lowering
    copies : CopiedGraph
    """

    lowering: Lowering
    copies: CopiedGraph

    @cached_property
    def number(self) -> Ints:
        """The added op of each device for each step, -1: none: int64 [k, n_steps]."""
        number = np.full(self.takes_part.shape, -1, dtype=np.int64)
        number[self.takes_part] = np.arange(int(self.takes_part.sum()))
        return number[self.lowering.buckets.of_step].T

    @property
    def takes_part(self) -> NDArray[np.bool_]:
        """True where a device takes part in a collective: bool [n_buckets, k]."""
        return self.lowering.takes_part

    @cached_property
    def read(self) -> Sizes:
        """Bytes that each device brings: [k, n_steps]."""
        return self._amounts(self.lowering.conversions.steps.before)

    @cached_property
    def made(self) -> Sizes:
        """Bytes that each device has then: [k, n_steps]."""
        return self._amounts(self.lowering.conversions.steps.after)

    @cached_property
    def result(self) -> Ints:
        """The tensor that each device has then: [k, n_steps]."""
        return self.copies.new_tensors(0, len(self.lowering.conversions.steps))

    @cached_property
    def last(self) -> Ints:
        """The last step of each conversion."""
        c = self.lowering.conversions
        last = np.empty(len(c), dtype=np.int64)
        last[c.steps.conversion[c.steps.is_last]] = np.flatnonzero(c.steps.is_last)
        return last

    def _amounts(self, way: Ints) -> Sizes:
        c = self.lowering.conversions
        return c.layout.ways.ways.amounts(way, c.bytes[c.steps.conversion])

    def source(self, at: Ints) -> tuple[Ints, Ints, Sizes]:
        """The sources of arguments on each device: ends, -1 where there is none, tensors and bytes,
        [k, n].
        """
        copies, c = self.copies, self.lowering.conversions
        tensor, of = c.layout.tensor[at], c.of_argument[at]
        ids, ends = copies.tensor_of(tensor), copies.copy(c.layout.maker[tensor])
        size = copies.bytes_of(tensor)
        if len(c):
            is_converted, last = of >= 0, self.last[np.maximum(of, 0)]
            number = self.number[:, last]
            added = np.where(number >= 0, copies.added(number), -1)
            ends = np.where(is_converted, added, ends)
            ids = np.where(is_converted, self.result[:, last], ids)
            size = np.where(is_converted, self.made[:, last], size)
        return ends, ids, np.where(ids < 0, np.uint64(0), size)


def converting(members: Members) -> Addition:
    """The members of the collectives of conversions."""
    lowering, copies = members.lowering, members.copies
    c, buckets, steps = lowering.conversions, lowering.buckets, lowering.conversions.steps
    groups = copies.layout.ways.groups(buckets.axis)
    width, counts = int(groups.max(initial=0)) + 1, [0] * len(_NOUNS)
    stems = list[str]()
    for traffic, kind in zip(buckets.traffic.tolist(), buckets.kind.tolist(), strict=True):
        name = f"{fast.COLLECTIVES[kind]}/{_NOUNS[traffic]}{counts[traffic]}"
        counts[traffic] += 1
        stems += _of_groups(name, width)
    each, device = np.nonzero(members.takes_part)
    output = np.zeros(len(each), dtype=np.uint64)
    # What updates a parameter writes into its storage, and makes no tensor.
    kept = ~((c.traffic[steps.conversion] == UPDATED) & steps.is_last)
    number, is_there = members.number[:, kept], members.number[:, kept] >= 0
    np.add.at(output, number[is_there], members.made[:, kept][is_there])
    ops = AddedOps(
        buckets.place[each],
        buckets.is_before[each],
        c.layout.maker[c.tensor[steps.conversion[buckets.lead]]][each],
        device,
        each * width + groups[each, device],
        buckets.kind[each],
        output,
        buckets.runs[each],
    )
    entering = _entering(members)
    held = np.flatnonzero(buckets.waits_for >= 0)
    wait, number = buckets.waits_for[held], members.number[:, buckets.lead[held]]
    rows = [
        *entering,
        _leaving(members),
        waits(copies, copies.is_on(wait) & (number >= 0), copies.copy(wait), copies.added(number)),
    ]
    return Addition(ops, stems, rows, len(steps) + int(steps.is_first.sum()))


def _of_groups(name: str, width: int) -> list[str]:
    """The names of a collective of several groups: the first has no number."""
    return [f"{name}.{group}" if group else name for group in range(width)]


def _entering(members: Members) -> Iterator[tuple[NDArray[Any], ...]]:
    """Edges into members: from what is converted, and from the step before.

    Of a tensor that is whole on another axis, and wanted in parts there, a member brings its part;
    what a unit fills up comes along.
    """
    copies, c = members.copies, members.lowering.conversions
    steps, layout = c.steps, c.layout
    has = layout.ways.fractions[steps.before].T > 0
    into = copies.added(members.number)
    first = np.flatnonzero(steps.is_first)
    of = steps.conversion[first]
    tensor = c.tensor[of]
    edge = copies.carrier[tensor]
    is_known = (edge >= 0) & (c.traffic[of] != UPDATED)
    fresh = copies.new_tensors(len(steps), len(first))
    ids = np.where(is_known, copies.tensor_of(tensor), fresh)
    place = np.where(is_known, edge, copies.graph.n_edges)
    whole, read = copies.bytes_of(tensor), members.read[:, first]
    is_other = (read < whole).any(axis=0) | (c.bytes[of] > layout.tensor_bytes[tensor])
    ids, size = np.where(is_other, fresh, ids), np.where(is_other, read, whole)
    source = np.where(is_known, copies.graph.src[np.maximum(edge, 0)], layout.maker[tensor])
    yield links(has[:, first], place, copies.copy(source), into[:, first], ids, size)
    # The step before is the last of the conversion's that came earlier.
    order = np.lexsort((np.arange(len(steps)), steps.conversion))
    before = np.empty(len(order), dtype=np.int64)
    before[order[1:]] = order[:-1]
    later = np.flatnonzero(~steps.is_first)
    of = before[later]
    ends = into[:, of], into[:, later]
    yield links(has[:, later], copies.nowhere, *ends, members.result[:, of], members.made[:, of])


def _leaving(members: Members) -> tuple[NDArray[Any], ...]:
    """Edges from the last members to the ops that read a conversion."""
    copies, c = members.copies, members.lowering.conversions
    d = c.layout.dimensions
    at = np.flatnonzero(c.of_argument >= 0)
    last, reader = members.last[c.of_argument[at]], d.reader[at].astype(np.int64)
    number = members.number[:, last]
    ends = copies.added(number), copies.copy(reader)
    tensors = members.result[:, last], members.made[:, last]
    return links(copies.is_on(reader) & (number >= 0), d.edge[at], *ends, *tensors)


def summing(members: Members, before: Addition) -> Addition:
    """A small all-reduce before each op whose parts exchange sums; numbered after ``before``."""
    copies, sums = members.copies, members.lowering.sums
    k, n, d = copies.k, len(sums), copies.layout.dimensions
    axis, op = sums.axis, sums.op
    groups = copies.layout.ways.groups(axis)
    width = int(groups.max(initial=0)) + 1
    names = [f"all_reduce/{OWN if own else 'statistics'}{i}" for i, own in enumerate(sums.is_own)]
    stems = [stem for name in names for stem in _of_groups(name, width)]
    each = np.repeat(np.arange(n), k)
    ops = AddedOps(
        op[each],
        np.ones(len(each), dtype=bool),
        op[each],
        np.tile(copies.devices, n),
        each * width + groups.ravel(),
        np.full(len(each), fast.COLLECTIVES.index("all_reduce")),
        np.repeat(sums.bytes, k),
        sums.runs[each],
    )
    ends = copies.added(len(before.ops) + np.arange(n * k).reshape(n, k).T)
    tensors = copies.new_tensors(before.n_tensors, n)
    nowhere = copies.nowhere
    rows = [links(copies.is_on(op), nowhere, ends, copies.copy(op), tensors, sums.bytes)]
    # What is summed on one axis is summed on the next one then.
    order = np.lexsort((axis, op))
    same = np.flatnonzero(op[order[1:]] == op[order[:-1]])
    one, then = order[same], order[same + 1]
    pair = ends[:, one], ends[:, then]
    on = copies.is_on(op[one])
    rows.append(links(on, nowhere, *pair, tensors[:, one], sums.bytes[one]))
    for of_axis in np.unique(axis).tolist():
        mine = np.flatnonzero(axis == of_axis)
        number = np.full(copies.graph.n_ops, -1)
        number[op[mine]] = mine
        at = np.flatnonzero(copies.layout.is_read & (number[d.reader] >= 0))
        at = at[~copies.graph.placeholder[d.root[at]]]
        source, _, _ = members.source(at)
        into = ends[:, number[d.reader[at]]]
        is_there = copies.is_on(d.root[at].astype(np.int64)) & (source >= 0)
        rows.append(waits(copies, is_there, source, into))
    return Addition(ops, stems, rows, n)


def slicing(members: Members, before: Addition) -> Addition:
    """Slices of neighbours' parts, cut out there and sent; numbered after ``before``."""
    copies, halos = members.copies, members.lowering.halos
    k, d, layout = copies.k, copies.layout.dimensions, copies.layout
    reader = d.reader[halos.argument].astype(np.int64)
    root = d.root[halos.argument].astype(np.int64)
    stems, rows, sends = list[str](), [], halos.receiver >= 0
    number = np.cumsum(sends.ravel()).reshape(sends.shape) - 1 + len(before.ops)
    row, device = np.nonzero(sends)
    ops = AddedOps(
        reader[row],
        np.ones(len(row), dtype=bool),
        root[row],
        device,
        row,
        np.full(len(row), NO_COLLECTIVE),
        halos.bytes[row, device],
        layout.graph.runs[reader[row]],
    )
    first = before.n_tensors
    for of in _of_one_kind(halos):
        names = (layout.graph.names[op] for op in reader[of].tolist())
        step = int(halos.step[of[0]])
        end = f"{halos.axis[of[0]]}.{int(step < 0) if abs(step) == 1 else step}"
        stems += [f"slice/{name}.{end}.{i}" for i, name in enumerate(names)]
        sender = np.flatnonzero(sends[of[0]])
        cut = copies.added(number[of][:, sender].T)
        ends, ids, whole = (column[sender] for column in members.source(halos.argument[of]))
        tensors = copies.new_tensors(first, len(of))[sender]
        first += len(of)
        always = np.ones(cut.shape, dtype=bool)
        rows.append(links(ends >= 0, copies.nowhere, ends, cut, ids, whole))
        into = reader[of] * k + halos.receiver[of[0], sender][:, None]
        size = halos.bytes[of][:, sender].T
        rows.append(links(always, copies.nowhere, cut, into, tensors, size))
    return Addition(ops, stems, rows, len(halos))


def _of_one_kind(halos: Halos) -> Sequence[Ints]:
    """The rows of halos on one axis that go from the same devices to the same."""
    kind = np.column_stack([halos.axis, halos.step, halos.receiver])
    ends = np.flatnonzero((kind[1:] != kind[:-1]).any(axis=1)) + 1
    return np.split(np.arange(len(kind)), ends) if len(kind) else []
