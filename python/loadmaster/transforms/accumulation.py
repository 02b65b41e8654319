"""Gradients that micro-batches accumulate, and the ops that wait for them.

What depends on the batch is done per micro-batch, all else once. Where one meets the other, what
the micro-batches made is added up. So a weight gradient is accumulated where it is made. What only
shows, turns or sums gradients after that is done once, too: the parts of a tied weight's gradient,
made on two stages, are accumulated there and meet once. Sums of parts that one module makes, such
as those of the time steps of an LSTM, come before the accumulation: there is one part to keep then.

All-reduces and other collectives of gradients wait for the accumulation; those of activations are
of every micro-batch. So are those that gather parameters for one pass alone: that they are not kept
is what they are sharded for. What is gathered for both passes is kept, and gathered once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.graph import OpGraph
from loadmaster.model.roles import Roles
from loadmaster.transforms.base import ranks
from loadmaster.transforms.shares import only_gradients


@dataclass(frozen=True)
class Accumulation:
    """The ops that there are per micro-batch, and the gradients that are added up.

    Attributes
    ----------
    roles : Roles
        Its ``many`` are the ops that every micro-batch has. Its ``gradient`` are the tensors that
        are as large in a micro-batch as in the batch.
    reads : int64 column
        Edges that carry sums: from what there is per micro-batch to what there is once, and on from
        there through views.
    sum_of : int64 [len(reads)]
        The sum that each of them carries.
    waiting : int64 column
        Edges without data from what there is per micro-batch to what there is once.
    edge : int64 [n]
        Per sum, an edge that carries it.
    is_in_place : bool [n]
        Whether what the first micro-batch made can be added to: nothing else reads it.
    gathers : bool [n_ops]
        Which of the ops that every micro-batch has gather parameters: each does all of it.
    """

    roles: Roles
    reads: NDArray[np.intp]
    sum_of: NDArray[np.intp]
    waiting: NDArray[np.intp]
    edge: NDArray[np.intp]
    is_in_place: NDArray[np.bool_]
    gathers: NDArray[np.bool_]

    @classmethod
    def of(cls, graph: OpGraph, modules: Sequence[str]) -> Accumulation:
        """Of a graph whose ops are of ``modules``. O(V + E), and sorting."""
        before = graph.roles
        gathers = _gathers(graph, before)
        before = Roles(before.many | gathers, before.tensor, before.gradient | gathers[graph.src])
        many = before.many & ~_waits(graph, before, modules)
        tensor, src, dst = before.tensor, graph.src, graph.dst
        leaving, carries = many[src] & ~many[dst], tensor >= 0
        ids, first = np.unique(tensor[leaving & carries], return_index=True)
        edge = np.flatnonzero(leaving & carries)[first]
        number = np.full(int(tensor.max(initial=-1)) + 2, -1)
        number[ids] = np.arange(len(ids))
        passes = _passes(graph, tensor)
        reads = np.flatnonzero(~many[dst] & (number[tensor] >= 0))
        is_shared = np.zeros(len(number), dtype=bool)
        is_shared[tensor[many[dst] & carries & ~passes]] = True
        # What makes a tensor may not write it where something else was.
        is_shared[tensor[carries & ~graph.view[src] & (graph.alias_of[src] >= 0)]] = True
        takes = np.zeros(graph.n_ops, dtype=bool)
        takes[dst[passes]] = True
        is_own = ~graph.view[src[edge]] | takes[src[edge]]
        gradient = many[src] & (before.gradient | (number[tensor] >= 0))
        return cls(
            Roles(many, tensor, gradient),
            reads,
            number[tensor[reads]],
            np.flatnonzero(leaving & ~carries),
            edge,
            is_own & ~is_shared[ids],
            gathers,
        )


def _gathers(graph: OpGraph, roles: Roles) -> NDArray[np.bool_]:
    """True for ops that gather parameters that micro-batches read in one pass alone."""
    gathers = graph.is_member & ~roles.many
    if not gathers.any():
        return gathers
    at = np.flatnonzero(gathers)
    gathers[at] = [graph.collectives[op].startswith("all_gather/") for op in at.tolist()]
    if not gathers.any():
        return gathers
    src, dst, data = graph.src, graph.dst, roles.tensor >= 0
    late = np.fromiter(map("b".__eq__, graph.phases), bool, graph.n_ops)
    phases = np.zeros((2, graph.n_ops), dtype=bool)
    for row, is_late in zip(phases, (False, True), strict=True):
        row[src[data & roles.many[dst] & (late[dst] == is_late)]] = True
    gathers &= ~phases.all(axis=0)
    group, members = _groups(graph)
    lacks = np.zeros(int(group.max()) + 1, dtype=bool)
    while True:
        reads_other = data & gathers[dst] & ~(gathers | graph.placeholder)[src]
        other_reads = data & gathers[src] & ~(gathers | roles.many)[dst]
        bad = np.zeros(graph.n_ops, dtype=bool)
        bad[dst[reads_other]] = bad[src[other_reads]] = True
        # Members are together what they are.
        lacks[group[(bad | ~gathers)[members]]] = True
        bad[members] |= lacks[group]
        if not (bad & gathers).any():
            return gathers
        gathers &= ~bad


def _waits(graph: OpGraph, roles: Roles, modules: Sequence[str]) -> NDArray[np.bool_]:
    """True for the ops that depend on the batch and run once, after the accumulation."""
    waits = only_gradients(graph, roles)
    # One of several results is taken where they are made.
    waits[graph.dst[_passes(graph, roles.tensor) & ~waits[graph.src]]] = False
    group, members = _groups(graph)
    together = np.zeros(int(group.max(initial=-1)) + 1, dtype=bool)
    together[group[waits[members]]] = True
    waits[members] |= together[group]
    while True:
        # Who is read by an op of every micro-batch is one itself; members are so together.
        read = roles.many[graph.dst] & ~waits[graph.dst]
        early = np.zeros(graph.n_ops, dtype=bool)
        early[graph.src[read]] = True
        early &= waits
        together[:] = False
        together[group[early[members]]] = True
        early[members] |= together[group]
        if not early.any():
            break
        waits &= ~early
    return waits & ~_sums_first(graph, roles, waits, modules)


def _passes(graph: OpGraph, tensor: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True for edges that lead to a view that gives the tensor that it reads on, such as one of
    several results of a call.
    """
    stride = np.int64(int(tensor.max(initial=-1)) + 1)
    out = np.flatnonzero(graph.view[graph.src] & (tensor >= 0))
    read = np.unique(graph.src[out] * stride + tensor[out])
    views = np.flatnonzero(graph.view[graph.dst] & (tensor >= 0))
    passes = np.zeros(len(tensor), dtype=bool)
    passes[views] = np.isin(graph.dst[views] * stride + tensor[views], read)
    return passes


