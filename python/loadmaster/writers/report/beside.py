"""Measured beside predicted: a picture of both steps, and tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.base.units import counted, format_bytes, format_seconds
from loadmaster.running.measured.account import Account, signed
from loadmaster.running.measured.measured import Measured
from loadmaster.running.measured.ratios import HEAD
from loadmaster.writers.pictures.bars import Pixels, merged, shades
from loadmaster.writers.pictures.lanes import Lane, lanes_of
from loadmaster.writers.report.markup import Figure, label

Cells = tuple[str, ...]

#: Devices, and channels, that the picture has: the busiest.
_MAX_LANES = 12

#: Columns by which bars too narrow to see are merged.
_COLUMNS = 600

#: Pixels of a pair of lanes, and of what is around all of them.
_PAIR, _AROUND = 34, 80

#: Rows of the tables.
_ROWS = 40

#: Distance of the two lanes of a pair from its middle, in pairs.
_APART = 0.21


def beside(measured: Measured) -> Figure:
    """Two lanes for each of the busiest devices and channels: above the predicted step, below the
    measured one, on one axis of time.
    """
    predicted = lanes_of(measured.plan, _MAX_LANES)
    seen = lanes_of(measured.seen, _MAX_LANES, coloured_as=measured.plan)
    above, below = (
        {lane.name: lane for lane in [*view.devices, *view.channels]} for view in (predicted, seen)
    )
    names = list(dict.fromkeys([*above, *below]))
    span = max(measured.plan.makespan, measured.seen.makespan, 1e-9)
    faces = shades([colour for _, colour in predicted.palette])
    pixels = Pixels(_COLUMNS, span)
    traces = []
    for side, lanes, offset in (
        ("predicted", above, -_APART),
        ("measured", below, _APART),
    ):
        y: list[float] = []
        base: list[float] = []
        length: list[float] = []
        colour: list[str] = []
        for row, name in enumerate(names):
            if name in lanes:
                drawn = merged(*_columns(lanes[name]), pixels)
                y += [row + offset] * len(drawn.begin)
                base += drawn.begin.tolist()
                length += (drawn.end - drawn.begin).tolist()
                colour += [_css(face) for face in faces[drawn.colour, drawn.shade].tolist()]
        traces.append(_trace(side, y, base, length, colour))
    return {"data": traces, "layout": _layout(measured, names)}


def _columns(lane: Lane) -> tuple[Any, Any, Any]:
    return lane.start, lane.finish, lane.colour


def _css(face: list[float]) -> str:
    r, g, b = (int(np.floor(255 * part + 0.5)) for part in face)
    return f"rgb({r},{g},{b})"


def _trace(
    side: str, y: list[float], base: list[float], length: list[float], colour: list[str]
) -> Figure:
    return {
        "name": side,
        "type": "bar",
        "orientation": "h",
        "y": y,
        "base": base,
        "x": length,
        "width": 0.36,
        "marker": {"color": colour},
        "hovertemplate": f"{side}: %{{base:.4s}}s and %{{x:.4s}}s on<extra></extra>",
    }


def _layout(measured: Measured, names: list[str]) -> Figure:
    ends = (("predicted", measured.plan.makespan), ("measured", measured.seen.makespan))
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1}
    look = {"color": "#1f2933", "width": 1, "dash": "dot"}
    return {
        "height": _AROUND + _PAIR * len(names),
        "margin": {"l": 60, "r": 30, "t": 30, "b": 40},
        "barmode": "overlay",
        "showlegend": False,
        "xaxis": {"rangemode": "tozero", "tickformat": "~s", "ticksuffix": "s"},
        "yaxis": {
            "autorange": "reversed",
            "automargin": True,
            "tickvals": [row + at for row in range(len(names)) for at in (-_APART, _APART)],
            "ticktext": [
                text for name in names for text in (f"{label(name)}, predicted  ", "measured  ")
            ],
            "showgrid": False,
            "zeroline": False,
        },
        "shapes": [{**line, "x0": s, "x1": s, "line": look} for _, s in ends],
        "annotations": [
            {
                "x": s,
                "yref": "paper",
                "y": 1,
                "yanchor": "bottom",
                "xanchor": "right" if s == min(e for _, e in ends) else "left",
                "showarrow": False,
                "text": f"{word} {format_seconds(s)}",
            }
            for word, s in ends
        ],
    }


def device_rows(measured: Measured) -> list[Cells]:
    """Of each device: what it was, busy and peak, predicted and measured."""
    plan, steps = measured.plan, measured.steps
    return [
        (
            device.name,
            measured.on[d],
            format_seconds(float(plan.schedule.device_busy[d])),
            format_seconds(float(measured.seen.schedule.device_busy[d])),
            format_bytes(int(plan.memory.peak[d])),
            "not measured" if steps.peaks is None else format_bytes(int(steps.peaks[d])),
        )
        for d, device in enumerate(plan.cluster.devices)
    ]


#: The columns of :func:`device_rows`.
DEVICES = ("device", "was", "busy, predicted", "measured", "peak, predicted", "measured")


def ratio_rows(measured: Measured) -> tuple[Cells, list[Cells]]:
    """The columns of the ratios, and their rows."""
    return HEAD, _some([row.cells() for row in measured.ratios().rows])


def cause_rows(difference: Account) -> tuple[list[Cells], list[Cells]]:
    """Causes of the difference: its parts, and its largest rows."""
    parts: list[Cells] = [(signed(seconds), words) for words, seconds in difference.told()]
    rows: list[Cells] = [
        (
            signed(row.seconds),
            row.what,
            row.name,
            row.kind,
            row.place,
            format_seconds(row.predicted),
            format_seconds(row.measured),
        )
        for row in difference.rows
        if row.seconds
    ]
    return parts, _some(rows)


#: The columns of the largest rows of :func:`cause_rows`.
CAUSES = ("measured less predicted", "what", "which", "kind", "where", "predicted", "measured")


def _some(rows: list[Cells]) -> list[Cells]:
    """The first rows, and how many more there are."""
    more = len(rows) - _ROWS
    return rows if more <= 0 else [*rows[:_ROWS], (f"and {counted(more, 'more row')}",)]
