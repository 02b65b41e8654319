"""Recomputation: activations that are not kept for the backward pass but recomputed in it.

Chen et al. 2016, as frameworks do it by modules (PyTorch's activation checkpointing). The
inputs of a module are kept, and so is what others read of it in the forward pass. The rest is
freed. When the backward pass reaches the module, it computes what it needs of that a second time,
from what was kept. Random numbers are kept: a second draw would give others.

Some ops of a module alone may be recomputed, as Megatron-LM's selective recomputation has it
(Korthikanti et al. 2022) and PyTorch's selective activation checkpointing. Then what the others in
the module read of them is not kept for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.base.units import counted
from loadmaster.model.arguments import renumbered
from loadmaster.model.graph import SIZE_COLUMNS, TIME_SOURCES, OpGraph
from loadmaster.model.program import Program
from loadmaster.model.recomputed import RecomputedSegments
from loadmaster.transforms.base import ranks
from loadmaster.transforms.ways import without_gaps

#: Parts of the names of kinds that draw random numbers.
_RANDOM = ("bernoulli", "dropout", "multinomial", "normal_", "rand", "uniform")

#: The end of the name of an op that is recomputed.
_AGAIN = "@again"


def recompute(graph: OpGraph, modules: Iterable[str]) -> Program:
    """The graph with modules whose activations are recomputed in the backward pass.

    Parameters
    ----------
    graph : OpGraph
        Of a training step: its phases say what is forward and what is backward.
    modules : iterable of str
        Patterns of module paths. Each module that fits one is recomputed by itself: ``"h.*"`` are
        the modules ``h.0``, ``h.1`` and so on, with all that is in them. Behind bars are selectors
        of the ops of these modules that alone are recomputed, with what shares their storage:
        ``"h.* | h.* aten._softmax.default"``.

    Returns
    -------
    Program
        Its graph has the ops of the given one, and for each that is recomputed another one, named
        ``name@again``, right before the first op of the backward pass that reads what these make.
        Calls keep their arguments.

    Raises
    ------
    InputError
        A pattern of no module, a selector of no op; a graph without a backward pass; ops that are
        members of collectives.

    Notes
    -----
    O(V + E), and sorting. A module waits with its second forward pass for the gradients that its
    first op of the backward pass reads. So does each line by itself of which ops are meant: what
    one line means is kept where ops that another line means read it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph = lm.read("example:gpt3-330m")
    >>> again = recompute(graph, ["h.*"]).graph
    >>> [name for name in again.names if name.startswith("gelu@")][:1]
    ['gelu@again']
    """
    return _recomputed(graph, tuple(modules))


def is_recomputed(graph: OpGraph, modules: Iterable[str]) -> NDArray[np.bool_]:
    """True for the ops that :func:`recompute` would run a second time, bool [n_ops].

    >>> import loadmaster as lm
    >>> graph = lm.read("example:gpt3-330m")
    >>> bool(is_recomputed(graph, ["h.*"])[graph.index("gelu")])
    True
    """
    return _recomputation(graph, modules).copied


@lru_cache(maxsize=4)
def _recomputed(graph: OpGraph, modules: tuple[str, ...]) -> Program:
    """The program, made once: several layouts are tried on the same one."""
    return _recomputation(graph, modules).program()


def _recomputation(graph: OpGraph, modules: Iterable[str]) -> _Recomputation:
    segments = RecomputedSegments.of_lines(graph, modules)
    if graph.is_member.any():
        op = graph.names[int(graph.is_member.argmax())]
        raise InputError(f"op {op!r} is a member of a collective: recompute first, then shard")
    phase = np.array(graph.phases, dtype=object)
    if not (phase == "b").any():
        raise InputError("nothing is recomputed: no op of the graph is of a backward pass")
    return _Recomputation(graph, segments, phase == "f", phase == "b")


class _Recomputation:
    """The ops that are recomputed, and where."""

    def __init__(
        self,
        graph: OpGraph,
        segments: RecomputedSegments,
        is_forward: NDArray[np.bool_],
        is_backward: NDArray[np.bool_],
    ) -> None:
        self.graph, self.is_backward = graph, is_backward
        self.src, self.dst = graph.src, graph.dst
        self.tensor = graph.src if graph.tensor is None else graph.tensor
        self.carries = self.tensor >= 0
        #: Place of each op in an order in which all that it reads comes before it.
        self.rank = ranks(graph)
        #: The op or placeholder whose storage each op has a part of.
        self.storage = storage_of(graph)
        self.segments = segments.with_storage(self.storage, is_forward & ~graph.placeholder)
        self.segment = self.segments.of
        self.copied = self._copied()
        #: Per segment, the op of the backward pass that comes first of those that read of it.
        self.before = self._first(np.where(self.copied, self.segment, -1))

    def _copied(self) -> NDArray[np.bool_]:
        """True for ops that are recomputed."""
        graph, src, dst = self.graph, self.src, self.dst
        can = (self.segment >= 0) & ~graph.placeholder
        kinds = graph.kinds
        can &= ~np.array([any(word in kind for word in _RANDOM) for kind in kinds], dtype=bool)
        # What others read in the forward pass is kept, with all that shows or rewrites it.
        leaves = self.carries & ~self.is_backward[dst] & self.segments.leaves(src, dst)
        kept = np.zeros(graph.n_ops, dtype=bool)
        kept[self.storage[src[leaves]]] = True
        kept[self.storage[~can & ~self.is_backward]] = True
        can &= ~kept[self.storage]
        wanted = np.zeros(graph.n_ops, dtype=bool)
        wanted[src[self.carries & self.is_backward[dst]]] = True
        # An op reads what comes before it, so one pass from the back finds all that is needed.
        needs: list[list[int]] = [[] for _ in range(graph.n_ops)]
        inner = can[src] & can[dst] & (self.segment[src] == self.segment[dst])
        for a, b in zip(src[inner].tolist(), dst[inner].tolist(), strict=True):
            needs[b].append(a)
        copied = wanted & can
        for op in np.argsort(-self.rank).tolist():
            if copied[op]:
                copied[needs[op]] = True
        return copied

    def _first(self, shown: NDArray[np.int64]) -> NDArray[np.int64]:
        """Per segment, the op of the backward pass that comes first of those that read what has
        it, and have none themselves; the number of ops: there is none.
        """
        src, dst = self.src, self.dst
        reads = self.carries & (shown[src] >= 0) & self.is_backward[dst] & (shown[dst] < 0)
        first = np.full(int(self.segment.max(initial=-1)) + 1, self.graph.n_ops, dtype=np.int64)
        np.minimum.at(first, shown[src[reads]], self.rank[dst[reads]])
        return np.append(np.argsort(self.rank), self.graph.n_ops)[first]

    def program(self) -> Program:
        """The program."""
        graph, n = self.graph, self.graph.n_ops
        again = np.flatnonzero(self.copied)
        place = np.concatenate([np.arange(n), self.before[self.segment[again]]])
        is_original = np.concatenate([np.ones(n, dtype=bool), np.zeros(len(again), dtype=bool)])
        serves = np.concatenate([np.arange(n), again])
        order = np.lexsort((serves, is_original, place))
        at = np.empty(len(order), dtype=np.int64)
        at[order] = np.arange(len(order))
        #: Places of each op and of its second copy.
        original, copy = at[:n], np.full(n, -1, dtype=np.int64)
        copy[again] = at[n:]
        serves = serves[order]
        is_copy = ~is_original[order]
        running = OpGraph(
            self._ops(serves, is_copy, original, copy),
            self._edges(original, copy),
            name=graph.name,
            meta={k: v for k, v in graph.meta.items() if k != TIME_SOURCES},
        )
        return Program.made(graph, running, serves, notes=(self._note(again),))

    def _note(self, again: NDArray[np.int64]) -> str:
        """The cost, in words."""
        flops = self.graph.flops.astype(np.float64)
        share = flops[again].sum() / max(flops.sum(), 1.0)
        ops = counted(len(again), "op")
        return f"recomputation: {ops} of the forward pass run twice, {share:.0%} more FLOPs a step"

    def _ops(
        self,
        serves: NDArray[np.int64],
        is_copy: NDArray[np.bool_],
        original: NDArray[np.int64],
        copy: NDArray[np.int64],
    ) -> dict[str, Any]:
        graph, ops = self.graph, serves.tolist()
        copies = is_copy.tolist()
        columns: dict[str, Any] = {
            column: [texts[op] for op in ops] for column, texts in graph.texts.items()
        }
        columns["name"] = [
            name + _AGAIN if again else name
            for name, again in zip(columns["name"], copies, strict=True)
        ]
        columns["phase"] = [
            "b" if again else phase for phase, again in zip(columns["phase"], copies, strict=True)
        ]
        for column in (*SIZE_COLUMNS, "runs", "view"):
            columns[column] = getattr(graph, column)[serves]
        owner = graph.alias_of[serves]
        reads_copy = (is_copy | self.is_backward[serves]) & (copy[owner] >= 0)
        seen = np.where(reads_copy, copy[owner], original[owner])
        columns["alias_of"] = np.where(owner >= 0, seen, -1)
        columns["time"] = {kind: seconds[serves] for kind, seconds in graph.time.items()}
        if graph.args is not None:
            columns["args"] = self._args(graph.args, ops, copies, original, copy)
        return columns

    def _args(
        self,
        args: list[Any],
        ops: list[int],
        copies: list[bool],
        original: NDArray[np.int64],
        copy: NDArray[np.int64],
    ) -> list[Any]:
        """The calls, with the tensors that each op reads now."""
        first, second = original.tolist(), copy.tolist()
        backward = self.is_backward.tolist()
        calls = []
        for op, again in zip(ops, copies, strict=True):
            call = args[op]
            if call is not None:
                reads_copies = again or backward[op]

                def now(read: int, either: bool = reads_copies) -> int:
                    at: int = second[read] if either and second[read] >= 0 else first[read]
                    return at

                call = renumbered(call, now)
            calls.append(call)
        return calls

    def _edges(self, original: NDArray[np.int64], copy: NDArray[np.int64]) -> dict[str, Any]:
        """Edges of the graph, with readers in the backward pass on copies, and those of copies."""
        graph, src, dst, tensor = self.graph, self.src, self.dst, self.tensor
        stride = int(tensor.max(initial=-1)) + 1
        reads_copy = self.copied[src] & self.is_backward[dst]
        kept = (
            np.where(reads_copy, copy[src], original[src]),
            original[dst],
            np.where(reads_copy & self.carries, tensor + stride, tensor),
            graph.bytes,
        )
        into = self.copied[dst]
        inner = self.copied[src[into]]
        second = (
            np.where(inner, copy[src[into]], original[src[into]]),
            copy[dst[into]],
            np.where(inner & self.carries[into], tensor[into] + stride, tensor[into]),
            graph.bytes[into],
        )
        # What is written after the forward pass is written after it was read for the second time.
        after = np.flatnonzero((tensor < 0) & self.copied[src] & (self.segment[dst] < 0))
        begins = self.rank[self.before[self.segment[src[after]]]]
        after = after[self.rank[dst[after]] > begins]
        order = (copy[src[after]], original[dst[after]])
        waits = self._waits(original, copy)
        controls = [(a, b, np.full(len(a), -1), np.zeros(len(a))) for a, b in (order, waits)]
        columns = [np.concatenate(column) for column in zip(kept, second, *controls, strict=True)]
        columns[2] = without_gaps(columns[2])
        return dict(zip(("src", "dst", "tensor", "bytes"), columns, strict=True))

    def _waits(
        self, original: NDArray[np.int64], copy: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """From what makes the gradients that a module's backward pass begins with, to the copies
        that read no other copy.
        """
        src, dst = self.src, self.dst
        reads = self.carries & self.copied[src] & self.copied[dst]
        is_first = self.copied.copy()
        is_first[dst[reads]] = False
        begins: dict[int, list[int]] = {}
        for op in np.flatnonzero(is_first).tolist():
            begins.setdefault(int(self.segment[op]), []).append(op)
        shown = self._shown()
        trigger = self._first(shown)
        from_, to = [], []
        for segment, heads in begins.items():
            into = (dst == trigger[segment]) & self.carries
            gradients = src[into & (shown[src] != segment)]
            gradients = gradients[~self.graph.placeholder[gradients]]
            for gradient in np.unique(gradients).tolist():
                from_ += [gradient] * len(heads)
                to += heads
        return original[np.array(from_, dtype=np.int64)], copy[np.array(to, dtype=np.int64)]

    def _shown(self) -> NDArray[np.int64]:
        """The segment of each op that is recomputed, and of each view of one in the backward pass;
        -1: of none.
        """
        segment = np.where(self.copied, self.segment, -1)
        views = self.carries & self.graph.view[self.dst] & self.is_backward[self.dst]
        rows = np.flatnonzero(views)
        for row in rows[np.argsort(self.rank[self.dst[rows]], kind="stable")].tolist():
            segment[self.dst[row]] = max(segment[self.dst[row]], segment[self.src[row]])
        return segment


def storage_of(graph: OpGraph) -> NDArray[np.int64]:
    """The op or placeholder whose storage each op's result is in."""
    shows = graph.reduced.shows.astype(np.int64)
    storage = np.where(graph.view, shows, np.where(graph.alias_of >= 0, graph.alias_of, shows))
    while True:
        further = storage[storage]
        if (further == storage).all():
            return storage
        storage = further
