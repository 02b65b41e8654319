"""Adaptive cost models (FastT, section 4): op times per device type, learnt step by step.

A model keeps a running mean, a count and a spread per op and device type. FastT keeps the mean per
op and device, and takes 0 for an unknown time, so that its algorithm tries the op there; here that
is ``explore=True``. Otherwise an unknown time is scaled from a type on which the op is known, or it
is the roofline's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.files import check_format, parse_json, read_bytes, write_json
from loadmaster.base.text import in_lines
from loadmaster.base.units import counted
from loadmaster.costs.entry import Entry, entries_of
from loadmaster.costs.moves import Move, moved
from loadmaster.costs.roofline import PROVENANCES, Costs
from loadmaster.costs.unknown import assumed, scaled
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import ANY_TYPE, OpGraph
from loadmaster.model.profile import Profile

FORMAT = "loadmaster-costs"
VERSION = 1

#: Provenances, the weakest last: an op has the weakest of those on its device types.
_WEAKEST_LAST = ("free", "measured", "regressed", "scaled", "bytes", "roofline", "optimistic")


@dataclass(frozen=True)
class Update:
    """The changes that a profile made.

    Attributes
    ----------
    device_type : str
    known, new : int
        Ops that had a time on that type before, and that had none.
    moved : tuple of Move
        Ops that take significantly longer or shorter than before, the largest change first.
    untested : int
        Ops with too few steps for the test.
    """

    device_type: str
    known: int
    new: int
    moved: tuple[Move, ...]
    untested: int

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {**vars(self), "moved": [vars(move) for move in self.moved]}

    def __str__(self) -> str:
        lines = [
            f"{self.device_type}: {counted(self.known + self.new, 'op')} measured, {self.new} new, "
            f"{len(self.moved)} moved"
            + (f", {self.untested} with too few steps to tell" if self.untested else "")
        ]
        lines += [f"  {move}" for move in self.moved[:10]]
        if len(self.moved) > 10:
            lines.append(f"  and {len(self.moved) - 10} more")
        return in_lines(lines)


@dataclass(frozen=True)
class Join:
    """The ops that a graph and a cost model share, by name.

    Attributes
    ----------
    both : int
    without : tuple of str
        Ops of the graph that the model does not know, apart from views and placeholders.
    unused : tuple of str
        Ops of the model that the graph does not have.
    """

    both: int
    without: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{counted(self.both, 'op')} of the graph known to the cost model"]
        for names, text in ((self.without, "unknown"), (self.unused, "known, but not in it")):
            if names:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                lines.append(f"{len(names)} {text}: {', '.join(map(repr, names[:3]))}{more}")
        return in_lines(lines)


class CostModel:
    """Seconds per op and device type, learnt from profiles.

    Give it to :func:`loadmaster.place` as ``costs``; measure a step of the plan; ``update``; place
    again.

    Parameters
    ----------
    batch : int, optional
        The batch that the times are for. Profiles of another batch are refused.

    Examples
    --------
    >>> import numpy as np
    >>> from loadmaster import Profile, costs
    >>> model = costs.CostModel()
    >>> steps = np.array([[1.0e-3, 1.1e-3, 0.9e-3], [2.0e-3, 2.1e-3, 1.9e-3]])
    >>> print(model.update(Profile(("a", "b"), ("MatMul", "MatMul"), steps, "V100")))
    V100: 2 ops measured, 2 new, 0 moved
    >>> slower = np.array([[1.5e-3, 1.6e-3, 1.4e-3]])
    >>> print(model.update(Profile(("a",), ("MatMul",), slower, "V100")))
    V100: 1 op measured, 0 new, 1 moved
      a: 1 ms -> 1.5 ms (+50%)
    >>> model.entry("V100", "a").steps
    6
    """

    def __init__(self, batch: int | None = None) -> None:
        self.batch = batch
        self._tables: dict[str, dict[str, Entry]] = {}

    @property
    def device_types(self) -> tuple[str, ...]:
        """Device types with a known time; ``"*"`` stands for any type."""
        return tuple(self._tables)

    def entry(self, device_type: str, name: str) -> Entry | None:
        """The entry of an op on a device type, or None."""
        return self._tables.get(device_type, {}).get(name)

    def entries(self, device_type: str) -> Mapping[str, Entry]:
        """The entries of a device type, and those for any type."""
        return {**self._tables.get(ANY_TYPE, {}), **self._tables.get(device_type, {})}

    def put(self, device_type: str, name: str, entry: Entry) -> None:
        """Sets the entry of an op on a device type."""
        self._tables.setdefault(device_type, {})[name] = entry

    def update(self, profile: Profile) -> Update:
        """Merges measurements, and says which ops moved.

        An op has moved if the mean of its new steps differs from the mean before by more than 5 %
        of it (:data:`loadmaster.costs.moves.FLOOR`), and Welch's test finds that difference
        significant at 1 % (:data:`loadmaster.costs.moves.LEVEL`) divided by the number of ops
        tested. A side with a single step has no spread of its own: the usual relative spread of the
        other ops stands in. Where other ops have none either, the op counts as untested.

        Raises
        ------
        InputError
            A profile of another batch.
        """
        if self.batch is not None and profile.batch not in (None, self.batch):
            raise InputError(
                f"the costs are for batch {self.batch}, the profile is of batch {profile.batch}: "
                "take loadmaster.costs.sweep to get from small batches to a large one"
            )
        table = self._tables.setdefault(profile.device_type, {})
        batch = dict(zip(profile.names, entries_of(profile), strict=True))
        pairs = [(name, table[name], new) for name, new in batch.items() if name in table]
        moves, untested = moved(pairs)
        for name, new in batch.items():
            table[name] = table[name].merged(new) if name in table else new
        return Update(
            profile.device_type, len(pairs), len(batch) - len(pairs), tuple(moves), untested
        )

    # -- times for a graph -----------------------------------------------------------------------

    def join(self, graph: OpGraph) -> Join:
        """The ops of a graph that this model knows, by name.

        Raises
        ------
        InputError
            The graph and the model have no op in common.
        """
        mine = set().union(*self._tables.values()) if self._tables else set()
        theirs = set(graph.names)
        free = graph.view | graph.placeholder
        without = tuple(
            name for name, no in zip(graph.names, free, strict=True) if name not in mine and not no
        )
        if mine and theirs.isdisjoint(mine):
            raise InputError(
                f"no op of the graph has a time in the costs: they are for ops such as "
                f"{min(mine)!r}, the graph has ops such as {graph.names[0]!r}; the profile and the "
                "graph want to come from the same reader and the same model"
            )
        return Join(len(theirs & mine), without, tuple(sorted(mine - theirs)))

    def costs(self, graph: OpGraph, cluster: Cluster, *, explore: bool = False) -> Costs:
        """Times of a graph's ops on a cluster's device types.

        On a device type, an op takes its measured or regressed time. Where the op is known on
        another type only, its time there is scaled: by the ratio of ops known on both types, else
        by the ratio of rooflines if the cluster has both types. An op that is known nowhere takes
        the time in the graph, else the type's roofline. Unknown views and placeholders are free.

        Parameters
        ----------
        graph, cluster
        explore : bool
            Take 0 for an unknown time (provenance ``optimistic``), as FastT does. A plan then tries
            the op on that type, and the next profile has its time.

        Raises
        ------
        InputError
            An op without any source for its time on some type; a graph of which the model knows no
            op; a cluster of whose types the model knows none.
        """
        self.join(graph)
        self._check_types(cluster, explore)
        seen = {t: self._known(graph, t) for t in {*self._tables, *(t.name for t in cluster.types)}}
        unpaid = graph.view | graph.placeholder
        columns, words = [], []
        for device_type in cluster.types:
            known, word = seen[device_type.name]
            column, word = known.copy(), word.copy()
            missing = np.isnan(column)
            if explore:
                column[missing], word[missing] = 0.0, _word("optimistic")
            else:
                elsewhere = {
                    name: seen[name][0]
                    for name in self._tables
                    if name not in (ANY_TYPE, device_type.name)
                }
                column = scaled(graph, cluster, device_type, column, elsewhere)
                word[missing & ~np.isnan(column)] = _word("scaled")
                left = np.isnan(column) & ~unpaid
                if left.any():
                    column[left], source = assumed(graph, device_type, left)
                    word[left] = np.where(column[left] > 0, _word(source), _word("free"))
            free = missing & unpaid
            column[free], word[free] = 0.0, _word("free")
            columns.append(column)
            words.append(word)
        types = tuple(t.name for t in cluster.types)
        return Costs(np.stack(columns, axis=1), types, _weakest(np.stack(words, axis=1)))

    def _check_types(self, cluster: Cluster, explore: bool) -> None:
        """Refuses a cluster if the model knows none of its device types."""
        here = [t.name for t in cluster.types]
        if self._tables and not explore and not {ANY_TYPE, *here} & self._tables.keys():
            raise InputError(
                f"the costs are for device type {' and '.join(map(repr, self._tables))}, the "
                f"cluster has {' and '.join(map(repr, here))}: read the profile with "
                f"device_type={here[0]!r} if it is one of these"
            )

    def _known(
        self, graph: OpGraph, device_type: str
    ) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
        """Seconds on a device type (NaN: unknown), and the provenance of each."""
        entries = self.entries(device_type)
        known_entries = [entries.get(name) for name in graph.names]
        column = np.array([math.nan if e is None else e.mean for e in known_entries])
        words = [
            _word("regressed" if e is not None and e.steps == 0 else "measured")
            for e in known_entries
        ]
        return column, np.array(words, dtype=np.uint8)

    # -- files -----------------------------------------------------------------------------------

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON."""
        types = {}
        for name, table in self._tables.items():
            columns = zip(*table.values(), strict=True) if table else ((), (), ())
            figures = dict(zip(Entry._fields, map(list, columns), strict=True))
            types[name] = {"op": list(table), **figures}
        return {"format": FORMAT, "version": VERSION, "batch": self.batch, "types": types}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it as JSON, gzipped if the path ends in ``.gz``."""
        write_json(path, self.to_document())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CostModel:
        """From a file that :meth:`save` wrote.

        Raises
        ------
        InputError
            Another format or version; a figure that is out of range (the error names the op).
        """
        return cls.from_document(parse_json(read_bytes(path), path), os.fspath(path))

    @classmethod
    def from_document(cls, document: Any, source: str = "document") -> CostModel:
        """From a parsed document; ``source`` is named in errors."""
        check_format(document, FORMAT, VERSION, "a cost model", source)
        batch, types = document.get("batch"), document.get("types")
        if batch is not None:
            checks.integer(f"{source}: batch", batch)
        if not isinstance(types, Mapping):
            raise InputError(f"{source}: 'types' must be an object")
        model = cls(batch)
        for name, table in types.items():
            model._tables[str(name)] = _table(table, f"{source}: type {name!r}")
        return model


def _word(provenance: str) -> np.uint8:
    return np.uint8(PROVENANCES.index(provenance))


def _weakest(words: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The weakest of each op's provenances, given those on all types, [n_ops, n_types]."""
    rank = np.array([_WEAKEST_LAST.index(w) if w in _WEAKEST_LAST else 0 for w in PROVENANCES])
    return np.asarray(words[np.arange(len(words)), rank[words].argmax(axis=1)], dtype=np.uint8)


def _table(table: Any, noun: str) -> dict[str, Entry]:
    columns = ("op", *Entry._fields)
    if not isinstance(table, Mapping) or not all(isinstance(table.get(c), list) for c in columns):
        raise InputError(f"{noun} wants the lists {', '.join(columns)}")
    rows = [table[c] for c in columns]
    if len({len(row) for row in rows}) != 1:
        raise InputError(f"{noun}: lists of {', '.join(str(len(row)) for row in rows)} values")
    by_name: dict[str, Entry] = {}
    for name, mean, steps, squares in zip(*rows, strict=True):
        figures = all(checks.is_number(v) and 0 <= v < 1e300 for v in (mean, squares))
        if not isinstance(name, str) or not figures or not checks.is_integer(steps) or steps < 0:
            raise InputError(
                f"{noun}, op {name!r}: mean {mean!r}, steps {steps!r}, squares {squares!r}: wants "
                "finite numbers that are not negative"
            )
        if name in by_name:
            raise InputError(f"{noun}: op {name!r} stands twice")
        by_name[name] = Entry(float(mean), steps, float(squares))
    return by_name
