"""A plan's simulated step as lanes of coloured bars: a lane per device and per channel.

A collective is a bar on the channels that it holds.

The drawn timeline (:mod:`loadmaster.writers.pictures.timeline`) and the report
(:mod:`loadmaster.writers.report`) draw these lanes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.plans.plan import Plan
from loadmaster.writers.pictures.bars import Bars, Floats, Ints, of_messages, of_ops
from loadmaster.writers.pictures.messages import Messages

MAX_MODULES = 8

SENT, TOGETHER = "#76838f", "#9c4274"
PHASES = {"f": ("forward", "#2f6db3"), "b": ("backward", "#d17d1c"), "o": ("optimizer", "#2a9d8f")}
OTHER = ("other", "#a283b6")
# From dark to light, as the sequence of a model's layers; even steps of lightness.
SEQUENCE = (
    "#24366f", "#2f5496", "#3a74b8", "#3f93b5", "#57b3a3", "#8cc981", "#c5d65e", "#f2d74e",
)  # fmt: skip


@dataclass(frozen=True)
class Lane:
    """A row of bars.

    Attributes
    ----------
    name, note : str
        Of the device or the channels; how busy they are.
    start, finish : float64
        Ascending, disjoint intervals in seconds.
    colour : int64
        Index into the palette.
    item : int64
        The op of the reduced graph, or the message.
    """

    name: str
    note: str
    start: Floats
    finish: Floats
    colour: Ints
    item: Ints


@dataclass(frozen=True)
class View:
    """Lanes from top to bottom, devices first, and the rows of devices and of channels."""

    devices: list[Lane]
    channels: list[Lane]
    hidden_devices: int
    hidden_channels: int
    row_of_device: dict[int, int]
    row_of_channel: dict[int, int]
    palette: list[tuple[str, str]]


def lanes_of(plan: Plan, most: int, *, coloured_as: Plan | None = None) -> View:
    """The lanes of a plan: those of the busiest devices and channels, ``most`` of each.

    Channels that carry the same collectives and nothing else share a lane. Colours may be those of
    the same plan as it was simulated.
    """
    palette, colour = _colours(coloured_as or plan)
    messages, schedule, span = Messages(plan), plan.schedule, plan.makespan
    words, hue = _message_colours(messages, len(palette))
    shown, hidden = _busiest(schedule.device_busy, most, keep_idle=True)
    groups = _alike(plan, messages)
    busy = np.array([schedule.channel_busy[group[0]] for group in groups])
    used = [groups[g] for g in _busiest(busy, most, keep_idle=False)[0]]
    devices = {d: plan.cluster.devices[d].name for d in shown}
    names = plan.cluster.channels
    channels = {group[0]: _group_name(names, group) for group in used}
    colour = colour[plan.problem.reduced.op_of]
    return View(
        list(_lanes(devices, schedule.device_busy, of_ops(plan), colour, span)),
        list(_lanes(channels, schedule.channel_busy, of_messages(messages), hue, span)),
        hidden,
        sum(map(len, groups)) - sum(map(len, used)),
        {d: row for row, d in enumerate(shown)},
        {c: len(shown) + row for row, group in enumerate(used) for c in group},
        [*palette, *words],
    )


def _message_colours(messages: Messages, first: int) -> tuple[list[tuple[str, str]], Ints]:
    """The words that are needed for messages, and the place of each message's in the palette."""
    n_transfers, n = messages.n_transfers, len(messages)
    words = [("transfer", SENT)] * (n_transfers > 0) + [("collective", TOGETHER)] * (
        n > n_transfers
    )
    is_second = (np.arange(n) >= n_transfers) & (n_transfers > 0)
    return words, first + is_second.astype(np.int64)


def _alike(plan: Plan, messages: Messages) -> list[list[int]]:
    """The channels that carry anything, by name; those that carry the same collectives and nothing
    else together.
    """
    carried: dict[int, list[int]] = {}
    for message, channels in enumerate(messages.channels):
        for channel in channels:
            carried.setdefault(channel, []).append(message)
    groups: dict[tuple[int, ...], list[int]] = {}
    names, busy = plan.cluster.channels, plan.schedule.channel_busy
    for channel in sorted(np.flatnonzero(busy > 0).tolist(), key=lambda c: _natural(names[c])):
        carried_messages = carried.get(channel, [-1])
        alone = carried_messages[0] < messages.n_transfers
        groups.setdefault((-1, channel) if alone else tuple(carried_messages), []).append(channel)
    return list(groups.values())


def _group_name(names: Sequence[str], group: Sequence[int]) -> str:
    if len(group) == 1:
        return names[group[0]]
    if len(group) == len(names):
        return f"all {len(names)} channels"
    return f"{names[group[0]]} and {len(group) - 1} more"


def _busiest(busy: Floats, most: int, *, keep_idle: bool) -> tuple[list[int], int]:
    """Indices to show, ascending, and how many are left out."""
    candidates = [i for i, b in enumerate(busy.tolist()) if keep_idle or b > 0]
    chosen = sorted(candidates, key=lambda i: (-busy[i], i))[:most]
    return sorted(chosen), len(candidates) - len(chosen)


