"""The report's figure of a pipeline: a row per device, a numbered bar per micro-batch and pass."""

from __future__ import annotations

import html

import numpy as np

from loadmaster.base.units import format_seconds
from loadmaster.plans.plan import Plan
from loadmaster.writers.pictures.blocks import WHAT, Blocks
from loadmaster.writers.pictures.pipeline import IDLE, tint
from loadmaster.writers.report.figures import Figure

#: Pixels of a row, and of what is around all of them.
_ROW, _AROUND = 34, 90

#: Bars that have numbers on them; of more, only what they say when pointed at.
_MAX_NUMBERS = 4000


def pipeline(plan: Plan) -> Figure:
    """A trace for each of :data:`WHAT` that there is. O(V log V)."""
    blocks = Blocks.of(plan)
    names = [html.escape(device.name, quote=False) for device in plan.cluster.devices]
    rows = [
        f"{name}  <br>idle {100 * idle:.1f} %, {alive} alive  "
        for name, idle, alive in zip(names, blocks.idle, blocks.alive, strict=True)
    ]
    traces = [_trace(blocks, what, names) for what in np.unique(blocks.what).tolist()]
    layout = {
        "height": _AROUND + _ROW * len(names),
        "margin": {"l": 60, "r": 30, "t": 30, "b": 40},
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
            "tickvals": list(range(len(names))),
            "ticktext": rows,
            "automargin": True,
            "showgrid": False,
            "fixedrange": True,
        },
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
    }
    return {"data": traces, "layout": layout}


def _trace(blocks: Blocks, what: int, names: list[str]) -> Figure:
    here = np.flatnonzero(blocks.what == what)
    micro, device = blocks.micro[here].tolist(), blocks.device[here].tolist()
    took = (blocks.finish - blocks.start)[here].tolist()
    of = [
        (f" of micro-batch {j + 1}" if j >= 0 else "") + (f", stage {c + 1} there" if c else "")
        for j, c in zip(micro, blocks.chunk[here].tolist(), strict=True)
    ]
    said = [
        f"{names[d]}: {WHAT[what]}{which}, {format_seconds(s)}"
        for d, which, s in zip(device, of, took, strict=True)
    ]
    numbers = [str(j + 1) if j >= 0 else "" for j in micro]
    return {
        "type": "bar",
        "orientation": "h",
        "name": WHAT[what],
        "y": device,
        "base": blocks.start[here].tolist(),
        "x": took,
        "text": numbers if len(blocks) <= _MAX_NUMBERS else None,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "customdata": said,
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {
            "color": [_css(what, j) for j in micro],
            "line": {"color": "white", "width": 0.5},
        },
    }


def _css(what: int, micro: int) -> str:
    r, g, b = (int(255 * part + 0.5) for part in tint(what, micro))
    return f"rgb({r},{g},{b})"
