"""What a transform hands back: a new graph, and which op of the old one each of its ops is.

Shares are whole numbers that add up exactly: nothing is lost or invented by cutting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs import PROVENANCES, Costs
from loadmaster.costs.roofline import roofline
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import ANY_TYPE, OpGraph

#: Kinds of the ops that transforms add.
SPLIT, CONCAT, SUM, AGGREGATE = "split", "concat", "sum", "aggregate"

#: Bytes of an element where an op's output does not say.
_ITEM_BYTES = 4


@dataclass(frozen=True)
class Split:
    """An op that was split: its name ``op``, along which ``dimension``, into how many (``n``)."""

    op: str
    dimension: str
    n: int

    def __str__(self) -> str:
        return f"{self.op} along {self.dimension} into {self.n}"


@dataclass(frozen=True)
class Transformed:
    """A transformed graph and where its ops come from.

    Attributes
    ----------
    graph : OpGraph
    origin : int32 [graph.n_ops]
        The op of the graph before that each op is, or is a part of; -1: the transform's own.
    share : float64 [graph.n_ops]
        Part of the origin's work that each op does; 1 for the transform's own.
    replica : int32 [graph.n_ops]
        The data-parallel replica that each op is in; -1: none.
    notes : tuple of str
        What the user should know.
    """

    graph: OpGraph
    origin: NDArray[np.int32]
    share: NDArray[np.float64]
    replica: NDArray[np.int32]
    notes: tuple[str, ...] = ()

    @classmethod
    def unchanged(cls, graph: OpGraph) -> Transformed:
        """The graph as it is."""
        n = graph.n_ops
        everything = np.arange(n, dtype=np.int32)
        return cls(graph, everything, np.ones(n), np.full(n, -1, dtype=np.int32))

    def then(self, later: Transformed) -> Transformed:
        """The transform and a later one, of its graph, as one."""
        own = later.origin < 0
        return Transformed(
            later.graph,
            np.where(own, -1, self.origin[later.origin]).astype(np.int32),
            np.where(own, 1.0, self.share[later.origin] * later.share),
            np.where(own, later.replica, self.replica[later.origin]).astype(np.int32),
            self.notes + later.notes,
        )

    @property
    def own(self) -> NDArray[np.bool_]:
        """Which ops are the transform's own, bool [graph.n_ops]."""
        return self.origin < 0

    @property
    def own_flops(self) -> int:
        """FLOPs that the transform adds to the model's own, which it conserves."""
        return int(self.graph.flops[self.own].sum())

    def costs(self, before: Costs, cluster: Cluster) -> Costs:
        """Times of the transformed graph's ops from those of the graph before.

        Ops that are whole keep theirs. For parts, rooflines are recomputed; a measured or given
        time is multiplied by the share, plus the device type's launch time, and its provenance is
        then ``regressed``. The transform's own ops take their roofline, at least a launch; on a
        type without either, the shortest time that any op of the model takes, since no kernel is
        known to take less. None of them is free.

        Raises
        ------
        InputError
            A part whose origin has a roofline, on a device type without one.
        """
        own, part = self.own, self.share < 1.0
        time = before.time[self.origin]
        provenance = before.provenance[self.origin]
        word = {name: PROVENANCES.index(name) for name in PROVENANCES}
        anew = part & (provenance == word["roofline"])
        scaled = part & ~anew & time.any(axis=1)
        parts, added = np.flatnonzero(anew), np.flatnonzero(own)
        of_parts, of_added = _rows(self.graph, parts), _rows(self.graph, added)
        for k, device_type in enumerate(cluster.types):
            column = time[:, k]
            some = scaled & (column > 0)
            column[some] = column[some] * self.share[some] + device_type.launch
            if of_parts is not None:
                measured = of_parts.time.get(device_type.name, of_parts.time.get(ANY_TYPE))
                column[parts] = roofline(of_parts, device_type) if measured is None else measured
            least = device_type.launch or least_positive(before.time[:, k])
            if device_type.has_roofline and of_added is not None:
                column[added] = np.maximum(roofline(of_added, device_type), least)
            else:
                column[added] = least
        provenance[scaled] = word["regressed"]
        known = all(t.has_roofline for t in cluster.types)
        provenance[own] = word["roofline" if known else "regressed"]
        return Costs(time, before.types, provenance)