def _natural(name: str) -> list[tuple[str, int]]:
    """A key by which ``gpu2`` comes before ``gpu10``."""
    pieces = re.findall(r"(\D*)(\d*)", name)
    return [(text, int(digits or 0)) for text, digits in pieces]


def _lanes(
    names: Mapping[int, str], busy: Floats, bars: Bars, colour: Ints, span: float
) -> Iterator[Lane]:
    """A lane per named row of bars; ``colour`` is an index into the palette per op or message."""
    for row, name in names.items():
        here = bars.of_row(row)
        note = _share(float(busy[row]), span)
        yield Lane(name, note, here.start, here.finish, colour[here.item], here.item)


def _share(part: float, whole: float) -> str:
    share = 100 * part / whole if whole else 0.0
    return "idle" if part == 0 else "<1 %" if share < 1 else f"{share:.0f} %"


# -- colours ---------------------------------------------------------------------------------


def _colours(plan: Plan) -> tuple[list[tuple[str, str]], Ints]:
    """The palette of ops (label, colour), and an index into it per op of the graph."""
    phases = plan.program.graph.phases
    ran = [phases[op] for op in plan.problem.reduced.op_of.tolist()]
    if len(set(ran)) > 1:
        labels = [p for p in PHASES if p in set(ran)]
        index = {p: i for i, p in enumerate(labels)}
        palette = [PHASES[p] for p in labels] + [OTHER] * (set(ran) - set(PHASES) != set())
        column = np.array([index.get(p, len(labels)) for p in phases], dtype=np.int64)
    else:
        palette, column = _module_colours(plan)
    return palette, column


def _module_colours(plan: Plan) -> tuple[list[tuple[str, str]], Ints]:
    """Colours by part of the model: its modules in the order in which they appear, in at most eight
    runs of about the same time.
    """
    modules = plan.program.graph.modules
    parts = _parts(modules)
    first = {part: i for i, part in enumerate(dict.fromkeys(parts))}
    if len(first) < 2:
        return [("compute", PHASES["f"][1])], np.zeros(len(parts), dtype=np.int64)
    column = np.array([first[part] for part in parts], dtype=np.int64)
    seconds = plan.schedule.finish - plan.schedule.start
    seconds[plan.program.graph.is_member] = 0.0
    weight = np.bincount(column, seconds, minlength=len(first)).astype(np.float64)
    bucket = _even_runs(weight, MAX_MODULES)
    names = list(first)
    labels = []
    for b in range(int(bucket[-1]) + 1):
        members = [names[i] for i in np.flatnonzero(bucket == b).tolist() if names[i]]
        labels.append(_range(members[0], members[-1]) if members else "no module")
    steps = np.linspace(0, len(SEQUENCE) - 1, len(labels)).round().astype(int).tolist()
    return [(label, SEQUENCE[s]) for label, s in zip(labels, steps, strict=True)], bucket[column]


def _parts(modules: Sequence[str]) -> list[str]:
    """Every op's module, cut at the first depth with at least six different ones (``layers.3``)."""
    distinct = [name.split(".") for name in dict.fromkeys(modules)]
    deepest = max(map(len, distinct), default=1)
    for depth in range(1, deepest + 1):
        if len({tuple(words[:depth]) for words in distinct}) >= min(6, len(distinct)):
            break
    return [".".join(name.split(".")[:depth]) for name in modules]


def _range(first: str, last: str) -> str:
    """``layers.0`` and ``layers.3`` as ``layers.0–3``."""
    if first == last:
        return first
    stem, _, tail = last.rpartition(".")
    return f"{first}–{tail}" if stem and first.rpartition(".")[0] == stem else f"{first} – {last}"


def _even_runs(weight: Floats, n: int) -> Ints:
    """A run per item: at most ``n`` runs of about the same weight, in order, none of them empty."""
    if len(weight) <= n:
        return np.arange(len(weight), dtype=np.int64)
    total = float(weight.sum()) or 1.0
    middle = np.cumsum(weight) - weight / 2
    run = np.minimum((middle / total * n).astype(np.int64), n - 1)
    return np.unique(run, return_inverse=True)[1].astype(np.int64)


# -- the chain of causes ---------------------------------------------------------------------


#: Begin, end (s) and rows of a link of the chain.
Link = tuple[float, float, list[int]]


def links_of(plan: Plan, view: View) -> list[Link]:
    """The chain, first to last; a link whose lanes are not shown has no rows."""
    messages, devices = Messages(plan), plan.schedule.devices
    links = []
    for blame in plan.schedule.blame[::-1]:
        lanes: list[int | None] = []
        message = messages.of_link(blame)
        if blame.doing == "copy":
            lanes = [view.row_of_device.get(int(plan.schedule.transfers.src[message]))]
        elif blame.doing == "share" and blame.op is not None:
            lanes = [view.row_of_device.get(int(devices[blame.op]))]
        elif message >= 0:
            lanes = [view.row_of_channel.get(channel) for channel in messages.channels[message]]
        elif blame.op is not None and blame.doing == "run":
            lanes = [view.row_of_device.get(int(devices[blame.op]))]
        rows = sorted({row for row in lanes if row is not None})
        links.append((blame.start, blame.finish, rows))
    return links
