"""The tensors of a graph: who makes each, and which of them each call takes.

Every op has as many tensors as its ``output`` column says, at least one. What picks an output of
another op (``getitem``) has none of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.model.graph import OpGraph
from loadmaster.model.shapes import parse_output

#: The kind of what only picks one output of another op.
PICK = "getitem"

#: An output: the op, and which of its outputs.
Output = tuple[int, int]


@dataclass(frozen=True)
class Tensors:
    """Attributes
    ----------
    shapes : list of tuple of int
        Per tensor; empty if nobody says.
    maker : list of int
        Per tensor, the op that makes it: one that runs, a view or a placeholder.
    first : list of int
        The tensors of op v are ``first[v]`` to ``first[v + 1]``.
    taken : list of list of int
        Per op, the tensors that it takes, in the order of its call.
    """

    shapes: list[tuple[int, ...]]
    maker: list[int]
    first: list[int]
    taken: list[list[int]]

    @classmethod
    def of(cls, graph: OpGraph, arguments: Sequence[Sequence[Output]]) -> Tensors:
        """From the outputs that each call takes. O(V + E)."""
        parsed: dict[str, list[tuple[int, ...]]] = {}
        for text in set(graph.outputs):
            parsed[text] = [sizes or () for _, sizes in parse_output(text)]
        picked = {
            op: arguments[op][0]
            for op, kind in enumerate(graph.kinds)
            if kind == PICK and len(arguments[op]) == 1
        }
        own = [[] if op in picked else parsed[text] for op, text in enumerate(graph.outputs)]
        shapes = list(itertools.chain.from_iterable(own))
        maker = [op for op, some in enumerate(own) for _ in some]
        first = list(itertools.accumulate(map(len, own), initial=0))

        def tensor(output: Output) -> int:
            while output[0] in picked:
                output = picked[output[0]]
            return first[output[0]] + output[1]

        taken = [[tensor(output) for output in some] for some in arguments]
        return cls(shapes, maker, first, taken)

    def of_call(self, op: int) -> list[int]:
        """The tensors of a call: what it takes, then what it makes."""
        return [*self.taken[op], *range(self.first[op], self.first[op + 1])]
