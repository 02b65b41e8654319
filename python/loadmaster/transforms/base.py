"""What transforms share: a program from its columns, shares of sizes, shapes of outputs.

Shares are whole numbers that add up exactly: nothing is lost or invented by cutting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from loadmaster.costs.program import least_positive
from loadmaster.model.graph import OpGraph
from loadmaster.model.program import Program, is_added

#: Kinds of the ops that transforms add.
SPLIT, CONCAT, SUM, AGGREGATE = "split", "concat", "sum", "aggregate"

#: Bytes of an element where an op's output does not say.
_ITEM_BYTES = 4


def build(
    before: OpGraph,
    ops: Mapping[str, Any],
    edges: Mapping[str, Any],
    *,
    meta: Mapping[str, Any] | None = None,
    **columns: Any,
) -> Program:
    """A program, from the columns of its graph (``ops``, ``edges``) and its own (``columns``).

    Its own columns are those of :meth:`~loadmaster.model.program.Program.made`. Measured times of
    its ops are the times of the ops that they serve, multiplied by ``share``.
    """
    filled = dict(ops)
    if before.time:
        own, serves = is_added(columns["role"]), columns["serves"]
        filled["time"] = {
            kind: np.where(own, least_positive(seconds), seconds[serves] * columns["share"])
            for kind, seconds in before.time.items()
        }
    graph = OpGraph(filled, edges, name=before.name, meta={**before.meta, **(meta or {})})
    return Program.made(before, graph, **columns)


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
    """Number of elements in a tensor of ``size`` bytes; an unknown dtype counts as 4 bytes."""
    bits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    each = max(int(bits) // 8, 1) if bits.isdigit() else _ITEM_BYTES
    return size // each
