"""The nodes and edges of the labelling problem: each op, parameter, optimizer slot and input is a
node, and each tensor that one of them reads is an edge.

A tensor with several readers gets a node of its own between its maker and them, a *hub*. The hub's
label is the spec that the readers share, so a collective that several readers need is paid for
once. A parameter has one hub in the forward pass and one in the backward pass, because FSDP gathers
it in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.model.graph import INPUT, PARAMETER, OpGraph
from loadmaster.strategies.sharding.joint import firsts, joint
from loadmaster.strategies.sharding.ways import Ways
from loadmaster.transforms.batch_norm import sums_gradients
from loadmaster.transforms.gradients import Updates, of_experts

#: Kinds of tensors by their traffic: part of the model's work; a gradient on its
#: way to an update; a parameter on its way to where it is used.
ACTIVATION, GRADIENT, WEIGHT = range(3)

#: Attribute in which dimensions keep their structures.
_KEPT = "_structures"


@dataclass(frozen=True)
class Arguments:
    """Tensors that labelled ops read of labelled ops, a row each. Ops are nodes, from 0.

    Attributes
    ----------
    reader, root : int64 [n]
    position : int64 [n]
        Which of the reader's arguments.
    output : int64 [n]
        Which of the root's outputs.
    argument : int64 [n]
        The row of the dimensions' arguments.
    back : int64 [n]
        Index into the backs of the dimensions.
    traffic : int8 [n]
        What the tensor is: :data:`ACTIVATION`, :data:`GRADIENT` or :data:`WEIGHT`.
    is_written : bool [n]
        Whether the reader writes into it.
    """

    reader: NDArray[np.int64]
    root: NDArray[np.int64]
    position: NDArray[np.int64]
    output: NDArray[np.int64]
    argument: NDArray[np.int64]
    back: NDArray[np.int64]
    traffic: NDArray[np.int8]
    is_written: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Structure:
    """The ops of a graph that are labelled, as nodes; what is the same on every mesh.

    Attributes
    ----------
    dimensions : Dimensions
    updates : Updates
    op : int64 [n]
        The op of each node, ascending.
    node : int64 [n_ops]
        The node of each op; -1: none.
    way : int64 [n]
        The row of each node in :attr:`ways`.
    ways : Ways
    in_update : bool [n]
        Whether a node is updated, a slot of an optimizer, or an op that updates one parameter.
    arguments : Arguments
    """

    dimensions: Dimensions
    updates: Updates
    op: NDArray[np.int64]
    node: NDArray[np.int64]
    way: NDArray[np.int64]
    ways: Ways
    in_update: NDArray[np.bool_]
    arguments: Arguments

    @classmethod
    def of(cls, dimensions: Dimensions, batch_norm: str = "local") -> Structure:
        """The nodes of a graph, whose batch norms are "local" or "synchronised"; found once for
        each graph. O(V + E), and sorting.
        """
        known: dict[str, Structure] = vars(dimensions).setdefault(_KEPT, {})
        if batch_norm not in known:
            known[batch_norm] = cls._made(dimensions, batch_norm)
        return known[batch_norm]

    @classmethod
    def _made(cls, dimensions: Dimensions, batch_norm: str) -> Structure:
        graph = dimensions.graph
        updates = Updates.of(graph, graph.roles.many)
        op = np.flatnonzero(dimensions.form_of >= 0)
        node = np.full(graph.n_ops, -1, dtype=np.int64)
        node[op] = np.arange(len(op))
        in_update = updates.of_op[op] >= 0
        in_update[node[updates.parameter[node[updates.parameter] >= 0]]] = True
        form = dimensions.form_of[op].astype(np.int64)
        of_expert = of_experts(dimensions.experts, updates)[0][op] >= 0
        sums_late = sums_gradients(graph)[op] & (batch_norm == "local")
        way = joint(form, in_update, of_expert, sums_late)
        forms = [
            (dimensions.forms[form[i]], bool(in_update[i]), bool(of_expert[i]), bool(sums_late[i]))
            for i in firsts(way).tolist()
        ]
        arguments = _arguments(dimensions, node)
        return cls(dimensions, updates, op, node, way, Ways.of(forms), in_update, arguments)

    @property
    def graph(self) -> OpGraph:
        """The graph."""
        return self.dimensions.graph

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.op)

    def labels(self, columns: NDArray[np.int64]) -> NDArray[np.int32]:
        """The labels of the ops of the graph, int32 [n_axes, n_ops], from those of nodes."""
        labels = np.zeros((len(columns), self.graph.n_ops), dtype=np.int32)
        labels[:, self.op] = self.ways.label[self.way, columns]
        return labels

    @cached_property
    def stands_for(self) -> NDArray[np.int8]:
        """The kind of placeholder that each node is; -1: it runs."""
        return self.graph.stands_for[self.op]

    @cached_property
    def expert(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The expert of its layer that each node is of, -1: none; and how many there are."""
        number, count = of_experts(self.dimensions.experts, self.updates)
        return number[self.op], count[self.op]

    @cached_property
    def unit(self) -> NDArray[np.int64]:
        """The unit that one device has whole, if it does: a number per expert and per update that
        is of none; -1: the node is of neither.
        """
        number, count = self.expert
        of_set = self.updates.of_op.copy()
        of_set[self.updates.parameter] = self.updates.of_parameter
        # Experts of one number are on one device, whatever the layer.
        return np.where(count > 0, self.updates.n + number, of_set[self.op])

    @cached_property
    def together(self) -> NDArray[np.int64]:
        """Per argument, how many experts read or make such a one: their tensors are sent together;
        1: it is no expert's.
        """
        a, (_, count) = self.arguments, self.expert
        return np.maximum(np.maximum(count[a.root], count[a.reader]), 1)

    @cached_property
    def wanted(self) -> NDArray[np.int64]:
        """Per argument, the row of :attr:`specs_wanted` that says which spec its reader wants."""
        a = self.arguments
        return joint(self.way[a.reader], a.position, a.back)

    @cached_property
    def specs_wanted(self) -> NDArray[np.int32]:
        """The spec of the root that each label of a reader wants: int32 [rows, most labels]."""
        a, ways = self.arguments, self.ways
        some = firsts(self.wanted)
        specs: NDArray[np.int32] = ways.inputs[
            ways.first_input[self.way[a.reader[some]]] + a.position[some]
        ].copy()
        for row, back in enumerate(a.back[some].tolist()):
            cut = specs[row] >= 0
            specs[row, cut] = np.array((*self.dimensions.backs[back], -1))[specs[row, cut]]
        return specs

    @cached_property
    def made(self) -> NDArray[np.int64]:
        """Per argument, the row of the ways' outputs that its tensor is."""
        a = self.arguments
        return self.ways.first_output[self.way[a.root]] + a.output

    @cached_property
    def hub(self) -> NDArray[np.int64]:
        """Per argument, the hub that it is read from, from 0; -1: from the root itself."""
        a = self.arguments
        phase = np.where(a.traffic == WEIGHT, self.phase[a.reader], -1)
        code = joint(a.root, a.output, phase)
        shared = ~a.is_written & (self.stands_for[a.root] != INPUT)
        hubs = np.full(len(code), -1, dtype=np.int64)
        if not shared.any():
            return hubs
        pairs = firsts(joint(code[shared], a.reader[shared]))
        readers = np.bincount(code[shared][pairs], minlength=int(code.max()) + 1)
        has = shared & (readers[code] > 1)
        if has.any():
            hubs[has] = joint(code[has])
        return hubs

    @cached_property
    def phase(self) -> NDArray[np.int64]:
        """The phase of each node: 0 forward, 1 backward, 2 update."""
        known = {"f": 0, "b": 1, "o": 2}
        phases = self.graph.phases
        return np.array([known.get(phases[op], 0) for op in self.op.tolist()], dtype=np.int64)

    @cached_property
    def written(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Placeholders that are updated in place, and the op that writes each last, as nodes."""
        owner = self.owner
        writes = np.flatnonzero((owner >= 0) & (self.stands_for < 0))
        writes = writes[self.stands_for[owner[writes]] >= 0]
        last: dict[int, int] = dict(zip(owner[writes].tolist(), writes.tolist(), strict=True))
        return np.array(list(last), dtype=np.int64), np.array(list(last.values()), dtype=np.int64)

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """The node whose storage each node writes into; -1: it has its own."""
        return owners(self.graph, self.op, self.node)

    @cached_property
    def is_long(self) -> NDArray[np.bool_]:
        """True for nodes of the forward pass that the backward pass reads."""
        a, long = self.arguments, np.zeros(self.n, dtype=bool)
        later = (self.phase[a.reader] == 1) & (self.phase[a.root] == 0)
        long[a.root[later & (self.stands_for[a.root] < 0)]] = True
        return long

    @cached_property
    def resident(self) -> NDArray[np.float64]:
        """Bytes that each node keeps for the whole step."""
        return self.graph.resident[self.op].astype(np.float64)


def owners(graph: OpGraph, op: NDArray[np.int64], node: NDArray[np.int64]) -> NDArray[np.int64]:
    """The node whose storage each node writes into; -1: it has storage of its own."""
    alias = graph.alias_of[op]
    owner = np.full(len(op), -1, dtype=np.int64)
    in_place = np.flatnonzero((alias >= 0) & ~graph.view[op])
    shows = graph.reduced.shows
    for i in in_place.tolist():
        at = int(alias[i])
        while shows[at] != at or (graph.alias_of[at] >= 0):
            at = int(shows[at] if shows[at] != at else graph.alias_of[at])
        owner[i] = node[at]
    return owner


def _arguments(dimensions: Dimensions, node: NDArray[np.int64]) -> Arguments:
    graph = dimensions.graph
    counts = np.diff(dimensions.first)
    reader_op = np.repeat(np.arange(graph.n_ops), counts)
    position = np.arange(len(reader_op)) - dimensions.first[reader_op]
    has = (dimensions.root >= 0) & (node[reader_op] >= 0)
    has &= node[np.maximum(dimensions.root, 0)] >= 0
    reader_op, root_op = reader_op[has], dimensions.root[has].astype(np.int64)
    stands_for, many = graph.stands_for, graph.roles.many
    traffic = np.full(len(reader_op), ACTIVATION, dtype=np.int8)
    traffic[many[root_op] & graph.updates[reader_op] & ~graph.updates[root_op]] = GRADIENT
    traffic[(stands_for[root_op] == PARAMETER) & ~graph.updates[reader_op]] = WEIGHT
    op = np.flatnonzero(node >= 0)
    owner = owners(graph, op, node)
    itself = np.where(owner >= 0, owner, np.arange(len(op)))
    reader, root = node[reader_op], node[root_op]
    return Arguments(
        reader,
        root,
        position[has],
        dimensions.output[has].astype(np.int64),
        np.flatnonzero(has),
        dimensions.back[has].astype(np.int64),
        traffic,
        (owner[reader] >= 0) & (itself[root] == owner[reader]),
    )
