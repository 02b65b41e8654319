"""Two plans for the same ops side by side: what moved, and what that gained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.base.text import Printed, aligned, in_lines
from loadmaster.base.units import changed, counted, format_bytes, format_seconds
from loadmaster.plans.plan import Plan
from loadmaster.plans.specs import SpecChange, recipe_in_words, spec_changes

#: Most moves that are listed, and simulated with the move alone taken back.
MAX_MOVES = 12

#: Most changes of specs that are listed.
MAX_SPECS = 24

#: Module paths are shortened so that at most so many differ, and to at most this depth.
MAX_PARTS = 40
_DEPTHS = 6

#: The most devices of a cluster that are named where an op has parts on all of them.
_NAMED = 2


@dataclass(frozen=True)
class ModuleMove:
    """Ops of one part of the model that went from one device to another.

    Attributes
    ----------
    module : str
        Path that they share; "" where they share none.
    source, target : str
        Devices, by name; several where the op has parts.
    ops : int
        Number of ops that run. Views and placeholders go with them and are not counted.
    example : str
        The op among them that computes longest.
    time : float
        Seconds of compute on the new device.
    worth : float or None
        Seconds by which a step gets longer if these ops alone go back; negative: it gets shorter.
        Memory does not count. None: the ops cannot go back alone, because the other plan's device
        is not there, is of a type that an op does not allow, or because an op has parts or shares
        a colocation set with ops that did not move.
    """

    module: str
    source: str
    target: str
    ops: int
    example: str
    time: float
    worth: float | None


@dataclass(frozen=True)
class DeviceLoad:
    """Seconds of compute and peak bytes of a device before and after; 0 where it is missing."""

    device: str
    busy_before: float
    busy_after: float
    peak_before: int
    peak_after: int


@dataclass(frozen=True)
class Difference(Printed):
    """Differences between two plans for the same ops.

    Attributes
    ----------
    methods : tuple of two str
        With ", measured" where what is told was measured.
    makespans, bounds : tuple of two float
        Seconds, before and after.
    spaces : tuple of two str
        The space of plans that each bound speaks of.
    bytes_moved : tuple of two int
        Between devices.
    ops : int
        Ops that run.
    moved_ops : int
        Ops that are on a device of another name, or whose parts are.
    reordered : int
        Ops that stayed on their device, but run there in another order.
    loads : tuple of Load
    moves : tuple of Move
        Those of most time, at most 12.
    other_moves : int
        Ops that moved otherwise.
    recipes : tuple of two str
        Meshes and labels in words; empty: a plan without a recipe.
    specs : tuple of SpecChange
        What lies otherwise, by module, where both plans have recipes.
    """

    methods: tuple[str, str]
    makespans: tuple[float, float]
    bounds: tuple[float, float]
    spaces: tuple[str, str]
    bytes_moved: tuple[int, int]
    ops: int
    moved_ops: int
    reordered: int
    loads: tuple[DeviceLoad, ...]
    moves: tuple[ModuleMove, ...]
    other_moves: int
    recipes: tuple[str, str] = ("", "")
    specs: tuple[SpecChange, ...] = ()

    @property
    def gain(self) -> float:
        """Seconds per step that the second plan is faster."""
        return self.makespans[0] - self.makespans[1]

    @property
    def speedup(self) -> float:
        """The first plan's step over the second's: so many times as fast the second is."""
        before, after = self.makespans
        return before / after if after else 1.0

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON: seconds, bytes."""
        return {**asdict(self), "gain": self.gain, "speedup": self.speedup}

    def __str__(self) -> str:
        before, after = (format_seconds(s) for s in self.makespans)
        differ = len(set(self.spaces)) > 1
        bounds = " -> ".join(
            dict.fromkeys(
                format_seconds(seconds) + f" of {space}" * differ
                for seconds, space in zip(self.bounds, self.spaces, strict=True)
            )
        )
        sent = " -> ".join(format_bytes(b) for b in self.bytes_moved)
        step = changed(self.gain, "faster", "slower", "as long")
        rows = [
            ("device", "busy before", "after", "peak before", "after"),
            *(
                (
                    load.device,
                    format_seconds(load.busy_before),
                    format_seconds(load.busy_after),
                    *(format_bytes(p) if p else "-" for p in (load.peak_before, load.peak_after)),
                )
                for load in self.loads
            ),
        ]
        return in_lines(
            [
                f"step time    {before} by {self.methods[0]} -> {after} by {self.methods[1]}: "
                f"{self.speedup:.3g} x as fast, {step}",
                *self._recipe_lines(),
                f"lower bound  {bounds}",
                f"moved        {sent} between devices",
                f"ops          {self.moved_ops} of {self.ops} on another device, "
                f"{self.reordered} more in another order",
                *self._spec_lines(),
                *aligned(rows),
                *self._move_lines(),
            ]
        )

    def _recipe_lines(self) -> list[str]:
        if not any(self.recipes):
            return []
        texts = dict.fromkeys(text or "none" for text in self.recipes)
        return [f"recipe       {' -> '.join(texts)}"]

    def _spec_lines(self) -> list[str]:
        if not self.specs:
            return []
        head = ("module", "of it", "before", "after")
        shown = self.specs[:MAX_SPECS]
        rows = [(one.module, one.what, one.before, one.after) for one in shown]
        left = len(self.specs) - len(shown)
        return [*aligned([head, *rows]), *([f"and {left} more that lie otherwise"] if left else [])]

    def _move_lines(self) -> list[str]:
        if not self.moves:
            return []
        head = ("what moved", "from", "to", "ops", "time", "worth, taken back alone")
        rows = [
            (
                move.module or move.example,
                move.source,
                move.target,
                str(move.ops),
                format_seconds(move.time),
                "-"
                if move.worth is None
                else changed(move.worth, "gained", "lost", "nothing gained"),
            )
            for move in self.moves
        ]
        more = (
            [f"and {counted(self.other_moves, 'op')} in smaller moves"] if self.other_moves else []
        )
        return [*aligned([head, *rows]), *more]


