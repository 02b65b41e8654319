"""Frame of labellings: the nodes, hubs among them, and the edges, on any axis of any mesh.

Nodes stand in the order of the program. An edge has the specs that one end may have and those that
the other may want, as indices into lists of specs: tables of pairs are made once for edges alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.dimensions.form import ANY, OWNER, REPLICATE
from loadmaster.model.graph import PARAMETER
from loadmaster.strategies.sharding.joint import firsts, joint
from loadmaster.strategies.sharding.parts import Parts
from loadmaster.strategies.sharding.structure import ACTIVATION, Structure
from loadmaster.transforms.specs import FORBIDDEN, FREE, conversion

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Kinds of edges: a tensor that is read; one that its reader writes into; the same, of a
#: parameter; a parameter and the op that writes it last; a tensor that is read from a hub, and the
#: op that makes it: some specs cannot be turned into others, whatever the hub's.
ROLES = READ, WRITTEN, UPDATED, ENDS, MAY = range(5)

#: Sources of the bytes of an edge: those of an argument, the most of a hub's arguments, those of a
#: placeholder, none.
OF_ARGUMENT, OF_HUB, OF_NODE, OF_NOTHING = range(4)


#: The columns of edges, in the order of :func:`_edges`.
_COLUMNS = (
    "src", "dst", "left", "right", "traffic", "role", "where", "row", "together", "apart", "runs",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Frame:
    """The nodes and edges of labellings. Nodes are those of the structure, then hubs.

    Attributes
    ----------
    hubs : Hubs
    at : int64 [n_nodes]
        The place of each in the order of the program.
    tied : int64 [n_nodes]
        Nodes of one number play the same part.
    counts : int64 [n_nodes]
        Labels of each.
    specs : list of int32 arrays
    src, dst : int64 [n_edges]
    left, right : int64 [n_edges]
        Specs that there are, and specs that are wanted: indices into ``specs``.
    traffic, role : int64 [n_edges]
    where, row : int64 [n_edges]
        Whose the bytes are, and of which one.
    together : int64 [n_edges]
        How many experts have such an edge, whose tensors are sent together; 1: none has.
    apart : int64 [n_edges]
        1: the ends are not on one device, if one device has each of them; else 0.
    runs : int64 [n_edges]
        How often a conversion on the edge runs in a step.
    code : int64 [n_edges]
        Equal for edges that are alike where no other axis is.
    """

    hubs: Hubs
    at: Ints
    tied: Ints
    counts: Ints
    specs: list[NDArray[np.int32]]
    src: Ints
    dst: Ints
    left: Ints
    right: Ints
    traffic: Ints
    role: Ints
    where: Ints
    row: Ints
    together: Ints
    apart: Ints
    runs: Ints
    code: Ints

    @classmethod
    def of(cls, parts: Parts, tied: Ints) -> Frame:
        """The frame of the labellings of a problem; ``tied`` numbers its nodes."""
        structure = parts.structure
        hubs = Hubs.of(structure, tied)
        ways = structure.ways
        place = np.concatenate([2 * structure.op, 2 * structure.op[hubs.root] + 1])
        at = np.empty(len(place), dtype=np.int64)
        at[np.argsort(place, kind="stable")] = np.arange(len(place))
        of_hubs = np.array([len(specs) for specs in hubs.specs], dtype=np.int64)[hubs.table]
        counts = np.concatenate([ways.n_labels[structure.way], of_hubs])
        specs = [*ways.outputs, *structure.specs_wanted, *hubs.specs]
        columns = _edges(structure, hubs, len(specs) - len(hubs.specs))
        src, dst, left, right, traffic, role, where, row, together, apart, runs = columns
        size = np.zeros(len(src))
        of_argument = where == OF_ARGUMENT
        size[of_argument] = parts.tensor[row[of_argument]]
        size[where == OF_HUB] = hubs.largest(structure, parts.tensor)[row[where == OF_HUB]]
        size[where == OF_NODE] = structure.resident[row[where == OF_NODE]]
        alike = left, right, size, traffic, role, together, apart, runs, counts[src], counts[dst]
        code = joint(*alike)
        # Edges that forbid nothing say nothing.
        says = role[firsts(code)] != MAY
        for i, e in enumerate(firsts(code).tolist()):
            if not says[i]:
                pairs = specs[left[e]][: counts[src[e]]], specs[right[e]][: counts[dst[e]]]
                kind = role_of(MAY, 0, int(apart[e]))
                says[i] = (kinds(pairs[0].tobytes(), pairs[1].tobytes(), kind) == FORBIDDEN).any()
        kept = says[code]
        both = np.concatenate([tied, tied.max(initial=-1) + 1 + hubs.tied])
        of_edges = {name: column[kept] for name, column in zip(_COLUMNS, columns, strict=True)}
        return cls(hubs, at, both, counts, specs, **of_edges, code=joint(code[kept]))

    @property
    def n(self) -> int:
        """Number of nodes, hubs among them."""
        return len(self.at)

    @cached_property
    def order(self) -> Ints:
        """The node at each place."""
        return np.argsort(self.at)

    @cached_property
    def ends(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The places of the ends of each edge."""
        return self.at[self.src].astype(np.int32), self.at[self.dst].astype(np.int32)

    @cached_property
    def untied(self) -> float:
        """Share of nodes that is left where those of one number are one."""
        return len(np.unique(self.tied)) / max(len(self.tied), 1)

    @cached_property
    def pairs(self) -> Pairs:
        """Pairs of specs on edges that are alike, for each :attr:`code`."""
        some = firsts(self.code)
        roles = role_of(self.role[some], self.traffic[some], self.apart[some])
        n, m = self.counts[self.src[some]], self.counts[self.dst[some]]
        kind, owned = [np.empty(0, dtype=np.int8)], [np.empty(0, dtype=bool)]
        for left, right, role, rows, columns in zip(
            *(c.tolist() for c in (self.left[some], self.right[some], roles, n, m)), strict=True
        ):
            have, want = self.specs[left][:rows], self.specs[right][:columns]
            kind.append(kinds(have.tobytes(), want.tobytes(), role))
            owned.append(((have == OWNER)[:, None] | (want == OWNER)[None, :]).reshape(-1))
        starts = np.cumsum([0, *map(len, kind[1:])], dtype=np.int64)
        return Pairs(starts, m, np.concatenate(kind).astype(np.int64), np.concatenate(owned))

    def sizes(self, structure: Structure, of_arguments: Floats, of_nodes: Floats) -> Floats:
        """Bytes of each edge, from those of each argument [n_arguments, m] and node [n, m]."""
        bytes_ = np.zeros((len(self.src), of_arguments.shape[1]))
        of_hubs = self.hubs.largest(structure, of_arguments)
        for where, size in ((OF_ARGUMENT, of_arguments), (OF_HUB, of_hubs), (OF_NODE, of_nodes)):
            some = self.where == where
            bytes_[some] = size[self.row[some]]
        return bytes_


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of specs at the ends of edges, table by table, row by row.

    Attributes
    ----------
    start : int64 [n_tables + 1]
    columns : int64 [n_tables]
    kind : int64 [n_pairs]
        The conversion of each.
    owned : bool [n_pairs]
        Whether one device owns the tensor before or after.
    """

    start: Ints
    columns: Ints
    kind: Ints
    owned: NDArray[np.bool_]

    def of(self, tables: Ints) -> Pairs:
        """The pairs of some tables, one after another."""
        count = np.diff(self.start)[tables]
        start = np.append(0, np.cumsum(count))
        at = np.arange(start[-1]) + np.repeat(self.start[tables] - start[:-1], count)
        return Pairs(start, self.columns[tables], self.kind[at], self.owned[at])


def _edges(structure: Structure, hubs: Hubs, first_hub: int) -> tuple[NDArray[np.int64], ...]:
    """Columns of edges: ends, specs, traffic, role, whose bytes, of which one, how many experts
    have such an edge, whether what owns the ends may differ, and how often its conversions run.
    """
    a, n = structure.arguments, structure.n
    wanted = len(structure.ways.outputs) + structure.wanted
    is_parameter = structure.stands_for[a.root] == PARAMETER
    role = np.where(a.is_written, np.where(is_parameter, UPDATED, WRITTEN), READ)
    hub, specs = structure.hub, first_hub + hubs.table
    alone, shared = np.flatnonzero(hub < 0), np.flatnonzero(hub >= 0)
    holder, writer = structure.written
    out = structure.ways.first_output[structure.way]
    is_kept = (structure.stands_for[holder] == PARAMETER).astype(np.int64)

    def row(*columns: Ints | NDArray[np.int8] | int) -> tuple[Ints, ...]:
        size = max(np.size(column) for column in columns[:1])
        return tuple(np.broadcast_to(np.asarray(c, dtype=np.int64), size) for c in columns)

    first = shared[hubs.first]
    at = np.arange(hubs.n)
    specs_made = structure.made
    n_together = structure.together
    apart = (structure.unit[a.root] != structure.unit[a.reader]).astype(np.int64)
    of_node = structure.graph.runs[structure.op].astype(np.int64)
    runs = np.minimum(of_node[a.root], of_node[a.reader])
    read = a.traffic[alone], role[alone], OF_ARGUMENT, alone, n_together[alone], apart[alone]
    from_hub = a.traffic[shared], role[shared], OF_ARGUMENT, shared, n_together[shared], 0
    nothing = 0, MAY, OF_NOTHING, 0, 1, apart[shared], 1
    rows = [
        row(a.root[alone], a.reader[alone], specs_made[alone], wanted[alone], *read, runs[alone]),
        row(
            hubs.root,
            n + at,
            specs_made[first],
            specs,
            hubs.traffic,
            READ,
            OF_HUB,
            at,
            n_together[first],
            0,
            runs[first],
        ),
        row(
            n + hub[shared],
            a.reader[shared],
            specs[hub[shared]],
            wanted[shared],
            *from_hub,
            runs[shared],
        ),
        row(holder, writer, out[holder], out[writer], is_kept, ENDS, OF_NODE, holder, 1, 0, 1),
        row(a.root[shared], a.reader[shared], specs_made[shared], wanted[shared], *nothing),
    ]
    return tuple(np.concatenate(column) for column in zip(*rows, strict=True))


@dataclass(frozen=True, eq=False)
class Hubs:
    """Hubs of tensors that several ops read.

    Attributes
    ----------
    root : int64 [n]
    first : int64 [n]
        Of the arguments that are read from hubs, the first of each.
    traffic : int8 [n]
    table : int64 [n]
        Index into ``specs``.
    tied : int64 [n]
    specs : list of int32 arrays
        The specs that a hub may have, ascending.
    """

    root: Ints
    first: Ints
    traffic: NDArray[np.int8]
    table: Ints
    tied: Ints
    specs: list[NDArray[np.int32]]

    @property
    def n(self) -> int:
        """Number of hubs."""
        return len(self.root)

    def largest(self, structure: Structure, size: Floats) -> Floats:
        """The most of a value per argument [n_arguments, ...] of each hub's arguments."""
        shared = np.flatnonzero(structure.hub >= 0)
        if not len(shared):
            return np.zeros((0, *size.shape[1:]))
        hub = structure.hub[shared]
        order = np.argsort(hub, kind="stable")
        most: Floats = np.maximum.reduceat(
            size[shared[order]], np.searchsorted(hub[order], range(self.n))
        )
        return most

    @classmethod
    def of(cls, structure: Structure, tied: Ints) -> Hubs:
        """The hubs of a structure; those of tied roots are tied."""
        a, ways = structure.arguments, structure.ways
        rows = np.flatnonzero(structure.hub >= 0)
        hub = structure.hub[rows]
        first = firsts(hub) if len(hub) else np.empty(0, dtype=np.int64)
        of = rows[first]
        phase = np.where(a.traffic[of] == ACTIVATION, -1, structure.phase[a.reader[of]])
        tie = joint(tied[a.root[of]], a.output[of], phase)
        n_ties = int(tie.max(initial=-1)) + 1
        specs_of_tie: list[set[int]] = [{REPLICATE} for _ in range(n_ties)]
        for specs, row in (
            (ways.outputs, structure.made),
            (structure.specs_wanted, structure.wanted),
        ):
            of_hub, of_row = tie[hub], row[rows]
            some = firsts(joint(of_hub, of_row)) if len(rows) else rows
            for t, r in zip(of_hub[some].tolist(), of_row[some].tolist(), strict=True):
                specs_of_tie[t].update(specs[r].tolist())
        lists = [np.array(sorted(specs - {ANY}), dtype=np.int32) for specs in specs_of_tie]
        traffic = np.full(len(of), ACTIVATION, dtype=np.int8)
        np.maximum.at(traffic, hub, a.traffic[rows])
        return cls(a.root[of], first, traffic, tie, tie, lists)


