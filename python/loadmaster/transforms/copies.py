"""Whole copies of a graph beside each other, which share parameters: steps of a stream, samples
dealt out.

Copies are grouped into *lanes*. Copies of a lane have its parameters, buffers and constants in
common, and each has all else of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.model.graph import INPUT, TEXTS, OpGraph, Texts
from loadmaster.model.program import Program
from loadmaster.transforms.ways import without_gaps


class WholeCopies:
    """Copies of a graph: where each op of each is, and the program of them.

    Parameters
    ----------
    graph : OpGraph
    lane : sequence of int
        The lane of each copy, from 0, ascending.
    mark : str
        A copy's name ends in ``@``, this and its number; what is in common has the lane's.
    """

    def __init__(self, graph: OpGraph, lane: Sequence[int], mark: str) -> None:
        self.graph, self.mark, self.n = graph, mark, len(lane)
        self.lane = np.array(lane, dtype=np.int64)
        #: True where an op is common to the copies of a lane.
        self.common = is_state(graph)
        #: Tensor id per edge; -1: control.
        self.tensor = (graph.src if graph.tensor is None else graph.tensor).astype(np.int64)
        #: Difference of the ids of a copy's tensors from those of the copy before.
        self.stride = int(self.tensor.max(initial=-1)) + 1

    @cached_property
    def first(self) -> NDArray[np.int64]:
        """The first copy of the lane of each copy."""
        return np.searchsorted(self.lane, self.lane).astype(np.int64)

    @cached_property
    def at(self) -> NDArray[np.int64]:
        """The place of the op that each copy has of each op: int64 [n, n_ops]."""
        has = ~self.common[None, :] | (self.first == np.arange(self.n))[:, None]
        numbers = np.cumsum(has.ravel()).reshape(has.shape) - 1
        numbers[~has] = numbers[self.first[np.nonzero(~has)[0]], np.nonzero(~has)[1]]
        return numbers

    @cached_property
    def _made(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The copy and the op of the graph that each op is."""
        size = int(self.at.max()) + 1
        copy, op = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
        for c in reversed(range(self.n)):
            copy[self.at[c]], op[self.at[c]] = c, np.arange(self.graph.n_ops)
        return copy, op

    @property
    def copy(self) -> NDArray[np.int64]:
        """The copy that each op is in; of what a lane has in common, its first."""
        return self._made[0]

    @property
    def serves(self) -> NDArray[np.int64]:
        """The op of the graph that each op is a copy of."""
        return self._made[1]

    def edges(self) -> dict[str, NDArray[Any]]:
        """Edges of the copies, copy after copy."""
        graph, copy = self.graph, np.arange(self.n)[:, None]
        owner = np.where(self.common[graph.src], self.first[:, None], copy)
        return {
            "src": self.at[:, graph.src].ravel(),
            "dst": self.at[:, graph.dst].ravel(),
            "tensor": np.where(self.tensor < 0, -1, self.tensor + owner * self.stride).ravel(),
            "bytes": np.tile(graph.bytes, self.n),
        }

    def program(
        self,
        edges: Mapping[str, NDArray[Any]],
        columns: Mapping[str, NDArray[Any]] | None = None,
        **of_program: Any,
    ) -> Program:
        """The program of the copies, with these edges; ``columns`` of the graph's core are put in
        the place of its own, ``of_program`` are columns of the program.
        """
        graph, serves, copy = self.graph, self.serves, self.copy
        own = {**graph.core_columns(), **(columns or {})}
        core = {name: column[serves] for name, column in own.items()}
        for name in ("alias_of", "near"):
            named = core[name]
            core[name] = np.where(named >= 0, self.at[copy, np.maximum(named, 0)], -1)
        # Weights that an op holds itself are there once in a lane, too.
        core["resident"][copy != self.first[copy]] = 0
        for name, number in (("collective", copy), ("colocation", self.lane[copy])):
            if name in core:
                codes, of = core[name], int(own[name].max(initial=-1)) + 1
                core[name] = np.where(codes >= 0, codes + number * of, -1)
        names = self._names()
        tensor = without_gaps(edges["tensor"])
        core_graph = fast.OpGraph(names, edges["src"], edges["dst"], tensor, edges["bytes"], **core)
        known: dict[str, Any] = {TEXTS[column]: text for column, text in self._texts().items()}
        known |= {
            "names": names,
            "stands_for": np.where(core["placeholder"], graph.stands_for[serves], -1).astype(
                np.int8
            ),
            "updates": graph.updates[serves],
            "is_restricted": graph.is_restricted,
            "has_marked_names": True,
            "time": {kind: seconds[serves] for kind, seconds in graph.time.items()},
        }
        built = OpGraph.made(core_graph, known, name=graph.name, meta=graph.meta)
        return Program.made(graph, built, serves, **of_program)

    def _names(self) -> list[str]:
        marks = [f"@{self.mark}{c}" for c in range(self.n)]
        names = self.graph.names
        pairs = zip(self.serves.tolist(), self.copy.tolist(), strict=True)
        return [names[op] + marks[c] for op, c in pairs]

    def _texts(self) -> dict[str, Texts]:
        graph, serves = self.graph, self.serves.tolist()

        def taken(column: str) -> list[str]:
            texts = getattr(graph, TEXTS[column])
            return [texts[op] for op in serves]

        def marked(column: str, number: NDArray[np.int64]) -> list[str]:
            pairs = zip(taken(column), number.tolist(), strict=True)
            return [text and f"{text}@{self.mark}{c}" for text, c in pairs]

        columns = {
            column: Texts(partial(taken, column))
            for column in ("kind", "module", "phase", "output", "device_types")
        }
        columns["colocation"] = Texts(lambda: marked("colocation", self.lane[self.copy]))
        columns["collective"] = Texts(lambda: marked("collective", self.copy))
        return columns


def is_state(graph: OpGraph) -> NDArray[np.bool_]:
    """Parameters, buffers and constants: what stays from step to step, bool [n_ops]."""
    return np.asarray(graph.placeholder & (graph.stands_for != INPUT))
