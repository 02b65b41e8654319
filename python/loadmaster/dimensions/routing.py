"""Tokens that are sorted by the expert that each goes to, for products in groups of rows.

A grouped product takes the rows of all experts one after the other. Sorted rows are thus one axis
of *experts* and, within each, of rows that come of the same tokens everywhere: those of the first
samples come first. So experts are shared out along the one, and the batch along the other, where
each device sorts its own tokens. Ops that sort, that pick sorted rows, and that bring them back
into the order of tokens join the two, as far as tokens divide evenly among experts. O(V + E).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from loadmaster.dimensions.form import AxisPart, Meaning, Pattern
from loadmaster.dimensions.tensors import Output
from loadmaster.model.graph import OpGraph
from loadmaster.model.shapes import parse_output

#: Kinds of products of rows in groups, each with a matrix of its own, or with rows of its own.
GROUPED = ("aten._grouped_mm.default", "transformers.grouped_mm_fallback.default")

_EXPERT, _ROW, _CONTRACTION, _COLUMN = range(4)

#: Kinds that sort experts by number, and that count how many rows each has.
_SORTS = ("aten.sort", "aten.argsort")
_COUNTS = ("aten.histc", "aten.bincount")
#: Kinds that make of such counts where each expert's rows end.
_ENDS = ("aten.cumsum", "aten._to_copy")

#: A cast of an order: some kinds count floats only.
_CASTS = "aten._to_copy.default"

#: Kinds that pick rows by an order, and that write or add rows by one.
_PICKS = "aten.index.Tensor"
_PUTS = ("aten.index_put", "aten.index_add")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Sorted:
    """An axis of rows that are sorted by expert: how many, and of how many experts."""

    rows: int
    experts: int

    @property
    def are_apart(self) -> bool:
        """True if experts have equally many rows, or rows go to equally many experts."""
        return self.rows % self.experts == 0 or self.experts % self.rows == 0

    @property
    def each(self) -> int:
        """Rows of one expert, where tokens are spread evenly; all rows if they cannot be."""
        return max(self.rows // self.experts, 1) if self.are_apart else self.rows


def with_routing(
    graph: OpGraph, arguments: Sequence[Sequence[Output]], patterns: Sequence[Pattern | None]
) -> list[Pattern | None]:
    """The patterns of a graph's calls, with those of grouped products and of the sorting before and
    after them.
    """
    known = {text: [sizes or () for _, sizes in parse_output(text)] for text in set(graph.outputs)}
    outputs = [known[text] for text in graph.outputs]
    inputs = [[outputs[at][i] for at, i in some] for some in arguments]
    with_rows, by_rows = list(patterns), dict[int, _Sorted]()
    for op, kind in enumerate(graph.kinds):
        if kind in GROUPED and (rows := _sorted_rows(inputs[op], outputs[op])):
            by_rows[rows.rows] = rows
            with_rows[op] = _product(rows, inputs[op], outputs[op])
    if by_rows:
        sorting = _Sorting(graph, by_rows, inputs, outputs)
        for op, some in enumerate(arguments):
            pattern = sorting.pattern(op, [at for at, _ in some])
            with_rows[op] = pattern or with_rows[op]
    return with_rows


class _Sorting:
    """Follows the orders of sorted rows through a graph."""

    def __init__(
        self,
        graph: OpGraph,
        by_rows: Mapping[int, _Sorted],
        inputs: Sequence[Sequence[Shape]],
        outputs: Sequence[Sequence[Shape]],
    ) -> None:
        self._graph, self._by_rows, self._inputs, self._outputs = graph, by_rows, inputs, outputs
        #: Ops that give an order of rows; True: one that leads back to the order of tokens.
        self._leads_back: dict[int, bool] = {}
        #: Ops that count the rows of each expert: each device counts its own.
        self._counts: set[int] = set()

    def pattern(self, op: int, sources: Sequence[int]) -> Pattern | None:
        """The pattern of an op that sorts rows, or picks or writes them by an order."""
        kind, inputs, outputs = self._graph.kinds[op], self._inputs[op], self._outputs[op]
        orders = [at for at in sources if at in self._leads_back]
        rows = self._rows(outputs)
        is_whole = self._graph.outputs[op].startswith("i") or kind == _CASTS
        is_order = rows is not None and is_whole and len(outputs[0]) == 1
        if kind.startswith(_SORTS) and rows is not None and is_order:
            self._leads_back[op] = bool(orders)
            return _moved(rows, inputs, outputs, (), into_order=not orders)
        if kind.startswith(_ENDS) and not self._counts.isdisjoint(sources):
            self._counts.add(op)
            return Pattern((), (), (None,), ((-1,),), ((0,),))
        if not orders:
            return None
        if kind.startswith(_COUNTS):
            self._counts.add(op)
            return Pattern(("row",), (Meaning(),), ((0,),), ((-1,),), ((0,),))
        if kind.startswith(_PUTS) and len(sources) == 3 and sources[1] in self._leads_back:
            if rows is not None and is_order:  # of an order, the order back
                self._leads_back[op] = True
                return _moved(rows, inputs, outputs, (0, 2), into_order=False)
            rows = self._rows(inputs[2:])
            is_back = self._leads_back[sources[1]]
            return None if rows is None else _moved(rows, inputs, outputs, (1,), into_order=is_back)
        if kind == _PICKS and list(sources[1:]) == orders and rows is not None:
            return _moved(rows, inputs, outputs, (1,), into_order=not self._leads_back[orders[0]])
        if is_order:
            self._leads_back[op] = any(self._leads_back[at] for at in orders)
        return None

    def _rows(self, shapes: Sequence[Shape]) -> _Sorted | None:
        """The sorted rows of which a tensor has as many."""
        return self._by_rows.get(shapes[0][0]) if shapes and shapes[0] else None


def _sorted_rows(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> _Sorted | None:
    """The sorted rows of a grouped product."""
    if len(inputs) < 2 or len(inputs[0]) != 2 or len(inputs[1]) not in (2, 3):
        return None
    if len(inputs[1]) == 3:
        return _Sorted(inputs[0][0], inputs[1][0])
    return _Sorted(inputs[1][0], outputs[0][0])


def _product(of: _Sorted, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Pattern:
    """A grouped product: of rows with a matrix per group, or of rows with rows per group."""
    axes: tuple[tuple[int, ...], ...]
    if len(inputs[1]) == 3:
        axes = ((_EXPERT, _CONTRACTION), (_EXPERT, _CONTRACTION, _COLUMN), (_EXPERT, _COLUMN))
        rows = [(0, 0), (len(inputs), 0)]
    else:
        axes = ((_CONTRACTION, _EXPERT), (_EXPERT, _COLUMN), (_EXPERT, _CONTRACTION, _COLUMN))
        rows = [(0, 1), (1, 0)]
    if not of.are_apart:
        axes = tuple(tuple(-1 if d == _EXPERT else d for d in words) for words in axes)
    return Pattern(
        words=("expert", "row", "contraction", "column"),
        meanings=(Meaning(),) * 4,
        inputs=(axes[0], axes[1], *[None] * (len(inputs) - 2)),
        outputs=(axes[2],),
        linear=((0,), (1,)),
        pieces=tuple(AxisPart(_ROW, tensor, axis, 1, of.each) for tensor, axis in rows),
    )


def _moved(
    of: _Sorted,
    inputs: Sequence[Shape],
    outputs: Sequence[Shape],
    own: Sequence[int],
    *,
    into_order: bool,
) -> Pattern:
    """Rows that go into the order of experts, or out of it into that of tokens.

    Of the arguments in ``own``, each device has what it made itself. Of two others, the first is
    written into, and like the result.
    """
    *written, read = [i for i in range(len(inputs)) if i not in own]
    every = [*inputs, *outputs]
    results = [*written, *range(len(inputs), len(every))]
    sorted_ones, tokens = (results, [read]) if into_order else ([read], results)
    groups = gcd(of.each, *(every[t][0] for t in tokens))
    pieces = [AxisPart(0, t, 0, of.each // groups, of.each) for t in sorted_ones]
    pieces += [AxisPart(0, t, 0, every[t][0] // groups, every[t][0]) for t in tokens]
    others = range(1, max(map(len, every)))
    axes = [(-1, *range(1, len(shape)))[: len(shape)] for shape in every]
    return Pattern(
        words=("token", *(f"axis{i}" for i in others)),
        meanings=(Meaning(),) * (1 + len(others)),
        inputs=tuple(None if i in own else axes[i] for i in range(len(inputs))),
        outputs=tuple(axes[len(inputs) :]),
        linear=((*written, read),),
        pieces=tuple(pieces),
    )
