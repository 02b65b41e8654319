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

from loadmaster.base.errors import InputError
from loadmaster.base.units import counted
from loadmaster.model.graph import SIZE_COLUMNS, OpGraph
from loadmaster.model.program import COLLECTIVE, Program, user_roles
from loadmaster.transforms.base import build, parse_output
from loadmaster.transforms.batch_norm import statistics
from loadmaster.transforms.gradients import Buckets, Updates
from loadmaster.transforms.shares import only_gradients, own_weights, proportional, whole_bytes

#: Bytes of gradients that one collective sums: the default of DistributedDataParallel, 25 MB.
BUCKET_BYTES = 25_000_000


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
    """

    rows: tuple[int, ...]
    is_sharded: bool
    shards: str
    bucket_bytes: int
    is_synchronised: bool

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
    """The columns of the replicated graph.

    A copy is an op of the user's graph in a replica. A member is a replica's op of a collective:
    collectives of buckets are counted first, then those that gather, then those of batch norms.
    """

    def __init__(self, graph: OpGraph, how: Replication) -> None:
        self.graph, self.how, self.k = graph, how, how.k
        self.roles = graph.roles
        self.buckets = Buckets.of(graph, self.roles, how.bucket_bytes)
        self.updates = Updates.of(graph, self.roles.many)
        #: The set of updates that each op is in; -1: none, or every replica does all of it.
        self.shard = self.updates.of_op
        self.is_sharded = how.is_sharded and bool(self.buckets.n) and bool(self.updates.n)
        if not self.is_sharded:
            self.shard = np.full_like(self.shard, -1)
        self.is_flat = self.is_sharded and how.shards == "flat"
        self.is_by_parameter = self.is_sharded and how.shards == "parameters"
        #: Per set, the replica that does it, where only one does.
        self.owner = self.updates.owners(graph, self.k)
        self.gathered = self._gathered() if self.is_sharded else []
        self.norms, self.norm_bytes = (
            statistics(graph, self.roles.many)
            if how.is_synchronised
            else (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64))
        )
        self.collectives = self._collectives()
        self._number()

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
        """Per bucket, whether an op that every replica does reads a gradient of it."""
        reader = self.graph.dst[self.buckets.edges]
        whole = np.zeros(self.buckets.n, dtype=bool)
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
        taken = set(self.graph.names)
        for one in found:
            if one.label in taken:
                raise InputError(f"op {one.label!r}: a collective of replicas needs this name")
        return found

    def _number(self) -> None:
        """Numbers copies and members; ``at`` is the number of each op's copy in each replica."""
        graph, k, n = self.graph, self.k, len(self.collectives)
        self.exists = np.ones((graph.n_ops, k), dtype=bool)
        if self.is_by_parameter:
            sharded = np.flatnonzero(self.shard >= 0)
            owner = self.owner[self.shard[sharded]]
            self.exists[sharded] = np.arange(k)[None, :] == owner[:, None]
        origin, in_replica = np.nonzero(self.exists)
        copies = len(origin)
        collective = np.concatenate([np.full(copies, -1), np.repeat(np.arange(n), k)])
        replica = np.concatenate([in_replica, np.tile(np.arange(k), n)])
        places = np.array([one.place for one in self.collectives], dtype=np.int64)
        place = np.concatenate([origin, np.repeat(places, k)])
        # Of the same place: members before an op, the op's copies, members after it.
        after = np.where(np.array([one.is_before for one in self.collectives], bool), -1, 1)
        side = np.concatenate([np.zeros(copies, dtype=np.int64), np.repeat(after, k)])
        order = np.lexsort((replica, collective, side, place))
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.arange(len(order))
        self.at = np.full((graph.n_ops, k), -1, dtype=np.int64)
        self.at[origin, in_replica] = number[:copies]
        self.member = number[copies:].reshape(n, k)
        self.n = len(order)
        #: Per new op: the op of the graph or -1, the collective or -1, the replica.
        self.origin = np.concatenate([origin, np.full(n * k, -1)])[order]
        self.collective, self.replica = collective[order], replica[order]

    # -- columns ---------------------------------------------------------------------------------

    def build(self) -> Program:
        graph, how = self.graph, self.how
        copies = self.origin >= 0
        of = np.where(copies, self.origin, 0)
        rows = np.array(how.rows, dtype=np.float64)
        shared = self.roles.many & ~only_gradients(graph, self.roles)
        share = np.where(copies & shared[of], (rows / rows.sum())[self.replica], 1.0)
        if self.is_flat:
            share[copies & (self.shard[of] >= 0)] = 1.0 / self.k
        edges, made = self._edges()
        served = np.array([*(one.serves for one in self.collectives), 0], dtype=np.int64)
        serves = np.where(copies, self.origin, served[self.collective])
        role = user_roles(graph)[serves]
        role[~copies] = COLLECTIVE
        return build(
            graph,
            self._texts(of, copies) | self._sizes(of, copies, made),
            edges,
            serves=serves.astype(np.int32),
            share=share,
            replica=self.replica.astype(np.int32),
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

    def _texts(self, of: NDArray[np.int64], copies: NDArray[np.bool_]) -> dict[str, Any]:
        graph, replica = self.graph, self.replica.tolist()
        whose = [i if c else -1 for i, c in zip(of.tolist(), copies.tolist(), strict=True)]

        def copied(values: list[str]) -> list[str]:
            return [values[i] if i >= 0 else "" for i in whose]

        dtypes = {text: parse_output(text)[0][0] if text else "" for text in set(graph.outputs)}
        texts = {key: copied(values) for key, values in graph.texts.items()} | {
            "name": [f"{name}@r{r}" for name, r in zip(copied(graph.names), replica, strict=True)],
            "colocation": [
                f"{c}@r{r}" if c else ""
                for c, r in zip(copied(graph.colocation), replica, strict=True)
            ],
            "output": copied([dtypes[text] for text in graph.outputs]),
        }
        for one, members in zip(self.collectives, self.member.tolist(), strict=True):
            for r, at in enumerate(members):
                texts["name"][at] = f"{one.label}@r{r}"
                texts["collective"][at] = one.label
                texts["kind"][at] = one.kind
                texts["phase"][at] = graph.phases[one.serves]
                texts["output"][at] = dtypes[graph.outputs[one.serves]]
        return texts

    def _sizes(
        self, of: NDArray[np.int64], copies: NDArray[np.bool_], made: NDArray[np.uint64]
    ) -> dict[str, Any]:
        """Columns of numbers; ``made``: bytes that each member allocates."""
        graph, rows, many = self.graph, self.how.rows, self.roles.many
        own = own_weights(graph)
        whole_accessed, whole_output = whole_bytes(graph, self.roles, own)
        nothing = np.zeros_like(own)
        whole = {"bytes_accessed": whole_accessed, "output_bytes": whole_output, "param_bytes": own}
        in_shard = self.shard >= 0
        columns: dict[str, Any] = {}
        for name in SIZE_COLUMNS:
            total, fixed = getattr(graph, name), whole.get(name, nothing)
            parts = proportional(total - fixed, rows) + fixed
            column = np.where(many[of], parts[self.replica, of], total[of])
            if self.is_flat:
                even = proportional(total, (1,) * self.k)
                column = np.where(in_shard[of], even[self.replica, of], column)
            columns[name] = np.where(copies, column, np.uint64(0))
        columns["output_bytes"] += made
        alias = graph.alias_of[of]
        owner = np.where(alias >= 0, self.at[alias, self.replica], -1)
        columns["alias_of"] = np.where(copies, owner, -1)
        columns["view"] = np.where(copies, graph.view[of], False).astype(np.int64)
        return columns

    # -- edges -----------------------------------------------------------------------------------

    def _edges(self) -> tuple[dict[str, NDArray[Any]], NDArray[np.uint64]]:
        """The edges, and the bytes that each op makes as a member of a collective."""
        found = _Edges(self.n)
        fresh = self._copied(found)
        fresh = self._summed(found, fresh)
        fresh = self._joined(found, fresh)
        self._normed(found, fresh)
        return found.columns(), found.made

    def _copied(self, found: _Edges) -> int:
        """Edges of the graph in each replica, but those of gradients; the first id that is free."""
        graph, tensor = self.graph, self.roles.tensor
        data = tensor >= 0
        # Ids of replica r are the model's plus r strides; those of what members make come after.
        stride = int(tensor.max(initial=-1)) + 1
        stays = np.ones(graph.n_edges, dtype=bool)
        stays[self.buckets.edges] = False
        goes_along = self.roles.many[graph.src] & ~self.roles.gradient
        parts = np.where(goes_along, proportional(graph.bytes, self.how.rows), graph.bytes)
        if self.is_flat:
            even = proportional(graph.bytes, (1,) * self.k)
            parts = np.where(self.shard[graph.src] >= 0, even, parts)
        for r in range(self.k):
            here = np.flatnonzero(self.exists[graph.dst, r] & stays)
            src = graph.src[here]
            # An op that is not in this replica hands its result over from its own.
            home = np.where(self.exists[src, r], r, self.exists[src].argmax(axis=1))
            ids = np.where(data[here], tensor[here] + home * stride, -1)
            size = np.where(data[here], parts[home, here], np.uint64(0))
            found.add(here, self.at[src, home], self.at[graph.dst[here], r], ids, size)
        self.stride = stride
        return self.k * stride

    def _summed(self, found: _Edges, fresh: int) -> int:
        """Edges of gradients to members of their bucket, and from there to the optimizer."""
        graph, buckets = self.graph, self.buckets
        edges, gradient = buckets.edges, buckets.gradient
        pairs = np.stack([gradient, graph.src[edges]], axis=1)
        into, first = np.unique(pairs, axis=0, return_index=True)
        once = edges[first]
        flat = proportional(buckets.bytes, (1,) * self.k)
        whole = self.is_whole[buckets.bucket] | (not self.is_flat)
        for r in range(self.k):
            member = self.member[buckets.bucket, r]
            size = np.where(whole, buckets.bytes, flat[r])
            found.add(
                once,
                self.at[into[:, 1], r],
                member[into[:, 0]],
                self.roles.tensor[once] + r * self.stride,
                graph.bytes[once],
            )
            here = self.exists[graph.dst[edges], r]
            read, at = gradient[here], edges[here]
            ids = fresh + r * len(size) + read
            found.add(at, member[read], self.at[graph.dst[at], r], ids, size[read])
            read = np.unique(read)
            np.add.at(found.made, member[read], size[read])
        return fresh + self.k * len(buckets.tensor)

    def _joined(self, found: _Edges, fresh: int) -> int:
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
                member = np.full(len(mine), self.member[self.buckets.n + c, r])
                found.add(
                    place, self.at[updates.writer[mine], r], member, fresh + r * n + mine, bytes_
                )
        return fresh + self.k * n

    def _normed(self, found: _Edges, fresh: int) -> None:
        """A batch norm waits for its statistics, and they for what it reads."""
        graph, n = self.graph, len(self.norms)
        number = np.full(graph.n_ops, -1)
        number[self.norms] = np.arange(n)
        entering = self.roles.many[graph.src] & (self.roles.tensor >= 0) & (number[graph.dst] >= 0)
        read = np.flatnonzero(entering)
        for r in range(self.k):
            member = self.member[len(self.collectives) - n :, r]
            nothing = np.zeros(len(read), dtype=np.uint64)
            into = member[number[graph.dst[read]]]
            found.add(read, self.at[graph.src[read], r], into, np.full(len(read), -1), nothing)
            place, ids = np.full(n, graph.n_edges), fresh + r * n + np.arange(n)
            found.add(place, member, self.at[self.norms, r], ids, self.norm_bytes)
            found.made[member] += self.norm_bytes


class _Edges:
    """Edges as they are found; ``made``: bytes that each op makes as a member of a collective."""

    def __init__(self, n_ops: int) -> None:
        self.made = np.zeros(n_ops, dtype=np.uint64)
        self._rows: list[tuple[NDArray[Any], ...]] = []

    def add(self, *row: NDArray[Any]) -> None:
        """The place of each edge among the model's, its ends, its tensor and bytes."""
        self._rows.append(row)

    def columns(self) -> dict[str, NDArray[Any]]:
        """In the order of the model's, by which an op tells its arguments apart."""
        place, src, dst, ids, sizes = map(np.concatenate, zip(*self._rows, strict=True))
        order = np.argsort(place, kind="stable")
        _, compact = np.unique(ids, return_inverse=True)
        compact = np.where(ids >= 0, compact - int((ids < 0).any()), -1)
        columns = {"src": src, "dst": dst, "tensor": compact, "bytes": sizes.astype(np.uint64)}
        return {name: column[order] for name, column in columns.items()}
