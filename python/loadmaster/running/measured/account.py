"""Account of the difference between a predicted and a measured step.

Both steps end with a chain of causes that leads back to time 0. Every op and every transfer of the
measured chain took longer or shorter than predicted. Between the end of a cause and the start of
what waited for it, time can pass in which nothing is known to happen. By prediction, the measured
chain may take less than the step does: then it was another chain that was predicted to be the
longest. These add up to the difference.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.text import aligned, in_lines
from loadmaster.base.units import counted, format_seconds
from loadmaster.judge.simulation import Blame
from loadmaster.plans.plan import Plan

if TYPE_CHECKING:
    from loadmaster.running.measured.measured import Measured

#: Rows that the text shows: those that matter most.
_SHOWN = 12

#: Seconds below which a difference is nothing: clocks count nanoseconds.
_FINEST = 1e-9

#: Kinds of rows; the plural, and what it says, as the text has them.
_WORDS = {
    "op": "ops",
    "transfer": "transfers",
    "collective": "collectives",
    "wait": "waits: nothing that the next start needed is known to have run",
}


@dataclass(frozen=True)
class AccountRow:
    """A link of the measured chain, or a wait before one.

    Attributes
    ----------
    what : str
        "op", "transfer", "collective" or "wait".
    name : str
        Of the op that ran; of a transfer, the op whose output it is; of a wait, what came after.
    kind : str
        Of the op, or of the collective.
    place : str
        Devices.
    predicted, measured : float
        Seconds; of a wait, none were predicted.
    was_predicted : bool
        Whether the predicted chain has it too.
    """

    what: str
    name: str
    kind: str
    place: str
    predicted: float
    measured: float
    was_predicted: bool

    @property
    def seconds(self) -> float:
        """Measured less predicted."""
        return self.measured - self.predicted

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {**vars(self), "seconds": self.seconds}


@dataclass(frozen=True)
class Account:
    """Parts of the difference; :attr:`parts` add up to it.

    Attributes
    ----------
    predicted, measured : float
        Seconds per step.
    rows : tuple of Row
        The largest change first.
    other_chain : float
        Seconds that the measured chain takes by prediction, less the predicted step: 0 where it is
        the predicted chain.
    joined, left : int
        Ops, transfers and collectives that only the measured, and only the predicted chain has.
    unexplained : float
        Measured seconds that lie beyond the last op of the step.
    """

    predicted: float
    measured: float
    rows: tuple[AccountRow, ...]
    other_chain: float
    joined: int
    left: int
    unexplained: float

    @property
    def difference(self) -> float:
        """Measured less predicted seconds."""
        return self.measured - self.predicted

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of the difference by what they come from; they add up to it."""
        sums = dict.fromkeys(_WORDS, 0.0)
        for row in self.rows:
            sums[row.what] += row.seconds
        return {**sums, "other chain": self.other_chain, "unexplained": self.unexplained}

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON: seconds."""
        return {
            "predicted": self.predicted,
            "measured": self.measured,
            "difference": self.difference,
            "parts": self.parts,
            "joined": self.joined,
            "left": self.left,
            "rows": [row.to_document() for row in self.rows],
        }

    @property
    def head(self) -> str:
        """``measured 12 ms, predicted 11 ms: 1 ms longer``."""
        longer = "longer" if self.difference >= 0 else "shorter"
        return (
            f"measured {format_seconds(self.measured)}, predicted "
            f"{format_seconds(self.predicted)}: {format_seconds(abs(self.difference))} {longer}"
        )

    def __str__(self) -> str:
        parts = [("", signed(seconds), words) for words, seconds in self.told()]
        return in_lines([self.head, *aligned(parts), *self._largest()])

    def told(self) -> list[tuple[str, float]]:
        """The parts that there are, in words, and their seconds."""
        counts, parts = Counter(row.what for row in self.rows), self.parts
        rows = [
            (f"{counts[part]} {words}", parts[part])
            for part, words in _WORDS.items()
            if counts[part]
        ]
        if self.joined or self.left or abs(self.other_chain) >= _FINEST:
            rows.append(
                (f"another chain: {self.joined} joined, {self.left} left", self.other_chain)
            )
        return [*rows, ("not explained: behind the last op", self.unexplained)]

    def _largest(self) -> list[str]:
        rows = [row for row in self.rows[:_SHOWN] if abs(row.seconds) >= _FINEST]
        table = [
            (
                signed(row.seconds),
                f"{'wait before' if row.what == 'wait' else row.what} {row.name}",
                row.kind,
                row.place,
                "" if row.what == "wait" else f"{format_seconds(row.predicted)} predicted",
            )
            for row in rows
        ]
        left = self.rows[len(rows) :]
        rest = sum(row.seconds for row in left)
        more = [f"and {counted(len(left), 'more row')} of {signed(rest)}"] if left else []
        return [*(aligned(table) if table else []), *more]


def signed(seconds: float) -> str:
    """``+1.2 ms``; what no clock could tell from nothing is 0."""
    if abs(seconds) < _FINEST:
        return "0 s"
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def account(measured: Measured) -> Account:
    """The account of the difference of a run to its prediction. O(V + E + T) and its logarithm."""
    plan, seen = measured.plan, measured.seen
    chain, together = seen.schedule.blame, plan.schedule.collectives
    of_op = together.of_op(plan.program.graph.n_ops)
    expected = {_key(link, of_op) for link in plan.schedule.blame}
    rows = []
    for link in chain:
        key = _key(link, of_op)
        rows.append(_row(plan, *key, link.finish - link.start, key in expected))
    by_prediction = sum(row.predicted for row in rows)
    joined = sum(not row.was_predicted for row in rows)
    left = len(expected) - (len(rows) - joined)
    ends = [*(cause.finish for cause in chain[1:]), 0.0]
    for link, end, row in zip(chain, ends, rows.copy(), strict=True):
        if link.start != end:
            wait = link.start - end
            rows.append(AccountRow("wait", row.name, row.kind, row.place, 0.0, wait, False))
    rows.sort(key=lambda row: -abs(row.seconds))
    return Account(
        plan.makespan,
        measured.step,
        tuple(rows),
        by_prediction - plan.makespan,
        joined,
        left,
        measured.step - seen.makespan,
    )


def _key(link: Blame, of_op: NDArray[np.int32]) -> tuple[str, int]:
    """The kind of a link of either chain, and its index."""
    if link.transfer is not None:
        return "transfer", link.transfer
    assert link.op is not None, "a link is an op or a transfer"
    if link.doing in ("share", "launch"):
        return link.doing, link.op
    together = int(of_op[link.op])
    return ("op", link.op) if together < 0 else ("collective", together)


def _row(plan: Plan, link_kind: str, index: int, took: float, was_predicted: bool) -> AccountRow:
    """Seconds of a link of the measured chain, beside its prediction."""
    graph, devices = plan.program.graph, [device.name for device in plan.cluster.devices]
    step = plan.schedule
    if link_kind == "transfer":
        sent = step.transfers
        place = f"{devices[sent.src[index]]} to {devices[sent.dst[index]]}"
        # What the sender copies out is a part of sending, which is measured as one.
        expected = float(sent.copying[index] + sent.finish[index] - sent.start[index])
        return AccountRow(
            link_kind, graph.names[sent.op[index]], "", place, expected, took, was_predicted
        )
    if link_kind == "collective":
        together = step.collectives
        place = ", ".join(devices[d] for d in together.devices[index])
        # From when its last member's inputs were there: what its device does is measured too.
        expected = float(together.busy[index] + together.finish[index] - together.start[index])
        name = together.label(index)
        return AccountRow(
            link_kind, name, together.kind[index], place, expected, took, was_predicted
        )
    place = devices[int(plan.running_devices[index])]
    expected = float(step.finish[index] - step.start[index])
    name, kind = graph.names[index], graph.kinds[index]
    return AccountRow(link_kind, name, kind, place, expected, took, was_predicted)
