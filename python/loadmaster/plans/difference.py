"""Two plans for the same ops side by side: what moved, and what that gained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.base.text import aligned
from loadmaster.base.units import counted, format_bytes, format_seconds

if TYPE_CHECKING:
    from loadmaster.plans.plan import Plan

#: Moves that are told apart and taken back one by one, those of most time first.
MAX_MOVES = 12

#: Module paths are cut where they tell at most so many parts apart, and at this depth.
MAX_PARTS = 40
_DEPTHS = 6


@dataclass(frozen=True)
class Move:
    """Ops of one part of the model that went from one device to another.

    Attributes
    ----------
    module : str
        Path that they share; "" where they share none.
    source, target : str
        Devices, by name.
    ops : int
        Ops that run; views and placeholders follow.
    example : str
        The longest of them.
    time : float
        Seconds of compute where they are now.
    worth : float or None
        Seconds that a step would take longer if these ops alone went back; below 0: it would be
        faster. Memory is not asked. None: they cannot go back by themselves (no such device, a
        device type that they do not allow, or colocation).
    """

    module: str
    source: str
    target: str
    ops: int
    example: str
    time: float
    worth: float | None


@dataclass(frozen=True)
class Load:
    """A device before and after, by name: seconds of compute and bytes at the peak; 0 where there
    is no such device.
    """

    device: str
    busy_before: float
    busy_after: float
    peak_before: int
    peak_after: int


@dataclass(frozen=True)
class Difference:
    """What sets one plan apart from another.

    Attributes
    ----------
    methods : tuple of two str
    makespans, bounds : tuple of two float
        Seconds, before and after.
    bytes_moved : tuple of two int
        Between devices.
    ops, moved_ops, reordered : int
        Ops that run; how many are on a device of another name; of the others, how many run in
        another place among those that stayed on their device.
    loads : tuple of Load
    moves : tuple of Move
        Those of most time, at most 12.
    other_moves : int
        Ops that moved otherwise.
    """

    methods: tuple[str, str]
    makespans: tuple[float, float]
    bounds: tuple[float, float]
    bytes_moved: tuple[int, int]
    ops: int
    moved_ops: int
    reordered: int
    loads: tuple[Load, ...]
    moves: tuple[Move, ...]
    other_moves: int

    @property
    def gain(self) -> float:
        """Seconds per step that the second plan is faster."""
        return self.makespans[0] - self.makespans[1]

    @property
    def speedup(self) -> float:
        """How many times as fast the second plan's step is."""
        before, after = self.makespans
        return before / after if after else 1.0

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON: seconds, bytes."""
        return {**asdict(self), "gain": self.gain, "speedup": self.speedup}

    def __str__(self) -> str:
        before, after = (format_seconds(s) for s in self.makespans)
        bounds = " -> ".join(dict.fromkeys(format_seconds(s) for s in self.bounds))
        sent = " -> ".join(format_bytes(b) for b in self.bytes_moved)
        rows = [
            ("device", "busy before", "after", "peak before", "after"),
            *(
                (
                    load.device,
                    format_seconds(load.busy_before),
                    format_seconds(load.busy_after),
                    format_bytes(load.peak_before),
                    format_bytes(load.peak_after),
                )
                for load in self.loads
            ),
        ]
        return "\n".join(
            [
                f"step time    {before} by {self.methods[0]} -> {after} by {self.methods[1]}: "
                f"{self.speedup:.3g} x as fast, {_signed(self.gain, 'faster', 'slower')}",
                f"lower bound  {bounds}",
                f"moved        {sent} between devices",
                f"ops          {self.moved_ops} of {self.ops} on another device, "
                f"{self.reordered} more in another order",
                *aligned(rows),
                *self._move_lines(),
            ]
        )

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
                "-" if move.worth is None else _signed(move.worth, "gained", "lost"),
            )
            for move in self.moves
        ]
        more = (
            [f"and {counted(self.other_moves, 'op')} in smaller moves"] if self.other_moves else []
        )
        return [*aligned([head, *rows]), *more]


def _signed(seconds: float, above: str, below: str) -> str:
    return f"{format_seconds(abs(seconds))} {above if seconds >= 0 else below}"


def difference(before: Plan, after: Plan) -> Difference:
    """Sets two plans for the same ops side by side; clusters may differ, devices go by name.

    Ops that moved are gathered by module path and by where they went from and to. The worth of each
    such move is what the simulator finds if these ops alone go back: moves that pay only together
    are each worth less, or nothing, alone. O(V + E) and at most 12 simulations.

    Raises
    ------
    InputError
        The plans are for other ops.
    """
    if before.graph.digest != after.graph.digest:
        raise InputError(
            f"the plans are for different graphs: {before.graph!r} and {after.graph!r}; "
            "only plans for the same ops can be set side by side"
        )
    names = [np.array([d.name for d in plan.cluster.devices]) for plan in (before, after)]
    was, now = names[0][before.assignment.devices], names[1][after.assignment.devices]
    changed = np.flatnonzero(was != now)
    moves = _moves(before, after, changed)
    return Difference(
        methods=(before.method, after.method),
        makespans=(before.makespan, after.makespan),
        bounds=(before.lower_bound, after.lower_bound),
        bytes_moved=(before.schedule.bytes_moved, after.schedule.bytes_moved),
        ops=len(was),
        moved_ops=len(changed),
        reordered=_reordered(before, after, was == now),
        loads=_loads(before, after),
        moves=moves,
        other_moves=len(changed) - sum(move.ops for move in moves),
    )


def _reordered(before: Plan, after: Plan, stayed: NDArray[np.bool_]) -> int:
    """Ops that stayed on their device but run in another place among those that did."""
    index = {d.name: i for i, d in enumerate(after.cluster.devices)}
    shared = [(i, index[d.name]) for i, d in enumerate(before.cluster.devices) if d.name in index]
    pairs = ((_sequence(before, i, stayed), _sequence(after, j, stayed)) for i, j in shared)
    return sum(int(np.count_nonzero(was != now)) for was, now in pairs)


def _sequence(plan: Plan, device: int, among: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Some ops of a device in the order in which they run."""
    here = np.flatnonzero(among & (plan.assignment.devices == device))
    start = plan.schedule.start[plan.problem.reduced.op_of[here]]
    return here[np.argsort(start, kind="stable")]