def role_of(role: Any, traffic: Any, apart: Any) -> Any:
    """The role that :func:`kinds` takes, of edges: numbers, or columns of them."""
    return role + len(ROLES) * ((np.asarray(traffic) > 0) + 2 * np.asarray(apart))


@lru_cache(maxsize=1 << 16)
def kinds(specs: bytes, wanted: bytes, role: int) -> NDArray[np.int8]:
    """The conversions of pairs of specs, int32 as bytes, on an edge of a role: row by row."""
    have = np.frombuffer(specs, dtype=np.int32)[:, None]
    want = np.frombuffer(wanted, dtype=np.int32)[None, :]
    of_pairs: NDArray[np.int8] = _of_pairs(have, want, role).reshape(-1)
    return of_pairs


def _of_pairs(have: NDArray[np.int32], want: NDArray[np.int32], role: int) -> NDArray[np.int8]:
    """The conversion of each pair."""
    role, flags = role % len(ROLES), role // len(ROLES)
    is_parameter, is_apart = bool(flags & 1), bool(flags & 2)
    if role == ENDS:
        # What is written at the end goes where the parameter is.
        kind = np.where(have == want, np.int8(FREE), np.int8(FORBIDDEN))
        may = (have == REPLICATE) & (want != REPLICATE) & is_parameter
        return np.where(may, conversion(want, have), kind)
    kind = conversion(have, want)
    if is_apart:
        kind = np.where((have == OWNER) & (want == OWNER), np.int8(FORBIDDEN), kind)
    if role == READ:
        return kind
    if role == MAY:
        return np.where(kind == FORBIDDEN, kind, np.int8(FREE))
    free = (have == want) | (want == ANY) | ((have == REPLICATE) & (role == UPDATED))
    return np.where(free, kind, np.int8(FORBIDDEN))