def difference(before: Plan, after: Plan) -> Difference:
    """Sets two plans for the same ops side by side; clusters may differ, devices go by name.

    Ops that moved are grouped by module path, old device and new device. The worth of a group is
    simulated with that group alone moved back. So moves that pay only together are each worth
    little. O(V + E) and at most 12 simulations.

    Raises
    ------
    InputError
        The plans are for other ops.
    """
    if not before.graph.is_same(after.graph):
        raise InputError(
            f"the plans are for different graphs: {before.graph!r} and {after.graph!r}; "
            "only plans for the same ops can be set side by side"
        )
    was, now = _Side.of(before), _Side.of(after)
    changed = np.flatnonzero(was.where != now.where)
    moves = _moves(was, now, changed)
    return Difference(
        methods=(before.made_by, after.made_by),
        makespans=(before.makespan, after.makespan),
        bounds=(before.lower_bound, after.lower_bound),
        spaces=(before.space, after.space),
        bytes_moved=(before.schedule.bytes_moved, after.schedule.bytes_moved),
        ops=len(was.ops),
        moved_ops=len(changed),
        reordered=_reordered(was, now),
        loads=_loads(before, after),
        moves=moves,
        other_moves=len(changed) - sum(move.ops for move in moves),
        recipes=(_recipe(before), _recipe(after)),
        specs=spec_changes(before, after),
    )


def _recipe(plan: Plan) -> str:
    return "" if plan.recipe is None else recipe_in_words(plan)


@dataclass(frozen=True)
class _Side:
    """One of the plans, as columns of the user's ops that run.

    Attributes
    ----------
    plan : Plan
    ops : int32
        Those ops, by index of the user's graph.
    running : int32
        The one op of the graph that runs which each op is; -1: it has parts.
    where : str
        Its device by name, or the devices of its parts.
    seconds : float64
        Of compute, of all parts together.
    """

    plan: Plan
    ops: NDArray[np.int32]
    running: NDArray[np.int32]
    where: NDArray[np.object_]
    seconds: NDArray[np.float64]

    @classmethod
    def of(cls, plan: Plan) -> _Side:
        problem, program = plan.problem, plan.program
        ops = plan.graph.reduced.op_of
        running = program.whole[ops]
        names = np.array([d.name for d in plan.cluster.devices], dtype=object)
        where = names[plan.running_devices[running]]
        for at in np.flatnonzero(running < 0).tolist():
            used = np.unique(plan.running_devices[program.parts_of(int(ops[at]))])
            is_everywhere = len(used) == len(names) > _NAMED
            where[at] = f"all {len(used)} devices" if is_everywhere else " + ".join(names[used])
        types = np.array(plan.cluster.device_types)[plan.assignment.devices]
        seconds = problem.time[np.arange(len(types)), types]
        origin = program.origin[problem.reduced.op_of]
        total = np.bincount(origin[origin >= 0], seconds[origin >= 0], plan.graph.n_ops)
        return cls(plan, ops, running, where, total[ops].astype(np.float64))


