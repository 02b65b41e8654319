"""Dimensions of the batch alone, told by the sizes of tensors: no arguments of calls are needed.

An op that depends on the batch can be cut along it (:mod:`loadmaster.model.roles` says which ops
do). State that it reads is whole, gradients of weights are partial sums, and every other tensor has
the batch as its first dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import ANY, PARTIAL, REPLICATE, Cut, Factor, Form
from loadmaster.model.graph import PARAMETER, OpGraph

Ints = NDArray[np.int64]

#: Kinds of tensors of an op: one with the batch as a dimension, a partial sum of a gradient, state,
#: or a tensor of its own replica, whatever that has of it.
_BATCH, _GRADIENT, _STATE, _OWN = range(4)

#: The spec of each where the op is cut along the batch.
_SPECS = (0, PARTIAL, REPLICATE, ANY)

#: Factors of what has no batch. More than one element: only scalars cannot be flat.
_NO_BATCH: tuple[Factor, ...] = ((0, 2),)


def dimensions_of_batch(
    graph: OpGraph, batch: int, statistics: NDArray[np.uint64] | None = None
) -> Dimensions:
    """The dimensions of a graph of which nothing but the batch is known. O(V + E).

    Parameters
    ----------
    graph : OpGraph
    batch : int
        The size of the batch: the most parts that there can be.
    statistics : uint64 [n_ops], optional
        Bytes that the parts of each op sum while they run, such as those of synchronised batch
        norms.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph = lm.read("example:lenet")
    >>> dimensions = dimensions_of_batch(graph, 256)
    >>> form = dimensions.forms[dimensions.form_of[graph.index("addmm")]]
    >>> [cut.name for cut in form.cuts], form.cuts[0].inputs
    (['batch'], (-1, 0, -1))
    """
    seen = _Tensors(graph)
    arguments, outputs = seen.argument_kinds.tolist(), seen.output_kinds.tolist()
    first, first_output = seen.first.tolist(), seen.first_output.tolist()
    sums = [0] * graph.n_ops if statistics is None else statistics.tolist()
    is_many = graph.roles.many.tolist()
    forms: dict[tuple[tuple[int, ...], tuple[int, ...], bool, int], int] = {}
    form_of = np.full(graph.n_ops, -1, dtype=np.int32)
    for op in np.flatnonzero(~graph.view).tolist():
        key = (
            tuple(arguments[first[op] : first[op + 1]]),
            tuple(outputs[first_output[op] : first_output[op + 1]]),
            is_many[op],
            sums[op],
        )
        form_of[op] = forms.setdefault(key, len(forms))
    return Dimensions(
        graph=graph,
        forms=tuple(_form(batch, *key) for key in forms),
        form_of=form_of,
        first=seen.first,
        root=seen.made_by[seen.output].astype(np.int32),
        output=(seen.output - seen.first_output[seen.made_by[seen.output]]).astype(np.int16),
        edge=seen.edge,
        back=np.zeros(len(seen.edge), dtype=np.int32),
        backs=((0,),),
        unknown={},
        batch=batch,
    )


def _form(
    batch: int, arguments: tuple[int, ...], outputs: tuple[int, ...], is_cut: bool, sums: int
) -> Form:
    """The form of an op with arguments and outputs of these kinds."""

    def factors(kind: int) -> tuple[Factor, ...]:
        return ((0, batch),) if kind == _BATCH else _NO_BATCH

    needed, results = (tuple(_SPECS[kind] for kind in kinds) for kinds in (arguments, outputs))
    cuts: tuple[Cut, ...] = ()
    if is_cut:
        cuts = (Cut("batch", "batch", batch, needed, results, exchanged=sums),)
    elif _OWN in arguments:
        # An argument that every cut passes over is passed over by an op that is whole, too.
        cuts = (Cut("own", "", 0, needed, results, works=False),)
    return Form(cuts, tuple(map(factors, arguments)), tuple(map(factors, outputs)))


@dataclass(frozen=True, eq=False)
class _Tensors:
    """The tensors of a graph, by what carries them.

    A tensor is what an op but a view makes. It is known by that op and the id on the edges that
    leave the op. Edges from views carry the tensor that they show. But a gradient that is summed is
    the tensor of its own edge: views may show the optimizer parts of what the op made.
    """

    graph: OpGraph

    @cached_property
    def _data(self) -> Ints:
        return np.flatnonzero(self.graph.roles.tensor >= 0)

    @cached_property
    def _is_summed(self) -> NDArray[np.bool_]:
        """Mask of the edges that carry a gradient to the optimizer."""
        graph = self.graph
        is_parameter = graph.stands_for == PARAMETER
        return fast.summed_edges(graph._core, graph.roles.many, is_parameter, graph.updates)

    @cached_property
    def _root(self) -> Ints:
        """Per edge with data the edge that leaves the op which made the tensor."""
        graph, data = self.graph, self._data
        above = np.full(graph.n_ops, -1, dtype=np.int64)
        above[graph.dst[data[::-1]]] = data[::-1]
        up = np.arange(graph.n_edges)
        of_views = data[graph.view[graph.src[data]]]
        into = above[graph.src[of_views]]
        up[of_views] = np.where(into >= 0, into, of_views)
        while (up[up] != up).any():
            up = up[up]
        return up[data]

    @cached_property
    def _key(self) -> Ints:
        """A number per edge with data for the tensor that it carries; -1: no op made it."""
        graph, tensor = self.graph, self.graph.roles.tensor
        maker = graph.src[self._root].astype(np.int64)
        edge = np.where(self._is_summed[self._data], self._data, self._root)
        key = maker * (int(tensor.max(initial=-1)) + 1) + tensor[edge]
        return np.where(graph.view[maker], -1, key)

    @cached_property
    def _made(self) -> tuple[Ints, Ints]:
        """Keys of the tensors that edges carry, and the op that makes each."""
        keys, first = np.unique(self._key, return_index=True)
        at = np.flatnonzero(keys >= 0)
        return keys[at], self.graph.src[self._root[first[at]]].astype(np.int64)

    @cached_property
    def _unread(self) -> Ints:
        """Ops whose tensor no edge carries, and which keep or write one."""
        graph = self.graph
        n = np.bincount(self._made[1], minlength=graph.n_ops)
        keeps = graph.placeholder | (graph.alias_of >= 0)
        return np.flatnonzero((n == 0) & ~graph.view & keeps)

    @cached_property
    def _order(self) -> Ints:
        """The tensors that edges carry and those of :attr:`_unread`, in the order of their ops."""
        return np.argsort(np.concatenate([self._made[1], self._unread]), kind="stable")

    @cached_property
    def made_by(self) -> Ints:
        """The op that makes each output, ascending."""
        return np.concatenate([self._made[1], self._unread])[self._order]

    @cached_property
    def first_output(self) -> Ints:
        """The first output of each op, and one past the last of all."""
        return _starts(self.made_by, self.graph.n_ops)

    @cached_property
    def output_kinds(self) -> Ints:
        """The kind of each output."""
        roles, (keys, _) = self.graph.roles, self._made
        is_gradient = np.zeros(len(self.made_by), dtype=bool)
        is_gradient[: len(keys)] = np.isin(keys, self._key[roles.gradient[self._data]])
        kinds = np.where(is_gradient[self._order], _GRADIENT, _BATCH)
        return np.where(roles.many[self.made_by], kinds, _STATE)

    @cached_property
    def _arguments(self) -> Ints:
        """Edges that carry arguments, as indices into those with data, in the order of readers."""
        known = np.flatnonzero(self._key >= 0)
        return known[np.argsort(self.graph.dst[self._data[known]], kind="stable")]

    @cached_property
    def edge(self) -> Ints:
        """The edge of each argument."""
        return self._data[self._arguments]

    @cached_property
    def first(self) -> Ints:
        """The first argument of each op, and one past the last of all."""
        return _starts(self.graph.dst[self.edge], self.graph.n_ops)

    @cached_property
    def output(self) -> Ints:
        """The output that each argument is."""
        place = np.empty(len(self._order), dtype=np.int64)
        place[self._order] = np.arange(len(self._order))
        return place[np.searchsorted(self._made[0], self._key[self._arguments])]

    @cached_property
    def argument_kinds(self) -> Ints:
        """The kind of each argument.

        What an op that all replicas do reads of them, and what is not summed, such as the running
        statistics of a batch norm, is that of its own replica.
        """
        graph, many, edge = self.graph, self.graph.roles.many, self.edge
        is_own = many[graph.src[edge]] & ~many[graph.dst[edge]] & ~self._is_summed[edge]
        return np.where(is_own, _OWN, self.output_kinds[self.output])


def _starts(ops: NDArray[np.integer], n: int) -> Ints:
    """The first row of each op, and at the end one past the last of all."""
    return np.concatenate([[0], np.cumsum(np.bincount(ops, minlength=n))]).astype(np.int64)
