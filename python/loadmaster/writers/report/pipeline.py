"""The report's figure of a pipeline: a row per device, a numbered bar per micro-batch and pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.base.drawing import ink_on
from loadmaster.base.units import format_seconds
from loadmaster.plans.plan import Plan
from loadmaster.writers.pictures.blocks import WHAT, Blocks
from loadmaster.writers.pictures.pipeline import IDLE, tint
from loadmaster.writers.report.markup import Figure, label

#: Pixels of a row, and of what is around all of them.
_ROW, _AROUND = 34, 90

#: Bars that have numbers on them; of more, only what they say when pointed at.
_MAX_NUMBERS = 4000


def pipeline(plan: Plan) -> Figure:
    """A trace for each of :data:`WHAT` that there is, a row for each device that works.

    O(V log V).
    """
    blocks = Blocks.of(plan)
    names = [label(device.name) for device in plan.cluster.devices]
    works = np.unique(blocks.device).tolist()
    rows = [
        f"{names[d]}  <br>idle {100 * blocks.idle[d]:.0f} %, {blocks.alive[d]} alive  "
        for d in works
    ]
    traces = [_trace(blocks, kind, names) for kind in np.unique(blocks.kind).tolist()]
    layout = {
        "height": _AROUND + _ROW * len(works),
        "margin": {"l": 20, "r": 10, "t": 30, "b": 40},
        "barmode": "overlay",
        "bargap": 0.25,
        "plot_bgcolor": IDLE,
        "xaxis": {
            "range": [0, plan.makespan or 1e-9],
            "tickformat": "~s",
            "ticksuffix": "s",
            "showgrid": False,
        },
        "yaxis": {
            "autorange": "reversed",
            "tickvals": list(range(len(works))),
            "ticktext": rows,
            "automargin": True,
            "showgrid": False,
            "fixedrange": True,
        },
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1,
            "yanchor": "bottom",
            "itemclick": False,
            "itemdoubleclick": False,
        },
    }
    return {"data": traces, "layout": layout}


def _trace(blocks: Blocks, kind: int, names: list[str]) -> Figure:
    here = np.flatnonzero(blocks.kind == kind)
    micro, device = blocks.micro[here].tolist(), blocks.device[here].tolist()
    row = np.searchsorted(np.unique(blocks.device), blocks.device[here]).tolist()
    faces = [tint(kind, j) for j in micro]
    took = (blocks.finish - blocks.start)[here].tolist()
    of = [
        (f" of micro-batch {j + 1}" if j >= 0 else "") + (f", stage {c + 1} there" if c else "")
        for j, c in zip(micro, blocks.virtual_stage[here].tolist(), strict=True)
    ]
    said = [
        f"{names[d]}: {WHAT[kind]}{which}, {format_seconds(s)}"
        for d, which, s in zip(device, of, took, strict=True)
    ]
    numbers = [str(j + 1) if j >= 0 else "" for j in micro]
    return {
        "type": "bar",
        "orientation": "h",
        "name": WHAT[kind],
        "y": row,
        "base": blocks.start[here].tolist(),
        "x": took,
        "text": numbers if len(blocks) <= _MAX_NUMBERS else None,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "insidetextfont": {"color": [ink_on(face) for face in faces]},
        "textangle": 0,
        "customdata": said,
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {
            "color": [_css(face) for face in faces],
            "line": {"color": "white", "width": 0.5},
        },
    }


def _css(face: Sequence[float]) -> str:
    r, g, b = (int(255 * part + 0.5) for part in face)
    return f"rgb({r},{g},{b})"
