"""A pipeline's step as the papers draw it: a row per device, a numbered box per micro-batch.

In a row is what the device computes, with grey where it waits. The thin line below is what it
sends, and the collectives that it takes part in.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loadmaster.base.drawing import (
    DPI,
    INK,
    MUTED,
    check_suffix,
    ink_on,
    short,
    style,
    time_ticks,
    write,
)
from loadmaster.base.errors import InputError
from loadmaster.base.units import counted, format_seconds
from loadmaster.plans.plan import Plan
from loadmaster.plans.words import title as title_of
from loadmaster.writers.pictures.bars import Floats, Ints, Pixels, joined, merged
from loadmaster.writers.pictures.blocks import WHAT, Blocks
from loadmaster.writers.pictures.lanes import PHASES, SENT, TOGETHER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The colours of :data:`~loadmaster.writers.pictures.blocks.WHAT`, and of a device that waits.
COLOURS = (PHASES["f"][1], PHASES["b"][1], "#8a6fb8", PHASES["o"][1])
IDLE = "#d9dde1"

#: Micro-batches have colours between a full one and a pale one; so many in turn, then again.
TINTS, _PALEST = 4, 0.45

#: Boxes narrower than this are merged by pixel; digits are drawn where they have room.
_DIGIT, _LETTER = 7.0, 7.6

_ROW, _THIN, _GAP = 34, 4, 6
_MARK = 2.5
_HEADING, _LEFT, _RIGHT, _BELOW = 84, 24, 120, 30
_MAX_DEVICES = 64


def draw(
    plan: Plan, path: str | os.PathLike[str], *, width: int = 1000, title: str | None = None
) -> None:
    """Draws the pipeline of a plan with micro-batches, as PNG or SVG by the path's suffix.

    A row per device. A box is the forward pass, the backward pass or the gradients of weights of
    one micro-batch, by its number from 1 on; grey is where the device waits. What is done once,
    such as the optimizer's update, has no number. Where a device has several stages, boxes of the
    second have a dark line at the top, those of the third two. Below, thin: what the device sends,
    and collectives. Beside each row stand its idle share, and how many micro-batches are alive on
    it at once at most. The same plan gives the same bytes.

    Parameters
    ----------
    plan : Plan
        Simulated, or with a measured step (:attr:`loadmaster.Measured.seen`).
    path
    width : int
        Pixels; a PNG has twice as many, for sharp screens. At least 500.
    title : str, optional
        Instead of "model on cluster".

    Raises
    ------
    InputError
        A plan without micro-batches, another suffix, too narrow, more than 64 devices, or the file
        cannot be written.
    MissingExtraError
        matplotlib is not installed.
    """
    check_suffix(path)
    if width < 500:
        raise InputError(f"width is {width}: a picture needs at least 500 pixels")
    check(plan)
    with style("drawing a pipeline"):
        write(_figure(plan, Blocks.of(plan), width, title), path)


def is_pipeline(plan: Plan) -> bool:
    """True if a plan has more than one micro-batch."""
    return bool((plan.program.micro > 0).any())


def check(plan: Plan) -> None:
    """Refuses a plan that has no pipeline to be drawn."""
    if not is_pipeline(plan):
        raise InputError(
            f"the plan ({plan.made_by}) has no micro-batches, so there is no pipeline to draw: "
            "draw its timeline instead"
        )
    if plan.cluster.n_devices > _MAX_DEVICES:
        raise InputError(
            f"the cluster has {plan.cluster.n_devices} devices, and a pipeline is drawn of at most "
            f"{_MAX_DEVICES}"
        )


def tint(kind: int, micro: int) -> tuple[float, float, float]:
    """RGB from 0 to 1 of a box: by what it is, and by its micro-batch."""
    strength = 1.0
    if micro >= 0:
        strength -= (1 - _PALEST) * (micro % TINTS) / (TINTS - 1)
    full = (int(COLOURS[kind][at : at + 2], 16) / 255 for at in (1, 3, 5))
    r, g, b = (1 - (1 - part) * strength for part in full)
    return r, g, b


def facts(plan: Plan, blocks: Blocks) -> str:
    """The step in a line: seconds, micro-batches, idle share of the devices that compute."""
    some = blocks.idle < 1
    idle = float(blocks.idle[some].mean()) if some.any() else 0.0
    m = int(plan.program.micro.max()) + 1
    said = [
        f"{format_seconds(plan.makespan)} per step ({plan.made_by})",
        counted(m, "micro-batch", "micro-batches"),
        f"devices idle {100 * idle:.1f} % of it",
    ]
    return "  ·  ".join(said)


# -- the figure ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _PipelineFrame:
    """Pixels of the picture: its size, and the left edge and the pixels of the rows."""

    width: int
    height: int
    left: int
    rows: Pixels


def _figure(plan: Plan, blocks: Blocks, width: int, title: str | None) -> Figure:
    from matplotlib.figure import Figure

    names = [short(device.name) for device in plan.cluster.devices]
    left = int(max(map(len, names)) * _LETTER) + _LEFT
    height = _HEADING + _ROW * len(names) + _BELOW
    rows = Pixels(width - left - _RIGHT, plan.makespan or 1e-9)
    frame = _PipelineFrame(width, height, left, rows)
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
    tall = _ROW * len(names)
    place = (left / width, _BELOW / height, rows.columns / width, tall / height)
    axes = figure.add_axes(place)
    axes.set_xlim(0, rows.span)
    axes.set_ylim(tall, 0)
    axes.spines[:].set_visible(False)
    axes.set_yticks([])
    _draw_rows(axes, blocks, len(names), frame)
    _draw_sent(axes, plan, frame)
    _draw_names(axes, blocks, names)
    _draw_time(axes, frame)
    _draw_heading(figure, plan, blocks, title, frame)
    return figure


def _box(device: int) -> tuple[float, float]:
    """Top and bottom of a device's boxes, in pixels from the top of the rows."""
    return _ROW * device + 1.0, _ROW * (device + 1) - _THIN - _GAP


