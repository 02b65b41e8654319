"""Gradients that replicas sum, the buckets they are summed in, and the updates that read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.dimensions.experts import Experts
from loadmaster.model.graph import BUFFER, PARAMETER, OpGraph
from loadmaster.model.roles import Roles

#: Bytes that a device accesses in the time that it takes to launch an op: 5 us at 900 GB/s, what
#: the presets have of a V100.
LAUNCH_BYTES = 4_500_000.0

#: A function that puts tensors into buckets: from their bytes, their turns, and the most bytes of a
#: bucket.
Fill: TypeAlias = "Callable[[NDArray[Any], NDArray[np.float64], int], NDArray[np.int64]]"


@dataclass(frozen=True)
class Updates:
    """The updates that can be sharded, in sets: one parameter's, or those of several that share
    their ops.

    Attributes
    ----------
    of_op : int64 [n_ops]
        The set, counted from 0, of each op of the optimizer and of each of its slots; -1: none.
    parameter : int64 [n]
        Parameters that are updated.
    of_parameter : int64 [n]
        The set of each of them.
    writer : int64 [n]
        The op that writes each of them last; of a step that keeps the old ones, the op that makes
        the new one.
    """

    of_op: NDArray[np.int64]
    parameter: NDArray[np.int64]
    of_parameter: NDArray[np.int64]
    writer: NDArray[np.int64]

    @classmethod
    def of(cls, graph: OpGraph, many: NDArray[np.bool_]) -> Updates:
        """The optimizer's ops by the colocation set that they share with parameters. O(V)."""
        stands_for, labels = graph.stands_for, graph.colocation
        may = ~many & ~graph.view
        last = {
            int(graph.alias_of[op]): op
            for op in np.flatnonzero(may & graph.updates & (graph.alias_of >= 0)).tolist()
            if labels[op]
        }
        last = {
            p: w for p, w in last.items() if stands_for[p] == PARAMETER and labels[p] == labels[w]
        }
        last = {**_new_values(graph, may), **last}
        parameter = sorted(last)
        number: dict[str, int] = {}
        for p in parameter:
            number.setdefault(labels[p], len(number))
        of_op = np.full(graph.n_ops, -1, dtype=np.int64)
        for op in np.flatnonzero(may & (graph.updates | (stands_for == BUFFER))).tolist():
            of_op[op] = number.get(labels[op], -1)
        # A view is where the tensor is that it shows.
        views = np.flatnonzero(~many & graph.view)
        of_op[views] = of_op[graph.reduced.shows[views]]
        return cls(
            of_op,
            np.array(parameter, dtype=np.int64),
            np.array([number[labels[p]] for p in parameter], dtype=np.int64),
            np.array([last[p] for p in parameter], dtype=np.int64),
        )

    @property
    def n(self) -> int:
        """Number of sets."""
        return int(self.of_parameter.max(initial=-1)) + 1

    def work(self, graph: OpGraph) -> NDArray[np.float64]:
        """The work of each set, float64 [n]: an op does what it accesses, in bytes, and is
        launched.
        """
        runs = (self.of_op >= 0) & ~graph.view & ~graph.placeholder
        work = graph.bytes_accessed[runs].astype(np.float64) + LAUNCH_BYTES
        return np.bincount(self.of_op[runs], work, self.n).astype(np.float64)


def _new_values(graph: OpGraph, may: NDArray[np.bool_]) -> dict[int, int]:
    """The ops that make new values of parameters, by parameter. O(V + E).

    Of the optimizer's ops that share its colocation, it is the last that nothing reads and that
    makes an array like it.
    """
    is_read = np.zeros(graph.n_ops, dtype=bool)
    is_read[graph.src[graph.roles.tensor >= 0]] = True
    makers = np.flatnonzero(may & graph.updates & (graph.alias_of < 0) & ~is_read).tolist()
    maker_of = {
        (graph.colocation[op], graph.outputs[op]): op for op in makers if graph.colocation[op]
    }
    parameters = np.flatnonzero(graph.stands_for == PARAMETER).tolist()
    keys = {p: (graph.colocation[p], graph.outputs[p]) for p in parameters}
    return {p: maker_of[key] for p, key in keys.items() if key in maker_of}


