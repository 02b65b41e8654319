"""A graph that a reader makes op by op: its columns as they grow, its document, its notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from loadmaster.readers.shared.names import unique

#: Columns of ops that every such reader fills.
OPS = "name kind module phase flops bytes_accessed output_bytes param_bytes view alias_of output"

#: Spelling of the floating-point types in a graph's ``meta``.
FLOAT_NAMES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}


class GraphColumns:
    """Ops and edges, one entry of each column per op and per edge.

    >>> graph = GraphColumns("name")
    >>> graph.ops["name"] += ["relu", "relu"]
    >>> graph.draw(0, 1, 0, 4)
    >>> graph.edges
    {'src': [0], 'dst': [1], 'tensor': [0], 'bytes': [4]}
    >>> graph.document("twice", {})["ops"]
    {'name': ['relu', 'relu_1']}
    """

    def __init__(self, ops: str = OPS) -> None:
        self.ops: dict[str, list[Any]] = {column: [] for column in ops.split()}
        self.edges: dict[str, list[int]] = {"src": [], "dst": [], "tensor": [], "bytes": []}

    def draw(self, src: int, dst: int, tensor: int = -1, size: int = 0) -> None:
        """Appends an edge; a control edge if it has no tensor."""
        for column, number in zip(self.edges.values(), (src, dst, tensor, size), strict=True):
            column.append(number)

    def colocated(self, names: list[str]) -> dict[str, list[str]]:
        """The column of ops that stay together, by the final names; empty: there is none."""
        return {}

    def document(self, name: str, meta: Mapping[str, Any]) -> dict[str, Any]:
        """The opgraph v1 document."""
        names = unique(self.ops["name"])
        return {
            "format": "opgraph",
            "version": 1,
            "name": name,
            "meta": dict(meta),
            "ops": {**self.ops, "name": names, **self.colocated(names)},
            "edges": self.edges,
        }


def counts(counter: Counter[str]) -> str:
    """Counted words, sorted, each with its number.

    >>> counts(Counter("banana"))
    'a (3), b (1), n (2)'
    """
    return ", ".join(f"{name} ({n})" for name, n in sorted(counter.items()))


def without_flops(kinds: str) -> str:
    """The note on kinds of ops whose FLOPs are not known."""
    return f"no FLOPs are known for {kinds}: these ops are costed by the bytes they move"
