"""Tensors of a graph, as columns: its outputs, its arguments, and what the optimizer updates.

They are the same for every layout of the graph, so all layouts share them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import REPLICATE
from loadmaster.model.graph import OpGraph
from loadmaster.model.shapes import parse_output
from loadmaster.transforms.batch_norm import is_batch_norm
from loadmaster.transforms.gradients import Updates, of_experts
from loadmaster.transforms.label_tables import LabelTables

#: Numbers of phases.
_PHASES = {"f": 0, "b": 1}


@dataclass(frozen=True, eq=False)
class TensorColumns:
    """Columns of the outputs and arguments of a graph whose dimensions are known."""

    dimensions: Dimensions

    @property
    def graph(self) -> OpGraph:
        """The graph."""
        return self.dimensions.graph

    @cached_property
    def tables(self) -> LabelTables:
        """The meaning of labels, looked up for many ops at once."""
        return LabelTables.of(self.dimensions.forms)

    @cached_property
    def form_of(self) -> NDArray[np.int32]:
        """The form of each op; the last, which has nothing, where there is none."""
        form_of = self.dimensions.form_of
        return np.where(form_of < 0, np.int32(len(self.dimensions.forms)), form_of)

    @cached_property
    def first_output(self) -> NDArray[np.int64]:
        """The first output of each op, and one past the last of all."""
        return np.concatenate([[0], np.cumsum(self.tables.n_outputs[self.form_of])])

    @cached_property
    def maker(self) -> NDArray[np.int64]:
        """The op of each output."""
        return np.repeat(np.arange(self.graph.n_ops), np.diff(self.first_output))

    @cached_property
    def is_read(self) -> NDArray[np.bool_]:
        """True for arguments that are tensors of some op that runs, or of a placeholder, through
        edges. Those of views are not.
        """
        d = self.dimensions
        known = (d.root >= 0) & (d.edge >= 0)
        known &= ~self.graph.view[d.reader] & (d.form_of[d.reader] >= 0)
        return np.asarray(known & (d.form_of[d.root] >= 0))

    @cached_property
    def tensor(self) -> NDArray[np.int64]:
        """The output that each argument is, through views; what is not known is output 0."""
        d = self.dimensions
        known = (d.root >= 0) & (d.form_of[d.root] >= 0)
        return np.where(known, self.first_output[np.where(known, d.root, 0)] + d.output, 0)

    @cached_property
    def set_of(self) -> NDArray[np.int64]:
        """The update that each op belongs to, parameters among them; -1: none."""
        updates = self.updates
        set_of = updates.of_op.copy()
        set_of[updates.parameter] = updates.of_parameter
        return set_of

    @cached_property
    def updates(self) -> Updates:
        """The optimizer's ops by parameter."""
        return Updates.of(self.graph, self.graph.roles.many)

    @cached_property
    def expert(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The expert of its layer that each op is of, -1: none; and how many the layer has."""
        return of_experts(self.dimensions.experts, self.updates)

    @cached_property
    def tensor_bytes(self) -> NDArray[np.uint64]:
        """Bytes of each output: as the edges say that carry it, else by its dtype and shape, else
        those of the state that it is written into.
        """
        graph, texts = self.graph, self.graph.outputs
        known = {text: [_bytes(*one) for one in parse_output(text)] for text in set(texts)}
        counts = np.diff(self.first_output).tolist()
        sizes = [(known[text] + [0] * n)[:n] for text, n in zip(texts, counts, strict=True) if n]
        size = np.array([one for of_op in sizes for one in of_op], dtype=np.uint64)
        at, edge = self.carrying
        size[at] = graph.bytes[edge]
        state = graph.alias_of[self.maker]
        is_written = (size == 0) & (state >= 0)
        size[is_written] = graph.param_bytes[state[is_written]]
        return size

    @cached_property
    def carrying(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Outputs that some edge carries, and such an edge of each: from the op that makes it, if
        there is one, else from a view of it.
        """
        d = self.dimensions
        known = np.flatnonzero((d.root >= 0) & (d.edge >= 0))
        known = known[d.form_of[d.root[known]] >= 0]
        is_shown = self.graph.src[d.edge[known]] != d.root[known]
        known = known[np.argsort(is_shown, kind="stable")]
        tensor, first = np.unique(self.tensor[known], return_index=True)
        return tensor, d.edge[known[first]]

    @cached_property
    def backs(self) -> NDArray[np.int32]:
        """The factor of the tensor as it was made that each factor of a view of it is: a row per
        kind of view.
        """
        d = self.dimensions
        backs = np.full((len(d.backs) + 1, max(map(len, d.backs), default=0) + 1), REPLICATE)
        for i, back in enumerate(d.backs):
            backs[i, : len(back)] = back
        return backs.astype(np.int32)

    @cached_property
    def is_backward(self) -> NDArray[np.bool_]:
        """True for ops of the backward pass."""
        return np.asarray(self.phase == _PHASES["b"])

    @cached_property
    def phase(self) -> NDArray[np.int64]:
        """A number per op, equal for ops of one phase."""
        numbers = dict(_PHASES)
        phases = self.graph.phases
        return np.array([numbers.setdefault(phase, len(numbers)) for phase in phases], np.int64)

    @cached_property
    def is_batch_norm(self) -> NDArray[np.bool_]:
        """True for batch norms, forward and backward."""
        return is_batch_norm(self.graph)

    @cached_property
    def update_work(self) -> NDArray[np.float64]:
        """The work of each update, as :meth:`.Updates.work` has it."""
        return self.updates.work(self.graph)

    @cached_property
    def written(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Parameters and state that the optimizer writes, and the op that writes each last."""
        graph, form_of = self.graph, self.dimensions.form_of
        writes = np.flatnonzero(graph.updates & ~graph.view & (graph.alias_of >= 0))
        state = graph.alias_of[writes]
        known = graph.placeholder[state] & (form_of[state] >= 0) & (form_of[writes] >= 0)
        last = dict(zip(state[known].tolist(), writes[known].tolist(), strict=True))
        return np.array(list(last), dtype=np.int64), np.array(list(last.values()), dtype=np.int64)

    @cached_property
    def is_after_update(self) -> NDArray[np.bool_]:
        """True for ops that depend on an update: there are such in a graph of several steps."""
        graph = self.graph
        order_only = fast.Graph(graph.n_ops, graph.src, graph.dst, np.full(graph.n_edges, -1))
        before, _ = fast.levels(fast.Weights(order_only, graph.updates.astype(np.float64)))
        return np.asarray(before > 0)

    @cached_property
    def has_halos(self) -> NDArray[np.bool_]:
        """True for forms that have a cut with halos, bool [n_forms + 1]."""
        forms = self.dimensions.forms
        return np.array(
            [any(cut.halos or cut.sends for cut in form.cuts) for form in forms] + [False]
        )

    @cached_property
    def newest_read(self) -> NDArray[np.int64]:
        """The last of the ops whose tensors each op reads, int64 [n_ops + 1]; -1: it reads
        placeholders alone.
        """
        d = self.dimensions
        some = np.flatnonzero(self.is_read & ~self.graph.placeholder[d.root])
        newest = np.full(self.graph.n_ops + 1, -1, dtype=np.int64)
        np.maximum.at(newest, d.reader[some], d.root[some])
        return newest


@lru_cache(maxsize=2)
def tensor_columns(dimensions: Dimensions) -> TensorColumns:
    """The columns of a graph, made once."""
    return TensorColumns(dimensions)


def _bytes(dtype: str, sizes: tuple[int, ...] | None) -> int:
    bits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    each = max(int(bits) // 8, 1) if bits.isdigit() else 0
    return each * int(np.prod(sizes, dtype=np.int64)) if sizes is not None else 0
