"""Replicas with parameter servers: FastT (Yi et al., Middleware 2020), section 5.2.

OS-DPOS starts from this graph. The model is replicated k times, and each replica works on 1/k of
the batch. A parameter has one home; every replica reads the parameter there, which stands for the
paper's broadcast. An op that the transform adds sums the replicas' gradients of a parameter. The
optimizer runs once per parameter.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.graph import OpGraph
from loadmaster.model.program import COLLECTIVE, Program, user_roles
from loadmaster.model.roles import Roles
from loadmaster.transforms.base import (
    AGGREGATE,
    Shape,
    build,
    elements,
    format_output,
    parse_output,
)
from loadmaster.transforms.shares import (
    batch_size,
    only_gradients,
    own_weights,
    proportional,
    whole_bytes,
)


def with_parameter_server(graph: OpGraph, k: int, rows: tuple[int, ...]) -> Program:
    """``k`` replicas, the first on ``rows[0]`` samples, and one home per parameter.

    Notes
    -----
    *What is replicated.* Inputs, and all ops that depend on them or on nothing at all. What follows
    from parameters, buffers and constants alone is computed once, as is what writes them in place
    and the optimizer (``phase`` "o"). A view goes with what it shows. A graph without inputs is
    replicated but for its parameters and optimizer.

    *What a replica costs.* FLOPs, workspace and the bytes that depend on the batch are divided in
    whole numbers that add up to the original. Weights that are read and weight gradients that are
    written are whole in each replica, and ``bytes_accessed`` counts them so. A measured time is
    multiplied by the replica's share; an op that only adds up weight gradients keeps it whole.

    *Weight gradients* are what the optimizer, or whatever updates a parameter, reads from the
    replicas; and, backwards through ops without FLOPs, tensors as large that are read for nothing
    else (sums of gradients over time steps or tied weights).

    *Aggregation* of k tensors of b bytes: k - 1 FLOPs per element and (k + 1) b bytes accessed. It
    is no part of the model's own FLOPs, whose sum does not change; parameter bytes do not either.

    *Weights that an op holds itself*, not a parameter of their own, are whole in each replica: no
    edge could bring them there. But for these copies, parameter bytes add up to the model's.

    State written by replicated ops (batch norm's running statistics) is written by replica 0, which
    stays with it; as in TensorFlow's own data parallelism, other replicas only read it.

    ``meta["data_parallel"]`` has ``replicas``, ``batch`` (None: unknown) and what the transform
    adds: ``aggregation_flops``, ``aggregation_bytes`` (accessed) and ``copied_param_bytes``. The
    sum of what the replicas of ``name`` hand to the optimizer is ``name@aggregate``.

    O(V + E).
    """
    return _Replicas(graph, k, rows, graph.roles).build()


class _Replicas:
    """The columns of the replicated graph.

    Ops keep their order. A replicated op takes ``k`` places, another op takes one. The sums of the
    tensors that replicas hand to ops that are not replicated come right after the replicas.
    """

    def __init__(self, graph: OpGraph, k: int, rows: tuple[int, ...], roles: Roles) -> None:
        self.graph, self.k, self.rows, self.roles = graph, k, rows, roles
        self.batch = batch_size(graph)
        self.own_weights = own_weights(graph)
        many, tensor = roles.many, roles.tensor
        from_many, to_many = many[graph.src], many[graph.dst]
        crossing = np.flatnonzero(from_many & ~to_many & (tensor >= 0))
        # One sum per tensor, placed after the op that makes the tensor.
        self.summed, first, self.sum_of = np.unique(
            tensor[crossing], return_index=True, return_inverse=True
        )
        self.crossing = crossing
        self.sum_source = graph.src[crossing[first]]
        self.sum_bytes = graph.bytes[crossing[first]]
        self.copies = np.where(many, k, 1)
        sums = np.bincount(self.sum_source, minlength=graph.n_ops)
        places = self.copies + sums
        self.start = np.concatenate([[0], np.cumsum(places)[:-1]])
        self.n = int(places.sum())
        by_source = np.argsort(self.sum_source, kind="stable")
        within = np.arange(len(by_source)) - np.searchsorted(
            self.sum_source[by_source], self.sum_source[by_source]
        )
        self.sum_at = np.empty(len(by_source), dtype=np.int64)
        source = self.sum_source[by_source]
        self.sum_at[by_source] = self.start[source] + self.copies[source] + within
        self.sum_rank = np.empty(len(by_source), dtype=np.int64)
        self.sum_rank[by_source] = within

    def build(self) -> Program:
        graph, k, n = self.graph, self.k, self.n
        origin = np.full(n, -1, dtype=np.int32)
        replica = np.full(n, -1, dtype=np.int64)
        copy = np.repeat(np.arange(graph.n_ops), self.copies)
        number = np.arange(len(copy)) - np.repeat(np.cumsum(self.copies) - self.copies, self.copies)
        at = self.start[copy] + number
        origin[at] = copy
        replica[at] = np.where(self.roles.many[copy], number, -1)
        self.origin, self.replica = origin, replica

        whole_accessed, whole_output = whole_bytes(graph, self.roles, self.own_weights)
        share = np.ones(n)
        divided = (origin >= 0) & (replica >= 0) & ~only_gradients(graph, self.roles)[origin]
        share[divided] = np.array(self.rows)[replica[divided]] / sum(self.rows)
        ops = self._texts() | {
            "flops": self._divided(graph.flops, np.zeros_like(graph.flops)),
            "bytes_accessed": self._divided(graph.bytes_accessed, whole_accessed),
            "output_bytes": self._divided(graph.output_bytes, whole_output),
            "param_bytes": self._divided(graph.param_bytes, self.own_weights),
            "workspace": self._divided(graph.workspace, np.zeros_like(graph.workspace)),
            "view": np.where(origin >= 0, graph.view[origin], False).astype(np.int64),
            "alias_of": self._aliases(),
        }
        flops, accessed = self._aggregation(ops)
        summary = {
            "replicas": k,
            "batch": self.batch,
            "aggregation_flops": flops,
            "aggregation_bytes": accessed,
            "copied_param_bytes": (k - 1) * int(self.own_weights[self.roles.many].sum()),
        }
        return build(
            graph,
            ops,
            self._edges(),
            meta={"data_parallel": summary},
            share=share,
            replica=replica.astype(np.int32),
            **self._served(),
        )

    def _served(self) -> dict[str, NDArray[Any]]:
        """Columns ``serves`` and ``role``. A sum serves the op whose tensors it sums."""
        serves = self.origin.copy()
        serves[self.sum_at] = self.sum_source
        role = user_roles(self.graph)[serves]
        role[self.sum_at] = COLLECTIVE
        return {"serves": serves, "role": role}

    # -- ops -----------------------------------------------------------------------------------

    def _aliases(self) -> NDArray[np.int64]:
        """The ``alias_of`` column: an owner that is replicated is the one in the same replica."""
        graph, origin = self.graph, self.origin
        of = np.where(origin >= 0, graph.alias_of[origin], -1)
        inside = np.where(self.roles.many[of], np.maximum(self.replica, 0), 0)
        return np.where(of >= 0, self.start[of] + inside, -1)

    def _texts(self) -> dict[str, list[str]]:
        graph, replica = self.graph, self.replica.tolist()
        origin = self.origin.tolist()

        def column(values: list[str]) -> list[str]:
            return [values[i] if i >= 0 else "" for i in origin]

        names = [
            "" if i < 0 else graph.names[i] if r < 0 else f"{graph.names[i]}@r{r}"
            for i, r in zip(origin, replica, strict=True)
        ]
        # A colocation set that has an op which is not replicated stays with replica 0.
        shared = {c for c, m in zip(graph.colocation, self.roles.many, strict=True) if c and not m}
        colocation = [
            c if not c or r < 0 or (r == 0 and c in shared) else f"{c}@r{r}"
            for c, r in zip(column(graph.colocation), replica, strict=True)
        ]
        shapes = self._shapes()
        texts = {key: column(values) for key, values in graph.texts.items()} | {
            "name": names,
            "colocation": colocation,
            "output": [
                "" if i < 0 else graph.outputs[i] if r < 0 else shapes[i]
                for i, r in zip(origin, replica, strict=True)
            ],
        }
        for at, source, rank in zip(
            self.sum_at.tolist(), self.sum_source.tolist(), self.sum_rank.tolist(), strict=True
        ):
            label = f"{graph.names[source]}@{AGGREGATE}"
            texts["name"][at] = label if rank == 0 else f"{label}{rank}"
            texts["kind"][at] = AGGREGATE
            for key in ("module", "phase", "output", "device_types"):
                texts[key][at] = graph.texts[key][source]
        return texts

    def _aggregation(self, ops: dict[str, Any]) -> tuple[int, int]:
        """Fills in what the sums cost; the total FLOPs and bytes accessed."""
        dtypes = [parse_output(self.graph.outputs[i])[0][0] for i in self.sum_source.tolist()]
        added = [
            (self.k - 1) * elements(size, dtype)
            for size, dtype in zip(self.sum_bytes.tolist(), dtypes, strict=True)
        ]
        accessed = self.sum_bytes * np.uint64(self.k + 1)
        ops["flops"][self.sum_at] = np.array(added, dtype=np.uint64)
        ops["bytes_accessed"][self.sum_at] = accessed
        ops["output_bytes"][self.sum_at] = self.sum_bytes
        return sum(added), int(accessed.sum())

    def _divided(self, total: NDArray[np.uint64], whole: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """A column in which every replica has the ``whole`` bytes and a share of the others."""
        parts = proportional(total - whole, self.rows) + whole
        column = np.where(self.replica >= 0, parts[self.replica, self.origin], total[self.origin])
        column[self.origin < 0] = 0
        return column

    # -- shapes --------------------------------------------------------------------------------

    def _shapes(self) -> list[str]:
        """The ``output`` of a replica of each op: the batch's axis divided by k."""
        graph, batch = self.graph, self.batch
        out: dict[int, dict[int, bool]] = defaultdict(dict)
        for s, t, g in zip(
            graph.src.tolist(),
            self.roles.tensor.tolist(),
            self.roles.gradient.tolist(),
            strict=True,
        ):
            if t >= 0:
                out[s][t] = g
        flipped = self._transposed()
        cache: dict[tuple[str, tuple[bool, ...], int], str] = {}
        texts = []
        for i, text in enumerate(graph.outputs):
            flags = tuple(g for _, g in sorted(out[i].items())) if i in out else ()
            key = (text, flags, flipped[i])
            if key not in cache:
                cache[key] = _share_of(text, flags, batch, self.k, flipped[i])
            texts.append(cache[key])
        return texts

    def _transposed(self) -> list[int]:
        """The batch's axis of the output of 2-d transposes (``aten.t``), -1 for other ops.

        Both axes may be as long as the batch, so sizes alone do not tell which one it is.
        """
        graph = self.graph
        source = dict(zip(graph.dst.tolist(), graph.src.tolist(), strict=True))
        axes = [-1] * graph.n_ops
        for i, kind in enumerate(graph.kinds):
            flips, at = 0, i
            while graph.kinds[at] == "aten.t.default" and at in source:
                at, flips = source[at], flips + 1
            if kind == "aten.t.default":
                sizes = parse_output(graph.outputs[at])[0][1]
                axis = _batch_axis(sizes or (), self.batch)
                if axis is not None and len(sizes or ()) == 2:
                    axes[i] = (axis + flips) % 2
        return axes

    # -- edges ---------------------------------------------------------------------------------

    def _edges(self) -> dict[str, NDArray[Any]]:
        graph, k, many = self.graph, self.k, self.roles.many
        tensor, gradient = self.roles.tensor, self.roles.gradient
        from_many, to_many = many[graph.src], many[graph.dst]
        data = tensor >= 0
        parts = np.where(gradient, graph.bytes, proportional(graph.bytes, self.rows))
        # Replica r's tensor ids are the model's plus r strides; the sums' ids come after all.
        stride = int(tensor.max(initial=-1)) + 1
        summing = from_many & ~to_many & data
        rows: tuple[list[Any], ...] = ([], [], [], [], [])

        def add(at: Any, s: Any, d: Any, t: Any, b: Any) -> None:
            for column, values in zip(rows, (at, s, d, t, b), strict=True):
                column.append(values)

        alone = np.flatnonzero(~from_many & ~to_many)
        source, sink = self.start[graph.src], self.start[graph.dst]
        add(alone, source[alone], sink[alone], tensor[alone], graph.bytes[alone])
        copied = np.flatnonzero((from_many | to_many) & ~summing)
        own = from_many[copied]
        for r in range(k):
            add(
                copied,
                source[copied] + r * own,
                sink[copied] + r * to_many[copied],
                np.where(own & data[copied], tensor[copied] + r * stride, tensor[copied]),
                np.where(own, parts[r, copied], graph.bytes[copied]),
            )
        crossing = self.crossing
        pairs = np.stack([graph.src[crossing], self.sum_of], axis=1)
        into, first = np.unique(pairs, axis=0, return_index=True)
        for r in range(k):
            add(
                crossing[first],
                self.start[into[:, 0]] + r,
                self.sum_at[into[:, 1]],
                self.summed[into[:, 1]] + r * stride,
                self.sum_bytes[into[:, 1]],
            )
        sums = self.sum_at[self.sum_of]
        add(crossing, sums, sink[crossing], k * stride + self.sum_of, graph.bytes[crossing])
        # Edges are in the order of the model's: an op tells its arguments apart by that order.
        at, src, dst, ids, sizes = map(np.concatenate, rows)
        order = np.argsort(at, kind="stable")
        _, compact = np.unique(ids, return_inverse=True)
        compact = np.where(ids >= 0, compact - int((ids < 0).any()), -1)
        return {
            "src": src[order],
            "dst": dst[order],
            "tensor": compact[order],
            "bytes": sizes[order],
        }


def _batch_axis(sizes: tuple[int, ...], batch: int | None) -> int | None:
    """The axis as long as the batch, else the first that is a multiple of it (rows x steps)."""
    if batch is None or batch < 2:
        return None
    if batch in sizes:
        return sizes.index(batch)
    multiples = [axis for axis, size in enumerate(sizes) if size and size % batch == 0]
    return multiples[0] if multiples else None


def _share_of(text: str, whole: tuple[bool, ...], batch: int | None, k: int, axis: int) -> str:
    """The ``output`` of one replica; ``whole``: per tensor, whether it is a weight gradient."""
    shapes = parse_output(text)
    flags = whole if len(whole) == len(shapes) else (bool(whole) and all(whole),) * len(shapes)
    return format_output(
        [
            shape if keep else _cut(shape, batch, k, axis)
            for shape, keep in zip(shapes, flags, strict=True)
        ]
    )


def _cut(shape: Shape, batch: int | None, k: int, axis: int) -> Shape:
    dtype, sizes = shape
    if not sizes:
        return shape
    at = axis if axis >= 0 else _batch_axis(sizes, batch)
    if at is None or batch is None or batch % k:
        # Which axis is the batch's is unknown, so the sizes are left out.
        return dtype, None
    return dtype, (*sizes[:at], sizes[at] // k, *sizes[at + 1 :])