def _reordered(was: _Side, now: _Side) -> int:
    """Number of ops that stayed on their device, but run there in another order."""
    stayed = (was.where == now.where) & (was.running >= 0) & (now.running >= 0)
    total = 0
    for device in np.unique(was.where[stayed].astype(str)):
        here = np.flatnonzero(stayed & (was.where == device))
        orders = [
            np.argsort(side.plan.schedule.start[side.running[here]], kind="stable")
            for side in (was, now)
        ]
        total += int(np.count_nonzero(orders[0] != orders[1]))
    return total


def _loads(before: Plan, after: Plan) -> tuple[DeviceLoad, ...]:
    sides = []
    for plan in (before, after):
        busy, peak = plan.schedule.device_busy.tolist(), plan.memory.peak.tolist()
        names = (d.name for d in plan.cluster.devices)
        sides.append(dict(zip(names, zip(busy, peak, strict=True), strict=True)))
    was, now = sides
    none = (0.0, 0)
    rows = ((name, was.get(name, none), now.get(name, none)) for name in {**was, **now})
    return tuple(DeviceLoad(name, a[0], b[0], int(a[1]), int(b[1])) for name, a, b in rows)


def _moves(before: _Side, after: _Side, changed: NDArray[np.intp]) -> tuple[ModuleMove, ...]:
    """The moves of most time."""
    if not len(changed):
        return ()
    parts = _parts(after.plan, after.ops[changed])
    number = {part: i for i, part in enumerate(dict.fromkeys(parts))}
    sources, targets = _places(before), _places(after)
    columns = (
        [number[part] for part in parts],
        [sources[place] for place in before.where[changed]],
        [targets[place] for place in after.where[changed]],
    )
    keys, which = np.unique(np.array(columns, dtype=np.int64), axis=1, return_inverse=True)
    total = np.bincount(which.ravel(), after.seconds[changed], keys.shape[1])
    words = list(number)
    moves = []
    for m in np.argsort(-total, kind="stable")[:MAX_MOVES].tolist():
        at = changed[which.ravel() == m]
        source, target = before.where[at[0]], after.where[at[0]]
        longest = int(after.ops[at[int(np.argmax(after.seconds[at]))]])
        moves.append(
            ModuleMove(
                module=words[int(keys[0, m])],
                source=source,
                target=target,
                ops=len(at),
                example=after.plan.graph.names[longest],
                time=float(total[m]),
                worth=_worth(after.plan, after.running[at], source),
            )
        )
    return tuple(moves)


def _places(side: _Side) -> dict[str, int]:
    """A number for each device, then for each set of devices that the parts of an op are on."""
    names = [d.name for d in side.plan.cluster.devices]
    return {name: i for i, name in enumerate(dict.fromkeys([*names, *side.where]))}


def _parts(plan: Plan, changed: NDArray[np.int32]) -> Sequence[str]:
    """The module path of each op that moved, shortened until only a few paths differ."""
    modules = plan.graph.modules
    paths = [modules[op].split(".") for op in changed.tolist()]
    cut = [[".".join(path[:depth]) for path in paths] for depth in range(_DEPTHS)]
    for shallow, deep in pairwise(cut):
        if len(set(deep)) > MAX_PARTS:
            return shallow
    return cut[-1]


def _worth(after: Plan, running: NDArray[np.int32], source: str) -> float | None:
    """Seconds by which a step gets longer with these ops back on the device of this name."""
    problem = after.problem
    index = {d.name: i for i, d in enumerate(after.cluster.devices)}.get(source)
    if index is None or (running < 0).any():
        return None
    ops = problem.reduced.map[running]
    allowed = problem.allowed_types[ops, after.cluster.device_types[index]]
    sets = problem.graph.colocation
    whole = np.isin(sets, sets[ops]).sum() == len(ops)
    if not whole or not allowed.all():
        return None
    devices = after.assignment.devices.copy()
    devices[ops] = index
    back = problem.simulate(devices, after.assignment.priority, policy=after.policy)
    return back.makespan - after.predicted.makespan
