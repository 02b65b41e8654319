"""A sweep as one picture: steps a second over the number of devices, a line per method."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from loadmaster.base.drawing import DPI, INK, MUTED, RULE, check_suffix, style, write
from loadmaster.base.errors import InputError
from loadmaster.base.units import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from loadmaster.tasks.sweep_table import SweepRow

#: Colours and marks of lines, told apart without colour too; more lines go round again.
_LOOKS = (
    ("#2f6db3", "o"), ("#d55e00", "s"), ("#009e73", "^"), ("#9c4274", "D"), ("#8a8400", "v"),
    ("#0b4f8a", "P"), ("#858585", "X"), ("#c46a9d", "<"),
)  # fmt: skip

#: Lines that are drawn.
_MOST = 8

#: A point: devices, and steps a second.
Point = tuple[int, float]


def draw(
    rows: Sequence[SweepRow],
    devices: Mapping[str, int],
    path: str | os.PathLike[str],
    *,
    width: int = 760,
) -> None:
    """Draws steps a second against devices, as PNG or SVG by the path's suffix.

    A line per graph and method through its clusters by size; clusters of the same size are points
    above each other. The dotted line of each colour goes on from the smallest cluster that has a
    plan, as if every device added as much as those. What does not fit or failed is not drawn, and
    is counted. The same rows give the same bytes.

    Parameters
    ----------
    rows : sequence of Row
        Of a sweep; those for throughput have their period as their step.
    devices : mapping
        Number of devices by the digest of the cluster.
    path
    width : int
        Pixels; a PNG has twice as many, for sharp screens.

    Raises
    ------
    InputError
        No plan that fits, another suffix, or the file cannot be written.
    MissingExtraError
        matplotlib is not installed.
    """
    check_suffix(path)
    lines = _lines(rows, devices)
    if not lines:
        raise InputError("no case of the sweep has a plan that fits, so there is no curve to draw")
    shown = dict(list(lines.items())[:_MOST])
    with style("drawing a sweep"):
        from matplotlib.figure import Figure

        height = 430
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
        axes = figure.add_axes(
            (70 / width, 52 / height, (width - 94) / width, (height - 120) / height)
        )
        _draw_lines(axes, shown)
        name = ", ".join(dict.fromkeys(row.graph for row in rows))
        place = 70 / width, 1 - 12 / height
        figure.text(*place, name, va="top", fontsize=13, fontweight="bold")
        drawn = sum(map(len, lines.values()))
        said = [f"{counted(drawn, 'plan')} of {counted(len(rows), 'case')}"]
        said += [f"{len(lines) - _MOST} more lines not drawn"] * (len(lines) > _MOST)
        said.append("dotted: if every device added as much as those of the smallest cluster")
        figure.text(
            place[0], 1 - 36 / height, "  ·  ".join(said), va="top", fontsize=9.5, color=MUTED
        )
        write(figure, path)


def _lines(rows: Sequence[SweepRow], devices: Mapping[str, int]) -> dict[str, list[Point]]:
    """Points by the label of their line, with few devices first."""
    many = len({row.graph for row in rows}) > 1
    lines: dict[str, list[Point]] = {}
    for row in rows:
        if row.makespan and row.fits:
            options = "" if row.options == "{}" else f" {row.options}"
            label = f"{row.graph}, " * many + f"{row.method}{options}"
            lines.setdefault(label, []).append((devices[row.cluster_sha256], 1 / row.makespan))
    return {label: sorted(points) for label, points in lines.items()}


def _draw_lines(axes: Axes, lines: Mapping[str, list[Point]]) -> None:
    most = max(n for points in lines.values() for n, _ in points)
    for i, (label, points) in enumerate(lines.items()):
        colour, mark = _LOOKS[i % len(_LOOKS)]
        least, rate = points[0]
        ends = [least, most], [rate, rate * most / least]
        axes.plot(*ends, color=colour, linewidth=1.0, linestyle=":", zorder=2)
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color=colour, linewidth=1.8, marker=mark, label=label, zorder=3)
    ticks = sorted({n for points in lines.values() for n, _ in points})
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.set_xlim(0, most * 1.04)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("devices")
    axes.set_ylabel("steps a second")
    axes.yaxis.grid(visible=True, color=RULE, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=8.5)
    axes.legend(frameon=False, loc="upper left", fontsize=8.5)
