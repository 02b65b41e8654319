"""Constraints bound to a problem: what a user asks for, in terms that every strategy obeys.

Strategies know three rules: sets of ops that share a device, device types that an op may run on,
and the memory of devices. A constrained problem therefore has the same ops on a cluster that is
derived from the user's cluster:

* Devices that a constraint treats differently get different types, with the same times. A mask of
  types is then a set of devices. There are at most 64 types.
* A module that must stay whole becomes a colocation set. Sets that share ops become one set.
* A reserve is subtracted from the memory of its device.

Placeholders keep the homes that they have without constraints: a constraint on one binds the op
that it is placed with. So a placement of the constrained problem is a placement of the user's, with
the same schedule.
Contiguous stages need more than these three rules: see :mod:`loadmaster.rules.stages`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.disjoint_sets import DisjointSets
from loadmaster.base.errors import InputError
from loadmaster.base.units import format_bytes
from loadmaster.costs import Costs
from loadmaster.judge.problem import Problem
from loadmaster.model.cluster import Cluster
from loadmaster.model.clusters.devices import DeviceType
from loadmaster.model.graph import ANY_TYPE
from loadmaster.rules.constraints import Constraints, selected
from loadmaster.rules.matching import Names
from loadmaster.rules.stages import Stages

#: Device types that a problem may have: masks have 64 bits.
MOST_TYPES = 64


@dataclass(frozen=True)
class PlacementRule:
    """A constraint on where some ops may be.

    ``text`` is the constraint in words, ``ops`` has indices of reduced ops, and ``devices`` says
    which devices these ops may use (bool [n_devices]).
    """

    text: str
    ops: NDArray[np.intp]
    devices: NDArray[np.bool_]


@dataclass(frozen=True)
class Binding:
    """A problem and its constraints.

    Attributes
    ----------
    original : Problem
        The problem on the user's cluster.
    constraints : Constraints
    rules : tuple of Rule
    modules : tuple of (str, int array)
        Modules that must stay whole, with their reduced ops.
    sets : int64 [n_reduced]
        Set of each op: ops of a set share a device.
    allowed : bool [n_reduced, n_devices]
        Whether an op may be on a device; all ops of a set have the same row.
    """

    original: Problem
    constraints: Constraints
    rules: tuple[PlacementRule, ...]
    modules: tuple[tuple[str, NDArray[np.intp]], ...]
    sets: NDArray[np.int64]
    allowed: NDArray[np.bool_]

    @cached_property
    def reserved(self) -> NDArray[np.uint64]:
        """Bytes kept free per device."""
        return _reserved(self.original.cluster, self.constraints)

    @cached_property
    def problem(self) -> Problem:
        """The problem that strategies place: the user's ops on the derived cluster."""
        if not self.rules and not self.modules and not self.reserved.any():
            return self.original
        original, cluster = self.original, self.original.cluster
        if self._keeps_ops:
            names = [device.type for device in cluster.devices]
            return replace(original, cluster=self._with_room(names, cluster.types))
        classes = self._classes
        firsts = np.unique(classes, return_index=True)[1]
        of_type = np.array(cluster.device_types)[firsts]
        names = _class_names(cluster, classes, firsts)
        types = [
            replace(cluster.types[k], name=name) for k, name in zip(of_type, names, strict=True)
        ]
        derived = self._with_room([names[c] for c in classes], types)
        costs = Costs(original.costs.time[:, of_type], tuple(names), original.costs.provenance)
        time = {ANY_TYPE: original.model.time[ANY_TYPE]} if ANY_TYPE in original.model.time else {}
        for k, name in zip(of_type, names, strict=True):
            if cluster.types[k].name in original.model.time:
                time[name] = original.model.time[cluster.types[k].name]
        columns = {
            "device_types": self._device_types(names, firsts),
            "colocation": self._labels(),
            "time": time,
        }
        model = original.model.with_columns(columns)
        derived_problem = Problem.make(
            model, derived, costs, seed=original.seed, best_effort=original.best_effort
        )
        return replace(derived_problem, objective=original.objective)

    def _with_room(self, names: Sequence[str], types: Sequence[DeviceType]) -> Cluster:
        """The cluster with the memory that a plan may use, its devices of types of these names."""
        cluster = self.original.cluster
        rows = zip(cluster.devices, names, self.room, strict=True)
        return Cluster(
            [replace(device, type=name, memory=room) for device, name, room in rows],
            cluster.wiring,
            types,
            name=cluster.name,
            collectives=cluster.collectives,
            dispatch=cluster.dispatch,
        )

    @property
    def _keeps_ops(self) -> bool:
        """True if at most memory is kept free, and ops stay as they are."""
        return not self.rules and not self.modules

    @cached_property
    def _classes(self) -> NDArray[np.intp]:
        """A number per device. Devices of one type that no rule tells apart share a number."""
        types = np.array(self.original.cluster.device_types, dtype=np.uint8)
        told_apart = np.unique(self.allowed, axis=0) if self.rules else np.empty((0, len(types)))
        keys = [column.tobytes() for column in np.vstack([types, told_apart]).astype(np.uint8).T]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        if len(numbers) > MOST_TYPES:
            raise InputError(
                f"the constraints tell {len(numbers)} kinds of devices apart, but at most "
                f"{MOST_TYPES} can be: give devices that are alike the same constraints"
            )
        return np.array([numbers[key] for key in keys])

    def _device_types(self, names: list[str], firsts: NDArray[np.intp]) -> list[str]:
        """The column ``device_types``, with ``names`` for the types of the devices ``firsts``.

        It has a text for ops that run, and for their views, since a transform may make ops from
        parts of views. An op that no device allows keeps its own text.
        """
        model, reduced = self.original.model, self.original.reduced
        rows, which = np.unique(self.allowed[:, firsts], axis=0, return_inverse=True)
        every, spelled = set(names), np.array(names, dtype=object)
        words = [set(spelled[row]) for row in rows]
        texts = ["" if of_op == every else ",".join(sorted(of_op)) for of_op in words]
        row_of = which.reshape(-1)[reduced.map]
        column = [""] * model.n_ops
        for op in np.flatnonzero(reduced.runs[reduced.shows]).tolist():
            row = row_of[op]
            column[op] = texts[row] if rows[row].any() else model.device_types[op]
        return column

    def _labels(self) -> list[str]:
        """The colocation column. Modules that must stay whole are sets in it."""
        model, op_of = self.original.model, self.original.reduced.op_of
        labels = DisjointSets[str]()
        column = list(model.colocation)
        for at, (module, ops) in enumerate(self.modules):
            joined = [column[op] for op in op_of[ops].tolist() if column[op]]
            roots = {labels.find(label) for label in joined}
            root = min(roots, default=f"no_split {at}: {module}")
            labels.update(dict.fromkeys(roots, root))
            for op in op_of[ops].tolist():
                column[op] = column[op] or root
        return [label and labels.find(label) for label in column]

    def released(self, placed: Problem) -> Problem:
        """The problem that a strategy placed, put back on the user's cluster.

        Where the strategy transformed the graph, each op may run on the device types that
        constraints leave the op which it serves.
        """
        if placed is self.problem or self.problem is self.original:
            return self.original if placed is self.problem else placed
        original = self.original
        if self._keeps_ops:
            return replace(placed, cluster=original.cluster)
        own = [t.name for t in original.cluster.types]
        firsts = np.unique(self._classes, return_index=True)[1]
        types = [own[original.cluster.device_types[first]] for first in firsts]
        derived_of = dict(zip(reversed(types), reversed(placed.costs.types), strict=True))
        columns = [placed.costs.types.index(derived_of[name]) for name in own]
        allowed = self._device_types(types, firsts)
        time = placed.model.time
        graph = placed.model.with_columns(
            {
                "device_types": [allowed[op] for op in placed.program.serves.tolist()],
                "time": {
                    name: time[d]
                    for name in original.model.time
                    if (d := derived_of.get(name, name)) in time
                },
            }
        )
        released = Problem.make(
            original.program.then(placed.program.with_graph(original.model, graph)),
            original.cluster,
            Costs(placed.costs.time[:, columns], tuple(own), placed.costs.provenance),
            seed=placed.seed,
            best_effort=placed.best_effort,
            source_costs=original.user_costs,
        )
        return replace(released, objective=original.objective)

    @cached_property
    def room(self) -> list[int]:
        """Bytes that a plan may use per device."""
        reserved = self.reserved.tolist()
        return [m - r for m, r in zip(self.original.cluster.memory, reserved, strict=True)]

    def broken(self, devices: NDArray[np.int32], peak: NDArray[np.uint64]) -> list[str]:
        """The constraints that a placement of the reduced ops breaks, in words.

        Whether pins, kinds, whole modules and stages hold follows from ``devices``. Whether
        reserves hold follows from ``peak``, the most bytes in use on each device.
        """
        program, of, cluster = (
            self.original.program,
            self.original.reduced.op_of,
            self.original.cluster,
        )
        texts = []
        for rule in self.rules:
            astray = rule.ops[~rule.devices[devices[rule.ops]]]
            if len(astray):
                where = cluster.devices[int(devices[astray[0]])].name
                texts.append(f"{rule.text}: {program.label(of[astray[0]])} is on {where}")
        for module, ops in self.modules:
            used = [cluster.devices[d].name for d in np.unique(devices[ops])]
            if len(used) > 1:
                texts.append(f"no_split: {module!r} is on {' and '.join(used)}")
        if self.reserved.any():
            for device, used, room in zip(cluster.devices, peak.tolist(), self.room, strict=True):
                if used > room:
                    over = format_bytes(used - room)
                    texts.append(f"reserve of {device.name}: {over} of it are used")
        if self.constraints.contiguous and not Stages.of(self.original).hold(
            self.original, devices
        ):
            texts.append("contiguous: an op feeds an earlier stage")
        return texts

    def reasons(self, op: int) -> list[str]:
        """The constraints that bind a reduced op, or an op of its set, in words."""
        together = self.sets == self.sets[op]
        texts = [rule.text for rule in self.rules if together[rule.ops].any()]
        texts += [f"no_split keeps {m!r} whole" for m, ops in self.modules if together[ops].any()]
        return texts


