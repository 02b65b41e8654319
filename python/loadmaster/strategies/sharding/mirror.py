"""One device that stands for all: a symmetric simulation that ranks labels in milliseconds.

All devices of a mesh do the same. So the *mirror* of a labelling has each part once, on a device,
and each collective once, on a network that does one at a time: a network per axis, or one for all
whose axes share channels. It is simulated by the judge's own simulator, and gives a step and a peak
of memory.

Gradients on their way to updates, parameters gathered where they are used, and updated parameters
go in buckets. At most two buckets of gathered parameters are there before they are used. Ops run in
the program's order or in Kahn's, whichever is faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.dimensions.form import OWNER, REPLICATE
from loadmaster.judge.problem import by_start, ranks
from loadmaster.model.cluster import Cluster
from loadmaster.model.clusters.devices import Device
from loadmaster.model.clusters.links import Link
from loadmaster.model.recipe import BUCKET_BYTES
from loadmaster.strategies.sharding.joint import firsts, joint
from loadmaster.strategies.sharding.structure import ACTIVATION, GRADIENT, WEIGHT
from loadmaster.strategies.sharding.tables import Setting
from loadmaster.strategies.sharding.traffic import ALL_REDUCE
from loadmaster.transforms.conversions import stages
from loadmaster.transforms.specs import FREE, conversion

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Bytes per second to and from a network: what an op hands over is there at once.
_AT_ONCE = 1e18

#: Traffic of tensors that go to or from an expert, beside that of :mod:`.structure`.
_EXPERT = 3

#: How many buckets of gathered parameters may be there before the first of them is used.
_AHEAD = 2


@dataclass(frozen=True)
class Seen:
    """What a mirror saw.

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
    return Cluster(devices, [Link(a, b, _AT_ONCE, 0.0) for a, b in pairs], name="mirror")


