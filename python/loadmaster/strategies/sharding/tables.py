"""The tables of costs of one axis of a mesh: what labels cost, and pairs of labels.

A cost has four components: seconds; seconds of gradients and parameters on their way, which may
overlap with other work; bytes that stay for the whole step; bytes of activations that wait for the
backward pass. Tables are made once per *signature*: nodes that are alike share one, and so do edges
between tensors that are alike.

What is written in place has the spec of what writes it. A parameter alone may be whole while its
update is not: it is gathered at the end of the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.model.recipe import BUCKET_BYTES, DeviceMesh
from loadmaster.strategies.sharding.frame import ENDS, Frame
from loadmaster.strategies.sharding.joint import firsts, joint, of_flags
from loadmaster.strategies.sharding.labels import LabelCosts
from loadmaster.strategies.sharding.parts import Parts, Place
from loadmaster.strategies.sharding.structure import ACTIVATION, Structure
from loadmaster.strategies.sharding.traffic import ALL_REDUCE, Traffic
from loadmaster.strategies.sharding.ways import fractions
from loadmaster.transforms.conversions import stages
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.lowering import Lowering
from loadmaster.transforms.specs import FORBIDDEN, conversion

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: The components of a cost.
SECONDS, OVERLAPPED, STAYS, WAITS = range(4)

#: Conversions that there are; negative ones count from the end.
_KINDS = len(fast.COLLECTIVES) + 2


@dataclass(frozen=True, eq=False)
class Setting:
    """A mesh, and what is known on it whatever the labels.

    Attributes
    ----------
    parts : Parts
    mesh : Mesh
    traffic : sequence of Traffic
        Per axis.
    shares : sequence of sequence of float
        Per axis, what the parts at its places go by.
    places : sequence of Place
        Those that may be the slowest.
    frame : Frame
    bucket_bytes : int
        Bytes of gradients or of parameters that one collective takes.
    units : mapping of pattern to "again" or "kept"
        Modules whose parameters one collective takes, as a :class:`.Layout` has them.
    """

    parts: Parts
    mesh: DeviceMesh
    traffic: Sequence[Traffic]
    shares: Sequence[Sequence[float]]
    places: Sequence[Place]
    frame: Frame
    bucket_bytes: int = BUCKET_BYTES
    units: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, parts: Parts, mesh: DeviceMesh, frame: Frame, bucket_bytes: int = BUCKET_BYTES
    ) -> Setting:
        """The setting of a mesh on the cluster of the parts' problem."""
        cluster = parts.problem.cluster
        device = mesh.on(cluster)
        traffic = [
            Traffic(cluster._core, device[mesh.groups(name)].astype(np.int64))
            for name in mesh.names
        ]
        shares = [axis.shares or (1.0,) * axis.size for axis in mesh.axes]
        where = zip(*np.unravel_index(np.arange(mesh.size), mesh.shape), strict=True)
        known: dict[tuple[object, ...], Place] = {}
        for d, at in zip(device.tolist(), where, strict=True):
            place = Place(cluster.device_types[d], tuple(int(i) for i in at))
            weights = (shares[i][j] for i, j in enumerate(place.at))
            known.setdefault((place.type, *weights), place)
        places = list(known.values())
        return cls(parts, mesh, traffic, shares, places, frame, bucket_bytes)

    @property
    def structure(self) -> Structure:
        """The nodes that are labelled."""
        return self.parts.structure

    def lowering(self, columns: Ints) -> Lowering:
        """The lowering of labels, int64 [n_axes, n_nodes]."""
        structure = self.structure
        labels = structure.labels(columns)
        layout = Layout(
            structure.dimensions,
            self.mesh,
            labels,
            batch_norm=self.parts.batch_norm,
            bucket_bytes=self.bucket_bytes,
            units=self.units,
        )
        return Lowering(layout)

    def fractions(self, columns: Ints) -> tuple[Floats, Floats]:
        """Fractions of each argument's tensor that a part has on each axis, as its root makes it
        and as its reader wants it: float64 [n_axes, n_arguments].
        """
        structure, ways = self.structure, self.structure.ways
        a = structure.arguments
        row = ways.first_input[structure.way[a.reader]] + a.position
        out = [m[structure.made, c[a.root]] for m, c in zip(self.made, columns, strict=True)]
        into = [r[row, c[a.reader]] for r, c in zip(self.read, columns, strict=True)]
        return np.array(out), np.array(into)

    @cached_property
    def made(self) -> list[Floats]:
        """Per axis, the fraction of each of the ways' outputs that a part has under each label."""
        return self._of_ways(self.structure.ways.output_size)

    @cached_property
    def read(self) -> list[Floats]:
        """Per axis, the fraction of each of the ways' arguments that a part has."""
        return self._of_ways(self.structure.ways.input_size)

    def _of_ways(self, sizes: Ints) -> list[Floats]:
        each = zip(self.shares, self.places[0].at, strict=True)
        return [fractions(sizes, shares, at) for shares, at in each]

    @cached_property
    def bucket(self) -> float:
        """Bytes of a bucket: 25 MB, or all that is updated if that is less."""
        structure = self.structure
        at = structure.node[structure.updates.parameter]
        return min(float(BUCKET_BYTES), float(structure.resident[at[at >= 0]].sum()))


