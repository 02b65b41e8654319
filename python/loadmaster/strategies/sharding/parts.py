"""Parts of ops: seconds and sizes of tensors, for labels on every axis of a mesh.

A part does, axis by axis, its share of what the op does; shares multiply. Where two axes cut one
dimension, the later one takes a part of each part. The time of a part is the cost model's
(:func:`loadmaster.costs.program.costs_of`), on the device of the mesh that is the slowest for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.program import ProgramWork, costs_of
from loadmaster.dimensions.form import ANY, OWNER
from loadmaster.judge.problem import Problem
from loadmaster.model.program import COMPUTE
from loadmaster.model.shapes import parse_output
from loadmaster.strategies.sharding.joint import firsts, joint
from loadmaster.strategies.sharding.structure import Structure
from loadmaster.strategies.sharding.ways import fractions
from loadmaster.transforms.batch_norm import is_batch_norm
from loadmaster.transforms.specs import accessed_share

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Bytes of an element whose dtype is not said.
_ITEM_BYTES = 4


@dataclass(frozen=True)
class Place:
    """A place of a mesh: its device type, and where it is on each axis."""

    type: int
    at: tuple[int, ...]


@dataclass(frozen=True)
class NodeParts:
    """Parts of some nodes, a row each.

    Attributes
    ----------
    seconds : float64 [n]
        Infinite where there is nothing left to cut.
    exchanged : float64 [n_axes, n]
        Bytes that the parts all-reduce on each axis while they run.
    halos : float64 [n_axes, n]
        Bytes that a part gets from a neighbour on each axis before it runs.
    inputs, outputs : float64 [rows]
        Fraction of each argument and output that a part reads and makes.
    """

    seconds: Floats
    exchanged: Floats
    halos: Floats
    inputs: Floats
    outputs: Floats


@dataclass(frozen=True, eq=False)
class NodeTensors:
    """Tensors that nodes read or make, a row per argument or output: whose, which, its bytes."""

    node: Ints
    position: Ints
    bytes: Floats

    @cached_property
    def first(self) -> Ints:
        """The first row of each node, and one past the last of all; nodes ascend."""
        n = int(self.node.max(initial=-1)) + 1
        return np.searchsorted(self.node, np.arange(n + 1))

    def of(self, nodes: Ints) -> tuple[Ints, Ints]:
        """The rows of some nodes, and for each which of ``nodes`` it is of."""
        starts = np.append(self.first, np.full(2, len(self.node)))
        begin = starts[np.minimum(nodes, len(starts) - 2)]
        count = starts[np.minimum(nodes + 1, len(starts) - 1)] - begin
        whose = np.repeat(np.arange(len(nodes)), count)
        return np.arange(len(whose)) - np.repeat(np.cumsum(count) - count, count) + begin[
            whose
        ], whose

    def alike(self, some: Ints, code: Ints) -> Ints:
        """For each row, the one alike among the rows of ``some``; node i is like ``code[i]``."""
        _, whose = self.of(some)
        first = np.searchsorted(whose, np.arange(len(some)))
        return first[code[self.node]] + self.position


class Parts:
    """Parts of the nodes of a problem.

    Parameters
    ----------
    problem : Problem
    structure : Structure
        Of the problem's graph.
    batch_norm : "local" or "synchronised"
    """

    def __init__(self, problem: Problem, structure: Structure, batch_norm: str = "local") -> None:
        self.problem, self.structure, self.batch_norm = problem, structure, batch_norm
        graph, dimensions = structure.graph, structure.dimensions
        op = structure.op
        count = np.diff(dimensions.first)[op]
        whose = np.repeat(np.arange(len(op)), count)
        row = np.arange(len(whose)) - np.repeat(np.cumsum(count) - count, count)
        edge = dimensions.edge[dimensions.first[op][whose] + row]
        read = np.where(edge >= 0, graph.bytes[np.maximum(edge, 0)], 0).astype(np.float64)
        self.read = NodeTensors(whose, row, read)
        self.written = self._made()
        #: Bytes of the whole tensor that each argument is, or is a view of.
        whole = self.written.first[structure.arguments.root] + structure.arguments.output
        self.tensor = self.written.bytes[whole]
        self.flops = graph.flops[op].astype(np.float64)
        self.accessed = graph.bytes_accessed[op].astype(np.float64)
        #: Batch norms that have the statistics of their own part of the batch exchange nothing.
        self.exchanges = ~is_batch_norm(graph)[op] | (batch_norm == "synchronised")
        self.free = (graph.view | graph.placeholder)[op]
        self._outputs = graph.column_of_texts("output")

    def _made(self) -> NodeTensors:
        """The outputs of each node, by the sizes that the graph says."""
        structure, graph = self.structure, self.structure.graph
        rows = np.append(structure.ways.first_output, len(structure.ways.outputs))
        count = np.diff(rows)[structure.way]
        whose = np.repeat(np.arange(structure.n), count)
        place = np.arange(len(whose)) - np.repeat(np.cumsum(count) - count, count)
        texts = graph.outputs
        sizes = {text: _bytes(text) for text in {texts[op] for op in structure.op.tolist()}}
        bytes_ = [
            sizes[texts[op]][p] if p < len(sizes[texts[op]]) else 0.0
            for op, p in zip(structure.op[whose].tolist(), place.tolist(), strict=True)
        ]
        return NodeTensors(whose, place, np.array(bytes_, dtype=np.float64))

    @cached_property
    def nature(self) -> Ints:
        """A number per node, equal for those whose parts are alike, whatever the labels."""
        structure, graph, op = self.structure, self.structure.graph, self.structure.op
        columns = [
            self.flops,
            self.accessed,
            graph.output_bytes[op],
            structure.resident,
            graph.runs[op],
            *self.problem.costs.time[op].T,
            self.problem.costs.provenance[op],
            _mixed(self.read, structure.n),
            _mixed(self.written, structure.n),
            structure.expert[1],
        ]
        return joint(structure.way, structure.phase, *columns)

    def of(
        self,
        nodes: Ints,
        columns: Ints,
        shares: Sequence[Sequence[float]],
        places: Sequence[Place],
    ) -> NodeParts:
        """The parts of some nodes.

        Parameters
        ----------
        nodes : int64 [n]
        columns : int64 [n_axes, n]
            Which of its labels each node has on each axis.
        shares : per axis, what the parts at its places go by
        places : of Place
            Those that may be the slowest. Sizes of tensors are those of the first.
        """
        slowest: NodeParts | None = None
        for place in places:
            part = self._at(nodes, columns, shares, place)
            if slowest is None:
                slowest = part
            else:
                longest = np.maximum(slowest.seconds, part.seconds)
                slowest = replace(slowest, seconds=longest)
        assert slowest is not None, "a mesh has places"
        return slowest

    def of_all(
        self, columns: Ints, shares: Sequence[Sequence[float]], places: Sequence[Place]
    ) -> NodeParts:
        """The parts of all nodes, as :meth:`of` has them: one for all that are alike."""
        code = joint(self.nature, self.exchanges, *columns)
        some = firsts(code)
        part = self.of(some, columns[:, some], shares, places)
        return NodeParts(
            part.seconds[code],
            part.exchanged[:, code],
            part.halos[:, code],
            part.inputs[self.read.alike(some, code)],
            part.outputs[self.written.alike(some, code)],
        )

    def _at(
        self, nodes: Ints, columns: Ints, shares: Sequence[Sequence[float]], place: Place
    ) -> NodeParts:
        structure, ways, n = self.structure, self.structure.ways, len(nodes)
        way = structure.way[nodes]
        reads, reader = self.read.of(nodes)
        makes, maker = self.written.of(nodes)
        in_row = ways.first_input[way][reader] + self.read.position[reads]
        out_row = ways.first_output[way][maker] + self.written.position[makes]
        share, owners, spent = np.ones(n), np.ones(n), np.zeros(n, dtype=bool)
        sharers = np.ones(n)
        inputs, outputs = np.ones(len(reads)), np.ones(len(makes))
        is_any = np.zeros(len(reads), dtype=bool)
        exchanged, halos = np.zeros((len(columns), n)), np.zeros((len(columns), len(reads)))
        extra = np.zeros(len(reads))
        for axis, column in enumerate(columns):
            cut = np.ones(n, dtype=np.int64)
            for before in range(axis):
                cut *= np.where((columns[before] == column) & (column > 0), len(shares[before]), 1)
            limit = _divided(ways.limit[way, column], cut)
            spent |= (limit == 1) & (ways.limit[way, column] > 0)

            def part(
                sizes: Ints, at: int = axis, cut: Ints = cut, whose: Ints | slice = slice(None)
            ) -> Floats:
                return fractions(_divided(sizes, cut[whose]), shares[at], place.at[at])

            share *= part(ways.size[way, column])
            own = part(ways.input_size[in_row, column[reader]], whose=reader)
            extra = extra * own + inputs * ways.halo[in_row, column[reader]]
            halos *= own
            halos[axis] = inputs * ways.sent[in_row, column[reader]]
            inputs *= own
            outputs *= part(ways.output_size[out_row, column[maker]], whose=maker)
            is_any |= ways.inputs[in_row, column[reader]] == ANY
            is_owner = ways.label[way, column] == OWNER
            owners[is_owner] *= len(shares[axis])
            sharers[ways.shares_experts[way, column]] *= len(shares[axis])
            exchanged[axis] = np.where(self.exchanges[nodes], ways.exchanged[way, column], 0.0)
        exchanged *= share
        exchanged *= np.array([len(s) for s in shares])[:, None] ** (exchanged > 0)
        read = np.where(is_any, 0.0, self.read.bytes[reads])
        written = self.written.bytes[makes]
        whole = np.bincount(reader, read, n), np.bincount(maker, written, n)
        of_part = np.bincount(reader, read * inputs, n), np.bincount(maker, written * outputs, n)
        scale = accessed_share(self.accessed[nodes], whole, of_part, share)
        halo = np.bincount(reader, read * extra, n) / np.maximum(self.accessed[nodes], 1.0)
        work = share * owners, (scale + halo) * owners
        seconds = self._seconds(nodes, *work, place.type) / owners
        seconds *= self._load(nodes, owners, sharers)
        near = np.array(
            [np.bincount(reader, read * of_axis, n) for of_axis in halos], dtype=np.float64
        )
        return NodeParts(np.where(spent, np.inf, seconds), exchanged, near, inputs, outputs)

    def _load(self, nodes: Ints, owners: Floats, sharers: Floats) -> Floats:
        """The factor by which the busiest device takes longer than an even share, where so many
        have whole experts, and so many share experts: it may have more of them, and more tokens for
        each.
        """
        count = self.structure.expert[1][nodes]
        has_whole = (count > 0) & (owners > 1)
        count = np.where(has_whole, count, 1)
        uneven = np.where(has_whole, np.ceil(count / owners) * owners / count, 1.0)
        load = np.minimum(uneven * self.problem.expert_imbalance, sharers)
        return np.where(sharers > 1, load, 1.0)

    def _seconds(self, nodes: Ints, share: Floats, scale: Floats, type_: int) -> Floats:
        """Seconds on a device type of parts that do a share of the FLOPs and access a share of the
        bytes.
        """
        distinct = joint(self.nature[nodes], share, scale)
        some = firsts(distinct)
        of, part = nodes[some], np.minimum(share[some], 1.0)
        ops, size = self.structure.op[of], (self.flops[of] * part, self.accessed[of] * scale[some])
        work = ProgramWork(
            self.structure.graph,
            ops.astype(np.int32),
            part,
            np.full(len(of), COMPUTE, dtype=np.uint8),
            np.rint(size[0]).astype(np.uint64),
            np.rint(size[1]).astype(np.uint64),
            self.free[of],
            self.structure.graph.runs[ops],
            self._outputs,
        )
        seconds = costs_of(work, self.problem.costs, self.problem.cluster).time[:, type_]
        return seconds[distinct]


def _divided(sizes: Ints, by: Ints) -> Ints:
    """Sizes of the largest parts of what is cut; what is no size stays."""
    return np.where(sizes > 0, -(-sizes // by), sizes)


def _bytes(text: str) -> list[float]:
    """Bytes of each output in a text such as ``"f32[8,16]"``."""
    sizes = []
    for dtype, shape in parse_output(text):
        bits = int("".join(filter(str.isdigit, dtype or "")) or 8 * _ITEM_BYTES)
        sizes.append(float(np.prod(shape)) * max(bits / 8, 1) if shape is not None else 0.0)
    return sizes


def _mixed(tensors: NodeTensors, n: int) -> NDArray[np.uint64]:
    """A number per node that tells apart rows of bytes."""
    salt = np.uint64(0x9E3779B97F4A7C15)
    place = tensors.position.astype(np.uint64) + np.uint64(1)
    mixed = (tensors.bytes.astype(np.uint64) + np.uint64(1)) * (
        place * salt ^ place << np.uint64(7)
    )
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    numbers = np.zeros(n, dtype=np.uint64)
    np.add.at(numbers, tensors.node, mixed)
    return numbers
