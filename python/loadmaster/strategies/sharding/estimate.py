"""Estimate of a labelling: one device simulated instead of all of them, in milliseconds.

All devices of a mesh do the same. So the simulated graph has one device, which does its part of
each op once, and a network per axis, which runs one collective at a time; axes that share channels
share a network. The collectives, sums and halos are those of the lowering
(:mod:`loadmaster.transforms.lowering`) that the program would be made of. The judge's own simulator
says how long a step takes and how much memory its peak is, in the better of two orders of the ops:
the program's and Kahn's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.costs.program import added_seconds
from loadmaster.dimensions.form import FLAT, OWNER, PICKED
from loadmaster.judge.problem import by_start, ranks
from loadmaster.model.cluster import Cluster
from loadmaster.model.clusters.devices import Device
from loadmaster.model.clusters.links import Link
from loadmaster.strategies.sharding.joint import firsts, joint
from loadmaster.strategies.sharding.parts import NodeParts
from loadmaster.strategies.sharding.tables import Setting
from loadmaster.strategies.sharding.traffic import ALL_REDUCE
from loadmaster.strategies.sharding.ways import fractions
from loadmaster.transforms.conversions import UPDATED
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.lowering import Lowering
from loadmaster.transforms.ways import without_gaps

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Bytes per second to and from a network: what an op hands over is there at once.
_AT_ONCE = 1e18


@dataclass(frozen=True)
class Estimate:
    """Estimate of a step.

    Attributes
    ----------
    step_time : float
        Seconds.
    computing : float
        Seconds for which the device is busy.
    sending : float
        Seconds for which the busiest network is.
    peak : float
        Bytes.
    """

    step_time: float
    computing: float
    sending: float
    peak: float


@lru_cache(maxsize=8)
def _cluster(networks: int) -> Cluster:
    names = [f"network{i}" for i in range(networks)]
    devices = [Device("device", "device", 1), *(Device(name, "network", 1) for name in names)]
    pairs = [(a, b) for name in names for a, b in ((name, "device"), ("device", name))]
    pairs += [(a, b) for a in names for b in names if a != b]
    return Cluster(devices, [Link(a, b, _AT_ONCE, 0.0) for a, b in pairs], name="estimate")


class Estimator:
    """Estimates of labellings on one mesh.

    Parameters
    ----------
    setting : Setting
    """

    def __init__(self, setting: Setting) -> None:
        self.setting, self.structure = setting, setting.structure
        problem = setting.parts.problem
        self.reduced, self.n_reduced = problem.reduced, problem.graph.n_ops
        src, dst, _, _, is_home = fast.edges(problem.graph)
        self.order = src[~is_home].astype(np.int64), dst[~is_home].astype(np.int64)
        #: The op of the reduced graph that each node is, and whether it runs.
        self.at = self.reduced.map[self.structure.op].astype(np.int64)
        self.runs = self.structure.stands_for < 0
        self._known: dict[tuple[bytes, bool], Estimate] = {}

    @cached_property
    def launch(self) -> float:
        """Seconds that a member of a collective takes beside what the links need."""
        problem = self.setting.parts.problem
        types = {place.type for place in self.setting.places}
        return float(added_seconds(problem.costs, problem.cluster)[sorted(types)].max())

    @cached_property
    def network(self) -> NDArray[np.int64]:
        """The network of each axis, from 1: axes that share channels share it."""
        numbers: list[int] = []
        channels = [traffic.channels() for traffic in self.setting.traffic]
        for axis, own in enumerate(channels):
            shared = [numbers[b] for b in range(axis) if channels[b] & own]
            numbers.append(shared[0] if shared else max(numbers, default=0) + 1)
        return np.array(numbers, dtype=np.int64)

    def estimate(self, columns: Ints, *, in_time: bool = False) -> Estimate:
        """The estimate of labels, int64 [n_axes, n_nodes].

        ``in_time``: ops are also simulated in an order in which collectives get early what they
        wait for.
        """
        key = columns.tobytes(), in_time
        if key not in self._known:
            setting = self.setting
            part = setting.parts.of_all(columns, setting.shares, setting.places)
            lowering = setting.lowering(columns)
            rows = _Rows.of(self, part)
            if len(lowering.sums):
                rows = rows.then(_sums(self, lowering, rows))
            if len(lowering.halos):
                rows = rows.then(_halos(self, lowering, rows))
            rows = rows.then(_Converting(self, lowering, part, rows).rows())
            self._known[key] = self._simulated(rows, part, in_time=in_time)
        return self._known[key]

    def _simulated(self, rows: _Rows, part: NodeParts, *, in_time: bool) -> Estimate:
        """The step in the best order."""
        tensor, size = rows.tensors
        graph = fast.Graph(
            rows.n,
            rows.src,
            rows.dst,
            tensor,
            tensor_bytes=np.rint(size).astype(np.uint64),
            output_bytes=self._outputs(rows.n, part),
        )
        cluster = _cluster(int(self.network.max()))
        problem = fast.Problem(graph, cluster._core, np.stack([rows.seconds] * 2, axis=1))
        order = np.lexsort((np.arange(rows.n), rows.priority)).astype(np.int32)
        devices = rows.network.astype(np.int32)
        tried = [fast.simulate(problem, devices, ranks(one)) for one in (order, fast.m_topo(graph))]
        best = min(tried, key=lambda schedule: schedule.makespan)
        if in_time:
            order = by_start(graph, best.start, best.finish)
            order = _in_time(order, rows.network > 0, rows.src, rows.dst)
            again = fast.simulate(problem, devices, ranks(order))
            best = min((best, again), key=lambda schedule: schedule.makespan)
        busy = best.device_busy
        stays = float((self.structure.resident * self._kept(part)).sum())
        return Estimate(
            best.makespan, float(busy[0]), float(busy[1:].max()), stays + float(best.peak[0])
        )

    def _kept(self, part: NodeParts) -> Floats:
        """The fraction of each node's tensors that a part has."""
        tensors = self.setting.parts.written
        whole = np.bincount(tensors.node, tensors.bytes, self.structure.n)
        held = np.bincount(tensors.node, tensors.bytes * part.outputs, self.structure.n)
        return np.where(whole > 0, held / np.maximum(whole, 1.0), 1.0)

    def _outputs(self, n: int, part: NodeParts) -> NDArray[np.uint64]:
        """Bytes of new storage that each op of the simulated graph makes."""
        size = self.structure.graph.output_bytes[self.structure.op] * self._kept(part)
        bytes_ = np.zeros(n)
        bytes_[self.at[self.runs]] = size[self.runs]
        return np.rint(bytes_).astype(np.uint64)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Ops, edges and tensors of the simulated graph.

    Attributes
    ----------
    seconds, priority : float64 [n_ops]
    network : int64 [n_ops]
        0: the device.
    src, dst, tensor : int64 [n_edges]
    size : float64 [n_tensors]
    """

    seconds: Floats = field(default_factory=lambda: np.empty(0))
    priority: Floats = field(default_factory=lambda: np.empty(0))
    network: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    src: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    dst: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    tensor: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    size: Floats = field(default_factory=lambda: np.empty(0))

    @classmethod
    def of(cls, estimator: Estimator, part: NodeParts) -> _Rows:
        """The device's ops, in the order that the reduced graph demands."""
        n, (src, dst) = estimator.n_reduced, estimator.order
        seconds = np.zeros(n)
        seconds[estimator.at[estimator.runs]] = part.seconds[estimator.runs]
        priority = 2.0 * estimator.reduced.op_of.astype(np.float64)
        return cls(seconds, priority, np.zeros(n, dtype=np.int64), src, dst, np.full(len(src), -1))

    @property
    def n(self) -> int:
        """Number of ops."""
        return len(self.seconds)

    @property
    def tensors(self) -> tuple[Ints, Floats]:
        """The tensor of each edge, numbered without those that no edge carries, and the sizes. What
        is stored has none: it is there when the step begins.
        """
        return without_gaps(self.tensor), self.size[np.unique(self.tensor[self.tensor >= 0])]

    def then(self, other: _Rows) -> _Rows:
        """Both; the other's ops and tensors are numbered after these."""
        pairs = ((vars(self)[name], vars(other)[name]) for name in self.__dataclass_fields__)
        return _Rows(*(np.concatenate(pair) for pair in pairs))