def bind(problem: Problem, constraints: Constraints) -> Binding:
    """Constraints as rules for a problem's ops.

    Raises
    ------
    InputError
        A pattern that matches nothing, a selector of no device, a reserve larger than a device,
        constraints that contradict each other; both are named, with the ops.

    Notes
    -----
    O((names + modules) x patterns + V x devices).

    Examples
    --------
    >>> import loadmaster as lm
    >>> from loadmaster.judge.problem import Problem
    >>> g, c = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    >>> given = Problem.make(g, c, lm.costs.estimate(g, c))
    >>> bound = bind(given, lm.Constraints(pin={"convolution": 1}, reserve="2GiB"))
    >>> [t.name for t in bound.problem.cluster.types]
    ['V100-SXM2-16GB of gpu0', 'V100-SXM2-16GB of gpu1']
    >>> bound.problem.cluster.memory == [14 * 2**30] * 2
    True
    """
    names = Names(problem)
    rules = tuple(_rules(names, constraints))
    modules = tuple(names.modules(constraints.no_split))
    _reserved(problem.cluster, constraints)
    allowed = problem.allowed_types[:, problem.cluster.device_types]
    sets = problem.graph.colocation.astype(np.int64)
    if not rules and not modules:
        return Binding(problem, constraints, rules, modules, sets, allowed)
    sets = _joined(problem.graph.colocation, [ops for _, ops in modules])
    binding = Binding(problem, constraints, rules, modules, sets, allowed)
    allowed = allowed.copy()
    for rule in rules:
        allowed[rule.ops] &= rule.devices
    of_set = np.ones((int(sets.max()) + 1, problem.cluster.n_devices), dtype=bool)
    np.logical_and.at(of_set, sets, allowed)
    # Where the graph itself leaves a set no device, a strategy refuses it.
    for stuck in np.flatnonzero(~of_set.any(axis=1)):
        _refuse_contradiction(binding, np.flatnonzero(sets == stuck))
    return replace(binding, allowed=of_set[sets])


