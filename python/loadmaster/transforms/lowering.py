"""Lowering: everything that a layout makes devices do beside their parts of the ops, as data.

A layout (:mod:`.layout`) says which part of every op and tensor each device has. What follows from
it is said here once: which collectives convert tensors, in which buckets and when; which sums the
parts of an op exchange while they run; which rows a part gets from its neighbours; and which ops
the backward pass recomputes. Three readers use it, and none decides anything of this again: the
program that the judge simulates (:mod:`.shards`), the estimate that ranks layouts
(:mod:`loadmaster.strategies.sharding.estimate`), and the runner
(:mod:`loadmaster.running.parallel.sharded`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.dimensions.form import REPLICATE
from loadmaster.model.graph import OpGraph
from loadmaster.model.program import Program
from loadmaster.model.recipe import Recipe
from loadmaster.transforms.buckets import CollectiveBuckets, filled_buckets, served_in
from loadmaster.transforms.conversions import Conversions
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.recomputation import recompute
from loadmaster.transforms.specs import halo, part_weights, sent_on

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PartSums:
    """Sums that the parts of ops all-reduce while they run, a row each, such as the statistics of a
    synchronised batch norm.

    An op that exchanges sums on several axes has a row for each, and sums over the outermost first.

    Attributes
    ----------
    axis, op : int64 [n]
    bytes, runs : uint64 [n]
        Bytes of one run, and how often it runs in a step.
    is_own : bool [n]
        True: files leave it out. With units (FSDP2) each process has the loss of its own samples,
        and does not ask how many count elsewhere; `lm.run` does.
    """

    axis: Ints
    op: Ints
    bytes: NDArray[np.uint64]
    runs: NDArray[np.uint64]
    is_own: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.op)

    @classmethod
    def of(cls, layout: Layout) -> PartSums:
        """The sums of a layout."""
        axis, op = np.nonzero(layout.exchanged * ~layout.graph.view)
        bytes_ = layout.exchanged[axis, op].astype(np.uint64)
        is_own = layout.is_batch[axis, op] & ~layout.columns.is_batch_norm[op] & bool(layout.units)
        return cls(axis, op, bytes_, layout.graph.runs[op], is_own)


@dataclass(frozen=True, eq=False)
class Halos:
    """Rows of arguments that parts of ops get from others on an axis, a row each: of neighbours
    where a window of a convolution reaches over the end of a part, of any where the op sends.

    Attributes
    ----------
    axis, argument : int64 [n]
    step : int64 [n]
        Places on the axis from each device to the one that it sends to; 1: the next.
    bytes : uint64 [n, k]
        What each device of the mesh sends in all runs of the reader.
    receiver : int64 [n, k]
        The device that each device sends to; -1: it sends none.
    """

    axis: Ints
    argument: Ints
    step: Ints
    bytes: NDArray[np.uint64]
    receiver: Ints

    def __len__(self) -> int:
        return len(self.argument)

    @classmethod
    def of(cls, layout: Layout) -> Halos:
        """The halos of a layout: axis by axis, those to the next places first, then those to the
        ones before; rows with the same senders and receivers stand together.
        """
        k, places = layout.mesh.size, layout.ways.places
        none = np.empty(0, dtype=np.int64)
        columns: list[tuple[NDArray[Any], ...]] = [
            (none, none, none, np.empty((0, k), dtype=np.uint64), none.reshape(0, k))
        ]
        for axis, size in enumerate(layout.mesh.shape):
            stride = int(np.prod(layout.mesh.shape[axis + 1 :]))
            groups: dict[tuple[int, tuple[bool, ...]], list[tuple[int, Floats]]] = {}
            for argument, step, part in _sent(layout, axis, size):
                key = step, tuple((part > 0).tolist())
                groups.setdefault(key, []).append((argument, part))
            for step, of in sorted(groups, key=lambda key: (abs(key[0]), -key[0], key[1])):
                at = np.array([argument for argument, _ in groups[step, of]])
                part = np.array([part for _, part in groups[step, of]])[:, places[axis]]
                to = np.where(np.array(of)[places[axis]], np.arange(k) + step * stride, -1)
                same = (np.full(len(at), axis), at, np.full(len(at), step))
                amount = _halo_bytes(layout, axis, at, part)
                columns.append((*same, amount, np.broadcast_to(to, (len(at), k))))
        return cls(*map(np.concatenate, zip(*columns, strict=True)))


@dataclass(frozen=True, eq=False)
class Lowering:
    """The work that a layout gives each device of its mesh, beside its parts of the ops.

    Attributes
    ----------
    layout : Layout
        Of the graph that runs, so with the ops that are recomputed.
    recomputation : Program or None
        The graph of the layout, made of the user's by running ops a second time in the backward
        pass (:func:`.recomputation.recompute`); None: nothing is recomputed.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph = lm.read("example:lenet")
    >>> recipe = lm.Recipe({"tp": 2}, {"tp": {"m.7 aten.addmm.default": "column"}})
    >>> lowering = Lowering.of_recipe(graph, recipe)
    >>> len(lowering.conversions) >= len(lowering.buckets) > 0, len(lowering.sums)
    (True, 0)
    """

    layout: Layout
    recomputation: Program | None = None

    def __post_init__(self) -> None:
        graph = self.layout.graph
        if graph.is_member.any():
            op = int(graph.is_member.argmax())
            raise InputError(
                f"op {graph.names[op]!r} is a member of collective "
                f"{graph.collectives[op]!r}: a graph of several devices is not sharded"
            )

    @classmethod
    def of_recipe(cls, graph: OpGraph, recipe: Recipe, modules: Sequence[str] = ()) -> Lowering:
        """The lowering that a recipe describes; ``modules`` are recomputed beside the recipe's.

        Raises
        ------
        InputError
            What :meth:`.Layout.of` and :func:`.recomputation.recompute` refuse.
        """
        return cls.recomputing(Layout.of(graph, recipe), (*recipe.recompute, *modules))

    @classmethod
    def recomputing(cls, layout: Layout, modules: Sequence[str]) -> Lowering:
        """The lowering of a layout with modules recomputed. An op that runs a second time has the
        label that it has the first time.
        """
        if not modules:
            return cls(layout)
        again = recompute(layout.graph, modules)
        return cls(layout.of_graph(again.graph, again.serves.tolist()), again)

    @property
    def conversions(self) -> Conversions:
        """The tensors that change their spec, and by which collectives."""
        return self._in_buckets[0]

    @property
    def buckets(self) -> CollectiveBuckets:
        """The collectives of conversions: what shares one, and when it runs."""
        return self._in_buckets[1]

    @cached_property
    def _in_buckets(self) -> tuple[Conversions, CollectiveBuckets]:
        """Conversions in buckets, none of which gathers a parameter twice.

        A parameter is gathered for the forward pass and for the backward pass. Where one bucket has
        both, one of them serves all readers. What is left may fill buckets otherwise.
        """
        conversions = Conversions.of(self.layout)
        while True:
            bucket = filled_buckets(conversions)
            by = served_in(bucket, conversions)
            if (by == np.arange(len(by))).all():
                return conversions, CollectiveBuckets.of(conversions, bucket)
            conversions = conversions.served(by)

    @cached_property
    def takes_part(self) -> NDArray[np.bool_]:
        """True where a device takes part in a collective: bool [n_buckets, k].

        The groups of an axis each have a collective of their own. One whose devices have nothing of
        the tensors, before it or after it, has none: what one device of another axis owns.
        """
        steps, ways, of = self.conversions.steps, self.layout.ways, self.buckets.of_step
        group = ways.groups(self.buckets.axis)
        has = (ways.fractions[steps.before] > 0) | (ways.fractions[steps.after] > 0)
        step, device = np.nonzero(has)
        is_there = np.zeros((len(group), int(group.max(initial=0)) + 1), dtype=bool)
        is_there[of[step], group[of[step], device]] = True
        return np.take_along_axis(is_there, group, axis=1)

    @cached_property
    def sums(self) -> PartSums:
        """The sums that parts of ops exchange while they run."""
        return PartSums.of(self.layout)

    @cached_property
    def halos(self) -> Halos:
        """The rows that parts get from their neighbours."""
        return Halos.of(self.layout)


def _sent(layout: Layout, axis: int, size: int) -> Iterator[tuple[int, int, Floats]]:
    """Arguments of which rows go to other places of an axis, how many places further, and the share
    of the argument that each place sends so, float64 [size].
    """
    d, labels = layout.dimensions, layout.labels[axis]
    has_halos = layout.columns.has_halos[layout.form_of]
    for op in np.flatnonzero(has_halos & (labels > 0)).tolist():
        form = d.forms[layout.form_of[op]]
        cut = form.cuts[int(labels[op]) - 1]
        for i in range(len(cut.inputs) if cut.sends else len(cut.halos)):
            argument = int(d.first[op]) + i
            is_cut = layout.wanted[axis, argument] >= 0
            # A tensor that every device has whole has no neighbours.
            if not is_cut or layout.made[axis, layout.tensor[argument]] == REPLICATE:
                continue
            if cut.sends:
                shares = layout.mesh.axes[axis].shares or (1.0,) * size
                part = part_weights(cut.size, shares)
                for step, sent in sent_on(cut, part).items():
                    yield argument, step, sent
                continue
            for step, share in zip((1, -1), halo(cut, i, form.inputs[i]), strict=True):
                sends = np.full(size, share)
                sends[-1 if step > 0 else 0] = 0.0
                if sends.any():
                    yield argument, step, sends


def _halo_bytes(layout: Layout, axis: int, at: Ints, part: Floats) -> NDArray[np.uint64]:
    """Bytes of parts [n, k] of arguments on each device, of all that an axis has: [n, k]."""
    specs = layout.wanted[:, at].copy()
    specs[axis] = REPLICATE
    way = layout.way(layout.tensor[at], specs, layout.owner[:, layout.dimensions.reader[at]])
    reader = layout.dimensions.reader[at]
    size = layout.graph.bytes[layout.dimensions.edge[at]] * layout.graph.runs[reader]
    return np.ceil(layout.ways.fractions[way] * size[:, None] * part).astype(np.uint64)
