"""Replicas with parameter servers: FastT (Yi et al., Middleware 2020), section 5.2.

OS-DPOS starts from this graph. The model is replicated k times, and each replica works on 1/k of
the batch. A parameter has one home; every replica reads the parameter there, which stands for the
paper's broadcast. An op that the transform adds sums the replicas' gradients of a parameter. The
optimizer runs once per parameter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.model.graph import OpGraph, Texts
from loadmaster.model.program import COLLECTIVE, Program, user_roles
from loadmaster.model.roles import Roles
from loadmaster.model.shapes import Shape, format_output, parse_output
from loadmaster.transforms.base import AGGREGATE, build, elements
from loadmaster.transforms.shares import (
    amounts,
    batch_size,
    only_gradients,
    own_weights,
)
from loadmaster.transforms.ways import WHOLE, ReadEdges, SharingWays, homes_of_copies


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
    """Copies, sums and links of replicas.

    Ops keep their order. A replicated op takes ``k`` places, another op takes one. The sums of the
    tensors that replicas hand to ops that are not replicated come right after the replicas.
    """

    def __init__(self, graph: OpGraph, k: int, rows: tuple[int, ...], roles: Roles) -> None:
        self.graph, self.k, self.rows, self.roles = graph, k, rows, roles
        many, tensor = roles.many, roles.tensor
        #: Edges from replicas to ops that are not replicated: with data, and without.
        leaving = many[graph.src] & ~many[graph.dst]
        self.crossing = np.flatnonzero(leaving & (tensor >= 0))
        self.waiting = np.flatnonzero(leaving & (tensor < 0))
        # One sum per tensor, placed after the op that makes the tensor.
        self.summed, first, self.sum_of = np.unique(
            tensor[self.crossing], return_index=True, return_inverse=True
        )
        self.sum_source = graph.src[self.crossing[first]]
        self.sum_bytes = graph.bytes[self.crossing[first]]

    def build(self) -> Program:
        graph, k, own = self.graph, self.k, own_weights(self.graph)
        texts = _ServerTexts(graph, self.roles, k, self.sum_source)
        columns = texts.columns()
        sums = self._sums()
        core, serves, replica, added = fast.expand(
            graph._core,
            columns["name"],
            k,
            self._copies(),
            sums,
            self._links(),
        )
        texts.fill(serves, replica, added)
        share = np.ones(len(serves))
        divided = (replica >= 0) & ~only_gradients(graph, self.roles)[serves]
        share[divided] = np.array(self.rows)[replica[divided]] / sum(self.rows)
        role = user_roles(graph)[serves]
        role[added >= 0] = COLLECTIVE
        summary = {
            "replicas": k,
            "batch": batch_size(graph),
            "aggregation_flops": int(sums["flops"].sum()),
            "aggregation_bytes": int(sums["accessed"].sum()),
            "copied_param_bytes": (k - 1) * int(own[self.roles.many].sum()),
        }
        return build(
            graph,
            core,
            columns,
            meta={"data_parallel": summary},
            serves=serves,
            share=share,
            replica=replica,
            role=role,
        )

    def _copies(self) -> fast._Copies:
        """Columns of :func:`loadmaster.fast.expand` per op and edge."""
        graph, many = self.graph, self.roles.many
        ways = SharingWays(self.k)
        by_rows = ways.of_rows(self.rows)
        return {
            **ways.columns(),
            **homes_of_copies(np.where(many, -1, -2), self.k),
            **amounts(graph, self.roles, np.where(many, by_rows, WHOLE)),
            "stays": ~many[graph.src] | many[graph.dst],
            "edge": np.where(many[graph.src] & ~self.roles.gradient, by_rows, WHOLE),
        }

    def _sums(self) -> fast._Added:
        """Columns of the ops that sum. A sum serves the op whose tensors it sums."""
        n = len(self.sum_source)
        dtypes = [parse_output(self.graph.outputs[i])[0][0] for i in self.sum_source.tolist()]
        added = [
            (self.k - 1) * elements(size, dtype)
            for size, dtype in zip(self.sum_bytes.tolist(), dtypes, strict=True)
        ]
        return {
            "place": self.sum_source,
            "is_before": np.zeros(n, dtype=bool),
            "serves": self.sum_source,
            "device": np.full(n, -1),
            "collective": np.full(n, -1),
            "kind": np.zeros(n, dtype=np.int64),
            "flops": np.array(added, dtype=np.uint64),
            "accessed": self.sum_bytes * np.uint64(self.k + 1),
            "output": self.sum_bytes,
        }

    def _links(self) -> fast._Links:
        """Edges of sums, and those by which an op waits for every replica."""
        graph, k = self.graph, self.k
        crossing, waiting, tensor = self.crossing, self.waiting, self.roles.tensor
        # Replica r's tensor ids are the model's plus r strides; the sums' ids come after all.
        stride = int(tensor.max(initial=-1)) + 1
        pairs = np.stack([graph.src[crossing], self.sum_of], axis=1)
        into, first = np.unique(pairs, axis=0, return_index=True)
        sums = graph.n_ops * k + np.arange(len(self.summed))
        read_edges = ReadEdges()
        for r in range(k):
            of = into[:, 1]
            ids, size = self.summed[of] + r * stride, self.sum_bytes[of]
            read_edges.add(crossing[first], into[:, 0] * k + r, sums[of], ids, size)
            waits = graph.src[waiting] * k + r, graph.dst[waiting] * k
            read_edges.add(
                waiting, *waits, tensor[waiting], np.zeros(len(waiting), dtype=np.uint64)
            )
        read, ids = sums[self.sum_of], k * stride + self.sum_of
        read_edges.add(crossing, read, graph.dst[crossing] * k, ids, graph.bytes[crossing])
        return read_edges.columns(k * stride)


class _ServerTexts:
    """Texts of the ops of replicas and of their sums, made when they are asked for.

    ``sum_source`` has the op whose tensor each sum adds up. Known once the graph is made: per op,
    the op that it serves, its replica (-1: none), and which of the sums it is (-1: none).
    """

    def __init__(self, graph: OpGraph, roles: Roles, k: int, sum_source: NDArray[np.int64]) -> None:
        self.graph, self.roles, self.k, self.sum_source = graph, roles, k, sum_source
        self.batch = batch_size(graph)

    def fill(
        self, serves: NDArray[np.int32], replica: NDArray[np.int32], added: NDArray[np.int32]
    ) -> None:
        """Takes what is known of the ops."""
        self._serves, self._replica, self._sum = serves, replica, added

    def _names(self) -> list[str]:
        """Names with the replica, or with the number of the sum of those of one op."""
        order = np.argsort(self.sum_source, kind="stable")
        source = self.sum_source[order]
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order)) - np.searchsorted(source, source)
        marks = ["", *(f"@r{r}" for r in range(self.k)), f"@{AGGREGATE}"]
        marks += [f"@{AGGREGATE}{i}" for i in range(1, int(rank.max(initial=0)) + 1)]
        mark = self._replica + 1
        is_sum = self._sum >= 0
        mark[is_sum] = self.k + 1 + rank[self._sum[is_sum]]
        stems = self._served(self.graph.names)
        return [stem + marks[i] for stem, i in zip(stems, mark.tolist(), strict=True)]

    def columns(self) -> dict[str, Texts]:
        """Each column."""
        graph = self.graph
        nothing = [""] * graph.n_ops
        make: dict[str, Callable[[], list[str]]] = {
            "name": self._names,
            "kind": lambda: self._chosen(graph.kinds, [AGGREGATE] * graph.n_ops),
            "module": lambda: self._served(graph.modules),
            "phase": lambda: self._served(graph.phases),
            "colocation": self._sets,
            "output": self._outputs,
            "device_types": lambda: self._served(graph.device_types),
            "collective": lambda: self._served(nothing),
        }
        return {column: Texts(texts) for column, texts in make.items()}

    def _served(self, texts: list[str]) -> list[str]:
        return [texts[i] for i in self._serves.tolist()]

    def _chosen(self, of_copies: list[str], of_sums: list[str]) -> list[str]:
        """Texts by the op that each op serves."""
        rows = zip(self._serves.tolist(), (self._sum >= 0).tolist(), strict=True)
        return [of_sums[i] if is_sum else of_copies[i] for i, is_sum in rows]

    def _sets(self) -> list[str]:
        # A colocation set that has an op which is not replicated stays with replica 0.
        graph, none = self.graph, [""] * self.graph.n_ops
        shared = {c for c, m in zip(graph.colocation, self.roles.many, strict=True) if c and not m}
        labels = zip(self._chosen(graph.colocation, none), self._replica.tolist(), strict=True)
        return [c if not c or r < 0 or (r == 0 and c in shared) else f"{c}@r{r}" for c, r in labels]

    def _outputs(self) -> list[str]:
        graph, shapes = self.graph, self._shapes()
        rows = zip(self._serves.tolist(), self._replica.tolist(), strict=True)
        return [shapes[i] if r >= 0 else graph.outputs[i] for i, r in rows]

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
