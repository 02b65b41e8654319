"""What a report holds: facts as text, ops and messages as packed columns, figures as data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from loadmaster.base.units import format_seconds
from loadmaster.costs import PROVENANCES
from loadmaster.plans.comparison import Comparison
from loadmaster.plans.plan import Plan
from loadmaster.plans.streams import shortest, stream_facts
from loadmaster.plans.summary import moved, no_placement, shortage, verdict
from loadmaster.running.measured import Measured
from loadmaster.writers.pictures.bars import shades
from loadmaster.writers.pictures.graph_files import COLOURS
from loadmaster.writers.pictures.lanes import Lane, View, lanes_of, links_of
from loadmaster.writers.pictures.messages import Messages
from loadmaster.writers.pictures.pipeline import is_pipeline
from loadmaster.writers.report import figures
from loadmaster.writers.report.beside import beside
from loadmaster.writers.report.pipeline import pipeline

#: Devices, and channels, that are shown: the busiest.
MAX_LANES = 64

#: The reasons for which an op can have waited; the page knows them by index.
WAITS = ("nothing", "op", "device", "message", "copy", "launch")

#: A column: its type (``f8``, ``f4``, ``i4``, ``u1``), its first byte and its length.
Column = tuple[str, int, int]


class Columns:
    """Columns of numbers, little-endian, one after another, each at a multiple of eight bytes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._end = 0

    def add(self, values: ArrayLike, kind: str) -> Column:
        """Adds a column; returns its type, first byte and length, by which the page finds it."""
        data = np.ascontiguousarray(values, dtype=f"<{kind}")
        column = (kind, self._end, len(data))
        raw = data.tobytes() + bytes(-data.nbytes % 8)
        self._parts.append(raw)
        self._end += len(raw)
        return column

    def coded(self, values: Sequence[str]) -> dict[str, Any]:
        """A column of words that repeat, as the distinct words and an index into them."""
        number = {word: i for i, word in enumerate(dict.fromkeys(values))}
        return {"words": list(number), "of": self.add([number[v] for v in values], "i4")}

    def to_bytes(self) -> bytes:
        """All of them."""
        return b"".join(self._parts)


def facts(plan: Plan) -> list[tuple[str, str]]:
    """What a person wants to know first, as names and values."""
    options = ", ".join(f"{k}={v}" for k, v in plan.options.items())
    shares = ", ".join(f"{share:.0%} {word}" for word, share in plan.provenance.items())
    rows = [
        *_streamed(plan),
        ("step time, measured" if plan.observed else "step time", format_seconds(plan.makespan)),
        ("one device", _one_device(plan)),
        ("lower bound", f"{format_seconds(plan.lower_bound)} ({plan.bound_source})"),
        ("gap", _gap(plan)),
        ("memory", _memory(plan)),
        ("moved", moved(plan.schedule)),
        ("method", f"{plan.method}{f' ({options})' if options else ''}, seed {plan.seed}"),
        ("planned in", format_seconds(plan.planning_seconds)),
        ("times", f"{shares or 'none'} (by share of the time)"),
    ]
    notes = [note for note in (verdict(plan), *plan.notes) if note]
    return rows + [("note", note) for note in notes]


def _streamed(plan: Plan) -> list[tuple[str, str]]:
    """Of a plan made for throughput: what a stream of its steps came to."""
    return [] if plan.verdict.steady is None else stream_facts(plan)


def _gap(plan: Plan) -> str:
    if plan.objective.goal == "throughput":
        return f"{plan.gap:.1%}: {shortest(plan)}"
    return f"{plan.gap:.1%}: {no_placement(plan)} can be faster by more than this"


def _one_device(plan: Plan) -> str:
    if plan.single is None:
        return "none found that holds everything, in any order tried"
    ratio = plan.single / plan.makespan if plan.makespan else 1.0
    return f"{format_seconds(plan.single)}: the plan is {ratio:.2f} x as fast"


