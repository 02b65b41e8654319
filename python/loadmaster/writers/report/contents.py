"""Data that a report draws from: ops, messages and modules as packed columns, figures as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from loadmaster.base.quoting import json_text
from loadmaster.base.units import format_bytes
from loadmaster.plans.plan import Plan
from loadmaster.running.measured.measured import Measured
from loadmaster.writers.pictures.bars import shades
from loadmaster.writers.pictures.lanes import Lane, View, lanes_of, links_of
from loadmaster.writers.pictures.messages import Messages
from loadmaster.writers.pictures.pipeline import is_pipeline
from loadmaster.writers.report.beside import beside
from loadmaster.writers.report.chain import ChainPart
from loadmaster.writers.report.modules import tree
from loadmaster.writers.report.pipeline import pipeline

#: Devices, and channels, that are shown: the busiest.
MAX_LANES = 64

#: A colour per device: as told apart as those of Okabe and Ito, and each dark enough to be seen as
#: a line on white (a contrast of 3 or more); more devices go round again.
COLOURS = ("#3591c4", "#c07f00", "#009e73", "#8a8400", "#0b4f8a", "#d55e00", "#c46a9d", "#858585")

#: The reasons for which an op can have waited; the page knows them by index.
WAITS = ("nothing", "op", "device", "message", "copy", "share", "launch")

#: A column: its type (``f8``, ``f4``, ``i4``, ``u1``), its first byte and its length.
Column = tuple[str, int, int]


class PackedColumns:
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


def contents(plan: Plan, chain: list[ChainPart], measured: Measured | None = None) -> bytes:
    """All that the page's script draws: the length of a JSON document (uint64), that document,
    blanks up to a multiple of eight bytes, and the columns it speaks of; see ``page.data.js``.

    ``chain`` are the parts of the chain of causes.
    """
    columns = PackedColumns()
    text = json_text(_document(plan, chain, measured, columns)).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + columns.to_bytes()


def _document(
    plan: Plan, chain: list[ChainPart], measured: Measured | None, columns: PackedColumns
) -> dict[str, Any]:
    view, messages = folded(lanes_of(plan, MAX_LANES)), Messages(plan)
    return {
        "span": plan.makespan or 1e-9,
        "palette": view.palette,
        "shades": _shades(view),
        "lanes": [_lane(columns, lane, True) for lane in view.devices]
        + [_lane(columns, lane, False) for lane in view.channels],
        "hidden": [view.hidden_devices, view.hidden_channels],
        "devices": [d.name for d in plan.cluster.devices],
        "colours": [COLOURS[i % len(COLOURS)] for i in range(plan.cluster.n_devices)],
        "ops": _ops(columns, plan, view, messages),
        "messages": _messages(columns, plan, view, messages),
        "transfers": messages.n_transfers,
        "chain": _chain(columns, plan, view, messages),
        "parts": [columns.add(part.links, "i4") for part in chain],
        "memory": _memory_columns(columns, plan, view),
        "modules": _modules(columns, plan),
        "figures": {
            **({} if measured is None else {"beside": beside(measured)}),
            **({"pipeline": pipeline(plan)} if is_pipeline(plan) else {}),
        },
    }


def folded(view: View) -> View:
    """The lanes without those of devices that compute nothing, unless all are so."""
    kept = [row for row, lane in enumerate(view.devices) if len(lane.item)]
    if not kept:
        return view
    row = {old: new for new, old in enumerate(kept)}
    gone = len(view.devices) - len(kept)
    return replace(
        view,
        devices=[view.devices[old] for old in kept],
        row_of_device={d: row[old] for d, old in view.row_of_device.items() if old in row},
        row_of_channel={c: old - gone for c, old in view.row_of_channel.items()},
    )


def idle_devices(plan: Plan) -> list[str]:
    """Devices that compute nothing, with what they hold."""
    return [
        device.name + (f" (holds {format_bytes(int(peak))})" if peak else "")
        for device, busy, peak in zip(
            plan.cluster.devices, plan.schedule.device_busy, plan.memory.peak, strict=True
        )
        if not busy
    ]


def _shades(view: View) -> list[list[str]]:
    """The shades of each colour of the palette, palest first, as CSS has them."""
    faces = np.floor(255 * shades([colour for _, colour in view.palette]) + 0.5).astype(int)
    return [[f"rgb({r},{g},{b})" for r, g, b in row] for row in faces[:, 1:].tolist()]


def _lane(columns: PackedColumns, lane: Lane, is_device: bool) -> dict[str, Any]:
    return {
        "name": lane.name,
        "note": lane.note,
        "device": is_device,
        "colour": columns.add(lane.colour, "u1"),
        "what": columns.add(lane.item, "i4"),
    }


def _ops(columns: PackedColumns, plan: Plan, view: View, messages: Messages) -> dict[str, Any]:
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
    """The cause that an op's start waited for, as a word of :data:`WAITS`, and its index.

    A member of a collective stands for the collective.
    """
    word, cause = plan.schedule.waited(reduced_op)
    if word in ("transfer", "channel"):
        return "message", cause
    if word in ("op", "device", "collective"):
        message = int(messages.of_op[plan.problem.reduced.op_of[cause]])
        return (word, cause) if message < 0 else ("message", message)
    if word == "share":
        return word, int(messages.of_op[plan.problem.reduced.op_of[cause]])
    return word, cause


def _messages(columns: PackedColumns, plan: Plan, view: View, messages: Messages) -> dict[str, Any]:
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


def _chain(columns: PackedColumns, plan: Plan, view: View, messages: Messages) -> dict[str, Any]:
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


def _memory_columns(columns: PackedColumns, plan: Plan, view: View) -> list[dict[str, Any]]:
    """Memory of the devices that are shown, and of others that hold something."""
    holds = np.flatnonzero(plan.memory.peak > 0).tolist()
    shown = []
    for device in sorted({*view.row_of_device, *holds[:MAX_LANES]}):
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


def _modules(columns: PackedColumns, plan: Plan) -> dict[str, Any]:
    """The tree of modules; see :class:`~loadmaster.writers.report.modules.Tree`."""
    modules = tree(plan)
    node, device, seconds = modules.busy
    src, dst, sent, moved = modules.sent
    return {
        "name": modules.name,
        "parent": modules.parent,
        "ops": columns.add(modules.ops, "i4"),
        "start": columns.add(modules.start, "f8"),
        "finish": columns.add(modules.finish, "f8"),
        "busy": {
            "node": columns.add(node, "i4"),
            "device": columns.add(device, "i4"),
            "seconds": columns.add(seconds, "f8"),
        },
        "sent": {
            "src": columns.add(src, "i4"),
            "dst": columns.add(dst, "i4"),
            "bytes": columns.add(sent, "f8"),
            "moved": columns.add(moved, "f8"),
        },
    }
