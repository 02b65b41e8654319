"""Parts of several transforms: a program from its columns, shares of sizes, shapes of outputs.

Shares are whole numbers that add up exactly: nothing is lost or invented by cutting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InputError
from loadmaster.costs.program import least_positive
from loadmaster.model.graph import TEXTS, OpGraph, Texts
from loadmaster.model.program import Program, is_added

#: Kinds of the ops that transforms add.
SPLIT, CONCAT, SUM, AGGREGATE = "split", "concat", "sum", "aggregate"

#: Bytes of an element where an op's output does not say.
_ITEM_BYTES = 4


def build(
    before: OpGraph,
    core: fast.OpGraph,
    texts: Mapping[str, Texts],
    *,
    meta: Mapping[str, Any] | None = None,
    **columns: Any,
) -> Program:
    """A program, from its graph in Rust, the texts of its ops and its own ``columns``.

    The program's own columns are those of :meth:`~loadmaster.model.program.Program.made`. Measured
    times of its ops are the times of the ops that they serve, multiplied by ``share``.

    Raises
    ------
    InputError
        Two ops would have one name. This needs a user's name with an ``@`` in it: names that
        transforms make begin with the name of an op that is gone, and go on with an ``@``.
    """
    if before.has_marked_names:
        _refuse_twice(texts["name"].all)
    serves, share, own = columns["serves"], columns["share"], is_added(columns["role"])

    # What is kept for later holds columns of the graph before, never the graph itself.
    times, stands_for = before.time, before.stands_for

    def time() -> dict[str, NDArray[np.float64]]:
        return {
            kind: np.where(own, least_positive(seconds), seconds[serves] * share)
            for kind, seconds in times.items()
        }

    known = {TEXTS[column]: text for column, text in texts.items()} | {
        "stands_for": lambda: np.where(own, -1, stands_for[serves]).astype(np.int8),
        "updates": before.updates[serves],
        "is_restricted": before.is_restricted,
        "has_marked_names": before.has_marked_names,
        "time": time,
    }
    graph = OpGraph.made(core, known, name=before.name, meta={**before.meta, **(meta or {})})
    return Program.made(before, graph, **columns)


def _refuse_twice(names: list[str]) -> None:
    if len(set(names)) == len(names):
        return
    first: dict[str, int] = {}
    for at, name in enumerate(names):
        if first.setdefault(name, at) != at:
            raise InputError(
                f'two ops are named "{name}" (indices {first[name]} and {at}) once the graph is '
                "transformed: rename the one that has an @ in its name"
            )


def shares(total: int, chunks: Sequence[int]) -> list[int]:
    """Shares of a total in proportion to chunks; they add up to it exactly.

    >>> shares(10, [2, 1, 1]), sum(shares(1001, [3, 3, 3, 2]))
    ([5, 2, 3], 1001)
    """
    size, ends = sum(chunks), [0]
    for chunk in chunks:
        ends.append(ends[-1] + chunk)
    return [total * b // size - total * a // size for a, b in pairwise(ends)]


def elements(size: int, dtype: str) -> int:
    """Number of elements in a tensor of ``size`` bytes; an unknown dtype counts as 4 bytes."""
    bits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    each = max(int(bits) // 8, 1) if bits.isdigit() else _ITEM_BYTES
    return size // each


def ranks(graph: OpGraph) -> NDArray[np.int64]:
    """The place of each op in the graph's own order, or where that has a reader before what it
    reads, in Kahn's.
    """
    rank = np.arange(graph.n_ops)
    if not (graph.src < graph.dst).all():
        order_only = fast.Graph(graph.n_ops, graph.src, graph.dst, np.full(graph.n_edges, -1))
        rank[fast.m_topo(order_only)] = np.arange(graph.n_ops)
    return rank
