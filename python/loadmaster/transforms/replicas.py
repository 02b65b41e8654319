"""Replicas as they are run today: weights on every device, gradients summed in buckets.

Every replica has all that the graph has. What depends on the batch does the replica's share of it.
Gradients are summed in *buckets* (Li et al., VLDB 2020: PyTorch's DistributedDataParallel): a
bucket has the gradients that are made one after another, up to so many bytes, and is summed as soon
as its last gradient is there, while the backward pass goes on.

With a sharded optimizer (ZeRO-1: Rajbhandari et al., SC 2020) a replica gets the sums of its shard
only, updates that, and gathers what the others have updated. An optimizer is sharded *flat*, every
tensor into equal parts, or by whole *parameters*: then a parameter's update runs on one replica.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.base.units import counted
from loadmaster.model.graph import SIZE_COLUMNS, OpGraph
from loadmaster.model.program import COLLECTIVE, Program, user_roles
from loadmaster.model.roles import Roles
from loadmaster.transforms.base import build, parse_output
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
    """

    rows: tuple[int, ...]
    is_sharded: bool
    shards: str
    bucket_bytes: int

    @property
    def k(self) -> int:
        """Number of replicas."""
        return len(self.rows)


def replicated(graph: OpGraph, how: Replication) -> Program:
    """The program of replicas. O(k (V + E)), and sorting.

    Ops keep their order; a bucket's collective comes after the last op that makes a gradient of it.
    The sizes in ``output`` are left out, dtypes stay.
    """
    return _Replicas(graph, how).build()


@dataclass(frozen=True)
class _Updates:
    """The updates of parameters that can be sharded.

    Attributes
    ----------
    of_op : int64 [n_ops]
        The parameter, counted from 0, whose update each op belongs to, optimizer slots included;
        -1: none, or of several parameters.
    parameter : int64 [n]
        The op that each parameter is.
    writer : int64 [n]
        The op that writes each parameter last.
    """

    of_op: NDArray[np.int64]
    parameter: NDArray[np.int64]
    writer: NDArray[np.int64]

    @classmethod
    def of(cls, graph: OpGraph) -> _Updates:
        """The optimizer's ops by the parameter that they share a colocation set with. O(V)."""
        writes = np.flatnonzero(graph.updates & (graph.alias_of >= 0) & ~graph.view)
        kinds = graph.kinds
        last = {
            int(graph.alias_of[op]): int(op)
            for op in writes.tolist()
            if kinds[int(graph.alias_of[op])] == "parameter" and graph.colocation[op]
        }
        parameter = np.array(sorted(last), dtype=np.int64)
        number = {graph.colocation[p]: i for i, p in enumerate(parameter.tolist())}
        belongs = graph.updates | np.fromiter(
            (kind == "buffer" for kind in kinds), bool, len(kinds)
        )
        labels = enumerate(zip(graph.colocation, belongs.tolist(), strict=True))
        of_op = np.full(graph.n_ops, -1, dtype=np.int64)
        for op, (label, may) in labels:
            if may and label:
                of_op[op] = number.get(label, -1)
        writer = np.array([last[p] for p in parameter.tolist()], dtype=np.int64)
        return cls(of_op, parameter, writer)


@dataclass(frozen=True)
class _Buckets:
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
    """

    tensor: NDArray[np.int64]
    source: NDArray[np.int64]
    bytes: NDArray[np.uint64]
    bucket: NDArray[np.int64]

    @classmethod
    def of(cls, graph: OpGraph, roles: Roles, most: int) -> _Buckets:
        """Fills buckets with gradients in the program's order. O(E log E)."""
        crossing = np.flatnonzero(
            roles.many[graph.src] & ~roles.many[graph.dst] & (roles.tensor >= 0)
        )
        tensor, first = np.unique(roles.tensor[crossing], return_index=True)
        source, size = graph.src[crossing[first]], graph.bytes[crossing[first]]
        order = np.argsort(source, kind="stable")
        tensor, source, size = tensor[order], source[order], size[order]
        bucket, filled, number = np.zeros(len(order), dtype=np.int64), 0, -1
        for i, bytes_ in enumerate(size.tolist()):
            if number < 0 or filled + bytes_ > most:
                number, filled = number + 1, 0
            filled += bytes_
            bucket[i] = number
        return cls(tensor, source, size, bucket)

    @property
    def n(self) -> int:
        """Number of buckets."""
        return int(self.bucket[-1]) + 1 if len(self.bucket) else 0

    @cached_property
    def first(self) -> NDArray[np.intp]:
        """The first gradient of each bucket, and one past the last of all."""
        return np.searchsorted(self.bucket, np.arange(self.n + 1))


