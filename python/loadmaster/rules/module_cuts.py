"""Places between modules at which a model can be cut, as ``torch.distributed.pipelining`` cuts it.

A split point stands before or after the ``forward`` of a module. So there is one only where all
that a module runs is one run of the forward pass, and at an end of that run. PyTorch copies a
parameter that two stages read, and never brings the copies together again: what reads a parameter
stays in one stage. Only the first stage is given the model's inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.graph import INPUT, PLACEHOLDERS, OpGraph
from loadmaster.model.orders import program_order
from loadmaster.model.shapes import parse_output

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
            for module in _upwards(path):
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
    def read_on(self) -> list[Span]:
        """Tensors that ops of the forward pass read: parameters, inputs, what the pass makes."""
        graph, reduced = self.graph, self.graph.reduced
        place = {op: at for at, op in enumerate(self.order.tolist())}
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
    def inputs(self) -> list[Span]:
        """The model's inputs, with the places in modules or before the last of them."""
        spans = (s for s in self.read_on if self.graph.stands_for[s.op] == INPUT)
        cut = [Span(s.op, tuple(p for p in s.places if p <= self.last)) for s in spans]
        return [span for span in cut if span.places]

    @cached_property
    def open(self) -> NDArray[np.int64]:
        """Places before which a pipeline of PyTorch can be cut, ascending."""
        first = max((span.places[-1] for span in self.inputs), default=0)
        closed = [(span.places[0], span.places[-1]) for span in self.tied]
        return np.array(
            [
                place
                for place in sorted(self.points)
                if first < place <= self.last and not any(a < place <= b for a, b in closed)
            ],
            dtype=np.int64,
        )

    @cached_property
    def _sent(self) -> tuple[NDArray[np.int64], ...]:
        """Tensors of the forward pass, a row per reader: op, place of the producer, place of the
        reader.
        """
        ops = set(self.order.tolist())
        spans = [span for span in self.read_on if span.op in ops]
        rows = [(span.op, span.places[0], place) for span in spans for place in span.places[1:]]
        return tuple(np.array(rows, dtype=np.int64).reshape(-1, 3).T)

    @cached_property
    def _is_float(self) -> NDArray[np.bool_]:
        """Mask of the rows of :attr:`_sent` whose tensor could have a gradient."""
        outputs = self.graph.outputs
        return np.array([_has_floats(outputs[op]) for op in self._sent[0].tolist()], dtype=bool)

    def unsendable(
        self, stage: NDArray[np.integer], *, train: bool, neighbours: bool
    ) -> NDArray[np.int64]:
        """Ops whose results PyTorch does not send where they are read, ascending.

        Parameters
        ----------
        stage : int [n_places]
            The stage of each place of the order.
        train : bool
            What gradients could be of goes to one other stage only.
        neighbours : bool
            Everything goes to the next stage only, as where a rank has several stages.
        """
        op, maker, reader = self._sent
        home, there = stage[maker], stage[reader]
        away = home != there
        if neighbours:
            return np.unique(op[away & (there != home + 1)])
        if not train:
            return np.empty(0, dtype=np.int64)
        away &= self._is_float
        pairs = np.unique(np.stack([op[away], there[away]]), axis=1)
        ops, count = np.unique(pairs[0], return_counts=True)
        return np.asarray(ops[count > 1])


def _has_floats(output: str) -> bool:
    """True if some output is of floats; assumed, where the graph does not say."""
    dtypes = [dtype for dtype, _ in parse_output(output)]
    return dtypes == [""] or any(dtype.startswith(("f", "bf")) for dtype in dtypes)


def inside(module: str, root: str) -> str | None:
    """A module's path below the root; None: it is outside.

    >>> inside("m.layer.0", "m"), inside("loss", "m")
    ('layer.0', None)
    """
    if not root or module == root:
        return "" if root else module
    return module[len(root) + 1 :] if module.startswith(f"{root}.") else None


def _upwards(path: str) -> Iterator[str]:
    """A module and all above it but the model."""
    while path:
        yield path
        path = path.rpartition(".")[0]