def _groups(graph: OpGraph) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """The collective of each member, and the members."""
    members = np.flatnonzero(graph.is_member)
    if not len(members):
        return np.empty(0, dtype=np.int64), members
    return graph._core.column("collective")[members], members


def _sums_first(
    graph: OpGraph, roles: Roles, waits: NDArray[np.bool_], modules: Sequence[str]
) -> NDArray[np.bool_]:
    """Of the ops that could wait, the sums of parts that one module makes, with all before them."""
    first = np.zeros(graph.n_ops, dtype=bool)
    rank = ranks(graph)
    into = np.flatnonzero(waits[graph.dst] & roles.many[graph.src] & (roles.tensor >= 0))
    into = into[np.argsort(rank[graph.dst[into]], kind="stable")]
    reads: dict[int, set[int]] = {}
    for src, dst in zip(graph.src[into].tolist(), graph.dst[into].tolist(), strict=True):
        reads.setdefault(dst, set()).add(src)
    #: Per op, the module that makes all that it reads; none: several do, or nobody says.
    of: dict[int, str] = {}
    for op, sources in reads.items():
        makers = {of.get(s, "") if waits[s] else modules[s] for s in sources}
        module = makers.pop() if len(makers) == 1 and not graph.is_member[op] else ""
        of[op] = module
        first[op] = bool(module) and len(sources) > 1
    for op, sources in reversed(reads.items()):
        if first[op]:
            first[[s for s in sources if waits[s]]] = True
    return first