def _loads(before: Plan, after: Plan) -> tuple[Load, ...]:
    sides = []
    for plan in (before, after):
        busy, peak = plan.schedule.device_busy.tolist(), plan.memory.peak.tolist()
        names = (d.name for d in plan.cluster.devices)
        sides.append(dict(zip(names, zip(busy, peak, strict=True), strict=True)))
    was, now = sides
    none = (0.0, 0)
    rows = ((name, was.get(name, none), now.get(name, none)) for name in {**was, **now})
    return tuple(Load(name, a[0], b[0], int(a[1]), int(b[1])) for name, a, b in rows)


def _moves(before: Plan, after: Plan, changed: NDArray[np.intp]) -> tuple[Move, ...]:
    """The moves of most time."""
    if not len(changed):
        return ()
    problem = after.problem
    was, now = before.assignment.devices[changed], after.assignment.devices[changed]
    parts = _parts(after, changed)
    number = {part: i for i, part in enumerate(dict.fromkeys(parts))}
    key = np.array([number[part] for part in parts], dtype=np.int64)
    keys, which = np.unique(np.stack([key, was, now]), axis=1, return_inverse=True)
    types = np.array(after.cluster.device_types)[after.assignment.devices]
    seconds = problem.time[np.arange(len(types)), types]
    total = np.bincount(which.ravel(), seconds[changed], keys.shape[1])
    largest = np.argsort(-total, kind="stable")[:MAX_MOVES]
    words = list(number)
    moves = []
    for m in largest.tolist():
        ops = changed[which.ravel() == m]
        part, source, target = keys[:, m].tolist()
        name = before.cluster.devices[source].name
        longest = problem.reduced.op_of[ops[int(np.argmax(seconds[ops]))]]
        moves.append(
            Move(
                module=words[part],
                source=name,
                target=after.cluster.devices[target].name,
                ops=len(ops),
                example=after.graph.names[int(longest)],
                time=float(total[m]),
                worth=_worth(after, ops, name),
            )
        )
    return tuple(moves)


def _parts(plan: Plan, changed: NDArray[np.intp]) -> Sequence[str]:
    """The module path of every op that moved, cut where that tells a few parts apart."""
    modules = plan.graph.modules
    paths = [modules[op].split(".") for op in plan.problem.reduced.op_of[changed].tolist()]
    cut = [[".".join(path[:depth]) for path in paths] for depth in range(_DEPTHS)]
    for shallow, deep in pairwise(cut):
        if len(set(deep)) > MAX_PARTS:
            return shallow
    return cut[-1]


def _worth(after: Plan, ops: NDArray[np.intp], source: str) -> float | None:
    """Seconds that a step takes longer with these ops back on the device of this name."""
    problem = after.problem
    index = {d.name: i for i, d in enumerate(after.cluster.devices)}.get(source)
    if index is None:
        return None
    allowed = problem.allowed_types[ops, after.cluster.device_types[index]]
    sets = problem.graph.colocation
    whole = np.isin(sets, sets[ops]).sum() == len(ops)
    if not whole or not allowed.all():
        return None
    devices = after.assignment.devices.copy()
    devices[ops] = index
    back = problem.simulate(devices, after.assignment.priority, policy=after.policy)
    return back.makespan - after.makespan