class _Replicas:
    """The columns of the replicated graph.

    A copy is an op of the user's graph in a replica. A member is a replica's op of a collective.
    """

    def __init__(self, graph: OpGraph, how: Replication) -> None:
        self.graph, self.how, self.k = graph, how, how.k
        self.roles = Roles.of(graph)
        self.buckets = _Buckets.of(graph, self.roles, how.bucket_bytes)
        self.updates = _Updates.of(graph)
        is_sharded = how.is_sharded and bool(self.buckets.n) and bool(len(self.updates.parameter))
        self.is_flat = is_sharded and how.shards == "flat"
        self.is_by_parameter = is_sharded and how.shards == "parameters"
        #: Per parameter, the replica that updates it, where only one does.
        self.owner = self._owners()
        self._number()

    # -- which copies there are, and in which order ----------------------------------------------

    def _owners(self) -> NDArray[np.int64]:
        """Each parameter's update on the replica with the fewest bytes so far, largest first."""
        size = self.graph.param_bytes[self.updates.parameter].astype(np.float64)
        owner, load = np.zeros(len(size), dtype=np.int64), np.zeros(self.k)
        for p in np.argsort(-size, kind="stable").tolist():
            owner[p] = load.argmin()
            load[owner[p]] += size[p]
        return owner

    def _number(self) -> None:
        """Numbers copies and members; ``at`` is the number of each op's copy in each replica."""
        graph, k, buckets = self.graph, self.k, self.buckets
        exists = np.ones((graph.n_ops, k), dtype=bool)
        if self.is_by_parameter:
            sharded = np.flatnonzero(self.updates.of_op >= 0)
            owner = self.owner[self.updates.of_op[sharded]]
            exists[sharded] = np.arange(k)[None, :] == owner[:, None]
        origin, replica = np.nonzero(exists)
        # Members come after the last op that they wait for.
        after = buckets.source[buckets.first[1:] - 1] if buckets.n else np.empty(0, dtype=np.int64)
        if self.is_flat or self.is_by_parameter:
            self.gathered = self._gathered()
            last = [int(self.updates.writer[g].max()) for g in self.gathered]
            after = np.concatenate([after, np.array(last, dtype=np.int64)])
        else:
            self.gathered = []
        n_collectives = len(after)
        member_of = np.repeat(np.arange(n_collectives), k)
        member_replica = np.tile(np.arange(k), n_collectives)
        place = np.concatenate([origin, after[member_of]])
        is_member = np.concatenate([np.full(len(origin), -1), member_of])
        order = np.lexsort((np.concatenate([replica, member_replica]), is_member, place))
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.arange(len(order))
        self.exists = exists
        self.at = np.full((graph.n_ops, k), -1, dtype=np.int64)
        self.at[origin, replica] = number[: len(origin)]
        self.member = number[len(origin) :].reshape(n_collectives, k)
        self.n = len(order)
        #: Per new op: the op of the graph or -1, the collective or -1, the replica.
        self.origin = np.concatenate([origin, np.full(len(member_of), -1)])[order]
        self.collective = is_member[order]
        self.replica = np.concatenate([replica, member_replica])[order]

    def _gathered(self) -> list[NDArray[np.int64]]:
        """Parameters that are gathered together: those whose gradients share a bucket."""
        of_gradient = self.updates.of_op[self._reader_of_gradient()]
        groups = [
            np.unique(of_gradient[self.buckets.first[b] : self.buckets.first[b + 1]])
            for b in range(self.buckets.n)
        ]
        seen = np.zeros(len(self.updates.parameter), dtype=bool)
        found = []
        for group in groups:
            fresh = group[(group >= 0) & ~seen[group]]
            seen[fresh] = True
            found.append(fresh)
        found.append(np.flatnonzero(~seen))
        return [group for group in found if len(group)]

    def _reader_of_gradient(self) -> NDArray[np.int64]:
        """Per gradient, the first op of the optimizer that reads it."""
        many, graph, tensor = self.roles.many, self.graph, self.roles.tensor
        crossing = np.flatnonzero(many[graph.src] & ~many[graph.dst] & (tensor >= 0))
        ids, first = np.unique(tensor[crossing], return_index=True)
        return graph.dst[crossing[first]][np.searchsorted(ids, self.buckets.tensor)]

    # -- columns ---------------------------------------------------------------------------------

    def build(self) -> Program:
        graph, how = self.graph, self.how
        copies = self.origin >= 0
        of = np.where(copies, self.origin, 0)
        rows = np.array(how.rows, dtype=np.float64)
        part = rows / rows.sum()
        shared = self.roles.many & ~only_gradients(graph, self.roles)
        share = np.where(copies & shared[of], part[self.replica], 1.0)
        if self.is_flat:
            share[copies & (self.updates.of_op[of] >= 0)] = 1.0 / self.k
        edges, sizes = self._edges()
        serves = np.where(copies, self.origin, self._served()[self.collective])
        role = user_roles(graph)[serves]
        role[~copies] = COLLECTIVE
        return build(
            graph,
            self._texts(of, copies) | self._sizes(of, copies, sizes),
            edges,
            serves=serves.astype(np.int32),
            share=share,
            replica=self.replica.astype(np.int32),
            role=role,
            notes=self._notes(),
        )

    def _served(self) -> NDArray[np.int64]:
        """Per collective, the op that it serves: the first whose result it takes."""
        reduced = self.buckets.source[self.buckets.first[:-1]]
        gathered = [self.updates.writer[group].min() for group in self.gathered]
        return np.concatenate([reduced, np.array(gathered, dtype=np.int64), [0]]).astype(np.int64)

    def _notes(self) -> tuple[str, ...]:
        rows, notes = self.how.rows, []
        if len(set(rows)) > 1:
            counts = ", ".join(map(str, rows))
            notes.append(
                f"replicas have {counts} samples: weight each one's loss by its share of the "
                "batch, so that the sum of gradients is that of the whole batch"
            )
        if self.how.is_sharded and not (self.is_flat or self.is_by_parameter) and self.buckets.n:
            notes.append(
                "the optimizer is not sharded: no colocation set says which of its ops belong to "
                "which parameter"
            )
        alone = np.flatnonzero(self.graph.updates & (self.updates.of_op < 0) & ~self.graph.view)
        if self.how.is_sharded and len(alone) and not notes:
            notes.append(
                f"{counted(len(alone), 'op')} of the optimizer belong to no single parameter: "
                "every replica does them"
            )
        return tuple(notes)

    def _texts(self, of: NDArray[np.int64], copies: NDArray[np.bool_]) -> dict[str, Any]:
        graph, k = self.graph, self.k
        replica = self.replica.tolist()
        names = [
            f"{graph.names[i]}@r{r}" if is_copy else ""
            for i, r, is_copy in zip(of.tolist(), replica, copies.tolist(), strict=True)
        ]
        labels = [""] * self.n
        kinds = ["reduce_scatter" if self.is_flat or self.is_by_parameter else "all_reduce"]
        called = [f"{kinds[0]}/gradients{b}" for b in range(self.buckets.n)]
        called += [f"all_gather/parameters{b}" for b in range(len(self.gathered))]
        taken = set(graph.names)
        for c, label in enumerate(called):
            for r in range(k):
                at = int(self.member[c, r])
                names[at], labels[at] = f"{label}@r{r}", label
                if names[at] in taken:
                    raise InputError(f"op {names[at]!r}: the name is wanted for a collective")

        def copied(values: list[str]) -> list[str]:
            return [
                values[i] if c else "" for i, c in zip(of.tolist(), copies.tolist(), strict=True)
            ]

        of_sum = self._served().tolist()
        dtypes = {text: parse_output(text)[0][0] if text else "" for text in set(graph.outputs)}
        texts = {
            "name": names,
            "kind": copied(graph.kinds),
            "module": copied(graph.modules),
            "phase": copied(graph.phases),
            "colocation": [
                f"{c}@r{r}" if c else ""
                for c, r in zip(copied(graph.colocation), replica, strict=True)
            ],
            "output": copied([dtypes[text] for text in graph.outputs]),
            "device_types": copied(graph.device_types),
            "collective": labels,
        }
        for c, label in enumerate(called):
            for at in self.member[c].tolist():
                texts["kind"][at] = label.partition("/")[0]
                texts["phase"][at] = graph.phases[of_sum[c]]
                texts["output"][at] = dtypes[graph.outputs[of_sum[c]]]
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
        in_shard = self.updates.of_op >= 0
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
        owner = np.where(alias >= 0, self.at[np.maximum(alias, 0), self.replica], -1)
        columns["alias_of"] = np.where(copies, owner, -1)
        columns["view"] = np.where(copies, graph.view[of], False).astype(np.int64)
        return columns

    # -- edges -----------------------------------------------------------------------------------

    def _edges(self) -> tuple[dict[str, NDArray[Any]], NDArray[np.uint64]]:
        """The edges, and the bytes that each op makes as a member of a collective."""
        graph, k, many, buckets = self.graph, self.k, self.roles.many, self.buckets
        tensor = self.roles.tensor
        data = tensor >= 0
        # Ids of replica r are the model's plus r strides; those of what members make come after.
        stride = int(tensor.max(initial=-1)) + 1
        crossing = many[graph.src] & ~many[graph.dst] & data
        parts = self._parts()
        rows: tuple[list[Any], ...] = ([], [], [], [], [])

        def add(place: Any, src: Any, dst: Any, ids: Any, sizes: Any) -> None:
            for column, values in zip(rows, (place, src, dst, ids, sizes), strict=True):
                column.append(values)

        for r in range(k):
            here = np.flatnonzero(self.exists[graph.dst, r] & ~crossing)
            src = graph.src[here]
            # An op that is not in this replica hands its result over from its own.
            home = np.where(self.exists[src, r], r, self.exists[src].argmax(axis=1))
            ids = np.where(data[here], tensor[here] + home * stride, -1)
            dst = self.at[graph.dst[here], r]
            add(here, self.at[src, home], dst, ids, np.where(data[here], parts[home, here], 0))
        made = np.zeros(self.n, dtype=np.uint64)
        which = np.flatnonzero(crossing)
        by_id = np.argsort(buckets.tensor, kind="stable")
        gradient = by_id[np.searchsorted(buckets.tensor[by_id], tensor[which])]
        pairs = np.stack([gradient, graph.src[which]], axis=1)
        into, first = np.unique(pairs, axis=0, return_index=True)
        fresh = k * stride
        flat = proportional(buckets.bytes, (1,) * k)
        for r in range(k):
            member = self.member[buckets.bucket, r]
            size = flat[r] if self.is_flat else buckets.bytes
            ids = tensor[which[first]] + r * stride
            add(
                which[first],
                self.at[into[:, 1], r],
                member[into[:, 0]],
                ids,
                graph.bytes[which[first]],
            )
            here = np.flatnonzero(self.exists[graph.dst[which], r])
            read = gradient[here]
            dst = self.at[graph.dst[which[here]], r]
            add(which[here], member[read], dst, fresh + r * len(buckets.tensor) + read, size[read])
            np.add.at(made, member[np.unique(read)], size[np.unique(read)])
        self._gather(add, fresh + k * len(buckets.tensor))
        place, src, dst, ids, sizes = (
            np.concatenate([np.asarray(value) for value in column]) for column in rows
        )
        # An op tells its arguments apart by the order of its edges.
        order = np.argsort(place, kind="stable")
        _, compact = np.unique(ids, return_inverse=True)
        compact = np.where(ids >= 0, compact - int((ids < 0).any()), -1)
        columns = {"src": src, "dst": dst, "tensor": compact, "bytes": sizes.astype(np.uint64)}
        return {name: column[order] for name, column in columns.items()}, made

    def _parts(self) -> NDArray[np.uint64]:
        """Bytes of each edge's tensor in each replica, uint64 [k, n_edges]."""
        graph, from_many = self.graph, self.roles.many[self.graph.src]
        goes_along = from_many & ~self.roles.gradient
        parts = np.where(goes_along, proportional(graph.bytes, self.how.rows), graph.bytes)
        if self.is_flat:
            in_shard = self.updates.of_op[graph.src] >= 0
            parts = np.where(in_shard, proportional(graph.bytes, (1,) * self.k), parts)
        return parts

    def _gather(self, add: Any, fresh: int) -> None:
        """Edges from what wrote a parameter to the member that gathers it."""
        place, size = self.graph.n_edges, self.graph.param_bytes[self.updates.parameter]
        flat = proportional(size, (1,) * self.k)
        for c, group in enumerate(self.gathered):
            for r in range(self.k):
                mine = group[self.owner[group] == r] if self.is_by_parameter else group
                bytes_ = size[mine] if self.is_by_parameter else flat[r, mine]
                member = np.full(len(mine), self.member[self.buckets.n + c, r])
                ids = fresh + mine * self.k + r
                add(
                    np.full(len(mine), place),
                    self.at[self.updates.writer[mine], r],
                    member,
                    ids,
                    bytes_,
                )
