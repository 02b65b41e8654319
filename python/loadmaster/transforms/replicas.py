"""Replicas as they are run today: weights on every device, gradients summed in buckets.

Every replica has all that the graph has. What depends on the batch does the replica's share of it.
Gradients are summed in *buckets* (Li et al., VLDB 2020: PyTorch's DistributedDataParallel): a
bucket has the gradients that are made one after another, up to so many bytes, and is summed as soon
as its last gradient is there, while the backward pass goes on.

With a sharded optimizer (ZeRO-1: Rajbhandari et al., SC 2020) a replica gets the sums of its shard
only, updates that, and gathers what the others have updated. An optimizer is sharded *flat*, every
tensor into equal parts, or by whole *parameters*: then a parameter's update runs on one replica.
A bucket that some op of no one parameter reads, such as the norm of all gradients, is summed whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InputError
from loadmaster.base.units import counted
from loadmaster.model.graph import OpGraph
from loadmaster.model.program import COLLECTIVE, Program, user_roles
from loadmaster.transforms.base import build
from loadmaster.transforms.batch_norm import statistics
from loadmaster.transforms.copy_texts import CopyTexts
from loadmaster.transforms.gradients import Buckets, Fill, Updates, filled
from loadmaster.transforms.shares import amounts, only_gradients, proportional
from loadmaster.transforms.ways import WHOLE, Links, Ways, homes_of_copies


@dataclass(frozen=True)
class Replication:
    """How a graph is replicated.

    Attributes
    ----------
    rows : tuple of int
        Samples of the batch per replica, or what shares go by where the batch is unknown.
    is_sharded : bool
        Whether the optimizer is sharded.
    shards : "flat" or "parameters"
    bucket_bytes : int
    is_synchronised : bool
        Whether batch norms have the statistics of the whole batch.
    is_summed_whole : bool
        Whether every replica gets whole sums, even where it updates only some of the parameters
        (PyTorch's ZeroRedundancyOptimizer).
    fill : callable
        What puts gradients into buckets.
    """

    rows: tuple[int, ...]
    is_sharded: bool
    shards: str
    bucket_bytes: int
    is_synchronised: bool
    is_summed_whole: bool = False
    fill: Fill = filled

    @property
    def k(self) -> int:
        """Number of replicas."""
        return len(self.rows)


def replicated(graph: OpGraph, how: Replication) -> Program:
    """The program of replicas. O(k (V + E)), and sorting.

    Ops keep their order. A bucket's collective comes after the last op that makes a gradient of it,
    a batch norm's before it.
    The sizes in ``output`` are left out, dtypes stay.
    """
    return _Replicas(graph, how).build()


@dataclass(frozen=True)
class _Collective:
    """A collective of all replicas.

    Attributes
    ----------
    label : str
        Its kind, a slash and its name.
    place : int
        The op of the graph that its members come after, or before.
    is_before : bool
    serves : int
        The op whose result it takes.
    """

    label: str
    place: int
    is_before: bool
    serves: int

    @property
    def kind(self) -> str:
        """The word for what it does."""
        return self.label.partition("/")[0]


class _Replicas:
    """What is copied, added and linked.

    A copy is an op of the user's graph in a replica. A member is a replica's op of a collective:
    collectives of buckets are counted first, then those that gather, then those of batch norms.
    """

    def __init__(self, graph: OpGraph, how: Replication) -> None:
        self.graph, self.how, self.k = graph, how, how.k
        self.roles = graph.roles
        self.buckets = Buckets.of(graph, self.roles, how.bucket_bytes, how.fill)
        self.updates = Updates.of(graph, self.roles.many)
        #: The set of updates that each op is in; -1: none, or every replica does all of it.
        self.shard = self.updates.of_op
        self.is_sharded = how.is_sharded and bool(self.buckets.n) and bool(self.updates.n)
        if not self.is_sharded:
            self.shard = np.full_like(self.shard, -1)
        self.is_flat = self.is_sharded and how.shards == "flat"
        #: Which ops every replica does an equal part of.
        self.is_even = (self.shard >= 0) & self.is_flat
        self.is_by_parameter = self.is_sharded and how.shards == "parameters"
        #: Per set, the replica that does it, where only one does.
        self.owner = self.updates.owners(graph, self.k)
        #: Per op, the only replica that has it; -1: each has a copy.
        self.home = np.full(graph.n_ops, -1)
        if self.is_by_parameter:
            in_shard = self.shard >= 0
            self.home[in_shard] = self.owner[self.shard[in_shard]]
        self.gathered = self._gathered() if self.is_sharded else []
        self.norms, self.norm_bytes = (
            statistics(graph, self.roles.many)
            if how.is_synchronised
            else (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64))
        )
        self.collectives = self._collectives()

    # -- collectives, and the order of ops -------------------------------------------------------

    def _gathered(self) -> list[NDArray[np.int64]]:
        """Parameters that are gathered together: those whose gradients share a bucket."""
        of_bucket = self.buckets.bucket[self.buckets.gradient]
        reader = self.shard[self.graph.dst[self.buckets.edges]]
        first = np.full(self.updates.n, self.buckets.n)
        np.minimum.at(first, reader[reader >= 0], of_bucket[reader >= 0])
        group = first[self.updates.of_parameter]
        return [np.flatnonzero(group == b) for b in np.unique(group).tolist()]

    def _is_whole(self) -> NDArray[np.bool_]:
        """Per bucket, whether it is summed whole, as where an op that every replica does reads a
        gradient of it.
        """
        reader = self.graph.dst[self.buckets.edges]
        whole = np.full(self.buckets.n, self.how.is_summed_whole)
        whole[self.buckets.bucket[self.buckets.gradient[self.shard[reader] < 0]]] = True
        return whole

    def _collectives(self) -> list[_Collective]:
        buckets, writer = self.buckets, self.updates.writer
        sources, last = buckets.source[buckets.first[:-1]].tolist(), buckets.last_source.tolist()
        self.is_whole = self._is_whole()
        found = [
            _Collective(
                f"{'all_reduce' if whole else 'reduce_scatter'}/gradients{b}", last[b], False, s
            )
            for b, (whole, s) in enumerate(zip(self.is_whole.tolist(), sources, strict=True))
        ]
        for b, group in enumerate(self.gathered):
            ends = writer[group]
            label = f"all_gather/parameters{b}"
            found.append(_Collective(label, int(ends.max()), False, int(ends.min())))
        for b, op in enumerate(self.norms.tolist()):
            found.append(_Collective(f"all_reduce/statistics{b}", op, True, op))
        labels = dict.fromkeys(one.label for one in found)
        if not labels.keys().isdisjoint(self.graph.names):
            taken = next(label for label in labels if label in set(self.graph.names))
            raise InputError(f"op {taken!r}: a collective of replicas needs this name")
        return found

    # -- columns ---------------------------------------------------------------------------------

    def build(self) -> Program:
        graph, how, k = self.graph, self.how, self.k
        links = self._links()
        texts = CopyTexts(graph, [one.label for one in self.collectives], "r")
        columns = texts.columns()
        members = self._members()
        rows = np.array(how.rows, dtype=np.uint64)
        core, serves, replica, added = fast.expand(
            graph._core, columns["name"], k, self._copies(), members, links.columns()
        )
        texts.fill(serves, replica, np.where(added >= 0, added // k, -1))
        is_copy = added < 0
        part = np.append(rows / rows.sum(), 1.0)
        role = user_roles(graph)[serves]
        role[~is_copy] = COLLECTIVE
        shared = self.roles.many & ~only_gradients(graph, self.roles)
        share = part[np.where(is_copy & shared[serves], replica, k)]
        share[is_copy & self.is_even[serves]] = 1.0 / k
        return build(
            graph,
            core,
            columns,
            serves=serves,
            share=share,
            replica=replica,
            role=role,
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        notes = []
        if self.how.is_sharded and self.buckets.n and not self.is_sharded:
            notes.append(
                "the optimizer is not sharded: no colocation set says which of its ops belong to "
                "which parameter"
            )
        graph = self.graph
        alone = graph.updates & (self.shard < 0) & ~graph.view & ~graph.placeholder
        if self.is_sharded and alone.any():
            notes.append(
                f"{counted(int(alone.sum()), 'op')} of the optimizer belong to no single "
                "parameter: every replica does them"
            )
        if self.how.is_synchronised and not len(self.norms):
            notes.append(
                "no batch norm to synchronise: no op in training is of a kind known as one"
            )
        return tuple(notes)

    def _copies(self) -> fast._Copies:
        """Columns of :func:`loadmaster.fast.expand` per op and edge."""
        graph, roles, k = self.graph, self.roles, self.k
        ways = Ways(k)
        by_rows, evenly = ways.of_rows(self.how.rows), ways.of_rows((1,) * k)
        of_op = np.where(self.is_even, evenly, np.where(roles.many, by_rows, WHOLE))
        along = np.where(roles.many[graph.src] & ~roles.gradient, by_rows, WHOLE)
        stays = np.ones(graph.n_edges, dtype=bool)
        stays[self.buckets.edges] = False
        return {
            **ways.columns(),
            **homes_of_copies(self.home, k),
            **amounts(graph, roles, of_op),
            "stays": stays,
            "edge": np.where(self.is_even[graph.src], evenly, along),
        }

    def _members(self) -> fast._Added:
        """Columns of the members of collectives."""
        k, all_of_them = self.k, self.collectives

        def each(values: list[int]) -> NDArray[np.int64]:
            return np.repeat(np.array(values, dtype=np.int64), k)

        kinds = {kind: code for code, kind in enumerate(fast.COLLECTIVES)}
        nothing = np.zeros_like(self.made)
        return {
            "place": each([one.place for one in all_of_them]),
            "is_before": each([one.is_before for one in all_of_them]) > 0,
            "serves": each([one.serves for one in all_of_them]),
            "device": np.tile(np.arange(k), len(all_of_them)),
            "collective": each([*range(len(all_of_them))]),
            "kind": each([kinds[one.kind] for one in all_of_them]),
            "flops": nothing,
            "accessed": nothing,
            "output": self.made,
        }

    def _make(self, member: NDArray[np.int64], size: NDArray[np.uint64]) -> None:
        """More bytes that members make."""
        np.add.at(self.made, member - self.graph.n_ops * self.k, size)

    # -- edges -----------------------------------------------------------------------------------

    def _copy(self, ops: NDArray[Any], r: int) -> NDArray[np.int64]:
        """The ends of links at the copies of ops in replica ``r``."""
        return ops.astype(np.int64) * self.k + r

    def _member(self, collectives: NDArray[Any], r: int) -> NDArray[np.int64]:
        """The ends of links at the members of collectives in replica ``r``."""
        return (self.graph.n_ops + collectives.astype(np.int64)) * self.k + r

    def _links(self) -> Links:
        """The edges of collectives."""
        # Ids of replica r are the model's plus r strides; those of what members make come after.
        self.stride = int(self.roles.tensor.max(initial=-1)) + 1
        found = Links()
        #: Bytes that each member of a collective makes.
        self.made = np.zeros(len(self.collectives) * self.k, dtype=np.uint64)
        fresh = self._summed(found, self.k * self.stride)
        fresh = self._joined(found, fresh)
        self._normed(found, fresh)
        return found

    def _summed(self, found: Links, fresh: int) -> int:
        """Edges of gradients to members of their bucket, and from there to the optimizer."""
        graph, buckets = self.graph, self.buckets
        edges, gradient = buckets.edges, buckets.gradient
        pairs = np.stack([gradient, graph.src[edges]], axis=1)
        into, first = np.unique(pairs, axis=0, return_index=True)
        once = edges[first]
        flat = proportional(buckets.bytes, (1,) * self.k)
        whole = self.is_whole[buckets.bucket] | (not self.is_flat)
        for r in range(self.k):
            member = self._member(buckets.bucket, r)
            size = np.where(whole, buckets.bytes, flat[r])
            found.add(
                once,
                self._copy(into[:, 1], r),
                member[into[:, 0]],
                self.roles.tensor[once] + r * self.stride,
                graph.bytes[once],
            )
            here = (self.home[graph.dst[edges]] < 0) | (self.home[graph.dst[edges]] == r)
            read, at = gradient[here], edges[here]
            ids = fresh + r * len(size) + read
            found.add(at, member[read], self._copy(graph.dst[at], r), ids, size[read])
            read = np.unique(read)
            self._make(member[read], size[read])
        return fresh + self.k * len(buckets.tensor)

    def _joined(self, found: Links, fresh: int) -> int:
        """Edges from what wrote a parameter to the member that gathers it."""
        updates, n = self.updates, len(self.updates.parameter)
        size = self.graph.param_bytes[updates.parameter]
        flat = proportional(size, (1,) * self.k)
        for c, group in enumerate(self.gathered):
            for r in range(self.k):
                mine, bytes_ = group, flat[r, group]
                if self.is_by_parameter:
                    mine = group[self.owner[updates.of_parameter[group]] == r]
                    bytes_ = size[mine]
                place = np.full(len(mine), self.graph.n_edges)
                member = self._member(np.full(len(mine), self.buckets.n + c), r)
                writer = self._copy(updates.writer[mine], r)
                found.add(place, writer, member, fresh + r * n + mine, bytes_)
        return fresh + self.k * n

    def _normed(self, found: Links, fresh: int) -> None:
        """A batch norm waits for its statistics, and they for what it reads."""
        graph, n = self.graph, len(self.norms)
        number = np.full(graph.n_ops, -1)
        number[self.norms] = np.arange(n)
        entering = self.roles.many[graph.src] & (self.roles.tensor >= 0) & (number[graph.dst] >= 0)
        read = np.flatnonzero(entering)
        first = len(self.collectives) - n
        for r in range(self.k):
            nothing = np.zeros(len(read), dtype=np.uint64)
            into = self._member(first + number[graph.dst[read]], r)
            found.add(read, self._copy(graph.src[read], r), into, np.full(len(read), -1), nothing)
            place, ids = np.full(n, graph.n_edges), fresh + r * n + np.arange(n)
            member = self._member(first + np.arange(n), r)
            found.add(place, member, self._copy(self.norms, r), ids, self.norm_bytes)
            self._make(member, self.norm_bytes)