def provenance_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """Where times come from: word, share of the time, number of ops."""
    counts = np.bincount(plan.problem.costs.provenance, minlength=len(PROVENANCES)).tolist()
    return [
        (word, f"{share:.1%}", str(counts[PROVENANCES.index(word)]))
        for word, share in plan.provenance.items()
    ]


def contents(plan: Plan, comparison: Comparison | None, measured: Measured | None = None) -> bytes:
    """All that the page's script draws: the length of a JSON document (uint64), that document,
    blanks up to a multiple of eight bytes, and the columns it speaks of; see ``page.js``.
    """
    columns = Columns()
    text = json.dumps(
        _document(plan, comparison, measured, columns),
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    ).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + columns.to_bytes()


def _document(
    plan: Plan, comparison: Comparison | None, measured: Measured | None, columns: Columns
) -> dict[str, Any]:
    view, messages = lanes_of(plan, MAX_LANES), Messages(plan)
    return {
        "span": plan.makespan or 1e-9,
        "palette": view.palette,
        "shades": _shades(view),
        "lanes": [_lane(columns, lane, True) for lane in view.devices]
        + [_lane(columns, lane, False) for lane in view.channels],
        "hidden": [view.hidden_devices, view.hidden_channels],
        "devices": [d.name for d in plan.cluster.devices],
        "ops": _ops(columns, plan, view, messages),
        "messages": _messages(columns, plan, view, messages),
        "transfers": messages.n_transfers,
        "chain": _chain(columns, plan, view, messages),
        "memory": _memory_columns(columns, plan, view),
        "figures": {
            **({} if measured is None else {"beside": beside(measured)}),
            **({"pipeline": pipeline(plan)} if is_pipeline(plan) else {}),
            **figures.figures(plan, comparison),
        },
    }


def _shades(view: View) -> list[list[str]]:
    """The shades of each colour of the palette, palest first, as CSS has them."""
    faces = np.floor(255 * shades([colour for _, colour in view.palette]) + 0.5).astype(int)
    return [[f"rgb({r},{g},{b})" for r, g, b in row] for row in faces[:, 1:].tolist()]


def _lane(columns: Columns, lane: Lane, is_device: bool) -> dict[str, Any]:
    return {
        "name": lane.name,
        "note": lane.note,
        "device": is_device,
        "colour": columns.add(lane.colour, "u1"),
        "what": columns.add(lane.what, "i4"),
    }


def _ops(columns: Columns, plan: Plan, view: View, messages: Messages) -> dict[str, Any]:
    """Columns of the ops that run, in the order of the reduced graph.

    ``cause`` is an op or a message, as ``waited`` says.
    """
    program, schedule, op_of = plan.program, plan.schedule, plan.problem.reduced.op_of
    graph, ops = program.graph, op_of.tolist()
    waits = [_wait(plan, messages, op) for op in range(len(ops))]
    rows = np.full(plan.cluster.n_devices, -1)
    rows[list(view.row_of_device)] = list(view.row_of_device.values())
    return {
        "name": [graph.names[op] for op in ops],
        "origin": [] if program.is_plain else [program.label(op) for op in ops],
        "kind": columns.coded([graph.kinds[op] for op in ops]),
        "module": columns.coded([graph.modules[op] for op in ops]),
        "bytes": columns.add(graph.output_bytes[op_of].astype(np.float64), "f4"),
        "device": columns.add(schedule.devices[op_of], "i4"),
        "row": columns.add(rows[schedule.devices[op_of]], "i4"),
        "start": columns.add(schedule.start[op_of], "f8"),
        "finish": columns.add(schedule.finish[op_of], "f8"),
        "waited": columns.add([WAITS.index(word) for word, _ in waits], "u1"),
        "cause": columns.add([cause for _, cause in waits], "i4"),
    }