def of_experts(experts: Experts, updates: Updates) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The expert that each op is of, and among how many, int64 [n_ops]; -1 and 0: of none.

    Updates are of the expert of their parameters. Those that several experts share are of none, and
    neither are these parameters.
    """
    number, count = experts.of_op.astype(np.int64), experts.count.astype(np.int64)
    least, most = np.full(updates.n, len(number)), np.full(updates.n, -1)
    np.minimum.at(least, updates.of_parameter, number[updates.parameter])
    np.maximum.at(most, updates.of_parameter, number[updates.parameter])
    is_one = (least == most) & (most >= 0)
    among = np.zeros(updates.n, dtype=np.int64)
    among[updates.of_parameter] = count[updates.parameter]
    for ops, of in (
        (updates.parameter, updates.of_parameter),
        (some := np.flatnonzero(updates.of_op >= 0), updates.of_op[some]),
    ):
        number[ops], count[ops] = np.where(is_one, most, -1)[of], np.where(is_one, among, 0)[of]
    return number, count


@dataclass(frozen=True, eq=False)
class Reducer:
    """The buckets in which replicas sum gradients, where these are known before the layout is.

    Attributes
    ----------
    edges : int64 [n]
        The edges that carry gradients to the optimizer.
    bucket, last : int64 [n]
        The bucket of the gradient that each of them carries, and the op after which the bucket is
        complete.
    is_whole : bool [n_buckets]
        Whether all of a bucket is summed on every device, whatever part of it that needs.
    """

    edges: NDArray[np.int64]
    bucket: NDArray[np.int64]
    last: NDArray[np.int64]
    is_whole: NDArray[np.bool_]

    def is_summed_whole(self, edge: NDArray[np.int64]) -> NDArray[np.bool_]:
        """True for edges that carry a gradient which every device sums as a whole."""
        return np.append(self.is_whole[self.bucket], False)[self.of_edge(edge)]

    def of_edge(self, edge: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each of some edges; -1: it carries no gradient to the optimizer."""
        if not len(self.edges):
            return np.full(len(edge), -1)
        at = np.minimum(np.searchsorted(self.edges, edge), len(self.edges) - 1)
        return np.where(self.edges[at] == edge, at, -1)


@dataclass(frozen=True)
class Buckets:
    """Gradients by bucket.

    Attributes
    ----------
    tensor : int64 [n]
        Ids of the gradients, in the order in which they are made.
    source : int64 [n]
        The op that hands each gradient on.
    bytes : uint64 [n]
    bucket : int64 [n]
        Ascending.
    edges : int64 column
        The edges that carry gradients to the optimizer.
    gradient : int64 [len(edges)]
        Which gradient each of them carries.
    """

    tensor: NDArray[np.int64]
    source: NDArray[np.int64]
    bytes: NDArray[np.uint64]
    bucket: NDArray[np.int64]
    edges: NDArray[np.intp]
    gradient: NDArray[np.int64]

    @classmethod
    def of(cls, graph: OpGraph, roles: Roles, most: int, fill: Fill | None = None) -> Buckets:
        """Fills buckets with gradients in the program's order. O(E log E).

        A bucket ends, full or not, before a gradient that depends on an update of this step (a
        second step in the same graph): it could wait for itself else.
        """
        parameter = graph.stands_for == PARAMETER
        summed = fast.summed_edges(graph._core, roles.many, parameter, graph.updates)
        edges = np.flatnonzero(summed)
        tensor, first, of_edge = np.unique(
            roles.tensor[edges], return_index=True, return_inverse=True
        )
        source, size = graph.src[edges[first]], graph.bytes[edges[first]]
        turn = turns(graph, edges)[source]
        order = np.lexsort((source, turn))
        bucket = (fill or filled)(size[order], turn[order], most)
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        return cls(tensor[order], source[order], size[order], bucket, edges, place[of_edge])

    @property
    def n(self) -> int:
        """Number of buckets."""
        return int(self.bucket[-1]) + 1 if len(self.bucket) else 0

    @cached_property
    def first(self) -> NDArray[np.intp]:
        """The first gradient of each bucket, and one past the last of all."""
        return np.searchsorted(self.bucket, np.arange(self.n + 1))

    @property
    def last_source(self) -> NDArray[np.int64]:
        """The op after which each bucket is complete, in the program's order."""
        return self.source[self.first[1:] - 1]


def turns(graph: OpGraph, edges: NDArray[Any]) -> NDArray[np.float64]:
    """The number of updates, one after another, that come before each op; ``edges`` carry gradients
    to them.

    O(V + E).
    """
    reads = np.bincount(graph.dst[edges], minlength=graph.n_ops) > 0
    order_only = fast.Graph(graph.n_ops, graph.src, graph.dst, np.full(graph.n_edges, -1))
    before, _ = fast.levels(fast.Weights(order_only, reads.astype(np.float64)))
    return before


def filled(size: NDArray[Any], turn: NDArray[Any], most: int) -> NDArray[np.int64]:
    """The bucket of each tensor, in the order given; a bucket has at most so many bytes.

    A tensor that is larger is alone. A bucket ends, full or not, where the turn changes.
    """
    bucket, filled, number = np.zeros(len(size), dtype=np.int64), 0, -1
    for i, bytes_ in enumerate(size.tolist()):
        if number < 0 or filled + bytes_ > most or turn[i] != turn[i - 1]:
            number, filled = number + 1, 0
        filled += bytes_
        bucket[i] = number
    return bucket


def reached(size: NDArray[Any], turn: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """The bucket of each tensor, in the order given, as PyTorch's reducer fills them: a bucket ends
    with the tensor by which it has so many bytes or more, or where the turn changes.

    >>> reached(np.array([4, 4, 4]), np.zeros(3), 6).tolist()
    [0, 0, 1]
    >>> filled(np.array([4, 4, 4]), np.zeros(3), 6).tolist()
    [0, 1, 2]
    """
    bucket, full, number = np.zeros(len(size), dtype=np.int64), True, -1
    held = 0
    for i, bytes_ in enumerate(size.tolist()):
        if full or turn[i] != turn[i - 1]:
            number, held = number + 1, 0
        held += bytes_
        full = held >= most
        bucket[i] = number
    return bucket