def _rows(graph: OpGraph, rows: NDArray[np.intp]) -> OpGraph | None:
    """Some ops of a graph with what their cost depends on, without edges; None: no ops."""
    if not len(rows):
        return None
    ops: dict[str, Any] = {
        "name": [str(row) for row in rows],
        "kind": [graph.kinds[row] for row in rows],
        "output": [graph.outputs[row] for row in rows],
        "flops": graph.flops[rows],
        "bytes_accessed": graph.bytes_accessed[rows],
        "view": graph.view[rows],
        "time": {kind: seconds[rows] for kind, seconds in graph.time.items()},
    }
    return OpGraph(ops, {"src": [], "dst": []})


def build(
    before: OpGraph,
    ops: Mapping[str, Any],
    edges: Mapping[str, Any],
    origin: NDArray[np.int32],
    share: NDArray[np.float64],
    replica: NDArray[np.int32] | None = None,
    *,
    meta: Mapping[str, Any] | None = None,
    notes: tuple[str, ...] = (),
) -> Transformed:
    """A transformed graph from its columns; times follow from ``origin`` and ``share``."""
    columns = dict(ops)
    if before.time:
        own = origin < 0
        columns["time"] = {
            kind: np.where(own, least_positive(seconds), seconds[origin] * share)
            for kind, seconds in before.time.items()
        }
    graph = OpGraph(columns, edges, name=before.name, meta={**before.meta, **(meta or {})})
    if replica is None:
        replica = np.full(graph.n_ops, -1, dtype=np.int32)
    return Transformed(graph, origin, share, replica, notes)


def least_positive(seconds: NDArray[np.float64]) -> float:
    """The shortest time that is not zero; 0 if there is none."""
    return float(np.min(seconds, where=seconds > 0, initial=np.inf)) if seconds.any() else 0.0


def even_shares(total: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    """``n`` shares of every value that add up to it, uint64 [n, len(total)]; larger ones first."""
    each, rest = np.divmod(total, np.uint64(n))
    part = np.arange(n, dtype=np.uint64)[:, None]
    return each + (part < rest).astype(np.uint64)


def shares(total: int, chunks: Sequence[int]) -> list[int]:
    """Shares of a total in proportion to chunks; they add up to it exactly.

    >>> shares(10, [2, 1, 1]), sum(shares(1001, [3, 3, 3, 2]))
    ([5, 2, 3], 1001)
    """
    size, ends = sum(chunks), [0]
    for chunk in chunks:
        ends.append(ends[-1] + chunk)
    return [total * b // size - total * a // size for a, b in pairwise(ends)]


# -- the ``output`` column: dtype and shape of each output, as in "f32[8,16];i64[8,16]" -------

#: The dtype and sizes of one output; no sizes (None): unknown.
Shape = tuple[str, "tuple[int, ...] | None"]


def parse_output(text: str) -> list[Shape]:
    """Dtype and sizes per output.

    >>> parse_output("f32[8,16];none;bf16")
    [('f32', (8, 16)), ('none', None), ('bf16', None)]
    """
    return [_parse_one(part) for part in text.split(";")]


def _parse_one(text: str) -> Shape:
    dtype, bracket, rest = text.partition("[")
    inside = rest.removesuffix("]")
    if not bracket or rest == inside:
        return dtype, None
    words = [word.strip() for word in inside.split(",")] if inside.strip() else []
    if not all(word.isdigit() for word in words):
        return dtype, None
    return dtype, tuple(int(word) for word in words)


def format_output(shapes: Sequence[Shape]) -> str:
    """The text of an ``output`` column.

    >>> format_output([("f32", (8, 16)), ("none", None)])
    'f32[8,16];none'
    """
    return ";".join(
        dtype if sizes is None else f"{dtype}[{','.join(map(str, sizes))}]"
        for dtype, sizes in shapes
    )


def elements(size: int, dtype: str) -> int:
    """How many elements a tensor of ``size`` bytes has; of 4 bytes each if the dtype is unknown."""
    bits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    each = max(int(bits) // 8, 1) if bits.isdigit() else _ITEM_BYTES
    return size // each