def _controls(pairs: list[tuple[Ints, Ints]]) -> tuple[Ints, Ints, Ints]:
    """Columns of edges without data: source, destination, tensor."""
    src, dst = (np.concatenate(ends) for ends in zip(*pairs, strict=True))
    return src, dst, np.full(len(src), -1)


def _sums(estimator: Estimator, lowering: Lowering, before: _Rows) -> _Rows:
    """Sums that parts exchange: between an op and what reads it, on the network."""
    structure, a, sums = estimator.structure, estimator.structure.arguments, lowering.sums
    node = structure.node[sums.op]
    seconds = np.zeros(len(sums))
    for axis, traffic in enumerate(estimator.setting.traffic):
        on = np.flatnonzero(sums.axis == axis)
        seconds[on] = traffic.each(ALL_REDUCE, sums.bytes[on].astype(np.float64))
    seconds = (seconds + estimator.launch) * sums.runs
    number = before.n + np.arange(len(sums))
    pairs = [(estimator.at[node], number)]
    for axis in np.unique(sums.axis).tolist():
        on = np.flatnonzero(sums.axis == axis)
        of = np.full(structure.n, -1, dtype=np.int64)
        of[node[on]] = number[on]
        rows = np.flatnonzero((of[a.root] >= 0) & estimator.runs[a.reader])
        pairs.append((of[a.root[rows]], estimator.at[a.reader[rows]]))
    priority = 2.0 * sums.op.astype(np.float64) + 1
    return _Rows(seconds, priority, estimator.network[sums.axis], *_controls(pairs))