def _wait(plan: Plan, messages: Messages, reduced_op: int) -> tuple[str, int]:
    """What an op's start waited for, as a word of :data:`WAITS`, and its index.

    A member of a collective stands for the collective.
    """
    word, cause = plan.schedule.waited(reduced_op)
    if word in ("transfer", "channel"):
        return "message", cause
    if word in ("op", "device", "collective"):
        message = int(messages.of_op[plan.problem.reduced.op_of[cause]])
        return (word, cause) if message < 0 else ("message", message)
    return word, cause


def _messages(columns: Columns, plan: Plan, view: View, messages: Messages) -> dict[str, Any]:
    """Columns of the messages; ``row``: the first of its lanes that is shown, -1: none.

    ``waited`` and ``cause`` are as those of ops: what sent a transfer, and what the member of a
    collective that arrived last waited for. ``members`` are those of each collective, by name.
    """
    sent, together, reduced = (
        plan.schedule.transfers,
        plan.schedule.collectives,
        plan.problem.reduced,
    )
    rows = [
        min((view.row_of_channel[c] for c in held if c in view.row_of_channel), default=-1)
        for held in messages.channels
    ]
    senders = zip(messages.of_op[sent.op].tolist(), reduced.map[sent.op].tolist(), strict=True)
    causes = [("op", op) if message < 0 else ("message", message) for message, op in senders]
    causes += [_wait(plan, messages, op) for op in reduced.map[together.op].tolist()]
    names = plan.program.graph.names
    return {
        "name": columns.coded(messages.names),
        "place": columns.coded(messages.places),
        "members": [", ".join(names[op] for op in members) for members in together.members],
        "row": columns.add(rows, "i4"),
        "bytes": columns.add(messages.bytes.astype(np.float64), "f4"),
        "queued": columns.add(messages.queued, "f8"),
        "start": columns.add(messages.start, "f8"),
        "finish": columns.add(messages.finish, "f8"),
        "waited": columns.add([WAITS.index(word) for word, _ in causes], "u1"),
        "cause": columns.add([cause for _, cause in causes], "i4"),
    }


def _chain(columns: Columns, plan: Plan, view: View, messages: Messages) -> dict[str, Any]:
    """The chain of causes, first to last: op or -1, message or -1, when, what happened, and why it
    began no earlier.
    """
    chain = plan.schedule.blame[::-1]
    to_reduced = plan.problem.reduced.map
    sent = [messages.of_link(link) for link in chain]
    ops = [
        -1 if link.op is None or message >= 0 else int(to_reduced[link.op])
        for link, message in zip(chain, sent, strict=True)
    ]
    return {
        "op": columns.add(ops, "i4"),
        "message": columns.add(sent, "i4"),
        "start": columns.add([link.start for link in chain], "f8"),
        "finish": columns.add([link.finish for link in chain], "f8"),
        "doing": columns.coded([link.doing for link in chain]),
        "waited": columns.coded([link.waited for link in chain]),
        "rows": [rows for _, _, rows in links_of(plan, view)],
    }


def _memory(plan: Plan) -> str:
    """Whether it fits; of a run that did not measure its memory, whether it was predicted to."""
    judged = plan.predicted if plan.memory.is_predicted else plan
    found = shortage(judged.schedule, plan.cluster, plan.program) or "fits"
    return f"{found}, as predicted" if plan.memory.is_predicted else found


def _memory_columns(columns: Columns, plan: Plan, view: View) -> list[dict[str, Any]]:
    shown = []
    for device in sorted(view.row_of_device):
        times, used = plan.memory.profile(device)
        shown.append(
            {
                "name": plan.cluster.devices[device].name,
                "colour": COLOURS[device % len(COLOURS)],
                "capacity": int(plan.memory.capacity[device]),
                "peak": int(plan.memory.peak[device]),
                "time": columns.add(times, "f8"),
                "used": columns.add(used.astype(np.float64), "f4"),
            }
        )
    return shown
