"""Places between modules at which a model can be cut, as ``torch.distributed.pipelining`` cuts it.

A split point stands before or after the ``forward`` of a module. So there is one only where all
that a module runs is one run of the forward pass, and at an end of that run. Each stage would have
a copy of a parameter that two of them read, and nothing brings the copies together again: what
reads a parameter stays in one stage. So does what is recomputed together in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.graph import PLACEHOLDERS, OpGraph
from loadmaster.model.orders import program_order

Side = Literal["BEGINNING", "END"]


class Point(NamedTuple):
    """A split point: a module, relative to the root, and the side of it that is cut."""

    module: str
    side: Side


class Span(NamedTuple):
    """A tensor, and the places of the ops that read it: of one that is made in the forward pass,
    first the place of its maker.
    """

    op: int
    places: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ModuleCuts:
    """The forward pass of a graph, and where it can be cut between modules.

    Attributes
    ----------
    graph : OpGraph
    root : str
        What the model is called in the graph's module paths; what is outside of it, such as a loss,
        is in no module.

    Examples
    --------
    >>> import loadmaster as lm
    >>> found = ModuleCuts(lm.read("example:lenet"))
    >>> found.points[found.open[0]]
    Point(module='m.1', side='BEGINNING')
    """

    graph: OpGraph
    root: str = ""

    @cached_property
    def order(self) -> NDArray[np.int32]:
        """Ops of the forward pass that run, in the program's order."""
        reduced = self.graph.reduced
        order: NDArray[np.int32] = reduced.op_of[program_order(reduced.graph)]
        phases = self.graph.phases
        return order[[phases[op] in ("", "f") for op in order.tolist()]]

    @cached_property
    def module_of(self) -> list[str]:
        """Of each place of the order, the module's path below the root; "": none."""
        modules = self.graph.modules
        return [inside(modules[op], self.root) or "" for op in self.order.tolist()]

    @cached_property
    def spans(self) -> dict[str, tuple[int, int]]:
        """First and last place of each module whose ops, with those below it, are one run."""
        ends: dict[str, list[int]] = {}
        for place, path in enumerate(self.module_of):
            for module in upwards(path):
                span = ends.setdefault(module, [place, place, 0])
                span[1] = place
                span[2] += 1
        return {m: (a, b) for m, (a, b, count) in ends.items() if b - a + 1 == count}

    @cached_property
    def points(self) -> dict[int, Point]:
        """The split point before each place that has one: of the outermost module that has ops or
        parameters of its own, as a list of modules has not.
        """
        graph = self.graph
        own = {path for path in self.module_of if path}
        stored = (op for op, kind in enumerate(graph.kinds) if kind in ("parameter", "buffer"))
        own |= {inside(graph.modules[op], self.root) or "" for op in stored}
        points: dict[int, Point] = {}
        outer_first = sorted(self.spans.items(), key=lambda item: item[0].count("."))
        for side in (0, 1):
            for module, span in outer_first:
                if module in own:
                    word: Side = "END" if side else "BEGINNING"
                    points.setdefault(span[side] + side, Point(module, word))
        return points

    @cached_property
    def last(self) -> int:
        """The last place that is in a module; what follows is the model's own, or the loss."""
        return max((at for at, path in enumerate(self.module_of) if path), default=0)

    @cached_property
    def _place(self) -> dict[int, int]:
        """The place of each op of the forward pass."""
        return {op: at for at, op in enumerate(self.order.tolist())}

    @cached_property
    def read_on(self) -> list[Span]:
        """Tensors that ops of the forward pass read: parameters, inputs, what the pass makes."""
        graph, reduced = self.graph, self.graph.reduced
        place = self._place
        readers: dict[int, set[int]] = {}
        for src, dst in zip(reduced.shows[graph.src].tolist(), graph.dst.tolist(), strict=True):
            if dst in place and (src in place or graph.kinds[src] in PLACEHOLDERS):
                readers.setdefault(src, set()).add(place[dst])
        return [
            Span(op, tuple(([place[op]] if op in place else []) + sorted(places)))
            for op, places in sorted(readers.items())
        ]

    @cached_property
    def tied(self) -> list[Span]:
        """Parameters that several ops read."""
        kinds = self.graph.kinds
        return [s for s in self.read_on if kinds[s.op] == "parameter" and len(s.places) > 1]

    @cached_property
    def recomputed(self) -> list[tuple[int, int]]:
        """First and last places of modules between which activations are recomputed: an op of the
        backward pass reads what another has computed again, in the order of the forward pass.
        """
        graph, phases = self.graph, self.graph.phases
        ends: dict[str, tuple[int, int]] = {}
        for place, path in enumerate(self.module_of):
            if path:
                ends[path] = (ends.get(path, (place, place))[0], place)
        of = {
            op: ends[path]
            for op in np.flatnonzero(graph.reduced.runs).tolist()
            if phases[op] == "b" and (path := inside(graph.modules[op], self.root) or "") in ends
        }
        edges = zip(graph.reduced.shows[graph.src].tolist(), graph.dst.tolist(), strict=True)
        pairs = [(a, b) for a, b in edges if a in of and b in of]
        again = {op for a, b in pairs if of[a][1] < of[b][0] for op in (a, b)}
        spans = {(of[a][0], of[b][1]) for a, b in pairs if a in again}
        return sorted((first, last) for first, last in spans if first < last)

    @cached_property
    def open(self) -> NDArray[np.int64]:
        """Places before which a pipeline of PyTorch can be cut, ascending: behind what first reads
        a parameter.
        """
        kinds, places = self.graph.kinds, sorted(self.points)
        first = min((s.places[0] for s in self.read_on if kinds[s.op] == "parameter"), default=0)
        closed = [(span.places[0], span.places[-1]) for span in self.tied] + self.recomputed
        is_open = (
            first < place <= self.last and not any(a < place <= b for a, b in closed)
            for place in places
        )
        return np.array([p for p, is_open in zip(places, is_open, strict=True) if is_open], int)

    @cached_property
    def roots(self) -> NDArray[np.int64]:
        """Places where gradients end: ops that read a trained parameter, and else nothing that
        has a gradient.
        """
        graph, updates = self.graph, self.graph.updates
        updated = set(graph.src[updates[graph.dst]].tolist())
        readers: dict[int, list[int]] = {}
        roots: list[int] = []
        trained = set[int]()
        for span in self.read_on:
            is_parameter = graph.kinds[span.op] == "parameter"
            if is_parameter and (span.op in updated or not updated):
                trained.update(span.places)
            elif not is_parameter and span.op in self._place:
                readers[span.places[0]] = list(span.places[1:])
        has_gradient = set[int]()
        for place in range(len(self.order)):
            if place in trained and place not in has_gradient:
                roots.append(place)
            if place in trained or place in has_gradient:
                has_gradient.update(readers.get(place, ()))
        return np.array(roots, dtype=np.int64)


def inside(module: str, root: str) -> str | None:
    """A module's path below the root; None: it is outside.

    >>> inside("m.layer.0", "m"), inside("loss", "m")
    ('layer.0', None)
    """
    if not root or module == root:
        return "" if root else module
    return module[len(root) + 1 :] if module.startswith(f"{root}.") else None


def upwards(path: str) -> Iterator[str]:
    """A module and all above it but the model."""
    while path:
        yield path
        path = path.rpartition(".")[0]