def _halos(estimator: Estimator, lowering: Lowering, before: _Rows) -> _Rows:
    """Rows of neighbours: one message per op and axis, as large as the larger of its two sides."""
    structure, a, halos = estimator.structure, estimator.structure.arguments, lowering.halos
    reader = lowering.layout.dimensions.reader[halos.argument]
    # Both neighbours send at the same time: of an argument the larger side counts.
    side = joint(halos.axis, halos.argument)
    some = firsts(side)
    larger = np.zeros(len(some))
    np.maximum.at(larger, side, halos.bytes.max(axis=1, initial=0).astype(np.float64))
    axis, op = halos.axis[some], reader[some].astype(np.int64)
    message = joint(axis, op)
    first = firsts(message)
    size = np.bincount(message, larger, len(first)).astype(np.float64)
    axis, node = axis[first], structure.node[op[first]]
    seconds = np.zeros(len(first))
    for on_axis, traffic in enumerate(estimator.setting.traffic):
        on = np.flatnonzero(axis == on_axis)
        seconds[on] = traffic.neighbours(size[on])
    number = before.n + np.arange(len(first))
    pairs = [(number, estimator.at[node])]
    for on_axis in np.unique(axis).tolist():
        on = np.flatnonzero(axis == on_axis)
        of = np.full(structure.n, -1, dtype=np.int64)
        of[node[on]] = number[on]
        rows = np.flatnonzero((of[a.reader] >= 0) & estimator.runs[a.root])
        pairs.append((estimator.at[a.root[rows]], of[a.reader[rows]]))
    priority = 2.0 * structure.op[node].astype(np.float64) - 1
    return _Rows(seconds, priority, estimator.network[axis], *_controls(pairs))


