"""The collectives that an op caused by how it is split: they bring its inputs or take its output.

Between an op and a collective stand ops that the program added, such as slices, and views.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.units import counted, format_bytes, format_seconds
from loadmaster.plans.plan import Plan

#: The tasks that a collective has for an op.
INPUT, EXCHANGE, OUTPUT = SIDES = ("input", "exchange", "output")

_DO = {
    INPUT: ("brings its input", "bring its input"),
    EXCHANGE: ("sums what its parts exchange", "sum what its parts exchange"),
    OUTPUT: ("takes its output", "take its output"),
}


@dataclass(frozen=True)
class Caused:
    """Collectives of one kind and size that bring an op its input, or take its output.

    Attributes
    ----------
    side : "input", "exchange" or "output"
    kind : str
        Such as "all_reduce".
    count : int
        One for each group of devices, and for each tensor of this size.
    bytes : int
        Of the whole tensor of each; a bucket counts with all that is in it.
    devices : int
        That take part in each.
    bytes_sent : int
        From one device to another in all of them.
    start, finish : float
        Seconds: the first start and the last end.
    seconds : float
        In which at least one is under way.
    """

    side: str
    kind: str
    count: int
    bytes: int
    devices: int
    bytes_sent: int
    start: float
    finish: float
    seconds: float

    def __str__(self) -> str:
        each = " each" if self.count > 1 else ""
        does = _DO[self.side][self.count > 1]
        return (
            f"{self.count} x {self.kind} of {format_bytes(self.bytes)}{each} on "
            f"{counted(self.devices, 'device')} {does}: {format_bytes(self.bytes_sent)} sent, "
            f"under way for {format_seconds(self.seconds)}, from {format_seconds(self.start)} to "
            f"{format_seconds(self.finish)}"
        )


def caused(plan: Plan, op: int) -> tuple[Caused, ...]:
    """The collectives around an op of the user's graph, those of its inputs first."""
    together = plan.schedule.collectives
    if not len(together):
        return ()
    members: dict[tuple[str, str, int, int], list[int]] = defaultdict(list)
    for side, which in zip(SIDES, _around(plan, op), strict=True):
        for i in sorted(which):
            size, devices = int(together.bytes[i]), len(together.devices[i])
            members[side, together.kind[i], size, devices].append(i)
    rows = []
    for (side, kind, size, devices), ones in members.items():
        some = together.some(ones)
        when = float(some.start.min()), float(some.finish.max()), some.seconds
        rows.append(Caused(side, kind, len(some), size, devices, some.bytes_sent, *when))
    return tuple(sorted(rows, key=lambda row: (SIDES.index(row.side), -row.seconds)))


def _around(plan: Plan, op: int) -> tuple[set[int], set[int], set[int]]:
    """By side, the collectives of an op. What its parts exchange is there for it alone."""
    program = plan.program
    of_op = plan.schedule.collectives.of_op(program.graph.n_ops)
    parts = program.parts_of(op)
    before, after = (
        set(of_op[_met(plan, parts, towards_source=towards_source)].tolist()) - {-1}
        for towards_source in (True, False)
    )
    added = (program.serves == op) & program.own & program.graph.is_member
    exchanged = set(of_op[added].tolist()) - {-1} - after
    return before - exchanged, exchanged, after


def _met(plan: Plan, parts: NDArray[np.intp], *, towards_source: bool) -> NDArray[np.intp]:
    """The members of collectives that are met first on the ways from an op's parts."""
    program, graph = plan.program, plan.program.graph
    data = (graph.src if graph.tensor is None else graph.tensor) >= 0
    ends = graph.src[data], graph.dst[data]
    here, there = ends[::-1] if towards_source else ends
    passes = (program.own | graph.view) & ~graph.is_member
    reached = np.zeros(graph.n_ops, dtype=bool)
    at = np.zeros(graph.n_ops, dtype=bool)
    at[parts] = True
    while at.any():
        after = np.zeros(graph.n_ops, dtype=bool)
        after[there[at[here]]] = True
        after &= ~reached
        reached |= after
        at = after & passes
    return np.flatnonzero(reached & graph.is_member)