def _rules(names: Names, constraints: Constraints) -> Iterator[PlacementRule]:
    cluster = names.problem.cluster
    for pattern, selectors in constraints.pin.items():
        devices = np.logical_or.reduce([selected(cluster, s) for s in selectors])
        yield PlacementRule(
            f"pin {pattern}={','.join(selectors)}", names.matching(pattern), devices
        )
    for selector, patterns in constraints.kinds.items():
        others = np.flatnonzero(~names.of_kinds(patterns))
        devices = ~selected(cluster, selector)
        yield PlacementRule(f"kinds {selector}={','.join(patterns)}", others, devices)


def _joined(sets: NDArray[np.int32], groups: list[NDArray[np.intp]]) -> NDArray[np.int64]:
    """Sets, numbered anew, after all sets that share a group have become one."""
    joined = DisjointSets[int]()
    for ops in groups:
        roots = sorted({joined.find(s) for s in sets[ops].tolist()})
        joined.update(dict.fromkeys(roots, roots[0]))
    root_of = np.array([joined.find(s) for s in range(int(sets.max()) + 1)])
    return np.unique(root_of[sets], return_inverse=True)[1].astype(np.int64)


def _reserved(cluster: Cluster, constraints: Constraints) -> NDArray[np.uint64]:
    reserved = np.zeros(cluster.n_devices, dtype=np.uint64)
    for selector, size in constraints.reserve.items():
        here = selected(cluster, selector)
        reserved[here] = np.maximum(reserved[here], np.uint64(size))
    for device, size in zip(cluster.devices, reserved.tolist(), strict=True):
        if size > device.memory:
            raise InputError(
                f"reserve of {device.name}: {format_bytes(size)} ({size} bytes) are more than the "
                f"{format_bytes(device.memory)} that it has"
            )
    return reserved