class _Converting:
    """The collectives of conversions, and what every op reads: a tensor as it was made, or the
    result of its conversion.
    """

    def __init__(
        self, estimator: Estimator, lowering: Lowering, part: NodeParts, before: _Rows
    ) -> None:
        self.estimator, self.lowering, self.part = estimator, lowering, part
        self.first_op, self.first_tensor = before.n, len(before.size)

    def rows(self) -> _Rows:
        """The collectives, edges and tensors."""
        estimator, c, buckets = self.estimator, self.lowering.conversions, self.lowering.buckets
        structure, a = estimator.structure, estimator.structure.arguments
        src, tensor, sizes = self._sources()
        bytes_, left = self._bytes()
        collective = self.first_op + buckets.of_step
        result = self.first_tensor + len(sizes) + np.arange(len(c.steps))
        last = np.full(len(c) + 1, -1, dtype=np.int64)
        last[c.steps.conversion[c.steps.is_last]] = np.flatnonzero(c.steps.is_last)
        # Collectives read what is converted, or the result of the step before.
        edges = [*self._into(src, tensor, collective, result)]
        step = last[c.of_argument[a.argument]]
        is_converted = step >= 0
        src[is_converted] = collective[step[is_converted]]
        tensor[is_converted] = result[step[is_converted]]
        known = np.flatnonzero(src >= 0)
        edges.append((src[known], estimator.at[a.reader[known]], tensor[known]))
        held = np.flatnonzero(buckets.waits_for >= 0)
        trigger = structure.node[buckets.waits_for[held]]
        edges.append((estimator.at[trigger], self.first_op + held, np.full(len(held), -1)))
        ends, readers, tensors = (np.concatenate(column) for column in zip(*edges, strict=True))
        return _Rows(
            self._seconds(bytes_),
            2.0 * buckets.place.astype(np.float64) + np.where(buckets.is_before, -1.0, 1.0),
            estimator.network[buckets.axis],
            ends,
            readers,
            tensors,
            np.concatenate([sizes, left]),
        )

    def _sources(self) -> tuple[Ints, Ints, Floats]:
        """The op and the tensor that each argument is read from if nothing converts it, -1: it is
        there when the step begins; and bytes of the tensors.
        """
        estimator, parts = self.estimator, self.estimator.setting.parts
        structure, a = estimator.structure, estimator.structure.arguments
        owner = structure.owner
        has_owner = (owner >= 0) & estimator.runs
        has_owner &= structure.stands_for[np.maximum(owner, 0)] < 0
        holder = np.where(has_owner, owner, np.arange(structure.n))[a.root]
        output = np.where(has_owner[a.root], 0, a.output)
        row = structure.ways.first_output[structure.way[holder]] + output
        index = parts.written.first[holder] + output
        kept = structure.graph.output_bytes[structure.op[holder]] > 0
        size = np.where(kept, parts.written.bytes[index] * self.part.outputs[index], 0.0)
        code = joint(holder, row)
        some = firsts(code) if len(code) else np.empty(0, dtype=np.int64)
        src = np.where(estimator.runs[holder], estimator.at[holder], -1)
        return src, self.first_tensor + code, size[some]

    def _into(
        self, src: Ints, tensor: Ints, collective: Ints, result: Ints
    ) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Edges into collectives."""
        estimator, c = self.estimator, self.lowering.conversions
        structure, a, steps = estimator.structure, estimator.structure.arguments, c.steps
        of = c.of_argument[a.argument]
        reads = np.full(len(c), -1, dtype=np.int64)
        reads[of[of >= 0]] = np.flatnonzero(of >= 0)
        first = np.flatnonzero(steps.is_first)
        argument = reads[steps.conversion[first]]
        known = (argument >= 0) & (src[argument] >= 0)
        yield src[argument[known]], collective[first[known]], tensor[argument[known]]
        of_updates = first[c.traffic[steps.conversion[first]] == UPDATED]
        writer = structure.node[c.first[steps.conversion[of_updates]]]
        none = np.full(len(of_updates), -1)
        yield estimator.at[writer], collective[of_updates], none
        order = np.lexsort((np.arange(len(steps)), steps.conversion))
        later = np.flatnonzero(~steps.is_first[order])
        before, after = order[later - 1], order[later]
        yield collective[before], collective[after], result[before]

    def _bytes(self) -> tuple[Floats, Floats]:
        """Bytes of the tensor of each step on its axis, and bytes that a device has after it."""
        layout, c = self.lowering.layout, self.lowering.conversions
        setting, steps = self.estimator.setting, c.steps
        tensor = c.tensor[steps.conversion]
        on_axis = c.bytes[steps.conversion].astype(np.float64)
        left = on_axis.copy()
        for axis, (shares, at) in enumerate(zip(setting.shares, setting.places[0].at, strict=True)):
            is_here = steps.axis == axis
            have = fractions(_cut_size(layout, tensor, steps.have[axis]), shares, at)
            want = c.want[axis, steps.conversion]
            then = fractions(_cut_size(layout, tensor, want), shares, at)
            on_axis *= np.where(is_here, 1.0, have)
            left *= np.where(is_here, then, have)
        return on_axis, left

    def _seconds(self, bytes_: Floats) -> Floats:
        """Seconds of each collective."""
        buckets, traffic = self.lowering.buckets, self.estimator.setting.traffic
        total = np.bincount(buckets.of_step, bytes_, len(buckets)).tolist()
        columns = zip(buckets.axis.tolist(), buckets.kind.tolist(), total, strict=True)
        links = [traffic[axis].seconds(kind, size) for axis, kind, size in columns]
        return (np.array(links) + self.estimator.launch) * buckets.runs


def _cut_size(layout: Layout, tensor: Ints, spec: NDArray[Any]) -> Ints:
    """The size of what a spec cuts of each tensor, as :func:`.ways.fractions` takes it."""
    maker = layout.maker[tensor]
    which = tensor - layout.first_output[maker]
    classes = layout.tables.size_class(layout.form_of[maker], which, np.maximum(spec, 0))
    sizes = np.array([0, 0, *layout.tables.sizes], dtype=np.int64)[classes]
    is_spread = (spec == FLAT) | (spec == OWNER) | (spec == PICKED)
    return np.where(spec >= 0, sizes, np.where(is_spread, -1, 0))


def _in_time(
    order: NDArray[np.int32], is_network: NDArray[np.bool_], src: Ints, dst: Ints
) -> NDArray[np.int32]:
    """Ops by the first collective that waits for each, then as they are in an order. O(V + E)."""
    rank, n = ranks(order), len(order)
    first = np.where(is_network, rank, n).tolist()
    backwards = np.argsort(-rank[src], kind="stable")
    for a, b in zip(src[backwards].tolist(), dst[backwards].tolist(), strict=True):
        if first[b] < first[a]:
            first[a] = first[b]
    return np.lexsort((rank, first)).astype(np.int32)