@dataclass(frozen=True, eq=False)
class Tables:
    """The labelling of one axis, with all other axes as they are.

    Its nodes are those of the structure and the hubs, in the order of the program.

    Attributes
    ----------
    costs : LabelCosts
    at : int64 [n_nodes + n_hubs]
        The place in the labelling of each node, and then of each hub.
    tied : int64 [n_nodes + n_hubs]
        As the labelling numbers them.
    """

    costs: LabelCosts
    at: Ints
    tied: Ints

    @classmethod
    def of(
        cls, setting: Setting, axis: int, columns: Ints, allowed: NDArray[np.bool_] | None = None
    ) -> Tables:
        """The tables of an axis.

        Parameters
        ----------
        setting : Setting
        axis : int
        columns : int64 [n_axes, n_nodes]
            The labels on all axes; those on this one are not read.
        allowed : bool [n_nodes, most labels], optional
            Which labels each node may have; all if absent.
        """
        return _Building(setting, axis, columns, allowed).build()


class _Building:
    """Tables as they are made."""

    def __init__(
        self, setting: Setting, axis: int, columns: Ints, allowed: NDArray[np.bool_] | None
    ) -> None:
        self.setting, self.axis, self.allowed = setting, axis, allowed
        self.structure, self.parts = setting.structure, setting.parts
        self.columns = columns.copy()
        self.columns[axis] = 0
        self.traffic = setting.traffic[axis]

    def build(self) -> Tables:
        frame, hubs = self.setting.frame, self.setting.frame.hubs
        of_node, starts, unary = self._unary()
        node_table = np.concatenate([of_node, len(starts) - 1 + hubs.table])
        hub_labels = np.array([len(specs) for specs in hubs.specs], dtype=np.int64)
        starts = np.concatenate([starts, starts[-1] + np.cumsum(hub_labels)])
        unary = np.concatenate([unary, np.zeros((int(hub_labels.sum()), 4))])
        edge_table, (pair_start, pair_columns, pair) = self._edges()
        costs = LabelCosts(
            node_table=node_table[frame.order].astype(np.int32),
            unary_start=starts,
            unary=unary,
            src=frame.ends[0],
            dst=frame.ends[1],
            edge_table=edge_table.astype(np.int32),
            pair_start=pair_start,
            pair_columns=pair_columns.astype(np.int32),
            pair=pair,
        )
        return Tables(costs, frame.at, frame.tied[frame.order])

    # -- labels --------------------------------------------------------------------------------

    def _unary(self) -> tuple[Ints, Ints, Floats]:
        """The table of each node, where tables start, and costs of labels."""
        structure, ways = self.structure, self.structure.ways
        others = [column for axis, column in enumerate(self.columns) if axis != self.axis]
        may = [] if self.allowed is None else [of_flags(self.allowed)]
        code = joint(self.parts.nature, structure.is_long, *others, *may)
        some = firsts(code)
        count = ways.n_labels[structure.way[some]]
        starts = np.cumsum(np.append(0, count))
        unary = np.zeros((starts[-1], 4))
        nodes, label = np.repeat(some, count), np.arange(starts[-1]) - np.repeat(starts[:-1], count)
        rows = np.arange(starts[-1])
        if self.allowed is not None:
            # What other labels cost is never read.
            is_allowed = self.allowed[nodes, label]
            unary[~is_allowed, SECONDS] = np.inf
            rows = np.flatnonzero(is_allowed)
            nodes, label = nodes[rows], label[rows]
        columns = self.columns[:, nodes]
        columns[self.axis] = label
        part = self.parts.of(nodes, columns, self.setting.shares, self.setting.places)
        exchange = self.traffic.each(ALL_REDUCE, part.exchanged[self.axis])
        exchange += self.traffic.neighbours(part.halos[self.axis])
        exchange *= structure.graph.runs[structure.op[nodes]]
        makes, maker = self.parts.written.of(nodes)
        written = self.parts.written.bytes[makes]
        whole = np.bincount(maker, written, len(nodes))
        held = np.bincount(maker, written * part.outputs, len(nodes))
        kept = np.where(whole > 0, held / np.maximum(whole, 1.0), 1.0)
        new = structure.graph.output_bytes[structure.op[nodes]].astype(np.float64)
        unary[rows, SECONDS] = part.seconds + exchange
        unary[rows, STAYS] = structure.resident[nodes] * kept
        unary[rows, WAITS] = np.where(structure.is_long[nodes], new * kept, 0.0)
        return code, starts, unary

    # -- pairs of labels -----------------------------------------------------------------------

    def _edges(self) -> tuple[Ints, tuple[Ints, Ints, Floats]]:
        """The table of each edge, and the tables: where they start, columns, and costs."""
        frame = self.setting.frame
        code, size = frame.code, frame.sizes(self.structure, self._sizes(), self._written())
        if len(self.columns) > 1:
            # Collectives of which the same is done on the other axes before are of one size.
            columns = [size[:, 0]]
            columns += [c for i, c in enumerate(size.T[1:]) if not np.array_equal(c, size[:, i])]
            code = joint(code, *columns)
        some = firsts(code)
        return code, self._pairs(some, size[some])

    def _written(self) -> Floats:
        """Bytes that nodes keep on this axis, for each kind of collective."""
        structure, ways = self.structure, self.structure.ways
        size = structure.resident.copy()
        holder = structure.written[0]
        first = ways.first_output[structure.way[holder]]
        for axis, column in enumerate(self.columns):
            if axis != self.axis:
                size[holder] *= self.setting.made[axis][first, column[holder]]
        return np.repeat(size[:, None], len(fast.COLLECTIVES), axis=1)

    def _sizes(self) -> Floats:
        """Bytes of each argument's tensor on this axis at the time of each kind of collective on
        it: float64 [n_arguments, n_kinds].

        What comes earlier on the other axes is done by then.
        """
        structure, a = self.structure, self.structure.arguments
        out, into = self.setting.fractions(self.columns)
        turn = {step: i for i, step in enumerate(stages(len(self.columns)))}
        sizes = np.repeat(self.parts.tensor[:, None], len(fast.COLLECTIVES), axis=1)
        for axis, column in enumerate(self.columns):
            if axis == self.axis:
                continue
            have = structure.ways.outputs[structure.made, column[a.root]]
            kind = conversion(have, structure.specs_wanted[structure.wanted, column[a.reader]])
            turns = np.array([turn.get((k, axis), -1) for k in range(len(fast.COLLECTIVES))])
            is_free = kind < 0
            when = np.where(is_free, -1, turns[np.maximum(kind, 0)])
            for code in range(len(fast.COLLECTIVES)):
                is_done = is_free | (when < turn.get((code, self.axis), -1))
                sizes[:, code] *= np.where(is_done, into[axis], out[axis])
        return sizes

    def _pairs(self, some: Ints, size: Floats) -> tuple[Ints, Ints, Floats]:
        """Of tables, each of one of some edges: where its pairs start, its columns, and costs."""
        frame = self.setting.frame
        traffic, role = frame.traffic[some], frame.role[some]
        pairs = frame.pairs.of(frame.code[some])
        table = np.repeat(np.arange(len(some)), np.diff(pairs.start))
        is_there = np.zeros((len(some), _KINDS), dtype=bool)
        is_there[table, pairs.kind] = True
        # Of a table, what goes in the tables' own way, and what goes with other experts'.
        seconds = np.zeros((2, len(some), _KINDS))
        together = np.where(traffic == ACTIVATION, frame.together[some], 1)
        seconds[:, :, FORBIDDEN] = np.inf
        runs = frame.runs[some]
        for code in range(len(fast.COLLECTIVES)):
            for bucket, is_alone in ((0.0, True), (self.setting.bucket, False)):
                rows = np.flatnonzero(is_there[:, code] & ((traffic == ACTIVATION) == is_alone))
                seconds[:, rows, code] = self.traffic.each(code, size[rows, code], bucket)
                if len(several := rows[together[rows] > 1]):
                    n = together[several]
                    seconds[1, several, code] = self.traffic.each(code, size[several, code] * n) / n
        seconds *= runs[:, None]
        owned = pairs.owned & (together > 1)[table]
        # Nothing is left to do while what was updated is gathered.
        overlaps = (traffic != ACTIVATION) & (role != ENDS)
        costs = np.zeros((len(table), 4))
        where = np.where(overlaps, OVERLAPPED, SECONDS)[table]
        costs[np.arange(len(table)), where] = seconds[owned.astype(np.int64), table, pairs.kind]
        return pairs.start, pairs.columns, costs
