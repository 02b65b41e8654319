"""Methods side by side as one picture: a bar per plan, and the lower bound of its kind of plans."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from loadmaster.base.drawing import DPI, INK, MUTED, check_suffix, style, time_ticks, write
from loadmaster.base.errors import InputError
from loadmaster.base.units import counted, format_ratio, format_seconds
from loadmaster.plans.comparison import Comparison, one_device
from loadmaster.plans.plan import Plan
from loadmaster.plans.words import title
from loadmaster.writers.pictures.timeline import OVER

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Bars: the best, others, plans that do not fit; and the mark of a bound.
_BEST, _OTHER, _BOUND = "#2f6db3", "#6b93c1", INK

_ROW, _HEADING, _BELOW, _LETTER = 26, 66, 30, 7.6

#: Bars that are drawn.
_MOST = 40


def draw(comparison: Comparison, path: str | os.PathLike[str], *, width: int = 1000) -> None:
    """Draws the plans of a comparison, as PNG or SVG by the path's suffix.

    A bar per method, the best first: its step time, or its period where plans are for throughput.
    The line across a bar is the lower bound of plans of its kind (whole ops, or all). Beside it
    stand the time, how many times as fast that is as one device, and how much better a plan of its
    kind can be at most. What does not fit is red and says so. The same plans give the same bytes.

    Raises
    ------
    InputError
        No plan to draw, another suffix, or the file cannot be written.
    MissingExtraError
        matplotlib is not installed.

    Examples
    --------
    >>> import loadmaster as lm, pathlib, tempfile
    >>> seen = lm.compare("example:lenet", "2xV100-NVLink", ["heft", "single"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "methods.svg")
    ...     draw(seen, path)
    ...     path.exists()
    True
    """
    check_suffix(path)
    rows = comparison.best_first[:_MOST]
    if not rows:
        raise InputError("no method made a plan, so there is nothing to compare in a picture")
    with style("drawing a comparison"):
        from matplotlib.figure import Figure

        single = one_device(plan for _, plan in rows)
        notes = [_note(plan, single) for _, plan in rows]
        left = int(max(len(name) for name, _ in rows) * _LETTER) + 16
        right = int(max(map(len, notes)) * 6.3) + 24
        height = _HEADING + _ROW * len(rows) + _BELOW
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
        across, tall = width - left - right, _ROW * len(rows)
        place = (left / width, _BELOW / height, across / width, tall / height)
        axes = figure.add_axes(place)
        _draw_rows(axes, rows, notes)
        plan = rows[0][1]
        top = left / width, 1 - 12 / height
        figure.text(*top, title(plan), va="top", fontsize=13, fontweight="bold")
        said = _facts(plan, len(comparison.plans) - len(rows), comparison.failures)
        figure.text(top[0], 1 - 36 / height, said, va="top", fontsize=9.5, color=MUTED)
        write(figure, path)


def _facts(plan: Plan, hidden: int, failures: dict[str, str]) -> str:
    """A legend in words: the meaning of bars and lines, and rows that are not drawn."""
    quantity = "period" if plan.objective.goal == "throughput" else "step time"
    said = [f"bar: {quantity}", "line across it: lower bound of plans of its kind"]
    if hidden:
        said.append(f"{hidden} slower not drawn")
    if failures:
        names = ", ".join(sorted(failures)[:3]) + (" ..." if len(failures) > 3 else "")
        said.append(f"{counted(len(failures), 'method')} without a plan: {names}")
    return "  ·  ".join(said)


def _draw_rows(axes: Axes, rows: list[tuple[str, Plan]], notes: list[str]) -> None:
    seconds = [plan.objective.seconds(plan.verdict) for _, plan in rows]
    axes.set_xlim(0, max(seconds) or 1e-9)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.spines[:].set_visible(False)
    for row, ((name, plan), took) in enumerate(zip(rows, seconds, strict=True)):
        colour = (_BEST if row == 0 else _OTHER) if plan.fits else OVER
        axes.barh(row, took, height=0.66, color=colour)
        for look, wide in (("white", 4.0), (_BOUND, 1.6)):
            ends = [plan.lower_bound] * 2, [row - 0.42, row + 0.42]
            axes.plot(*ends, color=look, linewidth=wide, solid_capstyle="butt", clip_on=False)
        place = axes.get_yaxis_transform()
        axes.text(-0.01, row, name, ha="right", va="center", fontsize=9, transform=place)
        axes.text(1.015, row, notes[row], va="center", fontsize=8.5, color=MUTED, transform=place)
    axes.set_yticks([])
    axes.set_xticks(*time_ticks(axes.get_xlim()[1], 6))
    axes.tick_params(axis="x", length=2, labelsize=8)


def _note(plan: Plan, single: float | None) -> str:
    took = plan.objective.seconds(plan.verdict)
    said = [format_seconds(took)]
    if single and took and plan.objective.goal == "step":
        said.append(f"{format_ratio(single / took)} x one device")
    said.append(f"at most {plan.gap:.0%} better" if plan.fits else "DOES NOT FIT")
    return ", ".join(said)
