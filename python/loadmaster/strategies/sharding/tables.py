"""The tables of costs of one axis of a mesh: what labels cost, and pairs of labels.

A cost has four components: seconds; seconds of gradients and parameters on their way, which may
overlap with other work; bytes that stay for the whole step; bytes of activations that wait for the
backward pass. Tables are made once per *signature*: nodes that are alike share one, and so do edges
between tensors that are alike.

What is written in place has the lay of what writes it. A parameter alone may be whole while its
update is not: it is gathered at the end of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.dimensions.form import ANY, REPLICATE
from loadmaster.model.graph import PARAMETER
from loadmaster.model.recipe import BUCKET_BYTES, Mesh
from loadmaster.strategies.sharding.joint import firsts, joint
from loadmaster.strategies.sharding.labels import LabelCosts
from loadmaster.strategies.sharding.parts import Parts, Place
from loadmaster.strategies.sharding.structure import ACTIVATION, Structure
from loadmaster.strategies.sharding.traffic import ALL_REDUCE, Traffic
from loadmaster.strategies.sharding.ways import fractions
from loadmaster.transforms.conversions import STAGES
from loadmaster.transforms.lays import FORBIDDEN, FREE, conversion

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: The components of a cost.
SECONDS, OVERLAPPED, STAYS, WAITS = range(4)

#: What an edge is: a tensor that is read; one that its reader writes into; the same, of a
#: parameter; a parameter and the op that writes it last; a tensor that is read from a hub, and the
#: op that makes it: some lays cannot be turned into others, whatever the hub's.
_ROLES = _READ, _WRITTEN, _UPDATED, _ENDS, _MAY = range(5)

#: Conversions that there are; negative ones count from the end.
_KINDS = len(fast.COLLECTIVES) + 2


def stages(n_axes: int) -> list[tuple[int, int]]:
    """The steps of a conversion, in order: what is done (an index into the collectives), and on
    which axis.
    """
    found = []
    for word, is_outer_first in STAGES:
        axes = range(n_axes) if is_outer_first else reversed(range(n_axes))
        found += [(fast.COLLECTIVES.index(word), axis) for axis in axes]
    return found


@dataclass(frozen=True, eq=False)
class Setting:
    """A mesh, and what is known on it whatever the labels.

    Attributes
    ----------
    parts : Parts
    traffic : sequence of Traffic
        Per axis.
    shares : sequence of sequence of float
        Per axis, what the parts at its places go by.
    places : sequence of Place
        Those that may be the slowest.
    tied : int64 [n_nodes]
        Nodes of one number play the same part.
    """

    parts: Parts
    traffic: Sequence[Traffic]
    shares: Sequence[Sequence[float]]
    places: Sequence[Place]
    tied: Ints

    @classmethod
    def of(cls, parts: Parts, mesh: Mesh, tied: Ints) -> Setting:
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
        return cls(parts, traffic, shares, list(known.values()), tied)

    @property
    def structure(self) -> Structure:
        """What is labelled."""
        return self.parts.structure

    def fractions(self, columns: Ints) -> tuple[Floats, Floats]:
        """Fractions of each argument's tensor that a part has on each axis, as its root makes it
        and as its reader wants it: float64 [n_axes, n_arguments].
        """
        structure, ways = self.structure, self.structure.ways
        a = structure.arguments
        row = ways.first_input[structure.way[a.reader]] + a.position
        out, into = [], []
        for axis, column in enumerate(columns):
            shares, at = self.shares[axis], self.places[0].at[axis]
            out.append(fractions(ways.output_size[structure.made, column[a.root]], shares, at))
            into.append(fractions(ways.input_size[row, column[a.reader]], shares, at))
        return np.array(out), np.array(into)

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
        self.lays: list[NDArray[np.int32]] = []

    def build(self) -> Tables:
        structure, n = self.structure, self.structure.n
        hubs = _Hubs.of(structure, self.setting.tied)
        of_node, starts, unary = self._unary()
        node_table = np.concatenate([of_node, len(starts) - 1 + hubs.table])
        hub_labels = np.array([len(lays) for lays in hubs.lays], dtype=np.int64)
        starts = np.concatenate([starts, starts[-1] + np.cumsum(hub_labels)])
        unary = np.concatenate([unary, np.zeros((int(hub_labels.sum()), 4))])
        at = np.empty(n + hubs.n, dtype=np.int64)
        place = np.concatenate([2 * structure.op, 2 * structure.op[hubs.root] + 1])
        order = np.argsort(place, kind="stable")
        at[order] = np.arange(len(order))
        src, dst, edge_table, (pair_start, pair_columns, pair) = self._edges(hubs)
        costs = LabelCosts(
            node_table=node_table[order].astype(np.int32),
            unary_start=starts,
            unary=unary,
            src=at[src].astype(np.int32),
            dst=at[dst].astype(np.int32),
            edge_table=edge_table.astype(np.int32),
            pair_start=pair_start,
            pair_columns=pair_columns.astype(np.int32),
            pair=pair,
        )
        tied = np.concatenate(
            [self.setting.tied, self.setting.tied.max(initial=-1) + 1 + hubs.tied]
        )
        return Tables(costs, at, tied[order])

    # -- labels --------------------------------------------------------------------------------

    def _unary(self) -> tuple[Ints, Ints, Floats]:
        """The table of each node, where tables start, and costs of labels."""
        structure, ways = self.structure, self.structure.ways
        others = [column for axis, column in enumerate(self.columns) if axis != self.axis]
        may = [] if self.allowed is None else list(self.allowed.T)
        code = joint(self.parts.nature, structure.is_long, *others, *may)
        some = firsts(code)
        count = ways.n_labels[structure.way[some]]
        nodes = np.repeat(some, count)
        starts = np.cumsum(np.append(0, count))
        columns = self.columns[:, nodes]
        columns[self.axis] = np.arange(len(nodes)) - np.repeat(starts[:-1], count)
        part = self.parts.of(nodes, columns, self.setting.shares, self.setting.places)
        exchange = np.array(
            [
                self.traffic.seconds(ALL_REDUCE, summed) + self.traffic.neighbour(near)
                for summed, near in part.moved(self.axis)
            ]
        )
        makes, maker = self.parts.made.of(nodes)
        made = self.parts.made.bytes[makes]
        whole = np.bincount(maker, made, len(nodes))
        held = np.bincount(maker, made * part.outputs, len(nodes))
        kept = np.where(whole > 0, held / np.maximum(whole, 1.0), 1.0)
        new = structure.graph.output_bytes[structure.op[nodes]].astype(np.float64)
        unary = np.zeros((len(nodes), 4))
        unary[:, SECONDS] = part.seconds + exchange
        if self.allowed is not None:
            unary[~self.allowed[nodes, columns[self.axis]], SECONDS] = np.inf
        unary[:, STAYS] = structure.resident[nodes] * kept
        unary[:, WAITS] = np.where(structure.is_long[nodes], new * kept, 0.0)
        return code, starts, unary

    # -- pairs of labels -----------------------------------------------------------------------

    def _edges(self, hubs: _Hubs) -> tuple[Ints, Ints, Ints, tuple[Ints, Ints, Floats]]:
        """Ends and table of each edge, and the tables: where they start, columns, and costs."""
        structure, a, n = self.structure, self.structure.arguments, self.structure.n
        made, wanted = self._interned()
        hub_lays = np.array([self._lay(lays) for lays in hubs.lays], dtype=np.int64)[hubs.table]
        size = self._sizes()
        is_parameter = structure.stands_for[a.root] == PARAMETER
        role = np.where(a.is_written, np.where(is_parameter, _UPDATED, _WRITTEN), _READ)
        hub = structure.hub
        alone, shared = np.flatnonzero(hub < 0), np.flatnonzero(hub >= 0)
        first = shared[hubs.first]
        of_hub = np.zeros((hubs.n, size.shape[1]))
        np.maximum.at(of_hub, hub[shared], size[shared])
        placeholder, writer = structure.written
        of_writer = structure.ways.first_output[structure.way[writer]]
        of_holder = structure.ways.first_output[structure.way[placeholder]]
        through = a.root[shared], a.reader[shared], made[shared], wanted[shared], size[shared]
        rows = [
            (
                a.root[alone],
                a.reader[alone],
                made[alone],
                wanted[alone],
                size[alone],
                a.traffic[alone],
                role[alone],
            ),
            (
                hubs.root,
                n + np.arange(hubs.n),
                made[first],
                hub_lays,
                of_hub,
                hubs.traffic,
                np.full(hubs.n, _READ),
            ),
            (
                n + hub[shared],
                a.reader[shared],
                hub_lays[hub[shared]],
                wanted[shared],
                size[shared],
                a.traffic[shared],
                role[shared],
            ),
            (
                placeholder,
                writer,
                of_holder,
                of_writer,
                self._written(placeholder),
                structure.stands_for[placeholder] == PARAMETER,
                np.full(len(writer), _ENDS),
            ),
            (
                *through[:4],
                np.zeros_like(size[shared]),
                np.zeros(len(shared), dtype=np.int8),
                np.full(len(shared), _MAY),
            ),
        ]
        src, dst, left, right, bytes_, traffic, roles = (
            np.concatenate([row[i] for row in rows]) for i in range(7)
        )
        counts = self._counts(hubs)
        code = joint(left, right, *bytes_.T, traffic, roles, counts[src], counts[dst])
        some = firsts(code)
        pairs = _Pairs(left[some], right[some], roles[some] + len(_ROLES) * (traffic[some] > 0))
        shape = counts[src[some]], counts[dst[some]]
        tables = self._pairs(pairs, shape, bytes_[some], traffic[some])
        # Edges that forbid nothing say nothing.
        forbids = np.add.reduceat(np.isinf(tables[2]).any(axis=1), tables[0][:-1]) > 0
        kept = (roles != _MAY) | forbids[code]
        return src[kept], dst[kept], code[kept], tables

    def _written(self, nodes: Ints) -> Floats:
        """Bytes of some nodes on this axis, for each kind of collective."""
        size = self.structure.resident[nodes].copy()
        way = self.structure.way[nodes]
        for axis, column in enumerate(self.columns):
            if axis != self.axis:
                of = self.structure.ways.output_size[
                    self.structure.ways.first_output[way], column[nodes]
                ]
                size *= fractions(of, self.setting.shares[axis], self.setting.places[0].at[axis])
        return np.repeat(size[:, None], len(fast.COLLECTIVES), axis=1)

    def _counts(self, hubs: _Hubs) -> Ints:
        ways = self.structure.ways
        of_hubs = np.array([len(lays) for lays in hubs.lays], dtype=np.int64)[hubs.table]
        return np.concatenate([ways.n_labels[self.structure.way], of_hubs])

    def _lay(self, lays: NDArray[np.int32]) -> int:
        self.lays.append(lays)
        return len(self.lays) - 1

    def _interned(self) -> tuple[Ints, Ints]:
        """Per argument, the lays that its root's labels make, and those that its reader's want."""
        structure = self.structure
        self.lays = [*structure.ways.outputs, *structure.lays_wanted]
        return structure.made, len(structure.ways.outputs) + structure.wanted

    def _sizes(self) -> Floats:
        """Bytes of each argument's tensor on this axis at the time of each kind of collective on
        it: float64 [n_arguments, n_kinds].

        What comes earlier on the other axes is done by then.
        """
        structure, a = self.structure, self.structure.arguments
        out, into = self.setting.fractions(self.columns)
        turn = {step: i for i, step in enumerate(stages(len(self.columns)))}
        found = np.repeat(self.parts.tensor[:, None], len(fast.COLLECTIVES), axis=1)
        for axis, column in enumerate(self.columns):
            if axis == self.axis:
                continue
            have = structure.ways.outputs[structure.made, column[a.root]]
            kind = conversion(have, structure.lays_wanted[structure.wanted, column[a.reader]])
            turns = np.array([turn.get((k, axis), -1) for k in range(len(fast.COLLECTIVES))])
            is_free = kind < 0
            when = np.where(is_free, -1, turns[np.maximum(kind, 0)])
            for code in range(len(fast.COLLECTIVES)):
                is_done = is_free | (when < turn.get((code, self.axis), -1))
                found[:, code] *= np.where(is_done, into[axis], out[axis])
        return found

    def _pairs(
        self, pairs: _Pairs, shape: tuple[Ints, Ints], size: Floats, traffic: NDArray[np.int8]
    ) -> tuple[Ints, Ints, Floats]:
        """Where the pairs of each table start, its columns, and costs of pairs of labels."""
        kinds = pairs.kinds(self.lays, shape)
        starts = np.cumsum([0, *map(len, kinds)], dtype=np.int64)
        kind = np.concatenate([np.empty(0, dtype=np.int8), *kinds]).astype(np.int64)
        table = np.repeat(np.arange(len(kinds)), np.diff(starts))
        seconds = np.zeros((len(kinds), _KINDS))
        for code in np.unique(kind).tolist():
            for t in np.unique(table[kind == code]).tolist():
                bytes_ = float(size[t, code])
                seconds[t, code] = (
                    self.traffic.bucketed(code, bytes_, self.setting.bucket)
                    if traffic[t] != ACTIVATION
                    else self.traffic.seconds(code, bytes_)
                )
        # Nothing is left to do while what was updated is gathered.
        overlaps = (traffic != ACTIVATION) & (pairs.role % len(_ROLES) != _ENDS)
        found = np.zeros((len(kind), 4))
        where = np.where(overlaps, OVERLAPPED, SECONDS)[table]
        found[np.arange(len(kind)), where] = seconds[table, kind]
        return starts, shape[1], found


@dataclass(frozen=True)
class _Pairs:
    """What tables of pairs of labels are of: lays that there are and lays that are wanted, as
    indices into lists of lays, and what edges are.
    """

    left: Ints
    right: Ints
    role: Ints

    def kinds(
        self, lays: Sequence[NDArray[np.int32]], shape: tuple[Ints, Ints]
    ) -> list[NDArray[np.int8]]:
        """Per table the conversions of its pairs, row by row."""
        columns = (self.left, self.right, self.role, *shape)
        return [
            _kinds(lays[left][:n].tobytes(), lays[right][:m].tobytes(), role)
            for left, right, role, n, m in zip(*(c.tolist() for c in columns), strict=True)
        ]


@lru_cache(maxsize=1 << 16)
def _kinds(lays: bytes, wanted: bytes, role: int) -> NDArray[np.int8]:
    """The conversions of pairs of lays, int32 as bytes, on an edge that is something: row by row."""
    have = np.frombuffer(lays, dtype=np.int32)[:, None]
    want = np.frombuffer(wanted, dtype=np.int32)[None, :]
    kinds: NDArray[np.int8] = _of_pairs(have, want, role).reshape(-1)
    return kinds


def _of_pairs(have: NDArray[np.int32], want: NDArray[np.int32], role: int) -> NDArray[np.int8]:
    """The conversion of each pair."""
    role, is_parameter = role % len(_ROLES), role >= len(_ROLES)
    if role == _ENDS:
        # What is written at the end goes where the parameter is.
        kind = np.where(have == want, np.int8(FREE), np.int8(FORBIDDEN))
        may = (have == REPLICATE) & (want != REPLICATE) & is_parameter
        return np.where(may, conversion(want, have), kind)
    kind = conversion(have, want)
    if role == _READ:
        return kind
    if role == _MAY:
        return np.where(kind == FORBIDDEN, kind, np.int8(FREE))
    free = (have == want) | (want == ANY) | ((have == REPLICATE) & (role == _UPDATED))
    return np.where(free, kind, np.int8(FORBIDDEN))


@dataclass(frozen=True, eq=False)
class _Hubs:
    """Hubs of tensors that several ops read.

    Attributes
    ----------
    root : int64 [n]
    first : int64 [n]
        Of the arguments that are read from hubs, the first of each.
    traffic : int8 [n]
    table : int64 [n]
        Index into ``lays``.
    tied : int64 [n]
    lays : list of int32 arrays
        The lays that a hub may have, ascending.
    """

    root: Ints
    first: Ints
    traffic: NDArray[np.int8]
    table: Ints
    tied: Ints
    lays: list[NDArray[np.int32]]

    @property
    def n(self) -> int:
        """Number of hubs."""
        return len(self.root)

    @classmethod
    def of(cls, structure: Structure, tied: Ints) -> _Hubs:
        """The hubs of a structure; those of tied roots are tied."""
        a, ways = structure.arguments, structure.ways
        rows = np.flatnonzero(structure.hub >= 0)
        hub = structure.hub[rows]
        first = firsts(hub) if len(hub) else np.empty(0, dtype=np.int64)
        of = rows[first]
        phase = np.where(a.traffic[of] == ACTIVATION, -1, structure.phase[a.reader[of]])
        tie = joint(tied[a.root[of]], a.output[of], phase)
        n_ties = int(tie.max(initial=-1)) + 1
        found: list[set[int]] = [{REPLICATE} for _ in range(n_ties)]
        for lays, row in (
            (ways.outputs, structure.made),
            (structure.lays_wanted, structure.wanted),
        ):
            pairs = np.unique(np.stack([tie[hub], row[rows]]), axis=1)
            for t, r in pairs.T.tolist():
                found[t].update(lays[r].tolist())
        lists = [np.array(sorted(lays - {ANY}), dtype=np.int32) for lays in found]
        traffic = np.full(len(of), ACTIVATION, dtype=np.int8)
        np.maximum.at(traffic, hub, a.traffic[rows])
        return cls(a.root[of], first, traffic, tie, tie, lists)