def _draw_rows(axes: Axes, blocks: Blocks, n: int, frame: _PipelineFrame) -> None:
    boxes, faces = [], []
    for device in range(n):
        top, bottom = _box(device)
        boxes.append(_corners(np.array([0.0]), np.array([frame.rows.span]), top, bottom))
        faces.append([_rgb(IDLE)])
        here = blocks.device == device
        colour = blocks.kind * (TINTS + 1) + np.where(
            blocks.micro >= 0, blocks.micro % TINTS, TINTS
        )
        bars = merged(blocks.start[here], blocks.finish[here], colour[here], frame.rows)
        boxes.append(_corners(bars.begin, bars.end, top, bottom))
        faces.append([_of_colour(c) for c in bars.colour.tolist()])
    _fill(axes, boxes, faces, edge=0.4)
    _mark_stages(axes, blocks, n)
    _draw_numbers(axes, blocks, frame)


def _mark_stages(axes: Axes, blocks: Blocks, n: int) -> None:
    """Marks boxes of later stages of a device: a line at the top for the second, then two."""
    boxes, faces = [], []
    for stage in range(1, int(blocks.virtual_stage.max(initial=0)) + 1):
        for device in range(n):
            here = (blocks.device == device) & (blocks.virtual_stage >= stage)
            top = _box(device)[0] + _MARK * (2 * stage - 2)
            begin, end = blocks.start[here], blocks.finish[here]
            boxes.append(_corners(begin, end, top, top + _MARK))
            faces.append([_rgb(INK)] * len(begin))
    if boxes:
        _fill(axes, boxes, faces, edge=0.4)


def _of_colour(colour: int) -> tuple[float, float, float]:
    index, which = divmod(colour, TINTS + 1)
    return tint(index, which if which < TINTS else -1)


def _draw_numbers(axes: Axes, blocks: Blocks, frame: _PipelineFrame) -> None:
    wide = (blocks.finish - blocks.start) / frame.rows.width
    digits = np.char.str_len((blocks.micro + 1).astype(str))
    for i in np.flatnonzero((blocks.micro >= 0) & (wide >= _DIGIT * digits + 2)).tolist():
        top, bottom = _box(int(blocks.device[i]))
        axes.text(
            (blocks.start[i] + blocks.finish[i]) / 2,
            (top + bottom) / 2,
            f"{blocks.micro[i] + 1}",
            ha="center",
            va="center_baseline",
            fontsize=8.5,
            color=ink_on(tint(int(blocks.kind[i]), int(blocks.micro[i]))),
        )


