"""Splitting one op into sub-ops: FastT's SplitOperation (Yi et al., Middleware 2020, Algorithm 2).

An op is cut along one of its named dimensions (:mod:`loadmaster.dimensions`). For each input that
is sliced along it, a split op reads the whole input and hands out the slices. For each output,
another op joins the parts. These ops read and write real bytes, so no split is free.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.costs.program import ProgramWork
from loadmaster.model.graph import TEXTS, OpGraph, Texts
from loadmaster.model.program import JOIN, SLICE, Program, Split, user_roles
from loadmaster.model.shapes import Shape, format_output
from loadmaster.transforms.base import CONCAT, SPLIT, SUM, build, elements, shares
from loadmaster.transforms.cut import OpCut, cuts


def dimensions(graph: OpGraph, op: str | int) -> dict[str, int]:
    """Dimensions along which an op can be split, with their sizes; empty: none.

    They are those of the named dimensions whose parts need nothing of each other: no sums, no
    halos.

    Raises
    ------
    InputError
        No such op.

    Notes
    -----
    O(E) once per op.

    Examples
    --------
    >>> import loadmaster as lm
    >>> lm.transforms.dimensions(lm.read("example:lenet"), "convolution_1")
    {'batch': 256, 'output_channel': 50}
    """
    at = graph.index(op)
    if _unsplittable(graph, at):
        return {}
    by_dimension = cuts(graph, at)
    return (
        {}
        if isinstance(by_dimension, str)
        else {name: cut.size for name, cut in by_dimension.items()}
    )


def split_op(
    graph: OpGraph, op: str | int, dimension: str, n: int, *, best_effort: bool = False
) -> Program:
    """Splits an op into ``n`` sub-ops along a dimension.

    Parameters
    ----------
    graph : OpGraph
        Whose ``output`` column has the shapes of the op and of what it reads.
    op : str or int
        Name or index.
    dimension : str
        One of :func:`dimensions`.
    n : int
        Sub-ops, at least 2.
    best_effort : bool
        Whether a size that ``n`` does not divide is cut unevenly, which the notes then say.

    Returns
    -------
    Program
        In place of ``name``: ``name@split0`` (per sliced input, by its position), ``name@s0``,
        ``name@s1``, ..., and ``name@concat`` or ``name@sum`` (numbered if there are several
        outputs).

    Raises
    ------
    InputError
        No such op, an op that cannot be split, or not along this dimension or into so many; op,
        dimension, size and ``n`` are named.

    Notes
    -----
    FLOPs and workspace are divided in whole numbers that add up to the op's. So is
    ``bytes_accessed``, but for inputs that each sub-op reads whole and outputs that each writes
    whole, to be summed. A split or concatenation of b bytes accesses 2 b; a sum of n tensors
    (n + 1) b, with n - 1 FLOPs per element. A parameter stays one, sliced by its split op or not.
    What waits for the op by a control edge waits for every sub-op.

    O(V + E), in copies of whole columns.

    Examples
    --------
    >>> import loadmaster as lm
    >>> split = lm.transforms.split_op(lm.read("example:lenet"), "convolution_1", "batch", 2)
    >>> [name for name in split.graph.names if "convolution_1@" in name]
    ['convolution_1@split0', 'convolution_1@s0', 'convolution_1@s1', 'convolution_1@concat']
    """
    return planned_split(graph, op, dimension, n, best_effort=best_effort).program()


def planned_split(
    graph: OpGraph, op: str | int, dimension: str, n: int, *, best_effort: bool = False
) -> Splitting:
    """The ops that :func:`split_op` puts in the place of an op, before they are put there.

    It takes as long as the op has edges, and a look at the columns of edges.

    Raises
    ------
    InputError
        As :func:`split_op`.
    """
    at = graph.index(op)
    name = graph.names[at]
    checks.integer(f"op {name!r}: n", n, 2, wants="a number of parts, an integer >= 2")
    reason = _unsplittable(graph, at)
    if reason:
        raise InputError(f"op {name!r} cannot be split: {reason}")
    known = cuts(graph, at)
    if isinstance(known, str):
        raise InputError(f"op {name!r} cannot be split along {dimension!r}: {known}")
    if dimension not in known:
        allowed = ", ".join(known) or "none"
        raise InputError(
            f"op {name!r} ({graph.kinds[at]}) cannot be split along {dimension!r}: "
            f"its dimensions are {allowed}"
        )
    cut = known[dimension]
    if n > cut.size or (cut.size % n and not best_effort):
        way_out = "" if n > cut.size else "; best_effort=True cuts unevenly"
        raise InputError(
            f"op {name!r}: {dimension} has size {cut.size}, which cannot be cut into {n} "
            f"{'equal ' if n <= cut.size else ''}parts{way_out}"
        )
    chunks = shares(cut.size, [1] * int(n))
    notes: tuple[str, ...] = ()
    if cut.size % n:
        sizes = ", ".join(map(str, chunks))
        notes = (f"op {name!r}: {dimension} of {cut.size} is cut unevenly, into {sizes}",)
    return Splitting(graph, at, cut, chunks, Split(name, dimension, int(n)), notes)


def _unsplittable(graph: OpGraph, at: int) -> str:
    """The reason why an op cannot be split, whatever the rule; empty: there is none."""
    if graph.placeholder[at] or graph.view[at]:
        return "it is a view or placeholder, which costs nothing"
    if graph.alias_of[at] >= 0:
        return f"it writes {graph.names[int(graph.alias_of[at])]!r} in place"
    if graph.param_bytes[at]:
        return "it holds weights itself, of which no rule says what each part needs"
    if graph.colocation[at]:
        return f"it must stay with the ops of colocation set {graph.colocation[at]!r}"
    if graph.collectives[at]:
        return f"it is a member of collective {graph.collectives[at]!r}"
    return ""


# -- the split graph --------------------------------------------------------------------------


class Splitting:
    """The block of ops that replaces one op.

    The block has the split ops first, then the sub-ops, then one op per output that joins parts.
    """

    def __init__(
        self,
        graph: OpGraph,
        at: int,
        cut: OpCut,
        chunks: list[int],
        split: Split,
        notes: tuple[str, ...],
    ) -> None:
        self.graph, self.at, self.cut, self.chunks = graph, at, cut, chunks
        self.split, self.notes = split, notes
        self.n = len(chunks)
        self.sliced = [j for j, axis in enumerate(cut.inputs) if axis is not None]
        self.joined = cut.joined
        #: First sub-op, and first op that joins.
        self.parts = at + len(self.sliced)
        self.joins = self.parts + self.n
        self.block = len(self.sliced) + self.n + len(self.joined)
        # Bytes of each tensor that the op reads.
        reads, sizes = cut.op.reads, graph.bytes
        self.read = [int(sizes[e]) for e in reads]

    @cached_property
    def work(self) -> ProgramWork:
        """The ops of the block, as far as their times depend on them."""
        joins = len(self.joined)
        block = self._block
        share = [1.0] * len(self.sliced) + [c / self.cut.size for c in self.chunks] + [1.0] * joins
        own = int(user_roles(self.graph)[self.at])
        role = [SLICE] * len(self.sliced) + [own] * self.n + [JOIN] * joins
        return ProgramWork(
            self.graph,
            np.full(self.block, self.at, dtype=np.int32),
            np.array(share),
            np.array(role, dtype=np.uint8),
            np.array(block["flops"], dtype=np.uint64),
            np.array(block["bytes_accessed"], dtype=np.uint64),
            np.zeros(self.block, dtype=bool),
            np.full(self.block, self.graph.runs[self.at]),
            block["output"],
        )

    def program(self) -> Program:
        """The graph with the block in it. O(V + E), in copies of whole columns."""
        graph, at, work, block = self.graph, self.at, self.work, self._block
        whole = np.arange(graph.n_ops, dtype=np.int32)
        part, parts = np.zeros(self.block, np.int32), np.ones(self.block, np.int32)
        inside = slice(self.parts - at, self.joins - at)
        part[inside], parts[inside] = np.arange(self.n), self.n
        texts = {column: self._texts(column, block.get(column)) for column in TEXTS}
        core = fast.replace_op(graph._core, texts["name"], at, **self._numbers())
        return build(
            graph,
            core,
            texts,
            serves=self._spliced(whole, work.serves),
            part=self._spliced(np.zeros_like(whole), part),
            parts=self._spliced(np.ones_like(whole), parts),
            share=self._spliced(np.ones(len(whole)), work.share),
            role=self._spliced(user_roles(graph), work.role),
            splits=(self.split,),
            notes=self.notes,
        )

    # -- ops -----------------------------------------------------------------------------------

    def _spliced(self, column: NDArray[Any], block: NDArray[Any]) -> NDArray[Any]:
        """A column with the values of the block in the place of the op's."""
        return np.concatenate([column[: self.at], block, column[self.at + 1 :]])

    def _texts(self, column: str, block: list[str] | None) -> Texts:
        """A column with the block's texts in the place of the op's; absent: they are the op's."""
        before, at, n = self.graph.column_of_texts(column), self.at, self.block

        def make() -> list[str]:
            values = before.all
            return [*values[:at], *(block or [values[at]] * n), *values[at + 1 :]]

        return Texts(make)

    def _numbers(self) -> fast._Block:
        """Columns of :func:`loadmaster.fast.replace_op`."""
        op, block = self.cut.op, self._block
        rows = self._edges()
        shows = np.flatnonzero(self.graph.alias_of == self.at)

        def sizes(column: str) -> NDArray[np.uint64]:
            return np.array(block[column], dtype=np.uint64)

        return {
            "flops": sizes("flops"),
            "accessed": sizes("bytes_accessed"),
            "output_bytes": sizes("output_bytes"),
            "workspace": sizes("workspace"),
            "dropped": op.entering,
            "leaving": op.leaving,
            "leaving_src": self._leaving(),
            "src": rows[:, 0],
            "dst": rows[:, 1],
            "tensor": rows[:, 2],
            "bytes": rows[:, 3],
            "shows": shows,
            "shown": self._shown(shows),
        }

    @cached_property
    def _block(self) -> dict[str, list[Any]]:
        """Columns of the ops that replace the split op."""
        graph, at, cut, chunks, n = self.graph, self.at, self.cut, self.chunks, self.n
        name = graph.names[at]
        columns = ["name", "kind", "output", "flops", "bytes_accessed", "output_bytes", "workspace"]
        rows: dict[str, list[Any]] = {column: [] for column in columns}

        def add(*values: Any) -> None:
            for column, value in zip(rows.values(), values, strict=True):
                column.append(value)

        for j in self.sliced:
            text = format_output([self._slice(cut.op.shapes[j], cut.inputs[j], c) for c in chunks])
            size = self.read[j]
            add(f"{name}@{SPLIT}{j}", SPLIT, text, 0, 2 * size, size, 0)

        flops = shares(int(graph.flops[at]), chunks)
        workspace = shares(int(graph.workspace[at]), chunks)
        accessed = self._accessed()
        for i, c in enumerate(chunks):
            parts = [
                self._slice(output.shape, axis, c)
                for output, axis in zip(cut.makes, cut.outputs, strict=True)
            ]
            size = sum(self._part_bytes(j)[i] for j in self.joined)
            add(
                f"{name}@s{i}",
                graph.kinds[at],
                format_output(parts),
                flops[i],
                accessed[i],
                size,
                workspace[i],
            )
        several = len(self.joined) > 1
        for j in self.joined:
            output, summed = cut.makes[j], cut.outputs[j] is None
            word = SUM if summed else CONCAT
            size = output.bytes
            work = (n - 1) * elements(size, output.shape[0]) if summed else 0
            add(
                f"{name}@{word}{j if several else ''}",
                word,
                format_output([output.shape]),
                work,
                (n + 1) * size if summed else 2 * size,
                size,
                0,
            )
        return rows

    def _slice(self, shape: Shape, axis: int | None, chunk: int) -> Shape:
        dtype, sizes = shape
        if axis is None or sizes is None:
            return shape
        at = axis % len(sizes)
        return dtype, (*sizes[:at], chunk, *sizes[at + 1 :])

    def _part_bytes(self, j: int) -> list[int]:
        """Bytes of each sub-op's part of an output."""
        size = self.cut.makes[j].bytes
        return [size] * self.n if self.cut.outputs[j] is None else shares(size, self.chunks)

    def _accessed(self) -> list[int]:
        total = int(self.graph.bytes_accessed[self.at])
        read = sum(
            size for size, axis in zip(self.read, self.cut.inputs, strict=True) if axis is None
        )
        written = sum(self.cut.makes[j].bytes for j in self.joined if self.cut.outputs[j] is None)
        # An op that accesses fewer bytes than its inputs have, such as a look-up, reads parts.
        whole = read + written if read + written <= total else min(written, total)
        return [whole + part for part in shares(total - whole, self.chunks)]

    def _moved(self, op: int) -> int:
        """The new index of an op other than the one that is split."""
        return op + (self.block - 1 if op > self.at else 0)

    def _shown(self, showing: NDArray[np.intp]) -> NDArray[np.int64]:
        """The op that joins what each view shows of the op's outputs."""
        graph, cut = self.graph, self.cut
        shown = np.full(len(showing), self.joins)
        if len(self.joined) <= 1:
            return shown
        join_of = self._join_of()
        fed = np.flatnonzero(np.isin(graph.dst, showing) & (cut.op.ids >= 0))
        source: dict[int, tuple[int, int]] = {}
        for e in fed.tolist():
            source.setdefault(int(graph.dst[e]), (int(graph.src[e]), int(cut.op.ids[e])))
        for k, i in enumerate(showing.tolist()):
            op, tensor = i, -1
            while op in source:
                op, tensor = source[op]
            shown[k] = join_of.get(tensor, self.joins)
        return shown

    # -- edges ---------------------------------------------------------------------------------

    def _join_of(self) -> dict[int, int]:
        """The op that joins the parts of each tensor of the op."""
        return {self.cut.makes[j].tensor: self.joins + k for k, j in enumerate(self.joined)}

    def _leaving(self) -> NDArray[np.int64]:
        """The op of the block that each edge out of the op leaves.

        An output without data comes from the first op that joins.
        """
        op, join_of = self.cut.op, self._join_of()
        ids = op.ids[op.leaving].tolist()
        leaves = [self.parts if t < 0 else join_of.get(t, self.joins) for t in ids]
        return np.array(leaves, dtype=np.int64)

    def _edges(self) -> NDArray[np.int64]:
        """Source, destination, tensor and bytes of each new edge, int64 [n, 4]."""
        graph, cut = self.graph, self.cut
        op = cut.op
        rows: list[tuple[int, int, int, int]] = []
        parts = range(self.parts, self.joins)
        fresh = int(op.ids.max(initial=-1)) + 1

        for e in op.entering.tolist():
            if op.ids[e] < 0:
                source = self._moved(int(graph.src[e]))
                rows += [(source, d, -1, 0) for d in (*range(self.at, self.parts), *parts)]
        for j, e in enumerate(op.reads):
            source, tensor, size = self._moved(int(graph.src[e])), int(op.ids[e]), self.read[j]
            if cut.inputs[j] is None:
                rows += [(source, part, tensor, size) for part in parts]
                continue
            node = self.at + self.sliced.index(j)
            rows.append((source, node, tensor, size))
            for part, piece in zip(parts, shares(size, self.chunks), strict=True):
                rows.append((node, part, fresh, piece))
                fresh += 1
        for k, j in enumerate(self.joined):
            for part, piece in zip(parts, self._part_bytes(j), strict=True):
                rows.append((part, self.joins + k, fresh, piece))
                fresh += 1
        for e in op.leaving.tolist():
            if op.ids[e] < 0:
                sink = self._moved(int(graph.dst[e]))
                rows += [(part, sink, -1, 0) for part in parts[1:]]
        return np.array(rows, dtype=np.int64).reshape(-1, 4)