class Mirror:
    """Mirrors of labellings on one mesh.

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
        self._seen: dict[tuple[bytes, bool], Seen] = {}

    @cached_property
    def network(self) -> list[int]:
        """The network of each axis, from 1: axes that share channels share it."""
        found: list[int] = []
        channels = [traffic.channels() for traffic in self.setting.traffic]
        for axis, own in enumerate(channels):
            shared = [found[b] for b in range(axis) if channels[b] & own]
            found.append(shared[0] if shared else max(found, default=0) + 1)
        return found

    def seen(self, columns: Ints, *, in_time: bool = False) -> Seen:
        """What a step is under labels, int64 [n_axes, n_nodes]; ``in_time``: also in an order in
        which what collectives wait for comes first.
        """
        key = columns.tobytes(), in_time
        if key not in self._seen:
            self._seen[key] = _Mirrored(self, columns).simulated(in_time)
        return self._seen[key]


@dataclass(frozen=True)
class _Step:
    """A step of some conversions.

    Attributes
    ----------
    axis : int
    rows : int64 [n]
        The arguments that want them.
    code : int
        What is done: an index into :data:`loadmaster.fast.COLLECTIVES`.
    want : int32 [n]
        The spec wanted on the axis.
    size : float64 [n]
        Bytes on the axis of what is converted.
    left : float64 [n]
        Bytes that a device then has.
    is_owned : bool [n]
        Whether one device has it before or after.
    """

    axis: int
    rows: Ints
    code: int
    want: NDArray[np.int32]
    size: Floats
    left: Floats
    is_owned: NDArray[np.bool_]


class _Mirrored:
    """The mirror of one labelling as it is made: ops and edges are added row by row.

    The first ops are those of the reduced graph. Collectives come after them.
    """

    def __init__(self, mirror: Mirror, columns: Ints) -> None:
        self.mirror, self.setting, self.structure = mirror, mirror.setting, mirror.structure
        self.columns = columns
        structure = self.structure
        self.n = mirror.n_reduced
        self.at = mirror.reduced.map[structure.op].astype(np.int64)
        self.runs = structure.stands_for < 0
        self.part = self.setting.parts.of_all(columns, self.setting.shares, self.setting.places)
        #: Seconds, the network (0: the device), and the priority of every op.
        self.seconds = [np.zeros(self.n)]
        self.seconds[0][self.at[self.runs]] = self.part.seconds[self.runs]
        self.where = [np.zeros(self.n, dtype=np.int64)]
        self.priority = [2.0 * mirror.reduced.op_of]
        self.edges: list[tuple[Ints, Ints, Ints]] = []
        self.sizes: list[Floats] = []
        self.n_tensors = 0
        before, after = mirror.order
        self._link(before, after)

    # -- rows ----------------------------------------------------------------------------------

    def _op(self, seconds: Floats, axis: int, priority: Floats) -> Ints:
        """New ops on the network of an axis."""
        made = self.n + np.arange(len(seconds))
        self.n += len(seconds)
        self.seconds.append(seconds)
        self.where.append(np.full(len(seconds), self.mirror.network[axis], dtype=np.int64))
        self.priority.append(priority)
        return made

    def _tensor(self, sizes: Floats) -> Ints:
        made = self.n_tensors + np.arange(len(sizes))
        self.n_tensors += len(sizes)
        self.sizes.append(sizes)
        return made

    def _link(self, src: Ints, dst: Ints, tensor: Ints | None = None) -> None:
        self.edges.append((src, dst, np.full(len(src), -1) if tensor is None else tensor))

    # -- tensors and conversions -----------------------------------------------------------------

    def simulated(self, in_time: bool) -> Seen:
        """The whole of it, in the best order."""
        self._exchanges()
        self._reads()
        self._ends()
        src, dst, tensor = (np.concatenate(columns) for columns in zip(*self.edges, strict=True))
        where = np.concatenate(self.where)
        graph = fast.Graph(
            self.n,
            src,
            dst,
            tensor,
            tensor_bytes=np.rint(np.concatenate([np.empty(0), *self.sizes])).astype(np.uint64),
            output_bytes=self._outputs(),
        )
        cluster = _cluster(max(self.mirror.network))
        seconds = np.concatenate(self.seconds)
        problem = fast.Problem(graph, cluster._core, np.stack([seconds, seconds], axis=1))
        order = np.lexsort((np.arange(self.n), np.concatenate(self.priority))).astype(np.int32)
        devices = where.astype(np.int32)
        orders = (order, fast.m_topo(graph))
        tried = [fast.simulate(problem, devices, ranks(order)) for order in orders]
        found = min(tried, key=lambda schedule: schedule.makespan)
        if in_time:
            order = _in_time(by_start(graph, found.start, found.finish), where > 0, src, dst)
            again = fast.simulate(problem, devices, ranks(order))
            found = min((found, again), key=lambda schedule: schedule.makespan)
        busy = found.device_busy
        stays = float((self.structure.resident * self._kept()).sum())
        return Seen(
            found.makespan, float(busy[0]), float(busy[1:].max()), stays + float(found.peak[0])
        )

    def _kept(self) -> Floats:
        """The fraction of each node's tensors that a part has."""
        made = self.setting.parts.made
        whole = np.bincount(made.node, made.bytes, self.structure.n)
        held = np.bincount(made.node, made.bytes * self.part.outputs, self.structure.n)
        return np.where(whole > 0, held / np.maximum(whole, 1.0), 1.0)

    def _outputs(self) -> NDArray[np.uint64]:
        size = self.structure.graph.output_bytes[self.structure.op] * self._kept()
        found = np.zeros(self.n)
        found[self.at[self.runs]] = size[self.runs]
        return np.rint(found).astype(np.uint64)

    def _exchanges(self) -> None:
        """What parts sum while they run comes after them, and before what reads them; what they
        need of their neighbours comes before them.
        """
        structure, a = self.structure, self.structure.arguments
        for axis, traffic in enumerate(self.setting.traffic):
            for is_sum, bytes_ in enumerate((self.part.halos[axis], self.part.exchanged[axis])):
                nodes = np.flatnonzero((bytes_ > 0) & self.runs)
                if not len(nodes):
                    continue
                size = bytes_[nodes]
                seconds = traffic.each(ALL_REDUCE, size) if is_sum else traffic.neighbours(size)
                place = 2.0 * structure.op[nodes].astype(np.float64) + (2.0 * is_sum - 1.0)
                made = self._op(seconds, axis, place)
                of = np.full(structure.n, -1, dtype=np.int64)
                of[nodes] = made
                ends = (a.root, a.reader) if is_sum else (a.reader, a.root)
                rows = np.flatnonzero((of[ends[0]] >= 0) & self.runs[ends[1]])
                near, far = of[ends[0][rows]], self.at[ends[1][rows]]
                own = self.at[nodes]
                self._link(*((own, made) if is_sum else (made, own)))
                self._link(*((near, far) if is_sum else (far, near)))

    def _reads(self) -> None:
        """What every op reads: from where it was made, or from the last of its conversions."""
        structure, a = self.structure, self.structure.arguments
        owner = structure.owner
        has_owner = (owner >= 0) & self.runs & (structure.stands_for[np.maximum(owner, 0)] < 0)
        holder = np.where(has_owner, owner, np.arange(structure.n))[a.root]
        output = np.where(has_owner[a.root], 0, a.output)
        row = structure.ways.first_output[structure.way[holder]] + output
        made = self.setting.parts.made
        index = made.first[holder] + output
        kept = structure.graph.output_bytes[structure.op[holder]] > 0
        size = np.where(kept, made.bytes[index] * self.part.outputs[index], 0.0)
        code = joint(holder, row)
        some = firsts(code) if len(code) else np.empty(0, dtype=np.int64)
        tensor = self._tensor(size[some])[code]
        src = np.where(self.runs[holder], self.at[holder], -1)
        self._convert(src, tensor)
        known = np.flatnonzero(src >= 0)
        self._link(src[known], self.at[a.reader[known]], tensor[known])

    def _convert(self, src: Ints, tensor: Ints) -> None:
        """Conversions of arguments, in the order in which programs do them; changes what each is
        read from.
        """
        structure, a = self.structure, self.structure.arguments
        out, into = self.setting.fractions(self.columns)
        kinds, wants, owned = [], [], []
        for column in self.columns:
            have = structure.ways.outputs[structure.made, column[a.root]]
            want = structure.specs_wanted[structure.wanted, column[a.reader]]
            kinds.append(conversion(have, want))
            wants.append(want)
            owned.append((have == OWNER) | (want == OWNER))
        now = np.where(np.array(kinds) == FREE, into, out)
        for code, axis in stages(len(self.columns)):
            rows = np.flatnonzero(kinds[axis] == code)
            if not len(rows):
                continue
            whole = self.setting.parts.tensor[rows]
            on_axis = whole * np.prod(np.delete(now[:, rows], axis, axis=0), axis=0)
            now[axis, rows] = into[axis, rows]
            left = whole * np.prod(now[:, rows], axis=0)
            step = _Step(axis, rows, code, wants[axis][rows], on_axis, left, owned[axis][rows])
            src[rows], tensor[rows] = self._converted(step, src[rows], tensor[rows])

    def _converted(self, step: _Step, src: Ints, tensor: Ints) -> tuple[Ints, Ints]:
        """The ops and tensors that some arguments are read from after a step of conversions.

        One conversion serves all readers that want the same; in a bucket, one serves several.
        """
        structure, a, axis, rows = self.structure, self.structure.arguments, step.axis, step.rows
        root, part = a.root[rows], structure.sent_with[rows]
        is_sent = step.is_owned & (part >= 0) & (a.traffic[rows] == ACTIVATION)
        traffic = np.where(is_sent, _EXPERT, a.traffic[rows])
        phase = np.where(traffic == WEIGHT, structure.phase[a.reader[rows]], -1)
        same = joint(root, a.output[rows], phase, src, tensor)
        # What wants a part takes it from the whole, where something wants that.
        whole = np.full(int(same.max()) + 1, -1, dtype=np.int64)
        is_whole = np.flatnonzero(step.want == REPLICATE)
        whole[same[is_whole]] = is_whole
        by = np.where(whole[same] >= 0, whole[same], np.arange(len(rows)))
        code = joint(same, step.want[by])
        some = firsts(code)
        size, left = step.size[by[some]], step.left[by[some]]
        first_use = np.full(len(some), np.inf)
        np.minimum.at(first_use, code, structure.op[a.reader[rows]].astype(np.float64))
        place = np.where(traffic[some] == WEIGHT, first_use, structure.op[root[some]])
        # Parts of one earlier bucket may share another.
        batch = joint(
            phase[some],
            np.where(src[some] < self.mirror.n_reduced, -1, src[some]),
            np.where(is_sent, part, -1)[some],
        )
        bucket = _buckets(traffic[some], batch, place, size)
        first = firsts(bucket)
        times = self.setting.traffic[axis]
        seconds = [times.seconds(step.code, total) for total in np.bincount(bucket, size).tolist()]
        last = np.full(len(first), -np.inf)
        np.maximum.at(last, bucket, place)
        gathered = traffic[some[first]] == WEIGHT
        made = self._op(np.array(seconds), axis, 2 * last + np.where(gathered, -1.0, 1.0))
        known = np.flatnonzero(src[some] >= 0)
        self._link(src[some[known]], made[bucket[known]], tensor[some[known]])
        fresh = self._tensor(left)
        if gathered.any():
            self._hold_back(made, bucket[code], gathered, self.at[a.reader[rows]])
        return made[bucket[code]], fresh[code]

    def _hold_back(
        self, made: Ints, bucket: Ints, gathered: NDArray[np.bool_], reader: Ints
    ) -> None:
        """Gathers of parameters wait for the last reader of the bucket but two before."""
        first_use = np.full(len(made), np.iinfo(np.int64).max)
        np.minimum.at(first_use, bucket, reader)
        order = np.flatnonzero(gathered)
        order = order[np.argsort(first_use[order], kind="stable")]
        if len(order) > _AHEAD:
            self._link(first_use[order[:-_AHEAD]], made[order[_AHEAD:]])

    def _ends(self) -> None:
        """Parameters that are whole while their updates are not are gathered at the end."""
        structure, ways = self.structure, self.structure.ways
        holder, writer = structure.written
        for axis, column in enumerate(self.columns):
            have = ways.outputs[ways.first_output[structure.way[writer]], column[writer]]
            want = ways.outputs[ways.first_output[structure.way[holder]], column[holder]]
            kind = conversion(have, want)
            rows = np.flatnonzero(kind >= 0)
            if not len(rows):
                continue
            of, size = (
                writer[rows],
                structure.resident[holder[rows]] * self._elsewhere(axis, holder[rows]),
            )
            place = structure.op[of].astype(np.float64)
            bucket = _buckets(np.full(len(rows), GRADIENT), kind[rows], place, size)
            total, first = np.bincount(bucket, size), firsts(bucket)
            times, codes = self.setting.traffic[axis], kind[rows[first]]
            pairs = zip(codes.tolist(), total.tolist(), strict=True)
            seconds = [times.seconds(code, bytes_) for code, bytes_ in pairs]
            last = np.zeros(len(first))
            np.maximum.at(last, bucket, place)
            self._link(self.at[of], self._op(np.array(seconds), axis, 2 * last + 1)[bucket])

    def _elsewhere(self, axis: int, nodes: Ints) -> Floats:
        """The fraction of some nodes' tensors that a part has on all axes but one."""
        structure, ways = self.structure, self.structure.ways
        found = np.ones(len(nodes))
        for other, column in enumerate(self.columns):
            if other != axis:
                first = ways.first_output[structure.way[nodes]]
                found *= self.setting.made[other][first, column[nodes]]
        return found


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


def _buckets(
    traffic: NDArray[np.integer], batch: NDArray[np.integer], place: Floats, size: Floats
) -> Ints:
    """A bucket per conversion, from 0: of gradients and parameters several of a batch share one, up
    to 25 MB, by place; of experts all of a batch do; else each has its own.
    """
    found = np.empty(len(traffic), dtype=np.int64)
    number, current, filled = -1, None, 0.0
    order = np.lexsort((place, batch, traffic))
    columns = (column[order].tolist() for column in (traffic, batch, size))
    for i, (*group, bytes_) in zip(order.tolist(), zip(*columns, strict=True), strict=True):
        fits = filled + bytes_ <= BUCKET_BYTES or group[0] == _EXPERT
        joins = group == current and group[0] != ACTIVATION and fits
        if not joins:
            number, current, filled = number + 1, group, 0.0
        filled += bytes_
        found[i] = number
    return found