def _draw_sent(axes: Axes, plan: Plan, frame: _PipelineFrame) -> None:
    """Thin lines: what each device sends, and below it collectives that it takes part in."""
    sent, together = plan.schedule.transfers, plan.schedule.collectives
    boxes, faces = [], []
    members: list[tuple[int, int]] = [
        (i, device) for i, devices in enumerate(together.devices) for device in devices
    ]
    which = np.array([i for i, _ in members], dtype=np.int64)
    where = np.array([device for _, device in members], dtype=np.int64)
    columns = (
        (sent.src, sent.start, sent.finish, SENT),
        (where, together.start[which], together.finish[which], TOGETHER),
    )
    for device in range(plan.cluster.n_devices):
        top = _box(device)[1] + 1.5
        for of, start, finish, colour in columns:
            here = np.flatnonzero(of == device)
            here = here[np.argsort(start[here], kind="stable")]
            begin, end = joined(start[here], finish[here], frame.rows.width / 2)
            boxes.append(_corners(begin, end, top, top + _THIN))
            faces.append([_rgb(colour)] * len(begin))
    _fill(axes, boxes, faces)


def _corners(begin: Floats, end: Floats, top: float, bottom: float) -> Floats:
    x = np.stack([begin, end, end, begin], axis=1)
    y = np.broadcast_to(np.array([top, top, bottom, bottom]), x.shape)
    return np.stack([x, y], axis=2)


def _rgb(colour: str) -> tuple[float, float, float]:
    r, g, b = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return r, g, b


def _fill(axes: Axes, boxes: list[Floats], faces: list[Any], edge: float = 0.0) -> None:
    from matplotlib.collections import PolyCollection

    axes.add_collection(
        PolyCollection(
            list(np.concatenate(boxes)),
            facecolors=[face for some in faces for face in some],
            edgecolors="white" if edge else "none",
            linewidths=edge,
        ),
        autolim=False,
    )


# -- words -----------------------------------------------------------------------------------


def _draw_names(axes: Axes, blocks: Blocks, names: list[str]) -> None:
    place = axes.get_yaxis_transform()
    for device, name in enumerate(names):
        top, bottom = _box(device)
        y = (top + bottom) / 2
        axes.text(-0.01, y, name, ha="right", va="center", fontsize=9, transform=place)
        note = f"idle {100 * blocks.idle[device]:.1f} %, {blocks.alive[device]} alive"
        axes.text(1.01, y, note, va="center", fontsize=8, color=MUTED, transform=place)


def _draw_time(axes: Axes, frame: _PipelineFrame) -> None:
    axes.set_xticks(*time_ticks(frame.rows.span, 6))
    axes.tick_params(axis="x", length=2, labelsize=8)


def _draw_heading(
    figure: Figure, plan: Plan, blocks: Blocks, title: str | None, frame: _PipelineFrame
) -> None:
    from matplotlib.patches import Patch

    left, height = frame.left / frame.width, frame.height
    name = title or title_of(plan)
    figure.text(left, 1 - 12 / height, name, va="top", fontsize=13, fontweight="bold")
    said = facts(plan, blocks)
    figure.text(left, 1 - 35 / height, said, va="top", fontsize=9.5, color=MUTED)
    seen: Ints = np.unique(blocks.kind)
    entries = [(WHAT[kind], COLOURS[kind]) for kind in seen.tolist()] + [("idle", IDLE)]
    entries += [("later stage of the device", INK)] * bool(blocks.virtual_stage.any())
    entries += [("sends", SENT)] * bool(len(plan.schedule.transfers))
    entries += [("collective", TOGETHER)] * bool(len(plan.schedule.collectives))
    figure.legend(
        handles=[Patch(color=colour, label=label) for label, colour in entries],
        loc="upper left",
        bbox_to_anchor=(left, 1 - 55 / height),
        ncols=len(entries),
        frameon=False,
        fontsize=8.5,
        borderaxespad=0,
        borderpad=0,
        handlelength=1.1,
        handleheight=0.9,
        handletextpad=0.5,
        columnspacing=1.4,
    )