@dataclass(frozen=True)
class _Claim:
    """A constraint on a colocated set: its text, an op that it names, and the devices it leaves."""

    text: str
    op: int
    devices: NDArray[np.bool_]

    def excludes(self, other: _Claim) -> bool:
        """True if no device is left by both."""
        return not (self.devices & other.devices).any()


def _claims(binding: Binding, members: NDArray[np.intp]) -> list[_Claim]:
    """The constraints on a colocated set, those by the types of its ops among them. None where the
    graph itself leaves an op no device.
    """
    problem = binding.original
    types = problem.cluster.types
    own = problem.allowed_types[:, problem.cluster.device_types]
    claims = []
    for rule in binding.rules:
        here = rule.ops[np.isin(rule.ops, members)]
        claims += [_Claim(rule.text, int(here[0]), rule.devices)] if len(here) else []
    if not claims and not own[members].any(axis=1).all():
        return []
    used = np.unique(problem.cluster.device_types)
    for op in members[~own[members].all(axis=1)].tolist():
        left = ",".join(types[k].name for k in used if problem.allowed_types[op, k])
        name = problem.model.names[problem.reduced.op_of[op]]
        claims.append(_Claim(f"device_types {left!r} of {name!r}", op, own[op]))
    return claims


def _refuse_contradiction(binding: Binding, members: NDArray[np.intp]) -> None:
    """Raises for a set that constraints leave no device.

    The error names two constraints that exclude each other, or all of them where no two do.
    """
    problem = binding.original
    model, op_of = problem.model, problem.reduced.op_of
    claims = _claims(binding, members)
    pairs = ((b, a) for i, a in enumerate(claims) for b in claims[:i] if a.excludes(b))
    named = next(pairs, claims)
    if not named:
        return
    ops = list(dict.fromkeys(claim.op for claim in named))
    names = " and ".join(repr(model.names[op_of[op]]) for op in ops)
    together = ""
    if len(ops) > 1:
        whole = [m for m, inside in binding.modules if np.isin(members, inside).any()]
        reason = f"no_split of {', '.join(map(repr, whole))}" if whole else "the graph's colocation"
        together = f", which {reason} keeps on one device"
    raise InputError(
        f"{' and '.join(claim.text for claim in named)} contradict each other: "
        f"no device is left for {names}{together}"
    )


def _class_names(
    cluster: Cluster, classes: NDArray[np.intp], firsts: NDArray[np.intp]
) -> list[str]:
    """A name per class: its device type, and its first device where a type has several classes."""
    names = []
    for number, first in enumerate(firsts.tolist()):
        device_type = cluster.device_types[first]
        same = np.array(cluster.device_types) == device_type
        whole = (classes[same] == number).all()
        name = cluster.types[device_type].name
        names.append(name if whole else f"{name} of {cluster.devices[first].name}")
    return names
