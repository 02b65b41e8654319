"""A plan's simulated step as one picture: who computed, what was sent, why it took so long.

Lanes of devices and of channels, the chain of causes on top of them, and memory below.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from loadmaster.base.drawing import (
    DPI,
    INK,
    MUTED,
    RULE,
    TRACK,
    check_suffix,
    short,
    style,
    time_ticks,
    write,
)
from loadmaster.base.errors import InputError
from loadmaster.base.units import format_bytes, format_ratio, format_seconds
from loadmaster.plans.plan import Plan
from loadmaster.writers.pictures.bars import Floats, Pixels, joined, merged, shades
from loadmaster.writers.pictures.lanes import Link, View, lanes_of, links_of
from loadmaster.writers.pictures.messages import WORDS, Messages

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LANES = 24

MEMORY, MEMORY_EDGE, OVER = "#b3c5d4", "#5f7d96", "#c43c2c"

_PIXELS_PER_HOP = 8
_RIGHT, _HEADING, _LEGEND_ROW = 104, 58, 18
_CHANNEL_HEIGHT = 15


def draw(
    plan: Plan,
    path: str | os.PathLike[str],
    *,
    width: int = 1000,
    title: str | None = None,
) -> None:
    """Draws the step that the simulator saw, as PNG or SVG by the path's suffix.

    Above, a lane per device with its ops by phase (forward, backward, optimizer), or by module if
    all are of one phase; then a lane per channel that carried anything, at most the 24 busiest.
    Channels that carry the same collectives, and nothing else, share a lane. The dark line is the
    chain of causes from the last op back to time 0 (``plan.schedule.blame``): to be faster,
    something on it has to change. Below, memory per device against its capacity. The same plan
    gives the same bytes.

    Parameters
    ----------
    plan, path
    width : int
        Pixels; a PNG has twice as many, for sharp screens. At least 500.
    title : str, optional
        Instead of "model on cluster".

    Raises
    ------
    InputError
        Another suffix, too narrow, or the file cannot be written.
    MissingExtraError
        matplotlib is not installed.

    Examples
    --------
    >>> import loadmaster as lm, pathlib, tempfile
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "celeritas")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "step.svg")
    ...     draw(plan, path)
    ...     path.exists()
    True
    """
    check_suffix(path)
    if width < 500:
        raise InputError(f"width is {width}: a picture needs at least 500 pixels")
    with style("drawing a plan"):
        write(_figure(plan, width, title), path)


# -- the figure ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _TimelineFrame:
    """Pixels of the picture: its width, the left edge of the lanes, the lanes' own pixels, and the
    height of a device's lane.
    """

    width: int
    left: int
    lanes: Pixels
    tall: int


def _frame(plan: Plan, view: View, width: int) -> _TimelineFrame:
    letters = [7.6 * len(short(lane.name)) for lane in view.devices]
    letters += [6.6 * len(short(lane.name)) for lane in view.channels]
    left = max(60, int(max(letters)) + 16)
    tall = 30 if len(view.devices) <= 8 else 20
    lanes = Pixels(width - left - _RIGHT, plan.makespan or 1e-9)
    return _TimelineFrame(width, left, lanes, tall)


def _figure(plan: Plan, width: int, title: str | None) -> Figure:
    from matplotlib.figure import Figure

    view = lanes_of(plan, MAX_LANES)
    frame = _frame(plan, view, width)
    tracks = _tracks(view, frame)
    legend = _legend_rows(view, frame)
    top = _HEADING + _LEGEND_ROW * len(legend)
    lanes_height = tracks[-1][1] + 4
    memory_height = frame.tall * len(view.devices)
    height = top + lanes_height + 30 + memory_height + 34
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
    lanes = _panel(figure, frame, top, lanes_height)
    memory = _panel(figure, frame, top + lanes_height + 30, memory_height)
    _draw_lanes(lanes, view, tracks, frame)
    _draw_chain(lanes, links_of(plan, view), tracks, len(view.devices), frame)
    _draw_memory(memory, plan, sorted(view.row_of_device), frame)
    _draw_time(lanes, memory, frame.lanes.span)
    _draw_heading(figure, plan, title, frame)
    _draw_legend(figure, plan, legend, frame)
    return figure


def _panel(figure: Figure, frame: _TimelineFrame, top: float, tall: float) -> Axes:
    """Axes in seconds to the right and pixels downwards."""
    height = _height(figure)
    axes = figure.add_axes(
        (
            frame.left / frame.width,
            1 - (top + tall) / height,
            frame.lanes.columns / frame.width,
            tall / height,
        )
    )
    axes.set_xlim(0, frame.lanes.span)
    axes.set_ylim(tall, 0)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return axes


def _height(figure: Figure) -> float:
    return float(figure.get_figheight()) * DPI


def _tracks(view: View, frame: _TimelineFrame) -> list[tuple[float, float]]:
    """Top and bottom of every lane in pixels from the top."""
    tracks = []
    y = 18.0
    for _ in view.devices:
        tracks.append((y + 2, y + frame.tall - 2))
        y += frame.tall
    y += 26
    for _ in view.channels:
        tracks.append((y + 1.5, y + _CHANNEL_HEIGHT - 1.5))
        y += _CHANNEL_HEIGHT
    return tracks


def _draw_lanes(
    axes: Axes, view: View, tracks: list[tuple[float, float]], frame: _TimelineFrame
) -> None:
    lanes = view.devices + view.channels
    faces_of = shades([colour for _, colour in view.palette])
    boxes, faces = [], []
    for row, (lane, (top, bottom)) in enumerate(zip(lanes, tracks, strict=True)):
        bars = merged(lane.start, lane.finish, lane.colour, frame.lanes)
        boxes.append(_rectangles(np.array([0.0]), np.array([frame.lanes.span]), top, bottom))
        faces.append(shades([TRACK])[0, -1:])
        boxes.append(_rectangles(bars.begin, bars.end, top, bottom))
        faces.append(faces_of[bars.colour, bars.shade])
        size = 9 if row < len(view.devices) else 7.5
        _beside(axes, (top + bottom) / 2, lane.name, lane.note, size)
    _fill(axes, boxes, faces)
    _section(axes, tracks[0][0] - 6, _named("devices", view.hidden_devices), "busy")
    if view.channels:
        above = tracks[len(view.devices)][0] - 5
        _section(axes, above, _named("channels", view.hidden_channels), "busy")


def _named(noun: str, hidden: int) -> str:
    return f"{noun} (the {MAX_LANES} busiest; {hidden} more not shown)" if hidden else noun


def _rectangles(begin: Floats, end: Floats, top: float, bottom: float) -> Floats:
    x = np.stack([begin, end, end, begin], axis=1)
    y = np.broadcast_to(np.array([top, top, bottom, bottom]), x.shape)
    return np.stack([x, y], axis=2)


def _fill(axes: Axes, boxes: list[Floats], faces: list[Floats], z: float = 2) -> None:
    from matplotlib.collections import PolyCollection

    # Without antialiasing neighbours meet without a seam.
    axes.add_collection(
        PolyCollection(
            list(np.concatenate(boxes)),
            facecolors=np.concatenate(faces),
            edgecolors="none",
            linewidths=0,
            antialiaseds=False,
            zorder=z,
        ),
        autolim=False,
    )


def _beside(axes: Axes, y: float, name: str, note: str, size: float, alarm: bool = False) -> None:
    place = axes.get_yaxis_transform()
    axes.text(-0.01, y, short(name), ha="right", va="center", fontsize=size, transform=place)
    colour = OVER if alarm else MUTED
    axes.text(1.01, y, note, va="center", fontsize=min(size, 8.5), color=colour, transform=place)


def _section(axes: Axes, y: float, left: str, right: str) -> None:
    place = axes.get_yaxis_transform()
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
    for x, text in ((0.0, left), (1.01, right)):
        axes.text(
            x, y, text, va="bottom", fontsize=8, color=MUTED, transform=place, bbox=ground, zorder=4
        )


# -- the chain of causes ---------------------------------------------------------------------


def _draw_chain(
    axes: Axes,
    links: list[Link],
    tracks: list[tuple[float, float]],
    n_devices: int,
    frame: _TimelineFrame,
) -> None:
    from matplotlib.collections import LineCollection

    middle = [(top + bottom) / 2 for top, bottom in tracks]
    level: list[list[tuple[float, float]]] = []
    for row, y in enumerate(middle):
        held = np.array([(a, b) for a, b, rows in links if row in rows and b > a]).reshape(-1, 2)
        begin, end = joined(held[:, 0], held[:, 1], frame.lanes.width)
        level += [[(a, y), (b, y)] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
    upright = _hops(links, middle, n_devices, frame)
    # White beneath keeps the line apart from dark bars.
    looks = ((level, "white", 3.4), (upright, INK, 0.8), (level, INK, 1.7))
    for lines, colour, wide in looks:
        axes.add_collection(
            LineCollection(lines, colors=colour, linewidths=wide, zorder=3), autolim=False
        )


def _hops(
    links: list[Link], middle: list[float], n_devices: int, frame: _TimelineFrame
) -> list[list[tuple[float, float]]]:
    """Upright lines where the chain goes to or from a device, at most one per pixel. None at all if
    they were so many that they would hide the lanes.
    """
    reach: dict[int, tuple[float, float, float]] = {}
    for (_, _, before), (start, _, after) in pairwise(links):
        if before == after or not before or not after or min(before + after) >= n_devices:
            continue
        ends = [middle[row] for row in (*before, *after)]
        column = int(start / frame.lanes.span * frame.lanes.columns)
        time, low, high = reach.get(column, (start, ends[0], ends[0]))
        reach[column] = time, min(low, *ends), max(high, *ends)
    if len(reach) > frame.lanes.columns / _PIXELS_PER_HOP:
        return []
    return [[(time, low), (time, high)] for time, low, high in reach.values()]


# -- memory, time, words ---------------------------------------------------------------------


def _draw_memory(axes: Axes, plan: Plan, devices: list[int], frame: _TimelineFrame) -> None:
    edges = frame.lanes.edges
    predicted = ", as predicted" if plan.memory.is_predicted else ""
    _section(axes, -2, f"memory in use, of what the device has{predicted}", "peak")
    for row, device in enumerate(devices):
        times, used = plan.memory.profile(device)
        capacity, peak = int(plan.memory.capacity[device]), int(plan.memory.peak[device])
        bottom = (row + 1) * frame.tall - 2.0
        scale = (frame.tall - 4.0) / max(capacity, peak, 1)
        limit = bottom - capacity * scale
        highest = frame.lanes.highest(times, used.astype(np.float64))
        x, y = np.repeat(edges, 2)[1:-1], bottom - np.repeat(highest, 2) * scale
        axes.fill_between([0, frame.lanes.span], bottom, limit, color=TRACK, linewidth=0, zorder=2)
        axes.fill_between(x, bottom, np.maximum(y, limit), color=MEMORY, linewidth=0, zorder=2)
        axes.fill_between(x, limit, np.minimum(y, limit), color=OVER, linewidth=0, zorder=2)
        if peak:
            axes.plot(x, y, color=MEMORY_EDGE, linewidth=0.9, zorder=3, clip_on=False)
        note = _of(peak, capacity)
        middle = (bottom + min(limit, bottom - peak * scale)) / 2
        _beside(axes, middle, plan.cluster.devices[device].name, note, 9, peak > capacity)


def _of(peak: int, capacity: int) -> str:
    """``30.6 of 32 GiB``."""
    have, unit = format_bytes(capacity).split()
    value = peak / capacity * float(have) if capacity else 0.0
    digits = f"{value:.2f}" if value < 1 else f"{value:.3g}"
    most = "0" if not peak else "<0.01" if value < 0.01 else digits
    return f"{most} of {have} {unit}" if capacity else format_bytes(peak)


def _draw_time(lanes: Axes, memory: Axes, span: float) -> None:
    ticks, words = time_ticks(span, 8)
    for axes in (lanes, memory):
        axes.set_xticks(ticks)
        axes.tick_params(axis="x", length=0, labelsize=8)
        for tick in ticks[1:]:
            axes.axvline(tick, color=RULE, linewidth=0.5, zorder=1)
    lanes.set_xticklabels([])
    memory.set_xticklabels(words)


def _draw_heading(figure: Figure, plan: Plan, title: str | None, frame: _TimelineFrame) -> None:
    left, height = frame.left / frame.width, _height(figure)
    name = title or f"{plan.graph.name or 'model'} on {plan.cluster.name or 'cluster'}"
    figure.text(left, 1 - 14 / height, name, va="top", fontsize=13, fontweight="bold")
    figure.text(left, 1 - 37 / height, _facts(plan), va="top", fontsize=9.5, color=MUTED)


def _facts(plan: Plan) -> str:
    facts = [f"{format_seconds(plan.makespan)} per step ({plan.made_by})"]
    if plan.single is None:
        facts.append("no single device was found to hold it")
    elif plan.makespan:
        facts.append(f"{format_ratio(plan.single / plan.makespan)} x as fast as one device")
    facts.append(f"lower bound {format_seconds(plan.lower_bound)}")
    overflow = plan.memory.overflow
    if overflow is not None:
        device = plan.cluster.devices[overflow.device].name
        facts.append(f"{device} overflows at {format_seconds(overflow.time)}")
    return "  ·  ".join(facts)


def _legend_rows(view: View, frame: _TimelineFrame) -> list[list[tuple[str, str]]]:
    """Entries by row, as many in one as its width takes at about six pixels a letter."""
    rows: list[list[tuple[str, str]]] = [[]]
    used = 0.0
    for label, colour in [*view.palette, (_CHAIN, "")]:
        need = 40 + 6.1 * len(label)
        if rows[-1] and used + need > frame.lanes.columns + _RIGHT:
            rows.append([])
            used = 0.0
        rows[-1].append((label, colour))
        used += need
    return rows


_CHAIN = "critical chain: 100 % compute, 100 % transfers, 100 % collectives"


def _draw_legend(
    figure: Figure, plan: Plan, rows: list[list[tuple[str, str]]], frame: _TimelineFrame
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    for i, row in enumerate(rows):
        handles: list[Any] = [
            Patch(color=colour, label=label)
            if colour
            else Line2D([], [], color=INK, linewidth=1.8, label=_chain_label(plan))
            for label, colour in row
        ]
        figure.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(frame.left / frame.width, 1 - (56 + _LEGEND_ROW * i) / _height(figure)),
            ncols=len(handles),
            frameon=False,
            fontsize=8.5,
            borderaxespad=0,
            borderpad=0,
            handlelength=1.1,
            handleheight=0.9,
            handletextpad=0.5,
            columnspacing=1.4,
        )


def _chain_label(plan: Plan) -> str:
    messages = Messages(plan)
    sums = {"transfers": 0.0, "collectives": 0.0, "between": plan.makespan}
    for blame in plan.schedule.blame:
        message = messages.of_link(blame)
        sums["between"] -= blame.finish - blame.start
        if blame.doing in WORDS:
            word = WORDS[blame.doing]
        elif message >= 0:
            word = "transfers" if message < messages.n_transfers else "collectives"
        else:
            continue
        sums[word] = sums.get(word, 0.0) + blame.finish - blame.start
    shares = {word: round(100 * s / (plan.makespan or 1.0)) for word, s in sums.items()}
    said = [f"{100 - sum(shares.values())} % compute"]
    said += [f"{share} % {word}" for word, share in shares.items() if share]
    return f"critical chain: {', '.join(said)}"
